"""Normalization in openpi's assets/ID/norm_stats.json, with which released weights were trained. No torch.

pi0.5 is normalized by quantiles, 2 (x - q01) / (q99 - q01 + 1e-6) - 1, and pi0 by (x - mean) / (std + 1e-6).
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from understudy.batch_keys import ACTION, STATE
from understudy.errors import ConfigError
from understudy.policies.pi05.weights.stored_figures import Stored, map_deviation, map_range, read_figures, read_object

OPENPI = "norm_stats.json"
"""Name of the file."""
OPENPI_EPS = 1e-6


def openpi_files(folder: Path) -> dict[str, Path]:
    """Return openpi's files by the ID of their asset; "" is one beside the weights."""
    assets = folder / "assets"
    found = {str(path.parent.relative_to(assets)): path for path in sorted(assets.rglob(OPENPI))}
    beside = folder / OPENPI
    return {"": beside} | found if beside.is_file() else found


def choose_asset(files: Mapping[str, Path], asset: str, folder: Path) -> Path:
    """Return the file of an asset; "" takes the only one.

    Raises:
        ConfigError: there is no such asset, or several and `asset` names none.
    """
    if asset in files:
        return files[asset]
    known = ", ".join(name or "(beside the weights)" for name in files)
    if asset:
        raise ConfigError(f"policy.norm_asset: {asset}: {folder} has {known}")
    if len(files) > 1:
        raise ConfigError(
            f"policy.weights: {folder} has several normalizations: {known}; choose: --policy.norm-asset ID"
        )
    return next(iter(files.values()))


def read_openpi(path: Path, quantiles: bool) -> Stored:
    """Read a file, normalized by quantiles or by mean and deviation.

    Raises:
        ConfigError: the file is damaged.
    """
    content = read_object(path).get("norm_stats")
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: has no norm_stats; restore the file")
    needed = ("q01", "q99") if quantiles else ("mean", "std")
    maps, padding = {}, {}
    for key, name in ((STATE, "state"), (ACTION, "actions")):
        if name not in content:
            continue
        figures = read_figures(content[name], needed, f"{path}: {name!r}")
        low, high = (figures[each] for each in needed)
        if quantiles:
            maps[key] = map_range(low, high, high - low + OPENPI_EPS)
        else:
            maps[key] = map_deviation(low, high + OPENPI_EPS)
        # openpi pads with zeros; up to the bins of its histograms (1e-10) and its float32 sums.
        padding[key] = (np.abs(low) < 1e-6) & (np.abs(high) < 1e-6)
    return Stored(path, maps, padding)
