"""Batches: which thread makes which sample, and when.

loader           `Loader`: batches in the order's sequence; its state is one position
dataloader       the same order for torch's DataLoader
memory_plan      memory needed before the first batch, and how to fit a budget
workers          the loader's threads
batch_builder    one thread's part of a batch
row_batches      rows for several batches at once
images           decoding for batches: clip readers, cursors, decoded images, buffers
mixture          one set of keys, dtypes and shapes for several datasets
bad_frames       substitution of samples that cannot be read
prefetch         fetch the bytes of coming batches from remote storage
device_copy      copy batches to a device beside the computation
eval             reading of validation frames
"""
