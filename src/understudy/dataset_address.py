"""Addresses of datasets with a view: `PATH#NAME` for its latest version, `PATH#NAME@VERSION` for that one."""

import os
import re

NAME = r"[A-Za-z][\w-]*"
"""Pattern of the name of a view."""
_ADDRESS = re.compile(rf"(.+)(#{NAME}(?:@[1-9]\d*)?)", re.DOTALL)


def split_view(address: str) -> tuple[str, str]:
    """Split an address into that of the dataset and `#NAME` or `#NAME@VERSION`; "" without a view.

    A local path that exists with this name is no view.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or ("://" not in address and os.path.exists(os.path.expanduser(address))):
        return address, ""
    return match[1], match[2]
