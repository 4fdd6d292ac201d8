"""The inputs that a robot must send: facts about those of training, and checks of observations against them.

model_card         README.md of a policy folder
facts              `InputContract`: keys, names, ranges and appearance of each input, per robot; contract.json
camera_print       how the images of a camera looked in training, and how well an image fits
vector_likelihood  how well numbers fit those of training, as they are or after a unit change or another order
mismatch           `Mismatch`: one difference between the inputs of training and of a robot
image_size         sizes of images that are refused before any work
declared           the robot's own declaration (keys, names, rate) against the facts
observed           observations against the facts, over time
"""
