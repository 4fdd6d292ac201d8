"""Validation frames, in chunks that never depend on ranks or threads.

validation_data      the validation frames of all sources as one sequence
validation_sample    a fixed sample of them, where there are too many
"""
