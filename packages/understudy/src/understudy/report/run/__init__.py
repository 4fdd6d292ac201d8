"""The report.html of a run.

page            the page: verdict, first batch, speed, settings
validation      its sections on losses, validation and imagined futures
tables          a validation as text
overlay         further runs on it: curves over its own, a sentence, a table of groups
results         results of `understudy rollout` of the run
parts           sections of other packages, by entry points
worst_episodes  its section on the validation episodes with the largest losses
"""
