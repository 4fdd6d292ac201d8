"""Keyed pseudo-random functions in numpy, the same on every platform.

keys       64-bit keys from (seed, purpose, numbers)
philox     Philox4x32-10
permute    keyed permutations of [0, n)
"""
