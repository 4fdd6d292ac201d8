"""Metrics of a run.

metrics_file    metrics.jsonl
trackers        TensorBoard, Weights & Biases, Trackio
"""
