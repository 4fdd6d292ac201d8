"""Optional packages (the extras of the distributions), and the error for one that is not installed.

A module that needs one imports it inside `optional_imports()`.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from understudy_base.errors import UnderstudyError

EXTRAS = {
    "remote": ("requests", "urllib3"),
    "hub": ("huggingface_hub",),
    "s3": ("s3fs",),
    "ray": ("ray",),
    "torchcodec": ("torchcodec",),
    "import": ("rosbags", "h5py", "zarr"),
    "rerun": ("rerun",),
    "pi05": ("sentencepiece", "tokenizers"),
    "demo": ("mujoco",),
    "sim": ("metaworld",),
    "gymnasium": ("gymnasium",),
    "libero": ("libero",),
    "lerobot": ("lerobot", "diffusers", "transformers", "num2words"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "jax-weights": ("tensorstore",),
}
"""Extra -> modules that it installs, without those of the extras that it includes."""
INCLUDES = {"sim": ("demo",), "hub": ("remote",), "s3": ("remote",)}
"""Extra -> other extras that it includes."""
OWNERS = {
    **dict.fromkeys(("remote", "hub", "s3", "ray", "torchcodec"), "understudy-data"),
    **dict.fromkeys(("import", "rerun"), "understudy-tools"),
    "pi05": "understudy",
    **dict.fromkeys(("demo", "sim", "gymnasium", "libero"), "understudy-robot"),
    **dict.fromkeys(("lerobot", "onnx", "jax-weights"), "understudy-zoo"),
}
"""Extra -> the distribution that has it. pip adds it to a distribution that is installed, wherever
that came from.
"""
ADDRESS = "git+https://github.com/understudy-robotics/understudy"
"""Where the distributions are: on no index yet, where a short name could be that of somebody else's
package.
"""
_DOORS = {"tools": "tools", "understudy": "train", "robot": "robot", "zoo": "zoo"}
PIP_LINES = {
    wheel: f"pip install 'understudy-wheels[{door}] @ {ADDRESS}'" for wheel, door in _DOORS.items()
}
"""Distribution of this project -> the line that installs it."""


class MissingExtraError(UnderstudyError, ModuleNotFoundError):
    """A package is not installed; the message is one line with the pip command that installs it."""


def require(*extras: str) -> None:
    """Raise MissingExtraError, with one command for all, unless all modules of `extras` are
    installed. Imports none.
    """
    lacking = dict.fromkeys(extra for extra in extras if not is_installed(extra))
    if not lacking:
        return
    included = set[str]().union(*map(_included, lacking))
    named = [extra for extra in lacking if extra not in included]
    modules = _modules(next(iter(lacking)))
    raise missing_extra(next(filter(_is_missing, modules)), *named)


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
    if extra is None or not _is_missing(name):
        return None
    return missing_extra(name, extra)


def describe_old_numpy(error: ImportError) -> MissingExtraError | None:
    """Return one line for a package that asks for numpy 2 where an older one is installed; None for
    other errors.
    """
    have = _version("numpy")
    is_about_numpy = "numpy" in str(error).lower() and not isinstance(error, ModuleNotFoundError)
    if not is_about_numpy or not re.match(r"[01]\.", have):
        return None
    # pyarrow's error has no name, but begins with it: "pyarrow requires NumPy 2.0 or newer, found
    # 1.26.4"
    package = (error.name or str(error)).replace(".", " ").split()[0]
    if not (newest := _version(package)):
        package = "a compiled package"
        newest = f"({error})"
    newer = f"{package} {newest}"
    older = "'pyarrow<26'" if package == "pyarrow" else f"an older release of {package}"
    fix = f"pip install 'numpy>=2', or {older}"
    return MissingExtraError(f"numpy {have} is too old for {newer}: {fix}", name=package)


def _version(package: str) -> str:
    # slow to import, and for this error alone
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def missing_extra(module: str, *extras: str) -> MissingExtraError:
    """Return the error for what extras install.

    Args:
        module: the missing module, or words for what is missing.
        extras: one, or more.
    """
    line = pip_line(*extras)
    if "lerobot" in extras and sys.version_info < (3, 12):
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        fix = f"make an environment with Python 3.12, then: {line}"
        return MissingExtraError(
            f"{module} needs Python 3.12 or newer, and this is {python}: {fix}", name=module
        )
    return MissingExtraError(f"{module} is not installed: {line}", name=module)


def pip_line(*extras: str) -> str:
    """Return the command that installs extras: `pip install 'understudy-data[s3]'`."""
    groups: dict[str, list[str]] = {}
    for extra in extras:
        groups.setdefault(OWNERS[extra], []).append(extra)
    wanted = [f"'{owner}[{','.join(names)}]'" for owner, names in groups.items()]
    return f"pip install {' '.join(wanted)}"


def missing_distribution(what: str, distribution: str) -> MissingExtraError:
    """Return the error for what a distribution of this project has.

    Args:
        what: words for what is missing.
        distribution: a key of `PIP_LINES`.
    """
    return MissingExtraError(
        f"{what} is not installed: {PIP_LINES[distribution]}", name=distribution
    )


def _modules(extra: str) -> list[str]:
    modules = [*EXTRAS[extra]]
    for other in INCLUDES.get(extra, ()):
        modules += _modules(other)
    return modules


def _included(extra: str) -> set[str]:
    included: set[str] = set()
    for other in INCLUDES.get(extra, ()):
        included |= {other, *_included(other)}
    return included


def _is_missing(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ValueError:  # a stub in sys.modules without a spec
        return True
