"""A value function: the distribution of the return of an observation, over bins.

config  settings and config
model   `ValuePolicy`
"""
