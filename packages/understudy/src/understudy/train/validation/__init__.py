"""Validation.

validation_loss        losses of all validation frames, in each task mode, during a run and after it
any_loop               losses of datasets in any training loop, by the same mechanism
imagined               imagined futures and the recorded ones
observer               observers: one pass over the samples feeds all of them
losses                 observes the losses per norm head, source and task
per_dimension          observes the loss of each action dimension
open_loop              observes sampled actions beside the recorded ones; predicts episodes
episode_sums           loss sums of each episode, in files of the run
metrics                figures per group, with standard errors
"""
