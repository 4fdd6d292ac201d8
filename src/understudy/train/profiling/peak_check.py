"""Predicted peak of the steps of a run, against the free memory of its GPU, before the first step.

A plan of several processes needs a process group of absent ranks, and a run has a group already. So another process
makes the plan, while this one loads the weights. After `LIMIT` seconds it is stopped, and the run starts unchecked.
"""

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from understudy.config.train import TrainConfig
from understudy.errors import ConfigError, is_out_of_memory, summarize

if TYPE_CHECKING:
    from understudy.distributed.mesh import Mesh
    from understudy.train.data.run_data import RunData

LIMIT = 180.0
"""Seconds from the start of a prediction to its end."""
MOST_SECONDS = 3600
"""Seconds after which the process of a prediction ends by itself."""
TOLERANCE = 0.05
"""Largest error of a predicted peak; a run is refused only where it exceeds the GPU with a peak as much lower."""
COMMAND = (sys.executable, "-m", "understudy.train.profiling.peak_check")
PARTS = ("parameters", "gradients", "optimizer state", "average", "activations")
UNKNOWN = "memory: the peak of a step is not checked, since there is no prediction: %s"

logger = logging.getLogger(__name__)


@contextmanager
def forecast_peak(
    config: TrainConfig,
    data: "RunData",
    normalization: Mapping[str, Any],
    mesh: "Mesh",
    free: int | None,
    limit: float = LIMIT,
) -> Iterator[Callable[[], None]]:
    """Start a prediction and give the function that waits for it and checks it; all ranks call both.

    Args:
        config: settings of the run.
        data: its sources; a sample of them is read for its shapes.
        normalization: of the policy.
        mesh: the processes; rank 0 has the prediction made.
        free: bytes of the GPU of this rank; None: there is no GPU, and nothing is predicted or checked.
        limit: seconds from the start of the prediction to its end, but not beyond half of the mesh's timeout.

    Yields:
        A function that raises ConfigError, on all ranks, where a step would exceed the GPU with the least memory. With
        `peak_check: warn` it logs, with `off` it does nothing, and nothing is predicted.
    """
    if config.peak_check == "off":
        yield lambda: None
        return
    least = min((each for each in mesh.gather(free) if each is not None), default=None)
    if least is None:
        yield lambda: None
        return
    with _Prediction() as prediction:
        if mesh.rank == 0:
            try:
                prediction.start(config, data, normalization, mesh.world_size)
            except Exception as error:  # of any kind, say a bad first sample: the run itself reports it
                logger.warning(UNKNOWN, summarize(error))

        def check() -> None:
            found = prediction.wait(min(limit, mesh.timeout / 2))
            if found is not None:
                check_peak(found["memory"], found["size"], config, mesh.world_size, least)

        yield lambda: mesh.first(check)


def check_peak(memory: Mapping[str, int], size: int, config: TrainConfig, world_size: int, free: int) -> None:
    """Raise ConfigError where the predicted peak of a step exceeds the free memory of a GPU; log a close one.

    A compiled step may take less than its prediction, which is of the uncompiled one: it is never refused. Nor is any
    with `peak_check: warn`.

    Args:
        memory: bytes of a rank by part, as of a `Plan`.
        size: samples of a forward pass.
        config: settings of the run.
        world_size: its processes.
        free: bytes.
    """
    from understudy.train.profiling.plan import RESERVED

    peak = memory["peak"]
    parts = ", ".join(f"{name} {memory[name] / 1e9:,.2f}" for name in PARTS if memory[name])
    known = (
        f"a step with micro-batches of {size} takes {peak / 1e9:,.2f} GB on each GPU at its peak ({parts} GB), and "
        f"{free / 1e9:,.2f} GB are free"
    )
    fix = f"set {', '.join(smaller_settings(config, size, world_size))}; `understudy plan` shows the memory of each"
    if (1 - TOLERANCE) * peak > free and not config.compile and config.peak_check == "error":
        shorter = "peak_check warn starts the run anyway, which may fit where texts are shorter than the longest"
        raise ConfigError(f"micro_batch_size: {known}: {fix}; {shorter}")
    if peak > (1 - RESERVED) * free:
        logger.warning("memory: %s, so the run may fail: %s", known, fix)


def smaller_settings(config: TrainConfig, size: int, world_size: int) -> list[str]:
    """Return settings by which a step of this run would take less memory, those without a price of accuracy first.

    Args:
        config: settings of the run.
        size: samples of a forward pass.
        world_size: its processes.
    """
    shards = config.parallel.dp_shard
    choices = {
        f"micro_batch_size below {size}": size > 1 and config.max_num_tokens is None,
        f"max_num_tokens below {config.max_num_tokens}": size > 1 and config.max_num_tokens is not None,
        "activation_checkpoint full": config.activation_checkpoint != "full",
        f"parallel.dp_shard {world_size}": shards < world_size and config.precision != "bf16-split",
        "precision bf16": config.precision == "fp32",
        "precision bf16-split": config.precision == "bf16" and shards == 1,
        "optim.ema.decay 0": config.optim.ema.decay > 0,
        "lora.base bfloat16": config.lora.rank > 0 and config.lora.base != "bfloat16",
        "lora.rank": config.lora.rank == 0,
        "optim.freeze": True,
    }
    return [name for name, helps in choices.items() if helps]


class _Prediction:
    """A process that makes a prediction; it is stopped at the end of the context."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "_Prediction":
        self._given, self._found = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._given.close()
        self._found.close()

    def start(self, config: TrainConfig, data: "RunData", normalization: Mapping[str, Any], world_size: int) -> None:
        from understudy.train.profiling.plan import one_sample

        pickle.dump((config, data, dict(normalization), one_sample(config, data), world_size), self._given)
        self._given.seek(0)
        self._start = time.monotonic()
        hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            COMMAND,
            stdin=self._given,
            stdout=self._found,
            stderr=subprocess.DEVNULL,
            env=os.environ | hidden,
            start_new_session=True,  # signals for the run are not for it
        )

    def wait(self, limit: float) -> dict[str, Any] | None:
        """Return the prediction; None where there is none, which is logged."""
        if self._process is None:
            return None
        try:
            code = self._process.wait(max(0.0, self._start + limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            logger.warning(UNKNOWN, f"not made within {limit:g} seconds")
            return None
        self._found.seek(0)
        try:
            found: dict[str, Any] = json.loads(self._found.read())
        except ValueError:
            found = {"error": f"exit code {code}"}
        if "error" in found:
            logger.warning(UNKNOWN, found["error"])
            return None
        return found


def _predict() -> None:
    """Read settings and data from the standard input and write the memory of a step to the standard output."""
    signal.alarm(MOST_SECONDS)  # it ends, too, where the run was killed
    from understudy.train.micro_batches import largest_part, largest_tokens
    from understudy.train.profiling.plan import trace_step
    from understudy.train.profiling.stored_base import with_known_base
    from understudy.train.state import build_on_meta

    try:
        config, data, normalization, sample, world_size = pickle.load(sys.stdin.buffer)
        config = with_known_base(config, data, normalization)
        tokens = None
        if config.max_num_tokens is not None:
            policy = build_on_meta(config, data.policy_config(config), normalization)
            tokens = max(largest_tokens(policy, config, data) or [0])
        size = largest_part(config, world_size, tokens)
        memory = trace_step(config, data, normalization, sample, world_size, "cuda", size).memory
        found: dict[str, Any] = {"memory": memory, "size": size}
    except Exception as error:  # of any kind: a run is refused for its memory alone
        found = {"error": "out of memory" if is_out_of_memory(error) else summarize(error)}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    _predict()
