"""The data of a run.

run_data               all sources, the order over them, their loader and prompts
source_faults          the errors of all sources as one, with the settings that leave them out
same_content           copies among the sources, and other frame rates
sources                one source, split into training and validation episodes
sample_windows         the windows of samples: the chunk, and what the policy, history and modes
                       read besides
run_normalization      the normalization of a run: computed from its episodes, or given
dimension_modes        the setting data.normalize by the names of dimensions
given_figures          figures from outside, confronted with a sample of the rows
input_contract         the inputs of the robots of a run, measured on its training frames
frames_file            frames.parquet: training and validation frames, for an account without the
                       data
versions_read          versions of the datasets that a run read
updates                episodes that were appended to the datasets, trained on from a checkpoint on
"""
