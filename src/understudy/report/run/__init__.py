"""The report.html of a run.

page          the page
losses        its section on training losses
validation    its section on validation
heatmap       loss per group over the steps
tables        a validation as text
step          its section on one step: time by phases, memory
rollouts      its section on rollouts
imagined      its section on imagined futures
worst_episodes  its section on the validation episodes with the largest losses
"""
