"""The report.html of a run.

page            the page: verdict, first batch, speed, settings
validation      its sections on losses, validation and imagined futures
tables          a validation as text
rollouts        its section on rollouts
worst_episodes  its section on the validation episodes with the largest losses
"""
