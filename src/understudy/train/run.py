"""A training run from first to last step: the only file that knows data, policy, optimizer and disk at once.

Step k consumes positions [k * batch, (k + 1) * batch) of the order. One integer is the state of everything random, so a
run that was killed and resumed computes what the run that was never stopped computes, bit for bit. Not here: what one
step does (`step.py`), how a checkpoint is written (`checkpoint.py`), the report.
"""

import json
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import understudy
from understudy.data.samples import EpisodeDataset
from understudy.load.loader import Loader
from understudy.load.residency import resident
from understudy.order import Order
from understudy.order.keys import make_key
from understudy.policies.flow_policy import FlowPolicy
from understudy.train import checkpoint, metrics
from understudy.train.config import FREE, TrainConfig
from understudy.train.data import RunData, fingerprint, normalisation, open_data
from understudy.train.optim import adamw, average_of, named_tensors, table, update_average
from understudy.train.rundir import RunDir, write_whole
from understudy.train.schedule import rate
from understudy.train.settings import ConfigError, differences, dump_yaml, plain, validate
from understudy.train.signals import Stop, stop_signals
from understudy.train.step import Draws, StepResult, augmented, optimizer_step
from understudy.train.validate import DRAWS, validation

DONE, STOPPED = 0, 75


def train(config: TrainConfig) -> int:
    """Start a new run in `config.out` and carry it to its end.

    Returns DONE, or STOPPED when a signal asked for it (there is then a checkpoint to resume from).

    Raises:
        ConfigError: there is a run in that folder already. DatasetError: the dataset cannot be used.
    """
    run, config = RunDir(Path(config.out)), config.resolved()
    run.refuse_existing()
    data = open_data(config)
    frozen = {
        "order": json.loads(data.order(config).to_json()),
        "dataset": fingerprint(data),
        "normalisation": normalisation(data, config.data.normalise),
        "settings": plain(config),
    }
    with closing(run.lock()):
        run.begin(config, json.dumps(frozen, indent=2))
        return _carry_on(run, config, data)


def resume(config: TrainConfig) -> int:
    """Carry on the run in `config.out` from its latest checkpoint, at the exact next sample.

    `config` is the run's own (`RunDir.settings`), changed at most in the settings of `FREE`.

    Raises:
        ConfigError: another setting, or the dataset, is not what it was; lists each difference.
    """
    run = RunDir(Path(config.out))
    saved, frozen = run.settings(), _frozen(run)
    # Against those of the beginning, not against config.yaml: a person may have edited that.
    began = differences(validate(TrainConfig, frozen["settings"], where=run.order), config)
    refused = [f"{path}: {old} -> {new}" for path, (old, new) in began.items() if path not in FREE]
    if refused:
        raise ConfigError(_listed(f"{run.root}: a run cannot go on with other settings", refused))
    data = open_data(config)
    then, now = frozen["dataset"], fingerprint(data)
    moved = [
        f"{name}: {then.get(name)} -> {now.get(name)}" for name in {**then, **now} if then.get(name) != now.get(name)
    ]
    if moved:
        raise ConfigError(_listed(f"{run.root}: the dataset is not the one that the run was started on", moved))
    changed = differences(saved, config)
    for path, (old, new) in changed.items():
        print(f"resume: {path}: {old} -> {new}", file=sys.stderr)
    if "steps" in changed and config.schedule.kind != "constant":
        end = config.schedule.steps
        print(f"resume: the learning rate still ends its decay at step {end}, and stays there", file=sys.stderr)
    with closing(run.lock()):
        if changed:
            write_whole(run.config, dump_yaml(config))
        return _carry_on(run, config, data)


def _frozen(run: RunDir) -> dict[str, Any]:
    """What was decided when the run began. Raises ConfigError when it is not there any more, or damaged."""
    try:
        content = json.loads(run.order.read_text(encoding="utf-8"))
        if missing := {"order", "dataset", "normalisation", "settings"} - set(content):
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{run.order}: cannot be read ({error}); put it back, or start a new run") from error
    return dict(content)


def _listed(what: str, lines: list[str]) -> str:
    return "\n".join([f"{what}; start a new one with another --out", *(f"  {line}" for line in lines)])


def judge(root: Path) -> dict[str, Any]:
    """Held-out losses of the latest checkpoint of a run: `validation`'s result, with `step`.

    Raises:
        ConfigError: no run, no checkpoint yet, or nothing held out.
    """
    run = RunDir(root)
    config, latest = run.settings(), checkpoint.latest(run.checkpoints)
    if latest is None:
        raise ConfigError(f"{root}: no checkpoint yet")
    torch.set_num_threads(config.threads)
    data = open_data(config)
    if data.held_out is None:
        raise ConfigError(f"{root}: nothing is held out (data.val_fraction is 0)")
    training = _begun(config, data, _frozen(run))
    step = checkpoint.load(latest, training.tensors())["step"]
    return {"step": step, **training.judged(data.held_out)}


@dataclass
class _Training:
    """What a run holds in memory."""

    config: TrainConfig
    policy: FlowPolicy
    optimizer: torch.optim.AdamW
    average: FlowPolicy | None
    draws: Draws
    step: int = 0
    pending: list[tuple[int, float, StepResult]] = field(default_factory=list)
    """(step, learning rate, result) of steps whose results still lie on the device."""

    @property
    def best(self) -> FlowPolicy:
        """The weights to judge and to hand out."""
        return self.average or self.policy

    def judged(self, held_out: EpisodeDataset) -> dict[str, Any]:
        """Their held-out losses."""
        draws = Draws(self.config.seed, DRAWS, self.config.data.chunk, self.policy.config.action_dim)
        return validation(self.best, held_out, draws)

    def tensors(self) -> dict[str, torch.Tensor]:
        return named_tensors(self.policy, self.optimizer, self.average)


def _begun(config: TrainConfig, data: RunData, saved: dict[str, Any]) -> _Training:
    """The state at step 0: a function of settings and dataset; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(make_key(config.seed, "first weights"))
        policy = FlowPolicy(data.policy_config(config), saved["normalisation"])
    average = average_of(policy) if config.optim.ema.decay else None
    draws = Draws(config.seed, config.policy.draws, config.data.chunk, policy.config.action_dim)
    return _Training(config, policy, adamw(policy, config.optim), average, draws)


def _carry_on(run: RunDir, config: TrainConfig, data: RunData) -> int:
    """From the latest checkpoint, or from nothing, to the end."""
    torch.set_num_threads(config.threads)
    saved = _frozen(run)
    try:
        order = Order.from_json(saved["order"], [data.training])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{run.order}: {error}") from error
    training = _begun(config, data, saved)
    print(table(training.policy, training.optimizer, training.average, training.policy.config.compute), file=sys.stderr)
    latest, position = checkpoint.latest(run.checkpoints), 0
    if latest is not None:
        state = checkpoint.load(latest, training.tensors())
        training.step, position = state["step"], state["position"]
        print(f"resume: from {latest.name}, position {position}", file=sys.stderr)
    metrics.truncate(run.metrics, training.step)
    checkpoint.prune(run.checkpoints, config.keep)
    loader = Loader([data.training], order=order, threads=config.loader_threads, memory=config.memory, start=position)
    with stop_signals() as stop, closing(loader), closing(metrics.MetricsFile(run.metrics)) as log:
        _loop(run, training, data, loader, log, stop)
    if training.step < config.steps:
        print(f"stopped at step {training.step} of {config.steps}: understudy resume {run.root}", file=sys.stderr)
        return STOPPED
    training.best.save(run.policy)
    return DONE


def _loop(
    run: RunDir, training: _Training, data: RunData, loader: Loader, log: metrics.MetricsFile, stop: Stop
) -> None:
    """Steps until the end or a signal. Within a step: compute, log, validate, checkpoint, in this sequence."""
    config, policy = training.config, training.policy
    held_out = resident(data.held_out, loader.spare)[0] if data.held_out is not None else None
    if training.step >= config.steps:
        return
    clock = _Clock(loader, training.step)
    with _progress(training.step, config.steps) as bar:
        for batch in loader:
            lr = config.optim.lr * rate(training.step, config.schedule, config.steps)
            noise, flow_time = training.draws.noise_and_time(batch["position"])
            batch = augmented(batch, policy.config.cameras, config.augment, config.seed)
            result = optimizer_step(policy, training.optimizer, batch, noise, flow_time, lr=lr, clip=config.optim.clip)
            training.step += 1
            if training.average is not None:
                update_average(training.average, policy, config.optim.ema.decay, training.step)
            training.pending.append((training.step, lr, result))
            bar.update()

            complete = training.step == config.steps
            last = complete or stop.asked
            judge_now = (
                held_out is not None and config.val_every and (complete or _due(training.step, config.val_every))
            )
            save = last or _due(training.step, config.checkpoint_every)
            if judge_now or save or _due(training.step, config.log_every):
                log.write([*_flushed(training, bar), clock.record(training.step, config.batch)])
            if judge_now and held_out is not None:
                log.write([{"kind": "val", "step": training.step, **training.judged(held_out)}])
            if save:
                log.sync()  # what a checkpoint stands for is on disk before the checkpoint is
                checkpoint.save(run.checkpoints, training.step, training.tensors(), _state(config, loader.position))
                checkpoint.prune(run.checkpoints, config.keep)
            if last:
                return
            if judge_now or save:
                clock.restart(training.step)


def _due(step: int, every: int) -> bool:
    return step % every == 0


def _flushed(training: _Training, bar: tqdm) -> Iterator[dict[str, Any]]:
    """One record per pending step; the only place where the run waits for the device."""
    steps, rates, results = zip(*training.pending)
    training.pending.clear()
    losses, norms, skipped = (torch.stack(values).tolist() for values in zip(*results))
    bar.set_postfix(loss=f"{np.mean(losses):.4f}", refresh=False)
    for step, lr, loss, norm, skip in zip(steps, rates, losses, norms, skipped):
        if skip:
            tqdm.write(f"step {step}: the gradient is not finite; the weights stay as they were", file=sys.stderr)
        yield {"kind": "train", "step": step, "loss": loss, "lr": lr, "grad_norm": norm, "skipped": int(skip)}


def _state(config: TrainConfig, position: int) -> dict[str, Any]:
    versions = {
        "understudy": understudy.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    return {"position": position, "seed": config.seed, "world": 1, "batch": config.batch, "versions": versions}


def _progress(done: int, steps: int) -> tqdm:
    seconds = 0.5 if sys.stderr.isatty() else 15.0
    return tqdm(total=steps, initial=done, unit="step", mininterval=seconds, file=sys.stderr, dynamic_ncols=True)


class _Clock:
    """Speed and share of waiting between two looks; validation and checkpoints are left out by `restart`."""

    def __init__(self, loader: Loader, step: int) -> None:
        self._loader = loader
        self._began = time.perf_counter()
        self.restart(step)

    def restart(self, step: int) -> None:
        self._step, self._since, self._waited = step, time.perf_counter(), self._loader.waited

    def record(self, step: int, batch: int) -> dict[str, Any]:
        now = time.perf_counter()
        seconds = max(now - self._since, 1e-9)
        speed = {
            "samples_per_s": (step - self._step) * batch / seconds,
            "wait": (self._loader.waited - self._waited) / seconds,
            "seconds": now - self._began,
        }
        self.restart(step)
        return {"kind": "speed", "step": step, **speed}
