"""Episodes with missing files: skipped, or reported as an error."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from understudy.config.data import DataConfig, SourceConfig
from understudy.data.format.catalog import Catalog
from understudy.data.format.missing_files import MissingFiles
from understudy.errors import DatasetError

_MAX_LISTED = 2000
"""Ids that one message lists."""


def skip_incomplete(
    source: SourceConfig,
    catalog: Catalog,
    ids: np.ndarray,
    cameras: Sequence[str],
    data: DataConfig,
    recorded: Mapping[str, Any] | None,
    check_files: bool,
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the ids of the incomplete episodes that a run skips, ascending, and notes about them.

    Args:
        source: settings of the source.
        catalog: its dataset.
        ids: the selected episodes.
        cameras: their cameras that the policy has.
        data: settings of the run's data.
        recorded: entry of the source in order.json when a run is resumed: the same episodes are skipped.
        check_files: whether to look for files at all; otherwise `recorded` counts.

    Raises:
        DatasetError: episodes are incomplete and not to be skipped, or all of them are incomplete.
    """
    before = None if recorded is None else recorded.get("skipped")
    if recorded is not None and before is None:
        return (), ()  # the run was started by a version that did not check
    known = tuple(int(episode) for episode in before or ())
    if not check_files:
        return known, ()
    gaps = catalog.missing_files(cameras)
    if gaps is None:
        return known, ("files cannot be listed there: a missing one is an error when it is read",)
    selected = catalog.episodes.rows_of(ids)
    gaps = [gap for gap in gaps if np.isin(selected, gap.rows).any()]
    lack = np.unique(np.concatenate([np.empty(0, np.int64), *(gap.rows for gap in gaps)]).astype(np.int64))
    found = [int(i) for i in catalog.episodes.ids[np.intersect1d(selected, lack)]]
    if recorded is not None:
        if new := sorted(set(found) - set(known)):
            what = f"{_are(new)} incomplete and was complete when the run started: {_list(new)} ({_why(gaps)})"
            raise DatasetError(what, where=catalog.root, fix="restore the files")
        back = sorted(set(known) - set(found))
        return known, (f"skipped since the run started, although complete now: {_list(back)}",) if back else ()
    if not found:
        return (), ()
    what = f"{_are(found)} incomplete of {len(ids)} ({_why(gaps)})"
    if len(found) == len(ids):
        raise DatasetError(what, where=catalog.root, fix="restore the files")
    if (source.on_incomplete_episode or data.on_incomplete_episode) == "skip":
        return tuple(found), (f"{what}: skipped {_list(found)}",)
    raise DatasetError(f"{what}: {_list(found)}", where=catalog.root, fix=_fix(source, found, bool(data.sources)))


def _are(ids: Sequence[int]) -> str:
    return f"{len(ids)} episode{'s are' if len(ids) > 1 else ' is'}"


def _list(ids: Iterable[int]) -> str:
    ids = list(ids)
    return " ".join(map(str, ids[:_MAX_LISTED])) + (
        f" and {len(ids) - _MAX_LISTED} more" if len(ids) > _MAX_LISTED else ""
    )


def _why(gaps: Sequence[MissingFiles]) -> str:
    return "; ".join(gap.line for gap in gaps)


def _fix(source: SourceConfig, found: Sequence[int], in_file: bool) -> str:
    """Settings that skip these episodes, ready to paste. An excluded id is removed from the other lists."""
    gone = set(found)
    prefix = "" if in_file else "data."
    changed = {}
    if source.episodes:
        changed["episodes"] = [i for i in source.episodes if i not in gone]
    else:
        changed["exclude_episodes"] = sorted({*source.exclude_episodes, *gone})
    if gone & set(source.val_episodes):
        changed["val_episodes"] = [i for i in source.val_episodes if i not in gone]
    if any(len(ids) > _MAX_LISTED for ids in changed.values()):
        ready = "too many to list"
    elif in_file:
        ready = ", ".join(f"{name}: {ids}" for name, ids in changed.items())
    else:
        ready = " ".join(f"--{prefix}{name.replace('_', '-')} {_list(ids)}" for name, ids in changed.items())
    skip = "on_incomplete_episode: skip" if in_file else "--data.on-incomplete-episode skip"
    return f"restore the files, or leave these episodes out: {ready}; or {skip}"
