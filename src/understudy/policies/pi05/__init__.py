"""pi0.5 and pi0: a vision-language model and an action expert that attend to each other, layer by layer.

sizes      dimensions of a network
config     settings and configs
policy     `Pi05Policy`
network    `Pi0Network`
extents    images of a batch, cameras and numbers of tokens of a sample
respond    text behind the prompt: losses and predictions
chunking   real-time chunking
gemma      layers of the language tower and the action expert
siglip     the vision encoder
attention  attention between segments of tokens, rotary positions
prompt     prompts, responses and action tokens in PaliGemma's vocabulary
tokenize_batch  tokens of a batch
released_keys  names of released weights, both ways
weights    first weights: of a released file, or fresh
normalization  normalization that released weights were trained with
formats    folders of LeRobot and openpi
"""
