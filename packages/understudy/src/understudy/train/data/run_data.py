"""Data of a run: its sources split by episode, the order over their training parts, and their
fingerprint.

`train`, `resume`, `validate` and the report open it in the same way; one dataset is a mixture of
one. The errors of all sources are reported at once.
"""

import hashlib
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import nlargest
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from understudy.config.data import NONE, DataConfig
from understudy.config.train import LoaderConfig, TrainConfig
from understudy.distributed.mesh import Mesh
from understudy.policies.capabilities.images import fit_images, resize_of
from understudy.policies.registry import policy_type
from understudy.train.augment_batch import apply_augmentation
from understudy.train.data.source_faults import check_heads, join_errors
from understudy.train.data.sources import (
    RecordedSources,
    Source,
    SourceSplit,
    common_image_size,
    open_source,
    recorded_sizes,
    with_view,
)
from understudy.train.precision import compute_dtype
from understudy_base import (
    ACTION,
    MOST_LOADER_THREADS,
    PROMPT_METADATA,
    STATE,
    ConfigError,
    DataAccessError,
    DatasetError,
    Record,
    fair_threads,
    is_wrong_input,
    parse_bytes,
    split_view,
)
from understudy_data import (
    Catalog,
    Catalogs,
    EpisodeDataset,
    EpisodeSplit,
    HeadMember,
    Instructions,
    Loader,
    Mixture,
    Order,
    PromptMetadata,
    RemoteOptions,
    StandardKeys,
    UsedFiles,
    choose_order,
)
from understudy_kit import SourceConfig

_T = TypeVar("_T")


@dataclass(frozen=True)
class RunSource:
    """One opened source of a run, or an update of one: episodes that were appended to it."""

    number: int
    """Place among the sources of the run. Updates come last."""
    name: str
    """Unique among the sources of the run."""
    training: EpisodeDataset
    apart: EpisodeDataset | None
    """Episodes that the split takes from training, None without any. Those of updates are not
    validated on, either, so that figures of a run compare.
    """
    head: str
    """Name of its norm head."""
    weight: float
    """Share of the samples, on any scale."""
    delta: tuple[int, ...]
    """Action dimensions that are learned as differences from the state."""
    stats: str
    """File of external statistics, "" where they are computed."""
    notes: tuple[str, ...]
    """Notes on the selection: matches of keep-ranges, incomplete episodes."""
    skipped: tuple[int, ...]
    """Ids of the skipped bad episodes."""
    of: int
    """Number of the source that it is an update of; its own if of none."""
    span: tuple[int, int]
    """First and last episode id of its part of the dataset."""

    @property
    def is_update(self) -> bool:
        """Whether it is an update of another source."""
        return self.of != self.number

    @property
    def validation(self) -> EpisodeDataset | None:
        """Its validation part; None without validation episodes, and for an update."""
        return None if self.is_update else self.apart

    def entry(self, cameras: Sequence[str]) -> dict[str, Any]:
        """Return its entry in order.json, or in the updates of a checkpoint (`RecordedSources`).

        Args:
            cameras: the policy's cameras.
        """
        part = self.training
        first, last = self.span
        entry = {
            "name": self.name,
            "head": self.head,
            "cameras": [camera for camera in cameras if camera not in part.missing_cameras],
            "skipped": list(self.skipped),
            "first": first,
            "last": last,
            "tasks": len(part.catalog.tasks),
            "view": part.view_record,
        }
        if self.is_update:
            entry["of"] = self.of
        return entry


@dataclass(frozen=True)
class RunData:
    """The opened data of a run."""

    sources: tuple[RunSource, ...]
    """In the sequence of the settings; then the updates."""
    cameras: tuple[str, ...]
    """Standard keys of the policy's cameras."""
    image_sizes: dict[str, tuple[int, int] | None]
    """Recorded (height, width) of each camera; None: not known, or not the same in all sources."""
    size: tuple[int, int] | None
    """(height, width) to which the loader resizes images if those of the sources differ in size,
    else None.
    """
    prompt_metadata: tuple[str, ...] = ()
    """Names of the metadata in prompts, in their sequence there."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name of each source."""
        return tuple(source.name for source in self.sources)

    @cached_property
    def training(self) -> tuple[EpisodeDataset, ...]:
        """Training part of each source."""
        return tuple(source.training for source in self.sources)

    @cached_property
    def validation(self) -> tuple[EpisodeDataset | None, ...]:
        """Validation part of each source; None for a source without, and for an update."""
        return tuple(source.validation for source in self.sources)

    @cached_property
    def weights(self) -> tuple[float, ...]:
        """Share of the samples of each source, on any scale."""
        return tuple(source.weight for source in self.sources)

    @cached_property
    def heads(self) -> tuple[str, ...]:
        """Names of the norm heads, sorted."""
        return tuple(sorted({source.head for source in self.sources}))

    @cached_property
    def head_of_source(self) -> np.ndarray:
        """int64 [sources]: index into `heads` of each source."""
        numbers = {head: number for number, head in enumerate(self.heads)}
        return np.array([numbers[source.head] for source in self.sources], np.int64)

    @cached_property
    def configured(self) -> tuple[RunSource, ...]:
        """The sources that the settings name: those that are no updates."""
        return tuple(source for source in self.sources if not source.is_update)

    def entries(self) -> list[dict[str, Any]]:
        """Return the entry of each source in order.json, or in the updates of a checkpoint
        (`RecordedSources`).
        """
        return [source.entry(self.cameras) for source in self.sources]

    def order(self, config: TrainConfig) -> Order:
        """Make the order of a new run, for any memory (`make_loader.make_order` chooses one for
        it).
        """
        return Order.from_datasets(
            self.training,
            batch_size=config.batch_size,
            seed=config.seed,
            **self.order_options(config.data),
        )

    def order_options(self, settings: DataConfig) -> dict[str, Any]:
        """Return the arguments of the order's constructor that depend on the settings."""
        return {
            "weights": self.weights,
            "frames_in_flight": settings.frames_in_flight,
            "mode": settings.shuffle,
        }

    def metadata(self) -> dict[str, Any]:
        """Facts about the robots for an exported policy: per norm head names of dimensions,
        cameras, fps.

        Of a head with several sources it has those of the first one.
        """
        heads: dict[str, dict[str, Any]] = {}
        for head in self.heads:
            members = [source for source in self.sources if source.head == head]
            part = members[0].training
            features = part.catalog.features
            state_names = features[STATE].dimension_names if STATE in part.keys else []
            heads[head] = {
                "sources": [source.name for source in members],
                "fps": part.catalog.fps,
                "action_names": features[ACTION].dimension_names,
                "state_names": state_names,
                "cameras": [
                    camera for camera in self.cameras if camera not in part.missing_cameras
                ],
            }
            if self.prompt_metadata:
                heads[head][PROMPT_METADATA] = PromptMetadata(self.prompt_metadata).record
        return {"fps": self.training[0].catalog.fps, "heads": heads}

    def policy_config(self, config: TrainConfig) -> Any:
        """Return the policy's config: its settings, the cameras, and the widest state and action.

        Raises:
            ConfigError: the settings do not fit the data or each other.
        """
        try:
            return policy_type(config.policy.type).make_config(
                fit_images(config.policy, self.image_sizes),
                action_dim=max(_width(part, ACTION) for part in self.training),
                state_dim=max(_width(part, STATE) for part in self.training),
                cameras=self.cameras,
                chunk=config.data.actions_per_chunk,
                compute=compute_dtype(config.precision),
                future=config.modes.learn_dynamics(),
                acts=config.modes.weights()["policy"] > 0,
            )
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"policy: {error}") from error


def _pass_length(part: EpisodeDataset) -> float:
    """Samples of one pass over a source: its frames, as often as their weights require."""
    return len(part) if part.frame_weights is None else part.frame_weights.pass_length


def _width(dataset: EpisodeDataset, key: str) -> int:
    return dataset.catalog.features[key].value_shape[0] if key in dataset.keys else 0


def open_data(
    config: TrainConfig, recorded: RecordedSources | None = None, check_files: bool = True
) -> RunData:
    """Open the sources of `config`: windows of `data.chunk_size` actions, whole episodes for
    validation.

    Args:
        config: the settings.
        recorded: entries of the sources when a run is resumed: the same episodes are used, and
            skipped, again.
        check_files: whether to look for missing files. One process of a run does it for all.

    Raises:
        DatasetError: sources cannot be read, or lack something that a policy needs; lists all of
            them.
    """
    data = config.data
    names = config.data.names()
    configs = config.data.mixed()
    wrong = dict[str, DataAccessError]()
    entries: Sequence[Record | None] = recorded or [None] * len(names)
    added = (recorded or ())[len(names) :]
    of = (*range(len(names)), *(entry["of"] for entry in added))
    names = (*names, *(entry["name"] for entry in added))
    configs = tuple(configs[number] for number in of)
    opened = _open_sources(data, names, configs, entries, wrong)
    # a run keeps the sources that it has
    leave_out = dict(zip(names, data.sources)) if recorded is None else {}
    if not (sources := [source for source in opened if source is not None]):
        raise join_errors(wrong, len(names), leave_out)
    try:
        cameras = _cameras(data.cameras, sources)
        recorded_images = recorded_sizes(sources, cameras)
        image_sizes = {}
        for camera, recorded_of_camera in recorded_images.items():
            only_size = next(iter(recorded_of_camera)) if len(recorded_of_camera) == 1 else None
            image_sizes[camera] = only_size
        policy = fit_images(config.policy, image_sizes)
        size, sizes = common_image_size(
            sources, recorded_images, policy.network_size, resize_of(policy)
        )
    except DatasetError as error:  # the source with that camera may be one of the wrong ones
        if wrong:
            raise join_errors(wrong, len(names), leave_out) from None
        raise error from None

    whole = opened[: len(data.names())]  # updates are parts of these
    responds = any(source.response for source in configs)
    places = []
    for opened_source in opened:
        place = "" if opened_source is None else opened_source.catalog.place
        places.append(place)
    uses = Counter(place for place in places[: len(whole)] if place)

    def split(number: int) -> SourceSplit:
        source = opened[number]
        assert source is not None
        shares_dataset = uses[places[number]] > 1
        entry = entries[number]
        try:
            return source.split(
                names[number],
                config.samples,
                cameras,
                sizes,
                entry,
                check_files,
                shares_dataset,
                responds,
            )
        finally:
            source.catalog.files.drop_listings()

    splits = [part for part in for_each_source(names, split, wrong) if part is not None]
    _check_states(names, opened, wrong)
    check_heads([names[owner] for owner in of], opened, wrong)
    if wrong:
        raise join_errors(wrong, len(names), leave_out)
    training = tuple(part.training for part in splits)
    apart = tuple(part.validation for part in splits)
    EpisodeSplit.check_disjoint(names, training, apart)
    _check_together(data, names, training, leave_out)
    weights = _weights(configs, training, of)
    run_sources = []
    for number, part in enumerate(splits):
        run_sources.append(
            RunSource(
                number=number,
                name=names[number],
                training=part.training,
                apart=part.validation,
                head=sources[number].head(names[of[number]]),
                weight=weights[number],
                delta=configs[number].delta_action_dims,
                stats=configs[number].stats,
                notes=part.notes,
                skipped=part.skipped,
                of=of[number],
                span=part.span,
            )
        )
    return RunData(
        sources=tuple(run_sources),
        cameras=cameras,
        image_sizes=image_sizes,
        size=size,
        prompt_metadata=tuple(data.prompt_metadata),
    )


def _weights(
    configs: Sequence[SourceConfig], training: Sequence[EpisodeDataset], of: Sequence[int]
) -> tuple[float, ...]:
    """Weight of each source; updates have shares of the weight that is set for their source."""
    passes = np.array([_pass_length(part) for part in training])
    shares = passes / np.bincount(of, passes)[list(of)]
    weights = []
    for source, share, frames in zip(configs, shares.tolist(), passes.tolist()):
        weight = source.weight * share if source.weight else frames
        weights.append(float(weight))
    return tuple(weights)


def _open_sources(
    data: DataConfig,
    names: Sequence[str],
    configs: Sequence[SourceConfig],
    entries: Sequence[Record | None],
    wrong: dict[str, DataAccessError],
) -> list[Source | None]:
    """Open each source, and each dataset once; an error goes into `wrong`. entries: see
    `RecordedSources`.
    """
    remote = RemoteOptions(cache=data.cache, cache_bytes=parse_bytes(data.cache_size))
    catalogs = Catalogs(remote)  # several sources may be parts of one dataset

    def start(number: int) -> tuple[tuple[str, ...], str]:
        """Return the key of a source's dataset, and the name of the view."""
        source = configs[number]
        address, view = split_view(source.root)
        place = catalogs.start(
            address,
            video_path=source.video_path,
            data_path=source.data_path,
            version=source.version,
            pairing=source.pairing,
        )
        return place, view

    addresses = for_each_source(names, start, wrong)
    catalogs.read_tables()

    def open_one(number: int) -> Source:
        address = addresses[number]
        assert address is not None
        place, view = address
        catalog = with_view(catalogs.open(place), view, entries[number])
        return open_source(configs[number], catalog, data.cameras, entries[number])

    return for_each_source(names, open_one, wrong)


def _check_states(
    names: Sequence[str], opened: Sequence[Source | None], wrong: dict[str, DataAccessError]
) -> None:
    """Add an error for each source without a state where others have one."""
    has_state = {
        name: STATE in source.keys for name, source in zip(names, opened) if source is not None
    }
    for name, present in has_state.items():
        if not present and any(has_state.values()):
            fix = "set `state` to its key, or to an empty key in all sources"
            wrong.setdefault(
                name, DatasetError(f"it has no {STATE!r}, which other sources have", fix=fix)
            )


def _check_together(
    data: DataConfig,
    names: Sequence[str],
    training: Sequence[EpisodeDataset],
    leave_out: Mapping[str, SourceConfig],
) -> None:
    """Raise DatasetError for metadata that no source has, and for sources that cannot share a
    batch.
    """
    check_prompt_metadata(data.prompt_metadata, training)
    if all(part.returns is not None and not part.returns.known for part in training):
        fix = "give success of some episodes that were not cut: understudy edit --metadata FILE"
        raise DatasetError(
            "no return is known: all episodes lack an outcome",
            where=training[0].catalog.root,
            fix=fix,
        )
    try:
        problems = Mixture.unlike(training)
    except ValueError as error:
        raise DatasetError(str(error)) from error
    if problems:
        wrong = {names[number]: DatasetError(problem) for number, problem in problems.items()}
        raise join_errors(wrong, len(names), leave_out)


def _cameras(chosen: tuple[str, ...], sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the standard keys of the policy's cameras: the chosen ones, or all.

    Those of a single dataset keep its sequence. Those of several are sorted, so the sequence of the
    sources has no effect.
    """
    cameras = tuple(dict.fromkeys(chain.from_iterable(source.cameras for source in sources)))
    if len(sources) > 1:
        cameras = tuple(sorted(cameras))
    if chosen == (NONE,):
        return ()
    for camera in chosen:
        if camera not in cameras:
            where = sources[0].catalog.root if len(sources) == 1 else "the sources"
            skipped = [
                s.catalog.skipped_features[camera]
                for s in sources
                if camera in s.catalog.skipped_features
            ]
            why = f", which {skipped[0]}" if skipped else StandardKeys.suggest(camera, cameras)
            if any(
                camera in s.catalog.features and s.catalog.features[camera].is_depth
                for s in sources
            ):
                why = ", but a depth camera, and a policy takes RGB"
            fix = (
                f"its cameras: {', '.join(cameras) or 'none'}; `cameras` of a source gives one "
                "another name"
            )
            raise DatasetError(f"there is no camera {camera!r}{why}", where=where, fix=fix)
    return chosen or cameras


def for_each_source(
    labels: Sequence[str], work: Callable[[int], _T], wrong: dict[str, DataAccessError]
) -> list[_T | None]:
    """Do `work` for each source that is not in `wrong`; an error goes into `wrong`, and None into
    the result.
    """
    outcomes: list[_T | None] = []
    for number, label in enumerate(labels):
        outcomes.append(None)
        if label not in wrong:
            try:
                outcomes[-1] = work(number)
            except DataAccessError as error:
                if not is_wrong_input(error):
                    raise  # a failed connection is not an error of the settings
                wrong[label] = error
    return outcomes


def head_members(data: RunData, with_delta: bool = True) -> list[HeadMember]:
    """Return the training part of each source with its norm head, and with the dimensions that are
    differences.
    """
    members = []
    for source in data.sources:
        delta = source.delta if with_delta else ()
        members.append(HeadMember(source.training, source.head, delta))
    return members


VALIDATION_EPISODES = "held-out episodes"
"""Key of the fingerprint of a dataset's validation episodes."""


def dataset_fingerprint(data: RunData) -> dict[str, Any]:
    """Return the properties that identify the datasets of a run, by name, for messages about
    changes.

    No data or video file is read; `file_digests` looks at those. With several sources, and for
    updates, each name starts with the name of its source.
    """
    properties: dict[str, Any] = {}
    is_mixture = len(data.configured) > 1
    for source in data.sources:
        of_source = _fingerprint(source.training, source.validation, source.span)
        if is_mixture:
            of_source |= {"norm head": source.head}
        if is_mixture or source.is_update:
            of_source = {f"{source.name}: {key}": value for key, value in of_source.items()}
        properties |= of_source
    return properties


def _fingerprint(
    training: EpisodeDataset, validation: EpisodeDataset | None, span: tuple[int, int]
) -> dict[str, Any]:
    catalog = training.catalog
    features = {
        key: [feature.dtype, list(feature.shape)] for key, feature in catalog.features.items()
    }
    ids, lengths = episodes_within(catalog, span)
    of_lengths = training.share(partial(_digest_lengths, ids, lengths), ids, lengths)
    if validation:
        held_out = validation.share(partial(_digest, validation.segments), validation.segments)
    else:
        held_out = _digest()
    weighted = {
        name: part.frame_weights
        for name, part in (("training", training), ("validation", validation))
        if part
    }
    returns = {"returns": training.returns.digest} if training.returns is not None else {}
    metadata = {"prompt metadata": training.prompts.digest} if training.prompts.names else {}
    return {
        "format": catalog.version,
        "fps": catalog.fps,
        "episodes": len(ids),
        "frames": int(lengths.sum()),
        "lengths of the episodes": of_lengths,
        "tasks": _digest(repr(catalog.tasks).encode()),
        "features": _digest(repr(sorted(features.items())).encode()),
        VALIDATION_EPISODES: held_out,
        **returns,
        **metadata,
        **{
            f"frame weights of {name} frames": frame_weights.digest
            for name, frame_weights in weighted.items()
            if frame_weights is not None
        },
    }


def file_digests(data: RunData, cache: Path | None = None) -> dict[str, list[str] | None]:
    """Return digests of a run's data and video files, by kind (`UsedFiles`); earlier results are in
    `cache`.
    """
    used: list[UsedFiles] = []
    for source in data.sources:
        parts = [part for part in (source.training, source.validation) if part is not None]
        missing = source.training.missing_cameras
        cameras = [camera for camera in data.cameras if camera not in missing]
        used.append(UsedFiles(parts, cameras))
    is_mixture = len(data.configured) > 1
    digests: dict[str, list[str] | None] = {}
    for source, of_source in zip(data.sources, UsedFiles.digests_of_all(used, cache)):
        prefix = f"{source.name}: " if is_mixture or source.is_update else ""
        digests |= {prefix + kind: digest for kind, digest in of_source.items()}
    return digests


def episodes_within(catalog: Catalog, span: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and lengths of the episodes from the first to the last id of `span`."""
    ids = catalog.episodes.ids
    rows = slice(*np.searchsorted(ids, [span[0], span[1] + 1]).tolist())
    return ids[rows], catalog.episodes.lengths[rows]


def _digest_lengths(ids: np.ndarray, lengths: np.ndarray) -> str:
    return _digest(np.stack([ids, lengths]))


def _digest(*parts: bytes | np.ndarray) -> str:
    digest = hashlib.sha256()
    for part in parts:
        content = np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part
        digest.update(content)
    return digest.hexdigest()[:16]


def first_batch(
    config: TrainConfig,
    recorded: RecordedSources | None = None,
    order: Record | None = None,
    data: RunData | None = None,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Load the batch of step 0, augmented as for the policy, and the names of its cameras; for the
    report.

    Args:
        config: the settings.
        recorded: see `open_data`.
        order: recorded order of the run; None for any amount of memory.
        data: the data of the run where the caller has opened it.

    Raises:
        ValueError: the data is not that of the order.
    """
    data = open_data(config, recorded, check_files=False) if data is None else data
    chosen = data.order(config) if order is None else Order.from_json(dict(order), data.training)
    batch = read_first_batch(data, chosen)
    return apply_augmentation(batch, data.cameras, config.augment, config.seed), data.cameras


def read_first_batch(data: RunData, order: Order) -> dict[str, Any]:
    """Load the batch of step 0 in this process alone, also in a group of several."""
    options: dict[str, Any] = {
        "num_threads": 1,
        "image_size": data.size,
        "rank": 0,
        "world_size": 1,
    }
    with warnings.catch_warnings():
        # of rank 0 of 1 in a group, and of the cost of the order here
        warnings.simplefilter("ignore")
        with Loader(data.training, order=order, **options) as loader:
            return next(loader)


logger = logging.getLogger(__name__)


def make_loader(
    config: TrainConfig,
    data: RunData,
    order: Order,
    mesh: Mesh,
    position: int,
    preprocess: Callable[[dict[str, Any]], dict[str, Any]],
    journal: Path | None = None,
) -> Loader:
    """Make the loader of this rank's share of every batch.

    Args:
        config: the settings.
        data: the data of the run.
        order: the order of the samples.
        mesh: the processes of the run.
        position: first position to load.
        preprocess: called in loader threads with each batch (`TrainState.prepare`).
        journal: file for the substituted samples of this rank.

    Raises:
        ConfigError: on all ranks: one batch does not fit the memory.
    """
    decoded_cache = _decoded_cache(config.data) if config.loader.decoded_cache else None
    with mesh.together():
        try:
            return Loader(
                data.training,
                order=order,
                image_size=data.size,
                rank=mesh.rank,
                allow_uneven=True,
                position=position,
                preprocess=preprocess,
                on_bad_frame=config.data.on_bad_frame,
                journal=journal,
                pin=mesh.device.type == "cuda",
                decoded_cache=decoded_cache,
                **_resources(config.loader, mesh),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error


def make_order(config: TrainConfig, data: RunData, mesh: Mesh) -> Order:
    """Choose the order of a new run, and warn of one that costs much or mixes badly.

    Raises:
        ConfigError: one batch does not fit the memory, or the settings do not make an order.
    """
    try:
        choice = choose_order(
            data.training,
            batch_size=config.batch_size,
            seed=config.seed,
            image_size=data.size,
            decoded_cache=config.loader.decoded_cache,
            **data.order_options(config.data),
            # the same order on any machine
            **_resources(config.loader, mesh) | {"num_threads": MOST_LOADER_THREADS},
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if choice.advice and mesh.rank == 0:
        logger.warning("order: %s", choice.advice)
    return choice.order


def _decoded_cache(settings: DataConfig) -> tuple[str, int]:
    """Folder and size of the decoded images on disk."""
    return RemoteOptions(cache=settings.cache).folder, parse_bytes(settings.cache_size)


def _resources(loader: LoaderConfig, mesh: Mesh) -> dict[str, Any]:
    """Resources of a rank's loader."""
    num_threads = loader.num_threads
    if num_threads == "auto":
        num_threads = fair_threads(mesh.local_world_size)
    return {
        "world_size": mesh.world_size,
        "num_threads": num_threads,
        "memory": parse_bytes(loader.memory) // mesh.local_world_size,
    }


_MOST = 1000  # longest texts by characters, among which the longest by tokens is sought


def check_prompt_metadata(names: Iterable[str], training: Sequence[EpisodeDataset]) -> None:
    """Raise DatasetError for metadata of the prompts that no source has."""
    present = set(chain.from_iterable(part.prompts.names or () for part in training))
    if lost := [name for name in names if name not in present]:
        recorded = chain.from_iterable(part.prompt_names(part.catalog) for part in training)
        there = sorted(set(recorded))
        where = training[0].catalog.root if len(training) == 1 else "the sources"
        fix = (
            "metadata of their episodes, and features: "
            f"{', '.join(there) or 'none; `edit --metadata` adds some'}"
        )
        raise DatasetError(
            f"data.prompt_metadata names {lost[0]!r}, which no episode has", where=where, fix=fix
        )


def prompt_fields(training: Sequence[EpisodeDataset]) -> list[str]:
    """Return the distinct metadata of prompts as they are written there, sorted."""
    texts = set(chain.from_iterable(part.prompts.texts for part in training)) - {""}
    return sorted(PromptMetadata.add([""] * len(texts), list(texts)))


def instructions(training: Sequence[EpisodeDataset], separator: str) -> set[str]:
    """Return the distinct instructions of training; `separator`: the setting
    `augment.task_separator`.
    """
    texts = chain.from_iterable(part.catalog.tasks for part in training)
    return set(chain.from_iterable(map(Instructions(separator).split, texts)))


def longest_prompts(training: Sequence[EpisodeDataset], separator: str = "") -> list[str]:
    """Return the longest instructions with the longest metadata, all of it; by characters, the
    longest first.
    """
    tasks = nlargest(_MOST, instructions(training, separator), len)
    texts = set(chain.from_iterable(part.prompts.texts for part in training))
    fields = nlargest(_MOST, texts, len)
    pairs = []
    for task in tasks:
        pairs += [(task, text) for text in fields[: max(1, _MOST // len(tasks))]]
    return PromptMetadata.add([task for task, _ in pairs], [text for _, text in pairs])
