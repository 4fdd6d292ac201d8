"""Helpers of tests, for the suites of all distributions.

envs     checks of the environment protocol
player   a player of rollouts without torch: `player.py SETTINGS HOW RUN STEP`
traces   traces of the client's arm: two episodes in which it grasps and puts down
serving  a server in this process for a policy, and connections that speak to it below our client
"""
