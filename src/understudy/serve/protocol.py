"""Requests, replies and errors of the policy server. Messages are those of `coding`.

The server speaks openpi's protocol: its first message is the metadata, then each message of the robot is an observation
and each answer a dict with `actions`. `prompt` is another name of `task`. Our own client adds one key, `CONTROL`, to
the observation: a dict with the fields of `Request`. It gets errors as a dict under `ERROR`; others get them as text,
on which openpi's client raises.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, cast, get_args

from understudy.contract.mismatch import ContractError, Mismatch
from understudy.errors import UnderstudyError
from understudy.serve.coding import MessageError

CONTROL, ERROR = "understudy", "error"
VERSION = 1

Op = Literal["act", "reset", "hello"]
"""A chunk for the observation; the start of an episode; the robot's statements about itself."""
Fault = Literal["contract", "value", "message", "busy", "deadline", "closing", "server"]
"""Kinds of errors: the inputs differ from those of training; a wrong value; a wrong message; the queue is full; the
deadline has passed; the server ends; a fault of the server."""


class RemoteError(UnderstudyError, OSError):
    """The server did not answer, or failed.

    Attributes:
        fault: one of `Fault`; "lost" where the connection ended, "refused" or "token" where the server refuses it.
    """

    def __init__(self, message: str, fault: str = "server") -> None:
        self.fault = fault
        super().__init__(message)


class DeadlineError(RemoteError, TimeoutError):
    """No answer came within the deadline."""


@dataclass(frozen=True)
class Noise:
    """Key of a chunk's random numbers (`policies.draws.make_draws`)."""

    seed: int
    position: int
    purpose: str = "rollout"


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        op: see `Op`.
        step: number of the control step since `reset`, the age of an observation in a history.
        time: seconds on any clock, in place of `step`.
        past: observations since the last request, (step, time, observation) each, the oldest first.
        noise: key of the random numbers; None: those of the connection.
        steps: integration steps.
        previous: actions in execution [n, A].
        delay: actions of `previous` that are executed before the chunk arrives.
        horizon: actions of `previous` that guide the chunk.
        deadline_s: seconds after which the robot has no use for the answer.
        executed: actions that the robot executed while it waited for the last answer.
        declaration: fields of `contract.declared.Declaration`, of a "hello".
        head: norm head of the robot, of a "hello".
        own_client: whether the request had `CONTROL`.
    """

    op: Op = "act"
    step: int | None = None
    time: float | None = None
    past: tuple[tuple[int | None, float | None, Mapping[str, Any]], ...] = ()
    noise: Noise | None = None
    steps: int = 10
    previous: Any = None
    delay: int = 0
    horizon: int | None = None
    deadline_s: float | None = None
    executed: int | None = None
    declaration: Mapping[str, Any] = field(default_factory=dict)
    head: str | None = None
    own_client: bool = False

    def times_by(self, fps: float | None) -> float | None:
        """Time of the observation in seconds; None: the robot sent neither a time nor a step."""
        return _seconds(self.step, self.time, fps)


def _seconds(step: int | None, time: float | None, fps: float | None) -> float | None:
    return time if time is not None or step is None or not fps else step / fps


def past_times(request: Request, fps: float | None) -> list[tuple[float | None, Mapping[str, Any]]]:
    """Return (seconds, observation) of the past observations of a request."""
    return [(_seconds(step, time, fps), seen) for step, time, seen in request.past]


MOST_STEPS = 100
"""Most integration steps of a request: the other robots wait meanwhile."""
_LONGEST_PURPOSE = 64


def read_request(message: Any) -> tuple[Request, dict[str, Any]]:
    """Split a message into its request and its observation.

    Raises:
        MessageError: it has another form.
    """
    if not isinstance(message, dict) or not all(isinstance(key, str) for key in message):
        raise MessageError(f"the message is a {type(message).__name__}; it must be a dict with names as keys")
    observation = dict(message)
    control = observation.pop(CONTROL, None)
    if "prompt" in observation and "task" not in observation:
        observation["task"] = observation.pop("prompt")
    if control is None:
        return Request(), observation
    if not isinstance(control, dict):
        raise MessageError(f"{CONTROL} is a {type(control).__name__}; it must be a dict")
    known = set(Request.__dataclass_fields__) - {"own_client"}
    if unknown := sorted(map(str, set(control) - known)):
        raise MessageError(f"{CONTROL} has {unknown[0]!r}; it may have {', '.join(sorted(known))}")
    values = {
        "op": _one_of(control, "op", get_args(Op), "act"),
        "step": _integer(control, "step", -(1 << 53), 1 << 53),
        "time": _number(control, "time"),
        "steps": _integer(control, "steps", 1, MOST_STEPS) or 10,
        "delay": _integer(control, "delay", 0, 1 << 20) or 0,
        "horizon": _integer(control, "horizon", 0, 1 << 20),
        "deadline_s": _number(control, "deadline_s"),
        "executed": _integer(control, "executed", 0, 1 << 20),
        "previous": control.get("previous"),
        "noise": _noise(control.get("noise")),
        "past": tuple(map(_past, _list(control, "past"))),
        "declaration": control.get("declaration") or {},
        "head": control.get("head"),
    }
    if not isinstance(values["declaration"], dict) or not isinstance(values["head"], str | None):
        raise MessageError(f"{CONTROL}: declaration must be a dict and head a name")
    if values["deadline_s"] is not None and values["deadline_s"] <= 0:
        raise MessageError(f"deadline_s is {values['deadline_s']}; it must be positive seconds")
    return Request(**values, own_client=True), observation


def _integer(control: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = control.get(name)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise MessageError(f"{name} is {str(value)[:80]!r}; it must be an integer from {low} to {high}")
    return value


def _number(control: Mapping[str, Any], name: str) -> float | None:
    value = control.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise MessageError(f"{name} is {str(value)[:80]!r}; it must be a finite number")
    return float(value)


def _one_of(control: Mapping[str, Any], name: str, words: tuple[str, ...], default: str) -> Any:
    value = control.get(name, default)
    if value not in words:
        raise MessageError(f"{name} is {str(value)[:80]!r}; it must be one of {', '.join(words)}")
    return value


def _list(control: Mapping[str, Any], name: str) -> list[Any]:
    value = control.get(name) or []
    if not isinstance(value, list):
        raise MessageError(f"{name} is a {type(value).__name__}; it must be a list")
    return value


def _noise(value: Any) -> Noise | None:
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) - {"seed", "position", "purpose"}:
        raise MessageError("noise must be a dict of seed, position and purpose")
    seed, position = _integer(value, "seed", 0, (1 << 63) - 1), _integer(value, "position", 0, (1 << 63) - 1)
    purpose = value.get("purpose", "rollout")
    if seed is None or position is None or not isinstance(purpose, str) or len(purpose) > _LONGEST_PURPOSE:
        text = f"its purpose must be a word of at most {_LONGEST_PURPOSE} letters"  # hashed for each random number
        raise MessageError(f"noise must have a seed and a position of 0 or more, and {text}")
    return Noise(seed, position, purpose)


def _past(value: Any) -> tuple[int | None, float | None, Mapping[str, Any]]:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], dict):
        raise MessageError("past must be a list of [step, time, observation]")
    where = {"step": value[0], "time": value[1]}
    return _integer(where, "step", -(1 << 53), 1 << 53), _number(where, "time"), value[2]


def describe_error(error: Exception) -> dict[str, Any]:
    """Return an error as plain values, for a reply."""
    fault: Fault
    if isinstance(error, ContractError):
        fault = "contract"
    elif isinstance(error, MessageError):
        fault = "message"
    elif isinstance(error, RemoteError):
        fault = cast(Fault, error.fault)
    elif isinstance(error, ValueError):
        fault = "value"
    else:
        fault = "server"
    found: dict[str, Any] = {"fault": fault, "message": str(error) or type(error).__name__}
    if isinstance(error, ContractError):
        found["mismatches"] = [describe_mismatch(mismatch) for mismatch in error.mismatches]
    return found


def describe_mismatch(mismatch: Mismatch) -> dict[str, str]:
    """Return a difference as plain values."""
    return {name: str(getattr(mismatch, name)) for name in ("kind", "key", "trained", "came", "fix")}


def read_mismatches(values: Any) -> list[Mismatch]:
    """Read the differences in a reply."""
    return [Mismatch(**value) for value in values or ()]


def rebuild_error(stored: Mapping[str, Any]) -> Exception:
    """Return the error of a reply, of the type that the policy itself raises for it."""
    fault, message = str(stored.get("fault", "server")), str(stored.get("message", ""))
    if fault == "contract":
        return ContractError(read_mismatches(stored.get("mismatches")))
    if fault == "value":
        return ValueError(message)
    if fault == "message":
        return MessageError(message)
    return DeadlineError(message, fault) if fault == "deadline" else RemoteError(message, fault)
