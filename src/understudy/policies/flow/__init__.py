"""A flow-matching policy of about a million parameters.

config    settings and config
model     `FlowPolicy`
guided    chunks that continue the one in execution
graph     the policy as a function of tensors
"""
