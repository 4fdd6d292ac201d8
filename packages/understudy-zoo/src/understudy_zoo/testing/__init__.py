"""Helpers of tests, for the suites of all distributions.

jax_tree          the JAX tree of a small pi0.5 or pi0, by formulas of its own, and its files,
                  written by orbax
lerobot_policies  small policies of LeRobot for the tests of the adapters, and LeRobot's own trainer
                  on the batches of a run
"""
