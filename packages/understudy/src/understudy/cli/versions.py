"""`understudy --version -v`: installed versions, and whether images are decoded natively. Imports
no torch.
"""

import platform
import sys
from importlib import metadata

PACKAGES = ("torch", "numpy", "av", "pyarrow")


def versions() -> str:
    """Format the versions of Python, packages and FFmpeg's libraries, and the state of
    `UNDERSTUDY_NATIVE`.
    """
    entries = {"python": f"{platform.python_version()} on {sys.platform} {platform.machine()}"}
    for name in PACKAGES:
        try:
            entries[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            entries[name] = "not installed"
    try:
        import av
    except ImportError as error:
        entries["native"] = f"not used: PyAV cannot be imported ({error})"
    else:
        libraries = {
            name: ".".join(map(str, version))
            for name, version in sorted(av.library_versions.items())
        }
        entries["ffmpeg"] = ", ".join(f"{name} {version}" for name, version in libraries.items())
        entries["native"] = _native()
    return "\n".join(f"{name:<10} {text}" for name, text in entries.items())


def _native() -> str:
    from understudy_base import DatasetError
    from understudy_data import loops_status

    try:
        native = loops_status()
    except DatasetError as error:
        return str(error)
    if native.library is None:
        fix = f" ({native.fix})" if native.fix else ""
        return f"not used: {native.reason}{fix}"
    return "used: compiled loops, RGB conversion straight into the batch"
