"""Validation.

validate     losses of all validation frames
open_loop    sampled actions compared with the recorded ones
metrics      figures per group, with standard errors
evaluate     validations during a run
"""
