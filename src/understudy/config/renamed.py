"""Old names of settings. Files, flags and records of earlier runs that use them are accepted for one release.

A settings class lists its old names in `RENAMED` (old dotted path -> new one, `*` for each item of a list) and its
removed settings in `REMOVED` (path -> the only value that is still accepted). `schema.validate` applies both tables
before it checks anything; the command line applies the first one to flags.
"""

import copy
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from understudy.errors import ConfigError

Path = tuple[str | int, ...]


class OldNameWarning(FutureWarning):
    """A setting or flag is given by its old name. A FutureWarning: Python hides DeprecationWarning outside __main__."""


TRAIN = {
    "out": "output_dir",
    "batch": "batch_size",
    "micro_batch": "micro_batch_size",
    "max_skipped": "max_skipped_steps",
    "threads": "torch_threads",
    "loader_threads": "loader.num_threads",
    "loader.threads": "loader.num_threads",
    "memory": "loader.memory",
    "checkpoint_every": "checkpoint.every",
    "keep": "checkpoint.keep_last",
    "keep_best": "checkpoint.keep_best",
    "async_save": "checkpoint.async_save",
    "val_every": "val.every",
    "val_frames": "val.frames",
    "val_open_loop": "val.open_loop_every",
    "log_every": "log.every",
    "trackers": "log.trackers",
    "report": "log.report",
    "data.chunk": "data.chunk_size",
    "data.order": "data.shuffle",
    "data.keep": "data.keep_ranges",
    "data.on_incomplete_episode": "data.on_bad_episode",
    "data.sources.*.on_incomplete_episode": "data.sources.*.on_bad_episode",
    "data.delta": "data.delta_action_dims",
    "data.normalise": "data.normalize",
    "data.drop_first": "data.drop_n_first_frames",
    "data.drop_last": "data.drop_n_last_frames",
    "data.sources.*.drop_first": "data.sources.*.drop_n_first_frames",
    "data.sources.*.drop_last": "data.sources.*.drop_n_last_frames",
    "data.sources.*.keep": "data.sources.*.keep_ranges",
    "data.sources.*.delta": "data.sources.*.delta_action_dims",
    "policy.picture": "policy.image_size",
    "policy.points": "policy.keypoints",
    "policy.draws": "policy.noise_samples",
    "optim.clip": "optim.grad_clip_norm",
    "schedule.warmup": "schedule.warmup_steps",
    "schedule.final": "schedule.final_lr_ratio",
    "schedule.steps": "schedule.decay_steps",
}
"""Of `TrainConfig`, without its rollouts."""

ROLLOUT = {
    "world": "env",
    "execute": "action_steps",
    "steps": "sampling_steps",
    "size": "image_size",
    "parallel": "num_envs",
}
"""Of `RolloutConfig`; in `TrainConfig` behind `rollout.`."""


def within(group: str, table: Mapping[str, str]) -> dict[str, str]:
    """The table of a group, with paths from the settings around it."""
    return {f"{group}.{old}": f"{group}.{new}" for old, new in table.items()}


def current_names(cls: type, content: Mapping[str, Any], where: object = None, warn: bool = True) -> dict[str, Any]:
    """Return settings in which every old name is replaced by the new one.

    Args:
        cls: the settings class; without `RENAMED` nothing is replaced.
        content: settings as read from a file; not changed.
        where: the file, for messages.
        warn: whether to warn about old names; one OldNameWarning names all of them.

    Raises:
        ConfigError: a setting is given under both names, or a removed setting has another value than its last default.
    """
    result, used, wrong = copy.deepcopy(dict(content)), [], []
    renamed: Mapping[str, str] = getattr(cls, "RENAMED", {})
    for old, new in renamed.items():
        for path in list(_paths(result, tuple(old.split(".")))):
            indexes = iter([part for part in path if isinstance(part, int)])
            target: Path = tuple(next(indexes) if part == "*" else part for part in new.split("."))
            parent = _make_groups(result, target)
            if parent is None:
                continue  # the value of that group is not a mapping; pydantic reports it
            if target[-1] in parent:
                wrong.append(f"{_dotted(path)}: old name of {_dotted(target)}, which is also given; remove this one")
                continue
            parent[target[-1]] = _pop(result, path)
            used.append(f"{_dotted(path)} is now {_dotted(target)}")
    removed: Mapping[str, Any] = getattr(cls, "REMOVED", {})
    for name, accepted in removed.items():
        for path in list(_paths(result, tuple(name.split(".")))):
            if (value := _pop(result, path)) != accepted:
                wrong.append(f"{name}: {value}: this setting was removed; runs behave as with {accepted!r}")
            else:
                used.append(f"{name} was removed")
    head = f"{where}: " if where is not None else ""
    if wrong:
        raise ConfigError("\n".join([f"{head}{wrong[0]}", *(f"  {line}" for line in wrong[1:])]))
    if used and warn:
        _warn(f"{head}{'; '.join(used)}")
    return result


def current_flags(cls: type, arguments: list[str]) -> list[str]:
    """Return command-line arguments in which every flag of an old name is replaced by the new flag, with a warning."""
    renamed: Mapping[str, str] = getattr(cls, "RENAMED", {})
    flags = {f"--{_dashed(old)}": f"--{_dashed(new)}" for old, new in renamed.items()}
    for old, to in list(flags.items()):
        group, dot, name = to.removeprefix("--").rpartition(".")
        flags[f"--no-{old.removeprefix('--')}"] = f"--{group}{dot}no-{name}"
    result, used = [], []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        new = flags.get(_dashed(flag)) if flag.startswith("--") else None
        if new is not None:
            used.append(f"{flag} is now {new}")
            argument = f"{new}{equals}{value}"
        result.append(argument)
    if used:
        _warn("; ".join(used))
    return result


def _warn(text: str) -> None:
    warnings.warn(f"{text}; old names go with version 0.3", OldNameWarning, stacklevel=4)


def _paths(content: Any, path: Path, done: Path = ()) -> Iterator[Path]:
    """Concrete paths in `content` that match `path`."""
    if not path:
        yield done
    elif path[0] == "*":
        for number, item in enumerate(content if isinstance(content, list | tuple) else ()):
            yield from _paths(item, path[1:], (*done, number))
    elif isinstance(content, Mapping) and path[0] in content:
        yield from _paths(content[path[0]], path[1:], (*done, path[0]))


def _make_groups(content: Any, path: Path) -> dict[Any, Any] | None:
    """Return the mapping that holds the last name of `path`; None where a value that is no mapping is in the way."""
    for part in path[:-1]:
        content = content[part] if isinstance(part, int) else content.setdefault(part, {})
        if not isinstance(content, dict | list):
            return None
    return content if isinstance(content, dict) else None


def _pop(content: Any, path: Path) -> Any:
    for part in path[:-1]:
        content = content[part]
    return content.pop(path[-1])


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _dashed(name: str) -> str:
    return name.replace("_", "-")
