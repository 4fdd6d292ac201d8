"""Selection of episodes and frames.

select         segments of a dataset to use, searched by sample number and by frame
frame_weights  weights of frames, in the order, the loss, or both
keep_ranges    keys of keep-ranges files, and a report on the remaining frames
where          conditions on the metadata of episodes
spread         validation episodes spread over tasks
"""
