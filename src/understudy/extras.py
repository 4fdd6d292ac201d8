"""The packages that only a part of understudy needs, and the one line about one of them that is not installed.

The core (reading, loading, writing, order, policies, the optimizers) needs none of them. A module that does imports it
inside `required()`, or from `config/declare.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from understudy.errors import UnderstudyError

EXTRAS = {
    "train": ("pydantic", "annotated_types", "tyro", "yaml", "tqdm"),
    "report": ("matplotlib",),
    "remote": ("requests", "urllib3"),
    "hub": ("huggingface_hub",),
    "s3": ("s3fs",),
    "demo": ("mujoco", "gymnasium"),
    "sim": ("metaworld",),
}
"""Extra -> the modules that it brings, besides those of the extras that it includes."""
INCLUDES = {"report": ("train",), "demo": ("report",), "sim": ("demo",), "hub": ("remote",), "s3": ("remote",)}


class MissingExtraError(UnderstudyError, ModuleNotFoundError):
    """A package is not installed; the message is one line with the pip command that brings it."""


def require(extra: str) -> None:
    """Raise MissingExtra unless all that `extra` brings is installed. Imports nothing."""
    absent = next(filter(_absent, _modules(extra)), None)
    if absent is not None:
        raise _error(absent, extra)


def is_installed(extra: str) -> bool:
    """Whether all that `extra` brings is installed. Imports nothing."""
    return not any(map(_absent, _modules(extra)))


@contextmanager
def optional_imports() -> Iterator[None]:
    """A block of imports: a package of an extra that is not installed becomes a MissingExtra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if known := describe_missing(error):
            raise known from error
        raise


def describe_missing(error: ImportError) -> MissingExtraError | None:
    """The same as one line, or None: what could not be imported is no package of an extra."""
    if isinstance(error, MissingExtraError):
        return error
    name = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if name in modules), None)
    return None if extra is None or not _absent(name) else _error(name, extra)


def _error(module: str, extra: str) -> MissingExtraError:
    return MissingExtraError(f"{module} is not installed: pip install 'understudy[{extra}]'", name=module)


def _modules(extra: str) -> list[str]:
    return [*EXTRAS[extra], *(module for other in INCLUDES.get(extra, ()) for module in _modules(other))]


def _absent(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ValueError:  # somebody's stand-in in sys.modules, without a spec
        return True
