"""Validation.

validation_loss        losses of all validation frames
by_mode                a validation in each task mode
imagined               imagined futures beside the recorded ones
open_loop              sampled actions compared with the recorded ones
episode_actions        actions predicted over a validation episode, beside the recorded ones
episode_sums           loss sums of each episode, in files of the run
metrics                figures per group, with standard errors
periodic_validation    validations during a run
"""
