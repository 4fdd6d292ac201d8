"""Rules by theme: each file yields findings from facts, and reads no file of the dataset itself.

metadata      info.json, the episode table and tasks
files         data files, places of episodes in them, and timestamps
pairing       columns that name another episode than the place of the rows
values        numbers of one column, and their unit, direction and order
action_state  action against state
signals       noise, zeros, quaternions and shifts of an episode against the others
statistics    recorded statistics
episodes      repeated and unusual episodes
videos        video files, and places of episodes in them
images        decoded images, and values of depth images
image_detail  images that are mirrored, noisy, or differ in colors, rate, order or sharpness
camera_poses  scenes that are shifted, turned or zoomed
motion        images against rows
sensors       files, clocks and values of sensors at their own rates
"""
