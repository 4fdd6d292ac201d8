"""Observations of a robot against the facts of training, over time.

    check = ObservationCheck(contract, head)
    check.reset()                                        # start of an episode
    for mismatch in check.look(observation, time):       # each control step
        print(mismatch)

Each difference is reported once in an episode. Keys, shapes and dtypes are certain at once. Units,
orders and cameras are explanations of numbers: they need `LEAST_SEEN` observations, most of them
outside the range of training, and one explanation that is much better than none. So a new scene or
another light is reported as itself. Another order of dimensions needs ranges of more than
`_FEW_EPISODES` training episodes; with fewer, such numbers are reported by range.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any

import numpy as np

from understudy_base import PROMPT_METADATA, plural
from understudy_client.contract.camera_print import (
    CameraPrint,
    Explanation,
    explain_grids,
    explanations,
    shrink,
)
from understudy_client.contract.facts import Contract
from understudy_client.contract.image_size import size_error
from understudy_client.contract.mismatch import REMEDIES, Mismatch, printable
from understudy_client.contract.numbers import NUMBER_KINDS, explain_numbers, outside

LEAST_SEEN = 5
"""Observations before numbers or images are explained."""
_MOST_SEEN = 64  # observations that count, the latest ones
_REPEATED = 3  # equal images in a row while the robot moves
_REPEATED_S = 0.5  # seconds that they last: a camera may be slower than the robot
_ABSURD = 1000.0  # deviations outside the range of training; one such number is reported at once
_MOST_EXTRA = 8  # keys that are not inputs, by name
_LONGEST_TASK = 1000  # letters that are compared
_LARGEST = 1e100  # larger numbers of a state are compared as this one: their squares would overflow
_STATE = "observation.state"
_TASK = "task"
_OTHERS = ("is_pad", "is_missing")  # ends of keys that are not inputs


class ObservationCheck:
    """Checks of one robot's observations.

    Args:
        contract: facts about the training.
        head: norm head of the robot.

    Raises:
        KeyError: there is no such head.
    """

    def __init__(self, contract: Contract, head: str) -> None:
        self._facts = contract.robots[head]
        states = {name: robot.state for name, robot in contract.robots.items() if name != head}
        self._others = {name: state for name, state in states.items() if state is not None}
        prints = self._facts.looks
        self._prints = {key: (print_, explanations(key, prints)) for key, print_ in prints.items()}
        self.reset()

    def reset(self) -> None:
        """Start an episode: everything is examined anew, and reported again."""
        self._reported: set[tuple[str, str]] = set()
        self._is_absurd = False
        self._states: deque[np.ndarray] = deque(maxlen=_MOST_SEEN)
        self._looks = {key: _Look(*parts) for key, parts in self._prints.items()}
        # digest, how often in a row, state then
        self._images: dict[str, tuple[bytes, int, np.ndarray | None]] = {}
        self._times: deque[float] = deque(maxlen=1)

    def look(self, observation: Mapping[str, Any], time: float | None = None) -> list[Mismatch]:
        """Return the differences that this observation adds.

        Args:
            observation: values of one moment, numpy arrays by key of training or by the robot's own
                key: images uint8 [H, W, 3] or [3, H, W], the state [D], `task` a string.
            time: seconds on any clock.
        """
        mismatches = [*self._keys(observation), *self._instruction(observation), *self._time(time)]
        state = self._state(observation)
        if state is not None:
            self._states.append(state)
            mismatches += self._numbers()
        for key, image in self._camera_images(observation, mismatches):
            mismatches += [*self._repeated(key, image, state), *self._appearance(key, image)]
        fresh: dict[tuple[str, str], Mismatch] = {}
        for mismatch in mismatches:
            if (mark := (mismatch.kind, mismatch.key)) not in self._reported:
                fresh.setdefault(mark, mismatch)
        self._reported |= fresh.keys()
        return list(fresh.values())

    def _keys(self, observation: Mapping[str, Any]) -> Iterator[Mismatch]:
        recorded_keys: dict[str, str] = {}
        if self._facts.state is not None:
            recorded_keys[_STATE] = self._facts.state.key
        for key, camera in self._facts.cameras.items():
            recorded_keys[key] = camera.key
        recorded_keys[_TASK] = _TASK
        # the policy checks the last one
        inputs = {*recorded_keys, *recorded_keys.values(), PROMPT_METADATA}
        extra = [key for key in observation if key not in inputs and not key.endswith(_OTHERS)]
        for key, recorded in recorded_keys.items():
            if not {key, recorded} & set(observation):
                near = get_close_matches(recorded, extra, 1, 0.6)
                fix = f"is it {near[0]!r}?" if near else f"send it as {recorded!r}"
                came = printable(", ".join(sorted(observation))) or "nothing"
                yield Mismatch("missing key", recorded, "this input", came, fix)
        kind = "extra key"
        reported = {key for reported_kind, key in self._reported if reported_kind == kind}
        fresh = [key for key in map(printable, extra) if key not in reported]
        room = max(0, _MOST_EXTRA - len(reported))
        for key in fresh[:room]:
            yield Mismatch(kind, key, "no such input", "it, which is ignored", "leave it out")
        if len(fresh) > room:
            came = f"{len(fresh) - room} others, which are ignored"
            yield Mismatch(kind, "", "no such inputs", came, "leave them out")

    def _instruction(self, observation: Mapping[str, Any]) -> Iterator[Mismatch]:
        task = observation.get(_TASK)
        tasks = self._facts.tasks
        if not isinstance(task, str) or not tasks or self._facts.tasks_left_out:
            return
        trained_tasks = {_plain(trained): trained for trained in tasks}
        if _plain(task) in trained_tasks:
            return
        trained = f"{len(tasks)} others"
        near = get_close_matches(_plain(task)[:_LONGEST_TASK], trained_tasks, 1, 0.0)
        if near:
            count = plural(len(tasks), "instruction")
            trained = f"{count}, the nearest {trained_tasks[near[0]]!r}"
        fix = "give an instruction of training"
        yield Mismatch("instruction", _TASK, trained, repr(task[:200]), fix)

    def _time(self, time: float | None) -> Iterator[Mismatch]:
        if time is None:
            return
        if self._times and time < self._times[-1]:
            came = f"{time:g} s after {self._times[-1]:g} s"
            fix = "send each observation once, or reset()"
            yield Mismatch("time", "", "times that do not decrease", came, fix)
            return
        self._times.append(time)

    def _state(self, observation: Mapping[str, Any]) -> np.ndarray | None:
        facts = self._facts.state
        if facts is None:
            return None
        value = observation.get(_STATE, observation.get(facts.key))
        if value is None:
            return None
        state = np.asarray(value, np.float64).reshape(-1)
        if len(state) < facts.width or not np.isfinite(state).all():
            return None
        return np.clip(state[: facts.width], -_LARGEST, _LARGEST)

    def _numbers(self) -> Iterator[Mismatch]:
        """Explain the states so far."""
        facts = self._facts.state
        if facts is None:
            return
        values = np.stack(self._states)
        absurd = outside(values[-1:], facts, _ABSURD * np.maximum(facts.spread, facts.slack)).any()
        if absurd and not self._is_absurd:  # also where a smaller difference was reported before
            self._is_absurd = True
            values = values[-1:]
            self._reported -= {(kind, facts.key) for kind in NUMBER_KINDS}
        elif len(values) < LEAST_SEEN or self._has_explained(facts.key):
            return
        explained = explain_numbers(values, facts, self._facts.episodes, self._others)
        if explained is not None:
            yield explained

    def _has_explained(self, key: str) -> bool:
        """Whether the numbers of an input were explained in this episode."""
        return any((kind, key) in self._reported for kind in NUMBER_KINDS)

    def _camera_images(
        self, observation: Mapping[str, Any], mismatches: list[Mismatch]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the images that can be compared as (H, W, 3); add differences in shape and dtype to
        `mismatches`.
        """
        for key, camera in self._facts.cameras.items():
            value = observation.get(key, observation.get(camera.key))
            if value is None:
                continue
            image = np.asarray(value)
            if image.ndim == 3 and image.shape[0] == 3 and image.shape[2] != 3:
                image = image.transpose(1, 2, 0)
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                trained = f"uint8 {(*camera.size, 3)}"
                came = f"{image.dtype} {image.shape}"
                fix = "send RGB of 0..255 as uint8 (height, width, 3)"
                mismatches.append(Mismatch("dtype", camera.key, trained, came, fix))
                continue
            height, width = image.shape[:2]
            if unlike := camera.compare_size((height, width)):
                mismatches.append(unlike)
                if size_error(height, width, camera.size):
                    continue
            yield key, image

    def _repeated(
        self, key: str, image: np.ndarray, state: np.ndarray | None
    ) -> Iterator[Mismatch]:
        digest = blake2b(image.tobytes(), digest_size=16).digest()
        last_digest, repetitions, first_state = self._images.get(key, (b"", 0, None))
        if digest != last_digest:
            self._images[key] = digest, 0, state
            return
        repetitions += 1
        self._images[key] = digest, repetitions, first_state
        is_long = repetitions >= max(_REPEATED, _REPEATED_S * self._facts.fps)
        if is_long and self._has_moved(first_state, state):
            camera = self._facts.cameras[key].key
            came = f"the same image {repetitions + 1} times while the state changes"
            fix = "is the camera's stream alive?"
            yield Mismatch("repeated frame", camera, "a new image each step", came, fix)

    def _has_moved(self, earlier: np.ndarray | None, state: np.ndarray | None) -> bool:
        """Whether a dimension of the state has changed by more than a fiftieth of its range."""
        facts = self._facts.state
        if facts is None or earlier is None or state is None:
            return False
        least = 0.02 * np.nan_to_num(facts.high - facts.low) + 1e-9
        return bool((np.abs(state - earlier) > least).any())

    def _appearance(self, key: str, image: np.ndarray) -> Iterator[Mismatch]:
        look = self._looks.get(key)
        if look is None or (explained := look.add(shrink(image))) is None:
            return
        del self._looks[key]  # one explanation is enough
        (kind, came), usual, now = explained
        trained = f"images with a misfit of about {usual:.1f}"
        came = f"{came} (misfit {now:.1f} as they are)"
        yield Mismatch(kind, self._facts.cameras[key].key, trained, came, REMEDIES[kind])


class _Look:
    """Misfits of one camera's images under each explanation."""

    def __init__(
        self, print_: CameraPrint, misfits: Mapping[Explanation, Callable[[np.ndarray], float]]
    ) -> None:
        self._print = print_
        self._explanations = misfits
        self._grids: deque[np.ndarray] = deque(maxlen=LEAST_SEEN)
        self._misfits: deque[float] = deque(maxlen=_MOST_SEEN)
        self._seen = 0

    def add(self, grid: np.ndarray) -> tuple[Explanation, float, float] | None:
        """Add an image; return (explanation, usual misfit, misfit now) where the latest images do
        not fit.
        """
        self._grids.append(grid)
        self._misfits.append(self._print.misfit(grid))
        self._seen += 1
        if self._seen % LEAST_SEEN:
            return None
        now = float(np.median(self._misfits))
        explained = explain_grids(self._print, self._explanations, list(self._grids), now)
        if explained is None:
            return None
        return explained, self._print.usual, now


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".!")
