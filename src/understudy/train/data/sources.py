"""One source of a run: its dataset under standard keys, checked for a policy, and split into two parts."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from understudy.batch_keys import ACTION, STATE
from understudy.config.data import NONE, DataConfig, SourceConfig
from understudy.config.train import TrainConfig
from understudy.data.check_files import broken_episodes
from understudy.data.dataset import EpisodeDataset
from understudy.data.format.catalog import Catalog
from understudy.data.format.episode_table import MissingFiles, describe_ids
from understudy.data.format.standard_keys import rename_keys
from understudy.data.selection.select import Selection, common, difference, distinct, split_episodes
from understudy.data.selection.where import matching_rows
from understudy.data.stats.norm_heads import head_name
from understudy.errors import DatasetError
from understudy.policies.observation_history import seen_times
from understudy.video.color import ImageSize, Resize


@dataclass(frozen=True)
class Source:
    """A dataset that a policy can be trained on."""

    config: SourceConfig
    catalog: Catalog
    """In standard keys."""
    keys: tuple[str, ...]
    """`action`, and `observation.state` where it has one."""
    cameras: tuple[str, ...]
    """Standard keys of its cameras."""

    def head(self, name: str) -> str:
        """Return the norm head of this source, whose name is `name`."""
        return head_name(self.config.robot_type or self.catalog.robot_type, self.config.control_mode, name)


RecordedSources = Mapping[str, Mapping[str, Any]]
"""Entry of each source in order.json when a run is resumed, by name."""


def open_source(
    config: SourceConfig, catalog: Catalog, cameras: Sequence[str] = (), recorded: Mapping[str, Any] | None = None
) -> Source:
    """Open a source; only its metadata is read.

    Args:
        config: settings of the source.
        catalog: its dataset, under its own keys.
        cameras: the policy's cameras (`data.cameras`); all if empty.
        recorded: its entry in order.json when a run is resumed.

    Raises:
        DatasetError: keys, episodes, dimensions or videos are missing, or an action or state is not a vector.
    """
    _check_cameras(config, catalog, cameras, recorded)
    names = {ACTION: config.action} | ({STATE: config.state} if config.state else {}) | config.cameras
    # Keys that keep their names are listed, too: another standard key may be mapped to the same one.
    there = catalog.features
    catalog = rename_keys(catalog, {key: own for key, own in names.items() if key != own or own in there})
    hidden = set(catalog.camera_keys) - set(config.cameras) if config.cameras else set()
    hidden |= {STATE} if not config.state else set()
    if hidden:
        catalog = replace(catalog, features={key: f for key, f in catalog.features.items() if key not in hidden})
    vectors = {
        key: replace(catalog.features[key], is_vector=True) for key in (ACTION, STATE) if key in catalog.features
    }
    catalog = replace(catalog, features={**catalog.features, **vectors})
    for key in (ACTION, STATE):
        feature = catalog.features.get(key)
        if feature is None and key == STATE:
            continue
        if feature is None or len(feature.value_shape) != 1 or feature.is_text or feature.is_camera:
            what = "there is no such feature" if feature is None else f"it is {feature.dtype} of shape {feature.shape}"
            flag = "--data.action" if key == ACTION else "--data.state"
            fix = f"name it with {flag} KEY, or several joined by +; `understudy check` lists the features"
            raise DatasetError(f"a policy needs {key!r} as a vector: {what}", where=catalog.root, fix=fix)
    keys = tuple(key for key in (ACTION, STATE) if key in catalog.features)
    for camera, own in config.cameras.items():
        if camera not in catalog.camera_keys:
            known = ", ".join(catalog.camera_keys) or "none"
            raise DatasetError(f"{camera!r} is mapped to {own!r}, which is not a camera", where=catalog.root, fix=known)
    ids = catalog.episodes.ids
    for chosen, purpose in (
        (config.episodes, "use"),
        (config.exclude_episodes, "exclude"),
        (config.val_episodes, "validate on"),
    ):
        if len(unknown := difference(np.array(chosen, np.int64), ids)):
            what = f"there is no episode {unknown[0]} to {purpose}"
            raise DatasetError(what, where=catalog.root, fix=f"there are {describe_ids(ids)}, see `check`")
    for key in keys if config.delta_action_dims else ():
        width = catalog.features[key].value_shape[0]
        if max(config.delta_action_dims) >= width:
            what = f"delta_action_dims: {max(config.delta_action_dims)}: {key!r} has {width} dimensions, counted from 0"
            raise DatasetError(what, where=catalog.root, fix="list the dimensions that are differences from the state")
    if config.delta_action_dims and STATE not in keys:
        what = "delta_action_dims: differences from the state need a state, and there is none"
        raise DatasetError(what, where=catalog.root, fix="set `state` to its key")
    colors = tuple(key for key in catalog.camera_keys if not catalog.features[key].is_depth)
    return Source(config, catalog, keys, tuple(config.cameras) or colors)


def _check_cameras(
    config: SourceConfig, catalog: Catalog, cameras: Sequence[str], recorded: Mapping[str, Any] | None
) -> None:
    """Raise DatasetError for declared cameras without any video file, unless they are left out by name."""

    def used(camera: str) -> bool:
        if recorded is not None:  # the cameras were fixed when the run started
            return camera in recorded.get("cameras", ())
        return not config.cameras and (not cameras or camera in cameras)

    if lost := [camera for camera in catalog.cameras_without_files if used(camera)]:
        what = "; ".join(f"{camera} {catalog.skipped_features[camera]}" for camera in lost)
        others = " ".join(catalog.camera_keys) or NONE
        fix = f"restore the videos, set video_path to their place, or leave {'it' if len(lost) == 1 else 'them'} "
        raise DatasetError(what, where=catalog.root, fix=fix + f"out by name: --data.cameras {others}")


def _other_cameras(catalog: Catalog) -> str:
    """Return the flag with the cameras that hold RGB."""
    features = catalog.features
    colors = [key for key in catalog.camera_keys if features[key].channels in (3, None) and not features[key].is_depth]
    return f"list the cameras to use: --data.cameras {' '.join(colors) or NONE}"


@dataclass(frozen=True)
class SourceSplit:
    """Training and validation part of a source."""

    training: EpisodeDataset
    validation: EpisodeDataset | None
    notes: tuple[str, ...]
    """Notes on the selection."""
    skipped: tuple[int, ...]
    """Ids of the skipped incomplete episodes."""


def split_source(
    name: str,
    source: Source,
    config: TrainConfig,
    cameras: Sequence[str],
    sizes: Mapping[str, tuple[int, int]],
    recorded: Mapping[str, Any] | None = None,
    check_files: bool = True,
) -> SourceSplit:
    """Split a source into a training and a validation part.

    Args:
        name: name of the source.
        source: the source.
        config: settings of the run.
        cameras: the policy's cameras.
        sizes: (height, width) of those that some source lacks.
        recorded: see `open_source`.
        check_files: whether to look for missing files.

    Raises:
        DatasetError: images are not RGB, the selection is empty, episodes cannot be split, or files are missing.
    """
    settings, catalog = source.config, source.catalog
    own_cameras = [camera for camera in cameras if camera in source.cameras]
    _check_colors(catalog, own_cameras)
    options: dict[str, Any] = {
        "delta_timestamps": _windows(source, config, cameras),
        "keys": [*source.keys, *own_cameras],
        "missing_cameras": {camera: sizes[camera] for camera in cameras if camera not in own_cameras},
        "name": name,
        "response": settings.response if any(mixed.response for mixed in config.data.mixed()) else None,
    }
    _check_validation_episodes(settings, catalog)
    selection = Selection(
        episodes=settings.episodes or None,
        exclude_episodes=settings.exclude_episodes,
        where=settings.where or None,
        keep_ranges=settings.keep_ranges or None,
        keep_rule=settings.keep_rule,
        drop_n_first_frames=settings.drop_n_first_frames,
        drop_n_last_frames=settings.drop_n_last_frames,
    )
    usable = EpisodeDataset(catalog, select=selection, **options)
    ids = distinct(usable.segments[:, 0])
    skipped, notes = skip_incomplete(
        settings, catalog, ids, own_cameras, source.keys, config.data, recorded, check_files
    )
    trained, validated = _split_ids(ids, np.array(skipped, np.int64), source, config)
    if config.data.prompt_metadata:  # of each source the metadata that it has
        metadata = catalog.episode_metadata()
        options["prompt_metadata"] = [field for field in config.data.prompt_metadata if field in metadata]
    selection = replace(
        selection,
        exclude_episodes=None,
        where=None,
        frame_weights=settings.frame_weights or None,
        frame_weights_in=settings.frame_weights_in,
    )
    training = EpisodeDataset(catalog, select=replace(selection, episodes=trained), **options)
    held_out = replace(selection, episodes=validated)
    validation = EpisodeDataset(catalog, select=held_out, **options) if len(validated) else None
    depth = [key for key in catalog.camera_keys if catalog.features[key].is_depth]
    left_out = [f"{catalog.root}: {key} is depth, which policies do not take: left out" for key in depth]
    return SourceSplit(training, validation, (*usable.notes, *left_out, *notes), skipped)


def _check_colors(catalog: Catalog, cameras: Sequence[str]) -> None:
    """Raise DatasetError for a camera whose images are not RGB."""
    for camera in cameras:
        feature = catalog.features[camera]
        if feature.is_depth or feature.channels not in (3, None):
            problem = f"{camera!r} is depth" if feature.is_depth else f"{camera!r} has {feature.channels} channels"
            raise DatasetError(f"{problem}, a policy takes RGB", where=catalog.root, fix=_other_cameras(catalog))


def _windows(source: Source, config: TrainConfig, cameras: Sequence[str]) -> dict[str, list[float]]:
    """Windows of the policy's inputs and targets: key -> seconds around the frame."""
    fps, learns = source.catalog.fps, config.learns_dynamics()
    if learns and STATE not in source.keys:
        problem = f"mode: future states are trained, which needs {STATE!r}, and there is none"
        raise DatasetError(problem, where=source.catalog.root, fix="set `state` to its key, or mode to policy")
    steps = [i / fps for i in range(config.data.actions_per_chunk + 1)]
    before = [-i / fps for i in range(config.policy.past_actions, 0, -1)]
    windows = {ACTION: [*before, *steps[:-1]]} | ({STATE: steps} if learns else {})
    image_times, state_times = seen_times(config.policy, fps)
    windows |= {camera: list(image_times) for camera in cameras if image_times}
    windows |= {STATE: list(state_times)} if state_times and STATE in source.keys else {}
    if learns and (ahead := config.policy.images_ahead(config.data.actions_per_chunk)):
        windows |= {camera: [0.0, *(steps[frames] for frames in ahead)] for camera in cameras}
    return windows


def _split_ids(
    ids: np.ndarray, skipped: np.ndarray, source: Source, config: TrainConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the training and of the validation episodes, without the skipped ones."""
    settings, root = source.config, source.catalog.root
    ids = difference(ids, skipped)
    if settings.val_episodes:
        validated = difference(np.array(settings.val_episodes, np.int64), skipped)
        trained = difference(ids, validated)
        if len(trained) == 0:
            problem = "val_episodes contains all episodes that are used"
            raise DatasetError(problem, where=root, fix="leave some to train on")
        return trained, validated
    fraction = config.data.val_fraction if settings.val_fraction is None else settings.val_fraction
    try:
        return split_episodes(ids, fraction)
    except DatasetError as error:
        fix = "set val_fraction to 0 (--data.val-fraction 0, or in its source), or use more episodes"
        raise DatasetError(error.what, where=root, fix=fix) from error


def _check_validation_episodes(wanted: SourceConfig, catalog: Catalog) -> None:
    """Raise DatasetError if the condition `where` does not hold for a validation episode."""
    if not wanted.where or not wanted.val_episodes:
        return
    ids = catalog.episodes.ids[matching_rows(catalog, wanted.where)]
    if len(lost := difference(np.array(wanted.val_episodes, np.int64), ids)):
        what = f"where is {wanted.where!r}, which does not hold for episode {lost[0]} of val_episodes"
        raise DatasetError(what, where=catalog.root, fix="take it out of val_episodes")


def check_disjoint(
    names: Sequence[str], training: Sequence[EpisodeDataset], validation: Sequence[EpisodeDataset | None]
) -> None:
    """Raise DatasetError if one source trains on a validation episode of another source of the same dataset."""
    sharing: dict[str, list[int]] = {}
    for number, part in enumerate(training):
        root = part.catalog.root
        sharing.setdefault(root if "://" in root else os.path.realpath(root), []).append(number)

    def episodes(part: EpisodeDataset | None) -> np.ndarray:
        return part.segments[:, 0] if part is not None else np.empty(0, np.int64)

    for numbers in sharing.values():  # of one dataset
        trained, validated = (np.concatenate([episodes(of[n]) for n in numbers]) for of in (training, validation))
        if len(both := common(trained, validated)):
            i, j = (next(n for n in numbers if both[0] in episodes(of[n])) for of in (validation, training))
            what = f"episode {both[0]} is a validation episode of source {names[i]} and trained on in {names[j]}"
            fix = f"{len(both)} such episodes: set the same val_episodes in both, or other episodes in each"
            raise DatasetError(what, where=training[i].catalog.root, fix=fix)


def recorded_sizes(sources: Sequence[Source], cameras: Sequence[str]) -> dict[str, set[tuple[int, int] | None]]:
    """Return the (height, width) of each camera in the sources that have it; None where a dataset has no size."""
    return {
        camera: {source.catalog.features[camera].size for source in sources if camera in source.cameras}
        for camera in cameras
    }


def common_image_size(
    sources: Sequence[Source],
    sizes: Mapping[str, set[tuple[int, int] | None]],
    seen: tuple[int, int],
    resize: Resize | None = None,
) -> tuple[tuple[int, int] | None, dict[str, tuple[int, int]]]:
    """Return the size to which the loader resizes images, None if it does not, and the size of each camera after that.

    Sources whose images of one camera differ in size cannot share a batch without resizing. They are resized to the
    network's size (`seen`) in the policy's way, so that no image is resized twice, and a source of a mixture has the
    images that it has alone.

    Args:
        sources: the sources.
        sizes: those of the policy's cameras (`recorded_sizes`).
        seen: (height, width) of the network's images.
        resize: the policy's way of resizing (`PolicySettings.resize`); None: area averaging.

    Raises:
        DatasetError: images that are not video would need resizing, which the loader does not do.
    """
    if len(sources) > 1 and any(len(each) > 1 or None in each for each in sizes.values()):
        for source in sources:
            for camera in source.cameras:
                feature = source.catalog.features[camera]
                if camera in sizes and not feature.is_video and feature.size != seen:
                    what = f"{camera!r} is stored in the rows, where images are not resized, and images of other "
                    what += "sources have another size"
                    fix = "leave the camera out with data.cameras, or record it as video"
                    fix = fix if resize else "set policy.image_size to its size, or " + fix
                    raise DatasetError(what, where=source.catalog.root, fix=fix)
        return seen if resize is None else ImageSize(seen, resize), dict.fromkeys(sizes, seen)
    return None, {camera: size for camera, each in sizes.items() for size in each if size is not None}


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
