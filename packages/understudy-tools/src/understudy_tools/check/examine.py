"""One examination of a dataset: `examine` collects facts, `check_dataset` applies all rules to
them.
"""

import os
import time
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from understudy_base import DatasetError, Progress
from understudy_data import Catalog, RemoteOptions, StandardKeys, Workers, open_episodes
from understudy_tools.check.contents import describe_contents
from understudy_tools.check.effects import complete_fix, rank_findings
from understudy_tools.check.findings import (
    Finding,
    Findings,
    Place,
    Report,
    fill,
    merge_undecided,
    sort_findings,
)
from understudy_tools.check.image_facts import (
    SAMPLED_EPISODES,
    SAMPLED_FILES,
    ImageFacts,
    VideoFacts,
    read_images,
    read_videos,
)
from understudy_tools.check.row_facts import ACTION, STATE, RowFacts, read_rows
from understudy_tools.check.rules.action_state import check_action_state
from understudy_tools.check.rules.camera_poses import check_camera_poses
from understudy_tools.check.rules.episodes import check_episodes, rank_episodes
from understudy_tools.check.rules.files import check_clocks, check_files, check_rows
from understudy_tools.check.rules.image_detail import check_changed_images, check_image_detail
from understudy_tools.check.rules.images import check_depth, check_images
from understudy_tools.check.rules.metadata import check_metadata, check_tasks
from understudy_tools.check.rules.motion import check_motion
from understudy_tools.check.rules.pairing import check_pairing
from understudy_tools.check.rules.sensors import check_sensors
from understudy_tools.check.rules.signals import check_offsets, check_signals
from understudy_tools.check.rules.statistics import check_statistics
from understudy_tools.check.rules.values import check_units, check_values
from understudy_tools.check.rules.videos import check_places, check_videos
from understudy_tools.check.sensor_facts import SensorFacts, read_sensor_facts
from understudy_tools.motion import named_motion

ROLES = {ACTION: ("actions",), STATE: ("state", "observation.states", "observation.qpos", "qpos")}
"""Standard key -> other usual keys of openpi, LIBERO and ALOHA."""
Depth = Literal["metadata", "rows", "sample", "all"]
"""Files to read: those of meta/; also all rows; also videos and images, a sample spread over the
episodes, or all.
"""


@dataclass
class Facts:
    """Facts about a dataset, as deep as it was examined.

    Attributes:
        catalog: the dataset.
        rows: facts about all rows; None below the depth "rows".
        sensors: facts about each sensor.
        videos, images: facts about video files and decoded images; None below the depth "sample".
    """

    catalog: Catalog
    rows: RowFacts | None = None
    sensors: list[SensorFacts] = field(default_factory=list)
    videos: VideoFacts | None = None
    images: ImageFacts | None = None

    @property
    def read(self) -> dict[str, int]:
        """Number of things that were read, by name."""
        counts: dict[str, int] = {}
        if self.rows is not None:
            counts |= {"data_files": self.rows.files, "rows": self.rows.rows}
        if self.sensors:
            counts["sensor_files"] = sum(
                len(sensor.files) - len(sensor.broken) for sensor in self.sensors
            )
        if self.videos is not None and self.images is not None:
            counts |= {
                "videos": sum(map(len, self.videos.files.values())),
                "images": self.images.images,
            }
        return counts


def examine(
    catalog: Catalog,
    depth: Depth = "sample",
    show_progress: bool = False,
    workers: Workers | None = None,
) -> Facts:
    """Read a dataset to a depth, in this process or in `workers`.

    Raises:
        SourceError: the source of the dataset gives no answer. Unreadable files are facts.
    """
    facts = Facts(catalog)
    workers = workers or Workers()
    if depth == "metadata":
        return facts
    with Progress(catalog.num_frames, "rows", "row", shown=show_progress) as progress:
        facts.rows = read_rows(catalog, workers, progress.update)
    facts.sensors = [read_sensor_facts(catalog, key) for key in catalog.sensors]
    if depth == "rows":
        return facts
    most_files = SAMPLED_FILES if depth == "sample" else None
    most_episodes = SAMPLED_EPISODES if depth == "sample" else None
    tables = catalog.episodes.videos.values()
    files = sum(min(len(videos.files), most_files or len(videos.files)) for videos in tables)
    with Progress(files, "videos", "file", shown=show_progress) as progress:
        facts.videos = read_videos(catalog, most_files, workers, progress.update)
    episodes = min(catalog.num_episodes, most_episodes or catalog.num_episodes)
    with Progress(
        episodes * len(catalog.camera_keys), "images", "episode", shown=show_progress
    ) as progress:
        facts.images = read_images(
            catalog, facts.rows, facts.videos, most_episodes, workers, progress.update
        )
    return facts


def apply_rules(facts: Facts) -> Findings:
    """Yield the findings of all rules whose facts were read."""
    catalog = facts.catalog
    rows = facts.rows
    images = facts.images
    yield from check_places(catalog, facts.videos is not None)
    if rows is not None:
        yield from check_pairing(catalog, rows, facts.videos)
        yield from check_rows(catalog, rows, facts.videos)
        yield from check_tasks(catalog, rows)
        yield from check_clocks(catalog, rows)
        yield from check_values(rows)
        yield from check_units(rows)
        yield from check_action_state(catalog, rows)
        yield from check_signals(rows)
        yield from check_offsets(rows)
        for check in (check_statistics, check_episodes):
            yield from check(catalog, rows)
    yield from check_sensors(catalog, facts.sensors)
    if rows is not None and facts.videos is not None and images is not None:
        yield from check_videos(catalog, facts.videos)
        yield from check_images(catalog, rows, images)
        for check_pixels in (
            check_changed_images,
            check_image_detail,
            check_camera_poses,
            check_motion,
            check_depth,
        ):
            yield from check_pixels(catalog, images)


def check_dataset(
    root: str | os.PathLike[str] | Catalog,
    depth: Depth = "sample",
    *,
    action: str = "",
    state: str = "",
    remote: RemoteOptions | None = None,
    show_progress: bool = False,
    workers: Workers | None = None,
    **layout: Any,
) -> Report:
    """Check a dataset by all rules of `findings.RULES`.

    Args:
        root: path, URL or hub id, or an open catalog. Of a view, findings about other episodes
            alone are left out.
        depth: files to read (`Depth`).
        action: key of the action; by default `action`, else the first of `ROLES`.
        state: key of the state; by default `observation.state`, else the first of `ROLES`.
        remote: options for a dataset on another machine.
        show_progress: whether to show progress on stderr.
        workers: processes that read the files; None reads them in this one.
        layout: `video_path`, `data_path`, `version` and `pairing` of `Catalog.open`.

    Raises:
        DatasetError: there is no dataset at `root`, its source gives no answer, or `action` or
            `state` is not a vector.
    """
    begin = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # irregularities are findings
        try:
            stored = Catalog.open(root, remote, **layout)
        except DatasetError as error:
            return _unreadable(str(root), error, begin)
        # Metadata is checked under its own keys, all else under the standard ones.
        # not in the view
        others = set(stored.episodes.ids.tolist()) - set(
            open_episodes(stored).episodes.ids.tolist()
        )
        stored = replace(stored, view=None)
        findings = [*check_metadata(stored), *check_files(stored)]
        catalog, names = _with_roles(stored, action, state)
        facts = examine(catalog, depth, show_progress, workers)
        findings += apply_rules(facts)
        metadata = _read_metadata(stored, findings)
        findings = [
            f for f in findings if not f.place.episodes or not others.issuperset(f.place.episodes)
        ]
        contents = describe_contents(stored, metadata, facts.rows, facts.videos, names)
    decided = sort_findings(finding for finding in findings if finding.severity != "undecided")
    named = tuple(_name_column(finding, stored, names) for finding in decided)
    ranking = rank_episodes(catalog, facts.rows)[:20] if facts.rows is not None else []
    return Report(
        root=stored.root,
        version=stored.version,
        episodes=stored.num_episodes,
        frames=stored.num_frames,
        read=facts.read,
        findings=rank_findings(named),
        undecided=merge_undecided(
            finding for finding in findings if finding.severity == "undecided"
        ),
        ranking=tuple(ranking),
        seconds=time.monotonic() - begin,
        idle_share=_idle_share(catalog, facts.rows),
        contents=contents,
        catalog=stored,
    )


def _unreadable(address: str, error: DatasetError, begin: float) -> Report:
    """Return the report of a dataset whose metadata cannot be read; where there is none, raise the
    error.
    """
    if not os.path.exists(os.path.join(address, Catalog.INFO)):
        raise error
    place = Place(
        file=str(error.where or Catalog.INFO).removeprefix(os.path.abspath(address) + "/")
    )
    finding = Finding("metadata.unreadable", "error", error.what, place, fix=error.fix)
    return Report(address, "", 0, 0, {}, (finding,), seconds=time.monotonic() - begin)


def _read_metadata(catalog: Catalog, findings: list[Finding]) -> dict[str, dict[int, Any]]:
    """Return the metadata of episodes; {} and a finding where it cannot be read."""
    try:
        return catalog.episode_metadata()
    except DatasetError as error:
        if all(finding.rule != "metadata.unreadable" for finding in findings):
            place = Place(file=str(error.where or "meta/").removeprefix(f"{catalog.root}/"))
            findings.append(
                Finding("metadata.unreadable", "warning", error.what, place, fix=error.fix)
            )
        return {}


def _with_roles(catalog: Catalog, action: str, state: str) -> tuple[Catalog, dict[str, str]]:
    """Return the catalog with its action and state under the standard keys, and standard key -> the
    dataset's key.

    Without names, `ROLES` are tried where the standard key is absent.
    """
    names = {key: name for key, name in ((ACTION, action), (STATE, state)) if name}
    for key, others in ROLES.items():
        usual = [
            name
            for name in others
            if name in catalog.features and len(catalog.features[name].shape) == 1
        ]
        if key not in names and key not in catalog.features and usual:
            names[key] = usual[0]
    return StandardKeys(names).rename(catalog), names


def _name_column(finding: Finding, catalog: Catalog, names: dict[str, str]) -> Finding:
    """Fill the fix of a finding, and place it at the dataset's key."""
    place = replace(finding.place, column=names.get(finding.place.column, finding.place.column))
    leaves_none = len(place.episodes) == catalog.num_episodes
    filled = replace(finding, place=place, fix=fill(finding.fix, catalog.root, leaves_none))
    return complete_fix(filled, catalog.root)


def _idle_share(catalog: Catalog, rows: RowFacts | None) -> float | None:
    if rows is None or not named_motion(list(rows.columns)):
        return None
    steps = int(np.maximum(catalog.episodes.lengths - 1, 0)[rows.is_read].sum())
    return int(rows.idle.sum()) / steps if steps else None
