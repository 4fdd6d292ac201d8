"""`check_dataset`: all rules over one dataset."""

import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from understudy.check.findings import Finding, Place, Report, merge_undecided, sort_findings
from understudy.check.image_facts import SAMPLED_EPISODES, ImageFacts, read_images
from understudy.check.remedies import fill
from understudy.check.row_facts import ACTION, STATE, RowFacts, read_rows
from understudy.check.rules.action_state import check_action_state
from understudy.check.rules.camera_poses import check_camera_poses
from understudy.check.rules.changed_images import check_changed_images
from understudy.check.rules.clocks import check_clocks
from understudy.check.rules.depth import check_depth
from understudy.check.rules.episodes import check_episodes, rank_episodes
from understudy.check.rules.files import check_files, check_rows
from understudy.check.rules.image_detail import check_image_detail
from understudy.check.rules.images import check_images
from understudy.check.rules.metadata import check_metadata
from understudy.check.rules.motion import check_motion
from understudy.check.rules.offsets import check_offsets
from understudy.check.rules.sensors import check_sensors
from understudy.check.rules.signals import check_signals
from understudy.check.rules.statistics import check_statistics
from understudy.check.rules.tasks import check_tasks
from understudy.check.rules.units import check_units
from understudy.check.rules.values import check_values
from understudy.check.rules.videos import check_places, check_videos
from understudy.check.sensor_facts import read_sensor_facts
from understudy.check.video_facts import SAMPLED_FILES, VideoFacts, read_videos
from understudy.data.format.catalog import INFO, Catalog
from understudy.data.format.standard_keys import rename_keys
from understudy.data.selection.motion import named_motion
from understudy.errors import DatasetError, SourceError
from understudy.progress import Progress
from understudy.storage.remote_options import RemoteOptions

ROLES = {ACTION: ("actions",), STATE: ("state", "observation.states", "observation.qpos", "qpos")}
"""Standard key -> other usual keys of openpi, LIBERO and ALOHA."""
Images = Literal["none", "sample", "all"]


def check_dataset(
    root: str | os.PathLike[str] | Catalog,
    images: Images = "sample",
    *,
    action: str = "",
    state: str = "",
    remote: RemoteOptions | None = None,
    show_progress: bool = False,
) -> Report:
    """Check a dataset by all rules of `findings.RULES`.

    Args:
        root: path, URL or hub id, or an open catalog.
        images: videos and images to read: "none", a "sample" spread evenly over the episodes, or "all".
        action: key of the action; by default `action`, else the first of `ROLES`.
        state: key of the state; by default `observation.state`, else the first of `ROLES`.
        remote: options for a dataset on another machine.
        show_progress: whether to show progress on stderr.

    Raises:
        DatasetError: there is no dataset at `root`, its source gives no answer, or `action` or `state` is no vector.
    """
    begin = time.monotonic()
    findings: list[Finding] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            catalog = Catalog.open(root, remote)
    except SourceError:
        raise
    except DatasetError as error:
        address = str(root)
        if not os.path.exists(os.path.join(address, INFO)):
            raise
        place = Place(file=str(error.where or INFO).removeprefix(os.path.abspath(address) + "/"))
        findings = [Finding("metadata.unreadable", "error", error.what, place, fix=error.fix)]
        return Report(address, "", 0, 0, {}, tuple(findings), seconds=time.monotonic() - begin)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # irregularities are findings
        findings += _check_metadata(catalog, images != "none")
        catalog, own = _with_roles(catalog, action, state)
        facts = _read(catalog, show_progress)
        findings += _check_rows(catalog, facts)
        read = {"data_files": facts.files, "rows": facts.rows}
        if catalog.sensors:
            sensors = [read_sensor_facts(catalog, sensor) for sensor in catalog.sensors.values()]
            findings += check_sensors(catalog, sensors)
            read |= {"sensor_files": sum(len(one.files) - len(one.broken) for one in sensors)}
        if images != "none":
            videos, decoded = _read_images(catalog, facts, images, show_progress)
            findings += [*check_videos(catalog, videos), *check_images(catalog, facts, decoded)]
            findings += [*check_changed_images(catalog, decoded), *check_image_detail(catalog, decoded)]
            findings += check_camera_poses(catalog, decoded)
            findings += [*check_motion(catalog, decoded), *check_depth(catalog, decoded)]
            read |= {"videos": sum(map(len, videos.files.values())), "images": decoded.images}
    decided = [finding for finding in findings if finding.severity != "undecided"]
    return Report(
        root=catalog.root,
        version=catalog.version,
        episodes=catalog.num_episodes,
        frames=catalog.num_frames,
        read=read,
        findings=tuple(_name_columns(one, catalog, own) for one in sort_findings(decided)),
        undecided=merge_undecided(finding for finding in findings if finding.severity == "undecided"),
        ranking=tuple(rank_episodes(catalog, facts)[:20]),
        seconds=time.monotonic() - begin,
        idle_share=_idle_share(catalog, facts),
    )


def _with_roles(catalog: Catalog, action: str, state: str) -> tuple[Catalog, dict[str, str]]:
    """Return the catalog with its action and state under the standard keys, and standard key -> own key.

    Without names, `ROLES` are tried where the standard key is absent.
    """
    own = {key: name for key, name in ((ACTION, action), (STATE, state)) if name}
    for key, names in ROLES.items():
        usual = [name for name in names if name in catalog.features and len(catalog.features[name].shape) == 1]
        if key not in own and key not in catalog.features and usual:
            own[key] = usual[0]
    return rename_keys(catalog, own), own


def _name_columns(finding: Finding, catalog: Catalog, own: dict[str, str]) -> Finding:
    """Fill the fix of a finding, and place it at the dataset's own key."""
    place = replace(finding.place, column=own.get(finding.place.column, finding.place.column))
    leaves_none = len(place.episodes) == catalog.num_episodes
    return replace(finding, place=place, fix=fill(finding.fix, catalog.root, leaves_none))


def _idle_share(catalog: Catalog, facts: RowFacts) -> float | None:
    steps = int(np.maximum(catalog.episodes.lengths - 1, 0)[facts.is_read].sum())
    return int(facts.idle.sum()) / steps if steps and named_motion(list(facts.columns)) else None


def _check_metadata(catalog: Catalog, opens_videos: bool) -> Iterator[Finding]:
    yield from check_metadata(catalog)
    yield from check_files(catalog)
    yield from check_places(catalog, opens_videos)


def _read(catalog: Catalog, show_progress: bool) -> RowFacts:
    with Progress(catalog.num_frames, "rows", "row", shown=show_progress) as progress:
        return read_rows(catalog, progress.update)


def _read_images(
    catalog: Catalog, facts: RowFacts, images: Images, show_progress: bool
) -> tuple[VideoFacts, ImageFacts]:
    every = images == "all"
    files = sum(
        min(len(videos.files), SAMPLED_FILES if not every else 1 << 62) for videos in catalog.episodes.videos.values()
    )
    with Progress(files, "videos", "file", shown=show_progress) as progress:
        videos = read_videos(catalog, None if every else SAMPLED_FILES, progress.update)
    episodes = catalog.num_episodes if every else min(catalog.num_episodes, SAMPLED_EPISODES)
    with Progress(episodes * len(catalog.camera_keys), "images", "episode", shown=show_progress) as progress:
        return videos, read_images(catalog, facts, videos, None if every else SAMPLED_EPISODES, progress.update)


def _check_rows(catalog: Catalog, facts: RowFacts) -> Iterator[Finding]:
    yield from check_rows(catalog, facts)
    yield from check_tasks(catalog, facts)
    yield from check_clocks(catalog, facts)
    yield from check_values(catalog, facts)
    yield from check_units(catalog, facts)
    yield from check_action_state(catalog, facts)
    yield from check_signals(catalog, facts)
    yield from check_offsets(catalog, facts)
    yield from check_statistics(catalog, facts)
    yield from check_episodes(catalog, facts)
