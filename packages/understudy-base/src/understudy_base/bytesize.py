"""Sizes in bytes, as text. Imports no torch, so that settings are checked before anything heavy is
loaded.
"""

import re

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(size: int | str) -> int:
    """Return the bytes of a number, or of text such as "4GB", "512 MiB" or "1.5gb".

    Raises:
        ValueError: Any other text, or less than one byte.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?b|)\s*", str(size), re.IGNORECASE)
    count = 0
    if match is not None:
        count = int(float(match[1]) * _UNITS[match[2].upper()])
    if count < 1:
        raise ValueError(f"memory {size!r}: give bytes, or text such as '4GB' or '512MiB'")
    return count
