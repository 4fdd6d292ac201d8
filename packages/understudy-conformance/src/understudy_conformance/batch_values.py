"""Batches as arrays, and the samples that they hold."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from understudy.data.dataset import EpisodeDataset
from understudy.errors import ConfigError

Adapt = Callable[[Any], Mapping[str, Any]]


def as_arrays(batch: Any) -> dict[str, np.ndarray]:
    """Convert a batch to arrays with a leading dimension B.

    Args:
        batch: a mapping of tensors, arrays or lists, or a list of samples (mappings). Text becomes an array of str.
            Values that are neither numbers nor text are left out.

    Raises:
        ConfigError: another type.
    """
    if isinstance(batch, Sequence) and batch and all(isinstance(sample, Mapping) for sample in batch):
        keys = [key for key in batch[0] if all(key in sample for sample in batch)]
        batch = {key: [sample[key] for sample in batch] for key in keys}
    if not isinstance(batch, Mapping):
        raise ConfigError(
            f"a batch is a {type(batch).__name__}; it must be a mapping or a list of mappings: give `adapt`, a function"
            " that makes one of it"
        )
    arrays = {str(key): _as_array(value) for key, value in batch.items()}
    return {key: value for key, value in arrays.items() if value.dtype.kind in "biufU" and value.ndim}


def _as_array(value: Any) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (torch.Tensor, np.ndarray)):
        arrays = [_as_array(element) for element in value]
        same = len({array.shape for array in arrays}) == 1
        return np.stack(arrays) if same else np.empty(0, object)
    try:
        return np.asarray(value)
    except ValueError:
        return np.empty(0, object)


def digest(values: Mapping[str, np.ndarray]) -> int:
    """Checksum of all values of a batch, under any sequence of keys."""
    sum_ = 0
    for key in sorted(values):
        value = np.ascontiguousarray(values[key])
        text = value.dtype.kind == "U"
        head = f"{key} {'text' if text else value.dtype} {value.shape}"
        sum_ = zlib.crc32(head.encode(), sum_)
        sum_ = zlib.crc32("\0".join(value.ravel().tolist()).encode() if text else value.tobytes(), sum_)
    return sum_


class SampleNumbers:
    """Samples of a dataset's selection, numbered in storage order; `len` is the size of an epoch.

    Args:
        data: the dataset.

    Attributes:
        counts: int64 (n,), how often an epoch has each sample: 1 without frame weights.
    """

    def __init__(self, data: EpisodeDataset) -> None:
        self.data = data
        self._ends = np.cumsum(data.segments[:, 2] - data.segments[:, 1])
        self.counts = np.ones(int(self._ends[-1]), np.int64)
        if data.frame_weights is not None:
            bounds = np.zeros(len(self.counts) + 1, np.int64)
            copies = data.epoch_segments
            first = self.number(copies[:, 0], copies[:, 1])
            np.add.at(bounds, first, 1)
            np.add.at(bounds, first + copies[:, 2] - copies[:, 1], -1)
            self.counts = np.cumsum(bounds)[:-1]
        self._first_index: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return int(self.counts.sum())

    def locate(self, values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return (episode ids, frames), int64 (B,) each, of the samples of a batch.

        Read from (episode_index, frame_index), else from index, else from (episode_index, timestamp).

        Raises:
            ConfigError: the batch has none of them.
        """
        episode, frame = _column(values, "episode_index"), _column(values, "frame_index")
        index, time = _column(values, "index"), _column(values, "timestamp")
        if episode is not None and frame is not None:
            return np.rint(episode).astype(np.int64), np.rint(frame).astype(np.int64)
        if index is not None:
            return self._locate_index(np.rint(index).astype(np.int64))
        if episode is not None and time is not None:
            return np.rint(episode).astype(np.int64), np.rint(time * float(self.data.fps)).astype(np.int64)
        raise ConfigError(
            f"a batch has the keys {', '.join(sorted(values))}; its samples are known by episode_index and frame_index,"
            " by index, or by episode_index and timestamp: give `adapt`, a function that adds them"
        )

    def _locate_index(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Samples of the column `index`: first values of all episodes, then the nearest one below."""
        if self._first_index is None:
            whole = EpisodeDataset(self.data.catalog, keys=[])
            ids = whole.segments[:, 0]
            first = np.asarray(whole.row_batch(ids, np.zeros_like(ids))["index"])
            by = np.argsort(first, kind="stable")
            self._first_index = first[by], ids[by]
        first, ids = self._first_index
        row = np.clip(np.searchsorted(first, index, side="right") - 1, 0, None)
        return ids[row], index - first[row]

    def number(self, episode: np.ndarray, frame: np.ndarray) -> np.ndarray:
        """Return the numbers of samples, int64 (B,); -1 for a frame outside the selection."""
        segments = self.data.segments
        key = segments[:, 0] * (1 << 32) + segments[:, 1]
        row = np.searchsorted(key, episode * (1 << 32) + np.clip(frame, 0, (1 << 32) - 1), side="right") - 1
        segment = segments[np.maximum(row, 0)]
        inside = (row >= 0) & (segment[:, 0] == episode) & (frame >= segment[:, 1]) & (frame < segment[:, 2])
        return np.where(inside, self._ends[np.maximum(row, 0)] - segment[:, 2] + frame, -1)

    def place(self, number: int) -> str:
        """Return the episode and frame of a sample as text."""
        episode, frame = self.data.locate([number])
        return f"episode {int(episode[0])} frame {int(frame[0])}"


def _column(values: Mapping[str, np.ndarray], key: str) -> np.ndarray | None:
    """Column of one number per sample, float64 or int64 (B,)."""
    value = values.get(key)
    if value is None or value.dtype.kind not in "iuf" or value.size != len(value):
        return None
    return value.reshape(-1).astype(np.int64 if value.dtype.kind in "iu" else np.float64)
