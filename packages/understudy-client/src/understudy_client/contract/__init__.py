"""The contract of a policy, dataset, robot or environment (docs/contract.md), and checks of
observations against it.

facts         `Contract`: keys, names, units, ranges, cameras, actions, per robot; contract.json
form          the form of contract.json, its check, and contract.schema.json
declared      usual statements of a robot, as its contract
compare       two contracts: each contradiction with its remedy
numbers       explanations of numbers that do not fit: units, orders, other robots
image_size    sizes of images that may be resized to that of training
camera_print  how the images of a camera looked in training, and how well an image fits
observed      observations against a contract, over time
mismatch      `Mismatch`: one contradiction, and the kinds of remedies
"""
