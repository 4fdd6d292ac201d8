"""Requests of robots: an observation, and the fields that our own client adds to it."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Interval
from pydantic import AllowInfNan, Field, Strict, TypeAdapter, ValidationError

from understudy_client import CONTROL, MessageError, Noise, RobotFacts
from understudy_robot.serve.values import describe

Op = Literal["act", "respond", "reset", "hello"]
"""A chunk for the observation; a text for it; the start of an episode; the robot's statements about
itself.
"""
MOST_STEPS = 100
"""Most integration steps of a request: the other robots wait meanwhile."""
Number = Annotated[float, Strict(), AllowInfNan(False)]
Step = Annotated[int, Strict(), Interval(ge=-(1 << 53), le=1 << 53)]
Count = Annotated[int, Strict(), Interval(ge=0, le=1 << 20)]
Key = Annotated[int, Strict(), Interval(ge=0, lt=1 << 63)]


@dataclass(frozen=True)
class NoiseKey(Noise):
    """Key of a chunk's random numbers, as a message has it; the purpose is hashed for each of
    them.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    seed: Key
    position: Key
    purpose: Annotated[str, Field(max_length=64)] = "rollout"


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
        length: most tokens of a text.
        temperature: divisor of the logits of a text; 0: the most likely one.
        deadline_s: seconds after which the robot has no use for the answer.
        executed: actions that the robot executed while it waited for the last answer.
        declaration: the robot's statements about itself (`RobotFacts`), of a "hello"; None: none.
        head: norm head of the robot, of a "hello".
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    op: Op = "act"
    step: Step | None = None
    time: Number | None = None
    past: tuple[tuple[Step | None, Number | None, dict[str, Any]], ...] = ()
    noise: NoiseKey | None = None
    steps: Annotated[int, Strict(), Interval(ge=1, le=MOST_STEPS)] = 10
    previous: Any = None
    delay: Count = 0
    horizon: Count | None = None
    length: Count | None = None
    temperature: Annotated[Number, Ge(0)] = 0.0
    deadline_s: Annotated[Number, Gt(0)] | None = None
    executed: Count | None = None
    declaration: Any = None
    head: str | None = None


_REQUEST = TypeAdapter(Request)


def seconds(step: int | None, time: float | None, fps: float | None) -> float | None:
    """Return the time of an observation in seconds; None: the robot sent neither a time nor a
    step.
    """
    return time if time is not None or step is None or not fps else step / fps


def read_request(message: Any) -> tuple[Request, dict[str, Any]]:
    """Split a message into its request and its observation.

    Raises:
        MessageError: it has another form.
    """
    if not isinstance(message, dict):
        raise MessageError(
            f"the message is {describe(message)}; it must be a map of names to values"
        )
    for key in message:
        if not isinstance(key, str):
            raise MessageError(f"the name {key!r:.80} is bytes; send names as text")
    observation = dict(message)
    control = observation.pop(CONTROL, None)
    if "prompt" in observation and "task" not in observation:
        observation["task"] = observation.pop("prompt")
    if control is None:
        return Request(), observation
    try:
        request = _REQUEST.validate_python(control)
        if (stated := request.declaration) is not None:
            declaration = RobotFacts.check_and_read(stated, f"{CONTROL}.declaration")
            request = replace(request, declaration=declaration)
        return request, observation
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, (CONTROL, *fault["loc"])))
        raise MessageError(f"{place} is {str(fault['input'])[:80]!r}: {fault['msg']}") from None
    except ValueError as error:
        raise MessageError(f"it is not a robot's contract: {error}"[:400]) from None
