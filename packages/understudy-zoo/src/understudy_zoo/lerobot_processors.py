"""LeRobot's processor files of a policy, written. No torch.

They normalize by MEAN_STD with the policy's own offset and spread: (x - mean) / (std + eps).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from safetensors.numpy import save

from understudy import LerobotProcessor
from understudy_base import STATE

Step = tuple[str, dict[str, Any]]
"""Registered name of a processor's step, and its config."""
DEVICE: Step = ("device_processor", {"device": "cpu", "float_dtype": None})
BEFORE: tuple[Step, ...] = (
    ("rename_observations_processor", {"rename_map": {}}),
    ("to_batch_processor", {}),
)
"""First steps of each preprocessor."""


def to_json(value: Any) -> bytes:
    """Return a JSON file."""
    return (json.dumps(value, indent=2) + "\n").encode()


def map_figures(maps: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the statistics of the MEAN_STD mode, float32 [dim] each, of the offset and spread of
    each key.
    """
    figures: dict[str, np.ndarray] = {}
    for key, (offset, spread) in maps.items():
        # A constant state must stay finite where it varies after all; a constant action has its
        # constant in reverse.
        std = np.where(spread == 0, 1.0, spread) if key == STATE else spread
        figures |= {f"{key}.mean": offset.astype(np.float32), f"{key}.std": std.astype(np.float32)}
    return figures


def processor_files(
    before: Sequence[Step], behind: Sequence[Step], figures: Mapping[str, np.ndarray]
) -> dict[str, bytes]:
    """Write both processor files, and the file of statistics of each step that normalizes.

    Args:
        before: steps of the preprocessor.
        behind: steps of the postprocessor.
        figures: statistics, by key and name.
    """
    statistics = save(dict(figures))
    files: dict[str, bytes] = {}
    for file, steps in ((LerobotProcessor.BEFORE, before), (LerobotProcessor.BEHIND, behind)):
        stem = file.removesuffix(".json")
        entries = []
        for number, (name, content) in enumerate(steps):
            entry: dict[str, Any] = {"registry_name": name, "config": content}
            if "norm_map" in content:
                entry["state_file"] = f"{stem}_step_{number}_{name}.safetensors"
                files[entry["state_file"]] = statistics
            entries.append(entry)
        files[file] = to_json({"name": stem, "steps": entries})
    return files
