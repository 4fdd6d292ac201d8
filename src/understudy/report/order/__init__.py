"""Comparison of an order with others.

explain    audit of our order and five others
text       the comparison as a table
figure     the comparison as a figure
"""
