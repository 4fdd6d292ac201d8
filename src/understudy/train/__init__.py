"""A training run.

run                    from the first step to the last: `train` and `resume`
loop                   the training loop
inner_loop             batches through the step, shared with `profile`
step                   one optimizer step
state                  policy, optimizer and average of a run
precision              the setting `precision`
task_modes             the task mode of each position
data                   the data of a run
eval                   validation
checkpoint             checkpoints, the run directory, export
track                  metrics.jsonl and trackers
profiling              time and memory of a step
run_record             order.json: decisions that hold for the whole run
resume_check           which settings may change on resume
startup_summary        the table that is printed before the first step
background_rollouts    rollouts during training, in a process of their own
"""
