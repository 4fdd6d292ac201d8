"""A value function: the distribution of the return of an observation, over bins.

config  settings and configs
model   `ValuePolicy`, and `Pi05ValuePolicy` on the towers of pi0.5
"""
