"""What a run reads: its sources split by episode, the order over their training parts, and how to know them again.

Opened the same way by `train`, `resume`, `validate` and the report; one dataset is a mixture of one. All that is wrong
with any source is told at once.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from understudy.batch_keys import ACTION, STATE
from understudy.bytesize import parse_bytes
from understudy.config.data import NONE
from understudy.config.train import TrainConfig
from understudy.data.dataset import EpisodeDataset
from understudy.data.format.catalog import Catalog
from understudy.data.format.rename import suggest_key
from understudy.data.stats.external import read_stats_file
from understudy.data.stats.norm_heads import Member, compute_normalisation
from understudy.data.stats.normalization import Mode, Statistics
from understudy.errors import DatasetError, SourceError
from understudy.load.loader import Loader
from understudy.load.mixture import Mixture
from understudy.order import Order
from understudy.policies.registry import policy_type
from understudy.storage.options import RemoteOptions
from understudy.train.data.fingerprint import digests
from understudy.train.data.sources import Begun, Parts, Source, opened, parts, picture_size
from understudy.train.precision import compute_dtype
from understudy.train.step import apply_augmentation

_T = TypeVar("_T")


@dataclass(frozen=True)
class RunData:
    """A run's data, opened. Tuples have one entry per source, in the sequence of the settings."""

    names: tuple[str, ...]
    """What the sources are called: each has a name of its own."""
    training: tuple[EpisodeDataset, ...]
    held_out: tuple[EpisodeDataset | None, ...]
    """None where nothing of a source is held out."""
    heads: tuple[str, ...]
    """Names of the norm heads, sorted."""
    head_of_source: np.ndarray
    """int64 [sources]: which of `heads` each source is normalised by."""
    weights: tuple[float, ...]
    """Share of each source in the samples, on any scale."""
    cameras: tuple[str, ...]
    """Standard keys of the cameras that the policy sees."""
    size: tuple[int, int] | None
    """(height, width) that pictures are resized to when they are loaded, where those of the sources differ in size."""
    delta: tuple[tuple[int, ...], ...]
    """Dimensions of the action that are learnt as differences to the state."""
    stats: tuple[str, ...]
    """Files of recorded statistics, "" where they are computed."""
    notes: tuple[tuple[str, ...], ...] = ()
    """What there is to know of the selections: what keep-ranges matched and left, which episodes are incomplete."""
    skipped: tuple[tuple[int, ...], ...] = ()
    """Ids of the incomplete episodes that are left out."""

    def order(self, config: TrainConfig) -> Order:
        """The order of a new run, however much memory it takes (`pace.new_order` makes the one that fits)."""
        return Order.from_datasets(
            self.training, batch_size=config.batch, seed=config.seed, **self.order_options(config)
        )

    def order_options(self, config: TrainConfig) -> dict[str, Any]:
        """How the order walks through the sources, as `Order.from_datasets` takes it."""
        return {
            "weights": self.weights,
            "frames_in_flight": config.data.frames_in_flight,
            "mode": config.data.order,
        }

    def metadata(self) -> dict[str, Any]:
        """Facts about the robots for an exported policy: per norm head names of dimensions, cameras, fps.

        Of a head with several sources it has those of the first one.
        """
        heads = {}
        for number, head in enumerate(self.heads):
            first = int(np.flatnonzero(self.head_of_source == number)[0])
            part = self.training[first]
            features = part.catalog.features
            heads[head] = {
                "sources": [name for name, own in zip(self.names, self.head_of_source) if own == number],
                "fps": part.catalog.fps,
                "action_names": features[ACTION].dimension_names,
                "state_names": features[STATE].dimension_names if STATE in part.keys else [],
                "cameras": [camera for camera in self.cameras if camera not in part.missing_cameras],
            }
        return {"fps": self.training[0].catalog.fps, "heads": heads}

    def policy_config(self, config: TrainConfig) -> Any:
        """The policy for this data: its cameras, the widest state and action, and the chosen network."""
        return policy_type(config.policy.type).make_config(
            config.policy,
            action_dim=max(_width(part, ACTION) for part in self.training),
            state_dim=max(_width(part, STATE) for part in self.training),
            cameras=self.cameras,
            chunk=config.data.chunk,
            compute=compute_dtype(config.precision),
            future=config.learns_dynamics(),
        )


def _width(dataset: EpisodeDataset, key: str) -> int:
    return dataset.catalog.features[key].value_shape[0] if key in dataset.keys else 0


def open_data(config: TrainConfig, begun: Begun | None = None, look: bool = True) -> RunData:
    """Open the sources of `config`: windows of `data.chunk` actions, whole episodes held out.

    A split depends on the episode ids of its source alone, so runs with different seeds are judged on the same
    episodes, and adding episodes moves none of the old ones.

    Args:
        begun: what order.json says of the sources of a run that goes on: what it left out is left out again.
        look: for files that are missing. One of a run's processes does it for all.
    Raises:
        DatasetError: a source cannot be read, or lacks what a policy needs; of several sources all are told.
    """
    data = config.data
    wanted, wrong = data.mixed(), dict[str, DatasetError]()
    remote = RemoteOptions(cache=data.cache, cache_bytes=parse_bytes(data.cache_size))
    catalogs: dict[tuple[str, ...], Catalog] = {}  # several sources may be parts of one dataset
    names = data.names()
    known = [None if begun is None else begun.get(name, {}) for name in names]

    def catalog_of(number: int) -> Source:
        one = wanted[number]
        place = one.root, one.video_path, one.data_path, one.version
        if place not in catalogs:
            told = {"video_path": one.video_path, "data_path": one.data_path, "version": one.version}
            catalogs[place] = Catalog.open(one.root, remote, **{name: text or None for name, text in told.items()})
        return opened(one, catalogs[place], data.cameras, known[number])

    found = _each(names, catalog_of, wrong)
    sources = [source for source in found if source is not None]
    if not sources:
        raise _told(wrong, len(names))
    try:
        cameras = _cameras(data.cameras, sources)
        size, shown = picture_size(sources, cameras, config.policy.picture)
    except DatasetError as error:
        raise _told(wrong, len(names)) if wrong else error from None  # the source with that camera may be among them

    def split(number: int) -> Parts:
        source = found[number]
        assert source is not None
        return parts(names[number], source, config, cameras, shown, known[number], look)

    cut = [one for one in _each(names, split, wrong) if one is not None]
    without = [name for name, source in zip(names, found) if source is not None and STATE not in source.keys]
    if 0 < len(without) < len(sources):
        what = f"it has no {STATE!r}, which others have"
        fix = "name its key with `state`, or leave it out of all sources with an empty one"
        wrong.update((name, DatasetError(what, fix=fix)) for name in without if name not in wrong)
    if wrong:
        raise _told(wrong, len(names))
    training, held_out = tuple(one.training for one in cut), tuple(one.held_out for one in cut)
    _check_apart(names, training, held_out)
    try:
        Mixture.from_datasets(training)
    except ValueError as error:
        raise DatasetError(str(error)) from error
    own = [source.head(name) for name, source in zip(names, sources)]
    heads = sorted(set(own))
    return RunData(
        names=names,
        training=training,
        held_out=held_out,
        heads=tuple(heads),
        head_of_source=np.array([heads.index(head) for head in own], np.int64),
        weights=tuple(float(source.weight or len(part)) for source, part in zip(wanted, training)),
        cameras=cameras,
        size=size,
        delta=tuple(source.delta for source in wanted),
        stats=tuple(source.stats for source in wanted),
        notes=tuple(one.notes for one in cut),
        skipped=tuple(one.skipped for one in cut),
    )


def _cameras(chosen: tuple[str, ...], sources: Sequence[Source]) -> tuple[str, ...]:
    """Standard keys of the cameras that the policy sees: those chosen, or all.

    A single dataset's come in its own sequence; those of several sorted, whatever the sequence of the sources.
    """
    known = tuple(dict.fromkeys(camera for source in sources for camera in source.cameras))
    if len(sources) > 1:
        known = tuple(sorted(known))
    if chosen == (NONE,):
        return ()
    for camera in chosen:
        if camera not in known:
            where = sources[0].catalog.root if len(sources) == 1 else "the sources"
            why = next(
                (
                    f", which {s.catalog.skipped_features[camera]}"
                    for s in sources
                    if camera in s.catalog.skipped_features
                ),
                "",
            )
            fix = f"its cameras: {', '.join(known) or 'none'}; `cameras` of a source gives one another name"
            raise DatasetError(
                f"there is no camera {camera!r}{why or suggest_key(camera, known)}", where=where, fix=fix
            )
    return chosen or known


def _each(labels: Sequence[str], work: Callable[[int], _T], wrong: dict[str, DatasetError]) -> list[_T | None]:
    """`work` for each source with which nothing is wrong yet; what is wrong now goes to `wrong`, None to its place."""
    done: list[_T | None] = []
    for number, label in enumerate(labels):
        found = None
        if label not in wrong:
            try:
                found = work(number)
            except SourceError:
                raise  # no answer says nothing about the settings
            except DatasetError as error:
                wrong[label] = error
        done.append(found)
    return done


def _told(wrong: dict[str, DatasetError], count: int) -> DatasetError:
    """What is wrong with the sources, of `count`, as one error."""
    if count == 1:
        return next(iter(wrong.values()))
    lines = [f"source {label}: {error}" for label, error in wrong.items()]
    if len(lines) == 1:
        return DatasetError(lines[0])
    return DatasetError("\n".join([f"{len(lines)} of {count} sources cannot be used", *(f"  {e}" for e in lines)]))


def _check_apart(
    names: Sequence[str], training: Sequence[EpisodeDataset], held: Sequence[EpisodeDataset | None]
) -> None:
    """Raise DatasetError where sources share a dataset and one trains on an episode that another holds out."""
    sharing: dict[str, list[int]] = {}
    for number, part in enumerate(training):
        root = part.catalog.root
        sharing.setdefault(root if "://" in root else os.path.realpath(root), []).append(number)

    def episodes(part: EpisodeDataset | None) -> np.ndarray:
        return part.segments[:, 0] if part is not None else np.empty(0, np.int64)

    for numbers in sharing.values():  # of one dataset
        trained, kept_out = (np.concatenate([episodes(of[n]) for n in numbers]) for of in (training, held))
        if len(both := np.intersect1d(trained, kept_out)):
            i, j = (next(n for n in numbers if both[0] in episodes(of[n])) for of in (held, training))
            what = f"episode {both[0]} is held out in source {names[i]} and trained on in {names[j]}"
            fix = f"{len(both)} such episodes: name the same val_episodes in both, or other episodes in each"
            raise DatasetError(what, where=training[i].catalog.root, fix=fix)


def normalisation(data: RunData, mode: Mode, cache: Path | None = None) -> dict[str, Any]:
    """What the policy scales its inputs and outputs by, per head, from the training episodes alone.

    Args:
        cache: folder that keeps what was computed; None keeps nothing.
    Raises:
        DatasetError: a value is not finite, held-out episodes included; names episode and dimension. Sources of one
            head differ in width.
    """
    wrong: dict[str, DatasetError] = {}

    def recorded(number: int) -> Mapping[str, Statistics] | None:
        path, part = data.stats[number], data.training[number]
        return read_stats_file(path, mode, part, data.delta[number]) if path else None

    found = _each(data.names, recorded, wrong)
    if wrong:
        raise _told(wrong, len(data.names))
    members = [
        Member(part, data.heads[data.head_of_source[number]], data.delta[number], found[number])
        for number, part in enumerate(data.training)
    ]
    chunk = data.training[0].windows[ACTION]
    return compute_normalisation(members, mode, chunk, cache, [other for other in data.held_out if other is not None])


def fingerprint(data: RunData) -> dict[str, Any]:
    """What makes the datasets those a run was started on, by name, so that a change can be told by name.

    No data or video file is read; those are looked at by `file_digests`. What is said of a source of several bears its
    name in front.
    """
    if len(data.names) == 1:
        return _fingerprint(data.training[0], data.held_out[0])
    found: dict[str, Any] = {}
    for number, name in enumerate(data.names):
        own = _fingerprint(data.training[number], data.held_out[number])
        own["norm head"] = data.heads[data.head_of_source[number]]
        found |= {f"{name}: {what}": value for what, value in own.items()}
    return found


def _fingerprint(training: EpisodeDataset, held_out: EpisodeDataset | None) -> dict[str, Any]:
    catalog = training.catalog
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
        "held-out episodes": _digest(held_out.segments.tobytes() if held_out is not None else b""),
    }


def file_digests(data: RunData, cache: Path | None = None) -> dict[str, list[str] | None]:
    """What stands in the data and video files of a run, by kind; see `fingerprint.py`. cache: as in `normalisation`."""
    found: dict[str, list[str] | None] = {}
    for name, training, held_out in zip(data.names, data.training, data.held_out, strict=True):
        parts = [part for part in (training, held_out) if part is not None]
        own = digests(parts, [camera for camera in data.cameras if camera not in training.missing_cameras], cache)
        found |= {f"{name}: {kind}" if len(data.names) > 1 else kind: digest for kind, digest in own.items()}
    return found


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def first_batch(config: TrainConfig, begun: Begun | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The batch of step 0 as the policy gets it, and the names of its cameras; for the eye. begun: see `open_data`."""
    data = open_data(config, begun, look=False)
    with Loader(data.training, order=data.order(config), num_threads=1, image_size=data.size) as loader:
        return apply_augmentation(next(loader), data.cameras, config.augment, config.seed), data.cameras
