"""Closed-loop evaluation of a policy.

play          play episodes
adapter       map an environment's keys to the policy's
env_contract  the contract of an environment
result        success rates with intervals
files         results, images and films on disk
"""
