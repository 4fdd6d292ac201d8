"""One robot's connection: its checks, history and noise. The policy's metadata and first passes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch

from understudy import Generation, Prepared, Reaction, RobotPolicy
from understudy_base import PROMPT_METADATA, STATE, TASK, Record
from understudy_client import (
    OPENPI,
    PROTOCOL_VERSION,
    ContractError,
    MessageError,
    Mismatch,
    ObservationCheck,
    compare_robots,
)
from understudy_robot.serve.requests import Request, seconds
from understudy_robot.serve.values import SENT, describe

# past observations of a control step: a robot may observe more often than it was recorded
_PAST_RATE = 8
_MOST_PAST = 1024  # of a policy without a rate
_LONGEST_TASK = 10_000
_CERTAIN = ("missing key", "shape", "dtype")  # kinds that make an observation unusable


class Ready(NamedTuple):
    """A request that can be computed.

    Attributes:
        prepared: its observation.
        mismatches: differences from training that its observations add.
        time: time of the observation in seconds; None: unknown.
    """

    prepared: Prepared
    mismatches: list[Mismatch]
    time: float | None


class Session:
    """State of one connection.

    All methods but `accept` are called in the thread of the passes.

    Args:
        robot: the served policy; its network is shared, its state is not used.
        reaction: reaction to observations that differ from those of training.
        seed: seed of the noise; None: the system's.

    Attributes:
        fresh: differences from training that the observations of the latest request add.
        clamped: dimensions that were clamped in this episode.
        compared: the latest observation.
        dialect: form of the arrays of its latest message, and so of the answer.
    """

    def __init__(self, robot: RobotPolicy, reaction: Reaction, seed: int | None = None) -> None:
        self.robot = copy_for_robot(robot)
        self.robot.reset()
        self._reaction = reaction
        self._check: ObservationCheck | None = None
        self._head = robot.policy.norm_heads[robot.head]
        if robot.contract is not None and robot.facts is not None and reaction != "off":
            self._check = ObservationCheck(robot.contract, self._head)
        self._mismatches: list[Mismatch] = []  # in this episode
        self.fresh: list[Mismatch] = []
        self.clamped: set[str] = set()
        self.compared: Record = {}
        self.dialect = OPENPI
        self._declared: list[Mismatch] = []  # for the whole connection
        self._last: float | None = None  # time of the latest observation in the history
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)

    @property
    def most_past(self) -> int:
        """Past observations that a request may have; 0 for a policy that sees none."""
        past = self.robot.past
        fps = self.robot.metadata.get("fps")
        reach = -min((times[0] for times in past.times(fps) if times), default=0.0)
        rate = past.step_rate(fps)
        if not reach:
            return 0
        return ceil(_PAST_RATE * (reach * rate + 1)) if rate else _MOST_PAST

    def reset(self) -> None:
        """Start an episode."""
        self.robot.reset()
        self.fresh = []
        self.clamped = set()
        self._mismatches.clear()
        self._last = None
        if self._check is not None:
            self._check.reset()

    def answer(self, request: Request, observation: Mapping[str, Any]) -> Ready | list[Mismatch]:
        """Return the request to be computed; mismatches of a request without a pass."""
        if request.op in ("act", "respond"):
            return self.prepare(request, observation)
        if request.op == "hello":
            return self.hello(request)
        self.reset()
        return []

    def hello(self, request: Request) -> list[Mismatch]:
        """Compare a robot's statements about itself with training.

        Raises:
            ContractError: they differ, and the reaction is strict.
        """
        self.fresh = []
        if self._check is None or self.robot.facts is None:
            return []
        self._declared = [*self.robot.contract.faults] if self.robot.contract is not None else []
        if request.declaration is not None:
            self._declared += compare_robots(self.robot.facts, request.declaration)
        if request.head is not None and request.head != self._head:
            fix = (
                f"serve the policy with --head {request.head}, or connect to the server of "
                f"{self._head}"
            )
            self._declared.append(Mismatch("other robot", "", self._head, request.head, fix))
        self._refuse()
        return self._declared

    def prepare(self, request: Request, observation: Mapping[str, Any]) -> Ready:
        """Check an observation and convert it for a pass.

        Raises:
            ValueError, TypeError: a value is missing or wrong. ContractError: the observation
                differs from those of training, and the reaction is strict.
        """
        policy = self.robot.policy
        fps = self.robot.metadata.get("fps")
        time = seconds(request.step, request.time, fps)
        generation = None
        if request.op == "respond":
            generation = Generation.check(policy, request.length, request.temperature)
        self.fresh = []
        self.compared = {}
        if len(request.past) > (most := self.most_past):
            raise MessageError(
                f"past has {len(request.past)} observations; this policy takes at most {most}"
            )
        if most and time is None:
            raise ValueError(
                "the policy sees past observations, and this one has no age; send the number of "
                'its control step: {"understudy": {"step": n}}, or its time in seconds'
            )
        inputs = self._inputs(observation)
        for step, past_time, past_observation in request.past:
            past_time = seconds(step, past_time, fps)
            if past_time is not None and self._last is not None and past_time <= self._last:
                continue  # sent again after a failure
            past_inputs = self._inputs(past_observation)
            self._look(past_inputs, past_time)
            if most:
                self._check_past(most)
                self.robot.observe(past_inputs, time=past_time)
            self._last = past_time
        self._look(inputs, time)
        self._refuse()
        self._check_past(most)
        draws = None
        if (noise := request.noise) is not None:
            position = np.array([noise.position])
            if generation is None:
                draws = policy.make_draws("act", noise.seed, position, noise.purpose)
            else:
                draws = generation.make_draws(noise.seed, position, noise.purpose)
        seen_at = time if most else None
        prepared = self.robot.prepare(
            inputs,
            time=seen_at,
            steps=request.steps,
            generator=self._generator,
            draws=draws,
            previous=_writable(request.previous),
            delay=request.delay,
            horizon=request.horizon,
            generation=generation,
        )
        return Ready(prepared, self.fresh, time)

    def explain(self, error: Exception) -> Exception:
        """Return the error for the latest observation: its own differences from training that make
        it unusable.
        """
        contract = self.robot.contract
        facts = self.robot.facts
        if isinstance(error, MessageError | ContractError) or not self.compared:
            return error
        if self._check is None or contract is None or facts is None:
            return error
        names = {camera.key: key for key, camera in facts.cameras.items()}
        if facts.state is not None:
            names[facts.state.key] = STATE
        words = {word.strip("'\"[](),:;") for word in str(error).split()}
        certain = [
            mismatch
            for mismatch in ObservationCheck(contract, self._head).look(self.compared)
            if mismatch.kind in _CERTAIN and {mismatch.key, names.get(mismatch.key, "")} & words
        ]
        return ContractError(certain) if certain else error

    def accept(self, ready: Ready) -> None:
        """Add the observation to the history: the robot gets the answer."""
        self.robot.accept(ready.prepared)
        self._last = ready.time

    def _inputs(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs of the policy, as arrays that torch may use; keys of no input have None."""
        if not isinstance(observation.get(TASK, ""), str):
            raise MessageError(
                f"{TASK} is a {type(observation[TASK]).__name__}; a robot sends one instruction"
            )
        if len(observation.get(TASK, "")) > _LONGEST_TASK:
            raise MessageError(
                f"{TASK} has {len(observation[TASK]):,} letters; send at most {_LONGEST_TASK:,}"
            )
        facts = self.robot.facts
        config = self.robot.config
        keys = facts.input_keys if facts is not None else {STATE, TASK, *config.cameras}
        inputs: dict[str, Any] = {}
        for key, value in observation.items():
            if key == PROMPT_METADATA:
                if not isinstance(value, Mapping):
                    raise MessageError(
                        f"{key} is {describe(value)}; it must be a map of values by name"
                    )
                inputs[key] = value
            elif key in keys:
                inputs[key] = _writable(value)
                if key != TASK and not isinstance(inputs[key], np.ndarray):
                    raise MessageError(
                        f"{key} is {describe(value)}; it must be an array of numbers: {SENT}"
                    )
            else:
                inputs[key] = None
        return inputs

    def _look(self, observation: Mapping[str, Any], time: float | None) -> None:
        """Compare an observation with training."""
        inputs = {key: value for key, value in observation.items() if key != PROMPT_METADATA}
        mismatches = self._check.look(inputs, time) if self._check is not None else []
        self.compared = inputs
        self._mismatches += mismatches
        self.fresh += mismatches

    def _check_past(self, most: int) -> None:
        """Raise ValueError where the memory of one robot would grow without end: its times need not
        advance.
        """
        if (number := self.robot.num_past) > most:
            raise ValueError(
                f"the policy remembers {number} observations of this robot, more than {most}, "
                "since their times are too close; send each control step once, and reset"
            )

    def _refuse(self) -> None:
        if self._reaction == "strict" and (self._declared or self._mismatches):
            raise ContractError([*self._declared, *self._mismatches])


def copy_for_robot(robot: RobotPolicy) -> RobotPolicy:
    """Return a policy of the same network and a separate state, which compares nothing by
    itself.
    """
    name = robot.policy.norm_heads[robot.head]
    metadata = {"heads": {name: robot.metadata}}
    bounds = robot.action_bounds
    return RobotPolicy(
        robot.policy, metadata, name, contract=robot.contract, reaction="off", action_bounds=bounds
    )


def describe_policy(robot: RobotPolicy, name: str, reaction: Reaction) -> dict[str, Any]:
    """Return the metadata of the handshake: plain values about the policy and its inputs."""
    facts = robot.facts
    config = robot.config
    policy = robot.policy
    cameras: dict[str, Sequence[int]] = dict.fromkeys(config.cameras, (*config.image_size, 3))
    if facts is not None:
        cameras |= {
            key: (*camera.size, 3) for key, camera in facts.cameras.items() if camera.size[0]
        }
    image_times, state_times = robot.past.times(robot.metadata.get("fps"))
    windows = {**dict.fromkeys(config.cameras, image_times), STATE: state_times}
    state_dim = policy.normalizer.dims[STATE][robot.head] if config.state_dim else 0
    own_reaction = reaction if facts is not None else "off"
    return {
        "protocol": PROTOCOL_VERSION,
        "policy": name,
        "type": config.type,
        "chunk": config.chunk,
        "action_dim": robot.action_dim,
        "action_names": list(robot.metadata.get("action_names", ())),
        "state_dim": state_dim,
        "state_names": list(robot.metadata.get("state_names", ())),
        "cameras": {key: list(shape) for key, shape in cameras.items()},
        "fps": robot.metadata.get("fps"),
        "heads": list(policy.norm_heads),
        "head": policy.norm_heads[robot.head],
        "past_steps": robot.past.steps,
        "history": {key: list(times) for key, times in windows.items() if times},
        "reaction": own_reaction,
        "contract": _handshake(robot),
        "continues_chunks": policy.continues_chunks,
        "response_tokens": policy.response_length,
        "action_bounds": robot.action_bounds,
        "max_delay": int(getattr(config, "max_delay", 0) or 0),
    }


def _handshake(robot: RobotPolicy) -> dict[str, Any] | None:
    """Plain values of the served robot's contract without the appearance of its cameras; None where
    there is none.
    """
    if robot.contract is None or robot.facts is None:
        return None
    cameras = {key: replace(camera, look=None) for key, camera in robot.facts.cameras.items()}
    facts = replace(robot.facts, cameras=cameras)
    return replace(robot.contract, robots={robot.policy.norm_heads[robot.head]: facts}).to_json()


def warm_up(robot: RobotPolicy, max_batch: int, passes: int) -> None:
    """Compute `passes` chunks for a gray image and a mean state, alone and as a full batch, before
    the first robot.

    The first passes are slow: memory, kernels and caches are made then. Torch's random generators
    stay as they are.
    """
    served = copy_for_robot(robot)
    config = robot.config
    facts = robot.facts
    task = facts.tasks[0] if facts is not None and facts.tasks else ""
    observation: dict[str, Any] = {TASK: task}
    for camera in config.cameras:
        if camera in robot.metadata.get("cameras", config.cameras):
            camera_facts = facts.cameras.get(camera) if facts is not None else None
            height, width = (
                camera_facts.size if camera_facts and camera_facts.size[0] else config.image_size
            )
            observation[camera] = np.full((height, width, 3), 128, np.uint8)
    if config.state_dim:
        center = facts.state.center if facts is not None and facts.state is not None else None
        dim = robot.policy.normalizer.dims[STATE][robot.head]
        observation[STATE] = (
            np.zeros(dim, np.float32)
            if center is None
            else np.nan_to_num(center).astype(np.float32)
        )
    generator = torch.Generator().manual_seed(0)
    for size in sorted({1, max_batch}):
        for _ in range(passes):
            served.reset()
            # with a history, time 0 is the start of an episode
            prepared = served.prepare(observation, time=0.0, generator=generator)
            robot.predict([prepared] * size)


def _writable(value: Any) -> Any:
    """Copy arrays of a message, whose memory torch must not write to; lists of numbers become
    arrays.
    """
    if isinstance(value, list | int | float):
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise MessageError(
                f"a list of numbers has rows of different lengths: {error}"
            ) from error
    if isinstance(value, np.ndarray | np.number):
        if value.dtype.kind not in "biuf":
            raise MessageError(f"an input has the dtype {value.dtype}; send numbers")
        return np.array(value)
    return value
