"""Selection of episodes and frames.

select         segments of a dataset to use
frame_weights  weights of frames, in the order, the loss, or both
read_weights   weights from a parquet file or a column
segment_table  these segments, searched by sample number and by frame
distinct       sets of ids as sorted arrays
keep_keys      episodes named by the keys of a keep-ranges file
keep_report    matched keys and remaining frames
where          conditions on the metadata of episodes
motion         values that show motion, and thresholds from their own speeds
idle           frame ranges without long pauses of the robot
"""
