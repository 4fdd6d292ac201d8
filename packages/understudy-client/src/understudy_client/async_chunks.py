"""`AsyncChunks`: the next chunk is predicted while the last one is executed, so that the robot does
not stop for it.

A chunk that is asked for at control step k begins at step k, and arrives a few steps later: its
*delay* in actions. By then its first actions belong to the past. The compensations differ in their
use of it:

    skip      The actions of the past are left out. The others may not fit to those that were
              executed meanwhile.
    guided    The rest of the chunk in execution also guides the new one, which then continues it
              (real-time chunking; `RobotPolicy.act` with `previous`, `delay` and `horizon`).
    trained   The executed actions are given to a policy that was trained for it, up to its
              `max_delay` (pi05, flow).
    ensemble  As skip, and each action is a mean over all chunks that have one for its step (Zhao et
              al. 2023, "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware").
    none      The chunk is executed from its first action on, as if it had not been late. For
              comparison.
"""

import warnings
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Self  # of `typing` since Python 3.11

Compensation = Literal["skip", "guided", "trained", "ensemble", "none"]
_RECENT = 10  # delays whose largest one is expected next


class DelayWarning(UserWarning):
    """A chunk arrived later than the policy was trained for."""


class ChunkPolicy(Protocol):
    """A policy that predicts chunks: `RobotPolicy`, or `RemotePolicy`."""

    def reset(self) -> None:
        """Start an episode."""
        ...

    def observe(self, observation: Mapping[str, Any], *, time: float | None = None) -> None:
        """Add the observation of a step without a chunk."""
        ...

    def act(self, observation: Mapping[str, Any], **options: Any) -> np.ndarray:
        """Predict a chunk, float32 [T, A]."""
        ...


class _Chunk(NamedTuple):
    asked: int
    """Control step of its observation."""
    start: int
    """Control step at which its first action is executed."""
    actions: np.ndarray
    """float32 [T, A]."""

    def has(self, step: int) -> bool:
        return self.start <= step < self.start + len(self.actions)


class AsyncChunks:
    """Actions of a policy whose chunks are predicted in another thread.

        chunks = us.AsyncChunks(policy, execute=8, compensation="guided")
        chunks.reset()
        while True:
            robot.send(chunks.select_action(observation))

    With a `delay` of 0 the actions are those of
    `policy.select_action(observation, horizon=execute)` to the bit.

    Attributes:
        delays: delays of the last chunks in actions, without the first chunk of an episode.
        stalls: steps of the episode at which the robot had to wait, since all actions were
            executed; 0 with a `delay`.
    """

    def __init__(
        self,
        policy: ChunkPolicy,
        *,
        execute: int | None = None,
        compensation: Compensation = "skip",
        delay: int | None = None,
        decay: float = 0.01,
    ) -> None:
        """Start the thread.

        Args:
            policy: local or remote; no other may use it meanwhile.
            execute: control steps from one request to the next; None: half a chunk. A chunk that
                takes longer delays the next request.
            compensation: see the module. With "trained", a chunk whose measured delay is above the
                policy's `max_delay` raises a `DelayWarning`, once in an episode.
            delay: actions after which each chunk is used, whether it arrives earlier or not; a late
                one is waited for. Results are then reproducible, as in a simulation. None: each
                chunk is used when it arrives.
            decay: decay of the weights of an ensemble: exp(-decay * i) of the i-th oldest chunk.

        Raises:
            ValueError: an unknown compensation, or one that the policy cannot follow; `delay` is
                above the policy's `max_delay` with "trained"; or a chunk has fewer actions than
                `execute` and `delay` need.
        """
        self.chunk = _chunk_length(policy)
        self.execute = execute if execute is not None else max(1, self.chunk // 2)
        if compensation not in get_args(Compensation):
            raise ValueError(
                f"compensation={compensation!r}: must be one of {', '.join(get_args(Compensation))}"
            )
        if not 1 <= self.execute <= self.chunk:
            raise ValueError(
                f"execute is {execute}: the policy predicts {self.chunk} actions, give 1 to "
                f"{self.chunk}"
            )
        if delay is not None and not 0 <= delay <= self.chunk - self.execute:
            most = self.chunk - self.execute
            raise ValueError(
                f"delay is {delay}: of {self.chunk} actions {self.execute} are executed until the "
                f"next request, so the next chunk may be {most} late at most; execute fewer, or "
                "train a longer chunk"
            )
        self._policy = policy
        self._compensation = compensation
        self._delay = delay
        self._decay = decay
        self._most_given = _max_delay(policy)
        if compensation == "trained" and not self._most_given:
            raise ValueError(
                "compensation='trained': the policy was not trained for it (policy.max_delay); use "
                "'skip'"
            )
        if compensation == "trained" and delay is not None and delay > self._most_given:
            raise ValueError(
                f"delay is {delay}, compensation='trained': the policy was trained for delays up "
                f"to {self._most_given} (policy.max_delay); give a smaller delay, or use 'guided'"
            )
        if compensation == "guided" and not _continues_chunks(policy):
            raise ValueError(
                "compensation='guided': a policy of this type cannot continue a chunk; use 'skip'"
            )
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="understudy-chunks")
        self.delays: deque[int] = deque(maxlen=_RECENT)
        self._clear()

    def _clear(self) -> None:
        self.stalls = 0
        self._step = 0
        self._warned = False
        self._chunks: list[_Chunk] = []
        self._asked: tuple[int, Future[np.ndarray]] | None = None  # control step and chunk
        self._observed: deque[Future[None]] = deque()

    def reset(self, **options: Any) -> None:
        """Start an episode; the chunk in work is dropped. `options` are those of the policy's
        `reset`.
        """
        self._drop()
        self._clear()
        self._policy.reset(**options)

    def select_action(
        self, observation: Mapping[str, Any], *, time: float | None = None, **options: Any
    ) -> np.ndarray:
        """Return the action of this control step; call it once in each.

        Args:
            observation: see `RobotPolicy.act`; it is copied.
            time: see `RobotPolicy.act`.
            options: further arguments of the policy's `act`.

        Returns:
            float32 [A], in the robot's units.

        Raises:
            Exception: an error of the policy, at the step at which it is known; the next call asks
                again.
        """
        step = self._step
        self._raise_observed()
        self._receive(step)
        seen = dict(observation)
        for key, value in observation.items():
            if isinstance(value, np.ndarray):
                seen[key] = np.array(value)
        is_due = not self._chunks or step - self._chunks[-1].asked >= self.execute
        if is_due and self._asked is None:
            self._ask(step, seen, {**options, "time": time})
            self._receive(step)
        else:
            self._observed.append(self._worker.submit(self._policy.observe, seen, time=time))
        action = self._action(step)
        self._step += 1
        return action

    def close(self) -> None:
        """End the thread. The policy stays open."""
        self._drop()
        self._worker.shutdown()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside ------------------------------------------------------------------------------------

    def _expected_delay(self) -> int:
        return self._delay if self._delay is not None else max(self.delays, default=1)

    def _ask(self, step: int, observation: dict[str, Any], options: dict[str, Any]) -> None:
        """Have the thread predict the chunk of this step."""
        late = self._expected_delay()
        if self._compensation in ("guided", "trained") and late and self._chunks:
            latest = self._chunks[-1]
            remaining = latest.actions[step - latest.start :]
            late = min(late, len(remaining))
            if len(remaining) and self._compensation == "guided":
                options |= {"previous": remaining, "delay": late, "horizon": len(remaining)}
            elif len(remaining):
                options |= {"previous": remaining, "delay": min(late, self._most_given)}
        self._asked = step, self._worker.submit(self._predict, observation, options)

    def _predict(self, observation: dict[str, Any], options: dict[str, Any]) -> np.ndarray:
        try:
            return self._policy.act(observation, **options)
        except Exception:
            with suppress(Exception):  # the history has every step, also that of a failed request
                self._policy.observe(observation, time=options.get("time"))
            raise

    def _receive(self, step: int) -> None:
        """Take the chunk that was asked for, where it is there and due, or the robot needs it."""
        if self._asked is None:
            return
        asked_step, future = self._asked
        delay = step - asked_step
        is_stalled = not any(chunk.has(step) for chunk in self._chunks)
        is_due = future.done()
        if self._delay is not None:
            is_due = delay >= self._delay
        elif is_stalled and self._chunks and not is_due:
            self.stalls += 1
        if not is_due and not is_stalled:
            return
        self._asked = None
        actions = future.result()
        if self._chunks:
            self.delays.append(delay)
            self._warn_if_late(delay)
            if (report := getattr(self._policy, "report_delay", None)) is not None:
                report(delay)
        start = step if self._compensation == "none" else asked_step
        kept: list[_Chunk] = []
        if self._compensation == "ensemble":
            kept = [chunk for chunk in self._chunks if chunk.has(step)]
        self._chunks = [*kept, _Chunk(asked_step, start, actions)]

    def _warn_if_late(self, delay: int) -> None:
        if self._compensation != "trained" or self._warned or delay <= self._most_given:
            return
        self._warned = True
        text = (
            f"a chunk arrived {delay} actions late; the policy was trained for delays up to "
            f"{self._most_given} (policy.max_delay), so this chunk may not continue the executed "
            "actions; use 'guided', a faster device or slower control steps"
        )
        warnings.warn(text, DelayWarning, stacklevel=4)

    def _action(self, step: int) -> np.ndarray:
        # `_receive` has waited where no chunk had this step, and a chunk is asked for before the
        # last one ends.
        actions = [chunk.actions[step - chunk.start] for chunk in self._chunks if chunk.has(step)]
        if len(actions) == 1:
            return np.array(actions[0])
        weights = np.exp(-self._decay * np.arange(len(actions)))
        return np.asarray(np.average(actions, axis=0, weights=weights), actions[0].dtype)

    def _raise_observed(self) -> None:
        """Raise the error of an observation in the thread."""
        while self._observed and self._observed[0].done():
            self._observed.popleft().result()

    def _drop(self) -> None:
        futures: list[Future[Any]] = list(self._observed)
        if self._asked is not None:
            futures.append(self._asked[1])
        for future in futures:
            if not future.cancel():
                future.exception()  # waits for it; its result has no use
        self._asked = None


def _chunk_length(policy: Any) -> int:
    """Actions of each chunk of a policy: a local one has it in its config."""
    config = getattr(policy, "config", None)
    return int(policy.chunk if config is None else config.chunk)


def _max_delay(policy: Any) -> int:
    """Actions that may be given to a policy."""
    metadata = getattr(policy, "metadata", {})
    config = getattr(policy, "config", None)
    if config is None:
        return int(metadata.get("max_delay", 0))
    return int(getattr(config, "max_delay", 0) or 0)


def _continues_chunks(policy: Any) -> bool:
    """Whether a local policy, or a remote one by its metadata, continues chunks; others are asked
    for it.
    """
    remote = getattr(policy, "metadata", {}).get("continues_chunks", True)
    return bool(getattr(getattr(policy, "policy", None), "continues_chunks", remote))
