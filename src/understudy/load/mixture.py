"""Mixtures: what several datasets deliver, made one, so that every batch has the same keys, dtypes and shapes.

Two robots rarely have equally many joints. Where the sources declare vectors of different widths under one key, every
batch has the width of the widest, whichever sources it happens to hold samples of:

    <key>               zeros behind a sample's own dimensions, [B, D] or [B, T, D]
    real_<key>_dim      int64 [B], how many are its own: `real_action_dim`
    <key>_dim_is_pad    bool [B, D], True where it is padding; `<key>_is_pad` [B, T] goes on telling the padded steps

A declared scalar is a vector of width 1 there. Numbers of one kind (two floats, two integers) take the wider dtype,
which changes no value. The frame rate needs nothing: each dataset turns seconds into its own frames.

Not here: what has no right answer and is refused, with what to do instead: different keys or cameras, windows of
different lengths, matrices of different shapes, pictures of different sizes (`engine.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from understudy.data.features import INDEX_KEYS
from understudy.data.samples import EpisodeDataset

_Declared: TypeAlias = tuple[np.dtype | None, int, tuple[int, ...]]
"""Of a key: dtype (None for what is no number, or not declared), length of the window (0: none), shape of a value."""


@dataclass(frozen=True)
class Mixture:
    """How the parts of a batch, one of each source, become one batch."""

    dtypes: Mapping[str, torch.dtype]
    """Of the numbers that info.json declares."""
    widths: Mapping[str, int]
    """Of the keys whose width differs between the sources: that of the widest."""

    @classmethod
    def of(cls, datasets: Sequence[EpisodeDataset]) -> "Mixture":
        """What comes of these sources; nothing is read.

        Raises:
            ValueError: they differ in what cannot be made one; names both and what to do.
        """
        if len(datasets) == 1:
            return cls({}, {})
        declared = [_declared(dataset) for dataset in datasets]
        first = declared[0]
        dtypes: dict[str, np.dtype] = {key: dtype for key, (dtype, _, _) in first.items() if dtype is not None}
        widths: dict[str, int] = {}
        for number, other in enumerate(declared[1:], 1):
            names = f"sources 0 ({datasets[0].name}) and {number} ({datasets[number].name})"
            if odd := sorted(first.keys() ^ other.keys()):
                raise ValueError(
                    f"{names} deliver different keys: {odd} only in one; select the same with keys=[...], "
                    "with windows (delta_timestamps) for the same ones"
                )
            for key, (dtype, window, shape) in other.items():
                one, own_window, own = first[key]
                if (dtype is None) != (one is None) or (dtype is not None and dtype.kind != dtypes[key].kind):
                    raise ValueError(f"{key!r} is {_kind(one)} and {_kind(dtype)} in {names}: leave it out with keys=")
                if window != own_window:
                    what = f"{key!r} has a window of {own_window} and of {window} in {names}"
                    raise ValueError(f"{what}: one batch needs one shape; give delta_timestamps of the same length")
                if dtype is None:
                    continue
                dtypes[key] = np.promote_types(dtypes[key], dtype)
                if shape != own:
                    if dtype.kind != "f" or max(len(shape), len(own)) > 1:
                        what = f"{key!r} is {one} {own} and {dtype} {shape} in {names}"
                        raise ValueError(f"{what}: one batch needs one shape; leave it out with keys=[...]")
                    widths[key] = max(widths.get(key, 1), *shape, *own)
        return cls({key: _torch(dtype) for key, dtype in dtypes.items()}, widths)

    def join(self, parts: Mapping[int, dict[str, Any]], source: np.ndarray) -> dict[str, Any]:
        """One batch from one per source: row i is the next row of part `source[i]`.

        Raises:
            ValueError: the parts differ in a key, a shape or a dtype that no dataset declares; names both.
        """
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
        dtype: np.dtype | None = None
        shape: tuple[int, ...] = ()
        if key in ("frame_index", "episode_index"):  # counted, whatever is stored
            dtype = np.dtype(np.int64)
        elif feature is None and key in INDEX_KEYS:
            dtype = np.dtype(np.float32 if key == "timestamp" else np.int64)
        elif feature is not None and not feature.is_text and not feature.is_picture:
            dtype, shape = np.dtype(feature.dtype), () if key in INDEX_KEYS else feature.value_shape
        found[key] = dtype, windows.get(key, 0), shape
    return found


def _kind(dtype: np.dtype | None) -> str:
    return "no declared number" if dtype is None else str(dtype)


def _torch(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
