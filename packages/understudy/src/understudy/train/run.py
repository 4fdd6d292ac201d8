"""A training run from first to last step.

Step k consumes positions [k * batch_size, (k + 1) * batch_size) of the order; each rank builds its
share of them. One integer is the state of everything random, so a run that was killed and resumed
computes the same bits as a run that was never stopped. Rank 0 alone writes the run's own files; all
ranks write checkpoints.
"""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from understudy.compile import is_compile_error
from understudy.config.data import DataConfig
from understudy.config.train import ParallelConfig, TrainConfig
from understudy.distributed.mesh import Mesh, RankError, join_mesh
from understudy.policies.capabilities.images import fit_images
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.checkpoint import Saver
from understudy.train.checkpoint.export import find_checkpoint
from understudy.train.checkpoint.run_dir import RunDir, read_settings
from understudy.train.data.frames_file import frames_content
from understudy.train.data.run_data import (
    RunData,
    dataset_fingerprint,
    file_digests,
    open_data,
)
from understudy.train.data.run_normalization import confront_update
from understudy.train.data.updates import (
    changed_episodes,
    current_spec,
    find_appended,
    recorded_sources,
)
from understudy.train.data.versions_read import (
    Versions,
    describe_versions,
    latest_versions,
    versions_read,
)
from understudy.train.loop import library_versions
from understudy.train.paths import moved_fix, resolve_paths, with_local_files, with_root
from understudy.train.resume_check import check_resume, stretch_schedule
from understudy.train.run_hooks import check_rollout_settings
from understudy.train.run_record import new_run_record
from understudy.train.session import RunSession, frozen_dtypes, load_checkpoint
from understudy.train.state import TrainState, init_train_state
from understudy.train.track import metrics_file
from understudy.train.track.trackers import check_trackers
from understudy.train.validation.validation_loss import (
    open_validation,
    read_validation_data,
    validate,
)
from understudy_base import (
    CREDENTIALS_HINT,
    ConfigError,
    DataAccessError,
    Record,
    has_credentials,
    is_out_of_memory,
    is_wrong_input,
    split_view,
    write_text,
)
from understudy_data import RemoteOptions, UsedFiles, ValidationData
from understudy_kit import Stop, Stopped, dump_yaml, plain, without_credentials

DONE = 0
STOPPED = 75
_RARE = 200_000
"""New objects between two searches for garbage, while the data and the loader are opened."""

logger = logging.getLogger(__name__)


def train(config: TrainConfig) -> int:
    """Run a new training in `config.output_dir` to its end; every process of the run calls this.

    Returns:
        DONE, or STOPPED after a signal or the file RUN/STOP: `resume` then continues.

    Raises:
        ConfigError: that folder contains a run, or the settings do not fit the processes; on all
            ranks.
        DatasetError: the dataset cannot be used.
        RankError: another process failed or disappeared.
    """
    config = resolve_paths(with_local_files(without_credentials(config)).resolved())
    if config.data.update:
        raise ConfigError("data.update: a new run has all episodes; give it to `understudy resume`")
    check_rollout_settings(config)
    run = RunDir(Path(config.output_dir))

    def work(mesh: Mesh, stop: Stop, collection: RareCollection) -> int:
        mesh.first(run.refuse_existing)
        mesh.first(lambda: check_trackers(config.log.trackers))
        data = _open_new_data(config, mesh)
        with mesh.together():
            fitted = replace(config, policy=fit_images(config.policy, data.image_sizes))
            validation = open_validation(fitted, data)
        collection.keep_data()
        mesh.first(
            lambda: run.begin(fitted, new_run_record(fitted, data, mesh), frames_content(data))
        )
        roots = [split_view(source.root)[0] for source in config.data.mixed()]
        for address in dict.fromkeys(roots):
            if mesh.rank == 0 and has_credentials(address):
                logger.warning(
                    "%s: to resume, give its credentials again: %s", address, CREDENTIALS_HINT
                )
        try:
            session = RunSession(run, fitted, fitted, data, mesh)
            return _run(session, validation, stop, collection)
        except Exception as error:
            is_wrong = isinstance(error, ConfigError | DataAccessError) or is_out_of_memory(error)
            is_wrong = is_wrong or not (
                isinstance(error, RankError) or metrics_file.read(run.metrics, "train")
            )
            if mesh.rank == 0 and is_wrong and checkpoint.find_latest(run.checkpoints) is None:
                run.withdraw()  # otherwise the corrected command would find a run in its folder
            raise

    return _start(run, config, work)


def resume(config: TrainConfig) -> int:
    """Continue the run in `config.output_dir` from its latest checkpoint, at the exact next sample.

    Args:
        config: the run's own settings (`RunDir.settings`), or changed ones. Changes and their
            consequences are logged before training starts (`resume_check.py`).

    Raises:
        ConfigError: these settings would make it a different run, or the dataset changed; lists
            each difference.
    """
    asked = resolve_paths(with_local_files(without_credentials(config)).with_policy_defaults())
    run = RunDir(Path(config.output_dir))
    run.settings()  # raises where there is no run to lock

    def work(mesh: Mesh, stop: Stop, collection: RareCollection) -> int:
        stretched, then, data = _check_changes(run, asked, mesh)
        # an update is of this resume alone
        config = replace(stretched, data=replace(stretched.data, update=False))
        with mesh.together():
            validation = open_validation(config, data)
            collection.keep_data()
            # also the sequence of a mapping
            edited = dump_yaml(run.settings()) != dump_yaml(config)
            before = run.config.read_text(encoding="utf-8")
        if edited:
            mesh.first(lambda: run.write_settings(config))
        try:
            session = RunSession(run, config, then, data, mesh)
            return _run(session, validation, stop, collection)
        except ConfigError:
            if edited and mesh.rank == 0:
                write_text(run.config, before)  # otherwise every later resume would be refused, too
            raise

    return _start(run, replace(asked, data=replace(asked.data, update=False)), work)


def evaluate_checkpoint(
    root: Path, step: int | str = "latest", *, per_dim: bool = False, data_root: str = ""
) -> dict[str, Any]:
    """Compute the validation losses of a checkpoint: the result of `evaluate` and its `step`, as
    during the run.

    Args:
        root: the run directory.
        step: step of the checkpoint, "latest" or "best" (by `checkpoint.keep_best`, else by
            `loss`).
        per_dim: include the action loss of each dimension.
        data_root: present place of the run's dataset; empty: that of its settings.

    Raises:
        ConfigError: no run, no such checkpoint, another dataset, or no validation episodes.
    """
    with open_checkpoint(root, step, data_root) as (state, validation):
        return {"step": state.step, **validate(state, validation, per_dim=per_dim)}


@contextmanager
def open_checkpoint(
    root: Path, step: int | str = "latest", data_root: str = ""
) -> Iterator[tuple[TrainState, ValidationData]]:
    """Open a checkpoint with its validation frames, on the processes of this mesh; arguments of
    `evaluate_checkpoint`.

    Raises:
        ConfigError: no run, no such checkpoint, another dataset, or no validation episodes.
    """
    run = RunDir(root)
    now = with_root(run.settings(), data_root)
    source = find_checkpoint(run.checkpoints, step, now.checkpoint.keep_best)
    trained = read_settings(checkpoint.read_state(source)["settings"], source)
    config = _move_settings(trained, now)
    torch.set_num_threads(config.torch_threads)
    with join_mesh(config.mesh) as mesh:
        with mesh.together():
            record = run.read_record()
            saved = checkpoint.read_state(source)
            data = _open_same_data(
                run,
                record,
                saved,
                config,
                mesh,
                "its checkpoints can be validated on that one only",
            )
            validation = read_validation_data(config, data, trained)
        if validation is None:
            raise ConfigError(f"{root}: there are no validation episodes (data.val_fraction is 0)")
        with mesh.together():
            dtypes = frozen_dtypes(source)
        state = init_train_state(config, data, record["normalisation"], mesh, resumed=dtypes)
        with closing(Saver(run.checkpoints, keep_last=config.checkpoint.keep_last)) as saver:
            load_checkpoint(state, saver, source)
        yield state, validation


class RareCollection:
    """Searches for garbage less often in its block, while the data of a run are opened.

    Thousands of opened sources are millions of objects, which stay until the end: to search them
    again and again took a fifth of the start of 3,000. Garbage of earlier runs of this program is
    removed first. Objects that the program has frozen itself stay frozen.
    """

    def __init__(self) -> None:
        self._usual = gc.get_threshold()
        self._freezes = gc.get_freeze_count() == 0

    def __enter__(self) -> "RareCollection":
        gc.collect()
        if self._usual[0]:  # 0: the program has turned the collector off
            gc.set_threshold(max(_RARE, self._usual[0]), *self._usual[1:])
        return self

    def keep_data(self) -> None:
        """Leave the objects of this moment, the opened data, out of the search until the end."""
        if self._freezes:
            gc.freeze()

    def as_usual(self) -> None:
        """Search as often as before from now on."""
        gc.set_threshold(*self._usual)

    def __exit__(self, *_: object) -> None:
        self.as_usual()
        if self._freezes:
            gc.unfreeze()


def _start(
    run: RunDir, config: TrainConfig, work: Callable[[Mesh, Stop, RareCollection], int]
) -> int:
    """Join the other processes, lock the run's folder and handle stop signals, then do `work`."""
    try:
        with Stop.on_signals(at_once=True) as stop:
            try:
                with (
                    join_mesh(config.mesh, STOPPED) as mesh,
                    _lock(run, config, mesh),
                    RareCollection() as collection,
                ):
                    stop.at_once = mesh.world_size == 1  # several processes have to agree
                    if mesh.rank == 0:
                        run.stop.unlink(missing_ok=True)  # an old file would stop the run at once
                        stop.file = run.stop
                    return work(mesh, stop, collection)
            except Exception as error:
                # a rank that left at the signal
                has_lost = isinstance(error, RankError) and not stop.begun
                if stop.noted and (has_lost or is_compile_error(error)):
                    other = "another process" if has_lost else "the compiler"
                    raise Stopped(f"a signal that also reached {other}") from error
                raise
    except Stopped as signal:
        command = f"train --output-dir {run.root} …"
        if run.config.exists():
            command = f"resume {run.root}"
        logger.warning(
            "stopped by %s before the next step: understudy %s starts again", signal, command
        )
        return STOPPED


@contextmanager
def _lock(run: RunDir, config: TrainConfig, mesh: Mesh) -> Iterator[None]:
    """Hold the run's lock on rank 0.

    Raises:
        RunInUseError: another process trains the run; a RankError on the other ranks.
        ConfigError: the ranks' settings differ.
    """
    settings = mesh.gather(plain(config))
    for rank, others in enumerate(settings):
        if different := [name for name in others if others[name] != settings[0][name]]:
            name = different[0]
            raise ConfigError(
                f"{name}: rank 0 was started with {settings[0][name]}, rank {rank} with "
                f"{others[name]}"
            )
    lock = None
    is_new = not run.root.exists()
    try:
        with mesh.together():
            if mesh.rank == 0:
                lock = run.lock()
        yield
    except BaseException:
        if lock is not None and is_new:
            run.remove_empty()
        raise
    finally:
        if lock is not None:
            lock.close()


def _open_new_data(config: TrainConfig, mesh: Mesh) -> RunData:
    """Open the data of a new run."""
    with mesh.together():
        data = open_data(config, None, mesh.rank == 0)
    return _open_alike(config, data, mesh)


def _open_alike(config: TrainConfig, data: RunData, mesh: Mesh) -> RunData:
    """Open the episodes of rank 0 on all ranks: it alone checks for missing files, and a dataset
    may grow meanwhile.
    """
    entries = mesh.first(data.entries)
    with mesh.together():
        alike = data if entries == data.entries() else open_data(config, entries, False)
    for part in alike.training:
        part.catalog.files.is_compared = True
    return alike


def _check_changes(
    run: RunDir, config: TrainConfig, mesh: Mesh
) -> tuple[TrainConfig, TrainConfig, RunData]:
    """Return the settings to resume with, those of the latest checkpoint, and the data; log the
    changes.

    Raises as `resume` does.
    """
    with mesh.together():
        record = run.read_record()
        latest = checkpoint.find_latest(run.checkpoints)
        saved = checkpoint.read_state(latest) if latest is not None else None
        # config.yaml is not the reference: it may have been edited.
        then = resolve_paths(
            run.located(read_settings((saved or record)["settings"], latest or run.order))
        )
        present = {"world": mesh.world_size, "versions": library_versions()}
        done = saved["step"] if saved else 0
        config = stretch_schedule(then, config, done)
        lines = check_resume(
            run.root, replace(then, output_dir=config.output_dir), config, saved, present
        )
        data = _open_same_data(
            run,
            record,
            saved,
            config,
            mesh,
            "restore it, or start a new run with another --output-dir",
        )
    step = saved["step"] if saved else 0
    appended = mesh.first(lambda: find_appended(config.data, data, step))
    use = "trained on from here on" if config.data.update else "--data.update takes them"
    lines += [
        f"{of['name']}: episodes {of['first']} to {of['last']} were appended: {use}"
        for of in appended
    ]
    if config.data.update and not appended:
        lines.append("data.update: no episodes to train on were appended; nothing is added")
    if config.data.update and appended:
        with mesh.together():
            first = len(data.sources)
            data = open_data(config, [*data.entries(), *appended], mesh.rank == 0)
        data = _open_alike(config, data, mesh)
        mesh.first(lambda: confront_update(config, data, record["normalisation"], first))
    if mesh.rank == 0:
        for line in lines:
            logger.info("resume: %s", line)
    return config, then, data


def _open_same_data(
    run: RunDir, record: Record, saved: Record | None, config: TrainConfig, mesh: Mesh, remedy: str
) -> RunData:
    """Open the data of a checkpoint with the state `saved`. Raises ConfigError if its episodes
    changed.
    """
    updates = (saved or {}).get("updates", ())
    read = latest_versions(record, saved)
    try:
        data = open_data(config, recorded_sources(record, updates), mesh.rank == 0)
    except DataAccessError as error:
        fix = moved_fix(config)
        # an outage of the hub, whose ids are not paths, keeps its exit code
        if fix and is_wrong_input(error):
            raise error.replaced(fix="; ".join(filter(None, [error.fix, fix]))) from error
        if read and is_wrong_input(error):
            named = [line.strip() for line in describe_versions(read, None, config.data)]
            raise error.replaced(what="; ".join([error.what, *named])) from error
        raise
    before = dict(record["dataset"])
    now = dataset_fingerprint(data)
    files = dict(record["files"])
    for update in updates:
        before |= update["dataset"]
        files |= update["files"]
    changes = [
        f"  {name}: {before.get(name)} -> {now.get(name)}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    frames = [int(np.diff(part.epoch_segments[:, 1:]).sum()) for part in data.training]
    is_whole = frames == [
        source["frames"] for source in current_spec(record, saved or {})["sources"]
    ]
    lines = [] if is_whole and not changes else changed_episodes(run, record, updates, data)
    if changes or lines:
        head = (
            f"{run.root}: the dataset must keep the episodes of the run, each under its id, and "
            f"has changed; {remedy}"
        )
        raise ConfigError(
            "\n".join(
                [head, *changes, *lines, *describe_versions(read, versions_read(data), config.data)]
            )
        )
    if mesh.rank == 0:
        _check_files(run, files, read, data, config.data)
    return data


def _check_files(
    run: RunDir, before: Record, read: Versions, data: RunData, settings: DataConfig
) -> None:
    """Raise ConfigError if data or video files changed; with `data.changed_files` accept, log them
    instead.
    """
    now = file_digests(data, Path(RemoteOptions(cache=settings.cache).folder))
    lines = [
        f"  {name}: {UsedFiles.describe_change(before[name], now[name] or [])}"
        for name in UsedFiles.changed_kinds(before, now)
    ]
    if not lines:
        return
    change = f"{run.root}: files of the dataset changed since the run started"
    if settings.changed_files == "accept":
        logger.warning(
            "\n".join([f"{change}; the run uses the present ones (data.changed_files)", *lines])
        )
        return
    fix = "restore them, or, if they were repaired, resume with --data.changed-files accept"
    raise ConfigError(
        "\n".join(
            [f"{change}; {fix}", *lines, *describe_versions(read, versions_read(data), settings)]
        )
    )


def _move_settings(then: TrainConfig, now: TrainConfig) -> TrainConfig:
    """Return the settings of a checkpoint, which decide its figures, with the present paths,
    machine and processes.
    """
    paths = {"root", "keep_ranges", "frame_weights", "stats"}

    def updated(old: Any, new: Any, names: set[str]) -> Any:
        return replace(old, **{name: getattr(new, name) for name in names})

    sources = tuple(
        updated(old, new, paths) for old, new in zip(then.data.sources, now.data.sources)
    )
    data = replace(
        updated(then.data, now.data, {*paths, "cache", "cache_size", "changed_files"}),
        sources=sources,
    )
    moved = updated(then, now, {"output_dir", "device", "loader"})
    whole = {"micro_batch_size": None, "max_num_tokens": None, "max_samples": None}
    return replace(moved, data=data, parallel=ParallelConfig(timeout=now.parallel.timeout), **whole)


def _run(
    session: RunSession,
    validation: ValidationData | None,
    stop: Stop,
    collection: RareCollection,
) -> int:
    """Train from the latest checkpoint, or from step 0, to the end."""
    with session:
        session.open_state()
        session.restore()
        complete = session.train(validation, stop, collection.as_usual)
        if complete and session.finish(stop):
            return DONE
    session.report_stop()
    return STOPPED
