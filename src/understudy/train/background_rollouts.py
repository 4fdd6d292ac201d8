"""Rollouts on the way: the weights of every k-th step are set aside, and played in a process beside the training.

    RUN/rollouts/due/step-00000500/      the policy of that step, which waits or is being played
    RUN/rollouts/due/step-00000500.log   what its player says; it stays if that failed
    RUN/rollouts/step-00000500.json      what came of it: `RolloutResult.to_json`, `step`, `play` (settings), `weights`
    RUN/rollouts/earlier/                results of steps that a resumed run has not reached again

The other ranks wait while the weights are gathered and written, as for a checkpoint, and no longer. One player runs at
a time, at low priority. What falls due meanwhile waits on the disk, so nothing that is due is left out: neither when
playing is slower than training (the run then waits at its end) nor when one of them is killed. The files are the truth;
metrics.jsonl gets a line when a result is there, with the step of its weights, and after a kill the lines that it
lacks. A run that goes back to a checkpoint sets the same steps aside again; where their weights are the same to the
bit, the result from before holds. Nothing comes back to the training: its series is the same with rollouts and without.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from understudy.atomic import write_text
from understudy.config.schema import plain
from understudy.config.train import TrainConfig
from understudy.distributed.mesh import Mesh
from understudy.distributed.signals import Stop
from understudy.errors import ConfigError
from understudy.policies import pretrained
from understudy.progress import Progress, tqdm
from understudy.rollout.result import wilson_interval
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.track.trackers import Log

KIND = "rollout"
NICE = 10  # how much the player gives way to the training
GRACE = 5.0  # seconds between asking a player to leave and making it
LOOK = 0.2  # seconds between looks at the player when there is nothing else to do
SHOWN = 12  # lines of a player that failed
MANY = 3  # sets of weights that wait, from which on it is said that they do


class Rollouts:
    """Those of one run; rank 0 has them, on the others everything here is a word in the wind.

    Args:
        frozen: order.json. step: where the run goes on from.
        first: False on all ranks but one.
    Raises:
        ConfigError: what is asked for cannot be played here.
    """

    def __init__(self, run: RunDir, config: TrainConfig, frozen: Mapping[str, Any], step: int, first: bool) -> None:
        self._run, self._config = run, config
        self._here = first and (config.rollout.every > 0 or run.rollouts.is_dir())
        self._told_at = step
        self._queue: list[int] = []  # steps whose weights wait, the one that is being played first
        self._found: list[int] = []  # steps with a result that has no line yet
        self._failed: list[int] = []
        self._player: subprocess.Popen[bytes] | None = None
        if not self._here:
            return
        if config.rollout.every:
            from understudy.rollout.play import prepare_env

            prepare_env(config.data, frozen, config.rollout)  # or the first one would fail hours from now
        self._go_back(step)

    def due(self, step: int) -> bool:
        """Whether the weights of this step are to be played; the same on all ranks."""
        every = self._config.rollout.every
        return every > 0 and (step % every == 0 or step == self._config.steps)

    def set_aside(self, step: int, policy: Any, weights: Mapping[str, Any]) -> None:
        """Take over the weights of `step`: from here on it is known on the disk that they are to be played.

        Args:
            policy: whose `save` writes them. weights: by name, whole; looked at on rank 0 alone.
        """
        if not self._here:
            return
        waiting, earlier = _waiting(self._run, step), _earlier(self._run) / _name(step)
        try:
            policy.save(waiting, weights)
            if self._same(earlier, waiting):  # played before the run went back
                earlier.rename(_result(self._run, step))
                shutil.rmtree(waiting)
                self._found.append(step)
                return
        except (OSError, SafetensorError) as error:  # a full disk must not cost more than this
            _say(f"rollout: the weights of step {step} cannot be set aside, they will not be played: {error}")
            return
        self._queue.append(step)
        if len(self._queue) >= MANY:
            _say(f"rollout: the weights of {len(self._queue)} steps wait; they are played after one another")

    def look(self, log: Log, step: int, last: bool = False) -> bool:
        """Take in a result that is there, let the next one be played. Returns whether any is still to come.

        Args:
            step: the training's. last: no more steps are going to be logged.
        """
        if not self._here:
            return False
        self._take_in()
        while self._player is None and self._queue:
            self._play(self._queue[0])
        # One line for each step of the training, behind what the trackers have: some take no step twice.
        if self._found and (last or step > max(self._told_at, log.has)):
            self._log(log, step, self._found.pop(0))
            self._told_at = step
        return bool(self._queue or self._found)

    def finished(self, log: Log, mesh: Mesh, stop: Stop) -> bool:
        """Wait until nothing is to come any more; False: asked to stop before. All ranks call this together, and none
        leaves the others alone for longer than it takes to look once."""
        waiting, stopping = mesh.votes(self.look(log, self._config.steps, last=True), stop.asked)
        total = len(self._queue)
        with Progress(total, "rollouts", "step", shown=waiting and self._here) as bar:
            while waiting and not stopping:
                time.sleep(LOOK)
                bar.update(total - len(self._queue) - bar.n)
                waiting, stopping = mesh.votes(self.look(log, self._config.steps, last=True), stop.asked)
            bar.update(total - len(self._queue) - bar.n)
        return not waiting

    def close(self) -> None:
        """End the player. What it played stays due; a result that has no line gets it when the run goes on."""
        if (player := self._player) is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(player.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    player.wait(GRACE)
                    break
            self._player = None
        if self._failed:
            steps = ", ".join(map(str, sorted(self._failed)))
            _say(f"rollout: not played: step {steps}; understudy resume {self._run.root} tries again")

    # -- inside ---------------------------------------------------------------------------------------------------

    def _go_back(self, step: int) -> None:
        """Bring the files to where the run goes on from, and find what is missing."""
        from understudy.train.track import metrics_file

        told = {record["step"] for record in metrics_file.read(self._run.metrics, KIND)}
        for done, path in _steps(self._run.rollouts, ".json"):
            if done > step:
                _earlier(self._run).mkdir(exist_ok=True)
                path.replace(_earlier(self._run) / path.name)
            elif done not in told:
                self._found.append(done)
        for waits, path in _steps(_due(self._run), ""):
            if waits > step or _result(self._run, waits).exists():  # not reached again; or killed before it was removed
                shutil.rmtree(path)
            else:
                self._queue.append(waits)
        if self._queue:
            _say(f"rollout: still to be played: step {', '.join(map(str, self._queue))}")
        if not self._config.rollout.every:
            self._queue = []  # they stay where they are, for when rollouts are asked for again

    def _same(self, earlier: Path, waiting: Path) -> bool:
        """Whether a result from before the run went back is of the weights in `waiting`, played as is asked now."""
        if not earlier.exists():
            return False
        with suppress(ValueError, KeyError):
            result = json.loads(earlier.read_text(encoding="utf-8"))
            if (result["weights"], result["play"]) == (_digest(waiting), _settings(self._config)):
                return True
        earlier.unlink()
        return False

    def _play(self, step: int) -> None:
        command = [*PLAYER, str(self._run.root), str(step)]
        try:
            with _log_of(self._run, step).open("wb") as told:
                # It leaves when its standard input ends, so also when this process is killed.
                self._player = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=told, stderr=subprocess.STDOUT, start_new_session=True
                )
        except OSError as error:
            self._queue.pop(0)
            self._give_up(step, "cannot be started", [str(error)])

    def _take_in(self) -> None:
        """What became of the player, if it has left."""
        if self._player is None or (code := self._player.poll()) is None:
            return
        assert self._player.stdin is not None
        self._player.stdin.close()
        self._player = None
        step = self._queue.pop(0)
        if code == 0 and _result(self._run, step).exists():
            self._found.append(step)
            return
        lines = _log_of(self._run, step).read_text(errors="replace").strip().splitlines()[-SHOWN:]
        self._give_up(step, f"exit code {code}" if code >= 0 else f"killed by signal {-code}", lines)

    def _give_up(self, step: int, how: str, lines: list[str]) -> None:
        """Leave the weights of `step` for when the run goes on, and say so. The training is not asked."""
        self._failed.append(step)
        _say("\n".join([f"rollout: step {step} could not be played ({how}):", *(f"  | {line}" for line in lines)]))

    def _log(self, log: Log, at: int, step: int) -> None:
        """Write the line of `step`; only then let go of its weights."""
        path = _result(self._run, step)
        try:
            line = {"kind": KIND, "step": step, "at": at, **record(json.loads(path.read_text(encoding="utf-8")))}
        except (OSError, ValueError, KeyError, TypeError) as error:
            path.unlink(missing_ok=True)  # its weights, where they are still there, are played again
            self._give_up(step, f"{path.name} is no result", [str(error)])
            return
        log.log(at, line)
        shutil.rmtree(_waiting(self._run, step), ignore_errors=True)
        _log_of(self._run, step).unlink(missing_ok=True)
        rate = line["success"]
        between = f"{rate['low']:.0%} to {rate['high']:.0%}"
        _say(f"rollout: step {step}: success {rate['successes']}/{rate['episodes']} ({between})")


def record(result: Mapping[str, Any]) -> dict[str, Any]:
    """What metrics.jsonl says of a result: {"world", "success", "tasks": {task: …}}, each with `successes`, `episodes`,
    `rate` and its 95 % interval `low`, `high`."""

    def rate(counts: Mapping[str, Any]) -> dict[str, Any]:
        successes, episodes = counts["successes"], counts["episodes"]
        low, high = wilson_interval(successes, episodes)
        return {
            "successes": successes,
            "episodes": episodes,
            "rate": successes / max(1, episodes),
            "low": low,
            "high": high,
        }

    tasks = {task: rate(counts) for task, counts in result["tasks"].items()}
    return {"world": result["world"], "success": rate(result["success"]), "tasks": tasks}


def _settings(config: TrainConfig) -> dict[str, Any]:
    """What decides a result, besides the weights."""
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


def _steps(where: Path, ending: str) -> list[tuple[int, Path]]:
    """What bears a step's name and this ending, by step."""
    found = [(path.name.removeprefix("step-").removesuffix(ending), path) for path in where.glob(f"step-*{ending}")]
    return sorted((int(number), path) for number, path in found if number.isdigit())


def _digest(policy: Path) -> str:
    with (policy / pretrained.WEIGHTS).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)


# -- the player -------------------------------------------------------------------------------------------------------

PLAYER = (sys.executable, "-m", "understudy.train.background_rollouts")


def main() -> int:
    """`python -m understudy.train.background_rollouts RUN STEP`: play weights that are due, write what came of it."""
    import torch

    from understudy.rollout.play import rollout_saved_policy

    run, step = RunDir(Path(sys.argv[1])), int(sys.argv[2])
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    os.nice(NICE)
    torch.set_num_threads(1)  # small matrices, and the cores are the training's
    try:
        config, policy = run.settings(), _waiting(run, step)
        result = rollout_saved_policy(policy, config.data, run.frozen().get("sources"), config.rollout)
        told = {"step": step, "play": _settings(config), "weights": _digest(policy), **result.to_json()}
        write_text(_result(run, step), json.dumps(told, indent=1) + "\n")
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _leave_with_parent() -> None:
    """Standard input ends when the training ends, however it does: nobody waits for this result any more."""
    os.read(0, 1)  # not through sys.stdin, whose lock the interpreter wants when it ends
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
