"""Helpers of tests, for the suites of all distributions.

batches          comparison of batches, and the least memory of a Loader
caches           a cache folder of a test's own, with files of the smallest tables
datasets         small LeRobot datasets of every version, written with bare pyarrow, PyAV and
                 Pillow, and their true content
depth            depth cameras for datasets of `understudy_data.testing.datasets`: videos of 12-bit
                 codes or 16-bit numbers, and images in rows
hub              the answers of a Hugging Face hub that reading a dataset needs, on top of
                 `RangeServer`
index_dataset    a map-style dataset whose items are their own indices, so that batches show the
                 order
killed_recorder  datasets of a recorder that was killed
loader_process   a loader in a process of its own: `python loader_process.py measure DATASET ...` or
                 `
mapped_child     tables mapped by a parent process, as seen by its child
opened_files     files that a block opens
order_sources    sources for tests of the order: lengths instead of recordings
outcomes         datasets of episodes with outcomes, whose state shows them
peak_memory      resident memory of this process, and its peak
recording        a small recording with known values, and the expected content of its folder
servers          a small web server with byte ranges, counters and faults
shuffle_battery  statistical tests of permutations of many keys against random permutations
videos           short videos of every supported kind, and a plain container decode as the reference
weights          files of frame weights, and the frames of segments
writable_hub     a Hugging Face hub on this machine that repositories can be published to: commits,
                 large files, tags, downloads
"""
