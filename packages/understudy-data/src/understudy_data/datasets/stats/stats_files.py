"""Statistics computed elsewhere: openpi's norm_stats.json (read and written) and LeRobot's
stats.json (read).

For a run that must be normalized like another one (a fine-tuned checkpoint, a policy on the robot).
openpi's figures describe actions as the policy learns them, including differences to the state, so
`delta` must be the same. LeRobot's figures describe the whole dataset, including validation
episodes.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from understudy_base import (
    ACTION,
    STATE,
    DatasetError,
    MissingFileError,
    Record,
    restore_credentials,
)
from understudy_data.datasets.format.features import join_stats
from understudy_data.datasets.format.layouts import read_episode_columns
from understudy_data.datasets.format.meta_files import read_json
from understudy_data.datasets.format.recorded_stats import (
    GLOBAL,
    PER_EPISODE,
    Stats,
    parse_stats,
    read_per_episode,
)
from understudy_data.datasets.stats.summary import DimensionMode, Statistics, vector_widths
from understudy_data.storage.dataset_root import Files

RECORDED = "recorded"
"""Source name of the statistics in the dataset's own meta/."""

NEEDED: dict[DimensionMode, tuple[str, ...]] = {
    "mean_std": ("mean", "std"),
    "min_max": ("min", "max"),
    "quantile": ("q01", "q99"),
    "identity": (),
}

_OPENPI = {ACTION: "actions", STATE: "state"}
_FIGURES = ("mean", "std", "min", "max", "q01", "q99")
_IDENTITY = {"mean": 0.0, "std": 1.0, "min": -1.0, "max": 1.0, "q01": -1.0, "q99": 1.0}
"""Figures by which each mode leaves a dimension as it is."""
_OTHER_FILE = (
    f"give the path of a statistics file, or {RECORDED!r} for the dataset's own; without "
    "one they are computed"
)

if TYPE_CHECKING:
    from understudy_data.datasets.episode_arrays import EpisodeArrays
# a padded dimension, up to the bins of openpi's histograms (1e-10) and its float32 sums
_TINY = 1e-6


def read_stats_file(
    source: str,
    mode: DimensionMode | Mapping[str, Sequence[DimensionMode]],
    data: "EpisodeArrays",
    delta: tuple[int, ...] = (),
) -> dict[str, Statistics]:
    """Read statistics of `ACTION` and `STATE` for `HeadMember.recorded`; figures that `mode` does
    not need may be NaN.

    Dimensions for which a file has the figure `mask` false stay as they are: mean 0, deviation 1,
    from -1 to 1.

    Args:
        source: path or URL of openpi's norm_stats.json, LeRobot's stats.json or
            episodes_stats.jsonl (v2.1); or `RECORDED`.
        mode: normalization of the run, for all dimensions or by key for each.
        data: dataset to normalize; gives widths and keys.
        delta: dimensions of the action that are learnt as differences to the state.

    Raises:
        DatasetError: the file cannot be read, lacks a key or a figure that `mode` needs (names the
            modes it suffices for), has another width than the dataset (openpi's padding to 32 is
            cut), a figure that is not finite or no number (a boolean is none), or describes
            absolute actions where `delta` names differences.
    """
    try:
        where, table, openpi, raw = _read_table(source, data)
    except MissingFileError as error:
        raise MissingFileError(error.what, where=error.where, fix=_OTHER_FILE) from error
    if delta and not openpi:
        problem = (
            f"holds statistics of absolute actions, but delta names {list(delta)} as "
            "differences to the state"
        )
        raise DatasetError(
            problem,
            where=where,
            fix="compute them, or give openpi's norm_stats.json of differences",
        )
    statistics = {}
    for key, width in vector_widths(data).items():
        stored_key = _OPENPI[key] if openpi else data.catalog.stored_names.get(key, key)
        stored_key = key if stored_key not in table and key in table else stored_key
        parts = [part.key for part in data.catalog.joined.get(key, ())]
        if stored_key not in table and parts and all(part in table for part in parts):
            table = {**table, stored_key: join_stats([table[part] for part in parts])}
        if stored_key not in table:
            file_keys = ", ".join(table) or "none"
            raise DatasetError(
                f"there is no {stored_key!r}",
                where=where,
                fix=f"its keys are {file_keys}; or compute them",
            )
        if data.catalog.features[key].dtype != "bool":
            _refuse_booleans(raw.get(stored_key), stored_key, where)
        modes = [mode] * width if isinstance(mode, str) else list(mode[key])
        statistics[key] = parse_figures(table[stored_key], stored_key, modes, width, where)
    return statistics


def to_openpi(statistics: Mapping[str, Statistics]) -> str:
    """Return openpi's norm_stats.json of one head (see `norm_heads.compute_statistics`); float64 is
    exact.

    Raises:
        DatasetError: mean or deviation of a key is unknown.
    """
    out = {}
    for key, name in _OPENPI.items():
        if key in statistics:
            figures = {
                figure: getattr(statistics[key], figure) for figure in ("mean", "std", "q01", "q99")
            }
            finite = {
                figure: values.tolist()
                for figure, values in figures.items()
                if np.isfinite(values).all()
            }
            if "mean" not in finite or "std" not in finite:
                raise DatasetError(f"mean and deviation of {key!r} are unknown", fix="compute them")
            out[name] = finite
    return json.dumps({"norm_stats": out}, indent=2) + "\n"


def _read_table(source: str, data: "EpisodeArrays") -> tuple[str, Stats, bool, Record]:
    """Name of the file, figures by its own keys, whether it is openpi's, and its content by key."""
    if source == RECORDED:
        stats = {
            data.catalog.stored_names.get(key, key): entry
            for key, entry in data.catalog.stats.items()
        }
        files = data.catalog.files
        recorded = read_json(files, GLOBAL) if files.exists(GLOBAL) else {}
        return f"{data.catalog.root}/meta", stats, False, recorded
    begin_of_query = "?" if "://" in source else "\0"
    address, _, query = restore_credentials(source).partition(begin_of_query)
    folder, _, name = address.rpartition("/")
    if query:
        folder += f"?{query}"
    if not folder:
        folder = "/" if source.startswith("/") else "."
    files = Files(folder, data.catalog.files.options)
    if name.endswith(".jsonl"):
        return files.where(name), read_per_episode(files, name), False, {}
    content = read_json(files, name)
    openpi = isinstance(content.get("norm_stats"), dict)
    entries_in_file = content["norm_stats"] if openpi else content
    entries: dict[str, Any] = {}
    for key, entry in entries_in_file.items():
        entries[key] = entry
        if isinstance(entry, dict):
            entries[key] = {name: value for name, value in entry.items() if value is not None}
    return files.where(name), parse_stats(entries, files.where(name)), openpi, entries


def _refuse_booleans(entry: Any, key: str, where: str) -> None:
    """Raise DatasetError for a figure of a vector that holds booleans or texts, which numpy takes
    for numbers.
    """
    if not isinstance(entry, Mapping):
        return
    for name, value in entry.items():
        flat = np.asarray(value, object).reshape(-1)
        wrong = [item for item in flat.tolist() if isinstance(item, bool | str)]
        if name in _FIGURES and wrong:
            problem = f"{name!r} of {key!r} holds {wrong[0]!r}, which is no number"
            raise DatasetError(problem, where=where, fix="restore the file, or compute them")


def parse_figures(
    entry: Mapping[str, np.ndarray],
    key: str,
    modes: Sequence[DimensionMode],
    width: int,
    where: str,
) -> Statistics:
    """Parse one key's figures, each [width], for the modes of its dimensions.

    Args:
        entry: figure -> numbers of any shape.
        key: name of the column, for errors.
        modes: normalization of each dimension.
        width: its dimensions.
        where: name of the file, for errors.

    Raises:
        DatasetError: a figure that a mode needs is absent or not finite, has another width, or
            contradicts another.
    """
    for mode in dict.fromkeys(modes):
        if lacking := [name for name in NEEDED[mode] if name not in entry]:
            possible_modes = []
            for other, needed in NEEDED.items():
                if needed and all(name in entry for name in needed):
                    possible_modes.append(repr(other))
            problem = f"{key!r} has no {lacking[0]!r}, which normalize={mode!r} needs"
            fix = "compute them"
            if possible_modes:
                fix = f"it suffices for {' and '.join(possible_modes)}; or compute them"
            raise DatasetError(problem, where=where, fix=fix)
    have = {name: entry[name].reshape(-1) for name in _FIGURES if name in entry}
    sizes = {name: len(values) for name, values in have.items()} or {"mean": 0}
    padding = min(sizes.values()) == max(sizes.values()) > width
    if padding:
        padding = _is_padding({name: values[width:] for name, values in have.items()})
    if not padding and set(sizes.values()) != {width}:
        have_sizes = ", ".join(f"{size} of {name!r}" for name, size in sizes.items())
        problem = (
            f"{key!r} has {have_sizes}, the dataset {width} dimensions, and the rest is not padding"
        )
        raise DatasetError(
            problem, where=where, fix="name the statistics of this robot, or compute them"
        )
    figures = {}
    for name in _FIGURES:
        figures[name] = have[name][:width] if name in have else np.full(width, np.nan)
    figures = _unmasked(figures, entry.get("mask"), key, where)
    _check_figures(figures, key, modes, where)
    return Statistics(_count(entry), **_fill_constants(figures))


def _unmasked(
    figures: dict[str, np.ndarray], mask: np.ndarray | None, key: str, where: str
) -> dict[str, np.ndarray]:
    """Return figures with those of the identity where a mask, 0 or 1 [dim], is 0."""
    if mask is None:
        return figures
    width = len(figures["mean"])
    flat = mask.reshape(-1)
    if len(flat) < width or not np.isin(flat, (0, 1)).all():
        problem = f"'mask' of {key!r} is {flat.tolist()}, the dataset has {width} dimensions"
        raise DatasetError(
            problem,
            where=where,
            fix="give true or false for each dimension, or compute the statistics",
        )
    kept = flat[:width].astype(bool)
    return {name: np.where(kept, values, _IDENTITY[name]) for name, values in figures.items()}


def _is_padding(figures: Mapping[str, np.ndarray]) -> bool:
    """Check for zeros (openpi's padding) or figures that do not normalize (mean 0, deviation 1,
    from -1 to 1).
    """
    for pair, neutral in (
        (("mean", "std"), (0.0, 1.0)),
        (("min", "max"), (-1.0, 1.0)),
        (("q01", "q99"), (-1.0, 1.0)),
    ):
        present = [(figures[name], value) for name, value in zip(pair, neutral) if name in figures]
        zeros = all((np.abs(values) < _TINY).all() for values, _ in present)
        if not zeros and not all((values == value).all() for values, value in present):
            return False
    return True


def _check_figures(
    figures: Mapping[str, np.ndarray], key: str, modes: Sequence[DimensionMode], where: str
) -> None:
    for name in _FIGURES:
        needed = np.array([name in NEEDED[mode] for mode in modes])
        bad = np.isinf(figures[name]) | needed & np.isnan(figures[name])
        if name == "std":
            bad |= figures[name] < 0
        if bad.any():
            dim = int(bad.argmax())
            problem = f"{name!r} of {key}[{dim}] is {figures[name][dim]}"
            raise DatasetError(problem, where=where, fix="restore the file, or compute them")
    for low, high in (("min", "max"), ("q01", "q99")):
        if (figures[low] > figures[high]).any():
            dim = int((figures[low] > figures[high]).argmax())
            problem = (
                f"{low!r} of {key}[{dim}] is above its {high!r}: {figures[low][dim]} > "
                f"{figures[high][dim]}"
            )
            raise DatasetError(problem, where=where, fix="restore the file, or compute them")


def _fill_constants(figures: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Fill in minimum and maximum of constant dimensions, where the file has neither.

    `offset_and_spread` recognises constant dimensions by them. openpi's deviation is the root of a
    difference of float32 sums, so for a constant it may be up to a thousandth of the mean.
    """
    same = (figures["q01"] == figures["q99"]) & (figures["std"] <= 1e-3 * np.abs(figures["mean"]))
    constant = same & ~(np.isfinite(figures["min"]) & np.isfinite(figures["max"]))
    return figures | {
        name: np.where(constant, figures["q01"], figures[name]) for name in ("min", "max")
    }


def _count(entry: Mapping[str, np.ndarray]) -> int:
    """Number of rows; 0 where the file has none."""
    count = entry["count"].reshape(-1) if "count" in entry else np.zeros(1)
    return int(count[0]) if len(count) and np.isfinite(count[0]) and count[0] > 0 else 0


COMPARED = ("mean", "std", "min", "max")
"""Statistics of episodes that do not depend on the writer."""


def read_episode_stats(
    files: Files, version: str, ids: np.ndarray, keys: Sequence[str]
) -> dict[str, dict[str, np.ndarray]]:
    """Read the statistics that are recorded for each episode: those of v2.1's file, or of v3's
    meta/episodes.

    Args:
        files: the dataset's files.
        version: its format.
        ids: int64 (N,), ids of its episodes, ascending.
        keys: numeric features.

    Returns:
        Key -> "min", "max", "mean" or "std" -> float64 (N, D), NaN where an episode has no record
        or one of another width. Keys and statistics without any record are absent.

    Raises:
        DatasetError: a file cannot be read.
    """
    names = list(product(keys, COMPARED))
    read = _read_lines if version.startswith("v2") else _read_columns
    records = read(files, names)
    tables: dict[str, dict[str, np.ndarray]] = {}
    for key, name in names:
        if values := records.get((key, name)):
            tables.setdefault(key, {})[name] = _table(values, ids)
    return tables


Records = dict[tuple[str, str], dict[int, Any]]
"""(key, statistic) -> episode id -> values."""


def _read_lines(files: Files, names: Sequence[tuple[str, str]]) -> Records:
    records: Records = {}
    if not files.exists(PER_EPISODE):
        return records
    for line in files.read(PER_EPISODE).splitlines():
        entry = json.loads(line) if line.strip() else {}
        if isinstance(entry.get("episode_index"), int):
            for key, name in names:
                entry_stats = entry["stats"].get(key, {})
                if name in entry_stats:
                    records.setdefault((key, name), {})[entry["episode_index"]] = entry_stats[name]
    return records


def _read_columns(files: Files, names: Sequence[tuple[str, str]]) -> Records:
    columns = {f"stats/{key}/{name}": (key, name) for key, name in names}
    values = read_episode_columns(files, columns.__contains__)
    return {columns[column]: of_episodes for column, of_episodes in values.items()}


def _table(values: Mapping[int, Any], ids: np.ndarray) -> np.ndarray:
    """Records as rows of a table, those of the most frequent width."""
    arrays = {}
    for episode, value in values.items():
        with suppress(ValueError, TypeError):
            arrays[episode] = np.asarray(value, np.float64).reshape(-1)
    widths = Counter(map(len, arrays.values()))
    usual_width = widths.most_common(1)[0][0] if widths else 0
    table = np.full((len(ids), usual_width), np.nan)
    for episode, array in arrays.items():
        row = int(np.searchsorted(ids, episode))
        if row < len(ids) and ids[row] == episode and len(array) == table.shape[1]:
            table[row] = array
    return table
