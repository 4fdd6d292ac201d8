"""Optional packages (the extras of pyproject.toml), and the error for one that is not installed.

The core (reading, loading, writing, order, policies, optimizers) needs none of them. A module that does imports them
inside `optional_imports()`, or from `config/declare.py`.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from understudy_base.errors import UnderstudyError

EXTRAS = {
    "train": ("pydantic", "annotated_types", "yaml", "tqdm"),
    "remote": ("requests", "urllib3"),
    "hub": ("huggingface_hub",),
    "s3": ("s3fs",),
    "demo": ("mujoco",),
    "sim": ("metaworld",),
    "gymnasium": ("gymnasium",),
    "libero": ("libero",),
    "pi05": ("sentencepiece", "tokenizers"),
    "jax-weights": ("tensorstore",),
    "serve": ("websockets", "msgpack"),
    "ray": ("ray",),
    "rerun": ("rerun",),
    "import": ("rosbags", "h5py", "zarr"),
    "lerobot": ("lerobot", "diffusers", "transformers", "num2words"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
}
"""Extra -> modules that it installs, without those of the extras that it includes."""
INCLUDES = {
    "demo": ("train",),
    "sim": ("demo",),
    "gymnasium": ("train",),
    "libero": ("train",),
    "import": ("train",),
    "hub": ("remote",),
    "s3": ("remote",),
}
"""Extra -> other extras that it includes."""
PIP_LINES = dict.fromkeys(("tools", "understudy", "robot", "zoo"), "pip install understudy")
"""Distribution of this project -> the line that installs it. One distribution has all of them so far."""


class MissingExtraError(UnderstudyError, ModuleNotFoundError):
    """A package is not installed; the message is one line with the pip command that installs it."""


def require(*extras: str) -> None:
    """Raise MissingExtraError, with one command for all, unless all modules of `extras` are installed. Imports none."""
    lacking = [extra for extra in extras if not is_installed(extra)]
    if lacking:
        named = [extra for extra in lacking if not any(extra in _included(other) for other in lacking)]
        raise missing_extra(next(filter(_is_missing, _modules(lacking[0]))), ",".join(dict.fromkeys(named)))


def is_installed(extra: str) -> bool:
    """Return whether all modules of `extra` are installed. Imports none of them."""
    return not any(map(_is_missing, _modules(extra)))


@contextmanager
def optional_imports() -> Iterator[None]:
    """Turn a missing package of an extra inside the block into a MissingExtraError."""
    try:
        yield
    except ModuleNotFoundError as error:
        if missing := describe_missing(error):
            raise missing from error
        raise


def describe_missing(error: ImportError) -> MissingExtraError | None:
    """Return the MissingExtraError for an ImportError; None if the module belongs to no extra."""
    if isinstance(error, MissingExtraError):
        return error
    name = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if name in modules), None)
    return None if extra is None or not _is_missing(name) else missing_extra(name, extra)


def describe_old_numpy(error: ImportError) -> MissingExtraError | None:
    """Return one line for a package that asks for numpy 2 where an older one is installed; None for other errors."""
    have = _version("numpy")
    if isinstance(error, ModuleNotFoundError) or "numpy" not in str(error).lower() or not re.match(r"[01]\.", have):
        return None
    # pyarrow's error has no name, but begins with it: "pyarrow requires NumPy 2.0 or newer, found 1.26.4"
    package = (error.name or str(error)).replace(".", " ").split()[0]
    if not (newest := _version(package)):
        package, newest = "a compiled package", f"({error})"
    newer = f"{package} {newest}"
    older = "'pyarrow<26'" if package == "pyarrow" else f"an older release of {package}"
    fix = f"pip install 'numpy>=2', or {older}"
    return MissingExtraError(f"numpy {have} is too old for {newer}: {fix}", name=package)


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and for this error alone

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def missing_extra(module: str, extra: str) -> MissingExtraError:
    """Return the error for what an extra installs.

    Args:
        module: the missing module, or words for what is missing.
        extra: one or more extras, with commas.
    """
    if extra.split(",")[-1] == "lerobot" and sys.version_info < (3, 12):
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        fix = "make an environment with Python 3.12, then: pip install 'understudy[lerobot]'"
        return MissingExtraError(f"{module} needs Python 3.12 or newer, and this is {python}: {fix}", name=module)
    return MissingExtraError(f"{module} is not installed: pip install 'understudy[{extra}]'", name=module)


def missing_distribution(what: str, distribution: str) -> MissingExtraError:
    """Return the error for what a distribution of this project has.

    Args:
        what: words for what is missing.
        distribution: a key of `PIP_LINES`.
    """
    return MissingExtraError(f"{what} is not installed: {PIP_LINES[distribution]}", name=distribution)


def _modules(extra: str) -> list[str]:
    return [*EXTRAS[extra], *(module for other in INCLUDES.get(extra, ()) for module in _modules(other))]


def _included(extra: str) -> set[str]:
    return {name for other in INCLUDES.get(extra, ()) for name in (other, *_included(other))}


def _is_missing(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ValueError:  # a stub in sys.modules without a spec
        return True
