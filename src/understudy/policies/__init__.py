"""Networks: tensors in, per-sample losses or actions out. Imports torch only.

losses        per-sample losses
batch         checks of the batch
common        layers, normalisation, flow matching and augmentation
flow          the small flow-matching policy
pretrained    a policy as a folder: weights, config, normalisation
replaced      replace such a folder in one step
"""
