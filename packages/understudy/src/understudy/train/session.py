"""The training of a run on one process, from its latest checkpoint to its end.

A `RunSession` reads the record of the run, makes the training state, restores it, and opens what
the training writes to: the checkpoints, the metrics and the hooks. It closes them in the reverse
sequence.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from understudy.config.train import TrainConfig
from understudy.distributed.mesh import Mesh
from understudy.policies.policy_folder import check_unchanged
from understudy.train import precision
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.checkpoint import Saver
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.input_contract import with_provenance
from understudy.train.data.run_data import RunData, make_loader
from understudy.train.data.updates import write_update
from understudy.train.data.versions_read import versions_read
from understudy.train.loop import (
    gather_weights,
    make_pending_validation,
    run_steps,
)
from understudy.train.run_hooks import RunHooks, check_hooks, open_hooks
from understudy.train.run_record import current_order, load_initial_weights
from understudy.train.startup_summary import describe_trainable, startup_summary
from understudy.train.state import TrainState, init_train_state
from understudy.train.track.metrics_file import read_verdict
from understudy.train.track.trackers import MetricsLog
from understudy_base import Record
from understudy_data import BatchMixing, RemoteOptions, Substitution, ValidationData
from understudy_kit import Stop, plain

logger = logging.getLogger(__name__)


class RunSession:
    """A run on this process; every process of the run has one.

        with session:
            session.open_state()
            session.restore()
            if session.train(validation, stop, started) and session.finish(stop):
                ...

    Args:
        run: its folder.
        config: its settings.
        then: the settings of its latest checkpoint, or of its start.
        data: its data.
        mesh: its processes.

    Raises:
        ConfigError: the record of the run or its order cannot be read, or the files of its policy
            changed; on all ranks.
    """

    state: TrainState
    """From `open_state` on; from `restore` on at the step of the latest checkpoint."""
    _saver: Saver
    _log: MetricsLog
    _hooks: RunHooks

    def __init__(
        self, run: RunDir, config: TrainConfig, then: TrainConfig, data: RunData, mesh: Mesh
    ) -> None:
        self.run = run
        self.config = config
        self.data = data
        self.mesh = mesh
        self._opened = ExitStack()
        torch.set_num_threads(config.torch_threads)
        self.latest = mesh.first(lambda: checkpoint.find_latest(run.checkpoints))
        """The latest checkpoint; None at the start."""
        self._weights = None
        self._dtypes = None
        self.saved: dict[str, Any] | None = None
        """state.json of the latest checkpoint."""
        with mesh.together():
            self.record = run.read_record()
            """Content of order.json."""
            check_unchanged(data.policy_config(config), self.record.get("policy_files", {}))
            if self.latest is not None:
                self.saved = checkpoint.read_state(self.latest)
            self.order = current_order(self.record, self.saved, then, config, data, where=run.order)
            if self.latest is None:
                self._weights = load_initial_weights(config, data, self.record)
            else:
                self._dtypes = frozen_dtypes(self.latest)
        mesh.first(lambda: check_hooks(config, self.record))

    def __enter__(self) -> "RunSession":
        return self

    def __exit__(self, *raised: Any) -> None:
        self._opened.__exit__(*raised)

    @property
    def position(self) -> int:
        """First position to load."""
        return self.saved["position"] if self.saved else 0

    def open_state(self) -> None:
        """Make the training state with its initial weights, and log what is trained on what.

        Raises:
            ConfigError: the weights cannot be used.
        """
        self.state = init_train_state(
            self.config,
            self.data,
            self.record["normalisation"],
            self.mesh,
            self._weights,
            self._dtypes,
            check_files=True,
        )
        if self.mesh.rank == 0:
            self._describe()

    def _describe(self) -> None:
        summary = startup_summary(
            self.config, self.data, self.order, self.state.policy, self.record["files"]
        )
        lines = [*_precision_table(self.state), *describe_trainable(self.state), *summary]
        logger.info("\n".join(lines))
        first = self.saved["position"] if self.saved else self.order.start
        mixing = BatchMixing.measure(self.order, self.data.training, first)
        logger.info("%s", mixing)
        if mixing.advice:
            logger.warning(mixing.advice)

    def restore(self) -> None:
        """Load the latest checkpoint, and open what the training writes to.

        What an earlier process wrote behind the checkpoint is taken back.

        Raises:
            CheckpointError: it cannot be loaded.
        """
        run = self.run
        checkpoints = Saver.of_run(run.checkpoints, self.config.checkpoint)
        self._saver = self._opened.enter_context(closing(checkpoints))
        if self.latest is not None:
            self.saved = load_checkpoint(self.state, self._saver, self.latest)
            if self.mesh.rank == 0:
                logger.info("resume: from %s, position %s", self.latest.name, self.position)
        is_first = self.mesh.rank == 0
        with self.mesh.together():
            trackers = self.config.log.trackers
            settings = plain(self.config)
            log = MetricsLog(run.root, trackers, settings, self.state.step, writes=is_first)
            self._log = self._opened.enter_context(closing(log))
            hooks = open_hooks(run, self.config, self.record, self.state.step, first=is_first)
            self._hooks = self._opened.enter_context(closing(hooks))
        self.state.begin(self.saved, self.position, self.data.weights, versions_read(self.data))
        self.state.updates = self.mesh.first(self._write_update)
        self.mesh.first(lambda: Substitution.truncate_journals(run.root, self.position))

    def _write_update(self) -> list[Record]:
        cache = Path(RemoteOptions(cache=self.config.data.cache).folder)
        return write_update(self.run, self.record, self.data, self.order, self.saved or {}, cache)

    def train(
        self, validation: ValidationData | None, stop: Stop, started: Callable[[], None]
    ) -> bool:
        """Train until the last step, or until a stop; return whether the last step was done.

        Args:
            validation: the validation frames.
            stop: noted signals.
            started: called when all is open, before the first step.
        """
        journal = self.run.substitutions(self.mesh.rank)
        with make_loader(
            self.config,
            self.data,
            self.order,
            self.mesh,
            self.position,
            self.state.prepare,
            journal,
        ) as loader:
            self._saver.prune()
            started()
            # from here on there is something to save
            stop.at_once = False
            stop.begun = True
            if validation is not None:
                validation = validation.keep_decoded(loader.spare_bytes)
            complete = self._validate_pending(validation, stop) and run_steps(
                self.state, validation, loader, self._saver, self._hooks, self._log, stop
            )
            self._saver.wait()
            if count := len(loader.substitutions):
                logger.warning(
                    "%s samples could not be read and were substituted: %s", count, journal
                )
        if self.mesh.rank == 0 and (verdict := read_verdict(self.run.metrics)) is not None:
            logger.info("%s", verdict)
        return complete

    def _validate_pending(self, validation: ValidationData | None, stop: Stop) -> bool:
        """Make the validation that the latest checkpoint lacks; return whether it was completed."""
        if validation is None or self.latest is None:
            return True
        if not (self.saved or {}).get(checkpoint.PENDING):
            return True
        return make_pending_validation(
            self.state, validation, self._saver, self._log, stop, self.latest
        )

    def finish(self, stop: Stop) -> bool:
        """Export the policy and wait for the hooks; return whether they are done."""
        _export_policy(self.run, self.state, self.record)
        return self._hooks.wait_until_done(self._log, self.mesh, stop)

    def report_stop(self) -> None:
        """Say how to go on, and remove the file that asked for the stop."""
        if self.mesh.rank == 0:
            self.run.stop.unlink(missing_ok=True)
            logger.warning(
                "stopped at step %s of %s: understudy resume %s",
                self.state.step,
                self.config.steps,
                self.run.root,
            )


def _export_policy(run: RunDir, state: TrainState, record: Record) -> None:
    weights = gather_weights(state)
    facts = with_provenance(record.get("metadata"), run.root, state.step)
    state.mesh.first(lambda: state.eval_policy.save(run.policy, weights, facts))
    latest = checkpoint.find_latest(run.checkpoints)
    if state.mesh.rank == 0 and latest is not None:
        choice = checkpoint.describe_choice(latest, state.config.checkpoint.keep_best)
        logger.info("%s: %s", run.policy, choice)


def frozen_dtypes(path: Path) -> dict[str, torch.dtype]:
    """Dtypes of the weights of a checkpoint that are not trained: they have no moments."""
    dtypes = checkpoint.tensor_dtypes(path)
    kind = "weights/"
    names = [name.removeprefix(kind) for name in dtypes if name.startswith(kind)]
    trained = set(checkpoint.read_state(path).get(checkpoint.TRAINED, ()))  # of weights alone
    trained |= {name for name in names if f"exp_avg/{name}" in dtypes}
    return {name: dtypes[kind + name] for name in names if name not in trained}


def load_checkpoint(state: TrainState, saver: Saver, path: Path) -> dict[str, Any]:
    """Load a checkpoint, or the weights of the best validation alone, into `state`; returns its
    state.json.
    """
    tensors = state.tensors()
    is_whole = checkpoint.BEST_NAME.fullmatch(path.name) is None
    names = tensors.keys() if is_whole else precision.export_names(tensors).values()
    saved = saver.load(path, {name: tensors[name] for name in names})
    precision.restore(state.policy, state.optimizer, tensors, state.average)
    state.step = saved["step"]
    return saved


def _precision_table(state: TrainState) -> list[str]:
    """Table of dtypes and bytes, below a line about the mesh."""
    replicas, shards = state.mesh.shape
    world_size = state.mesh.world_size
    device = state.mesh.device.type
    processes = f"1 process on {device}"
    if world_size > 1:
        processes = f"{world_size} processes on {device}: {replicas} x {shards} (replicas x shards)"
    compute = state.policy.config.compute
    return [
        processes,
        precision.table(state.policy, state.optimizer, state.average, compute),
    ]
