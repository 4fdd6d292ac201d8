"""Validation during a run.

validate     one validation pass
metrics      losses per norm head, source and task, with standard errors
open_loop    action error on validation frames
schedule     when a run validates, and what happens if it is interrupted
"""
