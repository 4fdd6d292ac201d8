"""Requests of robots, computed for the servers of all protocols: sessions, deadlines, outcomes and their metrics."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from understudy.contract.mismatch import ContractError, Mismatch, printable
from understudy.policies.inference import RobotPolicy
from understudy.serve.batcher import Answer, Batcher, Job
from understudy.serve.metrics import ACTIONS, Metrics
from understudy.serve.protocol import DeadlineError, RemoteError, Request, describe_error
from understudy.serve.session import Session

if TYPE_CHECKING:
    from understudy.config.serve import ServeConfig

LOG = logging.getLogger("understudy.serve")
GRACE_S = 5.0
"""Seconds in which answers may be finished after SIGTERM."""


class Engine:
    """A policy, its queue and its metrics. All methods but `close` are called in the event loop.

    Args:
        robot: the policy; its own state is not used.
        options: settings.

    Attributes:
        metrics: of the server.
        ready: set when the policy is warm.
        closing: whether the server ends.
        busy: answers in work.
        connected: robots with a session.
    """

    def __init__(self, robot: RobotPolicy, options: "ServeConfig") -> None:
        self.robot, self.options = robot, options
        self.metrics = Metrics()
        self.ready = asyncio.Event()
        self.closing = False
        self.busy = self.connected = 0
        self._started = 0
        self._batcher: Batcher | None = None

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._batcher) if self._batcher is not None else 0

    def start(self) -> None:
        """Start the thread of the passes."""
        self._batcher = Batcher(self.robot.policy, self.options.max_batch, self.options.max_queue, self.metrics)

    def close(self) -> None:
        """End the thread of the passes; waiting requests fail."""
        self.closing = True
        if self._batcher is not None:
            self._batcher.close(GRACE_S)

    def open_session(self) -> tuple[int, Session]:
        """Return the number of the next robot and its session. The n-th one has the n-th stream of noise."""
        number, self._started = self._started, self._started + 1
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
        """Have the thread of the passes compute a request, and report its mismatches and its seconds.

        Args:
            session: of the robot.
            request: its request.
            observation: by key.
            robot: its name in the log.
            since: `time.monotonic` of the request's arrival.
            gone: done when the robot leaves.

        Raises:
            DeadlineError: it takes longer than it may. RobotGoneError: the robot vanished. Others: see `Session`.
        """

        def prepare() -> Any:
            if request.op == "reset":
                session.reset()
                return []
            return session.hello(request) if request.op == "hello" else session.prepare(request, observation)

        if self.closing or self._batcher is None:
            raise RemoteError("the server ends; connect again later", "closing")
        seconds = min(self.options.deadline_s, request.deadline_s or self.options.deadline_s)
        job = Job(prepare, time.monotonic() + seconds)
        self._batcher.submit(job)
        future = asyncio.wrap_future(job.future)
        either: set[asyncio.Future[Any]] = {future} if gone is None else {future, gone}
        try:
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:  # also where the caller is cancelled: its robot is gone
            future.cancel()
        if future.cancelled():
            if gone is not None and gone.done():
                raise RobotGoneError
            raise DeadlineError(f"no chunk within {seconds:g} s, the deadline of the request", "deadline")
        try:
            answer = future.result()
            if answer.actions is not None:
                answer.actions, answer.clamped = session.robot.bound(answer.actions)
        except (ValueError, TypeError) as error:
            better = session.explain(error)
            known = better.mismatches if isinstance(better, ContractError) else ()
            self.report([mismatch for mismatch in session.fresh if mismatch not in known], robot)
            if better is error:
                raise
            raise better from error
        if answer.ready is None:
            self.report(answer.value, robot)
            return answer
        session.accept(answer.ready)
        self.metrics.count("understudy_clamped_chunks_total", by=bool(answer.clamped))
        for name in sorted(answer.clamped.keys() - session.clamped):
            LOG.warning("%s: action %s clamped by %.4g (action_bounds)", robot, name, answer.clamped[name])
        session.clamped |= answer.clamped.keys()
        self.report(answer.ready.found, robot)
        wall = time.monotonic() - since
        for stage, value in (("wall", wall), ("queue", answer.queue_s), ("compute", answer.compute_s)):
            self.metrics.observe("understudy_request_seconds", value, f'stage="{stage}"')
        if request.executed is not None:
            self.metrics.observe("understudy_delay_actions", request.executed, bounds=ACTIONS)
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

    def report(self, found: Sequence[Mismatch], robot: str) -> None:
        """Log and count differences from training."""
        for mismatch in found:
            LOG.warning("%s: %s", robot, mismatch)
            self.metrics.count("understudy_mismatches_total", f'kind="{mismatch.kind}"')

    def count(self, outcome: str) -> None:
        """Count a request by its outcome."""
        self.metrics.count("understudy_requests_total", f'outcome="{outcome}"')


class RobotGoneError(Exception):
    """The robot vanished before its answer."""
