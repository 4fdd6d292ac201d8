"""A training run from first to last step: the only file that knows data, policy, optimizer, mesh and disk at once.

Step k consumes positions [k * batch, (k + 1) * batch) of the order; each rank makes its share of them. One integer is
the state of everything random, so a run that was killed and resumed computes what the run that was never stopped
computes, bit for bit. Rank 0 alone writes the run's own files; all ranks write checkpoints.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from understudy.addresses import CREDENTIALS_HINT, has_credentials
from understudy.atomic import write_text
from understudy.config.schema import differences, dump_yaml, plain, validate, without_credentials
from understudy.config.train import ParallelConfig, TrainConfig
from understudy.distributed.mesh import Mesh, join_mesh
from understudy.distributed.signals import Stop, Stopped, stop_signals
from understudy.errors import ConfigError, DatasetError
from understudy.load.eval.validation_data import HeldOut
from understudy.storage.options import RemoteOptions
from understudy.train import precision
from understudy.train.background_rollouts import Rollouts
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.export import find_checkpoint
from understudy.train.checkpoint.run_dir import RunDir, as_begun
from understudy.train.checkpoint.saver import Saver
from understudy.train.data.data import RunData, file_digests, fingerprint, open_data
from understudy.train.data.fingerprint import changed, place
from understudy.train.eval.schedule import held_out, validated_on
from understudy.train.inner_loop import loader_of
from understudy.train.loop import run_steps, versions, whole_weights
from understudy.train.resume_check import review
from understudy.train.run_record import decided, first_weights, order_now, sources_of
from understudy.train.startup_summary import started
from understudy.train.state import TrainState, init_train_state, stored_names
from understudy.train.track.trackers import Log

DONE, STOPPED = 0, 75


def train(config: TrainConfig) -> int:
    """Start a new run in `config.out` and carry it to its end; every process of the run calls this.

    Returns DONE, or STOPPED when a signal or the file RUN/STOP asked for it: `resume` then goes on from there.

    Raises:
        ConfigError: there is a run in that folder already, or the settings do not go with the processes; on all ranks.
        DatasetError: the dataset cannot be used. RankError: another process failed or went away.
    """
    config = without_credentials(config).resolved()
    run = RunDir(Path(config.out))

    def work(mesh: Mesh, stop: Stop) -> int:
        mesh.first(run.refuse_existing)
        data = _opened(config, mesh)
        with mesh.together():
            held = validated_on(config, data)
        mesh.first(lambda: run.begin(config, decided(config, data, mesh)))
        for address in dict.fromkeys(source.root for source in config.data.mixed()) if mesh.rank == 0 else ():
            if has_credentials(address):
                print(f"{address}: to resume, give its credentials again: {CREDENTIALS_HINT}", file=sys.stderr)
        try:
            return _carry_on(run, config, config, data, held, mesh, stop)
        except (ConfigError, DatasetError):
            if mesh.rank == 0 and checkpoint.latest(run.checkpoints) is None:
                run.withdraw()  # or the same command, mended, would be told that there is a run already
            raise

    return _together(run, config, work)


def resume(config: TrainConfig) -> int:
    """Carry on the run in `config.out` from its latest checkpoint, at the exact next sample.

    `config` is the run's own (`RunDir.settings`), or changed; what changes and what follows from it is told before
    anything is trained (`resume_check.py`).

    Raises:
        ConfigError: with other settings it would be another run, or the dataset is not what it was; lists each
            difference.
    """
    config = without_credentials(config)
    run = RunDir(Path(config.out))
    run.settings()  # or there is nothing to lock

    def work(mesh: Mesh, stop: Stop) -> int:
        with mesh.together():
            then, data = _checked(run, config, mesh)
            held = validated_on(config, data)
            edited = bool(differences(run.settings(), config))
            before = run.config.read_text(encoding="utf-8")
        if edited:
            mesh.first(lambda: write_text(run.config, dump_yaml(config)))
        try:
            return _carry_on(run, config, then, data, held, mesh, stop)
        except ConfigError:
            if edited and mesh.rank == 0:
                write_text(run.config, before)  # or the run would be refused from now on, whatever it is told
            raise

    return _together(run, config, work)


def _together(run: RunDir, config: TrainConfig, work: Callable[[Mesh, Stop], int]) -> int:
    """`work` with the other processes, alone in the run's folder, and stoppable from the first moment on."""
    try:
        with stop_signals(at_once=True) as stop, join_mesh(config) as mesh, _alone_there(run, config, mesh):
            stop.at_once = mesh.world_size == 1  # several have to agree
            if mesh.rank == 0:
                run.stop.unlink(missing_ok=True)  # an old one, or the run would stop at once
                stop.file = run.stop
            return work(mesh, stop)
    except Stopped as asked:
        verb = f"resume {run.root}" if run.config.exists() else f"train --out {run.root} …"
        print(f"stopped by {asked} before the first step: understudy {verb} starts where this did", file=sys.stderr)
        return STOPPED


def _opened(config: TrainConfig, mesh: Mesh) -> RunData:
    """The data of a new run. Rank 0 alone looks for files that are missing, and the others leave out what it does."""
    with mesh.together():
        data = open_data(config, None, mesh.rank == 0)
    skipped = mesh.first(lambda: data.skipped)
    with mesh.together():
        if skipped != data.skipped:
            same = {name: {"skipped": ids} for name, ids in zip(data.names, skipped)}
            data = open_data(config, same, False)
    return data


def _checked(run: RunDir, config: TrainConfig, mesh: Mesh) -> tuple[TrainConfig, RunData]:
    """The settings so far, and the data; raises as `resume` does, and tells the changes."""
    frozen, latest = run.frozen(), checkpoint.latest(run.checkpoints)
    state = checkpoint.read_state(latest) if latest is not None else None
    # Not against config.yaml: a person may have edited that.
    then = validate(TrainConfig, as_begun((state or frozen)["settings"]), where=latest or run.order, fresh=False)
    here = {"world": mesh.world_size, "versions": versions()}
    lines = review(run.root, replace(then, out=config.out), config, state, here)
    data = _same_data(run, frozen, config, mesh, "start a new one with another --out")
    for line in lines if mesh.rank == 0 else ():
        print(f"resume: {line}", file=sys.stderr)
    return then, data


def _same_data(run: RunDir, frozen: Mapping[str, Any], config: TrainConfig, mesh: Mesh, instead: str) -> RunData:
    """The data of `config`, opened. Raises ConfigError where it is not what the run was started on."""
    data = open_data(config, sources_of(frozen), mesh.rank == 0)
    before, now = frozen["dataset"], fingerprint(data)
    moved = [
        f"  {name}: {before.get(name)} -> {now.get(name)}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    if moved:
        head = f"{run.root}: the dataset is not the one that the run was started on; {instead}"
        raise ConfigError("\n".join([head, *moved]))
    if mesh.rank == 0:
        _same_files(run, frozen.get("files"), data, config)
    return data


def _same_files(run: RunDir, before: Any, data: RunData, config: TrainConfig) -> None:
    """Raise ConfigError where data or video files are not what they were; with `data.changed_files` accept, say so."""
    if not isinstance(before, Mapping):
        what = "began with a version that did not look at data and video files; whether they changed is not known"
        print(f"{run.root}: {what}", file=sys.stderr)
        return
    now = file_digests(data, Path(RemoteOptions(cache=config.data.cache).folder))
    lines = [f"  {name}: {place(before[name], now[name] or [])}" for name in changed(before, now)]
    if not lines:
        return
    what = f"{run.root}: files of the dataset are not those that the run was started on"
    if config.data.changed_files == "accept":
        print("\n".join([f"{what}; it goes on with what is there (data.changed_files)", *lines]), file=sys.stderr)
        return
    fix = "put them back, or, where they were repaired, go on with --data.changed-files accept"
    raise ConfigError("\n".join([f"{what}; {fix}", *lines]))


def judge(root: Path, which: int | str = "latest", *, per_dim: bool = False) -> dict[str, Any]:
    """Held-out losses of a checkpoint of a run: `validation`'s result, with `step`; what the run itself found there.

    Args:
        which: step of the checkpoint, "latest" or "best" (by `keep_best`, else by `loss`).
    Raises:
        ConfigError: no run, no such checkpoint, another dataset, or nothing held out.
    """
    run = RunDir(root)
    now = run.settings()
    source = find_checkpoint(run.checkpoints, which, now.keep_best)
    then = validate(TrainConfig, as_begun(checkpoint.read_state(source)["settings"]), where=source, fresh=False)
    config = _as_then(then, now)
    torch.set_num_threads(config.threads)
    with join_mesh(config) as mesh:
        with mesh.together():
            frozen = run.frozen()
            data = _same_data(run, frozen, config, mesh, "its checkpoints can be judged on that one alone")
            held = held_out(config, data)
        if held is None:
            raise ConfigError(f"{root}: nothing is held out (data.val_fraction is 0)")
        training = init_train_state(config, data, frozen["normalisation"], mesh)
        with closing(Saver(run.checkpoints, keep=config.keep)) as saver:
            state = _loaded(training, saver, source)
        return {"step": state["step"], **training.evaluate(held, per_dim=per_dim)}


def _as_then(then: TrainConfig, now: TrainConfig) -> TrainConfig:
    """The settings of a checkpoint, which decide its figures, in the place and on the machine of now, by however many
    processes there are."""
    paths = {"root", "keep", "stats"}

    def placed(old: Any, new: Any, names: set[str]) -> Any:
        return replace(old, **{name: getattr(new, name) for name in names})

    sources = tuple(placed(old, new, paths) for old, new in zip(then.data.sources, now.data.sources))
    data = replace(placed(then.data, now.data, {*paths, "cache", "cache_size", "changed_files"}), sources=sources)
    here = placed(then, now, {"out", "device", "memory", "loader_threads"})
    return replace(here, data=data, micro_batch=None, parallel=ParallelConfig(timeout=now.parallel.timeout))


@contextmanager
def _alone_there(run: RunDir, config: TrainConfig, mesh: Mesh) -> Iterator[None]:
    """The run's lock, held by rank 0 for all. Raises ConfigError when others train it, or the ranks disagree."""
    settings = mesh.gather(plain(config))
    for rank, others in enumerate(settings):
        if odd := [name for name in others if others[name] != settings[0][name]]:
            raise ConfigError(
                f"{odd[0]}: rank 0 was started with {settings[0][odd[0]]}, rank {rank} with {others[odd[0]]}"
            )
    held = None
    with mesh.together():
        if mesh.rank == 0:
            held = run.lock()
    try:
        yield
    finally:
        if held is not None:
            held.close()


def _carry_on(
    run: RunDir,
    config: TrainConfig,
    then: TrainConfig,
    data: RunData,
    held: HeldOut | None,
    mesh: Mesh,
    stop: Stop,
) -> int:
    """From the latest checkpoint, or from nothing, to the end. then: the settings so far."""
    torch.set_num_threads(config.threads)
    latest, position = mesh.first(lambda: checkpoint.latest(run.checkpoints)), 0
    with mesh.together():
        saved = run.frozen()
        state = checkpoint.read_state(latest) if latest is not None else None
        order = order_now(saved, state, then, config, data, where=run.order)
        weights = first_weights(config, data, saved) if latest is None else None
    training = init_train_state(config, data, saved["normalisation"], mesh, weights)
    if mesh.rank == 0:
        print("\n".join([_table(training), *started(config, data, order)]), file=sys.stderr)
    best = config.keep_best if config.keep_best != "none" else None
    with closing(Saver(run.checkpoints, keep=config.keep, best_by=best, background=config.async_save)) as saver:
        if latest is not None:
            state = _loaded(training, saver, latest)
            training.step, position = state["step"], state["position"]
            if mesh.rank == 0:
                print(f"resume: from {latest.name}, position {position}", file=sys.stderr)
                if training.step >= config.steps:
                    print(f"resume: all {config.steps} steps are done; --steps trains for longer", file=sys.stderr)
        with mesh.together():
            log = Log(run, config, training.step, writes=mesh.rank == 0)
        journal = run.substitutions(mesh.rank)
        with closing(log):
            with mesh.together():
                rollouts = Rollouts(run, config, saved, training.step, first=mesh.rank == 0)
            with closing(rollouts):
                with loader_of(config, data, order, mesh, position, journal) as loader:
                    saver.prune()
                    stop.at_once = False  # from here on there is something to save
                    held = held.resident(loader.spare_bytes) if held else None
                    unjudged = latest if state is not None and state.get(checkpoint.UNJUDGED) else None
                    whole_run = run_steps(training, order, held, loader, saver, rollouts, log, stop, unjudged)
                    saver.wait()
                    if told := len(loader.substitutions):
                        print(f"{told} samples could not be read, neighbours stood in: {journal}", file=sys.stderr)
                if whole_run:
                    whole = whole_weights(training)
                    mesh.first(lambda: training.eval_policy.save(run.policy, whole, saved.get("metadata")))
                    if rollouts.finished(log, mesh, stop):
                        return DONE
    if mesh.rank == 0:
        run.stop.unlink(missing_ok=True)
        print(f"stopped at step {training.step} of {config.steps}: understudy resume {run.root}", file=sys.stderr)
    return STOPPED


def _loaded(training: TrainState, saver: Saver, path: Path) -> dict[str, Any]:
    """Put a checkpoint into `training`; returns its state."""
    tensors = training.tensors()
    names = stored_names(tensors, checkpoint.tensor_names(path), training.policy.config.OLD_MODULES)
    state = saver.load(path, names)
    precision.restore(training.policy, training.optimizer, tensors)
    return state


def _table(training: TrainState) -> str:
    """What is kept and computed in which precision; and how it is spread."""
    replicas, shards = training.mesh.shape
    compute = training.policy.config.compute
    world, device = training.mesh.world_size, training.mesh.device.type
    where = f"{world} processes on {device}: {replicas} x {shards} (replicas x shards)"
    where = where if world > 1 else f"1 process on {device}"
    return "\n".join([where, precision.table(training.policy, training.optimizer, training.average, compute)])
