"""Facts about the observations of training, per robot: the input contract of a policy (contract.json).

A number that training did not measure is NaN, and null in the file.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from understudy.contract.camera_print import CameraPrint

FILE = "contract.json"
VERSION = 1
_FIGURES = ("mean", "std", "min", "max", "q01", "q99")


@dataclass(frozen=True)
class VectorFacts:
    """A vector of numbers. Figures are over the training frames, float64 (D,).

    Attributes:
        key: key in the recordings.
        names: names of the dimensions.
        figures: "mean", "std", "min", "max", "q01", "q99".
    """

    key: str
    names: tuple[str, ...]
    figures: Mapping[str, np.ndarray]

    @property
    def width(self) -> int:
        """Number of dimensions D."""
        return len(self.names)

    @property
    def low(self) -> np.ndarray:
        """Least usual value of each dimension: the minimum, or the known figure nearest to it."""
        return self._end("min", "q01", -4.0)

    @property
    def high(self) -> np.ndarray:
        """Greatest usual value of each dimension."""
        return self._end("max", "q99", 4.0)

    @property
    def center(self) -> np.ndarray:
        """Mean of each dimension, or the middle of its quantiles."""
        middle = (self.figures["q01"] + self.figures["q99"]) / 2
        return np.where(np.isnan(self.figures["mean"]), middle, self.figures["mean"])

    @property
    def spread(self) -> np.ndarray:
        """Deviation of each dimension; of a constant one, 1 % of its range or 0.001 of its size."""
        figures = self.figures
        std = np.where(np.isnan(figures["std"]), (figures["q99"] - figures["q01"]) / 4, figures["std"])
        least = np.maximum(self.slack, 0.01 * np.nan_to_num(self.high - self.low))
        return np.maximum(np.nan_to_num(std), np.where(np.nan_to_num(std) > 0, 0.01 * std, least))

    @property
    def slack(self) -> np.ndarray:
        """Differences of each dimension that count as rounding and noise."""
        return 1e-3 * np.maximum(np.abs(self.center), 1.0)

    @property
    def margin(self) -> np.ndarray:
        """Distance beyond `low` and `high` that is still usual: a tenth of the range, and twice the slack."""
        return 0.1 * np.nan_to_num(self.high - self.low) + 2 * self.slack

    def _end(self, name: str, instead: str, deviations: float) -> np.ndarray:
        end = np.where(np.isnan(self.figures[name]), self.figures[instead], self.figures[name])
        return np.where(np.isnan(end), self.figures["mean"] + deviations * self.figures["std"], end)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        figures = {name: [None if np.isnan(x) else float(x) for x in self.figures[name]] for name in _FIGURES}
        return {"key": self.key, "names": list(self.names), **figures}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "VectorFacts":
        """Read plain values. Raises ValueError where figures and names differ in number."""
        names = tuple(map(str, stored["names"]))
        figures = {name: np.array([np.nan if x is None else x for x in stored[name]], np.float64) for name in _FIGURES}
        if any(len(values) != len(names) for values in figures.values()):
            raise ValueError(f"{stored['key']}: figures and names differ in number")
        return cls(str(stored["key"]), names, figures)


@dataclass(frozen=True)
class CameraFacts:
    """A camera.

    Attributes:
        key: key in the recordings.
        size: height and width of the recorded images; zeros where the recordings differ.
        look: how its images looked; None where no image was read.
    """

    key: str
    size: tuple[int, int]
    look: CameraPrint | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        look = self.look.to_json() if self.look is not None else None
        return {"key": self.key, "dtype": "uint8", "shape": [*self.size, 3], "color": "RGB", "look": look}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "CameraFacts":
        """Read plain values."""
        look = CameraPrint.from_json(stored["look"]) if stored.get("look") else None
        height, width = stored["shape"][:2]
        return cls(str(stored["key"]), (int(height), int(width)), look)


@dataclass(frozen=True)
class RobotFacts:
    """Inputs and outputs of one norm head.

    Attributes:
        fps: control steps per second.
        chunk: actions that the policy predicts.
        robot_type: robot type of the recordings, "" if unknown.
        control_mode: control mode of the source, "" if unknown.
        state: the state; None for a policy without one.
        action: the action in the robot's units.
        cameras: cameras of the robot by standard key.
        tasks: instructions of training, at most `MOST_TASKS`.
        tasks_left_out: number of further instructions.
        episodes: training episodes; 0 if unknown.
    """

    MOST_TASKS = 1000

    fps: float
    chunk: int
    robot_type: str
    control_mode: str
    state: VectorFacts | None
    action: VectorFacts
    cameras: Mapping[str, CameraFacts]
    tasks: tuple[str, ...] = ()
    tasks_left_out: int = 0
    episodes: int = 0

    @property
    def input_keys(self) -> set[str]:
        """Keys of an observation: those of the policy, and those of the recordings."""
        recorded = [camera.key for camera in self.cameras.values()]
        recorded += [self.state.key] if self.state is not None else []
        return {"observation.state", "task", *self.cameras, *recorded}

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        state = self.state.to_json() if self.state is not None else None
        cameras = {key: camera.to_json() for key, camera in self.cameras.items()}
        parts = {"state": state, "action": self.action.to_json(), "cameras": cameras, "tasks": list(self.tasks)}
        return vars(self) | parts

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "RobotFacts":
        """Read plain values."""
        return cls(
            fps=float(stored["fps"]),
            chunk=int(stored["chunk"]),
            robot_type=str(stored["robot_type"]),
            control_mode=str(stored["control_mode"]),
            state=VectorFacts.from_json(stored["state"]) if stored["state"] else None,
            action=VectorFacts.from_json(stored["action"]),
            cameras={str(key): CameraFacts.from_json(camera) for key, camera in stored["cameras"].items()},
            tasks=tuple(map(str, stored["tasks"])),
            tasks_left_out=int(stored["tasks_left_out"]),
            episodes=int(stored.get("episodes", 0)),
        )


@dataclass(frozen=True)
class InputContract:
    """Facts about all robots of a policy.

    Attributes:
        robots: facts by norm head.
        provenance: where the policy is from: datasets, run, step, versions. Free of secrets.
    """

    robots: Mapping[str, RobotFacts]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        robots = {head: facts.to_json() for head, facts in self.robots.items()}
        return {"version": VERSION, "robots": robots, "provenance": dict(self.provenance)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "InputContract":
        """Read plain values.

        Raises:
            ValueError: another version, or a value that is missing or has another type.
        """
        if stored.get("version") != VERSION:
            raise ValueError(f"version {stored.get('version')!r}: this release reads {VERSION}")
        try:
            robots = {str(head): RobotFacts.from_json(facts) for head, facts in stored["robots"].items()}
            return cls(robots, dict(stored["provenance"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


def write_contract(path: Path, contract: InputContract | Mapping[str, Any]) -> None:
    """Write contract.json, a line for each vector of numbers."""
    plain = contract.to_json() if isinstance(contract, InputContract) else contract
    path.write_text(_lines(plain) + "\n", encoding="utf-8")


def read_contract(folder: Path) -> InputContract | None:
    """Read the contract of a policy folder; None where there is none.

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, dict):
            raise ValueError(f"a {type(stored).__name__}, expected an object")
        return InputContract.from_json(stored)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


def _lines(value: Any, indent: int = 0) -> str:
    """JSON with one line for each list of plain values."""
    pad = " " * (indent + 2)
    if isinstance(value, Mapping) and value:
        parts = [f"{pad}{json.dumps(str(key))}: {_lines(part, indent + 2)}" for key, part in value.items()]
        return "{\n" + ",\n".join(parts) + "\n" + " " * indent + "}"
    if isinstance(value, Sequence) and not isinstance(value, str) and any(isinstance(v, Mapping) for v in value):
        parts = [f"{pad}{_lines(part, indent + 2)}" for part in value]
        return "[\n" + ",\n".join(parts) + "\n" + " " * indent + "]"
    return json.dumps(value, allow_nan=False)
