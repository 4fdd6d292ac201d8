"""Comparison of all items of a dataset between `EpisodeDataset` and LeRobot, or a reader with its
interface.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import understudy as us


def differences(root: Path, theirs: Any, ours: us.EpisodeDataset) -> list[str]:
    """One line for each key that differs in some item."""
    found = [] if len(ours) == len(theirs) else [f"{len(ours)} and {len(theirs)} items"]
    features = json.loads((root / "meta/info.json").read_text())["features"]
    for index in range(min(len(ours), len(theirs))):
        sample = ours[index]
        item = theirs[index]
        for key, value in item.items():
            if key not in sample:
                found.append(f"{key}: only LeRobot delivers it")
            elif not equal(sample[key], value, features.get(key, {})):
                found.append(f"{key}: item {index}: {brief(sample[key])} and {brief(value)}")
    return found


def equal(ours: Any, theirs: Any, feature: dict[str, Any]) -> bool:
    """Compare one value; images of 8 bits as integers, quantized depth to a millimeter (theirs is
    float32).
    """
    if not isinstance(theirs, torch.Tensor):
        return bool(ours == theirs)
    if not isinstance(ours, torch.Tensor) or ours.shape != theirs.shape:
        return False
    if ours.dtype == torch.uint8 and theirs.dtype == torch.float32:
        return torch.equal(ours, (theirs * 255).round().to(torch.uint8))
    if feature.get("dtype") in ("video", "image"):
        return bool(np.allclose(ours.double(), theirs.double(), rtol=1e-6, atol=1.0))
    return ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.double().mean():.6g}"
    return repr(value)[:80]
