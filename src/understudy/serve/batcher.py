"""Passes for several robots: a bounded queue, and one thread that computes the waiting requests.

Requests that wait while a pass computes share the next one, as far as their shapes agree. Nothing waits for a batch to
fill.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from understudy.policies.acting.prepared import predict
from understudy.policies.policy import Policy
from understudy.serve.metrics import ACTIONS, Metrics
from understudy.serve.protocol import DeadlineError, RemoteError
from understudy.serve.session import Ready

LOG = logging.getLogger("understudy.serve")


@dataclass
class Answer:
    """Result of a request.

    Attributes:
        value: the result of `Job.prepare`, where that is no `Ready`.
        ready: the computed request.
        actions: float32 [T, A] in the robot's units.
        clamped: dimensions that were moved to their bounds, with the largest distance of each.
        queue_s: seconds in the queue.
        compute_s: seconds of the pass, preparation included.
        robots: robots that shared the pass.
    """

    value: Any = None
    ready: Ready | None = None
    actions: np.ndarray | None = None
    clamped: dict[str, float] = field(default_factory=dict)
    queue_s: float = 0.0
    compute_s: float = 0.0
    robots: int = 1


@dataclass(eq=False)
class Job:
    """A request in the queue.

    Attributes:
        prepare: called in the thread of the passes: returns a `Ready`, which is computed, or another value, which is
            the answer.
        deadline: `time.monotonic` after which the robot does not wait for it.
        future: the `Answer`; cancelled where the robot is gone.
        since: when it was submitted.
    """

    prepare: Callable[[], Any]
    deadline: float
    future: "Future[Answer]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """The queue and its thread.

    Args:
        policy: the network.
        max_batch: most robots of a pass.
        max_queue: most waiting requests.
        metrics: of the server.
    """

    def __init__(self, policy: Policy, max_batch: int, max_queue: int, metrics: Metrics) -> None:
        self._policy, self._max_batch, self._max_queue, self._metrics = policy, max_batch, max_queue, metrics
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="understudy-serve", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    def submit(self, job: Job) -> None:
        """Add a request.

        Raises:
            RemoteError: the queue is full ("busy"), or the server ends ("closing").
        """
        with self._changed:
            if self._ended:
                raise RemoteError("the server ends; connect again later", "closing")
            if len(self._waiting) >= self._max_queue:
                text = f"{len(self._waiting)} requests wait, the most that may (max_queue); ask again later"
                raise RemoteError(text, "busy")
            self._waiting.append(job)
            self._changed.notify()

    def close(self, timeout: float | None = None) -> bool:
        """End the thread after its present pass; waiting requests fail. Returns whether it has ended in time."""
        with self._changed:
            self._ended = True
            left = list(self._waiting)
            self._waiting.clear()
            self._changed.notify()
        for job in left:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(RemoteError("the server ends; connect again later", "closing"))
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while jobs := self._take():
            try:
                self._compute(jobs)
            except BaseException as error:  # never without an answer
                LOG.exception("a pass failed")
                for job in jobs:
                    _fail(job, error)

    def _take(self) -> list[Job]:
        """Wait for requests; return those of the next pass, none at the end."""
        with self._changed:
            while not self._waiting and not self._ended:
                self._changed.wait()
            return [self._waiting.popleft() for _ in range(min(self._max_batch, len(self._waiting)))]

    def _compute(self, jobs: Sequence[Job]) -> None:
        groups: dict[Any, list[tuple[Job, Ready, Answer]]] = {}
        for job in jobs:
            started = time.monotonic()
            if not job.future.set_running_or_notify_cancel():
                continue  # the robot is gone
            if started >= job.deadline:
                waited = started - job.since
                _fail(job, DeadlineError(f"the request waited {waited:.3f} s, longer than its deadline", "deadline"))
                continue
            answer = Answer(queue_s=started - job.since)
            try:
                value = job.prepare()
            except Exception as error:
                _fail(job, error)
                continue
            answer.compute_s = time.monotonic() - started
            if isinstance(value, Ready):
                answer.ready = value
                groups.setdefault(value.prepared.form, []).append((job, value, answer))
            else:
                answer.value = value
                job.future.set_result(answer)
        for group in groups.values():
            self._pass(group)

    def _pass(self, group: "Sequence[tuple[Job, Ready, Answer]]") -> None:
        started = time.monotonic()
        try:
            found = predict(self._policy, [ready.prepared for _, ready, _ in group])
        except Exception as error:
            if len(group) > 1:  # whose fault it is shows alone
                for one in group:
                    self._pass([one])
            else:
                _fail(group[0][0], error)
            return
        seconds = time.monotonic() - started
        self._metrics.observe("understudy_batch_robots", len(group), bounds=ACTIONS)
        for (job, _, answer), actions in zip(group, found):
            answer.actions, answer.robots = actions, len(group)
            answer.compute_s += seconds
            job.future.set_result(answer)


def _fail(job: Job, error: BaseException) -> None:
    if not job.future.done():
        job.future.set_exception(error)
