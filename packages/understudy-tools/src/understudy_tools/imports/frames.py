"""Values of all frames of a recording: one pass in the sequence of recording.

Images stay in memory, encoded, while a frame needs them; numbers until their episode ends. A frame
is complete when each of its streams has arrived, so memory depends on an episode's numbers and on
how far its streams are apart.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from understudy_tools.imports.layout import Layout
from understudy_tools.imports.recording import NANO, Recording, RecordingError
from understudy_tools.imports.settings import TASK
from understudy_tools.imports.timeline import Timeline
from understudy_tools.imports.values import to_image, to_numbers, to_text

Held = dict[str, dict[int, Any]]
"""Part -> number of a sample -> its value."""


def read_frames(
    recording: Recording, layout: Layout, timeline: Timeline, held: Held
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield (episode of the recording, frame, part -> value) of an opened recording.

    Args:
        recording: the recording.
        layout: its parts.
        timeline: its frames.
        held: filled with samples; the caller removes numbers and texts of finished episodes.

    Raises:
        RecordingError: a sample cannot be read, or differs from the first.
    """
    parts = layout.mapping.parts
    episodes = timeline.episodes
    picks = dict[str, np.ndarray]()
    nexts = dict[str, np.ndarray]()
    for name in parts:
        picks[name] = np.concatenate([episode.picks[name] for episode in episodes])
        nexts[name] = np.concatenate([episode.nexts[name] for episode in episodes])

    def value(name: str, frame: int, time: int) -> Any:
        pick = int(picks[name][frame])
        next_pick = int(nexts[name][frame])
        of_part = held[name]
        with _placed(layout, timeline, name, pick):
            if name in layout.images:
                for number in [number for number in of_part if number < pick]:
                    del of_part[number]
                if callable(of_part[pick]):
                    image = to_image(of_part[pick](), parts[name].color, name in layout.scaled)
                    of_part[pick] = _same_shape(layout, name, image)
                    if brightest[name] <= 1:
                        brightest[name] = max(brightest[name], int(image.max()))
            sample = of_part[pick]
            if next_pick != pick:
                begin = int(timeline.clocks[name][pick])
                end = int(timeline.clocks[name][next_pick])
                sample = sample + (time - begin) / (end - begin) * (
                    of_part[next_pick].astype(np.float64) - sample
                )
            if name not in layout.images and name != TASK and not np.isfinite(sample).all():
                raise RecordingError(
                    "value", f"number {int(np.argmin(np.isfinite(sample)))} is not finite"
                )
        return sample

    needed = {name: set(picks[name].tolist()) for name in layout.images}
    brightest = dict.fromkeys(layout.images, 0)
    places: list[tuple[int, int]] = []
    for number, times in enumerate(episode.times for episode in episodes):
        places += [(number, frame) for frame in range(len(times))]
    latest = dict.fromkeys(parts, -1)
    done = 0
    for stream, number, load in recording.samples(layout.mapping.streams):
        for name, part in parts.items():
            if part.stream != stream:
                continue
            latest[name] = number
            if name in layout.images:
                if number in needed[name]:
                    held[name][number] = load
                continue
            with _placed(layout, timeline, name, number):
                message = load()
                text = to_text(part, message) if name == TASK else None
                held[name][number] = text or _same_shape(layout, name, to_numbers(part, message))
        while done < len(places) and all(latest[name] >= nexts[name][done] for name in parts):
            episode, frame = places[done]
            time = int(episodes[episode].times[frame])
            yield episode, frame, {name: value(name, done, time) for name in parts}
            done += 1
    for name in (name for name, of_part in brightest.items() if of_part <= 1):
        problem = (
            f"all values of its images are 0{' or 1' * brightest[name]} of 255: they look black"
        )
        fix = "write masks as bools, and images of 0 to 1 as floats in all recordings"
        timeline.findings.append(RecordingError("image", problem, parts[name].stream, fix=fix))
    if done < len(places):
        raise RecordingError(
            "unreadable", f"ends {len(places) - done} frames before its first reading"
        )


@contextmanager
def _placed(layout: Layout, timeline: Timeline, name: str, number: int) -> Iterator[None]:
    """Add stream and time of a sample to a RecordingError."""
    try:
        yield
    except RecordingError as error:
        time = int(timeline.clocks[name][number]) / NANO
        raise error.replaced(stream=layout.mapping.parts[name].stream, time=time) from error


def _same_shape(layout: Layout, name: str, sample: np.ndarray) -> np.ndarray:
    if sample.shape != (first := layout.samples[name].shape):
        raise RecordingError("shape", f"has shape {sample.shape}, {first} at first")
    return sample
