"""Warning of a run whose steps are predicted to exceed the free memory of its GPU.

A plan of several processes needs a process group of absent ranks, and a run has a group already. So another process
makes the plan, while the run goes its way: a prediction neither delays nor refuses it.
"""

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from understudy.config.train import TrainConfig
from understudy.distributed.launch import module_command
from understudy.distributed.mesh import Mesh
from understudy.errors import is_out_of_memory, summarize
from understudy.policies.registry import policy_type
from understudy.records import Record
from understudy.train.data.run_data import RunData
from understudy.train.memory_check import RESERVED, free_memory

LIMIT = 180
"""Seconds after which the process of a prediction ends by itself."""
COMMAND = tuple(module_command("understudy.train.profiling.peak_check"))
PARTS = ("parameters", "gradients", "optimizer state", "average", "activations")

logger = logging.getLogger(__name__)


class PeakForecast:
    """Prediction in another process, whose outcome a thread of rank 0 logs; `close` ends both."""

    def __init__(self, config: TrainConfig, data: RunData, normalization: Record, mesh: Mesh) -> None:
        """Start the prediction where there is a GPU and `peak_check` is on; all ranks call this together.

        Args:
            config: settings of the run.
            data: its sources; a sample of them is read for its shapes.
            normalization: normalization of the policy.
            mesh: the processes; rank 0 has the prediction made for the GPU with the least free memory.
        """
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        if config.peak_check == "off":
            return
        free = [size for size in mesh.gather(free_memory(mesh.device)) if size is not None]
        if free and mesh.rank == 0:
            try:
                self._start(config, data, normalization, mesh.world_size, min(free))
            except Exception as error:  # of any kind, say a bad first sample: the run itself reports it
                _log_unknown(summarize(error))

    def _start(self, config: TrainConfig, data: RunData, normalization: Record, world_size: int, free: int) -> None:
        from understudy.train.profiling.plan import one_sample

        inputs = pickle.dumps(config.policy.type)  # imported first: the settings may be of a class of own code
        inputs += pickle.dumps((config, data, dict(normalization), one_sample(config, data), world_size))
        process = self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # signals for the run are not for it
        )

        def log_outcome() -> None:
            output, _ = process.communicate(inputs)
            if process.returncode == -signal.SIGKILL:
                return  # by `close`
            try:
                forecast = json.loads(output)
            except ValueError:
                forecast = {"error": f"exit code {process.returncode}, or not made within {LIMIT} seconds"}
            if "error" in forecast:
                _log_unknown(forecast["error"])
            else:
                warn_of_peak(forecast["memory"], forecast["size"], config, world_size, free)

        self._thread = threading.Thread(target=log_outcome, name="understudy-forecast", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the outcome is logged."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """End the prediction if it is not made yet."""
        if self._process is not None:
            self._process.kill()
            self.wait()


def _log_unknown(reason: str) -> None:
    logger.warning("memory: the peak of a step is not checked, since there is no prediction: %s", reason)


def warn_of_peak(memory: Mapping[str, int], size: int, config: TrainConfig, world_size: int, free: int) -> None:
    """Log a predicted peak of a step that exceeds the free memory of a GPU, or is close to it.

    Args:
        memory: bytes of a rank by part, as of a `Plan`.
        size: samples of a forward pass.
        config: settings of the run.
        world_size: its processes.
        free: bytes.
    """
    if memory["peak"] > (1 - RESERVED) * free:
        parts = ", ".join(f"{name} {memory[name] / 1e9:,.2f}" for name in PARTS if memory[name])
        logger.warning(
            "memory: a step with micro-batches of %s is predicted to take %.2f GB on each GPU at its peak (%s GB), and "
            "%.2f GB are free, so the run may fail: set %s; `understudy plan` shows the memory of each",
            size,
            memory["peak"] / 1e9,
            parts,
            free / 1e9,
            ", ".join(smaller_settings(config, size, world_size)),
        )


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


def _predict() -> None:
    """Read settings and data from the standard input and write the memory of a step to the standard output."""
    signal.alarm(LIMIT)
    from understudy.train.micro_batches import largest_part, largest_tokens
    from understudy.train.profiling.plan import trace_step, with_known_base
    from understudy.train.state import build_on_meta

    try:
        policy_type(pickle.load(sys.stdin.buffer))
        config, data, normalization, sample, world_size = pickle.load(sys.stdin.buffer)
        config, tokens = with_known_base(config, data, normalization), None
        if config.max_num_tokens is not None:
            policy = build_on_meta(config, data.policy_config(config), normalization)
            tokens = max(largest_tokens(policy, config, data) or [0])
        size = largest_part(config, world_size, tokens)
        shapes = trace_step(config, data, normalization, sample, world_size, "cuda", size)
        forecast: dict[str, Any] = {"memory": shapes.memory, "size": size}
    except Exception as error:  # of any kind: the run starts anyway
        forecast = {"error": "out of memory" if is_out_of_memory(error) else summarize(error)}
    sys.stdout.write(json.dumps(forecast))


if __name__ == "__main__":
    _predict()
