"""Recordings of other formats as LeRobot v3.0 datasets: ROS bags, HDF5, Zarr.

settings    settings of `understudy import`, and the mapping: streams of a recording -> features of the dataset
recording   `Recording`, the base of all readers, and `RecordingError`, a fault with its kind, stream and time
bags        MCAP, sqlite3 and ROS 1 bags by `rosbags`
arrays      episodes of HDF5 and Zarr files
sources     files and folders -> recordings, with the default mapping of their layout
values      numbers, texts and RGB images of one message or row
layout      features of the dataset, from the first samples
timeline    frames on an even clock: episodes, gaps, and the sample of each stream for each frame
frames      values of all frames of a recording, read once in the sequence of recording
write       the dataset, its raw streams as sensors, and meta/import.json
"""
