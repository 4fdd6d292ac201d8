"""Commands that make files for a training.

fast         `understudy fast fit`
tokenizer    `understudy tokenizer fit`
fit_config   settings that both share
spread_rows  rows of samples that are evenly spread over a dataset
"""
