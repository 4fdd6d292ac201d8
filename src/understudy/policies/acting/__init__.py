"""Parts of `RobotPolicy`.

prepared           an observation on its way into the network, and one pass for several robots
action_bounds      the recorded minimum and maximum as bounds of the actions
contract_reaction  warnings and errors where inputs differ from those of training
"""
