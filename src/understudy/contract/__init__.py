"""The inputs that a robot must send: facts about those of training, and checks of observations against them.

model_card    README.md of a policy folder
facts         `InputContract`: keys, names, ranges and appearance of each input, per robot; contract.json
camera_print  how the images of a camera looked in training, and how well an image fits
mismatch      `Mismatch`: one difference between the inputs of training and of a robot
declared      the robot's declaration (keys, names, rate) against the facts
observed      observations against the facts, over time, and explanations of numbers that do not fit
"""
