"""Parts that policies share.

layers           linear, norm and attention layers with explicit precision
flow_matching    flow matching on action chunks
chunking         real-time chunking: a chunk that continues the one in execution
affine           normalization as an affine map per norm head
normalizer       between the robot's units and the network's, per norm head
fast_tokenizer   FAST action tokens
fit_text_tokenizer  a small sentencepiece model for the texts of a dataset
letterbox        images of any size between black bars
ages             ages of past frames in settings
history          past frames and states of a batch
token_loss       cross-entropy over a large vocabulary
augment          image augmentation from explicit draws
towers           pairs of transformer towers that attend to each other
encoders         texts and images as vectors
task_modes       task modes: policy, forward, inverse and joint
"""
