"""Normalization that released weights were trained with, as offsets and spreads
(`common/normalizer.py`). No torch.

    openpi       assets/ID/norm_stats.json       pi0.5: 2 (x - q01) / (q99 - q01 + 1e-6) - 1
                                                 pi0: (x - mean) / (std + 1e-6)
    LeRobot      policy_preprocessor.json, and   QUANTILES: 2 (x - q01) / (q99 - q01) - 1;
                 the file that it names          QUANTILE10, MIN_MAX alike
                                                 MEAN_STD: (x - mean) / (std + eps)
    understudy   normalisation.json

The rounding keeps the smallest state at -1.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from understudy.policies.common.folder_facts import FOLDER_FACTS, read_facts
from understudy.policies.common.lerobot_processors import (
    LerobotProcessor,
    find_padding,
    is_masked,
    read_object,
    to_numbers,
)
from understudy_base import ACTION, STATE, ConfigError, Record

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredNormalization:
    """Normalization as it is stored next to weights."""

    where: Path
    maps: Mapping[str, Record]
    """Key -> {"offset": [dim], "spread": [dim]}, or [H][dim] with several heads."""
    padding: Mapping[str, np.ndarray]
    """Key -> bool [dim]: dimensions that may be left out, since their figures are those of padding.
    """
    delta: tuple[int, ...] | None = None
    """Action dimensions that are differences to the state; None: unknown."""
    whole: Record | None = None
    """The content of an own file."""

    OPENPI: ClassVar[str] = "norm_stats.json"
    """Name of openpi's file."""
    OPENPI_EPS: ClassVar[float] = 1e-6
    """Number that openpi adds to a deviation, and to the size of a range."""

    find_padding = staticmethod(find_padding)

    @classmethod
    def of_lerobot(cls, folder: Path) -> Self:
        """Read the processors of a folder of LeRobot.

        Raises:
            ConfigError: a file is damaged, or the two contradict each other.
        """
        before = LerobotProcessor(folder / LerobotProcessor.BEFORE)
        behind = LerobotProcessor(folder / LerobotProcessor.BEHIND)
        step = before.find("normalizer_processor")
        figures = before.statistics(step)
        maps, padding = _maps(before.path, step, figures, (STATE, ACTION))
        if behind.path.is_file():
            back = behind.find("unnormalizer_processor")
            other, _ = _maps(behind.path, back, behind.statistics(back), (ACTION,))
            if other.get(ACTION) != maps.get(ACTION):
                raise ConfigError(
                    f"{folder}: {before.path.name} and {behind.path.name} normalize 'action' "
                    "differently; restore the files"
                )
        return cls(before.path, maps, padding, _delta(before.path, maps))

    @classmethod
    def of_openpi(cls, path: Path, quantiles: bool) -> Self:
        """Read a file of openpi, normalized by quantiles or by mean and deviation.

        Raises:
            ConfigError: the file is damaged.
        """
        content = read_object(path).get("norm_stats")
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: has no norm_stats; restore the file")
        needed = ("q01", "q99") if quantiles else ("mean", "std")
        maps = {}
        padding = {}
        for key, name in ((STATE, "state"), (ACTION, "actions")):
            if name not in content:
                continue
            figures = read_figures(content[name], needed, f"{path}: {name!r}")
            low, high = (figures[figure] for figure in needed)
            if quantiles:
                maps[key] = map_range(low, high, high - low + cls.OPENPI_EPS)
            else:
                maps[key] = map_deviation(low, high + cls.OPENPI_EPS)
            padding[key] = find_padding(content[name], f"{path}: {name!r}")
        return cls(path, maps, padding)

    @classmethod
    def openpi_files(cls, folder: Path) -> dict[str, Path]:
        """Return openpi's files by the ID of their asset; "" is one next to the weights."""
        assets = folder / "assets"
        files = {
            str(path.parent.relative_to(assets)): path for path in sorted(assets.rglob(cls.OPENPI))
        }
        neighbor = folder / cls.OPENPI
        return {"": neighbor} | files if neighbor.is_file() else files


def map_range(low: np.ndarray, high: np.ndarray, size: np.ndarray) -> dict[str, list[float]]:
    """Return offset and spread of 2 (x - low) / size - 1 in float32, by which `low` becomes -1 and
    never less.

    Args:
        low: float64 [dim].
        high: float64 [dim], for the choice of the rounding alone.
        size: float64 [dim], above 0.
    """
    start = low.astype(np.float32)
    spread = (size / 2).astype(np.float32)
    # A range below the resolution of float32 around `low`: the next power of two keeps `low` at -1
    # exactly.
    step = np.spacing(np.maximum(np.abs(start), np.abs(high.astype(np.float32))))
    coarse = spread < 256 * step  # a step of the offset stays well inside a bin of 1 / 128
    spread = np.where(coarse, np.exp2(np.ceil(np.log2(np.maximum(spread, step)))), spread).astype(
        np.float32
    )
    offset = (start + spread).astype(np.float32)
    for _ in range(8):  # rounding of the offset, a few steps at most
        below = (start - offset) / spread < np.float32(-1)
        offset = np.where(below, np.nextafter(offset, start), offset)
    return {"offset": offset.tolist(), "spread": spread.tolist()}


def keep_low(computed: Record) -> Record:
    """Return a normalization of data whose lower ends of the state, of which it has rounded maps,
    are never below -1.

    Offset and spread are rounded to float32 separately, so the lower end can lie as far from their
    difference as the two roundings. The offset moves down by about as much. Constant dimensions
    keep theirs.
    """
    if STATE not in computed:
        return computed
    offset, spread = (
        np.asarray(computed[STATE][name], np.float32) for name in ("offset", "spread")
    )
    # and exact: dimensions that stay as they are
    constant = (spread == 0) | (offset == 0) & (spread == 1)
    most = (np.spacing(np.abs(offset)).astype(np.float64) + np.spacing(spread)) / 2
    low = np.float64(offset) - spread - most
    high = np.float64(offset) + spread
    exact = map_range(low, high, np.where(constant, 1.0, 2 * np.float64(spread)))
    state = {
        "offset": np.where(constant, offset, np.asarray(exact["offset"], np.float32)).tolist(),
        "spread": np.where(constant, spread, np.asarray(exact["spread"], np.float32)).tolist(),
    }
    return {**computed, STATE: {**computed[STATE], **state}}


def map_deviation(mean: np.ndarray, spread: np.ndarray) -> dict[str, list[float]]:
    """Return offset and spread of (x - mean) / spread in float32."""
    return {
        "offset": mean.astype(np.float32).tolist(),
        "spread": spread.astype(np.float32).tolist(),
    }


def read_figures(entry: Any, names: Sequence[str], where: str) -> dict[str, np.ndarray]:
    """Return figures as float64 [dim], equally wide, finite, in order.

    Raises:
        ConfigError: one is missing or damaged.
    """
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} is not an object of statistics; restore the file")
    figures = {}
    for name in names:
        if entry.get(name) is None:
            raise ConfigError(
                f"{where} has no {name!r}, by which these weights are normalized; restore the file"
            )
        figures[name] = to_numbers(entry[name], f"{where}: {name!r}")
        if (bad := np.flatnonzero(~np.isfinite(figures[name]))).size:
            raise ConfigError(
                f"{where}: {name}[{bad[0]}] is {figures[name][bad[0]]}; restore the file"
            )
    first, second = (figures[name] for name in names)
    if not len(first) == len(second) > 0:
        raise ConfigError(
            f"{where} has {len(first)} of {names[0]!r} and {len(second)} of {names[1]!r}: not "
            "equally wide; restore the file"
        )
    is_wrong = second < 0 if names[1] == "std" else second < first
    if (bad := np.flatnonzero(is_wrong)).size:
        dim = bad[0]
        rule = "below 0" if names[1] == "std" else f"below {names[0]}[{dim}], {first[dim]}"
        raise ConfigError(f"{where}: {names[1]}[{dim}] is {second[dim]}, {rule}; restore the file")
    return figures


def _maps(
    path: Path, step: Record, figures: Mapping[str, Record], keys: Sequence[str]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return offset and spread of each key that the step normalizes, and its dimensions of
    padding.
    """
    config = step["config"]
    modes = config.get("norm_map") or {}
    features = config.get("features") or {}
    eps = float(config.get("eps", 1e-8))
    chosen = config.get("normalize_observation_keys")
    maps: dict[str, Any] = {}
    padding: dict[str, np.ndarray] = {}
    for key in keys:
        if key not in features and key not in figures:
            continue
        mode = str(modes.get(LerobotProcessor.KINDS[key], "IDENTITY"))
        where = f"{path}: {key!r}"
        if key == STATE and chosen is not None and key not in chosen:
            mode = "IDENTITY"
        if mode == "IDENTITY":
            is_left_out = key == STATE and chosen is not None and key not in chosen
            if key in figures and LerobotProcessor.KINDS[key] not in modes and not is_left_out:
                logger.warning(
                    "%s has statistics, and norm_map of %s has no mode for them: they are not "
                    "used, as in LeRobot. If the weights were trained with them, add the mode of "
                    'the training, as "norm_map": {"%s": "MEAN_STD"}',
                    where,
                    step.get("registry_name", "the step"),
                    LerobotProcessor.KINDS[key],
                )
            width = int(
                np.prod(
                    (features.get(key) or {}).get("shape")
                    or [len(next(iter(figures[key].values())))]
                )
            )
            maps[key] = {"offset": [0.0] * width, "spread": [1.0] * width}
            known = find_padding(figures[key], where) if key in figures else np.ones(width, bool)
            padding[key] = known if len(known) == width else np.ones(width, bool)
            continue
        if key not in figures:
            raise ConfigError(
                f"{where} has no statistics, and is normalized by {mode}; add those that the "
                "weights were trained with, or compute them from this data, with which the "
                "weights have to be trained further: --policy.normalization data"
            )
        if mode == "MEAN_STD":
            values = read_figures(figures[key], ("mean", "std"), where)
            maps[key] = map_deviation(values["mean"], values["std"] + eps)
        elif mode in LerobotProcessor.RANGES:
            low, high = LerobotProcessor.RANGES[mode]
            values = read_figures(figures[key], (low, high), where)
            size = values[high] - values[low]
            maps[key] = map_range(values[low], values[high], np.where(size == 0, eps, size))
        else:
            raise ConfigError(f"{where} is normalized by {mode}, which is unknown here")
        padding[key] = find_padding(figures[key], where)
        if is_masked(step) and "mask" in figures[key]:
            maps[key] = _unmasked(maps[key], figures[key]["mask"], where)
    return maps, padding


def _unmasked(maps: Record, mask: np.ndarray, where: str) -> dict[str, list[float]]:
    """Return offset and spread with those of the identity where `mask`, 0 or 1 [dim], is 0."""
    flat = np.asarray(mask).reshape(-1)
    width = len(maps["offset"])
    if len(flat) != width or not np.isin(flat, (0, 1)).all():
        raise ConfigError(
            f"{where}: 'mask' is {flat.tolist()}: give 0 or 1 for each of {width} dimensions"
        )
    keep = flat.astype(bool)
    return {
        "offset": np.where(keep, maps["offset"], 0.0).tolist(),
        "spread": np.where(keep, maps["spread"], 1.0).tolist(),
    }


def _delta(path: Path, maps: Record) -> tuple[int, ...]:
    """Return the action dimensions that the processors make differences to the state."""
    relative = [
        step
        for step in read_object(path)["steps"]
        if step.get("registry_name") == "relative_actions_processor"
    ]
    config: Record = {}
    if relative:
        config = relative[0].get("config") or {}
    if not config.get("enabled") or ACTION not in maps:
        return ()
    width = len(maps[ACTION]["offset"])
    names = [str(name).lower() for name in config.get("action_names") or []]
    without = [str(name).lower() for name in config.get("exclude_joints") or [] if name]
    dims = []
    for dim in range(width):
        is_named = dim < len(names)
        if not is_named or not any(token in names[dim] for token in without):
            dims.append(dim)
    return tuple(dims)


def choose_asset(files: Mapping[str, Path], asset: str, folder: Path) -> Path:
    """Return the file of an asset; "" takes the only one.

    Raises:
        ConfigError: there is no such asset, or several and `asset` names none.
    """
    if asset in files:
        return files[asset]
    names = ", ".join(name or "(next to the weights)" for name in files)
    if asset:
        raise ConfigError(f"policy.norm_asset: {asset}: {folder} has {names}")
    if len(files) > 1:
        raise ConfigError(
            f"policy.weights: {folder} has several normalizations: {names}; choose: "
            "--policy.norm-asset ID"
        )
    return next(iter(files.values()))


OWN = "normalisation.json"
"""Name of our own file next to weights."""


@dataclass(frozen=True, kw_only=True)
class NormalizationSettings:
    """Settings that choose the normalization of a policy from released weights."""

    normalization: Literal["weights", "data"] = "weights"
    """Normalization of a run that starts from `weights`: `weights` is the one that they were
    trained with, from openpi's assets/ID/norm_stats.json or LeRobot's policy_preprocessor.json next
    to them; `data` is computed from the training episodes (`data.normalize`).
    """
    weights_settings: Literal["check", "ignore"] = "check"
    """Chunk, prompt and dimensions in the config next to `weights`: `check` refuses a run with
    others, `ignore` trains with those of the run.
    """
    norm_asset: str = ""
    """ID of openpi's normalization, where the weights have several."""

    type: str = "pi05"
    """Type of the policy; openpi normalizes pi0 by mean and deviation, all others by quantiles."""
    weights: str = ""
    """Released weights to start from; "" for fresh ones, which take the normalization of the data.
    """

    @property
    def figures_of_weights(self) -> str:
        """Weights whose own normalization `choose_normalization` returns; "": it is that of the
        data.
        """
        return self.weights if self.normalization == "weights" else ""

    def choose_normalization(self, computed: Record) -> Record:
        """Return the normalization of a new run.

        Args:
            computed: that of the run's data, also for its heads, dimensions and differences.

        Raises:
            ConfigError: there is none next to the weights, or it is not one of this robot.
        """
        if not self.figures_of_weights:
            return keep_low(computed) if self.type != "pi0" else computed
        return fit_normalization(
            find_normalization(self.weights, self.norm_asset, self.type != "pi0"), computed
        )


def find_normalization(
    weights: str | Path, asset: str = "", quantiles: bool = True
) -> StoredNormalization:
    """Find and read the normalization next to weights.

    Args:
        weights: file or folder of the weights.
        asset: ID of openpi's normalization; "" takes the only one.
        quantiles: whether openpi normalizes this type of policy by quantiles (pi0.5) or mean and
            deviation (pi0).

    Raises:
        ConfigError: `weights` do not exist or have none, there are several and `asset` names none
            of them, or a file is damaged.
    """
    folder = Path(weights)
    if not folder.exists():
        raise ConfigError(
            f"policy.weights: {folder} does not exist; name a safetensors file or its folder"
        )
    folder = folder.parent if folder.is_file() or folder.name == "params" else folder
    if asset or not any((folder / name).is_file() for name in (OWN, LerobotProcessor.BEFORE)):
        if files := StoredNormalization.openpi_files(folder):
            return _with_facts(
                StoredNormalization.of_openpi(choose_asset(files, asset, folder), quantiles),
                read_facts(folder),
            )
        if asset:
            raise ConfigError(
                f"policy.norm_asset: {asset}: {folder} has no "
                f"assets/{asset}/{StoredNormalization.OPENPI}"
            )
    if (folder / OWN).is_file():
        return _read_own(folder / OWN)
    if (folder / LerobotProcessor.BEFORE).is_file():
        return _with_facts(StoredNormalization.of_lerobot(folder), read_facts(folder))
    raise ConfigError(
        f"policy.weights: {folder} has no normalization (assets/ID/{StoredNormalization.OPENPI} or "
        f"{LerobotProcessor.BEFORE}), and the weights mean nothing without the one that they were "
        "trained with; add its file, or compute one from this data, with which they have to be "
        "trained further: --policy.normalization data"
    )


def _with_facts(stored: StoredNormalization, facts: Record) -> StoredNormalization:
    """Return a normalization with the facts that the file of another tool cannot hold.

    Raises:
        ConfigError: a fact names a dimension that there is not.
    """
    maps = dict(stored.maps)
    padding = dict(stored.padding)
    for name, key in (("delta", ACTION), ("constant", STATE)):
        width = len(maps[key]["offset"]) if key in maps else 0
        if above := [dim for dim in facts.get(name, ()) if dim >= width]:
            raise ConfigError(
                f"{stored.where.parent}: {FOLDER_FACTS}: {name}: {above[0]}: {key} has {width} "
                "dimensions"
            )
    if constant := facts.get("constant"):
        spread = np.asarray(maps[STATE]["spread"], np.float64)
        spread[constant] = 0
        maps[STATE] = {**maps[STATE], "spread": spread.tolist()}
    for name, key in (("action_dim", ACTION), ("state_dim", STATE)):
        if name in facts and key in padding:
            padding[key] = padding[key] & (np.arange(len(padding[key])) >= facts[name])
    delta = tuple(facts["delta"]) if "delta" in facts else stored.delta
    return replace(stored, maps=maps, padding=padding, delta=delta)


def fit_normalization(stored: StoredNormalization, computed: Record) -> dict[str, Any]:
    """Return a stored normalization in the shape of one that was computed from the data of a run.

    Raises:
        ConfigError: it has other dimensions, differences or heads, or lacks a key.
    """
    fix = "name weights of this robot, or compute it from this data: --policy.normalization data"
    heads = list(computed["heads"])
    dims = computed["dims"]
    if stored.whole is not None:
        _check_own(stored, computed, fix)
        return dict(stored.whole) | {"heads": heads}
    if len(heads) > 1:
        raise ConfigError(
            f"{stored.where}: is of one robot, and the data has the norm heads {', '.join(heads)}; "
            f"{fix}"
        )
    learnt = tuple(int(dim) for dim in np.flatnonzero(computed["delta"][0]))
    if stored.delta is not None and stored.delta != learnt:
        raise ConfigError(
            f"{stored.where}: the actions {list(stored.delta)} were learnt as differences to the "
            f"state, and data.delta_action_dims is {list(learnt)}; set it to the same"
        )
    fitted: dict[str, Any] = {"heads": heads}
    for key in dims:
        if key not in stored.maps:
            raise ConfigError(f"{stored.where}: has no {key!r}, which the data has; {fix}")
        width = dims[key][0]
        affine = stored.maps[key]
        if len(affine["offset"]) < width or not stored.padding[key][width:].all():
            raise ConfigError(
                f"{stored.where}: {key!r} has {len(affine['offset'])} dimensions, the data "
                f"{width}, and the rest is no padding; {fix}"
            )
        fitted[key] = {
            name: [np.asarray(affine[name])[:width].tolist()] for name in ("offset", "spread")
        }
    return fitted | {"delta": computed["delta"], "dims": dims}


def _read_own(path: Path) -> StoredNormalization:
    content = read_object(path)
    if ACTION not in content:
        raise ConfigError(f"{path}: has no {ACTION!r}; restore the file")
    return StoredNormalization(path, {}, {}, None, content)


def _check_own(stored: StoredNormalization, computed: Record, fix: str) -> None:
    """Raise ConfigError unless an own normalization has the heads, dimensions and differences of
    the data.
    """
    assert stored.whole is not None
    whole = stored.whole
    heads = list(computed["heads"])
    theirs = list(whole.get("heads", [""]))
    # One robot may be recorded in a dataset of another name, but not be another known robot.
    if theirs != heads and (
        len(heads) > 1 or len(theirs) > 1 or all("::" in name for name in (*theirs, *heads))
    ):
        raise ConfigError(
            f"{stored.where}: has the norm heads {', '.join(theirs)}, the data has "
            f"{', '.join(heads)}; {fix}"
        )
    for key, now in computed["dims"].items():
        width = [
            len(row)
            for row in np.atleast_2d(np.asarray(whole.get(key, {}).get("offset", []), float))
        ]
        if (have := list(whole.get("dims", {}).get(key, width))) != list(now):
            raise ConfigError(
                f"{stored.where}: {key!r} has {have} dimensions, the data {list(now)}; {fix}"
            )
    none = [[False] * len(row) for row in computed["delta"]]
    if whole.get("delta", none) != computed["delta"]:
        raise ConfigError(
            f"{stored.where}: learnt other actions as differences; set data.delta_action_dims as "
            "there"
        )
