"""Helpers of tests, for the suites of all distributions.

arm           an arm of seven joints with two cameras: its observations, and its input contract
hostile       plain values with one hostile value in place of another, and the refusals that they
              may cause
small_server  a server of the protocol without a policy: scripted answers and faults
"""
