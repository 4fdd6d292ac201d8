"""One source of a run: its dataset under standard keys, checked against what a policy needs, and cut into two parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from understudy.batch_keys import ACTION, STATE
from understudy.config.data import NONE, SourceConfig
from understudy.config.train import TrainConfig
from understudy.data.dataset import EpisodeDataset
from understudy.data.format.catalog import Catalog
from understudy.data.format.episode_table import describe_ids
from understudy.data.format.rename import rename_keys
from understudy.data.selection.select import split_episodes
from understudy.data.stats.head_name import head_name
from understudy.errors import DatasetError
from understudy.train.data.incomplete import left_out


@dataclass(frozen=True)
class Source:
    """A dataset that a policy can learn from."""

    wanted: SourceConfig
    catalog: Catalog
    """In standard keys."""
    keys: tuple[str, ...]
    """`action`, and `observation.state` where it has one."""
    cameras: tuple[str, ...]
    """Standard keys of the cameras that it has."""

    def head(self, name: str) -> str:
        """The norm head of this source, which is called `name`."""
        return head_name(self.wanted.robot_type or self.catalog.robot_type, self.wanted.control_mode, name)


Begun = Mapping[str, Mapping[str, Any]]
"""What order.json says of each source of a run that goes on, by name."""


def opened(
    wanted: SourceConfig, catalog: Catalog, cameras: Sequence[str] = (), begun: Mapping[str, Any] | None = None
) -> Source:
    """The source, looked at in its metadata alone.

    Args:
        cameras: that the policy is to see, all where none is named (`data.cameras`).
        begun: what order.json says of it, where the run goes on.
    Raises:
        DatasetError: keys, episodes, dimensions or videos that are not there; an action or state that is no vector.
    """
    _check_cameras(wanted, catalog, cameras, begun)
    names = {ACTION: wanted.action} | ({STATE: wanted.state} if wanted.state else {}) | wanted.cameras
    # A key that keeps its name is named, too: another standard key may be mapped to the same one.
    there = catalog.features
    catalog = rename_keys(catalog, {key: own for key, own in names.items() if key != own or own in there})
    hidden = set(catalog.camera_keys) - set(wanted.cameras) if wanted.cameras else set()
    hidden |= {STATE} if not wanted.state else set()
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
            raise DatasetError(f"a policy needs {key!r} as a vector: {what}", where=catalog.root, fix="see `inspect`")
    keys = tuple(key for key in (ACTION, STATE) if key in catalog.features)
    for camera, own in wanted.cameras.items():
        if camera not in catalog.camera_keys:
            known = ", ".join(catalog.camera_keys) or "none"
            raise DatasetError(f"{camera!r} is mapped to {own!r}, which is no camera", where=catalog.root, fix=known)
    ids = catalog.episodes.ids
    for chosen, what_for in (
        (wanted.episodes, "use"),
        (wanted.exclude_episodes, "exclude"),
        (wanted.val_episodes, "hold out"),
    ):
        if len(strangers := np.setdiff1d(np.array(chosen, np.int64), ids)):
            what = f"there is no episode {strangers[0]} to {what_for}"
            raise DatasetError(what, where=catalog.root, fix=f"there are {describe_ids(ids)}, see `inspect`")
    for key in keys if wanted.delta else ():
        width = catalog.features[key].value_shape[0]
        if max(wanted.delta) >= width:
            what = f"delta names dimension {max(wanted.delta)}, and {key!r} has {width}, counted from 0"
            raise DatasetError(what, where=catalog.root, fix="give the dimensions that are differences to the state")
    if wanted.delta and STATE not in keys:
        what = "delta: actions that are differences to the state need one, and there is none"
        raise DatasetError(what, where=catalog.root, fix="name its key with `state`")
    return Source(wanted, catalog, keys, tuple(wanted.cameras) or catalog.camera_keys)


def _check_cameras(
    wanted: SourceConfig, catalog: Catalog, cameras: Sequence[str], begun: Mapping[str, Any] | None
) -> None:
    """Raise DatasetError for declared cameras without any video file that are not left out by name."""

    def used(camera: str) -> bool:
        if begun is not None:  # what the policy sees was decided then
            return camera in begun.get("cameras", ())
        return not wanted.cameras and (not cameras or camera in cameras)

    if lost := [camera for camera in catalog.cameras_without_files if used(camera)]:
        said = "; ".join(f"{camera} {catalog.skipped_features[camera]}" for camera in lost)
        others = " ".join(catalog.camera_keys) or NONE
        fix = f"restore the videos, say where they lie with video_path, or leave {'it' if len(lost) == 1 else 'them'} "
        raise DatasetError(said, where=catalog.root, fix=fix + f"out by name: --data.cameras {others}")


@dataclass(frozen=True)
class Parts:
    """What of a source is used: `notes` on the selection; ids of the incomplete episodes that are left out."""

    training: EpisodeDataset
    held_out: EpisodeDataset | None
    notes: tuple[str, ...]
    skipped: tuple[int, ...]


def parts(
    name: str,
    source: Source,
    config: TrainConfig,
    cameras: Sequence[str],
    shown: Mapping[str, tuple[int, int]],
    begun: Mapping[str, Any] | None = None,
    look: bool = True,
) -> Parts:
    """What of a source is trained on, what is held out (None: nothing), and notes on the selection of both.

    Args:
        cameras: that the policy sees. shown: (height, width) of those that some source lacks.
        begun: see `opened`. look: for files that are not there.
    Raises:
        DatasetError: pictures that a policy cannot see, a selection that leaves nothing, episodes that cannot be split,
            files that are not there.
    """
    wanted, catalog = source.wanted, source.catalog
    own = [camera for camera in cameras if camera in source.cameras]
    for camera in own:
        if (channels := catalog.features[camera].channels) not in (3, None):
            what = f"{camera!r} has {channels} channels, a policy sees RGB"
            raise DatasetError(what, where=catalog.root, fix="name the cameras to use in data.cameras")
    if config.learns_dynamics() and STATE not in source.keys:
        what = f"mode: the states that follow are to be learnt, which needs {STATE!r}, and there is none"
        raise DatasetError(what, where=catalog.root, fix="name its key with `state`, or set mode to policy")
    steps = [i / catalog.fps for i in range(config.data.chunk + 1)]
    windows = {ACTION: steps[:-1]} | ({STATE: steps} if config.learns_dynamics() else {})
    options: dict[str, Any] = {
        "delta_timestamps": windows,
        "keys": [*source.keys, *own],
        "missing_cameras": {camera: shown[camera] for camera in cameras if camera not in own},
        "drop_n_first_frames": wanted.drop_first,
        "drop_n_last_frames": wanted.drop_last,
        "keep_ranges": wanted.keep or None,
        "keep_rule": wanted.keep_rule,
        "name": name,
    }
    usable = EpisodeDataset(
        catalog, episodes=wanted.episodes or None, exclude_episodes=wanted.exclude_episodes, **options
    )
    ids = np.unique(usable.segments[:, 0])
    skipped, notes = left_out(wanted, catalog, ids, own, config.data, begun, look)
    ids = np.setdiff1d(ids, np.array(skipped, np.int64))
    if wanted.val_episodes:
        held = np.setdiff1d(np.array(wanted.val_episodes, np.int64), np.array(skipped, np.int64))
        trained = np.setdiff1d(ids, held)
        if len(trained) == 0:
            what = "val_episodes hold out all episodes that are used"
            raise DatasetError(what, where=catalog.root, fix="leave some to train on")
    else:
        fraction = config.data.val_fraction if wanted.val_fraction is None else wanted.val_fraction
        try:
            trained, held = split_episodes(ids, fraction)
        except DatasetError as error:
            fix = "set val_fraction to 0 (--data.val-fraction 0, or in its source), or use more episodes"
            raise DatasetError(error.what, where=catalog.root, fix=fix) from error
    training = EpisodeDataset(catalog, episodes=trained, **options)
    held_out = EpisodeDataset(catalog, episodes=held, **options) if len(held) else None
    return Parts(training, held_out, (*usable.notes, *notes), skipped)


def picture_size(
    sources: Sequence[Source], cameras: Sequence[str], seen: tuple[int, int]
) -> tuple[tuple[int, int] | None, dict[str, tuple[int, int]]]:
    """What pictures are resized to when they are loaded, None where they stay; and (height, width) of each camera then.

    Sources whose pictures of one camera differ in size share no batch unless they are resized: to what the network
    sees (`seen`), so that nothing is resized twice.

    Raises:
        DatasetError: pictures that are no video would have to be resized, which the loader does not do.
    """
    sizes = {
        camera: {source.catalog.features[camera].size for source in sources if camera in source.cameras}
        for camera in cameras
    }
    if len(sources) > 1 and any(len(each) > 1 or None in each for each in sizes.values()):
        for source in sources:
            for camera in source.cameras:
                feature = source.catalog.features[camera]
                if camera in cameras and not feature.is_video and feature.size != seen:
                    what = f"{camera!r} is stored in the rows, where pictures are not resized, and those of other "
                    what += "sources have another size"
                    fix = "set policy.picture to its size, or leave the camera out with data.cameras"
                    raise DatasetError(what, where=source.catalog.root, fix=fix)
        return seen, dict.fromkeys(cameras, seen)
    return None, {camera: size for camera, each in sizes.items() for size in each if size is not None}
