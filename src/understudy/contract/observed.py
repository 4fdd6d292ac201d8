"""Observations of a robot against the facts of training, over time.

    check = ObservationCheck(contract, head)
    check.reset()                                        # start of an episode
    for mismatch in check.look(observation, time):       # each control step
        print(mismatch)

Each difference is reported once in an episode. Keys, shapes and dtypes are certain at once. Units, orders and cameras
are explanations of numbers: they need `LEAST_SEEN` observations, most of them outside the range of training, and one
explanation that is much better than none. So a new scene or another light is reported as itself. Another order of
dimensions needs ranges of more than `_FEW_EPISODES` training episodes; with fewer, such numbers are reported by range.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any

import numpy as np

from understudy.batch_keys import PROMPT_METADATA
from understudy.contract.camera_print import Explanation, explanations, shrink
from understudy.contract.facts import InputContract, VectorFacts
from understudy.contract.mismatch import Kind, Mismatch, printable

LEAST_SEEN = 5
"""Observations before numbers or images are explained."""
_MOST_SEEN = 64  # observations that count, the latest ones
_REPEATED = 3  # equal images in a row while the robot moves
_REPEATED_S = 0.5  # seconds that they last: a camera may be slower than the robot
_BETTER = 2.0  # nats per number that an explanation gains
_CLEARLY = 1.0  # nats by which the factor of a unit must fit better than those of other units
_UNIT_KINDS: tuple[Kind, ...] = ("degrees", "radians", "scale", "normalized")
_NUMBER_KINDS: tuple[Kind, ...] = (*_UNIT_KINDS, "dimension order", "other robot", "range")
_ABSURD = 1000.0  # deviations outside the range of training; one such number is reported at once
_MOST_EXTRA = 8  # keys that are not inputs, by name
_LONGEST_TASK = 1000  # letters that are compared
_LARGEST = 1e100  # larger numbers of a state are compared as this one: their squares would overflow
_OUTSIDE = 0.5  # share of the observations outside the range of training from which a dimension needs an explanation
_FEW_EPISODES = 12  # ranges of so few are narrow: a new scene leaves them, and another order may seem to explain it
_MOVED_OUTSIDE = 0.2  # share of the exchanged dimensions that must be outside the range of training
_LEAST_CONTRAST = 2.0  # gray levels between the cells of an image; with less the lens may be covered
_ASPECT = 0.03  # share by which the aspect ratio of images may differ from that of the recordings
_MOST_PIXELS = 1 << 23  # 4K has 8.3 million
_MOST_TIMES = 16  # of the recorded pixels, where that is more
_MOST_ASPECT = 8.0  # times the recorded aspect ratio
_STATE, _TASK = "observation.state", "task"
_OTHERS = ("is_pad", "is_missing")  # ends of keys that are not inputs


class ObservationCheck:
    """Checks of one robot's observations.

    Args:
        contract: facts about the training.
        head: norm head of the robot.

    Raises:
        KeyError: there is no such head.
    """

    def __init__(self, contract: InputContract, head: str) -> None:
        self._contract, self._head, self._facts = contract, head, contract.robots[head]
        cameras = self._facts.cameras.items()
        self._prints = {key: camera.look for key, camera in cameras if camera.look is not None}
        self.reset()

    def reset(self) -> None:
        """Start an episode: everything is examined anew, and reported again."""
        self._reported: set[tuple[str, str]] = set()
        self._is_absurd = False
        self._states: deque[np.ndarray] = deque(maxlen=_MOST_SEEN)
        self._looks = {key: _Look(key, self._prints) for key in self._prints}
        self._images: dict[str, tuple[bytes, int, np.ndarray | None]] = {}  # digest, how often in a row, state then
        self._times: deque[float] = deque(maxlen=1)

    def look(self, observation: Mapping[str, Any], time: float | None = None) -> list[Mismatch]:
        """Return the differences that this observation adds.

        Args:
            observation: values of one moment, numpy arrays by key of training or by the robot's own key: images uint8
                [H, W, 3] or [3, H, W], the state [D], `task` a string.
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
        facts = self._facts
        state = {_STATE: facts.state.key} if facts.state is not None else {}
        recorded_keys = state | {key: camera.key for key, camera in facts.cameras.items()} | {_TASK: _TASK}
        inputs = {*recorded_keys, *recorded_keys.values(), PROMPT_METADATA}  # the policy checks the last one
        extra = [key for key in observation if key not in inputs and not key.endswith(_OTHERS)]
        for key, recorded in recorded_keys.items():
            if not {key, recorded} & set(observation):
                near = get_close_matches(recorded, extra, 1, 0.6)
                fix = f"is it {near[0]!r}?" if near else f"send it as {recorded!r}"
                came = printable(", ".join(sorted(observation))) or "nothing"
                yield Mismatch("missing key", recorded, "this input", came, fix)
        fresh = [key for key in map(printable, extra) if ("extra key", key) not in self._reported]
        room = max(0, _MOST_EXTRA - sum(kind == "extra key" for kind, _ in self._reported))
        for key in fresh[:room]:
            yield Mismatch("extra key", key, "no such input", "it, which is ignored", "leave it out")
        if (more := len(fresh) - room) > 0:
            yield Mismatch("extra key", "", "no such inputs", f"{more} others, which are ignored", "leave them out")

    def _instruction(self, observation: Mapping[str, Any]) -> Iterator[Mismatch]:
        task, tasks = observation.get(_TASK), self._facts.tasks
        if not isinstance(task, str) or not tasks or self._facts.tasks_left_out:
            return
        trained_tasks = {_plain(trained): trained for trained in tasks}
        if _plain(task) not in trained_tasks:
            near = get_close_matches(_plain(task)[:_LONGEST_TASK], trained_tasks, 1, 0.0)
            trained = f"{len(tasks)} others"
            if near:
                plural = "s" if len(tasks) > 1 else ""
                trained = f"{len(tasks)} instruction{plural}, the nearest {trained_tasks[near[0]]!r}"
            yield Mismatch("instruction", _TASK, trained, repr(task[:200]), "give an instruction of training")

    def _time(self, time: float | None) -> Iterator[Mismatch]:
        if time is None:
            return
        if self._times and time < self._times[-1]:
            came = f"{time:g} s after {self._times[-1]:g} s"
            yield Mismatch("time", "", "times that do not decrease", came, "send each observation once, or reset()")
            return
        self._times.append(time)

    def _state(self, observation: Mapping[str, Any]) -> np.ndarray | None:
        facts = self._facts.state
        value = observation.get(_STATE, observation.get(facts.key)) if facts is not None else None
        if facts is None or value is None:
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
        absurd = _outside(values[-1:], facts, _ABSURD * np.maximum(facts.spread, facts.slack)).any()
        if absurd and not self._is_absurd:  # also where a smaller difference was reported before
            self._is_absurd, values = True, values[-1:]
            self._reported -= {(kind, facts.key) for kind in _NUMBER_KINDS}
        elif len(values) < LEAST_SEEN or any((kind, facts.key) in self._reported for kind in _NUMBER_KINDS):
            return
        if (bad := _outside(values, facts)).any():
            yield self._explain(values, facts, bad)

    def _explain(self, values: np.ndarray, facts: VectorFacts, bad: np.ndarray) -> Mismatch:
        """Return the best explanation of states that do not fit."""
        plain = _log_likelihood(values, facts).mean(0)
        total = float(plain.sum())
        candidates: list[tuple[float, Mismatch]] = []
        units: list[tuple[float, str, np.ndarray]] = []
        for unit in (*FACTORS, NORMALIZED):
            numbers, likelihood = _converted(values, facts, unit)
            gains = np.where(values == 0, 0.0, likelihood - _log_likelihood(values, facts)).mean(0)  # 0 has no unit
            # One joint may have another unit; normalized numbers are so in all dimensions.
            changed = np.ones_like(bad) if unit == NORMALIZED else bad & (gains > _BETTER)
            changed &= ~_outside(numbers, facts, np.nan_to_num(facts.high - facts.low))
            if gains[changed].sum() > _BETTER * bad[changed].sum() > 0:
                units.append((float(gains[changed].sum()), unit, changed & bad))
        if units:
            units.sort(key=lambda fit: fit[0])
            gain, unit, changed = units[-1]
            rivals = [other for fit, other, _ in units[:-1] if gain - fit < _CLEARLY]
            candidates.append((gain, _unit_mismatch(unit, rivals, values, facts, changed)))
        order = _best_order(values, facts)
        is_few = 0 < self._facts.episodes <= _FEW_EPISODES
        moved = order != np.arange(facts.width)
        if moved.any() and not is_few and bad[moved].mean() >= _MOVED_OUTSIDE:
            gain = float(_log_likelihood(values[:, order], facts).mean(0).sum()) - total
            if gain > _BETTER * bad.sum() and not _outside(values[:, order], facts).any():
                places = [f"{facts.names[order[i]]} in place of {facts.names[i]}" for i in np.flatnonzero(moved)]
                came, fix = f"by its ranges {', '.join(places)}", f"send {', '.join(facts.names)}"
                candidates.append((gain, Mismatch("dimension order", facts.key, "another order", came, fix)))
        for head, robot in self._contract.robots.items():
            other = robot.state
            if head != self._head and other is not None and other.width == facts.width:
                gain = float(_log_likelihood(values, other).mean(0).sum()) - total
                if gain > _BETTER * facts.width and not _outside(values, other, other.high - other.low).any():
                    came, fix = f"a state like that of {head}", f"load the policy with head={head!r}"
                    candidates.append((gain, Mismatch("other robot", facts.key, self._head, came, fix)))
        if candidates:
            return max(candidates, key=lambda candidate: candidate[0])[1]
        return Mismatch("range", facts.key, *_ranges(values, facts, bad), "check units, zeros and joints")

    def _camera_images(
        self, observation: Mapping[str, Any], mismatches: list[Mismatch]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the images that can be compared as (H, W, 3); add differences in shape and dtype to `mismatches`."""
        for key, camera in self._facts.cameras.items():
            value = observation.get(key, observation.get(camera.key))
            if value is None:
                continue
            image = np.asarray(value)
            if image.ndim == 3 and image.shape[0] == 3 and image.shape[2] != 3:
                image = image.transpose(1, 2, 0)
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                came, fix = f"{image.dtype} {image.shape}", "send RGB of 0..255 as uint8 (height, width, 3)"
                mismatches.append(Mismatch("dtype", camera.key, f"uint8 {(*camera.size, 3)}", came, fix))
                continue
            (height, width), (recorded_height, recorded_width) = image.shape[:2], camera.size
            trained = f"images of {recorded_width}x{recorded_height}"
            if error := size_error(height, width, camera.size):
                came, fix = f"{width}x{height}: {error}", "send images as recorded"
                mismatches.append(Mismatch("shape", camera.key, trained, came, fix))
                continue
            if recorded_height and abs(height * recorded_width / (width * recorded_height) - 1) > _ASPECT:
                came, fix = f"{width}x{height}", "send whole images as recorded; the policy resizes them"
                mismatches.append(Mismatch("shape", camera.key, trained, came, fix))
            yield key, image

    def _repeated(self, key: str, image: np.ndarray, state: np.ndarray | None) -> Iterator[Mismatch]:
        digest = blake2b(image.tobytes(), digest_size=16).digest()
        last, count, then = self._images.get(key, (b"", 0, None))
        if digest != last:
            self._images[key] = digest, 0, state
            return
        self._images[key] = digest, count + 1, then
        facts = self._facts.state
        moved = False
        if facts is not None and state is not None and then is not None:
            moved = bool((np.abs(state - then) > 0.02 * np.nan_to_num(facts.high - facts.low) + 1e-9).any())
        if moved and count + 1 >= max(_REPEATED, _REPEATED_S * self._facts.fps):
            came = f"the same image {count + 2} times while the state changes"
            camera = self._facts.cameras[key].key
            yield Mismatch("repeated frame", camera, "a new image each step", came, "is the camera's stream alive?")

    def _appearance(self, key: str, image: np.ndarray) -> Iterator[Mismatch]:
        look = self._looks.get(key)
        if look is None or (explained := look.add(shrink(image))) is None:
            return
        del self._looks[key]  # one explanation is enough
        (kind, came), usual, now = explained
        trained = f"images with a misfit of about {usual:.1f}"
        fix = _IMAGE_FIXES.get(kind, "check camera, place and light")
        named: Kind = kind if kind in _IMAGE_FIXES else "unlike training"  # type: ignore[assignment]
        yield Mismatch(named, self._facts.cameras[key].key, trained, f"{came} (misfit {now:.1f} as they are)", fix)


_IMAGE_FIXES = {
    "color order": "send RGB",
    "orientation": "turn the images as in the recordings",
    "swapped cameras": "exchange the cameras",
    "crop": "send whole images as recorded; the policy resizes them",
}


class _Look:
    """Misfits of one camera's images under each explanation."""

    def __init__(self, key: str, prints: Mapping[str, Any]) -> None:
        self._print = prints[key]
        self._explanations: Mapping[Explanation, Callable[[np.ndarray], float]] = explanations(key, prints)
        self._grids: deque[np.ndarray] = deque(maxlen=LEAST_SEEN)
        self._misfits: deque[float] = deque(maxlen=_MOST_SEEN)
        self._seen = 0

    def add(self, grid: np.ndarray) -> tuple[Explanation, float, float] | None:
        """Add an image; return (explanation, usual misfit, misfit now) where the latest images do not fit."""
        self._grids.append(grid)
        self._misfits.append(self._print.misfit(grid))
        self._seen += 1
        if self._seen % LEAST_SEEN:
            return None
        now = float(np.median(self._misfits))
        if now <= 1.25 * self._print.most + 0.25:
            return None
        misfits = self._explanations.items()
        fits = {
            explanation: float(np.median([misfit(grid) for grid in self._grids])) for explanation, misfit in misfits
        }
        best = min(fits, key=lambda explanation: fits[explanation], default=None)
        flat = np.median([grid.std(axis=(0, 1)).max() for grid in self._grids]) < _LEAST_CONTRAST
        if flat:
            best = None  # it looks like the middle of many images
        if best is not None and fits[best] < 0.5 * now and fits[best] <= 2 * self._print.most + 0.5:
            return best, self._print.usual, now
        if now > 3 * self._print.most + 1:
            came = "images of one color" if flat else "other images"
            return ("unlike training", came), self._print.usual, now
        return None


def _unit_mismatch(
    unit: str, rivals: Sequence[str], values: np.ndarray, facts: VectorFacts, changed: np.ndarray
) -> Mismatch:
    trained, came = _ranges(values, facts, changed)
    if rivals:
        others = " or ".join(other.partition(" for ")[0] for other in (unit, *rivals))
        return Mismatch("scale", facts.key, trained, f"{came}, as if {others}", "send the unit of the recordings")
    if unit == NORMALIZED:
        return Mismatch("normalized", facts.key, trained, f"{came}, as if normalized", "send the robot's own numbers")
    sent, _, recorded = unit.partition(" for ")
    kind: Kind = "degrees" if sent == "degrees" else "radians" if sent == "radians" else "scale"
    return Mismatch(kind, facts.key, trained, f"{came}, as if in {sent}", f"send {recorded}")


def _ranges(values: np.ndarray, facts: VectorFacts, mask: np.ndarray) -> tuple[str, str]:
    """Ranges of some dimensions, at most four by name: in training, and of the robot."""
    dims = np.flatnonzero(mask)
    trained = [f"{facts.names[i]} {facts.low[i]:.4g}..{facts.high[i]:.4g}" for i in dims[:4]]
    came = [f"{facts.names[i]} {values[:, i].min():.4g}..{values[:, i].max():.4g}" for i in dims[:4]]
    more = [f"and {len(dims) - 4} more"] if len(dims) > 4 else []
    return ", ".join([*trained, *more]), ", ".join([*came, *more])


def _outside(values: np.ndarray, facts: VectorFacts, more: "np.ndarray | float" = 0.0) -> np.ndarray:
    """Whether most numbers of a dimension are outside its range by its margin and `more`, bool (D,)."""
    margin = facts.margin + more
    return np.asarray(((values > facts.high + margin) | (values < facts.low - margin)).mean(0) > _OUTSIDE)


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".!")


def size_error(height: int, width: int, recorded: tuple[int, int]) -> str:
    """Return the rule that the size of an image breaks, "" for a size that may be resized.

    Args:
        height: height of the image.
        width: width of the image.
        recorded: height and width of the images of training; zeros where they differ.
    """
    if not height or not width:
        return "it has no pixels"
    recorded_height, recorded_width = recorded
    if height * width > (most := max(_MOST_PIXELS, _MOST_TIMES * recorded_height * recorded_width)):
        return f"it has {height * width:,} pixels, more than {most:,}"
    if recorded_height and recorded_width:
        ratio = width * recorded_height / (height * recorded_width)
        if max(ratio, 1 / ratio) > _MOST_ASPECT:
            return f"its aspect ratio is {max(ratio, 1 / ratio):,.0f} times that of {recorded_width}x{recorded_height}"
    return ""


# -- numbers: as they are, after a change of unit, or in another order ------------------------------------------------
#
# Each dimension of training is a Student distribution with 3 degrees of freedom around its mean, so that one outlier
# does not decide. A changed unit pays for its stretch:
# log p(x) = log t((f(x) - mean) / deviation) - log deviation + log |f'|. Differences between explanations are in nats
# per number, and need no threshold of units.

FACTORS: Mapping[str, float] = {
    "degrees for radians": 180 / np.pi,
    "radians for degrees": np.pi / 180,
    "millimeters for meters": 1e3,
    "meters for millimeters": 1e-3,
    "centimeters for meters": 1e2,
    "meters for centimeters": 1e-2,
    "inches for meters": 1 / 0.0254,
    "meters for inches": 0.0254,
}
"""Changed unit -> factor of its numbers."""
NORMALIZED = "normalized"
_FREEDOM = 3.0


def _log_likelihood(values: np.ndarray, facts: VectorFacts) -> np.ndarray:
    """Log density of each number, float64 (n, D), up to one constant; `values` is (n, D)."""
    return _density(values, facts.center, facts.spread) - np.log(facts.spread)


def _converted(values: np.ndarray, facts: VectorFacts, unit: str) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers in the unit of training, and the log density of each, float64 (n, D) both.

    Args:
        values: numbers of the robot, float64 (n, D).
        facts: facts of training.
        unit: one of `FACTORS`, or `NORMALIZED`.
    """
    if unit == NORMALIZED:
        numbers, stretch = values * facts.spread + facts.center, facts.spread
    else:
        numbers, stretch = values / FACTORS[unit], np.full(facts.width, 1 / FACTORS[unit])
    return numbers, _log_likelihood(numbers, facts) + np.log(stretch)


def _best_order(values: np.ndarray, facts: VectorFacts) -> np.ndarray:
    """Order of the sent dimensions that fits best: dimension i of training is dimension `order[i]` of `values`.

    Starts from the given order, the reverse and exchanged halves, and swaps pairs while that helps.
    """
    width = facts.width
    cost = np.stack(  # [trained, sent]
        [(_density(values, facts.center[i], facts.spread[i]) - np.log(facts.spread[i])).mean(0) for i in range(width)]
    )
    half, rows = width // 2, np.arange(width)
    best, score = rows, float(cost[rows, rows].sum())
    for start in (rows, rows[::-1], np.roll(rows, half), np.roll(rows, 1), np.roll(rows, -1)):
        order = start.copy()
        while True:
            now = cost[rows, order]
            swapped = cost[:, order]  # [i, j]: dimension i with the number that j has
            gain = swapped + swapped.T - now[:, None] - now
            i, j = np.unravel_index(int(gain.argmax()), gain.shape)
            if gain[i, j] <= 1e-9:
                break
            order[[i, j]] = order[[j, i]]
        if (total := float(cost[rows, order].sum())) > score + 1e-9:
            best, score = order, total
    return best


def _density(values: np.ndarray, center: np.ndarray, spread: np.ndarray) -> np.ndarray:
    return np.asarray(-(_FREEDOM + 1) / 2 * np.log1p(((values - center) / spread) ** 2 / _FREEDOM))
