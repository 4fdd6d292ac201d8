"""Edit datasets: a new LeRobot v3.0 dataset from episodes of one or more others.

plan            `Plan` of the output; pieces of episodes: selected, split, cut at times, by text or
                at idle gaps
features        rename, drop and cast features; compare those of several sources; sizes of encoded
                images
annotations     subtasks, metadata and task texts from files
rows            read, renumber and write rows
videos          copy or encode videos; PSNR and SSIM of encoded images
add_video       a camera from videos that were recorded apart
carried         further fields of info.json and files of the sources: carried, or named
decode_cost     CPU time of decoding a camera before and after it was encoded again
publish         new episodes of several writers appended to a dataset that others read
write_set       `write_outputs`: plans written to a new folder that appears in one step, with their
                origin
"""
