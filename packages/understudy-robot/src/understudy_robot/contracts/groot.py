"""The contract of GR00T's checkpoint. Its transforms are in code, and unknown.

N1.5 has experiment_cfg/metadata.json; N1.6 and N1.7 have processor_config.json and statistics.json.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from understudy import read_object
from understudy_base import Record
from understudy_client import FIGURES, CameraFacts, Contract, Mismatch, RobotFacts, VectorFacts
from understudy_robot.contracts.tensors import tensor_shapes, unfit, weights_digest

METADATA = "experiment_cfg/metadata.json"
PROCESSOR = "processor_config.json"
STATISTICS = "statistics.json"


def read_groot_contract(folder: Path) -> Contract:
    """Read the contract of a checkpoint: a robot for each of its embodiment tags.

    Raises:
        ConfigError, ValueError: a file is damaged.
    """
    stored = read_object(folder / "config.json") if (folder / "config.json").is_file() else {}
    robots = {}
    faults = []
    try:
        if not tensor_shapes(folder):
            faults.append(unfit("weights", "no model.safetensors"))
    except ValueError as error:
        faults.append(unfit("whole weights", str(error)))
    entries = (
        read_object(folder / METADATA) if (folder / METADATA).is_file() else _read_processor(folder)
    )
    for tag, entry in entries.items():
        modalities = entry["modalities"]
        statistics = entry["statistics"]
        vectors = {}
        for key in ("state", "action"):
            vectors[key], lacking = _vector(
                modalities.get(key) or {}, statistics.get(key) or {}, entry.get("mode", "")
            )
            fix = "compute the statistics of the training data again"
            groups = [f"{key}.{name}" for name in lacking]
            faults += [
                Mismatch("statistics missing", group, "statistics", "none", fix) for group in groups
            ]
        state = vectors["state"] if vectors["state"].width else None
        robots[tag] = RobotFacts(
            fps=_fps(entry["modalities"].get("video") or {}),
            chunk=int(entry.get("chunk") or stored.get("action_horizon") or 0),
            robot_type="",
            control_mode="",
            state=state,
            action=vectors["action"],
            cameras={
                name: _camera(name, video)
                for name, video in (entry["modalities"].get("video") or {}).items()
            },
        )
    return Contract(robots, {"tool": "gr00t"}, "policy", weights_digest(folder), tuple(faults))


def _read_processor(folder: Path) -> dict[str, Any]:
    """Read the files of N1.6 and N1.7 as entries of N1.5's metadata: embodiment tag -> modalities
    and statistics.
    """
    settings = read_object(folder / PROCESSOR)["processor_kwargs"]
    entries = {}
    for tag, statistics in read_object(folder / STATISTICS).items():
        configs = settings["modality_configs"][tag]
        modalities: dict[str, Any] = {
            "video": {name: {} for name in configs["video"]["modality_keys"]}
        }
        used: dict[str, dict[str, Any]] = {}
        for key in ("state", "action"):
            names = configs[key]["modality_keys"]
            used[key] = dict(statistics[key])
            modalities[key] = {}
            actions = configs[key].get("action_configs") or ()
            kinds = [action["rep"].lower() for action in actions] or [""] * len(names)
            for name, kind in zip(names, kinds, strict=True):
                is_relative = kind == "relative" and bool(settings.get("use_relative_action"))
                learned = kind if kind == "absolute" else ""
                if is_relative:
                    learned = "state"
                # relative actions are added to the state before they leave
                zero = "absolute" if learned else ""
                width = len(used[key].get(name, {}).get("mean", ()))
                modalities[key][name] = {"shape": [width], "zero": zero, "learned": learned}
                if is_relative and name not in (statistics.get("relative_action") or {}):
                    del used[key][name]  # the figures that normalize it are missing
        others = [config.get("mean_std_embedding_keys") for config in configs.values()]
        plain = (
            "use_percentiles" in settings
            and not any(others)
            and not settings.get("apply_sincos_state_encoding")
        )
        mode = ""
        if plain:
            mode = "quantile" if settings["use_percentiles"] else "min_max"
        chunk = len(configs["action"]["delta_indices"])
        entries[tag] = {"modalities": modalities, "statistics": used, "chunk": chunk, "mode": mode}
    return entries


def _fps(videos: Mapping[str, Record]) -> float:
    rates = {float(video["fps"]) for video in videos.values() if video.get("fps")}
    return rates.pop() if len(rates) == 1 else np.nan


def _camera(name: str, video: Record) -> CameraFacts:
    width, height = video.get("resolution") or (0, 0)
    return CameraFacts(name, (int(height), int(width)), role=name)


def _vector(modality: Record, statistics: Record, mode: str) -> tuple[VectorFacts, list[str]]:
    """Facts of the groups of a vector, one after the other, and the groups without statistics."""
    roles: list[str] = []
    references: list[str] = []
    learned: list[str] = []
    columns: dict[str, list[float]] = {name: [] for name in FIGURES}
    for group, entry in modality.items():
        width = int(np.prod(entry["shape"]))
        if "zero" in entry:
            zero = entry["zero"]
        else:
            zero = "absolute" if entry["absolute"] else "state"
        roles += [group] * width
        references += [zero] * width
        learned += [entry.get("learned", "")] * width
        figures = statistics.get(group) or {}
        for name, column in columns.items():
            values = list(map(float, figures.get(name) or ()))
            column += values if len(values) == width else [np.nan] * width
    about = {"roles": tuple(roles), "references": tuple(references), "learned": tuple(learned)}
    vector = VectorFacts.from_figures("", columns, len(roles), "external", mode, **about)
    return vector, [group for group in modality if not statistics.get(group)]
