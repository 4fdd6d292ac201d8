"""A camera of the output from videos that were recorded apart from the dataset.

Frame i of an episode with start s gets the frame that is shown nearest to the time s + i / fps of
the video, of two equally near ones the earlier. Times are seconds since the start of the file, as a
player counts them, after its edit list.
"""

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from understudy_base import DatasetError, plural
from understudy_data import (
    Catalog,
    Encoding,
    EpisodeClips,
    Feature,
    OutsideVideo,
    VideoClip,
)
from understudy_tools.edit.annotations import read_starts
from understudy_tools.edit.features import fit_size, parse_size
from understudy_tools.edit.plan import Piece, Plan

_EPISODE = "{episode}"


@dataclass(frozen=True)
class AddedVideo:
    """Videos of a new camera.

    Attributes:
        key: key of the camera.
        path: the file; `{episode}` in it is the id of an episode.
        starts: seconds of each episode's first frame in its video, by the episode's table row.
        marks: size and time of the last change of each file, by path.
    """

    key: str
    path: str
    starts: Mapping[int, float]
    marks: Mapping[str, tuple[int, int]]

    def file(self, episode: int) -> str:
        """Return the path of an episode's video."""
        return self.path.replace(_EPISODE, str(episode))

    def times(self, piece: Piece, fps: float) -> np.ndarray:
        """Return the time of each frame of a piece in the video, float64 (length,)."""
        return self.starts[piece.row] + piece.frames / fps

    def clips(self, plan: Plan) -> Callable[[Piece], VideoClip]:
        """Return what gives the frames of a piece in the videos."""
        return _AddedClips(self, plan)


class _AddedClips:
    """Frames of pieces in the videos of a new camera; the tables of the last video are kept.

    Raises:
        DatasetError: the file has changed since the plan was made, or cannot be read.
    """

    def __init__(self, video: AddedVideo, plan: Plan) -> None:
        self._video = video
        self._plan = plan
        self._last: OutsideVideo | None = None

    def __call__(self, piece: Piece) -> VideoClip:
        episode = int(self._plan.sources[piece.source].episodes.ids[piece.row])
        path = self._video.file(episode)
        if self._last is None or path != self._last.path:
            if _mark(path) != self._video.marks[path]:
                problem = "changed while the dataset was written"
                raise DatasetError(problem, where=path, fix="start again")
            self._last = OutsideVideo.read(path)
        return self._last.clip(self._video.times(piece, self._plan.fps))


def _mark(path: str) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


@dataclass(frozen=True)
class VideoToAdd:
    """Settings of a camera to add.

    Attributes:
        key: key of the camera.
        path: see `AddedVideo`.
        start: a number, or the path of a JSON or CSV file with the start of each episode.
        on_uncovered: what to do about episodes that leave their video.
        encoding: codec, gop and crf where they are given.
        size: size of the images, as `parse_size` reads it; "" for that of the video.
    """

    key: str
    path: str
    start: str
    on_uncovered: Literal["error", "drop"] = "error"
    encoding: Encoding = field(default_factory=Encoding)
    size: str = ""

    @cached_property
    def films(self) -> dict[str, OutsideVideo]:
        """The video that was read last, by its path."""
        return {}

    def add(self, plan: Plan) -> Plan:
        """Return the plan with the camera.

        Raises:
            DatasetError: the key exists or is not valid, a video cannot be read, the videos have
                several sizes, or a piece leaves its video (`on_uncovered`).
        """
        source = plan.sources[0]
        if self.key in plan.features:
            fix = "name another camera, or leave that one out with --drop-features"
            raise DatasetError(f"add_video names {self.key!r}, which exists", fix=fix)
        starts = self._read_starts(source)
        video = AddedVideo(self.key, self.path, starts, {})
        lost: dict[int, DatasetError] = {}
        sizes: dict[tuple[int, int], str] = {}
        marks: dict[str, tuple[int, int]] = {}
        for number, piece in enumerate(plan.pieces):
            path = video.file(int(source.episodes.ids[piece.row]))
            if (error := self._check(plan, video, piece, path)) is None:
                marks[path] = _mark(path)
                sizes.setdefault(self.films[path].image_size, path)
            elif self.on_uncovered == "drop":
                lost[number] = error
            else:
                raise error
        if not sizes:
            raise DatasetError(
                f"add_video covers none of {plural(len(plan.pieces), 'episode')}: "
                f"{next(iter(lost.values())).what}",
                where=self.path,
                fix="give another --start",
            )
        (size, first), *others = sizes.items()
        if others and "x" not in self.size:
            raise DatasetError(
                f"has images of {_by(others[0][0])} pixels, and {first} of {_by(size)}",
                where=others[0][1],
                fix="make them equal: --size WIDTHxHEIGHT",
            )
        if lost:
            ids = source.episodes.ids[[plan.pieces[number].row for number in lost]]
            named = Catalog.describe_ids(ids)
            problem = f"add_video: left out, since the video does not cover them: {named}"
            warnings.warn(problem, stacklevel=2)
        encoding, feature = self._describe(plan, size)
        video = replace(video, marks=marks)
        origin = {"key": self.key, "files": {path: marks[path][0] for path in marks}}
        origin |= {"starts": {str(int(source.episodes.ids[row])): starts[row] for row in starts}}
        return replace(
            plan.without(lost),
            features={**plan.features, self.key: feature},
            encode={**plan.encode, self.key: encoding},
            added={self.key: video},
            origin={**plan.origin, "added_video": origin},
        )

    def _read_starts(self, source: Catalog) -> dict[int, float]:
        """Return the start of each episode in its video by table row.

        A number is the start of each episode where each has a file. In one file it is that of the
        first episode, and the others follow without a gap.
        """
        try:
            number = float(self.start or 0)
        except ValueError:
            return read_starts(source, self.start)
        if not math.isfinite(number):
            raise DatasetError(f"start is {self.start}", fix="give seconds")
        rows = range(len(source.episodes))
        if _EPISODE in self.path:
            return dict.fromkeys(rows, number)
        first_frames = np.cumsum(source.episodes.lengths) - source.episodes.lengths
        return {row: number + int(first_frames[row]) / source.fps for row in rows}

    def _check(self, plan: Plan, video: AddedVideo, piece: Piece, path: str) -> DatasetError | None:
        """Return why a piece has no images in the video; None where it has. Raises DatasetError for
        an unreadable video.
        """
        episode = int(plan.sources[piece.source].episodes.ids[piece.row])
        fix = "give another --start, or leave such episodes out: --on-uncovered drop"
        if piece.row not in video.starts:
            return DatasetError(f"episode {episode} has no start", where=self.start, fix=fix)
        if path not in self.films:
            if not Path(path).is_file():
                problem = f"the video of episode {episode} is no file"
                return DatasetError(problem, where=path, fix=fix)
            self.films.clear()
            self.films[path] = OutsideVideo.read(path)
        film = self.films[path]
        wanted = video.times(piece, plan.fps)
        if film.covers(wanted, plan.fps):
            return None
        return DatasetError(
            f"episode {episode} needs {wanted[0]:.3f} to {wanted[-1]:.3f} s of the video, which "
            f"has {film.times[0]:.3f} to {film.stop:.3f} s",
            where=path,
            fix=fix,
        )

    def _describe(self, plan: Plan, size: tuple[int, int]) -> tuple[Encoding, Feature]:
        """Return encoding and feature of the camera: settings of the dataset's first camera, where
        no others are given.
        """
        recorded = _recorded_encoding(plan)
        recorded_codec = recorded.codec or "libsvtav1"
        codec = self.encoding.codec or recorded_codec
        crf = self.encoding.crf
        if crf is None and codec == recorded_codec:
            crf = recorded.crf
        if crf is None:
            crf = Encoding.default_crf(codec)
        image_size = fit_size(size, parse_size(self.size)) if self.size else size
        try:
            feature = Feature.video(self.key, image_size, codec)
        except ValueError as error:
            fix = "give an even --size, another --codec, or another key"
            raise DatasetError(f"add_video: {error}", where=self.path, fix=fix) from None
        new_size = image_size if self.size else None
        return Encoding(new_size, codec, self.encoding.gop or recorded.gop, crf), feature


def _recorded_encoding(plan: Plan) -> Encoding:
    """Return the settings of the first readable video of the first recorded camera. Without one
    gop is 2; the writer of the pieces then reports the missing video.
    """
    for camera in plan.recorded_cameras[:1]:
        crf = plan.features[camera].info.get("video.crf")
        if not isinstance(crf, int) or isinstance(crf, bool):
            crf = None
        clips = EpisodeClips(plan.sources, camera)
        for piece in plan.pieces:
            with suppress(DatasetError):
                return replace(clips.clip(*astuple(piece)).encoding, crf=crf)
    return Encoding(gop=2)


def _by(size: Sequence[int]) -> str:
    return f"{size[1]}x{size[0]}"
