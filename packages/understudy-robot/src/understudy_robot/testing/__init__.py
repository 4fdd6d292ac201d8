"""Helpers of tests, for the suites of all distributions.

envs     checks of the environment protocol
player   a player of rollouts without torch: `player.py SETTINGS HOW RUN STEP`
serving  a server in this process for a policy, and connections that speak to it below our client
"""
