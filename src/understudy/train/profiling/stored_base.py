"""Dtype of the frozen base of a run that a plan or a profile does not load."""

from dataclasses import replace
from math import prod

import torch

from understudy.config.train import TrainConfig
from understudy.policies.weight_files import WeightFiles


def with_known_base(config: TrainConfig) -> TrainConfig:
    """Replace the setting `lora.base: stored` by the dtype of most weights in the file that the run starts from.

    Only the header of the file is read. Without a file, or where it cannot be read, the dtype is float32.
    """
    if not config.lora.rank or config.lora.base != "stored":
        return config
    path = config.init_from or getattr(config.policy, "weights", "")
    sizes: dict[torch.dtype, int] = {}
    try:
        files = WeightFiles(path, floats_only=False)  # without a path there is no such file
        for key, shape in files.shapes.items():
            sizes[files.dtypes[key]] = sizes.get(files.dtypes[key], 0) + prod(shape)
    except (OSError, ValueError):
        pass
    narrow = sizes.get(torch.bfloat16, 0) > sum(sizes.values()) / 2
    return replace(config, lora=replace(config.lora, base="bfloat16" if narrow else "float32"))
