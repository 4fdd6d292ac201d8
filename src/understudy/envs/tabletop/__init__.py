"""A small table with three blocks: pick up the named one.

sim             the simulation, on MuJoCo
expert          the scripted expert
tabletop_env    the simulation as an environment
"""
