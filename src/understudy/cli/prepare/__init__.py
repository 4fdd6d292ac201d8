"""Commands that make files for a training.

fast       `understudy fast fit`
tokenizer  `understudy tokenizer fit`
"""
