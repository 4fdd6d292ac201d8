"""The contract of GR00T's checkpoint (N1.5: experiment_cfg/metadata.json). Its transforms are in code, and unknown."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from understudy.contract.facts import (
    FIGURES,
    CameraFacts,
    Contract,
    RobotFacts,
    VectorFacts,
)
from understudy.contract.mismatch import Mismatch
from understudy.policies.common.lerobot_processors import read_object
from understudy.policies.contracts.tensors import tensor_shapes, unfit, weights_digest

METADATA = "experiment_cfg/metadata.json"


def read_groot_contract(folder: Path) -> Contract:
    """Read the contract of a checkpoint: a robot for each of its embodiment tags.

    Raises:
        ConfigError, ValueError: a file is damaged.
    """
    stored = read_object(folder / "config.json") if (folder / "config.json").is_file() else {}
    robots, faults = {}, []
    try:
        if not tensor_shapes(folder):
            faults.append(unfit("weights", "no model.safetensors"))
    except ValueError as error:
        faults.append(unfit("whole weights", str(error)))
    for tag, entry in read_object(folder / METADATA).items():
        parts = entry["modalities"], entry["statistics"]
        vectors = {}
        for key in ("state", "action"):
            vectors[key], lacking = _vector(*(part.get(key) or {} for part in parts))
            fix = "compute the statistics of the training data again"
            groups = [f"{key}.{name}" for name in lacking]
            faults += [Mismatch("statistics missing", group, "statistics", "none", fix) for group in groups]
        robots[tag] = RobotFacts(
            fps=_fps(entry["modalities"].get("video") or {}),
            chunk=int(stored.get("action_horizon") or 0),
            robot_type="",
            control_mode="",
            state=vectors["state"] if vectors["state"].width else None,
            action=vectors["action"],
            cameras={name: _camera(name, video) for name, video in (entry["modalities"].get("video") or {}).items()},
        )
    return Contract(robots, {"tool": "gr00t"}, "policy", weights_digest(folder), tuple(faults))


def _fps(videos: Mapping[str, Mapping[str, Any]]) -> float:
    rates = {float(video["fps"]) for video in videos.values() if video.get("fps")}
    return rates.pop() if len(rates) == 1 else np.nan


def _camera(name: str, video: Mapping[str, Any]) -> CameraFacts:
    width, height = video.get("resolution") or (0, 0)
    return CameraFacts(name, (int(height), int(width)), role=name)


def _vector(modality: Mapping[str, Any], statistics: Mapping[str, Any]) -> tuple[VectorFacts, list[str]]:
    """Facts of the groups of a vector, one after the other, and the groups without statistics."""
    roles: list[str] = []
    references: list[str] = []
    columns: dict[str, list[float]] = {name: [] for name in FIGURES}
    for group, entry in modality.items():
        width = int(np.prod(entry["shape"]))
        roles += [group] * width
        references += ["absolute" if entry["absolute"] else "state"] * width
        figures = statistics.get(group) or {}
        for name, column in columns.items():
            values = list(map(float, figures.get(name) or ()))
            column += values if len(values) == width else [np.nan] * width
    about: dict[str, Any] = {"roles": tuple(roles), "references": tuple(references)}
    vector = VectorFacts.from_figures("", columns, len(roles), "external", **about)
    return vector, [group for group in modality if not statistics.get(group)]
