"""Rows, windows, padding and images of a loader's batches, compared with a slow reference.

The reference reads single frames of the dataset and forms windows step by step in Python. It shares no window code with
the loaders of this package.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from understudy.data.dataset import EpisodeDataset
from understudy.data.format.features import INDEX_KEYS

IMAGE_TOLERANCE = 3.0
"""Largest mean difference of two decodings of one image, in levels of 255: decoders differ in chroma upsampling and
rounding. A nearer neighbour (`NEARER`) is found below it."""
NEARER = 0.8
"""An image belongs to a neighbour whose image is closer than this share of the distance to its own."""
_CLOSE = 1e-6  # relative: a column cast to float32 and back


@dataclass
class Tally:
    """Comparisons of one kind.

    Attributes:
        compared: number of comparisons.
        wrong: number of differences.
        examples: the first differences, as text.
        keys: keys that were compared.
    """

    compared: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)

    def add(self, key: str, wrong: np.ndarray, examples: list[str]) -> None:
        """Count the comparisons of `key`: `wrong` bool (n,), with a text for each that is wrong."""
        self.keys.add(key)
        self.compared += len(wrong)
        self.wrong += int(wrong.sum())
        self.examples += examples[: max(0, 5 - len(self.examples))]


class Content:
    """Comparison of batches with the dataset.

    Args:
        data: the dataset, with its windows.
        max_images: images to decode for comparison.
    """

    def __init__(self, data: EpisodeDataset, max_images: int) -> None:
        self._data = data
        cameras = (*data.video_keys, *data.image_keys)
        keys = [key for key in data.keys if key not in data.missing_cameras]
        columns = [key for key in keys if key not in cameras]
        self._rows = EpisodeDataset(data.catalog, keys=columns)
        self._cameras = {key: EpisodeDataset(data.catalog, keys=[key]) for key in cameras}
        self._columns = tuple(dict.fromkeys([*columns, *INDEX_KEYS, "task"]))
        self._images_left = max_images
        self._length = dict(self._rows.segments[:, [0, 2]].tolist())
        self._batches = 0
        self.rows, self.windows, self.padding, self.images = Tally(), Tally(), Tally(), Tally()
        self.not_compared: dict[str, str] = {}
        """Key -> why it could not be compared."""

    def visit(self, values: dict[str, np.ndarray], episode: np.ndarray, frame: np.ndarray) -> None:
        """Compare a batch. Samples outside the selection are left out: `coverage` reports them."""
        stops = [self._stop(e, f) for e, f in zip(episode.tolist(), frame.tolist())]
        has_stop = np.array([stop is not None for stop in stops])
        if not has_stop.any():
            return
        values = {key: value[has_stop] for key, value in values.items() if len(value) == len(has_stop)}
        episode, frame = episode[has_stop], frame[has_stop]
        stop = np.array([stop for stop in stops if stop is not None], np.int64)
        self._compare_rows(values, episode, frame)
        for key, offsets in self._data.offsets.items():
            if key not in self._data.missing_cameras:
                self._compare_window(key, offsets.tolist(), values, episode, frame, stop)
        self._compare_images(values, episode, frame, stop)
        self._batches += 1

    def _stop(self, episode: int, frame: int) -> int | None:
        """End of the windows of a sample; None outside the selection."""
        segments = self._data.segments
        inside = (segments[:, 0] == episode) & (segments[:, 1] <= frame) & (frame < segments[:, 2])
        return int(self._data.window_stops[inside][0]) if inside.any() else None

    def _compare_rows(self, values: Mapping[str, np.ndarray], episode: np.ndarray, frame: np.ndarray) -> None:
        truth = self._rows.row_batch(episode, frame)
        for key in self._columns:
            if key in self._data.offsets or key not in truth:
                continue
            if key not in values:
                self.not_compared[key] = "not in the batches"
                continue
            wrong = _differs(values[key], np.asarray(truth[key]))
            self.rows.add(key, wrong, [f"{key} of {_at(episode, frame, i)}" for i in np.flatnonzero(wrong).tolist()])

    def _compare_window(
        self,
        key: str,
        offsets: list[int],
        values: Mapping[str, np.ndarray],
        episode: np.ndarray,
        frame: np.ndarray,
        stop: np.ndarray,
    ) -> None:
        steps = [[_step(int(f), offset, int(end)) for offset in offsets] for f, end in zip(frame, stop)]
        pad = np.array([[outside for _, outside in row] for row in steps])
        flags = values.get(f"{key}_is_pad")
        if flags is None:
            self.not_compared[f"{key}_is_pad"] = "not in the batches"
        else:
            same = flags.size == pad.size
            wrong = (flags.reshape(pad.shape) != pad).any(1) if same else np.ones(len(pad), bool)
            places = [f"{key}_is_pad of {_at(episode, frame, i)}" for i in np.flatnonzero(wrong).tolist()]
            self.padding.add(key, wrong, places)
        if key in self._cameras:
            return
        if key not in values:
            self.not_compared[key] = "not in the batches"
            return
        frames = np.array([[position for position, _ in row] for row in steps])
        flat = self._rows.row_batch(np.repeat(episode, len(offsets)), frames.reshape(-1))[key]
        truth = np.asarray(flat).reshape(*frames.shape, *np.asarray(flat).shape[1:])
        actual = values[key]
        if actual.size != truth.size:
            shapes = f"{key} has the shape {list(actual.shape[1:])}, its window {list(truth.shape[1:])}"
            self.windows.add(key, np.ones(len(actual), bool), [shapes])
            return
        differs = _differs(actual.reshape(-1, *truth.shape[2:]), truth.reshape(-1, *truth.shape[2:]))
        wrong = (differs.reshape(pad.shape) & ~pad).any(1)
        self.windows.add(key, wrong, [f"{key} of {_at(episode, frame, i)}" for i in np.flatnonzero(wrong).tolist()])

    def _compare_images(
        self, values: Mapping[str, np.ndarray], episode: np.ndarray, frame: np.ndarray, stop: np.ndarray
    ) -> None:
        """Compare one sample of the batch, and samples whose windows meet an end of their episode."""
        if self._images_left <= 0 or not self._cameras:
            return
        edge = (frame == 0) | (frame == stop - 1)
        for offsets in (self._data.offsets[key] for key in self._cameras if key in self._data.offsets):
            edge |= (frame + offsets.min() < 0) | (frame + offsets.max() >= stop)
        picks = {self._batches % len(frame), *np.flatnonzero(edge)[:2].tolist()}
        for i in sorted(picks):
            for camera in self._cameras:
                self._compare_image(camera, values, i, int(episode[i]), int(frame[i]), int(stop[i]))

    def _compare_image(
        self, camera: str, values: Mapping[str, np.ndarray], i: int, episode: int, frame: int, stop: int
    ) -> None:
        if camera not in values:
            self.not_compared[camera] = "not in the batches"
            return
        offsets = self._data.offsets[camera].tolist() if camera in self._data.offsets else [0]
        steps = [_step(frame, offset, stop) for offset in offsets]
        actual = values[camera][i]
        for step, (position, outside) in enumerate(steps):
            if outside or self._images_left <= 0:
                continue
            near = [f for f in (position, position - 1, position + 1) if 0 <= f < self._length[episode]]
            batch = self._cameras[camera].batch(np.full(len(near), episode), np.array(near))
            truth = np.asarray(batch[camera]).astype(np.float32)
            image = _as_levels(actual, len(steps), step, truth.shape[1:])
            if image is None:
                self.not_compared[camera] = f"shape {list(actual.shape)}, recorded as {list(truth.shape[1:])}"
                return
            self._images_left -= 1
            distance = np.abs(truth - image).mean(axis=(1, 2, 3))
            best = int(distance.argmin())
            if distance[0] > IMAGE_TOLERANCE or distance[best] < NEARER * distance[0]:
                nearest = f"; frame {near[best]} is nearer ({distance[best]:.2f})" if best else ""
                message = f"{camera} of episode {episode} frame {position} differs by {distance[0]:.2f} of 255{nearest}"
                self.images.add(camera, np.ones(1, bool), [message])
            else:
                self.images.add(camera, np.zeros(1, bool), [])


def _step(frame: int, offset: int, stop: int) -> tuple[int, bool]:
    """Frame of one step of a window, and whether the step lies outside [0, stop)."""
    position = frame + offset
    if position < 0:
        return 0, True
    return (stop - 1, True) if position >= stop else (position, False)


def _differs(actual: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Whether each sample differs, bool (B,); numbers may have been cast to float32."""
    if actual.size != truth.size:
        return np.ones(len(actual), bool)
    actual, truth = actual.reshape(len(truth), -1), truth.reshape(len(truth), -1)
    if truth.dtype.kind not in "biuf" or actual.dtype.kind not in "biuf":
        return np.asarray((actual.astype(str) != truth.astype(str)).any(1))
    if actual.dtype.kind in "biu" and truth.dtype.kind in "biu":
        return np.asarray((actual != truth).any(1))
    close = np.isclose(actual.astype(np.float64), truth.astype(np.float64), rtol=_CLOSE, atol=1e-12, equal_nan=True)
    return np.asarray(~close.all(1))


def _as_levels(actual: np.ndarray, steps: int, step: int, shape: tuple[int, ...]) -> np.ndarray | None:
    """Image of one step as float32 (3, H, W) in levels of 255; None if it has another size."""
    size = int(np.prod(shape))
    if actual.size != steps * size:
        return None
    image = actual.reshape(steps, *actual.shape[-3:])[step] if actual.ndim >= 3 else actual.reshape(steps, *shape)[step]
    if image.shape != shape:
        if image.shape != (*shape[1:], shape[0]):
            return None
        image = image.transpose(2, 0, 1)
    return image.astype(np.float32) * (255.0 if image.dtype.kind == "f" else 1.0)


def _at(episode: np.ndarray, frame: np.ndarray, i: int) -> str:
    return f"episode {int(episode[i])} frame {int(frame[i])}"
