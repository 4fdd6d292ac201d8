"""Batches: made by threads from the samples of an order.

The way of a batch: `loader` asks `loader_threads`, which look up its samples and read its rows;
each thread has its images made by a `batch_builder`, from the clip readers in `images`.

loader                `Loader`: batches in the order's sequence
prepare               memory, open datasets and buffers of a request
batch_request         the arguments that `Loader` and `EpisodeStream` share, checked
same_version          one version of the datasets and one order for all ranks
order_rows            samples of steps, as rows of an order file, and its export
batch_mixing          episodes in a batch, and in one of a uniform shuffle
order_state           state dicts: a position, and its order
dataloader            the same batches for torch's DataLoader
loader_threads        the loader's threads
batch_builder         one thread's part of a batch
images                images for batches: clip readers, cursors, decoded images, buffers
instructions          one of several instructions in a task text, per sample
mixed_batches         rows for several batches at once, with one set of keys, dtypes and shapes for
                      several datasets
memory_plan           memory needed before the first batch, and the decode policies that fit it
choose_order          a new order, chosen by its cost and its mixing in a memory
explain               an order in words, with its candidates or the batches of its file
remote_prefetch       requests for the bytes of coming batches from remote storage
bad_frames            substitution of samples that cannot be read
device_copy           copies of batches to a device, while it computes
validation_data       reading of validation frames
decode_rate           rate of decoding videos from front to back
row_sample            rows of a source beside the figures that normalize them
"""
