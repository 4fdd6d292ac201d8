"""The environment variable `UNDERSTUDY_NATIVE`: whether frames may be processed outside PyAV's Python interface.

    0        no: loops run in Python, and PyAV converts to RGB
    1        where possible and verified equal on this machine; elsewhere as with 0. The default
    require  always, or an error in one line gives the reason why not

Images are the same in all three. "Native" are the compiled loops (`loops.py`) and RGB that swscale writes straight into
the batch (`swscale.py`).
"""

import os

from understudy.errors import DatasetError

VARIABLE = "UNDERSTUDY_NATIVE"
_VALUES = ("0", "1", "require")


def native_mode() -> str:
    """Value of the variable, "1" where it is not set. Raises DatasetError for a value that is not listed above."""
    value = os.environ.get(VARIABLE) or "1"
    if value not in _VALUES:
        raise DatasetError(f"{VARIABLE}={value!r} is none of {', '.join(_VALUES)}", fix="correct it, or unset it")
    return value


def raise_if_required(reason: str, fix: str) -> None:
    """Raise DatasetError where native work is required; `reason` names the obstacle."""
    if native_mode() == "require":
        raise DatasetError(f"{VARIABLE}=require cannot be met: {reason}", fix=fix)
