"""Commands for robots.

serve   the policy server
"""
