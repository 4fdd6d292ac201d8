"""Validation.

validation_loss        losses of all validation frames, in each task mode, during a run and after it
any_loop               losses of datasets in any training loop, by the same mechanism
imagined               imagined futures and the recorded ones
open_loop              sampled actions compared with the recorded ones, over frames and over whole
                       episodes
episode_sums           loss sums of each episode, in files of the run
metrics                figures per group, with standard errors
"""
