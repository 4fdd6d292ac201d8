"""Texts as tokens, before and behind the network.

prompt          prompts, responses and action tokens in PaliGemma's vocabulary
tokenize_batch  tokens of a batch
respond         text behind the prompt: losses and predictions
"""
