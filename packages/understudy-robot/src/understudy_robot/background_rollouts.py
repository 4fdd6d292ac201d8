"""Rollouts during training: the weights of every k-th step are queued and evaluated by a background
process.

    RUN/rollouts/due/step-00000500/      policy of that step, queued or being evaluated
    RUN/rollouts/due/step-00000500.log   output of its worker; kept if that failed
    RUN/rollouts/step-00000500.json      result: `RolloutResult.to_json`, `step`, `play` (settings),
                                         `weights`
    RUN/rollouts/earlier/                results of steps that a resumed run has not reached again

The other ranks wait only while the weights are gathered and written, as for a checkpoint. One
worker runs at a time, at low priority. The queue is on disk, so no rollout is lost: neither when
rollouts are slower than training (the run then waits at its end) nor when a process is killed. The
files are the reference. metrics.jsonl gets a line for each result, with the step of its weights,
and after a kill the missing lines. A run that returns to a checkpoint queues the same steps again;
if their weights are the same to the bit, the earlier result is reused. Rollouts do not affect
training: its losses are the same with and without them.
"""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from understudy import Mesh, MetricsLog, RunDir, TrainConfig, check_rollout_settings
from understudy_base import ConfigError, Progress, Record, write_text
from understudy_client import Contract
from understudy_kit import Stop, module_command, plain, wilson_interval
from understudy_robot.contracts.tensors import weights_digest

KIND = "rollout"
NICE = 10  # priority of the worker below the training
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
POLL_INTERVAL = 0.2  # seconds between looks at the worker while nothing else is left
MAX_LINES = 12  # lines of a failed worker's output in the log
LONG_QUEUE = 3  # queue length that is logged

logger = logging.getLogger("understudy.train.background_rollouts")


def check_rollouts(config: TrainConfig, record: Record) -> None:
    """Check that the rollouts of a run can be played here: otherwise the first one would fail hours
    later.

    Args:
        config: the settings.
        record: order.json.

    Raises:
        ConfigError: these rollouts cannot run here; names the setting.
    """
    if not config.rollout.every:
        return
    check_rollout_settings(config)
    from understudy_robot.rollout.play import prepare_env

    try:
        contract = Contract.from_json(record["metadata"]["contract"])
        prepare_env(config.data, record, config.rollout, contract)
    except ConfigError as error:
        text = str(error).replace("--state ", "--rollout.state ")
        is_setting = text.partition(":")[0] in {setting.name for setting in fields(config.rollout)}
        if is_setting:
            text = f"rollout.{text}"
        raise ConfigError(text) from error


class BackgroundRollouts:
    """Queue and worker of a run's rollouts on rank 0; on the other ranks nothing happens
    (`run_hooks.RunHook`).

    Args:
        run: the run directory.
        config: the settings.
        record: order.json.
        step: step at which the run resumes.
        first: False on all ranks but one.

    Raises:
        ConfigError: these rollouts cannot run here.
    """

    check = staticmethod(check_rollouts)

    def __init__(
        self, run: RunDir, config: TrainConfig, record: Record, step: int, first: bool
    ) -> None:
        self._run = run
        self._config = config
        self._active = first and (config.rollout.every > 0 or run.rollouts.is_dir())
        self._logged_at = step
        self._queue: list[int] = []  # steps with queued weights; the first is being evaluated
        self._unlogged: list[int] = []  # steps with a result that is not logged yet
        self._failed: list[int] = []
        self._worker: subprocess.Popen[bytes] | None = None
        if not self._active:
            return
        self._restore_queue(step)

    def due(self, step: int) -> bool:
        """Return whether the weights of this step are to be evaluated; the same on all ranks."""
        every = self._config.rollout.every
        return every > 0 and (step % every == 0 or step == self._config.steps)

    def enqueue(self, step: int, policy: Any, weights: Record) -> None:
        """Queue the weights of `step` on disk.

        Args:
            step: the step.
            policy: its `save` writes the weights.
            weights: whole tensors by name; used on rank 0 alone.
        """
        if not self._active:
            return
        waiting = _waiting(self._run, step)
        earlier = _earlier(self._run) / _name(step)
        try:
            policy.save(waiting, weights)
            if self._same(earlier, waiting):  # evaluated before the run returned to a checkpoint
                earlier.rename(_result(self._run, step))
                shutil.rmtree(waiting)
                self._unlogged.append(step)
                return
        except (OSError, SafetensorError) as error:  # a full disk must not stop the training
            logger.warning(
                "rollout: the weights of step %s cannot be queued and are skipped: %s", step, error
            )
            return
        self._queue.append(step)
        if len(self._queue) >= LONG_QUEUE:
            logger.info("rollout: the weights of %s steps are queued", len(self._queue))

    def poll(self, log: MetricsLog, step: int, last: bool = False) -> bool:
        """Log a finished result and start the next rollout; returns whether any is left.

        Args:
            log: the metrics.
            step: current step of the training.
            last: whether this is the last step that is logged.
        """
        if not self._active:
            return False
        self._collect_result()
        while self._worker is None and self._queue:
            self._start_worker(self._queue[0])
        # One line per training step, after the last one in the trackers: some accept no step twice.
        if self._unlogged and (last or step > max(self._logged_at, log.last_step)):
            self._log(log, step, self._unlogged.pop(0))
            self._logged_at = step
        return bool(self._queue or self._unlogged)

    def wait_until_done(self, log: MetricsLog, mesh: Mesh, stop: Stop) -> bool:
        """Wait until no rollout is left; returns False after a stop request.

        All ranks call this together; they exchange a message at every poll.
        """
        waiting, stopping = mesh.votes(self.poll(log, self._config.steps, last=True), stop.asked)
        total = len(self._queue)
        with Progress(total, "rollouts", "step", shown=waiting and self._active) as bar:
            while waiting and not stopping:
                time.sleep(POLL_INTERVAL)
                bar.update(total - len(self._queue) - bar.n)
                waiting, stopping = mesh.votes(
                    self.poll(log, self._config.steps, last=True), stop.asked
                )
            bar.update(total - len(self._queue) - bar.n)
        return not waiting

    def close(self) -> None:
        """End the worker. Its rollout stays queued; an unlogged result is logged when the run
        resumes.
        """
        if (worker := self._worker) is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(worker.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    worker.wait(GRACE)
                    break
            self._worker = None
        if self._failed:
            steps = ", ".join(map(str, sorted(self._failed)))
            logger.warning(
                "rollout: failed for step %s; understudy resume %s retries", steps, self._run.root
            )

    def _restore_queue(self, step: int) -> None:
        """Bring the files to the step at which the run resumes, and find missing results."""
        logged = {record["step"] for record in self._run.records(KIND)}
        for done, path in _steps(self._run.rollouts, ".json"):
            if done > step:
                _earlier(self._run).mkdir(exist_ok=True)
                path.replace(_earlier(self._run) / path.name)
            elif done not in logged:
                self._unlogged.append(done)
        for waits, path in _steps(_due(self._run), ""):
            # not reached yet, or left by a kill
            if waits > step or _result(self._run, waits).exists():
                shutil.rmtree(path)
            else:
                self._queue.append(waits)
        if self._queue:
            logger.info("rollout: queued: step %s", ", ".join(map(str, self._queue)))
        if not self._config.rollout.every:
            self._queue = []  # they stay on disk until rollouts are enabled again

    def _same(self, earlier: Path, waiting: Path) -> bool:
        """Return whether an earlier result has the weights in `waiting` and the present
        settings.
        """
        if not earlier.exists():
            return False
        with suppress(ValueError, KeyError, TypeError):
            result = json.loads(earlier.read_text(encoding="utf-8"))
            if (result["weights"], result["play"]) == (
                weights_digest(waiting),
                _settings(self._config),
            ):
                return True
        earlier.unlink()
        return False

    def _start_worker(self, step: int) -> None:
        command = [*WORKER_COMMAND, str(self._run.root), str(step)]
        try:
            with _log_of(self._run, step).open("wb") as output:
                # It ends with its standard input, so also when this process is killed.
                self._worker = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            self._queue.pop(0)
            self._report_failure(step, "cannot be started", [str(error)])

    def _collect_result(self) -> None:
        """Take the result of the worker if it has ended."""
        if self._worker is None or (code := self._worker.poll()) is None:
            return
        assert self._worker.stdin is not None
        self._worker.stdin.close()
        self._worker = None
        step = self._queue.pop(0)
        if code == 0 and _result(self._run, step).exists():
            self._unlogged.append(step)
            return
        lines = (
            _log_of(self._run, step).read_text(errors="replace").strip().splitlines()[-MAX_LINES:]
        )
        how = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
        self._report_failure(step, how, lines)

    def _report_failure(self, step: int, how: str, lines: list[str]) -> None:
        """Log a failure; the weights of `step` stay queued for the next resume."""
        self._failed.append(step)
        logger.warning(
            "\n".join([f"rollout: step {step} failed ({how}):", *(f"  | {line}" for line in lines)])
        )

    def _log(self, log: MetricsLog, log_step: int, step: int) -> None:
        """Log the result of `step`, then remove its weights."""
        path = _result(self._run, step)
        try:
            line = {
                "kind": KIND,
                "step": step,
                "at": log_step,
                **summarize(json.loads(path.read_text(encoding="utf-8"))),
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            path.unlink(missing_ok=True)  # its weights, if they still exist, are evaluated again
            self._report_failure(step, f"{path.name} is not a result", [str(error)])
            return
        log.log(log_step, line)
        shutil.rmtree(_waiting(self._run, step), ignore_errors=True)
        _log_of(self._run, step).unlink(missing_ok=True)
        rate = line["success"]
        interval = f"{rate['low']:.0%} to {rate['high']:.0%}"
        logger.info(
            "rollout: step %s: success %s/%s (%s)",
            step,
            rate["successes"],
            rate["episodes"],
            interval,
        )


def summarize(result: Record) -> dict[str, Any]:
    """Summarise a result for metrics.jsonl.

    Returns:
        {"world", "protocol", "success", "tasks": {task: …}}, each rate with `successes`,
        `episodes`, `rate` and its 95 % interval `low`, `high`.
    """

    def rate(counts: Record) -> dict[str, Any]:
        successes = counts["successes"]
        episodes = counts["episodes"]
        low, high = wilson_interval(successes, episodes)
        return {
            "successes": successes,
            "episodes": episodes,
            "rate": successes / max(1, episodes),
            "low": low,
            "high": high,
        }

    tasks = {task: rate(counts) for task, counts in result["tasks"].items()}
    return {
        "world": result["world"],
        "protocol": result["protocol"],
        "success": rate(result["success"]),
        "tasks": tasks,
    }


def _settings(config: TrainConfig) -> dict[str, Any]:
    """Settings that determine a result, besides the weights."""
    return {name: value for name, value in plain(config.rollout).items() if name != "every"}


def _name(step: int) -> str:
    return f"step-{step:08d}.json"


def _result(run: RunDir, step: int) -> Path:
    return run.rollouts / _name(step)


def _due(run: RunDir) -> Path:
    return run.rollouts / "due"


def _earlier(run: RunDir) -> Path:
    return run.rollouts / "earlier"


def _waiting(run: RunDir, step: int) -> Path:
    return _due(run) / f"step-{step:08d}"


def _log_of(run: RunDir, step: int) -> Path:
    return _due(run) / f"step-{step:08d}.log"


def _steps(folder: Path, suffix: str) -> list[tuple[int, Path]]:
    """Paths with a step in their name and this suffix, by step."""
    numbered = [
        (path.name.removeprefix("step-").removesuffix(suffix), path)
        for path in folder.glob(f"step-*{suffix}")
    ]
    return sorted((int(number), path) for number, path in numbered if number.isdigit())


# -- the worker ------------------------------------------------------------------------------------

WORKER_COMMAND = tuple(module_command("understudy_robot.background_rollouts"))


def main() -> int:
    """`python -m understudy_robot.background_rollouts RUN STEP`: evaluate queued weights and write
    the result.
    """
    import torch

    from understudy_robot.rollout.play import rollout_saved_policy

    run = RunDir(Path(sys.argv[1]))
    step = int(sys.argv[2])
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.nice(NICE)
    torch.set_num_threads(1)  # small matrices, and training needs the cores
    try:
        config = run.settings()
        policy = _waiting(run, step)
        result = rollout_saved_policy(
            policy, config.data, run.read_record().get("sources"), config.rollout
        )
        content = {
            "step": step,
            "play": _settings(config),
            "weights": weights_digest(policy),
            **result.to_json(),
        }
        write_text(_result(run, step), json.dumps(content, indent=1) + "\n")
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _exit_with_parent() -> None:
    """Exit when standard input ends, as it does when the training ends in any way."""
    os.read(0, 1)  # not sys.stdin, whose lock the interpreter takes at exit
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
