"""The contract of a policy, dataset, robot, environment or server: contract.json
(docs/contract.md).

A fact that was neither stated nor measured is `unknown` in the file, and never a guess. In Python
an unknown text is "", an unknown count 0, an unknown number NaN. `form.py` has the form of the
file.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import numpy as np

from understudy_base import ConfigError, DatasetError, Record, write_text
from understudy_client.contract.camera_print import CameraPrint
from understudy_client.contract.form import NAMELESS, Kind, Robot, check_form
from understudy_client.contract.image_size import ASPECT_TOLERANCE, size_error
from understudy_client.contract.mismatch import Mismatch

if TYPE_CHECKING:
    from typing_extensions import Self  # of `typing` since Python 3.11

VERSION = 2
UNKNOWN = "unknown"
FIGURES = ("mean", "std", "min", "max", "q01", "q99")


class Facts:
    """Base of the dataclasses of a contract: their plain values, in which an unknown one is
    `unknown`.
    """

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return {name: _to_plain(getattr(self, name)) for name in names}

    @classmethod
    def from_json(cls, stored: Record) -> "Self":
        """Read plain values that obey the schema. Raises ValueError for others."""
        hints = get_type_hints(cls)
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: _from_plain(hints[name], stored[name]) for name in names})


def _to_plain(value: Any) -> Any:
    if isinstance(value, Facts | CameraPrint):
        return value.to_json()
    if isinstance(value, np.ndarray):
        return [_to_plain(float(number)) for number in value]
    if isinstance(value, Mapping):
        return {key: _to_plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_to_plain(part) for part in value] or UNKNOWN
    is_zero = type(value) is int and value == 0
    is_nan = value != value
    if value is None or value == "" or is_nan or is_zero:
        return UNKNOWN
    return value


def _from_plain(kind: Any, stored: Any) -> Any:
    """Return a fact of the type `kind`."""
    inner = get_args(kind)
    is_unknown = isinstance(stored, str) and stored == UNKNOWN
    if NoneType in inner:
        return None if stored is None or is_unknown else _from_plain(inner[0], stored)
    if is_unknown:
        return _unknown(kind)
    if kind is np.ndarray:
        return np.array([_from_plain(float, number) for number in stored], float)
    if get_origin(kind) is tuple:
        return tuple(_from_plain(inner[0], part) for part in stored)
    if get_origin(kind) is not None:
        return {str(key): _from_plain(inner[1], part) for key, part in stored.items()}
    if issubclass(kind, Facts | CameraPrint):
        return kind.from_json(stored)
    return kind(stored)


def _unknown(kind: Any) -> Any:
    """Return the value of an unknown fact of the type `kind`."""
    if kind is float:
        return np.nan
    if get_origin(kind) is Mapping:
        return {}
    return kind()


@dataclass(frozen=True)
class Normalization(Facts):
    """How the numbers of a vector reach the network.

    Attributes:
        source: `external` (figures in a file beside the weights), `baked` (in the weights),
            `computed` (from a dataset at each start), `none` (numbers as they are), or "".
        mode: `mean_std`, `quantile`, `min_max`, `identity`, another tool's own name, or "".
        digest: SHA-256 of the figures (`figures_digest`), or "".
    """

    source: str = ""
    mode: str = ""
    digest: str = ""


def figures_digest(figures: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of figures by name, each as float32 in little-endian order."""
    content = hashlib.sha256()
    for name, values in sorted(figures.items()):
        content.update(name.encode() + np.asarray(values, "<f4").tobytes())
    return content.hexdigest()


@dataclass(frozen=True)
class VectorFacts(Facts):
    """A vector of numbers. Figures are over the training frames, float64 (D,).

    Attributes:
        key: key in the recordings.
        names: names of the dimensions, in their order.
        figures: "mean", "std", "min", "max", "q01", "q99".
        units: unit of each dimension ("rad", "m"), "" where unknown; () where all are.
        roles: role of each dimension ("joint", "gripper"), as the units.
        references: of actions, zero of each dimension: `absolute`, `state` (the present state),
            `previous` (the action before); as the units.
        learned: of actions, zero of each dimension in the network, as `references`; the policy adds
            the state again.
        frame: frame of Cartesian dimensions ("base", "tool"), "" where unknown.
        gripper: dimension -> (number that closes, number that opens).
        normalization: how the numbers reach the network.
    """

    key: str
    names: tuple[str, ...]
    figures: Mapping[str, np.ndarray]
    units: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    learned: tuple[str, ...] = ()
    frame: str = ""
    gripper: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    normalization: Normalization = Normalization()

    def __post_init__(self) -> None:
        """Number the dimensions without a name; raise ValueError where figures or units and names
        differ in number.
        """
        names = tuple(name or str(number) for number, name in enumerate(self.names))
        object.__setattr__(self, "names", names)
        lengths = {len(values) for values in self.figures.values()}
        lengths |= {
            len(texts) for texts in (self.units, self.roles, self.references, self.learned) if texts
        }
        if lengths - {len(names)}:
            raise ValueError(f"{self.key}: figures or units and names differ in number")

    @classmethod
    def from_json(cls, stored: Record) -> "Self":
        """Read plain values that obey the schema. Raises ValueError for others, and for figures
        that nothing has.
        """
        vector = super().from_json(stored)
        vector._check_figures()
        vector._check_gripper()
        return vector

    def _check_figures(self) -> None:
        """Raise ValueError for the first figure that nothing has."""
        for name, std in zip(self.names, self.figures["std"]):
            if std < 0:
                raise ValueError(f"{self.key}: std of {name} is {std:g}; it is 0 or more")
        for low, high in (("min", "max"), ("q01", "q99")):
            for name, least, most in zip(self.names, self.figures[low], self.figures[high]):
                if least > most:
                    ends = f"{low} of {name} is {least:g}, and {high} {most:g}"
                    raise ValueError(f"{self.key}: {ends}; {low} is at most {high}")

    def _check_gripper(self) -> None:
        """Raise ValueError for the first gripper that is no dimension, or does not move."""
        for name, (closed, opened) in self.gripper.items():
            place = f"{self.key}: gripper"
            if name not in self.names:
                raise ValueError(
                    f"{place}: no dimension is {name!r}; there are {', '.join(self.names)}"
                )
            if closed == opened:
                raise ValueError(
                    f"{place}: {name} closes and opens at {closed:g}; give two numbers"
                )

    @classmethod
    def from_figures(
        cls, key: str, figures: Record, width: int, source: str = "", mode: str = "", **facts: Any
    ) -> "VectorFacts":
        """Make a vector of stored figures; those of another width are unknown.

        Args:
            key: key in the recordings.
            figures: by name.
            width: number of dimensions.
            source: see `Normalization`.
            mode: see `Normalization`.
            facts: further fields.
        """
        unknown = np.full(width, np.nan)
        whole = dict.fromkeys(FIGURES, unknown)
        for name in FIGURES:
            if figures.get(name) is not None:
                values = np.asarray(figures[name], float).reshape(-1)
                if len(values) == width:
                    whole[name] = values
        measured = {
            name: whole[name] for name in ("mean", "std") if not np.isnan(whole[name]).any()
        }
        digest = figures_digest(measured) if measured else ""
        norm = Normalization(source, mode, digest)
        return cls(key, facts.pop("names", ("",) * width), whole, normalization=norm, **facts)

    @classmethod
    def unmeasured(cls, key: str, names: Sequence[str], **facts: Any) -> "VectorFacts":
        """Make a vector without figures."""
        return cls.from_figures(key, {}, len(names), names=tuple(names), **facts)

    @property
    def width(self) -> int:
        """Number of dimensions D."""
        return len(self.names)

    @property
    def is_unnamed(self) -> bool:
        """Whether the dimensions have only numbers as names."""
        return self.names == tuple(map(str, range(self.width)))

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
        by_quantiles = (figures["q99"] - figures["q01"]) / 4
        std = np.nan_to_num(np.where(np.isnan(figures["std"]), by_quantiles, figures["std"]))
        of_constant = np.maximum(self.slack, 0.01 * np.nan_to_num(self.high - self.low))
        return np.where(std > 0, std, np.maximum(std, of_constant))

    @property
    def slack(self) -> np.ndarray:
        """Differences of each dimension that count as rounding and noise."""
        return 1e-3 * np.maximum(np.abs(self.center), 1.0)

    @property
    def margin(self) -> np.ndarray:
        """Distance beyond `low` and `high` that is still usual: a tenth of the range, and twice the
        slack.
        """
        return 0.1 * np.nan_to_num(self.high - self.low) + 2 * self.slack

    def _end(self, name: str, instead: str, deviations: float) -> np.ndarray:
        figures = self.figures
        known = np.where(np.isnan(figures[name]), figures[instead], figures[name])
        by_deviation = figures["mean"] + deviations * figures["std"]
        return np.where(np.isnan(known), by_deviation, known)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        plain = super().to_json()
        if self.is_unnamed and self.names:
            plain["names"] = [UNKNOWN] * self.width
        if not self.gripper:
            plain["gripper"] = UNKNOWN
        return plain


@dataclass(frozen=True)
class CameraFacts(Facts):
    """A camera. Its images are those that the policy is given: before the network's own resizing.

    Attributes:
        key: key in the recordings.
        size: height and width of the recorded images; zeros where the recordings differ or are
            unknown.
        look: how its images looked; None where no image was read.
        role: place of the camera ("front", "wrist"), "" where unknown.
        orientation: `upright`, `rotated 180`, `upside down` (rows reversed), `mirrored`, or "".
        color: `RGB`, `BGR`, or "".
        layout: `HWC`, `CHW`, `WHC` (transposed), or "".
        dtype: `uint8` of 0..255, `float32` of 0..1, or "".
        resize: how the policy resizes them to `network_size`: `pad`, `stretch`, `crop`, `none`, or
            "".
        network_size: height and width in the network; zeros where unknown.
    """

    key: str
    size: tuple[int, int]
    look: CameraPrint | None = None
    role: str = ""
    orientation: str = ""
    color: str = ""
    layout: str = ""
    dtype: str = ""
    resize: str = ""
    network_size: tuple[int, int] = (0, 0)

    def compare_size(self, size: tuple[int, int]) -> Mismatch | None:
        """Return the difference between the size of images (height, width) and that of training;
        None where it fits.
        """
        height, width = size
        recorded_height, recorded_width = self.size
        error = size_error(height, width, self.size)
        is_stretched = False
        if not error and recorded_height:
            ratio = height * recorded_width / (width * recorded_height)
            is_stretched = abs(ratio - 1) > ASPECT_TOLERANCE
        if not error and not is_stretched:
            return None
        kind = "transposed" if size == (recorded_width, recorded_height) else "shape"
        came = f"{width}x{height}: {error}".removesuffix(": ")
        fix = "send whole images as recorded; the policy resizes them"
        return Mismatch(kind, self.key, f"images of {recorded_width}x{recorded_height}", came, fix)


@dataclass(frozen=True)
class RobotFacts(Facts):
    """Inputs and outputs of one norm head.

    Attributes:
        fps: control steps per second; NaN where unknown.
        chunk: actions that the policy predicts, or that the robot expects at once.
        robot_type: robot type of the recordings, "" if unknown.
        control_mode: meaning of the actions ("joint", "ee_delta"), "" if unknown.
        state: the state; None for a policy without one.
        action: the action in the robot's units.
        cameras: cameras of the robot by standard key.
        tasks: instructions of training, at most `MOST_TASKS`.
        tasks_left_out: number of further instructions.
        episodes: training episodes; 0 if unknown.
        replan: actions that are executed before the next prediction; 0 if unknown.
        prompt: format of the prompts, "" if unknown.
        tokenizer: SHA-256 of the tokenizer's file, "" if unknown.
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
    replan: int = 0
    prompt: str = ""
    tokenizer: str = ""

    @property
    def input_keys(self) -> set[str]:
        """Keys of an observation: those of the policy, and those of the recordings."""
        keys = {"observation.state", "task", *self.cameras}
        if self.state is not None:
            keys.add(self.state.key)
        return keys | {camera.key for camera in self.cameras.values()}

    @property
    def looks(self) -> dict[str, CameraPrint]:
        """Prints of the cameras whose images were read, by standard key."""
        return {key: camera.look for key, camera in self.cameras.items() if camera.look is not None}

    @classmethod
    def read_stated(cls, stored: Record, where: str) -> "RobotFacts":
        """Return the robot of the content of a dataset's meta/contract.json.

        Raises:
            DatasetError: the content is not a contract.
        """
        try:
            return next(iter(Contract.from_json(stored).robots.values()))
        except (ValueError, StopIteration) as error:
            fix = "write it with `understudy contract DATASET --output FILE`"
            raise DatasetError(f"it is not a contract: {error}", where=where, fix=fix) from error

    @classmethod
    def check_and_read(cls, stored: Any, place: str) -> "RobotFacts":
        """Read plain values of a message.

        Args:
            stored: the values.
            place: of the values, for the message of an error.

        Raises:
            ValueError: a value is missing or has another type.
        """
        check_form(stored, Robot, place)
        return cls.from_json(stored)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        plain = super().to_json()
        plain["tasks"] = list(self.tasks)
        plain["tasks_left_out"] = self.tasks_left_out
        if self.state is None:
            plain["state"] = None
        return plain

    def completed(self, stated: "RobotFacts") -> "RobotFacts":
        """Return these facts, with those of `stated` where they are unknown, except of vectors of
        other names.

        Cameras are those of the same key in the recordings.
        """
        recorded = {camera.key: camera for camera in stated.cameras.values()}
        cameras = {key: recorded.get(camera.key, camera) for key, camera in self.cameras.items()}
        completed: RobotFacts = _completed(self, replace(stated, cameras=cameras))
        return completed


def _completed(facts: Any, stated: Any) -> Any:
    if facts is None or isinstance(facts, np.ndarray):
        return facts
    if isinstance(facts, VectorFacts) and (stated is None or facts.names != stated.names):
        return facts
    if isinstance(facts, Facts):
        names = [f.name for f in fields(facts)]  # type: ignore[arg-type]
        parts = {name: _completed(getattr(facts, name), getattr(stated, name)) for name in names}
        return replace(facts, **parts)  # type: ignore[type-var]
    if isinstance(facts, Mapping) and facts:
        return {key: _completed(part, stated.get(key, part)) for key, part in facts.items()}
    is_unknown = _to_plain(facts) in (UNKNOWN, [UNKNOWN] * 2, {})
    return stated if is_unknown else facts


@dataclass(frozen=True)
class Contract:
    """Facts about all robots of a policy, or about one dataset, robot or environment.

    Attributes:
        robots: facts by norm head; one head "" where there are none.
        provenance: where the policy is from: datasets, run, step, versions. Free of secrets.
        kind: see `Kind`.
        weights: SHA-256 of the weights, "" if unknown.
        faults: contradictions inside the folder that was read.
    """

    FILE = "contract.json"

    robots: Mapping[str, RobotFacts]
    provenance: Record = field(default_factory=dict)
    kind: Kind = "policy"
    weights: str = ""
    faults: tuple[Mismatch, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "version": VERSION,
            "kind": self.kind,
            "weights": self.weights or UNKNOWN,
            "robots": {head: facts.to_json() for head, facts in self.robots.items()},
            "faults": [vars(fault) for fault in self.faults],
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_json(cls, stored: Record) -> "Contract":
        """Read plain values.

        Raises:
            ValueError: another version, or a value that is missing or has another type.
        """
        check_form(stored)
        robots = {head: RobotFacts.from_json(facts) for head, facts in stored["robots"].items()}
        faults = tuple(Mismatch(**fault) for fault in stored["faults"])
        return cls(
            robots,
            stored["provenance"],
            stored["kind"],
            _from_plain(str, stored["weights"]),
            faults,
        )

    @classmethod
    def read(cls, path: Path) -> "Contract":
        """Read a file with a contract. Raises ConfigError for a damaged one."""
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, RecursionError) as error:
            fix = (
                "repair it, or write it again with `understudy export` or `understudy contract "
                "PATH --output FILE`"
            )
            raise ConfigError(f"{path}: {error}; {fix}") from error

    @classmethod
    def read_folder(cls, folder: Path) -> "Contract | None":
        """Read the contract of a policy folder; None where there is none. Raises ConfigError for a
        damaged file.
        """
        path = folder / cls.FILE
        return cls.read(path) if path.is_file() else None

    def write(self, path: Path, is_new: bool = False) -> None:
        """Write contract.json; with `is_new` nothing is replaced."""
        write_contract(path, self.to_json(), is_new=is_new)

    def check(self) -> None:
        """Raise ValueError for the first value that contract.json may not have."""
        check_form(self.to_json())

    def pair_robots(
        self, other: "Contract", head: str
    ) -> list[tuple[RobotFacts | None, RobotFacts]]:
        """Return the robot of this policy for each robot of another contract: by head, the only
        one, or by type; None without.
        """
        alone = next(iter(self.robots.values())) if len(self.robots) == 1 else None
        types = {facts.robot_type: facts for facts in self.robots.values() if facts.robot_type}
        pairs = []
        for name, robot in other.robots.items():
            trained = self.robots.get(head or name, alone or types.get(robot.robot_type))
            pairs.append((trained, robot))
        return pairs

    def unknowns(self) -> list[str]:
        """List the facts that the contract leaves open, as places in the file:
        `robots.arm.state.units`.
        """
        return list(_unknowns(self.to_json()))


def _unknowns(value: Any, place: str = "") -> Iterator[str]:
    """Places of `unknown`; one for a list."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _unknowns(part, f"{place}.{key or NAMELESS}".removeprefix("."))
    elif value == UNKNOWN or (isinstance(value, list) and UNKNOWN in value):
        yield place


def write_contract(path: Path, plain: Record, is_new: bool = False) -> None:
    """Write the plain values of a contract, a line for each vector of numbers; with `is_new`
    nothing is replaced.
    """
    write_text(path, _lines(plain) + "\n", is_new=is_new)


def _lines(value: Any, indent: int = 0) -> str:
    """JSON with one line for each list of plain values."""
    pad = " " * (indent + 2)
    if isinstance(value, Mapping) and value:
        parts = [
            f"{pad}{json.dumps(str(key))}: {_lines(part, indent + 2)}"
            for key, part in value.items()
        ]
        return "{\n" + ",\n".join(parts) + "\n" + " " * indent + "}"
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if is_list and any(isinstance(part, Mapping) for part in value):
        parts = [f"{pad}{_lines(part, indent + 2)}" for part in value]
        return "[\n" + ",\n".join(parts) + "\n" + " " * indent + "]"
    return json.dumps(value, allow_nan=False)
