"""Files of a run.

run_dir       the run directory
checkpoint    checkpoints that are complete or absent, saved at once or in the background
tensor_files  files of tensors in a checkpoint, frozen ones once, and their index, read without
              running code
checksums     checksums of checkpoint files
export        a policy out of a checkpoint, as a folder
"""
