"""Rules of info.json and of the episode table, from metadata alone."""

from collections.abc import Iterator

import numpy as np

from understudy.batch_keys import ACTION, STATE
from understudy.check.findings import Finding, Place, list_ids
from understudy.check.remedies import EDIT, REWRITE, correct
from understudy.data.format.catalog import INFO, Catalog
from understudy.data.format.features import INDEX_KEYS
from understudy.plural import plural

_COVERED = ("info.json: total_", "info.json: splits", "episode ids have gaps", "tasks: ")
"""Beginnings of lines of `Catalog.metadata_notes` that rules here and in `tasks` report with their values."""


def check_metadata(catalog: Catalog) -> Iterator[Finding]:
    """Yield findings about info.json and the episode table."""
    yield from _totals(catalog)
    yield from _features(catalog)
    yield from _training(catalog)
    table = catalog.episodes
    if int(table.ids[0]) != 0 or int(table.ids[-1]) != len(table) - 1:
        gaps = sorted(set(range(int(table.ids[-1]) + 1)) - set(table.ids.tolist())) if table.ids[-1] < 1 << 22 else []
        yield Finding(
            "episodes.ids",
            "warning",
            f"{plural(len(table), 'episode has', 'episodes have')} ids {int(table.ids[0])} to {int(table.ids[-1])}; "
            "LeRobot reads by position",
            measured=int(table.ids[-1]) + 1,
            expected=len(table),
            fix=f"{REWRITE}" + (f"; absent are {list_ids(gaps)}" if gaps else ""),
        )
    empty = table.ids[table.lengths == 0]
    if len(empty):
        yield Finding(
            "episodes.empty",
            "warning",
            plural(len(empty), "episode has no frames", "episodes have no frames"),
            Place(episodes=tuple(empty.tolist())),
            measured=0,
            fix=f"{EDIT} --where 'length > 0', or leave them: they give no samples",
        )
    left_out = {f"{key} {why}: left out" for key, why in catalog.skipped_features.items()}
    for line in catalog.metadata_notes():
        covered = line.startswith(_COVERED) or line in left_out or "have no frame" in line or "task texts" in line
        if not covered and "from_timestamp of" not in line:
            yield Finding("metadata.oddity", "warning", line, Place(file=INFO), fix=correct("the entry"))


def _totals(catalog: Catalog) -> Iterator[Finding]:
    info, table = catalog.info, catalog.episodes
    true = {"total_episodes": len(table), "total_frames": table.frames}
    true["total_tasks"] = sum(1 for text in catalog.tasks if text)
    if "total_chunks" in info:
        true["total_chunks"] = int(np.unique(table.data.chunk).size)
    if "total_videos" in info:
        true["total_videos"] = sum(int(np.unique(v.file[v.file >= 0]).size) for v in table.videos.values())
    for name, value in true.items():
        if name in info and info[name] != value:
            yield Finding(
                "metadata.totals",
                "warning",
                f"{name} is {info[name]!r}, the tables hold {value}",
                Place(file=INFO, column=name),
                measured=info[name],
                expected=value,
                fix=correct(f"{name}: {value}"),
            )
    splits = info.get("splits")
    whole = f"0:{len(table)}"
    if isinstance(splits, dict) and splits.get("train") not in (None, whole) and not _is_covering(splits, len(table)):
        yield Finding(
            "metadata.splits",
            "warning",
            f"splits are {splits}, the tables list {plural(len(table), 'episode')}",
            Place(file=INFO),
            measured=splits,
            expected={"train": whole},
            fix=correct(f'splits: {{"train": "{whole}"}}'),
        )


def _is_covering(splits: dict[str, object], episodes: int) -> bool:
    """Whether splits are ranges "a:b" inside 0:episodes."""
    for value in splits.values():
        first, colon, last = str(value).partition(":")
        if not (colon and first.isdigit() and last.isdigit() and int(first) <= int(last) <= episodes):
            return False
    return True


def _features(catalog: Catalog) -> Iterator[Finding]:
    for key, feature in catalog.features.items():
        width = int(np.prod(feature.shape))
        declared = feature.names
        if feature.is_camera or feature.is_text or not declared or width == 1:
            continue
        flat = feature.dimension_names
        if flat == [str(number) for number in range(width)] and not _is_axes(declared, len(feature.shape)):
            yield Finding(
                "metadata.names",
                "warning",
                f"the declared names are not {width} different ones",
                Place(file=INFO, column=key),
                measured=str(declared)[:200],
                expected=width,
                fix=correct(f"names of {key}"),
            )
    lacking = [key for key in INDEX_KEYS if key not in catalog.features]
    if lacking:
        yield Finding(
            "metadata.features",
            "note",
            f"info.json does not declare {', '.join(lacking)}; the reader computes absent ones",
            Place(file=INFO),
            measured=lacking,
            fix=correct("features"),
        )
    for key, why in catalog.skipped_features.items():
        no_file = key in catalog.cameras_without_files
        yield Finding(
            "files.camera" if no_file else "metadata.oddity",
            "warning" if no_file else "note",
            f"the camera {why}" if no_file else f"{key} {why}",
            Place(camera=key),
            fix=f"restore its files; without them train with {_cameras(catalog)}" if no_file else "use another camera",
        )


def _cameras(catalog: Catalog) -> str:
    """Return the flag that leaves out the cameras that a training refuses."""
    usable = [key for key in catalog.camera_keys if catalog.features[key].channels in (3, None)]
    colors = [key for key in usable if not catalog.features[key].is_depth]
    return f"--data.cameras {' '.join(colors) or 'none'}"


def _training(catalog: Catalog) -> Iterator[Finding]:
    """Yield a finding for each feature that a training refuses until a flag names others."""
    vectors = [
        key
        for key, feature in catalog.features.items()
        if len(feature.shape) == 1 and not feature.is_text and not feature.is_camera and key not in INDEX_KEYS
    ]
    for key, flag in ((ACTION, "data.action"), (STATE, "data.state")):
        feature = catalog.features.get(key)
        if key in vectors or (feature is None and key == STATE):
            continue
        problem = f"is {feature.dtype} of shape {feature.shape}" if feature is not None else "is not declared"
        none = ", or --data.state '' for none" if key == STATE else ""
        yield Finding(
            "metadata.training",
            "warning",
            f"{key} {problem}; a training needs a vector",
            Place(file=INFO, column=key),
            fix=f"train with --{flag} KEY, or several joined by +{none}: {', '.join(vectors) or 'there is none'}",
        )
    for key in catalog.camera_keys:
        feature = catalog.features[key]
        if not feature.is_depth and feature.channels not in (3, None):
            yield Finding(
                "metadata.training",
                "warning",
                f"images have {feature.channels} channels; a training needs RGB",
                Place(camera=key),
                measured=feature.channels,
                expected=3,
                fix=f"train with {_cameras(catalog)}",
            )


def _is_axes(names: object, axes: int) -> bool:
    """Whether names are those of the axes instead of the dimensions."""
    return isinstance(names, list | tuple) and len(names) == axes and all(isinstance(name, str) for name in names)
