"""Edit datasets: a new LeRobot v3.0 dataset from episodes of one or more others.

plan            `Plan`: episodes, features, tasks, metadata and encodings of the output
pieces          episodes and frames to keep, and parts of a split
segments        cuts at times, by text, at idle gaps
features        rename, drop and cast features; compare those of several sources
image_sizes     sizes of encoded images
annotations     subtasks, metadata and task texts from files
language        times of language records in a piece
rows            read, renumber and write rows
videos          copy or encode videos
quality         PSNR and SSIM of encoded images
decode_cost     cost of decoding before and after
recommend       video settings for a policy of small images, measured
write_set       `write_set`: write a plan as a dataset
provenance      meta/edit.json: origin of the output
output          `write_outputs`: a new folder that appears in one step
"""
