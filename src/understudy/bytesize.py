"""Sizes as people write them. No torch, so that settings can be checked before anything is loaded."""

import re

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(size: int | str) -> int:
    """Bytes from a number or from text such as "4GB", "512 MiB", "1.5gb".

    Raises:
        ValueError: anything else, or nothing at all.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?b|)\s*", str(size), re.IGNORECASE)
    found = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if found < 1:
        raise ValueError(f"memory {size!r}: give bytes, or text such as '4GB' or '512MiB'")
    return found
