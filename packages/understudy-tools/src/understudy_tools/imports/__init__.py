"""Recordings of other formats as LeRobot v3.0 datasets: ROS bags, HDF5, Zarr.

settings       settings of `understudy import`, and the mapping: streams of a recording -> features
               of the dataset
recording      `Recording`, the base of all readers, and `RecordingError`, a fault with its kind,
               stream and time
limits         what one recording may ask of memory
bounds         sizes compared with a limit, and decompression that stops at one
inside         links that leave the folder of an import
bags           recordings of MCAP, sqlite3 and ROS 1 bags
bag_file       topics of a file, days of its messages, and messages of several files merged by time
bag_files      files of sqlite3 and ROS 1, and those that metadata.yaml lists
mcap           MCAP files: records, chunks and checksums
message_types  message types of the topics in use, parsed by `rosbags`
arrays         episodes of rows of arrays
hdf5           HDF5 files, with links resolved within them
zarr_files     Zarr folders and zip files, with codecs that stop at declared sizes
sources        files and folders -> recordings, with the default mapping of their layout
values         numbers, texts and RGB images of one message or row
layout         features of the dataset, from the first samples
timeline       frames on an even clock: episodes, gaps, and the sample of each stream for each frame
frames         values of all frames of a recording, read once in the sequence of recording
write          the dataset, its raw streams as sensors, and meta/import.json
"""
