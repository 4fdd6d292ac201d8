"""Commands for robots.

serve   the policy server
replay  a recorded episode through the server, beside open-loop validation
"""
