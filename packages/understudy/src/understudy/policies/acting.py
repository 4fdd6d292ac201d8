"""Parts of `RobotPolicy`: bounds of actions, reactions to unknown inputs, and one pass for several
robots.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from understudy.policies.draws import Draws, RandomSpec, make_draws
from understudy.policies.graphs import replaying
from understudy.policies.observation_history import ObservationHistory
from understudy.policies.policy import Policy
from understudy_base import ACTION, RESPONSE, STATE, TASK, Batch
from understudy_client import (
    Contract,
    ContractError,
    ContractWarning,
    Mismatch,
    RobotFacts,
    VectorFacts,
)

ActionBounds = Literal["clamp", "error", "off"]
"""Actions outside of their bounds are moved to the nearest bound, are an error, or reach the robot
as they are.
"""


def action_facts(facts: RobotFacts | None) -> VectorFacts:
    """Return the facts about a robot's actions.

    Raises:
        ValueError: the policy has none, or no minimum and maximum of a dimension.
    """
    if facts is None:
        raise ValueError(
            f"action_bounds: the policy has no {Contract.FILE} with the recorded actions; leave it "
            "off"
        )
    has_bounds = np.isfinite(facts.action.figures["min"]) & np.isfinite(facts.action.figures["max"])
    if not has_bounds.all():
        names = ", ".join(facts.action.names[i] for i in np.flatnonzero(~has_bounds))
        raise ValueError(
            f"action_bounds: {Contract.FILE} has no minimum and maximum of {names}; leave it off"
        )
    return facts.action


def bound_actions(
    actions: np.ndarray, facts: VectorFacts, bounds: ActionBounds
) -> tuple[np.ndarray, dict[str, float]]:
    """Bound actions in the robot's units.

    Args:
        actions: float32 [..., A].
        facts: facts of the recorded actions.
        bounds: the reaction; not "off".

    Returns:
        The bounded actions, and the names of the moved dimensions with the largest distance of
        each.

    Raises:
        ValueError: an action is outside, and `bounds` is "error".
    """
    low = facts.low - facts.margin
    high = facts.high + facts.margin
    distance = np.maximum(low - actions, actions - high).reshape(-1, facts.width).max(0)
    outside = {facts.names[i]: float(distance[i]) for i in np.flatnonzero(distance > 0)}
    if outside and bounds == "error":
        i = int(distance.argmax())
        values = actions.reshape(-1, facts.width)[:, i]
        ends = f"{facts.names[i]} from {values.min():.6g} to {values.max():.6g}"
        raise ValueError(
            f"{ACTION} has {ends}: its bounds are {low[i]:.6g} to {high[i]:.6g} (action_bounds)"
        )
    if not outside:
        return actions, outside
    return np.clip(actions, low, high).astype(actions.dtype), outside


Reaction = Literal["warn", "strict", "off"]
"""A `ContractWarning` for each difference, a `ContractError`, or nothing."""


def react(reaction: Reaction, mismatches: Sequence[Mismatch]) -> None:
    """Raise or warn where there are differences."""
    if mismatches and reaction == "strict":
        raise ContractError(mismatches)
    if reaction == "warn":
        for mismatch in mismatches:
            warnings.warn(str(mismatch), ContractWarning, stacklevel=3)


@contextmanager
def explained(reaction: Reaction, compare: Callable[[], object]) -> Iterator[None]:
    """Compare an observation that the block refuses with training, where the reaction is strict.

    Raises:
        ContractError: of `compare`, in place of the block's error.
    """
    try:
        yield
    except (ValueError, TypeError):
        if reaction == "strict":
            with suppress(IndexError):  # of a batch with too few rows
                compare()
        raise


def plain(value: Any) -> Any:
    """Convert a tensor to numpy, bfloat16 to float32; strings stay."""
    if isinstance(value, Tensor):
        if value.dtype == torch.bfloat16:
            value = value.float()
        return value.detach().cpu().numpy()
    return value if isinstance(value, str) else np.asarray(value)


@dataclass(frozen=True)
class Generation:
    """Settings of a text to generate.

    Attributes:
        length: most tokens.
        temperature: divisor of the logits; 0: the most likely token each time.
    """

    length: int
    temperature: float = 0.0

    @classmethod
    def check(cls, policy: Policy, length: int | None, temperature: float) -> "Generation":
        """Return the settings for a policy.

        Raises:
            ValueError: the policy generates no text, or a number is out of range.
        """
        most = policy.response_length
        if not most:
            policy.respond({}, {})  # raises, and names the type
        is_number = isinstance(length, int) and not isinstance(length, bool)
        if length is not None and not (is_number and 1 <= length <= most):
            raise ValueError(
                f"length is {length}: a response of the policy has up to {most} tokens, give 1 to "
                f"{most}"
            )
        if not 0 <= temperature < math.inf:
            raise ValueError(
                f"temperature is {temperature}: give 0 for the most likely text, or more"
            )
        return cls(most if length is None else length, float(temperature))

    def random_spec(self) -> dict[str, RandomSpec]:
        """Random numbers of a sample; none for the most likely text."""
        return {RESPONSE: RandomSpec("uniform", (self.length,))} if self.temperature else {}

    def make_draws(self, seed: int, positions: np.ndarray, purpose: str) -> Draws:
        """Return the random numbers of samples; see `draws.make_draws`."""
        return make_draws(self.random_spec(), seed, positions, purpose)


@dataclass(frozen=True)
class Prepared:
    """An observation, or a batch of them, in the form of the network (`RobotPolicy.prepare`).

    Attributes:
        batch: in the policy's keys on the CPU, before `Policy.preprocess`; [B, ...] each.
        draws: random numbers of `Policy.random_spec("act")`, [B, ...] each, on the CPU.
        executing: actions in execution, float32 [B, n, A]; None: the chunk continues no other.
        delay: actions of `executing` that the robot executes before it gets the chunk.
        horizon: actions of `executing` that guide the chunk; None: the first `delay` are given.
        steps: integration steps.
        width: width of this robot's actions.
        single: whether it is one observation, not a batch.
        histories: past observations with this one added; None: the policy sees none.
        generation: settings of the text to generate; None: actions are predicted.
    """

    batch: Batch
    draws: Draws
    executing: Tensor | None
    delay: int
    horizon: int | None
    steps: int
    width: int
    single: bool
    histories: list[ObservationHistory] | None
    generation: Generation | None = None

    @property
    def form(self) -> tuple[Any, ...]:
        """Value that is equal for observations that may share a pass: shapes, dtypes and settings,
        without B.
        """
        entries: list[tuple[Any, ...]] = []
        for key, value in sorted(self.batch.items()):
            if isinstance(value, Tensor):
                entries.append((key, tuple(value.shape[1:]), str(value.dtype)))
            else:
                entries.append((key,))
        executing = None if self.executing is None else tuple(self.executing.shape[1:])
        return tuple(entries), executing, self.delay, self.horizon, self.steps, self.generation


def predict(policy: Policy, prepared: Sequence[Prepared]) -> list[np.ndarray]:
    """Predict the chunks of several observations in one pass.

    A row of a pass depends on the others only through the rounding of the arithmetic, which may
    differ between sizes of a batch.

    Args:
        policy: the network.
        prepared: at least one; all of one `form`.

    Returns:
        Of each, float32 [T, A], or [B, T, A] of a batch, in the robot's units.

    Raises:
        ValueError: the policy refuses the values, or a value of a chunk is not finite.
    """
    first = prepared[0]
    batch, draws = to_network(policy, prepared)
    with torch.no_grad(), replaying(policy):
        if first.executing is None:
            actions = policy.act(batch, draws, first.steps)
        else:
            executing = _join([other.executing for other in prepared])
            executing = executing.to(next(policy.parameters()).device)
            actions = policy.continue_chunk(
                batch, draws, executing, first.delay, first.steps, first.horizon
            )
    rows = actions.float().cpu().numpy()
    chunks = []
    start = 0
    for other in prepared:
        count = len(other.batch[TASK])
        actions_of_robot: np.ndarray = rows[start : start + count, :, : other.width]
        _check_finite(actions_of_robot, other.batch.get(STATE))
        if other.single:
            actions_of_robot = actions_of_robot[0]
        chunks.append(actions_of_robot)
        start += count
    return chunks


def respond(policy: Policy, prepared: Sequence[Prepared]) -> list[list[str]]:
    """Generate the texts of several observations in one pass; see `predict`.

    Returns:
        Of each, the texts of its rows: one, or B of a batch.
    """
    generation = prepared[0].generation
    assert generation is not None
    batch, draws = to_network(policy, prepared)
    texts = policy.respond(batch, draws, generation.length, generation.temperature)
    ends = np.cumsum([len(other.batch[TASK]) for other in prepared]).tolist()
    return [texts[start:end] for start, end in zip([0, *ends], ends)]


def to_network(
    policy: Policy, prepared: Sequence[Prepared]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Join observations of one form into a prepared batch and draws on the policy's device.

    Raises:
        ValueError: their forms differ.
    """
    form = prepared[0].form
    if any(other.form != form for other in prepared):
        raise ValueError("observations of different shapes or settings cannot share a pass")
    device = next(policy.parameters()).device

    def move(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) else value

    joined = _join_entries([other.batch for other in prepared])
    batch = {key: move(value) for key, value in policy.preprocess(joined).items()}
    joined_draws = _join_entries([other.draws for other in prepared])
    return batch, {name: move(value) for name, value in joined_draws.items()}


def _check_finite(actions: np.ndarray, state: Tensor | None) -> None:
    """Raise ValueError where a value of a chunk is not finite: no robot can execute it."""
    if (bad := ~np.isfinite(actions)).any():
        count = f"{actions[bad][0]} in {int(bad.sum())} of {actions.size} values"
        cause = "are the weights sound?"
        if state is not None:
            largest = float(state.nan_to_num().abs().max())
            cause = (
                f"the largest value of {STATE} is {largest:.4g}: check sensors, units and weights"
            )
        raise ValueError(f"{ACTION} holds {count}: every value must be finite; {cause}")


def _join_entries(batches: Sequence[Batch]) -> dict[str, Any]:
    """Join the rows of several batches with the same keys."""
    joined = {}
    for key in batches[0]:
        joined[key] = _join([batch[key] for batch in batches])
    return joined


def _join(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Tensor):
        return torch.cat(list(values)) if len(values) > 1 else values[0]
    return list(chain.from_iterable(values))


def executing_actions(
    previous: Any, rows: int, single: bool, chunk: int, width: int, padded: int
) -> Tensor:
    """Convert the actions in execution to the policy's width, float32 [B, n, A].

    Args:
        previous: numbers [n, width], or [B, n, width] of a batch.
        rows: B.
        single: whether `previous` is of one observation.
        chunk: most actions.
        width: width of the robot's actions.
        padded: width of the policy's.

    Raises:
        ValueError: no numbers, another shape, too many actions, or a value that is not finite.
    """
    try:
        actions = torch.as_tensor(previous).float().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"previous is a {type(previous).__name__}; give numbers [n, {width}]"
        ) from error
    actions = actions[None] if single else actions
    if (
        actions.ndim != 3
        or len(actions) != rows
        or actions.shape[1] > chunk
        or actions.shape[2] != width
    ):
        shape = tuple(actions.shape)
        shapes = f"({rows}, n, {width})"
        if single:
            shape = shape[1:]
            shapes = f"(n, {width})"
        raise ValueError(f"previous is {shape}, the policy needs {shapes} with n up to {chunk}")
    if not torch.isfinite(actions).all():
        raise ValueError(
            "previous has a value that is not finite; give the actions that the robot executes"
        )
    return torch.nn.functional.pad(actions, (0, padded - width))
