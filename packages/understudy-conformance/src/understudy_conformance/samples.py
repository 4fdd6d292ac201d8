"""Samples and batches under test: their place, their columns, windows and images, against the known
answers.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from understudy_conformance.requirement import NotApplicable, Violation, list_places
from understudy_conformance.sets import FEATURES, TASKS, DemoSet, read_image, values

Place = tuple[int, int]
WINDOW_STEPS = (-2, -1, 0, 1, 3)
"""Steps of the windows that are asked of a subject, in frames."""
LEVEL_TOLERANCE = 12.0
"""Largest error of an image block, in levels of 255. Limited and full range differ by 14 at the
levels used.
"""


def to_array(value: Any) -> NDArray[Any]:
    """Return an array of a tensor, an array, a list or a number."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)


def find_place(sample: Mapping[str, Any], demo: DemoSet) -> Place:
    """Return (episode, frame) of a sample: by its index columns, else by the image of a camera.

    Raises:
        Violation: the sample has none of these.
    """
    if "episode_index" in sample and "frame_index" in sample:
        return int(to_array(sample["episode_index"]).item()), int(
            to_array(sample["frame_index"]).item()
        )
    if "index" in sample:
        number = int(to_array(sample["index"]).item())
        return demo.frames[number] if 0 <= number < len(demo.frames) else (-1, number)
    for key in demo.cameras:
        if key in sample and to_array(sample[key]).ndim == 3:
            identity, _ = read_image(to_array(sample[key]))
            return identity[1:] if identity else (-1, -1)
    raise Violation(
        f"a sample with the keys {', '.join(map(str, sample))} has neither episode_index and "
        "frame_index nor index"
    )


def split_batch(batch: Any) -> list[Mapping[str, Any]]:
    """Return the samples of a batch: a mapping of columns, or a list of samples."""
    if isinstance(batch, Mapping):
        size = min(len(value) for value in batch.values() if has_rows(value))
        samples: list[Mapping[str, Any]] = []
        for row in range(size):
            samples.append({key: take(value, row) for key, value in batch.items()})
        return samples
    return list(batch)


def take(value: Any, row: int) -> Any:
    """Return a row of a column; a value without rows is that of each."""
    return value[row] if has_rows(value) else value


def has_rows(value: Any) -> bool:
    """Return whether a value is a column; a text, a number or an array without dimensions is that
    of each row.
    """
    return (
        hasattr(value, "__len__") and not isinstance(value, str) and getattr(value, "ndim", 1) > 0
    )


def checksum(sample: Mapping[str, Any]) -> int:
    """Return a checksum of all values of a sample."""
    total = 0
    for key in sorted(map(str, sample)):
        value = sample[key]
        if isinstance(value, str):
            content = value.encode()
        else:
            content = np.ascontiguousarray(to_array(value)).tobytes()
        total = zlib.crc32(content, zlib.crc32(key.encode(), total))
    return total


@dataclass
class Tally:
    """Comparisons of one kind.

    Attributes:
        compared: number of comparisons.
        wrong: places that differ, each once.
        notes: facts about the first of them.
    """

    compared: int = 0
    wrong: list[Place] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, place: Place, right: bool, note: str = "") -> None:
        """Count a comparison."""
        self.compared += 1
        if not right:
            if place not in self.wrong:
                self.wrong.append(place)
            if note and len(self.notes) < 3:
                self.notes.append(note)

    def conclude(self, noun: str) -> str:
        """Return the facts.

        Raises:
            Violation: there are differences.
            NotApplicable: there was nothing to compare.
        """
        if self.wrong:
            facts = f"{noun} of {len(self.wrong)} samples: {list_places(self.wrong)}"
            raise Violation("; ".join([facts, *self.notes]))
        if not self.compared:
            raise NotApplicable(f"no {noun}")
        return f"{self.compared} {noun}"


def compare_columns(
    samples: Iterable[Mapping[str, Any]], demo: DemoSet, keys: Sequence[str]
) -> Tally:
    """Compare columns of samples with their rows. A float32 column may have been cast to another
    float and back.
    """
    tally = Tally()
    for sample in samples:
        place = find_place(sample, demo)
        if place not in demo.frames:
            continue
        truth = values(*place)
        for key in keys:
            if key in sample:
                actual = to_array(sample[key])
                right = actual.size == truth[key].size and np.array_equal(
                    actual.reshape(-1), truth[key].reshape(-1)
                )
                tally.add(
                    place,
                    right,
                    f"{key} is {actual.reshape(-1).tolist()}, not {truth[key].tolist()}",
                )
    return tally


def compare_tasks(samples: Iterable[Mapping[str, Any]], demo: DemoSet) -> Tally:
    """Compare the text `task` of samples with that of their rows."""
    tally = Tally()
    for sample in samples:
        place = find_place(sample, demo)
        if place in demo.frames and "task" in sample:
            truth = TASKS[demo.task_index(*place)]
            tally.add(
                place,
                str(sample["task"]) == truth,
                f"task is {str(sample['task'])!r}, not {truth!r}",
            )
    return tally


def compare_images(
    samples: Iterable[Mapping[str, Any]], demo: DemoSet, levels: bool = False
) -> Tally:
    """Compare the images of samples with those of their rows: whose they are, or with `levels`
    their colors.
    """
    tally = Tally()
    for sample in samples:
        place = find_place(sample, demo)
        for camera, key in enumerate(demo.cameras):
            if place not in demo.frames or key not in sample:
                continue
            image = to_array(sample[key])
            if image.ndim == 4 and len(image) == 1:
                image = image[0]
            identity, error = read_image(image)
            if levels:
                tally.add(
                    place, error <= LEVEL_TOLERANCE, f"{key} differs by {error:.0f} of 255 levels"
                )
            else:
                shown = _describe_identity(identity)
                tally.add(place, identity == (camera, *place), f"{key} shows {shown}")
    return tally


def _describe_identity(identity: tuple[int, int, int] | None) -> str:
    if identity is None:
        return "no recorded image"
    return "camera {} episode {} frame {}".format(*identity)


def window_seconds(demo: DemoSet, keys: Iterable[str]) -> dict[str, list[float]]:
    """Return `delta_timestamps` of the windows that are asked of a subject."""
    seconds = [step / demo.fps for step in WINDOW_STEPS]
    return {key: list(seconds) for key in keys}


def compare_windows(samples: Iterable[Mapping[str, Any]], demo: DemoSet, key: str) -> Tally:
    """Compare windows of a column or a camera with the rows at their times, where those lie inside
    the episode.
    """
    tally = Tally()
    for sample in samples:
        episode, frame = place = find_place(sample, demo)
        if place not in demo.frames or key not in sample:
            continue
        window = to_array(sample[key])
        if len(window) != len(WINDOW_STEPS):
            tally.add(
                place,
                False,
                f"{key} has the shape {list(window.shape)}, for {len(WINDOW_STEPS)} steps",
            )
            continue
        for step, actual in zip(WINDOW_STEPS, window):
            if not 0 <= frame + step < demo.lengths[episode]:
                continue
            if key in demo.cameras:
                identity, _ = read_image(actual)
                right = identity == (demo.cameras.index(key), episode, frame + step)
                shown = _describe_identity(identity)
            else:
                truth = values(episode, frame + step)[key]
                right = np.array_equal(actual.reshape(-1), truth)
                shown = str(actual.reshape(-1).tolist())
            tally.add(place, right, f"step {step:+} of {key} is {shown}")
    return tally


def compare_padding(
    samples: Iterable[Mapping[str, Any]], demo: DemoSet, keys: Iterable[str]
) -> Tally:
    """Compare `<key>_is_pad` of samples with the steps outside their episode."""
    tally = Tally()
    keys = tuple(keys)
    for sample in samples:
        episode, frame = place = find_place(sample, demo)
        for key in keys:
            if place in demo.frames and f"{key}_is_pad" in sample:
                flags = to_array(sample[f"{key}_is_pad"]).reshape(-1).tolist()
                truth = [not 0 <= frame + step < demo.lengths[episode] for step in WINDOW_STEPS]
                tally.add(place, flags == truth, f"{key}_is_pad is {flags}, not {truth}")
    return tally


COLUMNS = tuple(key for key, (dtype, _) in FEATURES.items() if dtype == "float32")
"""Columns that every dtype of a learner holds. `observation.clock` is float64."""
