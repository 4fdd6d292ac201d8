"""Addresses of datasets with a view: `PATH#NAME` for its latest version, `PATH#NAME@VERSION` for
that one.
"""

import glob
import os
import re

VIEW_NAME = r"[A-Za-z][\w-]*"
"""Pattern of the name of a view."""
LIST_SUFFIX = ".csv"
"""Suffix of list files, whose rows are sources of a run."""
_PUBLICATION = re.compile(r"@[1-9]\d*$")
_ADDRESS = re.compile(rf"(.+)(#{VIEW_NAME}(?:@[1-9]\d*)?)", re.DOTALL)


def split_view(address: str) -> tuple[str, str]:
    """Split an address into that of the dataset and `#NAME` or `#NAME@VERSION`; "" without a view.

    A local path that exists with this name is no view.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or ("://" not in address and os.path.exists(os.path.expanduser(address))):
        return address, ""
    return match[1], match[2]


def absolute_path(path: str) -> str:
    """Return the absolute path of a local file or folder, `~` expanded and each `..` folded.

    A `..` behind a link leads to the parent of the folder that the link names, as everywhere on the
    system, not to the folder that has the link.
    """
    expanded = os.path.expanduser(path)
    parts = expanded.split(os.sep)
    folded = os.path.abspath(expanded)
    if os.pardir not in parts:
        return folded
    after = len(parts) - parts[::-1].index(os.pardir)
    parent = os.sep.join(parts[:after])
    target = os.path.realpath(parent)
    if os.path.realpath(os.path.abspath(parent)) == target:
        return folded
    return os.path.normpath(os.path.join(target, *parts[after:]))


def is_several(address: str) -> bool:
    """Return whether an address stands for several datasets: a glob that is no folder itself, or a
    list file.
    """
    if "://" in address or "\0" in address:
        return False
    path = os.path.expanduser(split_view(address)[0])
    if os.path.isdir(path) or os.path.isdir(_PUBLICATION.sub("", path)):
        return False
    return is_list(address) or glob.has_magic(path)


def is_list(address: str) -> bool:
    """Return whether an address has the suffix of a list file."""
    return address.lower().endswith(LIST_SUFFIX)
