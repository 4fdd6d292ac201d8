"""Proofs of any policy: padding, noise, sums, repetition, actions and saving.

check        `check_policy` and its report
first_batch  the short form at the start of a run
targets      the policy that a user names: a module, a type, a folder
batches      batches from the needs that a policy declares, or of a dataset
subject      losses and actions of a policy, ours or a stranger's, with fixed random numbers
proofs       the proofs
"""
