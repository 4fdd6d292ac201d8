"""Episodes of a run whose files are not all there: found before the first step, listed whole, or left out for good."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from understudy.config.data import DataConfig, SourceConfig
from understudy.data.format.catalog import Catalog
from understudy.data.format.missing_files import MissingFiles
from understudy.errors import DatasetError

_LISTED = 2000
"""Ids that are listed in one message."""


def left_out(
    wanted: SourceConfig,
    catalog: Catalog,
    ids: np.ndarray,
    cameras: Sequence[str],
    data: DataConfig,
    begun: Mapping[str, Any] | None,
    look: bool,
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Ids of the incomplete episodes that a run leaves out of a source, ascending, and notes about them.

    Args:
        ids: episodes that are selected. cameras: that the policy sees of them.
        begun: what order.json says of the source, where the run goes on: the same ones are left out again.
        look: whether to look for files at all; without, what `begun` says counts.
    Raises:
        DatasetError: episodes are incomplete and not to be left out, or all of them are.
    """
    frozen = None if begun is None else begun.get("skipped")
    if begun is not None and frozen is None:
        return (), ()  # begun by a version that did not look
    known = tuple(int(episode) for episode in frozen or ())
    if not look:
        return known, ()
    gaps = catalog.missing_files(cameras)
    if gaps is None:
        return known, ("files cannot be listed there: one that is missing is met when it is read",)
    selected = catalog.episodes.rows_of(ids)
    gaps = [gap for gap in gaps if np.isin(selected, gap.rows).any()]
    lack = np.unique(np.concatenate([np.empty(0, np.int64), *(gap.rows for gap in gaps)]).astype(np.int64))
    found = [int(i) for i in catalog.episodes.ids[np.intersect1d(selected, lack)]]
    if begun is not None:
        if new := sorted(set(found) - set(known)):
            what = f"{_are(new)} incomplete and was there when the run began: {_list(new)} ({_why(gaps)})"
            raise DatasetError(what, where=catalog.root, fix="restore the files")
        back = sorted(set(known) - set(found))
        return known, (f"left out since the run began, though complete now: {_list(back)}",) if back else ()
    if not found:
        return (), ()
    what = f"{_are(found)} incomplete of {len(ids)} ({_why(gaps)})"
    if len(found) == len(ids):
        raise DatasetError(what, where=catalog.root, fix="restore the files")
    if (wanted.on_incomplete_episode or data.on_incomplete_episode) == "skip":
        return tuple(found), (f"{what}: left out are {_list(found)}",)
    raise DatasetError(f"{what}: {_list(found)}", where=catalog.root, fix=_fix(wanted, found, bool(data.sources)))


def _are(ids: Sequence[int]) -> str:
    return f"{len(ids)} episode{'s are' if len(ids) > 1 else ' is'}"


def _list(ids: Iterable[int]) -> str:
    ids = list(ids)
    return " ".join(map(str, ids[:_LISTED])) + (f" and {len(ids) - _LISTED} more" if len(ids) > _LISTED else "")


def _why(gaps: Sequence[MissingFiles]) -> str:
    return "; ".join(gap.line for gap in gaps)


def _fix(wanted: SourceConfig, found: Sequence[int], in_file: bool) -> str:
    """What to write, ready to paste. An id must not be both named and excluded, so lists that name it are cut."""
    gone = set(found)
    named = "data." * (not in_file)
    changed = {}
    if wanted.episodes:
        changed["episodes"] = [i for i in wanted.episodes if i not in gone]
    else:
        changed["exclude_episodes"] = sorted({*wanted.exclude_episodes, *gone})
    if gone & set(wanted.val_episodes):
        changed["val_episodes"] = [i for i in wanted.val_episodes if i not in gone]
    if any(len(ids) > _LISTED for ids in changed.values()):
        ready = "too many to list"
    elif in_file:
        ready = ", ".join(f"{name}: {ids}" for name, ids in changed.items())
    else:
        ready = " ".join(f"--{named}{name.replace('_', '-')} {_list(ids)}" for name, ids in changed.items())
    skip = "on_incomplete_episode: skip" if in_file else "--data.on-incomplete-episode skip"
    return f"restore the files, or leave these episodes out: {ready}; or {skip}"
