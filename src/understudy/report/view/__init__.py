"""A page to look through episodes: images beside curves, tasks, keep-ranges, findings, and predicted actions.

viewer        everything that the page shows, as named resources
server        a web server for them on this machine
export        a folder of them that opens without a server
episode_list  episodes in pages, found by id or task
sheets        images of an episode, many frames in a file
columns       curves and exact values
lanes         tasks, texts and keep-ranges over the frames
rerun_log     episodes as a recording of rerun
findings      results of `understudy check` by episode

The folder `static` has the page, its scripts and its style sheet.
"""
