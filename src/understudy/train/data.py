"""What a run reads: the dataset split by episode, the order over its training part, and how to know it again.

Opened the same way by `train`, `resume`, `validate` and the report. Not here: batches (`load`), how statistics are
computed (`data/normalize.py`).
"""

import hashlib
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from understudy.data.catalog import Catalog
from understudy.data.errors import DatasetError
from understudy.data.normalize import Mode, Statistics, offset_and_spread, statistics
from understudy.data.remote.settings import Remote
from understudy.data.samples import EpisodeDataset
from understudy.data.select import split_episodes
from understudy.load.loader import Loader
from understudy.load.sizes import parse_bytes
from understudy.order import Order
from understudy.policies.flow_policy import ACTION, STATE, FlowPolicyConfig
from understudy.train.config import TrainConfig
from understudy.train.precision import arithmetic
from understudy.train.step import augmented


@dataclass(frozen=True)
class RunData:
    """A run's data, opened."""

    catalog: Catalog
    cameras: tuple[str, ...]
    training: EpisodeDataset
    held_out: EpisodeDataset | None
    """None when nothing is held out."""

    def order(self, config: TrainConfig) -> Order:
        """The order of a new run."""
        return Order.of(
            [self.training],
            batch=config.batch,
            seed=config.seed,
            frames_in_flight=config.data.frames_in_flight,
            mode=config.data.order,
        )

    def policy_config(self, config: TrainConfig) -> FlowPolicyConfig:
        """The policy for this dataset: its cameras, the width of its state and action, and the chosen network."""
        features = self.catalog.features
        state = features.get(STATE)
        network = {f.name: getattr(config.policy, f.name) for f in fields(config.policy) if f.name != "draws"}
        return FlowPolicyConfig(
            action_dim=features[ACTION].value_shape[0],
            state_dim=state.value_shape[0] if state is not None else 0,
            cameras=self.cameras,
            chunk=config.data.chunk,
            compute=arithmetic(config.precision),
            **network,
        )


def open_data(config: TrainConfig) -> RunData:
    """Open the dataset of `config`: windows of `data.chunk` actions, whole episodes held out by `data.val_fraction`.

    The split depends on the episode ids alone, so runs with different seeds are judged on the same episodes, and adding
    episodes moves none of the old ones.

    Raises:
        DatasetError: the dataset cannot be read, or lacks what a policy needs.
    """
    remote = Remote(cache=config.data.cache, cache_bytes=parse_bytes(config.data.cache_size))
    catalog = Catalog.open(config.data.root, remote)
    for key in (ACTION, STATE):
        feature = catalog.features.get(key)
        if feature is None and key == STATE:
            continue
        if feature is None or len(feature.value_shape) != 1 or feature.is_text:
            what = "there is no such feature" if feature is None else f"it is {feature.dtype} of shape {feature.shape}"
            raise DatasetError(f"a policy needs {key!r} as a vector: {what}", where=catalog.root, fix="see `inspect`")
    windows = {ACTION: [i / catalog.fps for i in range(config.data.chunk)]}
    cameras = config.data.cameras or catalog.camera_keys
    for camera in cameras:
        if camera not in catalog.camera_keys:
            known = ", ".join(catalog.camera_keys) or "none"
            raise DatasetError(f"there is no camera {camera!r}", where=catalog.root, fix=f"its cameras: {known}")
        if (channels := catalog.features[camera].channels) not in (3, None):
            what = f"{camera!r} has {channels} channels, a policy sees RGB"
            raise DatasetError(what, where=catalog.root, fix="name the cameras to use in data.cameras")
    keys = [ACTION, *((STATE,) if STATE in catalog.features else ()), *cameras]
    ids, exclude = catalog.episodes.ids, np.array(config.data.exclude_episodes, np.int64)
    if len(strangers := np.setdiff1d(exclude, ids)):
        what = f"there is no episode {strangers[0]} to exclude"
        raise DatasetError(what, where=catalog.root, fix=f"its episodes: {ids[0]} to {ids[-1]}, see `inspect`")
    trained, held = split_episodes(np.setdiff1d(ids, exclude), config.data.val_fraction)

    def part(episodes: np.ndarray) -> EpisodeDataset:
        return EpisodeDataset(catalog, delta_timestamps=windows, episodes=episodes, keys=keys)

    return RunData(catalog, cameras, part(trained), part(held) if len(held) else None)


def normalisation(data: RunData, mode: Mode) -> dict[str, dict[str, list[float]]]:
    """Offset and spread of action and state by key, from the training episodes alone; as `FlowPolicy` takes them.

    Raises:
        DatasetError: a value is not finite, held-out episodes included; names episode and dimension.
    """
    if data.held_out is not None:
        _statistics(data.catalog, data.held_out.segments)  # for its errors alone: one NaN is the loss of them all
    maps = {key: offset_and_spread(s, mode) for key, s in _statistics(data.catalog, data.training.segments).items()}
    return {key: {name: array.tolist() for name, array in each.items()} for key, each in maps.items()}


def _statistics(catalog: Catalog, rows: np.ndarray) -> dict[str, Statistics]:
    """Of action and state over `rows`, int64 (K, 3) segments."""
    keys = [key for key in (ACTION, STATE) if key in catalog.features]
    plain_rows = EpisodeDataset(catalog, episodes=np.unique(rows[:, 0]), keys=keys)
    columns: dict[str, list[np.ndarray]] = {key: [] for key in (*keys, "episode_index")}
    for episode, start, stop in rows.tolist():
        batch = plain_rows.batch(np.full(stop - start, episode), np.arange(start, stop))
        for key, values in columns.items():
            values.append(batch[key].numpy())
    joined = {key: np.concatenate(values) for key, values in columns.items()}
    index = joined.pop("episode_index")
    return statistics(joined, index, np.unique(index))


def fingerprint(data: RunData) -> dict[str, Any]:
    """What makes the dataset the one a run was started on, by name, so that a change can be told by name.

    The recorded values themselves are covered by their statistics in `meta/`; no data or video file is read.
    """
    catalog = data.catalog
    features = {key: [feature.dtype, list(feature.shape)] for key, feature in catalog.features.items()}
    recorded = [f for f in ("meta/stats.json", "meta/episodes_stats.jsonl") if catalog.files.exists(f)]
    return {
        "format": catalog.version,
        "fps": catalog.fps,
        "episodes": len(catalog.episodes),
        "frames": int(catalog.episodes.frames),
        "lengths of the episodes": _digest(np.stack([catalog.episodes.ids, catalog.episodes.lengths]).tobytes()),
        "tasks": _digest(repr(catalog.tasks).encode()),
        "features": _digest(repr(sorted(features.items())).encode()),
        "recorded statistics": _digest(*(catalog.files.read(f) for f in recorded)),
        "held-out episodes": _digest(data.held_out.segments.tobytes() if data.held_out is not None else b""),
    }


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def first_batch(config: TrainConfig) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The batch of step 0 as the policy gets it, and the names of its cameras; for the eye."""
    data = open_data(config)
    with Loader([data.training], order=data.order(config), threads=1) as loader:
        return augmented(next(loader), data.cameras, config.augment, config.seed), data.cameras
