"""Requirements of code that reads, writes, samples, loads and resumes LeRobot datasets, and their
examination.

    lerobot-conformance loader MODULE:FACTORY
    pytest --lerobot-conformance loader=MODULE:FACTORY

sets          small datasets with known answers
requirement   `Requirement`, `Result` and `examine`
catalog       all requirements
samples       samples and batches against the known answers
passes        loaders of all ranks, read in step
reader        R-READ: frames, columns, images, windows, subsets, versions
writer        R-WRITE: the files that a writer leaves
sampler       R-SAMPLE: coverage and order of numbers
loader        R-LOAD: coverage, order and content of batches
resume        R-RESUME: states
seeds         R-SEED: seeds
statistics    R-STAT: statistics of features
weights       R-WEIGHTS: checkpoints of a model
worker        a process that examines one requirement after the other
examination   a worker with a time limit
report        tables
command       `lerobot-conformance`
plugin        the plugin of pytest; imports the others where its option is used
"""
