"""A flow-matching policy of about a million parameters.

config        settings and config
model         `FlowPolicy`
streams       targets of the loss terms
continuation  chunks that continue the one in execution
graph         the policy as a function of tensors
"""
