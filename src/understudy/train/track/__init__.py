"""Metrics of a run.

metrics_file    metrics.jsonl
verdict         training against validation loss
trackers        TensorBoard, Weights & Biases, Trackio
"""
