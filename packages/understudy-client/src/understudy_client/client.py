"""`RemotePolicy`: a policy behind an address, with the methods of the local one. It imports no
torch.

policy = us.RemotePolicy("ws://127.0.0.1:8000")
policy.reset()
observation = {"observation.state": joints, "observation.images.front": image, "task": "..."}
action = policy.select_action(observation)
"""

import logging
import ssl as tls
import threading
import time as clock
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import numpy as np
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from understudy_base import Record, redact
from understudy_client.access import VARIABLE, is_loopback, read_token
from understudy_client.contract.facts import RobotFacts
from understudy_client.contract.mismatch import ContractWarning, Mismatch
from understudy_client.protocol import (
    CONTROL,
    ERROR,
    DeadlineError,
    MessageError,
    Noise,
    RemoteError,
    decode,
    encode,
    read_mismatches,
    rebuild_error,
)

if TYPE_CHECKING:
    from typing import TypeGuard

    from typing_extensions import Self  # of `typing` since Python 3.11

FAILURES = (OSError, WebSocketException)
"""Errors of a connection that another one may not have."""
LOG = logging.getLogger("understudy.serve")
PATIENCE_S = 2.0
"""Seconds without a server after which the log names it."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_MARGIN_S = 1.0  # beyond the deadline: the server's own answer says more than a silence


class RemotePolicy:
    """A policy that `understudy serve` computes, for one robot.

    A connection that ends is made again, and the observations of a policy with a history are sent
    again, so the robot gets the actions that it would have got. Safe in threads; requests of
    several wait for each other.

    Attributes:
        metadata: facts about the policy: `chunk`, `action_dim`, `action_names`, `fps`, `cameras`,
            `history` and more.
        mismatches: differences from training that the server found in this episode.
        clamped: dimensions of the last chunk that the server moved to a bound, with the largest
            distance of each.
        timing: milliseconds of the last request on the server: `queue_ms`, `infer_ms`, `total_ms`.
        reconnects: connections made after the first one.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        declaration: RobotFacts | None = None,
        head: str | None = None,
        timeout_s: float = 30.0,
        ssl: tls.SSLContext | None = None,
        max_message_mb: float = 64.0,
    ) -> None:
        """Connect; wait up to `timeout_s` for a server that starts.

        Args:
            url: ws://HOST:PORT or wss://HOST:PORT; HOST:PORT means ws.
            token: token of the server; None: the environment variable UNDERSTUDY_SERVE_TOKEN, if
                any.
            declaration: the robot's statements about itself, which the server compares with
                training.
            head: the robot's norm head, which must be the served one.
            timeout_s: seconds that a call may take, reconnections included.
            ssl: context for a wss:// address whose certificate the system does not know.
            max_message_mb: largest message that the server may send, in MB.

        Raises:
            ValueError: another kind of address. RemoteError: the server refuses the robot.
            DeadlineError: no server answers in time. ContractError: the statements differ, and the
                server is strict.
        """
        self._url = _check_address(url)
        self._token = token if token is not None else read_token("")
        self._declaration = declaration.to_json() if declaration is not None else None
        self._head = head
        self._ssl = ssl
        self._max_size = int(max_message_mb * 1e6)
        if not timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s}; give positive seconds")
        self.timeout_s = timeout_s
        self.metadata: dict[str, Any] = {}
        self.mismatches: list[Mismatch] = []
        self.clamped: dict[str, float] = {}
        self.timing: dict[str, float] = {}
        self.reconnects = -1
        self._lock = threading.RLock()
        self._connection: ClientConnection | None = None
        self._closed = False
        self._queue: deque[np.ndarray] = deque()
        self._step = 0
        self._noise: tuple[int, int] | None = None
        self._executed: int | None = None
        self._fresh = True  # the server's connection has seen nothing of this episode
        self._past: PastObservations | None = None
        with self._lock:
            self._connect(clock.monotonic() + timeout_s)
        reaches = [-min(times) for times in self.metadata.get("history", {}).values()]
        if reaches:
            # Without a frame rate the times of a history of steps are in steps.
            step_rate = 1.0 if self.metadata.get("past_steps") else None
            self._past = PastObservations(max(reaches), self.metadata.get("fps") or step_rate)

    # -- the methods of the local policy -----------------------------------------------------------

    def reset(self, *, seed: int | None = None, position: int = 0) -> None:
        """Start an episode.

        Args:
            seed: seed of the noise; the chunk of control step k has the noise of `position` + k, as
                in `understudy rollout`. None: the server chooses.
            position: position of the first step.

        Raises:
            RemoteError: see `act`.
        """
        with self._lock:
            self._queue.clear()
            self.mismatches.clear()
            self.clamped = {}
            self._step = 0
            self._executed = None
            self._noise = None if seed is None else (seed, position)
            if self._past is not None:
                self._past.reset()
            if not self._fresh:
                self._request({}, {"op": "reset"})
                self._fresh = True

    def act(
        self,
        observation: Mapping[str, Any],
        *,
        time: float | None = None,
        steps: int = 10,
        previous: Any = None,
        delay: int = 0,
        horizon: int | None = None,
        noise: Noise | None = None,
    ) -> np.ndarray:
        """Predict the next actions; each call is one control step.

        Args:
            observation: numpy arrays by key, of one moment: see `RobotPolicy.act`.
            time: seconds on any clock. None: each observation is a step of 1/fps.
            steps: integration steps, where the policy samples.
            previous: numbers [n, A], the rest of the chunk in execution. None: the chunk continues
                no other.
            delay: actions of `previous` that the robot executes before it gets the new chunk.
            horizon: actions of `previous` that guide the new chunk.
            noise: key of the random numbers, in place of the one of `reset`.

        Returns:
            float32 [T, A], in the robot's units.

        Raises:
            ValueError, ContractError: as the local policy, or the server's actions are not finite.
            MessageError: a value cannot be sent.
            DeadlineError: no answer within `timeout_s`. RemoteError: the server refuses or fails.
        """
        with self._lock:
            sent_time = None if time is None else float(time)
            sent_previous = None if previous is None else np.asarray(previous, np.float32)
            control: dict[str, Any] = {
                "op": "act",
                "step": self._step,
                "time": sent_time,
                "steps": steps,
                "previous": sent_previous,
                "delay": delay,
                "horizon": horizon,
                "executed": self._executed,
                **self._draws(noise),
            }
            reply = self._request(observation, control)
            actions = reply.get("actions")
            if not _is_chunk(actions):
                raise RemoteError(f"{self._name} answered without actions; is it a policy server?")
            if not np.isfinite(actions).all():  # of another server than ours
                raise ValueError(
                    f"{self._name} answered with an action that is not finite: check its policy"
                )
            self.clamped = dict(reply.get("clamped", {}))
            self._executed = None
            self._remember(observation, time)
            if self._past is not None:
                self._past.mark_sent()
            return np.array(actions)

    def respond(
        self,
        observation: Mapping[str, Any],
        *,
        time: float | None = None,
        length: int | None = None,
        temperature: float = 0.0,
        noise: Noise | None = None,
    ) -> list[str]:
        """Generate the text that a policy with responses answers with, such as the subtask of a
        planner; it is no control step.

        Args:
            observation: see `act`.
            time: see `act`.
            length: most tokens, up to those of training (`metadata["response_tokens"]`); None:
                those.
            temperature: divisor of the logits, from which a token is then drawn. 0: the most likely
                token each time.
            noise: key of the draws, in place of the one of `reset`.

        Returns:
            One text, as `RobotPolicy.respond` does.

        Raises:
            ValueError: the policy generates no text, or a number is out of range. Others: see
                `act`.
        """
        with self._lock:
            if not self.metadata.get("response_tokens"):
                kind = self.metadata.get("type")
                raise ValueError(
                    f"{self._name} serves a policy of type {kind} without responses, which "
                    "generates no text; serve one of pi05 that was trained with data.response"
                )
            sent_time = None if time is None else float(time)
            control: dict[str, Any] = {
                "op": "respond",
                "step": self._step,
                "time": sent_time,
                "length": length,
                "temperature": float(temperature),
                **self._draws(noise, "response"),
            }
            reply = self._request(observation, control)
            text = reply.get("response")
            if not isinstance(text, str):
                raise RemoteError(f"{self._name} answered without a text; is it a policy server?")
            if self._past is not None:
                self._past.mark_sent()
            return [text]

    def observe(self, observation: Mapping[str, Any], *, time: float | None = None) -> None:
        """Add the observation of a control step without an action.

        It is sent with the next `act`, and for a policy without a history not at all.
        """
        with self._lock:
            self._remember(observation, time)

    def select_action(
        self, observation: Mapping[str, Any], *, horizon: int | None = None, **options: Any
    ) -> np.ndarray:
        """Return the next action of the chunk in execution; have a new chunk predicted where it is
        used up.

        Args:
            observation: of this control step.
            horizon: actions of each chunk to execute; None: all of it.
            options: further arguments of `act`.

        Returns:
            float32 [A], in the robot's units.

        Raises:
            ValueError: `horizon` is not within the chunk. Others: see `act`.
        """
        chunk = self.chunk
        if horizon is not None and not 1 <= horizon <= chunk:
            raise ValueError(
                f"horizon is {horizon}: the policy predicts {chunk} actions, give 1 to {chunk}"
            )
        with self._lock:
            if self._queue:
                self.observe(observation, time=options.get("time"))
            else:
                self._queue.extend(self.act(observation, **options)[:horizon])
            return self._queue.popleft()

    @property
    def chunk(self) -> int:
        """Number of actions T that the policy predicts."""
        return int(self.metadata["chunk"])

    @property
    def action_dim(self) -> int:
        """Width of the robot's actions."""
        return int(self.metadata["action_dim"])

    def report_delay(self, executed: int) -> None:
        """Report the actions executed during the wait for the last chunk; the next request carries
        their number.
        """
        self._executed = executed

    def close(self) -> None:
        """End the connection."""
        with self._lock:
            self._closed = True
            self._drop()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return redact(self._url)

    def _draws(self, noise: Noise | None, *purpose: str) -> dict[str, Any]:
        """Entry of a request with the key of its random numbers: `noise`, or that of `reset`; {}
        where the server chooses.
        """
        if noise is None and self._noise is not None:
            seed, position = self._noise
            noise = Noise(seed, position + self._step, *purpose)
        return {} if noise is None else {"noise": asdict(noise)}

    def _remember(self, observation: Mapping[str, Any], time: float | None) -> None:
        if self._past is not None:
            self._past.add(self._step, time, observation)
        self._step += 1

    def _request(self, observation: Mapping[str, Any], control: dict[str, Any]) -> dict[str, Any]:
        """Send a request, again after each connection that ends, and return the answer."""
        if CONTROL in observation:
            raise ValueError(
                f"the observation has {CONTROL!r}, which is the name of this client's own values"
            )
        if self._closed:
            raise RemoteError(f"{self._name}: this client is closed; make another one", "closing")
        end = clock.monotonic() + self.timeout_s
        encode(dict(observation))  # checked before anything is sent
        pause = 0.0  # a lost connection is made again at once, and then ever later
        while True:
            connection = self._connection
            if connection is None:
                if control["op"] == "reset":
                    return {}  # the next connection starts an episode by itself
                connection = self._connect(end)
            left = end - clock.monotonic()
            message = self._message(observation, control, left)
            try:
                reply = _exchange(connection, message, max(left, 0) + _MARGIN_S)
            except TimeoutError as error:
                self._drop()  # a late answer would be taken for the next one
                raise DeadlineError(
                    f"{self._name}: no answer within {self.timeout_s:g} s", "deadline"
                ) from error
            except FAILURES as error:
                self._drop()
                if clock.monotonic() >= end:
                    raise DeadlineError(
                        f"{self._name}: the connection ended: {error}", "lost"
                    ) from error
                clock.sleep(min(pause, max(0.0, end - clock.monotonic())))
                pause = min(2 * pause or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
                continue
            self._fresh = False
            try:
                return self._checked(reply)
            except RemoteError as error:
                if error.fault != "closing" or clock.monotonic() >= end:
                    raise
                self._drop()  # the server restarts
                clock.sleep(_FIRST_PAUSE_S)

    def _message(self, observation: Mapping[str, Any], control: Record, deadline_s: float) -> bytes:
        """Return the message of a request, with the observations that the server lacks.

        Raises:
            MessageError: it is larger than the server takes.
        """
        past: list[Entry] = []
        if self._past is not None and control["op"] != "reset":
            past = self._past.unsent()
        fields = {**control, "past": past, "deadline_s": max(deadline_s, 1e-3)}
        known = {name: value for name, value in fields.items() if value is not None}
        message = encode({**observation, CONTROL: known})
        most = self.metadata.get("max_message_bytes", len(message))
        if len(message) > most:
            raise MessageError(
                f"the observation takes {len(message):,} bytes, the server takes {most:,}; "
                "send smaller images, or serve with a larger --max-message-mb"
            )
        return message

    def _checked(self, data: Any) -> dict[str, Any]:
        """Return the content of an answer; raise the error that it holds."""
        if isinstance(data, str):
            raise RemoteError(f"{self._name}: {data[:500]}")
        try:
            reply = decode(data)
        except MessageError as error:
            raise RemoteError(f"{self._name}: an answer cannot be read: {error}") from error
        if not isinstance(reply, dict):
            raise RemoteError(
                f"{self._name}: the answer is a {type(reply).__name__}; is it a policy server?"
            )
        if ERROR in reply:
            raise rebuild_error(reply[ERROR])
        self.timing = reply.get("server_timing", {})
        mismatches = read_mismatches(reply.get("mismatches"))
        self.mismatches += mismatches
        for mismatch in mismatches:
            warnings.warn(str(mismatch), ContractWarning, stacklevel=4)
        return reply

    def _connect(self, end: float) -> ClientConnection:
        """Connect until the moment `end`, and greet the server.

        Raises:
            DeadlineError: no server is there. RemoteError: it refuses the robot.
        """
        pause = _FIRST_PAUSE_S
        with _announced(self._name, end):
            while True:
                try:
                    connection = self._dial_once(end)
                    break
                except FAILURES as error:
                    if getattr(error, "fault", "closing") not in ("closing", "deadline"):
                        raise  # the server refuses the robot
                    if clock.monotonic() + pause >= end:
                        reason = error or type(error).__name__
                        text = (
                            f"{self._name}: no policy server within {self.timeout_s:g} s ({reason})"
                        )
                        raise DeadlineError(text, "lost") from error
                clock.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        self._connection = connection
        self._fresh = True
        self.reconnects += 1
        if self._past is not None:
            self._past.mark_lost()
        return connection

    def _dial_once(self, end: float) -> ClientConnection:
        left = max(end - clock.monotonic(), 0.1)
        connection = _dial(self._url, self._token, self._ssl, self._max_size, left)
        try:
            self._greet(connection, max(end - clock.monotonic(), 0.1))
        except BaseException:
            _hang_up(connection)
            raise
        return connection

    def _greet(self, connection: ClientConnection, timeout: float) -> None:
        """Read the metadata, and make the robot's statements about itself."""
        data = connection.recv(timeout)
        try:
            metadata = None if isinstance(data, str) else decode(data)
        except MessageError:
            metadata = None
        if not isinstance(metadata, dict) or not {"chunk", "action_dim"} <= set(metadata):
            raise RemoteError(
                f"{self._name} sent no metadata of a policy; is it `understudy serve`?"
            )
        if self.metadata and _identity(metadata) != _identity(self.metadata):
            raise RemoteError(
                f"{self._name} serves another policy than before ({metadata.get('policy')}); make "
                "another RemotePolicy"
            )
        self.metadata = metadata
        if self._declaration or self._head is not None:
            control = {"op": "hello", "declaration": self._declaration, "head": self._head}
            self._checked(_exchange(connection, encode({CONTROL: control}), timeout))

    def _drop(self) -> None:
        if self._connection is not None:
            _hang_up(self._connection)
            self._connection = None


def _is_chunk(actions: Any) -> "TypeGuard[np.ndarray]":
    """Whether the actions of an answer are numbers [T, A]."""
    return isinstance(actions, np.ndarray) and actions.ndim == 2 and actions.dtype.kind in "iuf"


def _identity(metadata: Record) -> tuple[Any, ...]:
    keys = ("chunk", "action_dim", "head", "history", "cameras", "state_dim")
    return (*(repr(metadata.get(key)) for key in keys), metadata.get("max_delay") or 0)


# -- one connection --------------------------------------------------------------------------------


@contextmanager
def _announced(name: str, end: float) -> Iterator[None]:
    """Log once that the block waits until the moment `end`, if it takes longer than
    `PATIENCE_S`.
    """
    left = end - clock.monotonic() - PATIENCE_S
    timer = threading.Timer(
        PATIENCE_S, LOG.warning, ("waiting for %s, up to %.0f s more", name, left)
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _dial(
    url: str, token: str | None, ssl: tls.SSLContext | None, max_size: int, timeout: float
) -> ClientConnection:
    """Connect once, without a proxy to this machine.

    Raises:
        RemoteError: the server refuses the robot ("refused"), or is not ready ("closing").
            FAILURES: no connection.
    """
    name = redact(url)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    proxy: Literal[True] | None = None if is_loopback(urlsplit(url).hostname or "") else True
    try:
        return connect(
            url,
            ssl=ssl,
            compression=None,
            open_timeout=timeout,
            close_timeout=1,
            max_size=max_size,
            additional_headers=headers,
            proxy=proxy,
        ).__enter__()  # newer releases connect in a `with` alone; `_hang_up` closes
    except InvalidStatus as error:
        status = error.response.status_code
        body = error.response.body.decode(errors="replace").strip()
        fix = f"; give token=, or {VARIABLE}" if status == 401 else ""
        fault = "refused" if status in (401, 403) else "closing"
        raise RemoteError(f"{name}: {status}, {body}{fix}", fault) from error
    except tls.SSLCertVerificationError as error:
        raise RemoteError(f"{name}: {error}; give ssl= with its certificate", "refused") from error


def _hang_up(connection: ClientConnection) -> None:
    """End a connection."""
    try:
        connection.close()
    except FAILURES:
        connection.socket.close()


def _check_address(url: str) -> str:
    """Return an address with its scheme. Raises ValueError: it is not the address of a
    websocket.
    """
    address = url if "://" in url else f"ws://{url}"
    parts = urlsplit(address)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        text = f"{redact(url)!r} is not the address of a policy server"
        raise ValueError(f"{text}; give ws://HOST:PORT or wss://HOST:PORT")
    return address


def _exchange(connection: ClientConnection, message: bytes, timeout: float) -> Any:
    """Send a message and return the answer. Raises TimeoutError, FAILURES: there is none."""
    connection.send(message)
    return connection.recv(timeout)


# -- observations of a policy with a history -------------------------------------------------------

Entry = tuple[int, float | None, Record]
"""(control step, seconds or None, observation)."""
_SLACK_S = 1e-4  # as in `policies/observation_history.py`


class PastObservations:
    """Observations of one episode, as far back as the policy sees: those that the server lacks,
    after a reconnect all.

    A server that restarts has forgotten the episode. Its policy then sees the same past again, and
    no gap.

    Args:
        reach_s: seconds that the policy sees back.
        fps: control steps per second; None: the robot gives times.
    """

    def __init__(self, reach_s: float, fps: float | None) -> None:
        self._reach_s = reach_s
        self._fps = fps
        self._entries: deque[Entry] = deque()
        self._sent = 0  # number of first entries that the server has

    def reset(self) -> None:
        """Forget all observations: an episode starts."""
        self._entries.clear()
        self._sent = 0

    def add(self, step: int, time: float | None, observation: Mapping[str, Any]) -> None:
        """Keep a copy of an observation, and forget those that are too old."""
        copied = dict(observation)
        for key, value in observation.items():
            if isinstance(value, np.ndarray):
                copied[key] = np.array(value)
        self._entries.append((step, time, copied))
        while len(self._entries) > 1 and self._age(self._entries[1]) >= self._reach_s - _SLACK_S:
            self._entries.popleft()
            self._sent = max(0, self._sent - 1)

    def unsent(self) -> list[Entry]:
        """Return the observations that the server lacks."""
        return list(self._entries)[self._sent :]

    def mark_sent(self) -> None:
        """Note that the server has all of them."""
        self._sent = len(self._entries)

    def mark_lost(self) -> None:
        """Note that the server has none of them: its connection ended."""
        self._sent = 0

    def _age(self, entry: Entry) -> float:
        step, time, _ = self._entries[-1]
        if time is not None and entry[1] is not None:
            return time - entry[1]
        if not self._fps:
            return 0.0
        return (step - entry[0]) / self._fps
