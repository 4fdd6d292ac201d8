"""Normalization that released weights were trained with, as the offsets and spreads of `common/affine.py`. No torch.

    openpi       assets/ID/norm_stats.json       pi0.5: 2 (x - q01) / (q99 - q01 + 1e-6) - 1
                                                 pi0: (x - mean) / (std + 1e-6)
    LeRobot      policy_preprocessor.json, and   QUANTILES: 2 (x - q01) / (q99 - q01) - 1; QUANTILE10, MIN_MAX alike
                 the file that it names          MEAN_STD: (x - mean) / (std + eps)
    understudy   normalisation.json

`stored_figures.py` has the arithmetic, and the rounding that keeps the smallest state at -1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from understudy.batch_keys import ACTION
from understudy.errors import ConfigError
from understudy.policies.pi05.weights.lerobot_normalization import LEROBOT, read_lerobot
from understudy.policies.pi05.weights.openpi_normalization import OPENPI, choose_asset, openpi_files, read_openpi
from understudy.policies.pi05.weights.stored_figures import Stored, keep_low, read_object

OWN = "normalisation.json"
"""Name of our own file beside weights."""


@dataclass(frozen=True, kw_only=True)
class NormalizationSettings:
    """Settings that choose the normalization of a policy from released weights."""

    normalization: Literal["weights", "data"] = "weights"
    """Normalization of a run that starts from `weights`: `weights` is the one that they were trained with, from
    openpi's assets/ID/norm_stats.json or LeRobot's policy_preprocessor.json beside them; `data` is computed from the
    training episodes (`data.normalize`)."""
    weights_settings: Literal["check", "ignore"] = "check"
    """Chunk, prompt and dimensions in the config beside `weights`: `check` refuses a run with others, `ignore` trains
    with those of the run."""
    norm_asset: str = ""
    """ID of openpi's normalization, where the weights have several."""

    type: str = "pi05"
    """Type of the policy; openpi normalizes pi0 by mean and deviation, all others by quantiles."""
    weights: str = ""
    """Released weights to start from; "" for fresh ones, which take the normalization of the data."""

    def choose_normalization(self, computed: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the normalization of a new run.

        Args:
            computed: that of the run's data, also for its heads, dimensions and differences.

        Raises:
            ConfigError: there is none beside the weights, or it is not one of this robot.
        """
        if not self.weights or self.normalization == "data":
            return keep_low(computed) if self.type != "pi0" else computed
        return fit_normalization(find_normalization(self.weights, self.norm_asset, self.type != "pi0"), computed)


def find_normalization(weights: str | Path, asset: str = "", quantiles: bool = True) -> Stored:
    """Find and read the normalization beside weights.

    Args:
        weights: file or folder of the weights.
        asset: ID of openpi's normalization; "" takes the only one.
        quantiles: whether openpi normalizes this type of policy by quantiles (pi0.5) or mean and deviation (pi0).

    Raises:
        ConfigError: `weights` do not exist or have none, there are several and `asset` names none of them, or a file is
            damaged.
    """
    folder = Path(weights)
    if not folder.exists():
        raise ConfigError(f"policy.weights: {folder} does not exist; name a safetensors file or its folder")
    folder = folder.parent if folder.is_file() or folder.name == "params" else folder
    if asset or not any((folder / name).is_file() for name in (OWN, LEROBOT)):
        if files := openpi_files(folder):
            return read_openpi(choose_asset(files, asset, folder), quantiles)
        if asset:
            raise ConfigError(f"policy.norm_asset: {asset}: {folder} has no assets/{asset}/{OPENPI}")
    if (folder / OWN).is_file():
        return _read_own(folder / OWN)
    if (folder / LEROBOT).is_file():
        return read_lerobot(folder)
    raise ConfigError(
        f"policy.weights: {folder} has no normalization (assets/ID/{OPENPI} or {LEROBOT}), and the weights mean "
        "nothing without the one that they were trained with; add its file, or compute one from this data, with which "
        "they have to be trained further: --policy.normalization data"
    )


def fit_normalization(stored: Stored, computed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored normalization in the shape of one that was computed from the data of a run.

    Raises:
        ConfigError: it has other dimensions, differences or heads, or lacks a key.
    """
    fix = "name weights of this robot, or compute it from this data: --policy.normalization data"
    heads, dims = list(computed["heads"]), computed["dims"]
    if stored.whole is not None:
        _check_own(stored, computed, fix)
        return dict(stored.whole) | {"heads": heads}
    if len(heads) > 1:
        raise ConfigError(f"{stored.where}: is of one robot, and the data has the norm heads {', '.join(heads)}; {fix}")
    learnt = tuple(int(dim) for dim in np.flatnonzero(computed["delta"][0]))
    if stored.delta is not None and stored.delta != learnt:
        raise ConfigError(
            f"{stored.where}: the actions {list(stored.delta)} were learnt as differences to the state, and "
            f"data.delta_action_dims is {list(learnt)}; set it to the same"
        )
    found: dict[str, Any] = {"heads": heads}
    for key in dims:
        if key not in stored.maps:
            raise ConfigError(f"{stored.where}: has no {key!r}, which the data has; {fix}")
        width, own = dims[key][0], stored.maps[key]
        if len(own["offset"]) < width or not stored.padding[key][width:].all():
            raise ConfigError(
                f"{stored.where}: {key!r} has {len(own['offset'])} dimensions, the data {width}, and the rest is no "
                f"padding; {fix}"
            )
        found[key] = {name: [np.asarray(own[name])[:width].tolist()] for name in ("offset", "spread")}
    return found | {"delta": computed["delta"], "dims": dims}


def _read_own(path: Path) -> Stored:
    content = read_object(path)
    if ACTION not in content:
        raise ConfigError(f"{path}: has no {ACTION!r}; restore the file")
    return Stored(path, {}, {}, None, content)


def _check_own(stored: Stored, computed: Mapping[str, Any], fix: str) -> None:
    """Raise ConfigError unless an own normalization has the heads, dimensions and differences of the data."""
    assert stored.whole is not None
    whole, heads = stored.whole, list(computed["heads"])
    theirs = list(whole.get("heads", [""]))
    # One robot may be recorded in a dataset of another name, but not be another known robot.
    if theirs != heads and (len(heads) > 1 or len(theirs) > 1 or all("::" in name for name in (*theirs, *heads))):
        raise ConfigError(
            f"{stored.where}: has the norm heads {', '.join(theirs)}, the data has {', '.join(heads)}; {fix}"
        )
    for key, now in computed["dims"].items():
        width = [len(row) for row in np.atleast_2d(np.asarray(whole.get(key, {}).get("offset", []), float))]
        if (have := list(whole.get("dims", {}).get(key, width))) != list(now):
            raise ConfigError(f"{stored.where}: {key!r} has {have} dimensions, the data {list(now)}; {fix}")
    none = [[False] * len(row) for row in computed["delta"]]
    if whole.get("delta", none) != computed["delta"]:
        raise ConfigError(f"{stored.where}: learnt other actions as differences; set data.delta_action_dims as there")
