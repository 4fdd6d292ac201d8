"""Facts about the videos of many small datasets, kept in the cache of the host.

Opening a video costs a millisecond, and a run over thousands of datasets needs the facts of each
one to choose its order. They are found by size, times and inode of the file
(`mapped_tables.once_per_group`).
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from understudy_base import DatasetError
from understudy_data.datasets.read.video_frames import VideoFrames
from understudy_data.storage.mapped_tables import Member, are_many, once_per_group
from understudy_data.video.reader import VideoFacts


def keep_facts_of_many(videos: Sequence[tuple[VideoFrames, str, int]]) -> None:
    """Let the videos of many local datasets be opened only for images.

    A video that cannot be opened, or contradicts its dataset, is opened again by its first reader,
    which raises the error.

    Args:
        videos: videos of a dataset, its camera, and the table row of an episode.
    """
    local = [video for video in videos if video[0].catalog.files.is_local]
    if not are_many(len(local)):
        return
    members = []
    for frames, camera, row in local:
        place = f"{frames.catalog.root} {camera}"
        members.append(
            Member(place, partial(_key, frames, camera, row), partial(_read, frames, camera, row))
        )
    cache = local[0][0].catalog.files.cache
    for number, kept in once_per_group(members, cache, mapped=False):
        if kept is not None:
            frames, camera, row = local[number]
            with suppress(DatasetError):
                frames.keep_facts(camera, row, VideoFacts(*kept))


def _key(frames: VideoFrames, camera: str, row: int) -> str:
    """Text that changes with each input of the facts."""
    catalog = frames.catalog
    files = catalog.files
    feature = catalog.features[camera]
    videos = catalog.videos(camera)
    with suppress(DatasetError):
        path = catalog.video_path(camera, row)
        return json.dumps(
            [
                catalog.root,
                path,
                files.state(path),
                frames.backend,
                int(videos.expected[videos.file[row]]),
                repr(feature.pixels),
                feature.max_pixels,
            ]
        )
    return ""


def _read(frames: VideoFrames, camera: str, row: int) -> list[Any] | None:
    """Plain values of the facts; None where the video cannot be used."""
    try:
        return list(vars(frames.reader(camera, row).facts).values())
    except DatasetError:
        return None
