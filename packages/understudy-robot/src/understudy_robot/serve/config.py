"""Settings of the policy server. No torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from understudy_kit import Interval, Natural, Positional, Positive


@dataclass(frozen=True)
class ServeConfig:
    """Serve a policy to robots over a websocket; clients of openpi and of LeRobot can use it
    unchanged.
    """

    policy: Positional[str] = ""
    """Folder of `understudy export`, or a run directory."""
    host: str = "127.0.0.1"
    """Address to listen on; the default is reachable from this machine alone. 0.0.0.0: from
    everywhere.
    """
    port: Annotated[int, Interval(ge=0, le=65535)] = 8000
    """Port; 0 chooses a free one."""
    lerobot_port: Annotated[int, Interval(ge=-1, le=65535)] = -1
    """Port of a second service for LeRobot's `robot_client` (gRPC), whose default is 8080; -1:
    none, 0: a free one. Its client can neither encrypt nor send a token. Needs the package
    understudy-lerobot-service.
    """
    head: str = ""
    """Norm head of the robots; needed where the policy has several."""
    contract: Literal["warn", "strict", "off"] = "warn"
    """Reaction to observations that differ from those of training: a line in log and reply, a
    refusal, or nothing.
    """
    action_bounds: Literal["clamp", "error", "off"] = "off"
    """Reaction to actions outside the recorded ones by more than a tenth of their range: they are
    moved to the bound, and the reply names them; an error; or nothing.
    """
    trace: str = ""
    """New file to write: each answered observation and its chunk, for `understudy why`."""
    device: str = "cpu"
    """Device of the policy."""
    compute: Literal["", "float32", "bfloat16"] = ""
    """Precision of the arithmetic; the default is that of the policy."""
    compile: Literal["off", "graphs", "compiled"] = "off"
    """Capture the passes as CUDA graphs before the server listens, of the policy or of its compiled
    blocks (`torch.compile`); a pass of other shapes runs without, and the log says why.
    """
    graph_memory: Annotated[int, Interval(ge=0)] = 8 << 30
    """Bytes that captured graphs may have. Shapes beyond them, the most robots first, run
    without.
    """
    num_threads: Annotated[int, Interval(ge=0, le=1024)] = 0
    """Threads of the arithmetic on the CPU; 0: torch's default."""
    max_batch: Annotated[int, Interval(ge=1, le=1024)] = 8
    """Robots whose waiting observations share a pass. A batch may change the rounding; 1 gives each
    its own pass.
    """
    max_queue: Annotated[int, Interval(ge=1, le=1 << 16)] = 64
    """Requests that may wait; a further one is refused as `busy`."""
    max_connections: Annotated[int, Interval(ge=1, le=1 << 16)] = 64
    """Robots that may be connected; a further one is refused with the status 503."""
    max_message_mb: Positive = 64.0
    """Largest message in MB; a larger one ends its connection."""
    message_timeout_s: Positive = 60.0
    """Seconds in which a message must arrive whole. All messages in part have at most four times
    `max_message_mb`; the one that has been arriving for longest ends its connection.
    """
    deadline_s: Positive = 30.0
    """Seconds after which a request fails, in the queue or in the pass. A request may ask for
    fewer.
    """
    open_timeout_s: Positive = 5.0
    """Seconds for the handshake of a connection, and for a robot to take an answer."""
    seed: Annotated[int, Interval(ge=-1, lt=1 << 63)] = -1
    """Seed of the noise; the n-th connection has the n-th stream. -1: other numbers in each start.
    """
    token_file: str = ""
    """File with a token that robots must send (`Authorization: Bearer TOKEN`, or `Api-Key TOKEN` as
    openpi does). The default is the environment variable UNDERSTUDY_SERVE_TOKEN, and no token
    without it.
    """
    tls_cert: str = ""
    """File with the certificate chain (PEM), for wss://."""
    tls_key: str = ""
    """File with its private key (PEM); the default is that in `tls_cert`."""
    warm_up: Natural = 2
    """Passes of each size of a batch before the first robot; `/healthz` answers 503 until then."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        errors = (
            []
            if self.policy
            else ["policy: required, the folder of a policy: understudy serve POLICY"]
        )
        if self.tls_key and not self.tls_cert:
            errors.append("tls_key: needs tls_cert, the certificate of this key")
        if self.lerobot_port >= 0 and self.tls_cert:
            errors.append(
                "lerobot_port: LeRobot's client cannot encrypt; serve it without tls_cert, through "
                "`ssh -L`"
            )
        if self.lerobot_port > 0 and self.lerobot_port == self.port:
            errors.append(
                f"lerobot_port: {self.lerobot_port} is the port of the websocket; give another one"
            )
        return errors
