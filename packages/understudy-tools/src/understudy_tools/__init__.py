"""Check, edit, import, view and publish LeRobot datasets, without torch.

bucket   a dataset written into a bucket, file by file
check    checks of a whole dataset (format, rows, clocks, values, statistics, images)
cli      commands that write datasets, or look at them
edit     edit datasets: a new LeRobot v3.0 dataset from episodes of one or more others
imports  recordings of other formats as LeRobot v3.0 datasets: ROS bags, HDF5, Zarr
motion   values that show motion, thresholds from their own speeds, and frame ranges without long
         pauses
report   the page of `check`, and the episode browser of `view`
testing  helpers of tests
"""
