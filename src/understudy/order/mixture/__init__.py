"""Several sources in one order.

mixture    exact slots of each source
slots      positions to samples and back
rounds     shares that are not a whole number of slots
exact      an order over such shares
"""
