"""Policies as graphs of tensors, which run without this package.

interface   `PolicyGraph`: a policy of one robot as a function of tensors
files       files in the formats of `torch.export` and ONNX, compared with the policy
"""
