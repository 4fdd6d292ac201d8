"""Several sources in one order.

shares          slots of each source, and their places in a period
whole_slots     positions to samples and back
rounds          shares that are not a whole number of slots
shared_slots    positions to samples and back, for such shares
"""
