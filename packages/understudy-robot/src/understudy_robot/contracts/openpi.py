"""The contract of openpi's checkpoint. Cameras, names, rate and transforms are in openpi's code,
and stay unknown.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from understudy import StoredNormalization, is_adaptive, read_object
from understudy_base import Record
from understudy_client import FIGURES, Contract, Mismatch, RobotFacts, VectorFacts
from understudy_robot.contracts.tensors import tensor_shapes, unfit, weights_digest

_KEYS = {"state": "observation.state", "actions": "action"}


def read_openpi_contract(folder: Path) -> Contract:
    """Read the contract of a checkpoint: a robot for each of its assets.

    Raises:
        ConfigError: a file is damaged.
    """
    stored: Record = next(
        (
            read_object(folder / name)
            for name in ("config.json", "metadata.json")
            if (folder / name).is_file()
        ),
        {},
    )
    faults: list[Mismatch] = []
    is_pi05 = stored["pi05"] if isinstance(stored.get("pi05"), bool) else None
    try:
        if shapes := tensor_shapes(folder):
            measured = is_adaptive(shapes)
            if is_pi05 not in (None, measured):
                came = "tensors of pi05" if measured else "tensors of pi0"
                faults.append(unfit(f"pi05: {is_pi05}", came))
            is_pi05 = measured
    except ValueError as error:
        faults.append(unfit("weights of pi0 or pi05", str(error)))
    files = StoredNormalization.openpi_files(folder)
    if not files:
        fix = "copy assets/ID/norm_stats.json of the training next to the weights"
        faults.append(
            Mismatch(
                "statistics missing",
                "",
                f"assets/ID/{StoredNormalization.OPENPI}",
                "no such file",
                fix,
            )
        )
    mode = ""
    prompt = ""
    if is_pi05 is not None:
        mode = "quantile" if is_pi05 else "mean_std"
        prompt = "state" if stored.get("discrete_state_input", is_pi05) else "plain"
    robots = {}
    for asset in files or [""]:
        entries = read_object(files[asset]).get("norm_stats", {}) if files else {}
        where = str(files[asset]) if files else str(folder)
        vectors = {
            key: _vector(entries.get(name) or {}, mode, f"{where}: {name!r}")
            for name, key in _KEYS.items()
        }
        if files:
            for name, key in _KEYS.items():
                faults += _lacking(key, entries.get(name), is_pi05)
        robots[asset] = RobotFacts(
            fps=np.nan,
            chunk=int(stored.get("action_horizon") or 0),
            robot_type="",
            control_mode="",
            state=vectors["observation.state"],
            action=vectors["action"],
            cameras={},
            prompt=prompt,
        )
    return Contract(robots, {"tool": "openpi"}, "policy", weights_digest(folder), tuple(faults))


def _vector(entry: Record, mode: str, where: str) -> VectorFacts:
    """Facts of a vector without the dimensions of padding at its end; `where` names its figures in
    errors.
    """
    values = {
        name: np.asarray(entry[name], float).reshape(-1)
        for name in FIGURES
        if entry.get(name) is not None
    }
    real = [np.flatnonzero(~StoredNormalization.find_padding(entry, where))] if values else []
    width = max((int(dims[-1]) + 1 for dims in real if len(dims)), default=0)
    figures = {name: figure[:width] for name, figure in values.items()}
    source = "external" if values else ""
    return VectorFacts.from_figures("", figures, width, source, mode)


def _lacking(key: str, entry: Any, is_pi05: bool | None) -> list[Mismatch]:
    needed = ("q01", "q99") if is_pi05 else ("mean", "std")
    lacking = [name for name in needed if not isinstance(entry, Mapping) or entry.get(name) is None]
    if not lacking:
        return []
    fix = "compute the statistics of the training data again"
    came = f"no {' and '.join(lacking)}"
    return [Mismatch("statistics missing", key, " and ".join(needed), came, fix)]
