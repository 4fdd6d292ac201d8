"""What a run leaves on disk.

run_dir       the run directory
checkpoint    checkpoints that are complete or absent
index         the index of a checkpoint, read without running code
seal          checksums of checkpoint files
saver         when checkpoints are written
export        a policy out of a checkpoint
"""
