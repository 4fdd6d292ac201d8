"""`understudy --version -v`: what is installed, and whether pictures are decoded natively. Imports no torch."""

import platform
import sys
from importlib import metadata

PACKAGES = ("torch", "numpy", "av", "pyarrow")


def versions() -> str:
    """Lines of name and version, of the libraries of FFmpeg and of the state of `UNDERSTUDY_NATIVE` too."""
    found = {"python": f"{platform.python_version()} on {sys.platform} {platform.machine()}"}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    try:
        import av
    except ImportError as error:
        found["native"] = f"not used: PyAV cannot be imported ({error})"
    else:
        libraries = {name: ".".join(map(str, version)) for name, version in sorted(av.library_versions.items())}
        found["ffmpeg"] = ", ".join(f"{name} {version}" for name, version in libraries.items())
        found["native"] = _native()
    return "\n".join(f"{name:<10} {text}" for name, text in found.items())


def _native() -> str:
    from understudy.errors import DatasetError
    from understudy.video.native.loops import loops_status

    try:
        status = loops_status()
    except DatasetError as error:
        return str(error)
    if status.library is None:
        return f"not used: {status.reason}" + (f" ({status.fix})" if status.fix else "")
    return "used: compiled loops, and RGB written straight into the batch"
