"""A trace: the answered observations of robots, a line of JSON each, and their diagnosis: why does
it not grasp?

The first line has the contract of the policy, the others a prediction each (`TraceWriter.add`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from understudy_base import Record
from understudy_client import (
    Contract,
    Mismatch,
    ObservationCheck,
    RobotFacts,
    VectorFacts,
    log_likelihood,
    shrink,
)

PHASES = ("approach", "closing", "closed", "opening", "after")
_NEAR_S = 0.5  # seconds around a transition of the gripper that belong to it


class TraceWriter:
    """Writes a trace, one line per prediction.

    Args:
        path: file, a new one.
        contract: contract of the policy.
        head: norm head of the robots.
    """

    def __init__(self, path: str | Path, contract: Contract, head: str) -> None:
        self._facts = contract.robots[head]
        self._new_check = partial(ObservationCheck, contract, head)
        self._robots: dict[str, tuple[int, ObservationCheck]] = {}
        self._file = Path(path).open("x", encoding="utf-8")  # noqa: SIM115
        self._write(replace(contract, robots={head: self._facts}).to_json())

    def add(
        self,
        robot: str,
        step: int,
        observation: Mapping[str, Any],
        actions: np.ndarray,
        age_s: float = 0.0,
        recorded: np.ndarray | None = None,
        episode: int | None = None,
    ) -> None:
        """Add a prediction, with the differences of its observation from training; step 0 begins an
        episode.

        Args:
            robot: name of the robot or episode.
            step: control step of the observation.
            observation: state and images uint8 [H, W, 3] or [3, H, W], by key of the policy or of
                the recordings.
            actions: the chunk [T, A].
            age_s: age of the observation when its chunk is executed, in seconds.
            recorded: recorded actions of the same steps [T, A]; None: unknown.
            episode: number of the episode in the result of a rollout; None: there is none.
        """
        state = self._facts.state
        seen = (
            observation.get("observation.state", observation.get(state.key))
            if state is not None
            else None
        )
        misfits = {}
        for key, camera in self._facts.cameras.items():
            image = observation.get(key, observation.get(camera.key))
            if image is not None and camera.look is not None:
                pixels = np.asarray(image)
                if pixels.shape[-1] != 3:
                    pixels = pixels.transpose(1, 2, 0)
                misfits[key] = camera.look.misfit(shrink(pixels))
        last, check = self._robots.get(robot) or (step, self._new_check())
        if step < last:
            check.reset()
        self._robots[robot] = step, check
        inputs = {key: value for key, value in observation.items() if key in self._facts.input_keys}
        about = {
            "misfits": misfits,
            "mismatches": list(map(vars, check.look(inputs))),
            "task": observation.get("task"),
        }
        numbers = {"state": seen, "actions": actions, "recorded": recorded}
        plain: dict[str, Any] = {}
        for name, value in numbers.items():
            plain[name] = None if value is None else np.asarray(value, float).tolist()
        self._write(
            {"robot": robot, "episode": episode, "step": step, "age_s": age_s, **about, **plain}
        )

    def _write(self, line: Record) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True)
class Transitions:
    """Transitions of a gripper. `recorded` ones that were predicted within half a second are
    `matched`.
    """

    predicted: int
    recorded: int
    matched: int


@dataclass(frozen=True)
class Played:
    """States of an episode of a rollout.

    Attributes:
        steps: int64 (n,), control step of each prediction.
        states: float64 (n, D), the state that each has seen.
    """

    steps: np.ndarray
    states: np.ndarray


@dataclass(frozen=True)
class Diagnosis:
    """Figures of a trace.

    Attributes:
        facts: the policy's robot.
        mismatches: contradictions in files, then of observations, each kind and key once, with the
            place of the first.
        errors: phase -> mean absolute error of each action dimension against the recording, float64
            (A,).
        transitions: by gripper; none where the contract names no gripper; `recorded` is 0 where no
            action was recorded.
        steps: control step of each prediction, of all episodes one after the other.
        likelihood: mean log-likelihood per number of each state, less that of usual states of
            training; 0 is usual.
        outside: share of the states outside the range of training, by dimension.
        misfits: camera -> misfit of each image, divided by that of one training image in twenty;
            above 1 is unusual.
        ages_s: age of each observation in seconds.
        played: by the number of an episode in a rollout's result, its states; none of a trace of
            other origin.
        step: training step of the policy; None where the contract has none.
        lengths: predictions of each episode.
    """

    facts: RobotFacts
    mismatches: Sequence[tuple[str, Mismatch]]
    errors: Mapping[str, np.ndarray]
    transitions: Mapping[str, Transitions]
    steps: np.ndarray
    likelihood: np.ndarray
    outside: Mapping[str, float]
    misfits: Mapping[str, np.ndarray]
    ages_s: np.ndarray
    played: Mapping[int, Played] = field(default_factory=dict)
    step: int | None = None
    lengths: Sequence[int] = ()


def diagnose(path: str | Path, policy: Contract | None = None) -> Diagnosis:
    """Read a trace.

    Args:
        path: the file.
        policy: contract of one robot to compare with, except for its images; None: that of the
            trace.

    Raises:
        ValueError: the file is no trace, or has no prediction; or its numbers are not as many as
            those of the contract.
    """
    try:
        head, *rows = _lines(Path(path))
        contract = policy or Contract.from_json(head)
        if len(contract.robots) != 1:
            raise ValueError(f"its contract has {len(contract.robots)} robots; a trace is of one")
        (facts,) = contract.robots.values()
        if not rows:
            raise ValueError("it has no prediction")
        episodes = _episodes(rows)
        other_facts = None if policy is None else replace(facts, cameras={})
        rows = list(chain.from_iterable(episodes))
        mismatches = list(_mismatches(episodes, other_facts))
        played = list(map(_executed, episodes))
        states = [np.array(row["state"], float) for row in rows if row["state"] is not None]
        for vector, values in (
            (facts.state, states),
            (facts.action, [actions for actions, _ in played]),
        ):
            if (
                vector is not None
                and vector.width
                and any(vector.width != part.shape[-1] for part in values)
            ):
                raise ValueError(
                    f"{vector.key} of the contract has {vector.width} numbers, and the trace others"
                )
        looks = facts.looks
        misfits: dict[str, np.ndarray] = {}
        for key in looks:
            misfits[key] = np.array([row["misfits"].get(key, np.nan) for row in rows], float)
        ages = np.array([row["age_s"] for row in rows], float)
        steps = np.array([row["step"] for row in rows], int)
        likelihood, outside = _states(states, facts.state)
        by_number = _played(episodes, facts.state)
        trained_step = contract.provenance.get("step")
        errors, transitions = _actions(played, facts)
    except (
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ValueError(f"{path} is no trace: {error!r}") from error
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(trained_step, int):
        trained_step = None
    usual = {key: values / max(looks[key].most, 1e-9) for key, values in misfits.items()}
    first: dict[tuple[str, str], tuple[str, Mismatch]] = {}
    faults = [("", fault) for fault in contract.faults]
    for place, mismatch in (*faults, *mismatches):
        first.setdefault((mismatch.kind, mismatch.key), (place, mismatch))
    return Diagnosis(
        facts,
        list(first.values()),
        errors,
        transitions,
        steps,
        likelihood,
        outside,
        usual,
        ages,
        by_number,
        trained_step,
        [len(episode) for episode in episodes],
    )


def _lines(path: Path) -> list[Any]:
    """Return the values of the lines: the contract, then a row for each prediction.

    Raises:
        ValueError: the file is empty, or a line is not JSON.
    """
    *lines, _ = path.read_bytes().split(b"\n")  # a killed server tears its last line
    if not lines:
        raise ValueError(
            f"{path} is no trace: it has no whole line; `understudy serve --trace FILE` writes one"
        )
    values = []
    for number, line in enumerate(lines, start=1):
        try:
            values.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path} is no trace: line {number} is not JSON: {error}") from error
    return values


def _mismatches(
    episodes: Sequence[Sequence[Record]], facts: RobotFacts | None
) -> Iterator[tuple[str, Mismatch]]:
    """Differences of observations from training, with their places: as they were written, or from
    other `facts`.
    """
    check = ObservationCheck(Contract({"": facts}), "") if facts is not None else None
    for rows in episodes:
        if check is not None:
            check.reset()
        for row in rows:
            inputs = {"observation.state": row["state"], "task": row["task"]}
            seen = {key: value for key, value in inputs.items() if value is not None}
            if check is not None:
                mismatches = check.look(seen)
            else:
                mismatches = [Mismatch(**stored) for stored in row["mismatches"]]
            for mismatch in mismatches:
                yield f"{row['robot']}, step {row['step']}: ", mismatch


def _episodes(rows: Sequence[Record]) -> list[list[Record]]:
    """Predictions of each episode: of one robot, with rising steps."""
    episodes: list[list[Record]] = []
    latest: dict[str, list[Record]] = {}
    for row in rows:
        if row["robot"] not in latest or row["step"] <= latest[row["robot"]][-1]["step"]:
            episodes.append([])
            latest[row["robot"]] = episodes[-1]
        latest[row["robot"]].append(row)
    return episodes


def _played(episodes: Sequence[Sequence[Record]], facts: VectorFacts | None) -> dict[int, Played]:
    """States of each episode with a number, where the contract knows the state."""
    found: dict[int, Played] = {}
    if facts is None:
        return found
    for rows in episodes:
        numbered = [
            row for row in rows if row.get("episode") is not None and row["state"] is not None
        ]
        if numbered:
            states = np.array([row["state"] for row in numbered], float)[:, : facts.width]
            found[int(numbered[0]["episode"])] = Played(
                np.array([row["step"] for row in numbered], int), states
            )
    return found


def _executed(rows: Sequence[Record]) -> tuple[np.ndarray, np.ndarray | None]:
    """Predicted and recorded actions of each step, (steps, A): those of the newest chunk; of the
    last one all.
    """
    parts = {"actions": list[np.ndarray](), "recorded": list[np.ndarray]()}
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        count = len(row["actions"]) if following is None else following["step"] - row["step"]
        for name, values in parts.items():
            if row[name] is not None:
                values.append(np.array(row[name], float)[:count])
    predicted = np.concatenate(parts["actions"])
    is_recorded = len(parts["recorded"]) == len(rows)
    recorded = np.concatenate(parts["recorded"]) if is_recorded else None
    return predicted, recorded


def _states(
    states: Sequence[np.ndarray], facts: VectorFacts | None
) -> tuple[np.ndarray, dict[str, float]]:
    if facts is None or not states or np.isnan(facts.center).any():
        return np.zeros(0), {}
    values = np.stack(states)[:, : facts.width]
    drawn = facts.center + facts.spread * np.random.default_rng(0).standard_normal(
        (1000, facts.width)
    )
    usual = log_likelihood(drawn, facts).mean()
    beyond = (values > facts.high + facts.margin) | (values < facts.low - facts.margin)
    shares = dict(zip(facts.names, beyond.mean(0).tolist(), strict=True))
    return log_likelihood(values, facts).mean(1) - usual, shares


def _grippers(action: VectorFacts) -> dict[str, tuple[int, float, float]]:
    """Gripper -> (dimension, number in the middle, sign of closing), as far as the contract states
    them.
    """
    stated = {
        name: (sum(ends) / 2, float(np.sign(ends[0] - ends[1])))
        for name, ends in action.gripper.items()
    }
    return {name: (i, *stated[name]) for i, name in enumerate(action.names) if name in stated}


def _actions(
    played: Sequence[tuple[np.ndarray, np.ndarray | None]], facts: RobotFacts
) -> tuple[dict[str, np.ndarray], dict[str, Transitions]]:
    near = max(1, round(_NEAR_S * facts.fps)) if facts.fps > 0 else 1
    grippers = _grippers(facts.action)
    counts: dict[str, np.ndarray] = {}
    errors: dict[str, list[np.ndarray]] = {phase: [] for phase in PHASES}
    for predicted, recorded in played:
        turns = []
        phases = np.full(len(predicted), PHASES[0], object)
        for name, (dim, middle, sign) in grippers.items():
            mine = _turns(sign * (predicted[:, dim] - middle))
            theirs = [] if recorded is None else _turns(sign * (recorded[:, dim] - middle))
            matched = 0
            for step, rise in theirs:
                matched += any(abs(turn - step) <= near and up == rise for turn, up in mine)
            counts[name] = counts.get(name, np.zeros(3, int)) + np.array(
                [len(mine), len(theirs), matched]
            )
            turns += theirs
        for step, closes in sorted(turns):
            phases[max(0, step - near) : step + near] = PHASES[1] if closes else PHASES[3]
            phases[step + near :] = PHASES[2] if closes else PHASES[4]
        if recorded is not None:
            for phase in PHASES:
                errors[phase] += list(np.abs(predicted - recorded)[phases == phase])
    mean_errors = {phase: np.mean(rows, 0) for phase, rows in errors.items() if rows}
    transitions = {name: Transitions(*map(int, count)) for name, count in counts.items()}
    return mean_errors, transitions


def _turns(closing: np.ndarray) -> list[tuple[int, bool]]:
    """Steps at which a gripper closes (True) or opens; `closing` is positive where it is closed."""
    changes = np.flatnonzero(np.diff(closing > 0))
    return [(int(step) + 1, bool(closing[step + 1] > 0)) for step in changes]
