"""Requests of robots, computed for the servers of all protocols: a bounded queue, one thread,
deadlines and outcomes.

Requests that wait while a pass computes share the next one, as far as their shapes agree. Nothing
waits for a batch to fill.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from understudy import RobotPolicy, find_policy
from understudy_base import ConfigError, refuse_existing
from understudy_client import (
    ContractError,
    DeadlineError,
    Mismatch,
    RemoteError,
    describe_error,
    printable,
)
from understudy_robot.contracts.trace import TraceWriter
from understudy_robot.folder_contract import read_policy_contract
from understudy_robot.serve.metrics import ACTIONS, Metrics
from understudy_robot.serve.requests import Request
from understudy_robot.serve.session import Ready, Session

if TYPE_CHECKING:
    from understudy_robot.serve.config import ServeConfig

LOG = logging.getLogger("understudy.serve")
GRACE_S = 5.0
"""Seconds in which answers may be finished after SIGTERM."""


def open_trace(path: str, robot: RobotPolicy, folder: str = "") -> TraceWriter | None:
    """Open the trace of a policy's robot; None for an empty path.

    Args:
        path: a new file.
        robot: the policy.
        folder: its folder, of any tool.

    Raises:
        ConfigError: the policy has no contract, or the file exists or cannot be written.
    """
    if not path:
        return None
    refuse_existing(path, "trace", None)
    contract = robot.contract
    head = robot.policy.norm_heads[robot.head]
    if (
        contract is None
        and folder
        and (contract := read_policy_contract(find_policy(folder))) is not None
    ):
        robots = contract.robots
        if len(robots) == 1:
            robots = {head: next(iter(robots.values()))}
        contract = replace(contract, robots=robots)
    if contract is None or head not in contract.robots:
        raise ConfigError(
            "trace: the policy has no contract of this robot to compare with; export it from its "
            "run"
        )
    try:
        return TraceWriter(path, contract, head)
    except OSError as error:
        raise ConfigError(f"trace: {error}") from error


class RobotGoneError(Exception):
    """The robot vanished before its answer."""


@dataclass
class Answer:
    """Result of a request.

    Attributes:
        ready: the computed request; None where there was nothing to compute.
        mismatches: differences from training that the request adds.
        actions: float32 [T, A] in the robot's units.
        text: the generated text, of a request for one.
        clamped: dimensions that were moved to their bounds, with the largest distance of each.
        queue_s: seconds in the queue.
        compute_s: seconds of the pass, preparation included.
        robots: robots that shared the pass.
    """

    ready: Ready | None = None
    mismatches: Sequence[Mismatch] = ()
    actions: np.ndarray | None = None
    text: str | None = None
    clamped: dict[str, float] = field(default_factory=dict)
    queue_s: float = 0.0
    compute_s: float = 0.0
    robots: int = 1


@dataclass(eq=False)
class _Job:
    """A request in the queue."""

    prepare: Callable[[], Ready | Sequence[Mismatch]]
    """Called in the thread of the passes; the mismatches of a request without a pass are its
    answer.
    """
    deadline: float
    """`time.monotonic` after which the robot does not wait for it."""
    future: "Future[Answer]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Engine:
    """A policy, its queue and its metrics. Public methods but `close` are called in the event loop.

    Args:
        robot: the policy; its own state is not used.
        options: settings.

    Attributes:
        metrics: figures of the server.
        ready: set when the policy is warm.
        closing: whether the server ends.
        busy: answers in work.
        connected: robots with a session.
    """

    def __init__(self, robot: RobotPolicy, options: "ServeConfig") -> None:
        self.robot = robot
        self.options = options
        self.metrics = Metrics()
        self.ready = asyncio.Event()
        self.closing = False
        self.busy = self.connected = 0
        self._sessions = 0
        self._begin = time.monotonic()
        self._trace = open_trace(options.trace, robot, options.policy)
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()  # None ends the thread
        self._thread = threading.Thread(target=self._run, name="understudy-serve", daemon=True)

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return self._queue.qsize()

    def start(self) -> None:
        """Start the thread of the passes."""
        self._thread.start()

    def close(self) -> None:
        """End the thread after its present pass; waiting requests fail."""
        self.closing = True
        with suppress(Empty):
            while True:
                if (
                    job := self._queue.get_nowait()
                ) is not None and job.future.set_running_or_notify_cancel():
                    job.fail(RemoteError("the server ends; connect again later", "closing"))
        self._queue.put(None)
        self._thread.join(GRACE_S)
        if self._trace is not None:
            self._trace.close()

    def open_session(self) -> tuple[int, Session]:
        """Return the number of the next robot and its session. The n-th one has the n-th stream of
        noise.
        """
        number = self._sessions
        self._sessions = self._sessions + 1
        seed = None if self.options.seed < 0 else (self.options.seed + number) % (1 << 63)
        return number, Session(self.robot, self.options.contract, seed)

    async def compute(
        self,
        session: Session,
        request: Request,
        observation: dict[str, Any],
        robot: str,
        since: float,
        gone: "asyncio.Future[None] | None" = None,
    ) -> Answer:
        """Have the thread of the passes compute a request, and report its mismatches and its
        seconds.

        Args:
            session: session of the robot.
            request: request of the robot.
            observation: values by key.
            robot: name of the robot in the log.
            since: `time.monotonic` of the request's arrival.
            gone: done when the robot leaves.

        Raises:
            RemoteError: the queue is full ("busy"), or the server ends ("closing").
            DeadlineError: it takes longer than it may. RobotGoneError: the robot vanished. Others:
                see `Session`.
        """
        if self.closing:
            raise RemoteError("the server ends; connect again later", "closing")
        if self.waiting >= self.options.max_queue:
            raise RemoteError(
                f"{self.waiting} requests wait, the most that may (max_queue); ask again later",
                "busy",
            )
        seconds = min(self.options.deadline_s, request.deadline_s or self.options.deadline_s)
        job = _Job(partial(session.answer, request, observation), time.monotonic() + seconds)
        self._queue.put(job)
        future = asyncio.wrap_future(job.future)
        events: list[asyncio.Future[Any]] = [future] if gone is None else [future, gone]
        try:
            await asyncio.wait(events, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:  # also where the caller is cancelled: its robot is gone
            future.cancel()
        if future.cancelled():
            if gone is not None and gone.done():
                raise RobotGoneError
            raise DeadlineError(
                f"no answer within {seconds:g} s, the deadline of the request", "deadline"
            )
        try:
            answer = future.result()
            if answer.actions is not None:
                answer.actions, answer.clamped = session.robot.bound(answer.actions)
        except (ValueError, TypeError) as error:
            better = session.explain(error)
            explained = better.mismatches if isinstance(better, ContractError) else ()
            self.report(
                [mismatch for mismatch in session.fresh if mismatch not in explained], robot
            )
            if better is error:
                raise
            raise better from error
        if answer.ready is not None and answer.text is None:
            session.accept(answer.ready)
            self._count_chunk(session, request, answer, robot, time.monotonic() - since)
        self.report(answer.mismatches, robot)
        return answer

    def describe(self, error: Exception, robot: str) -> dict[str, Any]:
        """Log an error, and return it as plain values."""
        if isinstance(error, TypeError):  # of numpy or torch, for values of another kind
            error = ValueError(f"the observation cannot be read: {error}")
        described = describe_error(error)
        if described["fault"] == "server":
            LOG.error("%s: a fault of the server", robot, exc_info=error)
        elif isinstance(error, ContractError):
            self.report(error.mismatches, robot)
        else:
            LOG.warning("%s: %s: %s", robot, described["fault"], printable(described["message"]))
        return described

    def report(self, mismatches: Sequence[Mismatch], robot: str) -> None:
        """Log and count differences from training."""
        for mismatch in mismatches:
            LOG.warning("%s: %s", robot, mismatch)
            self.metrics.count("understudy_mismatches_total", f'kind="{mismatch.kind}"')

    def count(self, outcome: str) -> None:
        """Count a request by its outcome."""
        self.metrics.count("understudy_requests_total", f'outcome="{outcome}"')

    def _count_chunk(
        self, session: Session, request: Request, answer: Answer, robot: str, wall: float
    ) -> None:
        self.metrics.count("understudy_clamped_chunks_total", by=bool(answer.clamped))
        for name in sorted(answer.clamped.keys() - session.clamped):
            LOG.warning(
                "%s: action %s clamped by %.4g (action_bounds)", robot, name, answer.clamped[name]
            )
        session.clamped |= answer.clamped.keys()
        for stage, seconds in (
            ("wall", wall),
            ("queue", answer.queue_s),
            ("compute", answer.compute_s),
        ):
            self.metrics.observe("understudy_request_seconds", seconds, f'stage="{stage}"')
        if request.executed is not None:
            self.metrics.observe("understudy_delay_actions", request.executed, bounds=ACTIONS)
        if self._trace is not None and answer.actions is not None:
            fps = self.robot.metadata.get("fps") or 1.0
            step = (
                round((time.monotonic() - self._begin) * fps)
                if request.step is None
                else request.step
            )
            age_s = max(wall, (request.executed or 0) / fps)
            try:
                self._trace.add(robot, step, session.compared, answer.actions, age_s)
            except OSError as error:  # a full disk stops no robot
                LOG.error("the trace ends here: %s", error)
                self._trace = None

    # -- the thread of the passes ------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            jobs = [job]
            while len(jobs) < self.options.max_batch and not self._queue.empty():
                if (job := self._queue.get()) is None:
                    self._queue.put(None)
                    break
                jobs.append(job)
            try:
                self._compute(jobs)
            except BaseException as error:  # never without an answer
                LOG.exception("a pass failed")
                for job in jobs:
                    job.fail(error)

    def _compute(self, jobs: Sequence[_Job]) -> None:
        groups: dict[Any, list[tuple[_Job, Ready, Answer]]] = {}
        for job in jobs:
            started = time.monotonic()
            if not job.future.set_running_or_notify_cancel():
                continue  # the robot is gone
            answer = Answer(queue_s=started - job.since)
            if started >= job.deadline:
                text = f"the request waited {answer.queue_s:.3f} s, longer than its deadline"
                job.fail(DeadlineError(text, "deadline"))
                continue
            try:
                prepared = job.prepare()
            except Exception as error:
                job.fail(error)
                continue
            if isinstance(prepared, Ready):
                answer.ready = prepared
                answer.mismatches = prepared.mismatches
                answer.compute_s = time.monotonic() - started
                groups.setdefault(prepared.prepared.form, []).append((job, prepared, answer))
            else:
                answer.mismatches = prepared
                job.future.set_result(answer)
        for group in groups.values():
            self._pass(group)

    def _pass(self, group: Sequence[tuple[_Job, Ready, Answer]]) -> None:
        started = time.monotonic()
        prepared = [ready.prepared for _, ready, _ in group]
        chunks: list[np.ndarray] = []
        texts: list[list[str]] = []
        try:
            if prepared[0].generation is None:
                chunks = self.robot.predict(prepared)
            else:
                texts = self.robot.texts(prepared)
        except Exception as error:
            if len(group) == 1:
                group[0][0].fail(error)
            else:  # each alone shows whose fault it is
                for member in group:
                    self._pass([member])
            return
        seconds = time.monotonic() - started
        self.metrics.observe("understudy_batch_robots", len(group), bounds=ACTIONS)
        for number, (job, _, answer) in enumerate(group):
            if chunks:
                answer.actions = chunks[number]
            else:
                answer.text = texts[number][0]
            answer.robots = len(group)
            answer.compute_s += seconds
            job.future.set_result(answer)
