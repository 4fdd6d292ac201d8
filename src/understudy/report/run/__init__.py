"""report.html of a run.

page          the page
validation    its part on validation
heatmap       loss per group over the steps
tables        a validation as text
rollouts      its part on rollouts
"""
