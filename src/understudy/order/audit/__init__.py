"""Shuffle quality and cost of an order, from episode lengths alone.

audit            figures of an order
design_effect    correlation model and the design effect under it
baselines        orders of other loaders
"""
