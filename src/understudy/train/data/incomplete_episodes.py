"""Episodes that cannot be read: skipped, or reported as an error."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from understudy.config.data import DataConfig, SourceConfig
from understudy.data.check_files import broken_episodes
from understudy.data.format.catalog import Catalog
from understudy.data.format.episode_table import MissingFiles
from understudy.data.selection.select import common
from understudy.errors import DatasetError

_MAX_LISTED = 2000
"""Ids that one message lists."""
_MAX_REASONS = 20
"""Reasons that one message lists."""


def skip_incomplete(
    source: SourceConfig,
    catalog: Catalog,
    ids: np.ndarray,
    cameras: Sequence[str],
    keys: Sequence[str],
    data: DataConfig,
    recorded: Mapping[str, Any] | None,
    check_files: bool,
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the ids of the bad episodes that a run skips, ascending, and notes about them.

    An episode is incomplete without one of its files, and broken where a file cannot be used. Broken ones are searched
    only if bad episodes are skipped, since this opens every file.

    Args:
        source: settings of the source.
        catalog: its dataset.
        ids: the selected episodes.
        cameras: their cameras that the policy has.
        keys: columns that the run reads.
        data: settings of the run's data.
        recorded: entry of the source in order.json when a run is resumed: the same episodes are skipped.
        check_files: whether to look for files at all; otherwise `recorded` counts.

    Raises:
        DatasetError: episodes are incomplete and not to be skipped, or all of them are incomplete.
    """
    before = None if recorded is None else recorded.get("skipped")
    if recorded is not None and before is None:
        return (), ()  # the run has the source under another name
    known = tuple(int(episode) for episode in before or ())
    if not check_files:
        return known, ()
    skips = (source.on_bad_episode or data.on_bad_episode) == "skip"
    gaps = catalog.missing_files(cameras)
    if gaps is None and not skips:
        return known, ("files cannot be listed there: a missing one is an error when it is read",)
    selected = catalog.episodes.rows_of(ids)
    gaps = [gap for gap in gaps or [] if np.isin(selected, gap.rows).any()]
    if skips:  # a resumed run looks only whether the skipped ones are still broken
        looked_at = selected if recorded is None else catalog.episodes.rows_of(np.array(known, np.int64))
        videos = [camera for camera in cameras if camera in catalog.episodes.videos]
        gaps += broken_episodes(catalog, videos, keys, looked_at)
    lack = np.unique(np.concatenate([np.empty(0, np.int64), *(gap.rows for gap in gaps)]).astype(np.int64))
    found = [int(i) for i in catalog.episodes.ids[common(selected, lack)]]
    if recorded is not None:
        if new := sorted(set(found) - set(known)):
            what = f"{_are(new)} incomplete and was complete when the run started: {_list(new)} ({_why(gaps)})"
            raise DatasetError(what, where=catalog.root, fix="restore the files")
        back = sorted(set(known) - set(found))
        return known, (f"skipped since the run started, although complete now: {_list(back)}",) if back else ()
    if not found:
        return (), ()
    state = "incomplete or broken" if skips else "incomplete"
    what = f"{_are(found)} {state} of {len(ids)} ({_why(gaps)})"
    if len(found) == len(ids):
        raise DatasetError(what, where=catalog.root, fix="restore the files")
    if skips:
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
    more = f"; and {len(gaps) - _MAX_REASONS} more" if len(gaps) > _MAX_REASONS else ""
    return "; ".join(gap.line for gap in gaps[:_MAX_REASONS]) + more


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
    skip = "on_bad_episode: skip" if in_file else "--data.on-bad-episode skip"
    return f"restore the files, or leave these episodes out: {ready}; or {skip}"
