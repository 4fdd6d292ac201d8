"""One source of a run: its dataset under standard keys, checked for a policy, and split into two
parts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from understudy.config.data import NONE, DataConfig
from understudy.config.samples import SampleSettings
from understudy.policies.capabilities.returns import PredictsReturns
from understudy.train.data.sample_windows import sample_windows
from understudy_base import ACTION, STATE, DatasetError, Record
from understudy_data import (
    BadEpisodes,
    Catalog,
    EpisodeDataset,
    EpisodeSplit,
    ImageSize,
    NormHeads,
    Selection,
    StandardKeys,
)
from understudy_kit import SourceConfig


class BadEpisodesError(DatasetError):
    """Episodes of a source of a mixture are incomplete.

    Attributes:
        settings: Lists of the source that leave them out.
    """

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        fix: str = "",
        settings: Mapping[str, Sequence[int]],
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.settings: dict[str, Any] = {name: tuple(ids) for name, ids in settings.items()}

    @classmethod
    def of(cls, error: DatasetError, settings: Mapping[str, Sequence[int]]) -> "BadEpisodesError":
        """Return an error with these settings."""
        return cls(error.what, where=error.where, fix=error.fix, settings=settings)

    def fields(self) -> dict[str, object]:
        """Arguments that make this error again."""
        return {**super().fields(), "settings": self.settings}


RecordedSources = Sequence[Record]
"""Entry of each source in order.json when a run is resumed, then those of its updates.

An entry has its episode ids from `first` to `last`, and the number of its `tasks`, so that appended
ones are no part of it. An update of a source has the number of that source as `of`, and its bad
episodes are unknown until it is opened.
"""


@dataclass(frozen=True)
class Source:
    """A dataset that a policy can be trained on."""

    config: SourceConfig
    """Its settings, together with those of the view."""
    catalog: Catalog
    """In standard keys."""
    keys: tuple[str, ...]
    """`action`, and `observation.state` where it has one."""
    cameras: tuple[str, ...]
    """Standard keys of its cameras."""
    as_named: Catalog | None = None
    """The dataset as its address names it, with the view; None: as `catalog`."""

    def head(self, name: str) -> str:
        """Return the norm head of this source, whose name is `name`."""
        return NormHeads.name(
            self.config.robot_type or self.catalog.robot_type, self.config.control_mode, name
        )

    def split(
        self,
        name: str,
        samples: SampleSettings,
        cameras: Sequence[str],
        sizes: Mapping[str, tuple[int, int]],
        recorded: Record | None = None,
        check_files: bool = True,
        shares_dataset: bool = False,
        responds: bool = False,
    ) -> "SourceSplit":
        """Split the source into a training and a validation part.

        Args:
            name: name of the source.
            samples: settings of the run's samples.
            cameras: the policy's cameras.
            sizes: (height, width) of those that some source lacks.
            recorded: see `open_source`.
            check_files: whether to look for missing files.
            shares_dataset: whether another source is of the same dataset; its split then depends
                on ids alone, so that both hold out the same episodes.
            responds: whether any source has a `response`.

        Raises:
            DatasetError: images are not RGB, the selection is empty, episodes cannot be split, or
                files are missing.
            ConfigError: the policy asks for windows that the run cannot have.
        """
        settings = self.config
        catalog = self.catalog
        own_cameras = [camera for camera in cameras if camera in self.cameras]
        _raise_all(_unusable_features(samples, self, own_cameras), catalog)
        response = settings.response if responds else None
        options: dict[str, Any] = {
            "delta_timestamps": sample_windows(samples, catalog.fps, cameras, STATE in self.keys),
            "keys": [*self.keys, *own_cameras],
            "missing_cameras": {
                camera: sizes[camera] for camera in cameras if camera not in own_cameras
            },
            "name": name,
            "response": response,
        }
        selection = _select(settings)
        ids, usable_notes = selection.find_episodes(
            catalog, options["delta_timestamps"], (*self.keys, *cameras)
        )
        held = recorded or {}
        span = (held.get("first", 0), held.get("last", int(catalog.episodes.ids[-1])))
        appended = "of" in held
        ids = ids[slice(*np.searchsorted(ids, [span[0], span[1] + 1]).tolist())]
        _raise_all(_lost_episodes(held, ids), catalog)
        unselected: list[int] = []
        if not appended:
            unselected = sorted(set(settings.val_episodes) - set(ids.tolist()))
        before = None if appended and "skipped" not in held else recorded
        skipped, notes = skip_incomplete(
            settings, catalog, ids, own_cameras, self.keys, samples.data, before, check_files
        )
        left_out = np.array(skipped, np.int64)
        spread = not appended and not shares_dataset
        share = samples.data.share_of(settings)
        parts = _split_episodes(share, settings, catalog, ids, left_out, appended, spread)
        if samples.data.prompt_metadata:  # of each source the metadata that it has
            present = EpisodeDataset.prompt_names(catalog)
            options["prompt_metadata"] = [
                field for field in samples.data.prompt_metadata if field in present
            ]
        if isinstance(samples.policy, PredictsReturns):
            options["returns"] = samples.policy.return_target()
        selection = replace(Selection.of(settings), exclude_episodes=None, where=None)
        training = EpisodeDataset(
            catalog, select=replace(selection, episodes=parts.training), **options
        )
        validation = None
        if len(parts.validation):
            validation = EpisodeDataset(
                catalog, select=replace(selection, episodes=parts.validation), **options
            )
            validation.video_frames.share_open_files(training.video_frames)
        training.view = self.as_named.view if self.as_named is not None else None
        return SourceSplit(
            training,
            validation,
            (*usable_notes, *notes, *_more_notes(training, len(ids), unselected)),
            skipped,
            span,
        )


def open_source(
    config: SourceConfig,
    catalog: Catalog,
    cameras: Sequence[str] = (),
    recorded: Record | None = None,
) -> Source:
    """Open a source; only its metadata is read.

    Args:
        config: settings of the source.
        catalog: its dataset, under its own keys.
        cameras: the policy's cameras (`data.cameras`); all if empty.
        recorded: its entry in order.json when a run is resumed.

    Raises:
        DatasetError: keys, episodes, dimensions or videos are missing, or an action or state is not
            a vector.
    """
    _raise_all(_lost_cameras(config, catalog, cameras, recorded), catalog)
    as_named = catalog
    if (view := catalog.view) is not None:
        config = spell_out(config, catalog)
        _raise_all(((f"with the view {view}, {line}", "") for line in config.problems()), catalog)
        catalog = replace(catalog, view=None)
    names = {ACTION: config.action}
    if config.state:
        names[STATE] = config.state
    names |= config.cameras
    catalog = replace(catalog, tasks=catalog.tasks[: (recorded or {}).get("tasks")])
    # Keys that keep their names are listed, too: another standard key may be mapped to the same
    # one.
    stored = catalog.features
    renamed = {key: name for key, name in names.items() if key != name or name in stored}
    catalog = StandardKeys(renamed).rename(catalog)
    hidden = set(catalog.camera_keys) - set(config.cameras) if config.cameras else set()
    if not config.state:
        hidden.add(STATE)
    features = {key: feature for key, feature in catalog.features.items() if key not in hidden}
    for key in {ACTION, STATE} & features.keys():
        features[key] = replace(features[key], is_vector=True)
    catalog = replace(catalog, features=features)
    _raise_all(_mistakes(config, catalog), catalog)
    keys = tuple(key for key in (ACTION, STATE) if key in features)
    return Source(
        config, catalog, keys, tuple(config.cameras) or tuple(_color_cameras(catalog)), as_named
    )


def spell_out(config: SourceConfig, data: Catalog | EpisodeDataset) -> SourceConfig:
    """Return settings together with those of the view of a dataset. Raises DatasetError where they
    contradict each other.
    """
    return config if data.view is None else SourceConfig(**data.view.combine(vars(config)))


def with_view(catalog: Catalog, view: str, recorded: Mapping[str, Any] | None) -> Catalog:
    """Return a catalog with the view `#NAME` or `#NAME@VERSION` of an address.

    Args:
        catalog: the dataset.
        view: of the settings, "" for none.
        recorded: see `open_source`; a resumed run keeps the version that it was started with.

    Raises:
        DatasetError: there is no such view, it changed, or the run has another.
    """
    started = (recorded or {}).get("view")
    if started and started.startswith(f"{view[1:]}@"):
        view = f"#{started.split()[0]}"
    catalog = catalog.with_view(view)
    now = catalog.view.record if catalog.view else ""
    if started is not None and started != now:
        problem = (
            f"the run was started with the view {started or 'none'}, and this is {now or 'none'}"
        )
        raise DatasetError(
            problem, where=catalog.root, fix="name that one after `#`, or restore its file"
        )
    return catalog


Mistakes = Iterator[tuple[str, str]]
"""Problems of a source, each with its remedy."""


def _raise_all(mistakes: Mistakes, catalog: Catalog) -> None:
    problems: list[str] = []
    fixes: dict[str, None] = {}
    for problem, fix in mistakes:
        problems.append(problem)
        if fix:
            fixes[fix] = None
    if problems:
        raise DatasetError("; ".join(problems), where=catalog.root, fix="; ".join(fixes))


def _mistakes(config: SourceConfig, catalog: Catalog) -> Mistakes:
    """Keys, episodes and dimensions that the settings name and the dataset lacks."""
    features = catalog.features
    keys = (ACTION, STATE) if STATE in features else (ACTION,)
    for key in keys:
        feature = features.get(key)
        if feature is None or len(feature.value_shape) != 1 or feature.is_text or feature.is_camera:
            if feature is None:
                kind = "there is no such feature"
            else:
                kind = f"it is {feature.dtype} of shape {feature.shape}"
            flag = "--data.action" if key == ACTION else "--data.state"
            fix = (
                f"name it with {flag} KEY, or several joined by +; `understudy check` lists the "
                "features"
            )
            yield f"a policy needs {key!r} as a vector: {kind}", fix
    for camera, name in config.cameras.items():
        if camera not in catalog.camera_keys:
            yield (
                f"{camera!r} is mapped to {name!r}, which is not a camera",
                ", ".join(catalog.camera_keys) or "none",
            )
    ids = catalog.episodes.ids
    uses = {
        "use": config.episodes,
        "exclude": config.exclude_episodes,
        "validate on": config.val_episodes,
    }
    for purpose, chosen in uses.items():
        if chosen and len(unknown := Selection().lacks(catalog, chosen)):
            yield (
                f"there is no episode {unknown[0]} to {purpose}",
                f"there are {catalog.describe_ids(ids)}, see `check`",
            )
    if not config.delta_action_dims:
        return
    last = max(config.delta_action_dims)
    for key in (ACTION, STATE):
        shape = features[key].value_shape if key in features else ()
        if len(shape) == 1 and last >= (width := shape[0]):
            fix = "list the dimensions that are differences from the state"
            yield f"delta_action_dims: {last}: {key!r} has {width} dimensions, counted from 0", fix
    if STATE not in features:
        problem = "delta_action_dims: differences from the state need a state, and there is none"
        yield problem, "set `state` to its key"


def _lost_cameras(
    config: SourceConfig, catalog: Catalog, cameras: Sequence[str], recorded: Record | None
) -> Mistakes:
    """Declared cameras without any video file, unless they are left out by name."""

    def used(camera: str) -> bool:
        if recorded is not None:  # the cameras were fixed when the run started
            return camera in recorded.get("cameras", ())
        return not config.cameras and (not cameras or camera in cameras)

    if lost := [camera for camera in catalog.cameras_without_files if used(camera)]:
        others = " ".join(catalog.camera_keys) or NONE
        pronoun = "it" if len(lost) == 1 else "them"
        fix = f"restore the videos, set video_path to their place, or leave {pronoun} "
        problems = (f"{camera} {catalog.skipped_features[camera]}" for camera in lost)
        yield "; ".join(problems), f"{fix}out by name: --data.cameras {others}"


def _lost_episodes(held: Mapping[str, Any], ids: np.ndarray) -> Mistakes:
    """No episode of a run that is resumed."""
    if held and not len(ids):
        problem = (
            f"none of the episodes {held['first']} to {held['last']} of the run is there, or "
            "selected"
        )
        yield problem, "restore them, or start a new run"


def _color_cameras(catalog: Catalog) -> list[str]:
    return [key for key in catalog.camera_keys if not catalog.features[key].is_depth]


@dataclass(frozen=True)
class SourceSplit:
    """Training and validation part of a source."""

    training: EpisodeDataset
    validation: EpisodeDataset | None
    notes: tuple[str, ...]
    """Notes on the selection."""
    skipped: tuple[int, ...]
    """Ids of the skipped incomplete episodes."""
    span: tuple[int, int]
    """First and last id of the source's part of the dataset."""


def _more_notes(training: EpisodeDataset, selected: int, unselected: Sequence[int]) -> list[str]:
    """Return notes on the view, which selects a number of episodes, on validation episodes of which
    no frame is selected, on depth, and on episodes that train no return.
    """
    catalog = training.catalog
    view = training.view
    notes = [catalog.root + view.describe(selected, len(catalog.episodes))] if view else []
    if unselected:
        named = Catalog.describe_ids(np.array(unselected, np.int64))
        notes.append(f"{catalog.root}: no frame is selected of val_episodes {named}: left out")
    depth = [key for key in catalog.camera_keys if catalog.features[key].is_depth]
    notes += [
        f"{catalog.root}: {key} is depth, which policies do not take: left out" for key in depth
    ]
    unknown = training.returns.unknown if training.returns is not None else 0
    return notes + [
        f"{unknown:,} of {training.num_episodes:,} training episodes have no known outcome"
    ] * (unknown > 0)


def _select(settings: SourceConfig) -> Selection:
    """Return the selection of a source, before its episodes are split; frame weights come after
    that.
    """
    return replace(Selection.of(settings), frame_weights=None)


def _unusable_features(samples: SampleSettings, source: Source, cameras: Sequence[str]) -> Mistakes:
    """Cameras without RGB, a state that dynamics need, and validation episodes outside of the
    condition `where`.
    """
    settings = source.config
    features = source.catalog.features
    for camera in cameras:
        feature = features[camera]
        if feature.is_depth or feature.channels not in (3, None):
            kind = "is depth" if feature.is_depth else f"has {feature.channels} channels"
            colors = [
                key for key in _color_cameras(source.catalog) if features[key].channels in (3, None)
            ]
            fix = f"list the cameras to use: --data.cameras {' '.join(colors) or NONE}"
            yield f"{camera!r} {kind}, a policy takes RGB", fix
    if samples.modes.learn_dynamics() and STATE not in source.keys:
        problem = f"mode: future states are trained, which needs {STATE!r}, and there is none"
        yield problem, "set `state` to its key, or mode to policy"
    if settings.where and settings.val_episodes:
        condition = Selection(where=settings.where)
        if len(lost := condition.lacks(source.catalog, settings.val_episodes)):
            problem = (
                f"where is {settings.where!r}, which does not hold for episode {lost[0]} of "
                "val_episodes"
            )
            yield problem, "take it out of val_episodes"


def _split_episodes(
    share: float,
    settings: SourceConfig,
    catalog: Catalog,
    ids: np.ndarray,
    skipped: np.ndarray,
    appended: bool,
    spread: bool,
) -> EpisodeSplit:
    """Split the selected episodes of a source without the skipped ones. For the arguments see
    `EpisodeSplit.by_fraction`.
    """
    where = catalog.root
    if settings.val_episodes:
        parts = EpisodeSplit.by_ids(ids, settings.val_episodes, skipped)
        if len(parts.training) == 0 and not appended:
            fix = "leave some to train on"
            raise DatasetError(
                "val_episodes contains all episodes that are used", where=where, fix=fix
            )
        return parts
    try:
        return EpisodeSplit.by_fraction(
            catalog,
            ids,
            share,
            skipped=skipped,
            appended=appended,
            spread=spread,
        )
    except DatasetError as error:
        fix = (
            "set val_fraction to 0 (--data.val-fraction 0, or in its source), or use more episodes"
        )
        raise DatasetError(error.what, where=where, fix=fix) from error


def appended_episodes(
    share: float, settings: SourceConfig, catalog: Catalog, first: int
) -> np.ndarray:
    """Return the selected episodes of a source to train on, from an id on.

    `share` of them are for validation.
    """
    if catalog.episodes.ids[-1] < first:
        return catalog.episodes.ids[:0]
    ids = EpisodeDataset(catalog, select=_select(settings)).episodes
    appended = ids[np.searchsorted(ids, first) :]
    return _split_episodes(share, settings, catalog, appended, ids[:0], True, False).training


def recorded_sizes(
    sources: Sequence[Source], cameras: Sequence[str]
) -> dict[str, set[tuple[int, int] | None]]:
    """Return the (height, width) of each camera in the sources that have it; None where a dataset
    has no size.
    """
    sizes = {}
    for camera in cameras:
        having = [source for source in sources if camera in source.cameras]
        sizes[camera] = {source.catalog.features[camera].size for source in having}
    return sizes


def common_image_size(
    sources: Sequence[Source],
    sizes: Mapping[str, set[tuple[int, int] | None]],
    seen: tuple[int, int],
    resize: Callable[[np.ndarray, np.ndarray], None] | None = None,
) -> tuple[tuple[int, int] | None, dict[str, tuple[int, int]]]:
    """Return the size to which the loader resizes images, None if it does not, and the size of each
    camera after that.

    Sources whose images of one camera differ in size cannot share a batch without resizing. They
    are resized to the network's size (`seen`) in the policy's way, so that no image is resized
    twice, and a source of a mixture has the images that it has alone.

    Args:
        sources: the sources.
        sizes: those of the policy's cameras (`recorded_sizes`).
        seen: (height, width) of the network's images.
        resize: the policy's way of resizing (`ResizesImages`); None: area averaging.

    Raises:
        DatasetError: images that are not video would need resizing, which the loader does not do.
    """
    if len(sources) > 1 and any(
        len(camera_sizes) > 1 or None in camera_sizes for camera_sizes in sizes.values()
    ):
        fix = "leave the camera out with data.cameras, or record it as video"
        fix = fix if resize else "set policy.image_size to its size, or " + fix
        stored: dict[str, str] = {}
        for source in sources:
            features = source.catalog.features
            for camera in source.cameras:
                if (
                    camera in sizes
                    and not features[camera].is_video
                    and features[camera].size != seen
                ):
                    stored.setdefault(source.catalog.root, camera)
        if stored:
            problem = (
                f"{next(iter(stored.values()))!r} is stored in the rows, where images are "
                "not resized, and "
            )
            problem += "images of other sources have another size"
            others = [f"{root} ({camera})" for root, camera in stored.items()][1:]
            problem += f"; the same holds for {', '.join(others)}" * bool(others)
            raise DatasetError(problem, where=next(iter(stored)), fix=fix)
        image_size = seen if resize is None else ImageSize(seen, resize)
        return image_size, dict.fromkeys(sizes, seen)
    size_of_camera = {}
    for camera, camera_sizes in sizes.items():
        for size in camera_sizes:
            if size is not None:
                size_of_camera[camera] = size
    return None, size_of_camera


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
    recorded: Record | None,
    check_files: bool,
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the ids of the bad episodes that a run skips, ascending, and notes about them.

    An episode is incomplete without one of its files, and broken where a file cannot be used.
    Broken ones are searched only if bad episodes are skipped, since this opens every file.

    Args:
        source: settings of the source.
        catalog: its dataset.
        ids: the selected episodes.
        cameras: their cameras that the policy has.
        keys: columns that the run reads.
        data: settings of the run's data.
        recorded: entry of the source in order.json when a run is resumed: the same episodes are
            skipped.
        check_files: whether to look for files at all; otherwise `recorded` counts.

    Raises:
        DatasetError: episodes are incomplete and not to be skipped, or all of them are incomplete.
    """
    if recorded is not None and "skipped" not in recorded:
        return (), ()  # the run has the source under another name
    before = tuple(int(episode) for episode in (recorded or {}).get("skipped", ()))
    if not check_files:
        return before, ()
    skips = (source.on_bad_episode or data.on_bad_episode) == "skip"
    # a resumed run looks only whether the skipped ones are still broken
    opened = ids if recorded is None else np.array(before, np.int64)
    found = BadEpisodes.find(catalog, ids, cameras, keys, opened if skips else None)
    if found is None:
        return before, ("files cannot be listed there: a missing one is an error when it is read",)
    bad = found.ids
    why = _why(found)
    if recorded is not None:
        if new := sorted(set(bad) - set(before)):
            problem = (
                f"{_are(new)} incomplete and was complete when the run started: {_list(new)} "
                f"({why})"
            )
            raise DatasetError(problem, where=catalog.root, fix="restore the files")
        back = sorted(set(before) - set(bad))
        if not back:
            return before, ()
        return before, (f"skipped since the run started, although complete now: {_list(back)}",)
    doubt = BadEpisodes.doubt(catalog)
    notes = (doubt,) if doubt else ()
    if not bad:
        return (), notes
    state = "incomplete or broken" if skips else "incomplete"
    problem = f"{_are(bad)} {state} of {len(ids)} ({why})"
    if len(bad) == len(ids):
        raise DatasetError(problem, where=catalog.root, fix="restore the files")
    if skips:
        return bad, (f"{problem}: skipped {_list(bad)}", *notes)
    lists = _lists_without(source, bad)
    error = DatasetError(
        f"{problem}: {_list(bad)}", where=catalog.root, fix=_fix(lists, bool(data.sources))
    )
    if data.sources:
        raise BadEpisodesError.of(error, lists)
    raise error


def _are(ids: Sequence[int]) -> str:
    ending = "s are" if len(ids) > 1 else " is"
    return f"{len(ids)} episode{ending}"


def _list(ids: Iterable[int]) -> str:
    ids = list(ids)
    more = f" and {len(ids) - _MAX_LISTED} more" if len(ids) > _MAX_LISTED else ""
    return " ".join(map(str, ids[:_MAX_LISTED])) + more


def _why(bad: BadEpisodes) -> str:
    number = len(bad.reasons)
    more = f"; and {number - _MAX_REASONS} more" if number > _MAX_REASONS else ""
    return "; ".join(bad.reasons[:_MAX_REASONS]) + more


def _lists_without(source: SourceConfig, episodes: Sequence[int]) -> dict[str, list[int]]:
    """Settings that skip these episodes. An excluded id is removed from the other lists."""
    gone = set(episodes)
    lists = {"exclude_episodes": sorted({*source.exclude_episodes, *gone})}
    if source.episodes:
        lists = {"episodes": [i for i in source.episodes if i not in gone]}
    if gone & set(source.val_episodes):
        lists["val_episodes"] = [i for i in source.val_episodes if i not in gone]
    return lists


def _fix(lists: Mapping[str, Sequence[int]], in_file: bool) -> str:
    """Settings that skip bad episodes, ready to paste."""
    if any(len(ids) > _MAX_LISTED for ids in lists.values()):
        ready = "too many to list"
    elif in_file:
        ready = ", ".join(f"{name}: {ids}" for name, ids in lists.items())
    else:
        ready = " ".join(
            f"--data.{name.replace('_', '-')} {_list(ids)}" for name, ids in lists.items()
        )
    skip = "on_bad_episode: skip" if in_file else "--data.on-bad-episode skip"
    return f"restore the files, or leave these episodes out: {ready}; or {skip}"
