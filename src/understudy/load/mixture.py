"""Mixtures: what several datasets deliver, made one, so that every batch has the same keys, dtypes and shapes.

Two robots rarely have equally many joints. Where the sources declare vectors of different widths under one key, every
batch has the width of the widest, whichever sources it happens to hold samples of:

    <key>               zeros behind a sample's own dimensions, [B, D] or [B, T, D]
    real_<key>_dim      int64 [B], how many are its own: `real_action_dim`
    <key>_dim_is_pad    bool [B, D], True where it is padding; `<key>_is_pad` [B, T] goes on telling the padded steps

Where some sources lack a camera that others have (`EpisodeDataset(absent=...)`), every batch has it, black where it is
missing, and `<camera>_is_missing` bool [B] tells where.

A declared scalar is a vector of width 1 there. Numbers of one kind (two floats, two integers) take the wider dtype,
which changes no value. The frame rate needs nothing: each dataset turns seconds into its own frames.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from understudy.data.dataset import EpisodeDataset
from understudy.data.format.features import INDEX_KEYS

_Declared: TypeAlias = tuple[np.dtype | str, int, tuple[int, ...]]
"""Of a key: dtype (or "video", "image", "absent", "text", "no declared number"), length of the window (0: none), shape
of a value."""


@dataclass(frozen=True)
class Mixture:
    """How the parts of a batch, one of each source, become one batch."""

    dtypes: Mapping[str, torch.dtype]
    """Of the numbers that info.json declares."""
    widths: Mapping[str, int]
    """Of the keys whose width differs between the sources: that of the widest."""
    absent: Mapping[str, frozenset[int]]
    """Of the cameras that some sources lack: which of them do."""
    black: Mapping[str, EpisodeDataset]
    """Of those that no source has as video, so that pictures come with the rows: a source that lacks the camera."""

    @classmethod
    def of(cls, datasets: Sequence[EpisodeDataset]) -> "Mixture":
        """What comes of these sources; nothing is read.

        Raises:
            ValueError: they differ in what cannot be made one; names both and what to do.
        """
        absent = {c: frozenset(s for s, d in enumerate(datasets) if c in d.absent) for d in datasets for c in d.absent}
        with_rows = [c for c, lack in absent.items() if len(lack) < len(datasets) and not _is_video(c, datasets)]
        black = {c: datasets[min(absent[c])] for c in with_rows}
        if len(datasets) == 1:
            return cls({}, {}, absent, black)
        declared = [_declared(dataset) for dataset in datasets]
        first = dict(declared[0])
        dtypes: dict[str, np.dtype] = {
            key: dtype for key, (dtype, _, _) in first.items() if isinstance(dtype, np.dtype)
        }
        widths: dict[str, int] = {}
        for number, other in enumerate(declared[1:], 1):
            names = f"sources 0 ({datasets[0].name}) and {number} ({datasets[number].name})"
            if odd := sorted(first.keys() ^ other.keys()):
                raise ValueError(
                    f"{names} deliver different keys: {odd} only in one; select the same with keys=[...], with windows "
                    "(delta_timestamps) for the same ones, and say of cameras that one lacks absent={camera: size}"
                )
            for key, (dtype, window, shape) in other.items():
                one, own_window, own = first[key]
                if window != own_window:
                    what = f"{key!r} has a window of {own_window} and of {window} in {names}"
                    raise ValueError(f"{what}: one batch needs one shape; give delta_timestamps of the same length")
                if key in absent and "absent" in (one, dtype):
                    first[key] = (dtype if one == "absent" else one), window, own
                    continue
                if isinstance(one, str) or isinstance(dtype, str):
                    if one != dtype:
                        raise ValueError(f"{key!r} is {one} and {dtype} in {names}: leave it out with keys=")
                    continue
                if dtype.kind != dtypes[key].kind:
                    raise ValueError(f"{key!r} is {one} and {dtype} in {names}: leave it out with keys=")
                dtypes[key] = np.promote_types(dtypes[key], dtype)
                if shape != own:
                    if dtype.kind != "f" or max(len(shape), len(own)) > 1:
                        what = f"{key!r} is {one} {own} and {dtype} {shape} in {names}"
                        raise ValueError(f"{what}: one batch needs one shape; leave it out with keys=[...]")
                    widths[key] = max(widths.get(key, 1), *shape, *own)
        return cls({key: _torch(dtype) for key, dtype in dtypes.items()}, widths, absent, black)

    def join(self, parts: Mapping[int, dict[str, Any]], source: np.ndarray) -> dict[str, Any]:
        """One batch from one per source: row i is the next row of part `source[i]`.

        Raises:
            ValueError: the parts differ in a key, a shape or a dtype that no dataset declares; names both.
        """
        parts = {s: self._whole(s, part) for s, part in parts.items()} if self.absent else parts
        batch: dict[str, Any] = {}
        places = {s: torch.from_numpy(np.flatnonzero(source == s)) for s in parts}
        first, *others = parts
        for other in others:
            if odd := sorted(parts[other].keys() ^ parts[first].keys()):
                raise ValueError(f"sources {first} and {other} deliver different keys: {odd} only in one")
        for key, sample in parts[first].items():
            if not isinstance(sample, Tensor):
                rows = {s: iter(part[key]) for s, part in parts.items()}
                batch[key] = [next(rows[s]) for s in source.tolist()]
            elif key in self.widths:
                window = f"{key}_is_pad" in parts[first]
                batch |= self._padded(key, {s: part[key] for s, part in parts.items()}, places, window)
            else:
                dtype = self.dtypes.get(key, sample.dtype)
                if not others and sample.dtype == dtype:
                    batch[key] = sample
                    continue
                batch[key] = torch.empty((len(source), *sample.shape[1:]), dtype=dtype)
                for s, part in parts.items():
                    given = part[key]
                    if given.shape[1:] != sample.shape[1:] or (key not in self.dtypes and given.dtype != dtype):
                        raise ValueError(
                            f"{key!r} is {sample.dtype} {tuple(sample.shape[1:])} in source {first} and "
                            f"{given.dtype} {tuple(given.shape[1:])} in source {s}: one batch needs one shape"
                        )
                    batch[key][places[s]] = given.to(dtype)
        return batch

    def _whole(self, source: int, part: dict[str, Any]) -> dict[str, Any]:
        """A part with what tells of cameras that some source lacks."""
        count, more = len(part["episode_index"]), {}
        for camera, lack in self.absent.items():
            if source not in lack:
                more[f"{camera}_is_missing"] = torch.zeros(count, dtype=torch.bool)
            elif camera in self.black:
                more[camera] = self.black[camera].black(camera, count)
        return part | more

    def _padded(
        self, key: str, parts: Mapping[int, Tensor], places: Mapping[int, Tensor], window: bool
    ) -> dict[str, Tensor]:
        """The three entries of a key whose width differs."""
        count, width = sum(len(at) for at in places.values()), self.widths[key]
        some = next(iter(parts.values()))
        joined = torch.zeros((count, *some.shape[1 : 1 + window], width), dtype=self.dtypes[key])
        real = torch.empty(count, dtype=torch.int64)
        for s, part in parts.items():
            own = part if part.ndim == joined.ndim else part.unsqueeze(-1)  # a scalar is a vector of width 1
            padded = torch.zeros((len(own), *joined.shape[1:]), dtype=joined.dtype)
            padded[..., : own.shape[-1]] = own
            joined[places[s]] = padded
            real[places[s]] = own.shape[-1]
        return {key: joined, f"real_{key}_dim": real, f"{key}_dim_is_pad": torch.arange(width) >= real[:, None]}


def _declared(dataset: EpisodeDataset) -> dict[str, _Declared]:
    features, windows = dataset.catalog.features, dataset.windows
    found: dict[str, _Declared] = {}
    for key in dict.fromkeys([*dataset.keys, *INDEX_KEYS]):
        feature = features.get(key)
        dtype: np.dtype | str = "no declared number"
        shape: tuple[int, ...] = ()
        if key in ("frame_index", "episode_index"):  # counted, whatever is stored
            dtype = np.dtype(np.int64)
        elif feature is None and key in INDEX_KEYS:
            dtype = np.dtype(np.float32 if key == "timestamp" else np.int64)
        elif key in dataset.absent:
            dtype = "absent"
        elif feature is not None and (feature.is_text or feature.is_picture):
            dtype = "text" if feature.is_text else "video" if feature.is_video else "image"
        elif feature is not None:
            dtype, shape = np.dtype(feature.dtype), () if key in INDEX_KEYS else feature.value_shape
        found[key] = dtype, windows.get(key, 0), shape
    return found


def row_bytes(dataset: EpisodeDataset) -> int:
    """Bytes of the declared numbers of one sample, windows included."""
    declared = _declared(dataset).values()
    return sum(
        d.itemsize * max(1, window) * int(np.prod(shape)) for d, window, shape in declared if not isinstance(d, str)
    )


def _torch(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _is_video(camera: str, datasets: Sequence[EpisodeDataset]) -> bool:
    return any(camera in dataset.cameras for dataset in datasets)


def picture_shapes(
    datasets: Sequence[EpisodeDataset], size: tuple[int, int] | None
) -> list[dict[str, tuple[int, ...]]]:
    """Of each source, one sample's pictures of what is video in some source, or absent in all: camera -> (3, H, W) or
    (T, 3, H, W).

    Args:
        size: (height, width) that pictures are resized to; None: as recorded.

    Raises:
        ValueError: the sources' differ.
        DatasetError: a video cannot be opened.
    """
    cameras = dict.fromkeys(c for d in datasets for c in d.cameras)
    cameras |= dict.fromkeys(c for c in datasets[0].absent if all(c in d.absent for d in datasets))
    shapes = [_shapes(dataset, list(cameras), size) for dataset in datasets]
    for number, (dataset, own) in enumerate(zip(datasets, shapes)):
        for camera, shape in own.items():
            if shape != (one := shapes[0][camera]):
                raise ValueError(
                    f"{camera!r} is {one} in source 0 ({datasets[0].name}) and {shape} in source {number} "
                    f"({dataset.name}): one batch needs one shape; give size=(height, width)"
                )
    return shapes


def _shapes(dataset: EpisodeDataset, cameras: list[str], size: tuple[int, int] | None) -> dict[str, tuple[int, ...]]:
    segment = dataset.segments[dataset.segments[:, 2] > dataset.segments[:, 1]][:1]
    rows, _ = dataset.video_frames(segment[:, 0], segment[:, 1])
    found = {}
    for camera in cameras:
        sides = dataset.absent.get(camera)
        if sides is None and size is None:
            reader = dataset.pictures.reader(camera, int(rows[0]))
            sides = reader.height, reader.width
        window = [dataset.windows[camera]] if camera in dataset.windows else []
        found[camera] = (*window, 3, *(size or sides or ()))
    return found
