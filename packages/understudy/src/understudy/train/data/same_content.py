"""Sources of a mixture with the same recordings under two names, and with other frame rates.

Both are legal, and both are seldom meant. Copies are recognised by the digests of files that the
start of a run takes anyway (`UsedFiles`): no file is read for it, and the time grows with the
number of sources alone.
"""

import os
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from understudy.train.data.run_data import RunData, RunSource
from understudy_data import EpisodeDataset, UsedFiles

MOST_NAMED = 5


def describe_copies(data: RunData, files: Mapping[str, list[str] | None]) -> list[str]:
    """Return a line for each group of sources that train on the same files under several addresses.

    Parts of one dataset by one address are meant, and none of these.

    Args:
        data: the sources.
        files: digests of their files (`file_digests`).
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    if len(data.configured) < 2:
        return []
    for source in data.configured:
        name = source.name
        videos = []
        for camera in data.cameras:
            of_camera = files.get(f"{name}: {UsedFiles.sampled_videos(camera)}")
            videos.append(UsedFiles.distinct_digests(of_camera)[:1])
        seen = tuple(chain.from_iterable(videos))
        of_rows = files.get(f"{name}: {UsedFiles.SAMPLED_ROWS}")
        for digest in UsedFiles.distinct_digests(of_rows):
            groups.setdefault((digest, *seen), []).append(source.number)
    distinct_groups = dict.fromkeys(map(tuple, groups.values()))
    descriptions = [_describe(data, members) for members in distinct_groups]
    lines = [line for line in descriptions if line]
    more = [f"… and {len(lines) - MOST_NAMED} more groups of sources with the same files"]
    return lines[:MOST_NAMED] + more * (len(lines) > MOST_NAMED)


def _describe(data: RunData, members: tuple[int, ...]) -> str:
    sources = [data.sources[number] for number in members]
    by_address: dict[str, list[RunSource]] = {}
    for source in sources:
        root = source.training.catalog.root
        address = root if "://" in root else os.path.abspath(root)
        by_address.setdefault(address, []).append(source)
    if len(by_address) == 1:
        return ""
    trained = []
    held = []
    for of_address in by_address.values():
        trained.append(_episodes(source.training for source in of_address))
        held.append(_episodes(source.validation for source in of_address))
    ids, counts = np.unique(np.concatenate(trained), return_counts=True)
    twice = int((counts > 1).sum())
    leaked = len(np.intersect1d(ids, np.unique(np.concatenate(held)), assume_unique=True))
    if not twice and not leaked:
        return ""
    facts = [f"{twice:,} episodes are trained on more than once"] * (twice > 0)
    facts += [f"{leaked:,} validation episodes of one are trained on in another"] * (leaked > 0)
    names = [source.name for source in sources]
    shown = ", ".join(names[:MOST_NAMED]) + f" and {len(names) - MOST_NAMED} more" * (
        len(names) > MOST_NAMED
    )
    return (
        f"the same files under several addresses: {shown}: {', and '.join(facts)}; leave copies "
        "out of data.sources"
    )


def _episodes(parts: Iterable[EpisodeDataset | None]) -> np.ndarray:
    """Distinct ids of the episodes of some parts, int64, ascending."""
    return np.unique(
        np.concatenate(
            [np.empty(0, np.int64), *(part.episodes for part in parts if part is not None)]
        )
    )


def describe_rates(data: RunData, actions: int) -> list[str]:
    """Return a line where the frame rates of the sources differ; a chunk has a number of
    `actions`.
    """
    rates: dict[float, list[str]] = {}
    for source in data.configured:
        rates.setdefault(source.training.catalog.fps, []).append(source.name)
    if len(rates) < 2:
        return []
    parts: list[Any] = []
    for fps, names in sorted(rates.items()):
        more = f" and {len(names) - MOST_NAMED} more" * (len(names) > MOST_NAMED)
        parts.append(
            f"{fps:g} fps, {actions / fps:.3g} s a chunk, in {', '.join(names[:MOST_NAMED])}{more}"
        )
    return [f"frame rates differ: {'; '.join(parts)}"]
