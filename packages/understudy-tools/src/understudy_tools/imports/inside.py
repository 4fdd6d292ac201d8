"""Links that leave the file or folder of an import are not followed: their target is a file of the
reader.

The hub's cache is the exception: its snapshots consist of links to `blobs` beside them.
"""

import os
from pathlib import Path

from understudy_tools.imports.recording import RecordingError


def require_inside(path: Path, root: Path) -> None:
    """Check that a path below a folder is in it once all links are followed.

    Args:
        path: a file or folder below `root`.
        root: the folder that the user named, itself a link or not.

    Raises:
        RecordingError: kind `link`; it leads out of `root`.
    """
    real = os.path.realpath(path)
    base = os.path.realpath(root)
    if (
        real == base
        or real.startswith(base.rstrip(os.sep) + os.sep)
        or _is_blob(Path(real), Path(base))
    ):
        return
    problem = f"{path} leads to {real}, outside of {root}"
    raise RecordingError(
        "link",
        problem,
        fix="links are not followed: copy the file into the folder, or give it alone",
    )


def _is_blob(real: Path, base: Path) -> bool:
    """Return whether a file is a blob of the cached repository that a real folder is a snapshot
    of.
    """
    for folder in (base, *base.parents):
        if folder.parent.name == "snapshots":
            return real.parent == folder.parent.parent / "blobs" and not os.path.islink(real.parent)
    return False
