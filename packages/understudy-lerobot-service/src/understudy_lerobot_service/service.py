"""The gRPC service `AsyncInference` of LeRobot: Ready, SendPolicyInstructions, SendObservations,
GetActions.

A robot is a connection: the first call makes its session, Ready a new one. LeRobot's client repeats
calls that fail as UNAVAILABLE or DEADLINE_EXCEEDED, and logs other errors. So errors of an
observation have other codes, and only a server that ends is UNAVAILABLE.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import grpc
import grpc.aio

from understudy_base import ConfigError, LRUCache
from understudy_client import DeadlineError, MessageError, RemoteError, is_authorized
from understudy_lerobot_service.messages import (
    BEGIN,
    END,
    read_bytes,
    read_instructions,
    read_observation,
    read_part,
    write_actions,
    write_bytes,
)
from understudy_lerobot_service.robots import Robot, compare_policy, inputs_of_training, read_inputs
from understudy_robot import GRACE_S, Engine, Request

LOG = logging.getLogger("understudy.serve")
WAIT_S = 2.0
"""Seconds for which GetActions waits for an observation; then its answer is empty, as in LeRobot's
server.
"""
PART_BYTES = 4 << 20
"""Most bytes of a part of an observation. LeRobot's client sends 2 MiB."""
_FPS = 30  # LeRobot's, for policies of unknown rate
_IDLE_S = 5.0  # without a call, after which a robot gives up its place to a new one
_IDLE_CONNECTION_S = 60.0
_CALLS = 4  # of a robot at the same time
CLAMPED = "understudy-clamped"
"""Trailing metadata of an answer: JSON of the dimensions that were moved to a bound, with their
largest distances.
"""
_MOST_CLAMPED = 32
_MOST_DETAILS = 2000  # letters of an error: gRPC limits headers to 8 kB
_CODES = {
    "contract": grpc.StatusCode.FAILED_PRECONDITION,
    "refused": grpc.StatusCode.FAILED_PRECONDITION,
    "value": grpc.StatusCode.INVALID_ARGUMENT,
    "message": grpc.StatusCode.INVALID_ARGUMENT,
    "busy": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "deadline": grpc.StatusCode.ABORTED,
    "closing": grpc.StatusCode.UNAVAILABLE,
    "token": grpc.StatusCode.UNAUTHENTICATED,
}
Context = Any  # grpc.aio.ServicerContext has no types


class LeRobotService:
    """The service, as an asynchronous context: it listens inside it.

    Args:
        engine: engine of the server.
        token: token that clients must send as metadata `authorization`; None: none is needed.

    Attributes:
        port: port that it listens on, once it does.

    Raises:
        ConfigError: the policy sees past observations, of which LeRobot's client sends too few.
    """

    def __init__(self, engine: Engine, token: str | None) -> None:
        if any(engine.robot.past.times(None)):
            raise ConfigError(
                "lerobot_port: the policy sees past observations, and LeRobot's client sends only "
                "some of them; use us.RemotePolicy for this policy"
            )
        self.port = engine.options.lerobot_port
        self._engine = engine
        self._token = token
        self._most_bytes = int(engine.options.max_message_mb * 1e6)
        self._seconds = 1 / (engine.robot.metadata.get("fps") or _FPS)
        facts = engine.robot.facts
        self._scale = facts.state.spread if facts is not None and facts.state is not None else None
        self._robots: dict[str, Robot] = {}
        # A call that its client gives up looks like the end of its connection, and so does a pause.
        # Robots may return.
        self._left: LRUCache[str, Robot] = LRUCache(64, lambda _: 1)
        self._server: Any = None

    async def __aenter__(self) -> Self:
        options = self._engine.options
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=_CALLS * options.max_connections + 16,
            options=[
                ("grpc.so_reuseport", 0),  # a second server must not share the port unnoticed
                ("grpc.max_receive_message_length", min(PART_BYTES, self._most_bytes)),
                ("grpc.max_concurrent_streams", 4 * _CALLS),
                ("grpc.server_handshake_timeout_ms", int(1000 * options.open_timeout_s)),
                ("grpc.max_connection_idle_ms", int(1000 * _IDLE_CONNECTION_S)),
                # a robot without power sends no end of its connection
                ("grpc.keepalive_time_ms", 10_000),
                ("grpc.keepalive_timeout_ms", int(1000 * options.open_timeout_s)),
            ],
        )
        handlers = {
            "Ready": grpc.unary_unary_rpc_method_handler(self._guard(self._ready)),
            "SendPolicyInstructions": grpc.unary_unary_rpc_method_handler(
                self._guard(self._instruct)
            ),
            "SendObservations": grpc.stream_unary_rpc_method_handler(self._guard(self._receive)),
            "GetActions": grpc.unary_unary_rpc_method_handler(self._guard(self._act)),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("transport.AsyncInference", handlers),)
        )
        host = f"[{options.host}]" if ":" in options.host else options.host or "[::]"
        try:
            self.port = self._server.add_insecure_port(f"{host}:{options.lerobot_port}")
        except RuntimeError as error:
            raise OSError(
                f"{host}:{options.lerobot_port} cannot be used for lerobot_port: {error}"
            ) from error
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._engine.closing = True
        self._engine.ready.set()  # calls that wait for it are refused
        for robot in self._robots.values():
            robot.wake()
        await self._server.stop(GRACE_S)
        for peer in list(self._robots):
            self._drop(peer)

    # -- calls -------------------------------------------------------------------------------------

    async def _ready(self, _: bytes, context: Context) -> bytes:
        """Start an episode of a robot, once the policy is warm."""
        await self._engine.ready.wait()
        self._check_open()
        self._drop(context.peer())
        self._left.pop(context.peer())
        self._robot(context)
        return b""

    async def _instruct(self, message: bytes, context: Context) -> bytes:
        """Read the robot's features; compare them and the policy that it expects with the served
        one.
        """
        robot = self._robot(context)
        options = self._engine.options
        instructions = read_instructions(read_bytes(message, 1))
        different = compare_policy(instructions, self._engine.robot, options.policy)
        if different and options.contract == "strict":
            raise RemoteError("; ".join(different), "refused")
        if options.contract == "warn":
            for line in different:
                LOG.warning("%s: %s", robot.name, line)
        chunk = self._engine.robot.config.chunk
        if instructions.actions_per_chunk > chunk:
            LOG.info(
                "%s asks for %d actions per chunk; it gets %d",
                robot.name,
                instructions.actions_per_chunk,
                chunk,
            )
        inputs = read_inputs(instructions).without_extras(self._engine.robot)
        request = Request(op="hello", declaration=inputs.declaration())
        async with robot.serving:
            await self._engine.compute(robot.session, request, {}, robot.name, time.monotonic())
        robot.inputs = inputs
        robot.most_actions = instructions.actions_per_chunk
        self._engine.count("ok")
        return b""

    async def _receive(self, parts: AsyncIterator[bytes], context: Context) -> bytes:
        """Receive an observation, which the next GetActions computes unless it is skipped."""
        robot = self._robot(context)
        if robot.receiving:
            raise RemoteError(
                "an observation of this robot is on its way; send one after the other", "busy"
            )
        robot.receiving = True
        try:
            observation = await asyncio.to_thread(read_observation, await self._join(parts))
            since = time.monotonic()
            if robot.inputs is None:
                robot.inputs = inputs_of_training(self._engine.robot, observation.values)
                LOG.warning(
                    "%s sent no features; its values have the names of training", robot.name
                )
            skipped, replaced = robot.offer(
                observation, robot.inputs.select(observation.values), since
            )
        except Exception:
            robot.mark_failed()
            raise
        finally:
            robot.receiving = False
        reason = "replaced" if replaced else skipped
        if reason:
            self._engine.metrics.count(
                "understudy_skipped_observations_total", f'reason="{reason}"'
            )
        return b""

    async def _join(self, parts: AsyncIterator[bytes]) -> bytes:
        chunks: list[bytes] = []
        size = 0
        seconds = self._engine.options.deadline_s
        try:
            async with asyncio.timeout(seconds):
                async for part in parts:
                    state, data = read_part(part)
                    if state == BEGIN:
                        chunks = []
                        size = 0
                    chunks.append(data)
                    size += len(data)
                    if size > self._most_bytes:
                        text = (
                            f"the observation has more than {self._most_bytes:,} bytes "
                            "(max_message_mb)"
                        )
                        raise MessageError(f"{text}; send smaller images")
                    if state == END:
                        return b"".join(chunks)
        except TimeoutError:
            raise DeadlineError(
                f"the observation did not arrive within {seconds:g} s", "deadline"
            ) from None
        raise MessageError("the observation has no last part")

    async def _act(self, _: bytes, context: Context) -> bytes:
        """Wait for an observation, and return its chunk; nothing where none comes in `WAIT_S`."""
        robot = self._robot(context)
        try:
            async with robot.serving:
                return await self._chunk(robot, context)
        except asyncio.CancelledError:
            if self._robots.get(context.peer()) is robot:
                robot.mark_failed()
                self._pause(context.peer())
            raise

    async def _chunk(self, robot: Robot, context: Context) -> bytes:
        taken = await robot.take(WAIT_S)
        self._check_open()
        if taken is None:
            return b""
        observation, inputs, since = taken
        engine = self._engine
        engine.busy += 1
        try:
            answer = await engine.compute(robot.session, Request(), inputs, robot.name, since)
        except asyncio.CancelledError:
            engine.count("vanished")
            raise
        except Exception:
            robot.mark_failed()
            raise
        finally:
            engine.busy -= 1
        engine.count("ok")
        assert answer.actions is not None
        if answer.clamped:  # LeRobot's messages have no place for it
            farthest = sorted(answer.clamped.items(), key=lambda clamped: -clamped[1])[
                :_MOST_CLAMPED
            ]
            context.set_trailing_metadata(((CLAMPED, json.dumps(dict(farthest))),))
        actions = answer.actions[: robot.most_actions]
        times = observation.timestamp, observation.timestep, self._seconds
        return write_bytes(write_actions(actions, *times, observation.module))

    # -- inside ------------------------------------------------------------------------------------

    def _guard(
        self, call: Callable[[Any, Context], Awaitable[bytes]]
    ) -> Callable[[Any, Context], Awaitable[bytes]]:
        """Return a handler that checks the token, and answers errors with a code and their text."""

        async def handler(message: Any, context: Context) -> bytes:
            try:
                self._check_token(context)
                return await call(message, context)
            except Exception as error:
                robot = self._robots.get(context.peer())
                name = robot.name if robot is not None else context.peer()
                described = self._engine.describe(error, name)
                self._engine.count(described["fault"])
                code = _CODES.get(described["fault"], grpc.StatusCode.INTERNAL)
                await context.abort(code, str(described["message"])[:_MOST_DETAILS])
                raise AssertionError from error  # abort raises

        return handler

    def _check_open(self) -> None:
        if self._engine.closing or not self._engine.ready.is_set():
            raise RemoteError("the server is not ready, or ends; connect again later", "closing")

    def _check_token(self, context: Context) -> None:
        headers = [
            value for key, value in context.invocation_metadata() or () if key == "authorization"
        ]
        header = headers[0] if len(headers) == 1 else None
        if not is_authorized(header, self._token):
            self._engine.metrics.count("understudy_refused_connections_total", 'reason="token"')
            raise RemoteError("a token is needed as metadata, authorization: Bearer TOKEN", "token")

    def _robot(self, context: Context) -> Robot:
        """Return the robot of a connection, a new one at its first call."""
        self._check_open()
        peer = context.peer()
        now = time.monotonic()
        if (robot := self._robots.get(peer)) is None:
            for other_peer, other in list(self._robots.items()):
                if now - other.last_call > _IDLE_S and not other.serving.locked():
                    self._pause(other_peer)
            if self._engine.connected >= (most := self._engine.options.max_connections):
                self._engine.metrics.count("understudy_refused_connections_total", 'reason="full"')
                raise RemoteError(
                    f"{most} robots are connected, the most that may (max_connections)", "busy"
                )
            robot = self._left.pop(peer) or self._new_robot(peer)
            self._robots[peer] = robot
            self._engine.connected += 1
            LOG.info("%s connected", robot.name)
        robot.last_call = now
        return robot

    def _new_robot(self, peer: str) -> Robot:
        number, session = self._engine.open_session()
        return Robot(f"robot {number} at {peer}", session, self._scale)

    def _pause(self, peer: str) -> None:
        """Free the place of a robot, which gets its features and its noise back if it returns."""
        self._left.put(peer, self._robots[peer])
        self._drop(peer)

    def _drop(self, peer: str) -> None:
        if (robot := self._robots.pop(peer, None)) is not None:
            self._engine.connected -= 1
            LOG.info("%s left", robot.name)
