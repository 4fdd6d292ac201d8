"""Rules by theme: each file yields findings from facts, and reads no file of the dataset itself.

metadata    info.json and the episode table
files       data files, and places of episodes in them
tasks       task list, and tasks of episodes
clocks      timestamps
values      numbers of one column
units       unit, direction and order of dimensions
action_state  action against state
signals     noise, zeros and quaternions of an episode against the others
offsets     dimensions that are shifted in one episode
statistics  recorded statistics
episodes    repeated and unusual episodes
videos      video files, and places of episodes in them
images      decoded images
changed_images  images that are mirrored, noisy, or have exchanged colors
image_detail  rate, order, sharpness and colors of images
camera_poses  scenes that are shifted, turned or zoomed
motion      images against rows
depth       values of depth images
sensors     files, clocks and values of sensors at their own rates
"""
