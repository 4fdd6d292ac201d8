"""A flow-matching policy of about a million parameters.

model     `FlowPolicy` and its config
vision    the image encoder
text      instructions as UTF-8 bytes
"""
