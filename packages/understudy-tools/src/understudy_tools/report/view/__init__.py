"""A page to look through episodes: images, curves, tasks, keep-ranges, findings, and predicted
actions.

viewer        everything that the page shows, as named resources, and a folder of them that opens
              without a server
server        a web server for them on this machine
episodes      curves and exact values, lanes, and findings of `check`
sheets        images of an episode, many frames in a file
rerun_log     episodes as a recording of rerun
"""
