"""Parts that policies share.

facts               `PolicyConfig`, what the data add to the settings
settings            settings of encoders, ages of past frames, task modes, dimensions of towers
layers              linear and norm layers with explicit precision, cross-entropy over a large
                    vocabulary
flow_matching       flow matching on action chunks, and chunks that continue the one in execution
normalizer          between the robot's units and the network's, per norm head
images              images of any size between black bars, and augmentation from explicit draws
encoders            texts and images as vectors
observing           one vector from images, state and instruction
streams             streams of a policy with a future, as targets of the loss terms
towers              pairs of transformer towers that attend to each other
fast_tokenizer      FAST action tokens
fit_text_tokenizer  a small sentencepiece model for the texts of a dataset
lerobot_processors  processor files of LeRobot, read and written
folder_facts        facts that the files of another tool cannot hold
"""
