"""Work beside the training of a run, by entry points of the group `understudy.run_hooks`: rollouts,
say.

An entry point is a `HookType`. Each run opens all hooks that are installed; what a hook does is
decided by the settings and the run's files.
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any, Protocol

from understudy.config.train import TrainConfig
from understudy.distributed.mesh import Mesh
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.track.trackers import MetricsLog
from understudy_base import ConfigError, Record, find_entry_points, missing_distribution
from understudy_kit import Stop

GROUP = "understudy.run_hooks"
"""Group of the entry points."""
ROLLOUTS = "rollouts"
"""Entry point of the rollouts of `TrainConfig.rollout`, of the distribution `robot`."""


class RunHook(Protocol):
    """Work beside the training of one run. The ranks make the same calls, in the same sequence."""

    def due(self, step: int) -> bool:
        """Return whether this step is one of the hook; the same on all ranks."""

    def enqueue(self, step: int, policy: Any, weights: Record) -> None:
        """Take the weights of a step that is due.

        Args:
            step: the step.
            policy: its `save` writes the weights.
            weights: whole tensors by name; on rank 0 alone.
        """

    def poll(self, log: MetricsLog, step: int, last: bool = False) -> bool:
        """Log what is finished, begin what is next, and return whether any work is left.

        Args:
            log: the metrics.
            step: current step of the training.
            last: whether this is the last step that is logged.
        """

    def wait_until_done(self, log: MetricsLog, mesh: Mesh, stop: Stop) -> bool:
        """Wait until no work is left; return False after a stop request."""

    def close(self) -> None:
        """End the work; what is left waits for the run to resume."""


class HookType(Protocol):
    """Object of an entry point."""

    def check(self, config: TrainConfig, record: Record) -> None:
        """Raise ConfigError where these settings cannot work here: otherwise that shows hours
        later.

        Args:
            config: the settings.
            record: order.json.
        """

    def __call__(
        self, run: RunDir, config: TrainConfig, record: Record, step: int, first: bool
    ) -> RunHook:
        """Make the hook of a run.

        Args:
            run: the run directory.
            config: the settings.
            record: order.json.
            step: step at which the run resumes.
            first: False on all ranks but one.
        """


class RunHooks:
    """All hooks of a run, as one."""

    def __init__(self, hooks: Sequence[RunHook]) -> None:
        self._hooks = hooks

    def due(self, step: int) -> bool:
        """Return whether this step is one of any hook."""
        return any(hook.due(step) for hook in self._hooks)

    def enqueue(self, step: int, policy: Any, weights: Record) -> None:
        """Give the weights of a step to the hooks for which it is due."""
        for hook in self._hooks:
            if hook.due(step):
                hook.enqueue(step, policy, weights)

    def poll(self, log: MetricsLog, step: int) -> None:
        """Let each hook log what is finished, and begin what is next."""
        for hook in self._hooks:
            hook.poll(log, step)

    def wait_until_done(self, log: MetricsLog, mesh: Mesh, stop: Stop) -> bool:
        """Wait until no work is left; return False after a stop request."""
        return all(hook.wait_until_done(log, mesh, stop) for hook in self._hooks)

    def close(self) -> None:
        """End the work of all hooks, also where one fails."""
        with ExitStack() as stack:
            for hook in self._hooks:
                stack.enter_context(closing(hook))


def check_rollout_settings(config: TrainConfig) -> None:
    """Check the rollouts of resolved settings.

    Raises:
        ConfigError: a rollout would execute more actions than a chunk has.
        MissingExtraError: the run has rollouts, and their package is not installed.
    """
    if problems := config.rollout_problems():
        raise ConfigError("\n".join(problems))
    if config.rollout.every and ROLLOUTS not in find_entry_points(GROUP):
        raise missing_distribution(
            f"rollout.every: {config.rollout.every}: the package of rollouts", "robot"
        )


def check_hooks(config: TrainConfig, record: Record) -> None:
    """Check that all hooks can work here; raises as `HookType.check` and `check_rollout_settings`
    do.
    """
    check_rollout_settings(config)
    for kind in _types():
        kind.check(config, record)


def open_hooks(
    run: RunDir, config: TrainConfig, record: Record, step: int, first: bool
) -> RunHooks:
    """Make the hooks of a run; arguments and errors are those of `HookType`.

    Where one cannot be made, those before it are closed.
    """
    hooks: list[RunHook] = []
    with ExitStack() as opened:
        for kind in _types():
            hook = kind(run, config, record, step, first)
            opened.enter_context(closing(hook))
            hooks.append(hook)
        opened.pop_all()  # the caller closes them
    return RunHooks(hooks)


def _types() -> list[HookType]:
    return [point.load() for point in find_entry_points(GROUP).values()]
