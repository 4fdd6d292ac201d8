"""Environments by name: `open_env("tabletop")`. Other packages add theirs by entry points of
`GROUP`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from understudy import GymnasiumOptions
from understudy_base import MissingExtraError, find_entry_points
from understudy_robot.envs.env import Env

ENVS = {
    "tabletop": ("tabletop:TabletopEnv", "demo"),
    "recall": ("recall:RecallEnv", "sim"),
    "metaworld": ("metaworld:MetaWorldEnv", "sim"),
    **{
        f"libero_{suite}": ("libero:LiberoEnv", "libero")
        for suite in ("spatial", "object", "goal", "10", "90")
    },
}
"""Environment -> its module and class, and the extra that it needs."""
GYMNASIUM = "gymnasium:"
GROUP = "understudy.envs"
"""Entry points of other packages: name -> function (size, cameras, tasks) -> `Env`, as in
`open_env`.
"""


def open_env(
    name: str,
    size: int | None = None,
    cameras: Sequence[str] | None = None,
    tasks: Sequence[str] = (),
    gymnasium: GymnasiumOptions | None = None,
) -> Env:
    """Make a fresh environment.

    Args:
        name: One of `ENVS`, an entry point of `GROUP`, or `gymnasium:ID`.
        size: Height and width of the images; None is the environment's default.
        cameras: Cameras to render; None is the environment's default.
        tasks: Short names ("red", "lit", "push-v3") or sentences; empty is all of them. Of a
            Gymnasium ID its text.
        gymnasium: Settings of a Gymnasium ID.

    Raises:
        ValueError: Unknown name, camera or task, or settings that do not fit.
        MissingExtraError: The simulator is not installed; the message names the extra that installs
            it.
    """
    options = gymnasium or GymnasiumOptions()
    if name.startswith(GYMNASIUM):
        make = _built_in(name, "gymnasium:GymnasiumEnv", "gymnasium")
        return make(name.removeprefix(GYMNASIUM), size, cameras, tasks, options)
    if options != GymnasiumOptions():
        raise ValueError(f"gymnasium: settings of environments {GYMNASIUM}ID; env is {name!r}")
    if name in ENVS:
        make = _built_in(name, *ENVS[name])
        if name.startswith("libero_"):
            make = partial(make, name)
        return make(size, cameras, tasks)
    points = find_entry_points(GROUP)
    if name not in points:
        raise ValueError(
            f"env: unknown environment {name!r}; known: {', '.join([*ENVS, *points])}, "
            f"{GYMNASIUM}ID"
        )
    env: Env = points[name].load()(size, cameras, tasks)
    return env


def _built_in(name: str, target: str, extra: str) -> Callable[..., Env]:
    """Import the class of an environment; raises MissingExtraError."""
    module, _, kind = target.partition(":")
    try:
        factory: Callable[..., Env] = getattr(
            import_module(f"understudy_robot.envs.{module}"), kind
        )
    except ModuleNotFoundError as error:
        message = (
            f"the environment {name!r} needs {error.name}: pip install 'understudy-robot[{extra}]'"
        )
        raise MissingExtraError(message, name=error.name) from error
    return factory
