"""Files of a run.

run_dir       the run directory
data_paths    paths of a run's data, in any working directory
checkpoint    checkpoints that are complete or absent
tensor_files  files of tensors in a checkpoint, frozen ones once
index         the index of a checkpoint, read without running code
checksums     checksums of checkpoint files
saver         saves of checkpoints, at once or in the background
export        a policy out of a checkpoint
export_graph  a policy out of a checkpoint as a graph of tensors
"""
