"""Pages and figures.

failures  failed episodes of a rollout next to the successful ones, and the losses of their run
rollouts  the section on rollouts
why       the page of `why`: why a policy does not grasp
"""
