"""Pages and figures.

run             the report of a run
intervals       intervals of losses, of paired differences and of success
audit_page      the account of `audit`, as a page and as text
viewed_run      the run as a source of `view`
step_profile    the page of `profile`, and its part of a report
"""
