"""Our loader in the trainers of others, in one line each. Each file imports its trainer's package
when it is used.

lerobot        a plugin of `lerobot-train`
huggingface    a mixin for the `Trainer` of transformers
openpi         the data loader of openpi's PyTorch trainer
"""
