"""A flow-matching policy of about a million parameters.

config    settings and config
model     `FlowPolicy`
vision    the image encoder
text      instructions as UTF-8 bytes
"""
