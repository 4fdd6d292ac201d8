"""Updates of a run's data: episodes that were appended to its datasets, trained on from a
checkpoint on.

The checkpoints after an update have it in `updates` of their state:

    step, position  of the checkpoint that was resumed
    sources         entries of new sources (`RecordedSources`), each a range of episode ids of an
                    earlier one
    order           their specs, which continue the sources of the order
    dataset, files  fingerprints, as in order.json
    frames          digest of their file of frames, frames-DIGEST.parquet (`frames_file.py`)

A checkpoint before an update does not know it. So a run that is killed before the next checkpoint,
or is resumed from an earlier one, has the earlier data.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from understudy.config.data import DataConfig
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.frames_file import EPISODE, VALIDATION, frames_content, read_frames
from understudy.train.data.run_data import (
    RunData,
    dataset_fingerprint,
    episodes_within,
    file_digests,
)
from understudy.train.data.sources import appended_episodes, spell_out
from understudy_base import Record, plural, write_bytes
from understudy_data import Order


def recorded_sources(record: Record, updates: Sequence[Record] = ()) -> list[dict[str, Any]]:
    """Return the entries of the sources of a run: those of order.json, then those of updates."""
    appended = chain.from_iterable(update["sources"] for update in updates)
    return [*record.get("sources", ()), *appended]


def current_spec(record: Record, state: Record) -> dict[str, Any]:
    """Return the spec of a run's order at a checkpoint with this state; {}: at the start."""
    spec = record["order"]
    updates = state.get("updates", ())
    appended = chain.from_iterable(update["order"] for update in updates)
    sources = [*spec["sources"], *appended]
    return {**spec, "sources": sources, "schedule": state.get("schedule") or spec["schedule"]}


def update_frames(run: RunDir, update: Record) -> Path:
    """Path of the frames of an update."""
    return run.root / f"frames-{update['frames'][:16]}.parquet"


def find_appended(settings: DataConfig, data: RunData, step: int) -> list[dict[str, Any]]:
    """Return the entries of the sources with appended episodes to train on; `settings` are those of
    the run's data.
    """
    entries = []
    for source, of_source in zip(data.configured, settings.mixed(), strict=True):
        first = 1 + max(part.span[1] for part in data.sources if part.of == source.number)
        catalog = source.training.catalog
        spelled_out = spell_out(of_source, source.training)
        if len(appended_episodes(settings.share_of(spelled_out), spelled_out, catalog, first)):
            entry = {
                "name": f"{source.name}@{step}",
                "of": source.number,
                "first": first,
                "last": int(catalog.episodes.ids[-1]),
                "view": source.training.view_record,
            }
            entries.append(entry)
    return entries


def write_update(
    run: RunDir, record: Record, data: RunData, order: Order, saved: Record, cache: Path
) -> list[Record]:
    """Return the updates of the checkpoint with the state `saved`, and that of `data` and `order`,
    if there is one.

    The frames of a new update are written. `cache` is the folder of data read from URLs.
    """
    updates = list(saved.get("updates", ()))
    if (first := len(recorded_sources(record, updates))) == len(data.sources):
        return updates
    content = frames_content(data, first)
    update: dict[str, Any] = {
        "step": saved["step"],
        "position": saved["position"],
        "sources": data.entries()[first:],
    }
    update["order"] = [asdict(source) for source in order.spec.sources[first:]]
    prefixes = tuple(f"{of}: " for of in data.names[first:])
    for name, facts in (
        ("dataset", dataset_fingerprint(data)),
        ("files", file_digests(data, cache)),
    ):
        update[name] = {key: fact for key, fact in facts.items() if key.startswith(prefixes)}
    update["frames"] = hashlib.sha256(content).hexdigest()
    write_bytes(update_frames(run, update), content)
    return [*updates, update]


def read_all_frames(
    run: RunDir, record: Record, updates: Sequence[Record]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read the frames of a run and of updates: columns, also `update` (0 of the start), and the
    latest digests.

    Raises:
        ConfigError: a file is missing, or was changed.
    """
    files = [
        (run.frames, record.get("frames", "")),
        *((update_frames(run, of), of["frames"]) for of in updates),
    ]
    tables, digests = zip(*(read_frames(*file) for file in files))
    frames = {}
    for name in tables[0]:
        frames[name] = np.concatenate([table[name] for table in tables])
    frames["update"] = np.repeat(np.arange(len(tables)), [len(table["rows"]) for table in tables])
    return frames, digests[-1]


def changed_episodes(
    run: RunDir, record: Record, updates: Sequence[Record], data: RunData
) -> list[str]:
    """Name the episodes of a run that its datasets do not have, have otherwise, or no longer
    select.
    """
    frames = read_all_frames(run, record, updates)[0]
    lines = []
    for number in np.unique(frames["source"]).tolist():
        of_source = frames["source"] == number
        source = data.sources[number]
        parts = (source.training, source.apart)
        before, now = (
            dict(zip(*map(np.ndarray.tolist, pair)))
            for pair in (
                frames["rows"][of_source & (frames["part"] == EPISODE), ::2].T,
                episodes_within(source.training.catalog, source.span),
            )
        )
        used = {
            *frames["episode"][of_source & (frames["part"] <= VALIDATION)].tolist()
        } & now.keys()
        changes = {
            "removed": before.keys() - now.keys(),
            "inserted": now.keys() - before.keys(),
            "of another length": {
                episode for episode in before.keys() & now.keys() if before[episode] != now[episode]
            },
            "no longer selected": used.difference(
                *(part.episodes.tolist() for part in parts if part)
            ),
        }
        lines += [
            f"  {source.name}: {plural(len(ids), 'episode')} {change}: "
            f"{source.training.catalog.describe_ids(np.array(sorted(ids)))}"
            for change, ids in changes.items()
            if ids
        ]
    return lines
