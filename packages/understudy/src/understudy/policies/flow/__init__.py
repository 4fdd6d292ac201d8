"""A flow-matching policy of about a million parameters.

config  settings and config
model   `FlowPolicy`
"""
