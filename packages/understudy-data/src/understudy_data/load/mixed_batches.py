"""Mixtures: the batches of several datasets made one, so that every batch has the same keys, dtypes
and shapes.

Two robots rarely have equally many joints. Where datasets declare vectors of different widths under
one key, every batch has the width of the widest, whichever datasets its samples come from:

    <key>               zeros behind a sample's own dimensions, [B, D] or [B, T, D]
    real_<key>_dim      int64 [B], the sample's own dimensions: `real_action_dim`
    <key>_dim_is_pad    bool [B, D], True where a dimension is padding; `<key>_is_pad` [B, T] still
                        marks padded steps

Where some datasets lack a camera that others have (`EpisodeDataset(missing_cameras=...)`), every
batch has it, black where it is missing; `<camera>_is_missing` bool [B] marks these samples.

A declared scalar is a vector of width 1 there. Numbers of one kind (two floats, two integers) take
the wider dtype, which changes no value. Frame rates need no common value: each dataset converts
seconds into its own frames.

Rows of batches, read for several batches at once: numpy's calls cost the same for one batch as for
sixteen.
"""

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from understudy_base import LOSS_WEIGHT, DataAccessError
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.features import INDEX_KEYS

_Declared: TypeAlias = tuple[np.dtype | str, int, tuple[int, ...]]
"""Of a key: dtype (or "video", "image", "missing", "text", "no declared number"), window length (0:
none), shape.
"""


class UnlikeSourcesError(ValueError):
    """Several datasets of a mixture cannot share a batch with the first one.

    Attributes:
        problems: By number of such a dataset: the first difference, with a remedy.
    """

    def __init__(self, problems: Mapping[int, str]) -> None:
        super().__init__("\n".join(problems.values()))
        self.problems = dict(problems)

    def __reduce__(self) -> tuple[Any, ...]:
        return (UnlikeSourcesError, (self.problems,))


@dataclass(frozen=True)
class Mixture:
    """Common keys, dtypes and shapes of several datasets (sources), and the joining of their parts
    of a batch.
    """

    dtypes: Mapping[str, torch.dtype]
    """By key, of the numbers that info.json declares."""
    widths: Mapping[str, int]
    """By key, where widths differ between the sources: the widest."""
    missing: Mapping[str, frozenset[int]]
    """By camera that some sources lack: these sources."""
    black: Mapping[str, EpisodeDataset]
    """By such camera that is no video in any source, so that its images come with the rows: a
    source that lacks it.
    """
    weighs_loss: bool = False
    """Whether some source delivers `loss_weight`. The others then have 1."""

    @classmethod
    def unlike(cls, datasets: Sequence[EpisodeDataset]) -> dict[int, str]:
        """Return what keeps datasets from sharing a batch, by their numbers; {}: nothing does.

        Raises:
            ValueError: a single one contradicts the others; see `from_datasets`.
        """
        try:
            cls.from_datasets(datasets)
        except UnlikeSourcesError as error:
            return error.problems
        return {}

    @classmethod
    def from_datasets(cls, datasets: Sequence[EpisodeDataset]) -> "Mixture":
        """The mixture of some datasets. Reads no data.

        Raises:
            ValueError: a dataset differs from the first in a way that no batch can combine; names
                both and a remedy. It is an `UnlikeSourcesError` where several do.
        """
        lacking: dict[str, set[int]] = {}
        for number, dataset in enumerate(datasets):
            for camera in dataset.missing_cameras:
                lacking.setdefault(camera, set()).add(number)
        missing = {camera: frozenset(sources) for camera, sources in lacking.items()}
        with_rows = [
            c
            for c, lack in missing.items()
            if len(lack) < len(datasets) and not _is_video(c, datasets)
        ]
        black = {c: datasets[min(missing[c])] for c in with_rows}
        weighs_loss = any(
            d.frame_weights is not None and d.frame_weights.weighs_loss for d in datasets
        )
        if len(datasets) == 1:
            return cls({}, {}, missing, black, weighs_loss)
        dtypes, widths = _common(datasets, missing)
        return cls(
            {key: _torch(dtype) for key, dtype in dtypes.items()},
            widths,
            missing,
            black,
            weighs_loss,
        )

    def join(self, parts: Mapping[int, dict[str, Any]], source: np.ndarray) -> dict[str, Any]:
        """Join the parts of the sources into one batch: row i is the next row of part `source[i]`.

        Raises:
            ValueError: the parts differ in a key, a shape or a dtype that no dataset declares;
                names both.
        """
        parts = (
            {s: self._add_missing(s, part) for s, part in parts.items()} if self.missing else parts
        )
        if self.weighs_loss:
            parts = {
                s: {LOSS_WEIGHT: torch.ones(len(part["episode_index"]))} | part
                for s, part in parts.items()
            }
        batch: dict[str, Any] = {}
        places = {s: torch.from_numpy(np.flatnonzero(source == s)) for s in parts}
        first, *others = parts
        for other in others:
            if odd := sorted(parts[other].keys() ^ parts[first].keys()):
                raise ValueError(
                    f"sources {first} and {other} deliver different keys: {odd} only in one"
                )
        for key, sample in parts[first].items():
            if not isinstance(sample, Tensor):
                rows = {s: iter(part[key]) for s, part in parts.items()}
                batch[key] = [next(rows[s]) for s in source.tolist()]
            elif key in self.widths:
                window = f"{key}_is_pad" in parts[first]
                batch |= self._pad(key, {s: part[key] for s, part in parts.items()}, places, window)
            else:
                dtype = self.dtypes.get(key, sample.dtype)
                if not others and sample.dtype == dtype:
                    batch[key] = sample
                    continue
                batch[key] = torch.empty((len(source), *sample.shape[1:]), dtype=dtype)
                for s, part in parts.items():
                    tensor = part[key]
                    if tensor.shape[1:] != sample.shape[1:] or (
                        key not in self.dtypes and tensor.dtype != dtype
                    ):
                        raise ValueError(
                            f"{key!r} is {sample.dtype} {tuple(sample.shape[1:])} in source "
                            f"{first} and {tensor.dtype} {tuple(tensor.shape[1:])} in source {s}: "
                            "one batch needs one shape"
                        )
                    # torch assigns no uint16 by index; the bytes are the same
                    bits = torch.int16 if dtype == torch.uint16 else dtype
                    batch[key].view(bits)[places[s]] = tensor.to(dtype).view(bits)
        return batch

    def _add_missing(self, source: int, part: dict[str, Any]) -> dict[str, Any]:
        """Part of a batch with its entries for cameras that some source lacks."""
        count = len(part["episode_index"])
        more = {}
        for camera, lack in self.missing.items():
            if source not in lack:
                more[f"{camera}_is_missing"] = torch.zeros(count, dtype=torch.bool)
            elif camera in self.black:
                more[camera] = self.black[camera].black_images(camera, count)
        return part | more

    def _pad(
        self, key: str, parts: Mapping[int, Tensor], places: Mapping[int, Tensor], window: bool
    ) -> dict[str, Tensor]:
        """The three entries of a key whose width differs between sources."""
        count = sum(len(rows) for rows in places.values())
        width = self.widths[key]
        some = next(iter(parts.values()))
        joined = torch.zeros((count, *some.shape[1 : 1 + window], width), dtype=self.dtypes[key])
        real = torch.empty(count, dtype=torch.int64)
        for s, part in parts.items():
            # a scalar is a vector of width 1
            vectors = part if part.ndim == joined.ndim else part.unsqueeze(-1)
            padded = torch.zeros((len(vectors), *joined.shape[1:]), dtype=joined.dtype)
            padded[..., : vectors.shape[-1]] = vectors
            joined[places[s]] = padded
            real[places[s]] = vectors.shape[-1]
        return {
            key: joined,
            f"real_{key}_dim": real,
            f"{key}_dim_is_pad": torch.arange(width) >= real[:, None],
        }


def _common(
    datasets: Sequence[EpisodeDataset], missing: Collection[str]
) -> tuple[dict[str, np.dtype], dict[str, int]]:
    """Common dtypes, and the widest widths where widths differ; `missing`: cameras that some
    datasets lack.
    """
    declared = [_declared(dataset) for dataset in datasets]
    first = dict(declared[0])
    dtypes: dict[str, np.dtype] = {
        key: dtype for key, (dtype, _, _) in first.items() if isinstance(dtype, np.dtype)
    }
    widths: dict[str, int] = {}
    problems: dict[int, str] = {}
    for number, other in enumerate(declared[1:], 1):
        names = f"sources 0 ({datasets[0].name}) and {number} ({datasets[number].name})"
        try:
            _add(other, first, dtypes, widths, missing, names)
        except ValueError as error:
            problems[number] = str(error)
    if len(problems) > 1:
        raise UnlikeSourcesError(problems)
    for problem in problems.values():
        raise ValueError(problem)
    return dtypes, widths


def _add(
    other: dict[str, _Declared],
    first: dict[str, _Declared],
    dtypes: dict[str, np.dtype],
    widths: dict[str, int],
    missing: Collection[str],
    names: str,
) -> None:
    """Add what a further dataset declares to the common dtypes and widths. Raises ValueError where
    it cannot be.
    """
    if odd := sorted(first.keys() ^ other.keys()):
        raise ValueError(
            f"{names} deliver different keys: {odd} only in one; select the same with keys=[...], "
            "give windows (delta_timestamps) for the same ones, and missing_cameras={camera: "
            "size} for a lacking camera"
        )
    for key, (dtype, window, shape) in other.items():
        first_dtype, first_window, first_shape = first[key]
        if window != first_window:
            problem = f"{key!r} has a window of {first_window} and of {window} in {names}"
            raise ValueError(
                f"{problem}: one batch needs one shape; give delta_timestamps of the same length"
            )
        if key in missing and "missing" in (first_dtype, dtype):
            known_dtype = dtype if first_dtype == "missing" else first_dtype
            first[key] = known_dtype, window, first_shape
            continue
        if isinstance(first_dtype, str) or isinstance(dtype, str):
            if first_dtype != dtype:
                raise ValueError(
                    f"{key!r} is {first_dtype} and {dtype} in {names}: leave it out with keys="
                )
            continue
        if dtype.kind != dtypes[key].kind:
            raise ValueError(
                f"{key!r} is {first_dtype} and {dtype} in {names}: leave it out with keys="
            )
        if shape != first_shape:
            if dtype.kind != "f" or max(len(shape), len(first_shape)) > 1:
                problem = f"{key!r} is {first_dtype} {first_shape} and {dtype} {shape} in {names}"
                raise ValueError(
                    f"{problem}: one batch needs one shape; leave it out with keys=[...]"
                )
            widths[key] = max(widths.get(key, 1), *shape, *first_shape)
        dtypes[key] = np.promote_types(dtypes[key], dtype)


def _declared(dataset: EpisodeDataset) -> dict[str, _Declared]:
    features = dataset.catalog.features
    windows = dataset.windows
    declared: dict[str, _Declared] = {}
    for key in dict.fromkeys([*dataset.keys, *INDEX_KEYS]):
        feature = features.get(key)
        dtype: np.dtype | str = "no declared number"
        shape: tuple[int, ...] = ()
        if key in ("frame_index", "episode_index"):  # counted, independent of the stored dtype
            dtype = np.dtype(np.int64)
        elif feature is None and key in INDEX_KEYS:
            dtype = np.dtype("float32") if key == "timestamp" else np.dtype("int64")
        elif key in dataset.missing_cameras:
            dtype = "missing"
        elif feature is not None and feature.is_text:
            dtype = "text"
        elif feature is not None and feature.is_camera:
            dtype = "video" if feature.is_video else "image"
            if feature.is_depth:
                pixels = feature.pixels
                dtype = (
                    f"{dtype} of depth as {pixels.dtype} {pixels.codes or ''} "
                    f"{pixels.unit or pixels.stored_unit}"
                )
        elif key in dataset.catalog.sensors:
            sensor = dataset.catalog.sensors[key].feature
            dtype = np.dtype(sensor.dtype)
            shape = sensor.value_shape
        elif feature is not None:
            dtype = np.dtype(feature.dtype)
            shape = () if key in INDEX_KEYS else feature.value_shape
        declared[key] = dtype, windows.get(key, 0), shape
    return declared


def row_bytes(dataset: EpisodeDataset) -> int:
    """Bytes of the declared numbers of one sample, including windows."""
    declared = _declared(dataset).values()
    return sum(
        d.itemsize * max(1, window) * math.prod(shape)
        for d, window, shape in declared
        if not isinstance(d, str)
    )


def _torch(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _is_video(camera: str, datasets: Sequence[EpisodeDataset]) -> bool:
    return any(camera in dataset.video_keys for dataset in datasets)


def image_shapes(
    datasets: Sequence[EpisodeDataset], image_size: tuple[int, int] | None
) -> list[dict[str, tuple[int, ...]]]:
    """Shapes of one sample's images: for each source, camera -> (C, H, W) or (T, C, H, W); depth
    has C = 1, color 3.

    The cameras are those that are video in some source, or missing in all.

    Args:
        datasets: the sources.
        image_size: (height, width) that images are resized to; None for the recorded size.

    Raises:
        ValueError: the shapes of two sources differ.
        DatasetError: a video cannot be opened, or `image_size` is not for depth.
    """
    cameras = dict.fromkeys(chain.from_iterable(dataset.video_keys for dataset in datasets))
    for camera in datasets[0].missing_cameras:
        if all(camera in dataset.missing_cameras for dataset in datasets):
            cameras[camera] = None
    shapes = [_shapes(dataset, list(cameras), image_size) for dataset in datasets]
    for number, (dataset, camera_shapes) in enumerate(zip(datasets, shapes)):
        for camera, shape in camera_shapes.items():
            if shape != (expected := shapes[0][camera]):
                raise ValueError(
                    f"{camera!r} is {expected} in source 0 ({datasets[0].name}) and {shape} in "
                    f"source {number} ({dataset.name}): one batch needs one shape; give "
                    "image_size=(height, width)"
                )
    return shapes


def _shapes(
    dataset: EpisodeDataset, cameras: list[str], image_size: tuple[int, int] | None
) -> dict[str, tuple[int, ...]]:
    windows = dataset.windows
    shapes = {}
    for camera in cameras:
        pixels = dataset.pixels(camera)
        if image_size is not None:
            pixels.converter(image_size)  # refuses sizes of a policy for depth
        sides = dataset.missing_cameras.get(camera)
        if sides is None and image_size is None:
            facts = dataset.video_frames.facts(camera, dataset.first_row)
            sides = facts.height, facts.width
        window = [windows[camera]] if camera in windows else []
        shape = (pixels.channels, *(image_size or sides or ()))
        shapes[camera] = (*window, *shape)
    return shapes


class RowBatches:
    """All entries of successive batches except images from video. Thread-safe.

    Args:
        positions, source, episode, frame: int64 (n, B), of n batches.
    """

    def __init__(
        self,
        datasets: Sequence[EpisodeDataset],
        mixture: Mixture,
        positions: np.ndarray,
        source: np.ndarray,
        episode: np.ndarray,
        frame: np.ndarray,
    ) -> None:
        self._datasets = datasets
        self._mixture = mixture
        self._samples = positions, source, episode, frame
        self._lock = threading.Lock()
        self._read: list[dict[str, Any]] = []
        self._together = (
            len(positions) > 1 and not mixture.black and not any(d.image_keys for d in datasets)
        )

    def take(self, number: int) -> dict[str, Any]:
        """Entries of batch `number` of these, in memory of its own. Each batch can be taken once.

        Raises:
            DatasetError: a row of this batch cannot be read.
            ValueError: the rows of the sources do not make one batch.
        """
        with self._lock:
            if self._together and not self._read:
                try:
                    whole = read_rows(
                        self._datasets, self._mixture, *(part.reshape(-1) for part in self._samples)
                    )
                    self._read = _split(whole, len(self._samples[0]))
                except DataAccessError:
                    # read batch by batch from here on: only the bad one raises
                    self._together = False
            if self._read:
                batch = self._read[number]
                self._read[number] = {}
                return batch
        return read_rows(
            self._datasets, self._mixture, *(part[number].copy() for part in self._samples)
        )


def _split(whole: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """`count` equal batches of a long one.

    They are copies: a view would keep the whole tensor alive, and `torch.save` would save all of
    it.
    """
    batches: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, value in whole.items():
        size = len(value) // count
        if isinstance(value, Tensor):  # copying by numpy takes half the time of torch
            parts = value.numpy().reshape(count, size, *value.shape[1:])
            for batch, part in zip(batches, parts, strict=True):
                batch[key] = torch.from_numpy(part.copy())
        else:
            for i, batch in enumerate(batches):
                batch[key] = value[i * size : (i + 1) * size]
    return batches


def read_rows(
    datasets: Sequence[EpisodeDataset],
    mixture: Mixture,
    positions: np.ndarray,
    source: np.ndarray,
    episode: np.ndarray,
    frame: np.ndarray,
) -> dict[str, Any]:
    """All entries of one batch except images from video; the arguments are int64 (B,).

    Raises:
        DatasetError: a row cannot be read.
        ValueError: the rows of the sources do not make one batch.
    """
    parts = {}
    for s in np.unique(source).tolist():
        of_source = source == s
        parts[s] = datasets[s].row_batch(episode[of_source], frame[of_source])
    batch = mixture.join(parts, source)
    batch["position"] = torch.from_numpy(positions)
    batch["source"] = torch.from_numpy(source)
    return batch
