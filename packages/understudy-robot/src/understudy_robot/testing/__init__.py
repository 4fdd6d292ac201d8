"""Helpers of tests, for the suites of all distributions.

envs     checks of the environment protocol
hostile  plain values with one hostile value in place of another, and the refusals that they may cause
player   a player of rollouts without torch: `player.py SETTINGS HOW RUN STEP`
serving  a server in this process for a policy, and connections that speak to it below our client
"""
