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
from understudy.contract.image_size import size_error
from understudy.contract.mismatch import Kind, Mismatch, printable
from understudy.contract.vector_likelihood import FACTORS, NORMALIZED, best_order, converted, log_likelihood

LEAST_SEEN = 5
"""Observations before numbers or images are explained."""
_MOST_SEEN = 64  # observations that count, the latest ones
_REPEATED = 3  # equal images in a row while the robot moves
_REPEATED_S = 0.5  # seconds that they last: a camera may be slower than the robot
_BETTER = 2.0  # nats per number that an explanation gains
_CLEARLY = 1.0  # nats by which the factor of a unit must fit better than those of other units
_NUMBER_KINDS: tuple[Kind, ...] = (
    "degrees",
    "radians",
    "scale",
    "normalized",
    "dimension order",
    "other robot",
    "range",
)
_ABSURD = 1000.0  # deviations outside the range of training; one such number is reported at once
_MOST_EXTRA = 8  # keys that are no inputs, by name
_LONGEST_TASK = 1000  # letters that are compared
_LARGEST = 1e100  # larger numbers of a state are compared as this one: their squares would overflow
_OUTSIDE = 0.5  # share of the observations outside the range of training from which a dimension needs an explanation
_FEW_EPISODES = 12  # ranges of so few are narrow: a new scene leaves them, and another order may seem to explain it
_MOVED_OUTSIDE = 0.2  # share of the exchanged dimensions that must be outside the range of training
_LEAST_CONTRAST = 2.0  # gray levels between the cells of an image; with less the lens may be covered
_ASPECT = 0.03  # share by which the aspect ratio of images may differ from that of the recordings
_STATE, _TASK = "observation.state", "task"
_OTHERS = ("is_pad", "is_missing")  # ends of keys that are no inputs


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
        self.reset()

    def _prints(self) -> dict[str, Any]:
        return {key: camera.look for key, camera in self._facts.cameras.items() if camera.look is not None}

    def reset(self) -> None:
        """Start an episode: everything is examined anew, and reported again."""
        self._reported: set[tuple[str, str]] = set()
        self._is_absurd = False
        self._states: deque[np.ndarray] = deque(maxlen=_MOST_SEEN)
        self._looks = {key: _Look(key, self._prints()) for key in self._prints()}
        self._images: dict[str, tuple[bytes, int, np.ndarray | None]] = {}  # digest, how often in a row, state then
        self._times: deque[float] = deque(maxlen=1)

    def look(self, observation: Mapping[str, Any], time: float | None = None) -> list[Mismatch]:
        """Return the differences that this observation adds.

        Args:
            observation: of one moment, numpy arrays by key of training or by the robot's own key: images uint8
                [H, W, 3] or [3, H, W], the state [D], `task` a string.
            time: seconds on any clock.
        """
        found = [*self._keys(observation), *self._instruction(observation), *self._time(time)]
        state = self._state(observation)
        if state is not None:
            self._states.append(state)
            found += self._numbers()
        for key, image in self._camera_images(observation, found):
            found += [*self._repeated(key, image, state), *self._appearance(key, image)]
        return list(self._new(found))

    def _new(self, found: list[Mismatch]) -> Iterator[Mismatch]:
        for mismatch in found:
            if (mark := (mismatch.kind, mismatch.key)) not in self._reported:
                self._reported.add(mark)
                yield mismatch

    def _keys(self, observation: Mapping[str, Any]) -> Iterator[Mismatch]:
        facts = self._facts
        state = {_STATE: facts.state.key} if facts.state is not None else {}
        wanted = state | {key: camera.key for key, camera in facts.cameras.items()} | {_TASK: _TASK}
        known = {*wanted, *wanted.values()}
        known.add(PROMPT_METADATA)  # checked by the policy
        extra = [key for key in observation if key not in known and not key.endswith(_OTHERS)]
        for key, own in wanted.items():
            if not {key, own} & set(observation):
                near = get_close_matches(own, extra, 1, 0.6)
                fix = f"is it {near[0]!r}?" if near else f"send it as {own!r}"
                came = printable(", ".join(sorted(observation))) or "nothing"
                yield Mismatch("missing key", own, "this input", came, fix)
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
        plain = {_plain(known): known for known in tasks}
        if _plain(task) not in plain:
            near = get_close_matches(_plain(task)[:_LONGEST_TASK], plain, 1, 0.0)
            several = (
                f"{len(tasks)} instruction{'s' if len(tasks) > 1 else ''}, the nearest {plain[near[0]]!r}"
                if near
                else f"{len(tasks)} others"
            )
            yield Mismatch("instruction", _TASK, several, repr(task[:200]), "give an instruction of training")

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
        plain = log_likelihood(values, facts).mean(0)
        total = float(plain.sum())
        candidates: list[tuple[float, Mismatch]] = []
        units: list[tuple[float, str, np.ndarray]] = []
        for unit in (*FACTORS, NORMALIZED):
            own, likelihood = converted(values, facts, unit)
            gains = np.where(values == 0, 0.0, likelihood - log_likelihood(values, facts)).mean(0)  # 0 has no unit
            # One joint may have another unit; normalized numbers are so in all dimensions.
            which = np.ones_like(bad) if unit == NORMALIZED else bad & (gains > _BETTER)
            which &= ~_outside(own, facts, np.nan_to_num(facts.high - facts.low))
            if gains[which].sum() > _BETTER * bad[which].sum() > 0:
                units.append((float(gains[which].sum()), unit, which & bad))
        if units:
            units.sort(key=lambda fit: fit[0])
            gain, unit, which = units[-1]
            rivals = [other for fit, other, _ in units[:-1] if gain - fit < _CLEARLY]
            candidates.append((gain, _unit_mismatch(unit, rivals, values, facts, which)))
        order = best_order(values, facts)
        is_few = 0 < self._facts.episodes <= _FEW_EPISODES
        moved = order != np.arange(facts.width)
        if moved.any() and not is_few and bad[moved].mean() >= _MOVED_OUTSIDE:
            gain = float(log_likelihood(values[:, order], facts).mean(0).sum()) - total
            if gain > _BETTER * bad.sum() and not _outside(values[:, order], facts).any():
                given = [f"{facts.names[order[i]]} in place of {facts.names[i]}" for i in np.flatnonzero(moved)]
                came, fix = f"by its ranges {', '.join(given)}", f"send {', '.join(facts.names)}"
                candidates.append((gain, Mismatch("dimension order", facts.key, "another order", came, fix)))
        for head, robot in self._contract.robots.items():
            other = robot.state
            if head != self._head and other is not None and other.width == facts.width:
                gain = float(log_likelihood(values, other).mean(0).sum()) - total
                if gain > _BETTER * facts.width and not _outside(values, other, other.high - other.low).any():
                    came = f"a state like that of {head}"
                    fix = f"load the policy with head={head!r}"
                    candidates.append((gain, Mismatch("other robot", facts.key, self._head, came, fix)))
        if candidates:
            return max(candidates, key=lambda each: each[0])[1]
        return Mismatch("range", facts.key, *_ranges(values, facts, bad), "check units, zeros and joints")

    def _camera_images(self, observation: Mapping[str, Any], found: list[Mismatch]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the images that can be compared as (H, W, 3); add the differences in shape and dtype to `found`."""
        for key, camera in self._facts.cameras.items():
            value = observation.get(key, observation.get(camera.key))
            if value is None:
                continue
            image = np.asarray(value)
            if image.ndim == 3 and image.shape[0] == 3 and image.shape[2] != 3:
                image = image.transpose(1, 2, 0)
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                came, fix = f"{image.dtype} {image.shape}", "send RGB of 0..255 as uint8 (height, width, 3)"
                found.append(Mismatch("dtype", camera.key, f"uint8 {(*camera.size, 3)}", came, fix))
                continue
            (height, width), (own_height, own_width) = image.shape[:2], camera.size
            if error := size_error(height, width, camera.size):
                came, fix = f"{width}x{height}: {error}", "send images as recorded"
                found.append(Mismatch("shape", camera.key, f"images of {own_width}x{own_height}", came, fix))
                continue
            if own_height and abs(height * own_width / (width * own_height) - 1) > _ASPECT:
                came, fix = f"{width}x{height}", "send whole images as recorded; the policy resizes them"
                found.append(Mismatch("shape", camera.key, f"images of {own_width}x{own_height}", came, fix))
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
            own = self._facts.cameras[key].key
            yield Mismatch("repeated frame", own, "a new image each step", came, "is the camera's stream alive?")

    def _appearance(self, key: str, image: np.ndarray) -> Iterator[Mismatch]:
        look = self._looks.get(key)
        if look is None or (found := look.add(shrink(image))) is None:
            return
        del self._looks[key]  # one explanation is enough
        (kind, came), usual, now = found
        own = self._facts.cameras[key].key
        trained = f"images with a misfit of about {usual:.1f}"
        fix = _IMAGE_FIXES.get(kind, "check camera, place and light")
        named: Kind = kind if kind in _IMAGE_FIXES else "unlike training"  # type: ignore[assignment]
        yield Mismatch(named, own, trained, f"{came} (misfit {now:.1f} as they are)", fix)


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
        fits = {
            each: float(np.median([misfit(grid) for grid in self._grids]))
            for each, misfit in self._explanations.items()
        }
        best = min(fits, key=lambda each: fits[each], default=None)
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
    unit: str, rivals: Sequence[str], values: np.ndarray, facts: VectorFacts, which: np.ndarray
) -> Mismatch:
    trained, came = _ranges(values, facts, which)
    if rivals:
        others = " or ".join(other.partition(" for ")[0] for other in (unit, *rivals))
        return Mismatch("scale", facts.key, trained, f"{came}, as if {others}", "send the unit of the recordings")
    if unit == NORMALIZED:
        return Mismatch("normalized", facts.key, trained, f"{came}, as if normalized", "send the robot's own numbers")
    sent, _, wanted = unit.partition(" for ")
    kind: Kind = "degrees" if sent == "degrees" else "radians" if sent == "radians" else "scale"
    return Mismatch(kind, facts.key, trained, f"{came}, as if in {sent}", f"send {wanted}")


def _ranges(values: np.ndarray, facts: VectorFacts, which: np.ndarray) -> tuple[str, str]:
    """Ranges of some dimensions, at most four by name: of training, and those that came."""
    chosen = np.flatnonzero(which)
    trained = [f"{facts.names[i]} {facts.low[i]:.4g}..{facts.high[i]:.4g}" for i in chosen[:4]]
    came = [f"{facts.names[i]} {values[:, i].min():.4g}..{values[:, i].max():.4g}" for i in chosen[:4]]
    more = [f"and {len(chosen) - 4} more"] if len(chosen) > 4 else []
    return ", ".join([*trained, *more]), ", ".join([*came, *more])


def _outside(values: np.ndarray, facts: VectorFacts, more: "np.ndarray | float" = 0.0) -> np.ndarray:
    """Whether most numbers of a dimension are outside its range by its margin and `more`, bool (D,)."""
    margin = facts.margin + more
    return np.asarray(((values > facts.high + margin) | (values < facts.low - margin)).mean(0) > _OUTSIDE)


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".!")
