"""Which sample is position p, and its bytes: LeRobot datasets, read near decode speed.

checksums        SHA-256 of the files of a folder, stored next to them
datasets         metadata, selection, samples, statistics, recording
hub              repositories on the Hugging Face hub: their ids, and folders fetched from or
                 published to them
integrations     our loader in the trainers of others, in one line each
load             batches: made by threads from the samples of an order
order            the order: the sample at each position, as one pure function, and the random draws
                 of a position
order_file       order files: the samples of consecutive positions as rows of parquet
parts            work in parts, by one process, by several, or by a Ray cluster
plain_values     plain values as a structure for JSON and a list of arrays, and back; files of them
                 with a checksum
process_rank     rank of this process among those of a training, for every loader and sampler
prompt_metadata  metadata of an episode as text of the prompt
storage          bytes of files by position, wherever the files are
testing          helpers of tests
video            images of a video file by position

The names that other distributions take are those of `__init__.pyi`; each is imported when it is
first used.
"""

from understudy_base import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
