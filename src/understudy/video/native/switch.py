"""`UNDERSTUDY_NATIVE`: whether work on pictures may be done outside PyAV's Python interface.

    0        no: loops run in Python, and PyAV converts colours
    1        where it is possible and was tried equal on this machine; elsewhere as with 0. The default
    require  always, or an error in one line says why it cannot be done

Pictures are the same in all three. "Native" are the compiled loops (`loops.py`) and colours that swscale writes
straight into the batch (`swscale.py`).
"""

import os

from understudy.errors import DatasetError

VARIABLE = "UNDERSTUDY_NATIVE"
_VALUES = ("0", "1", "require")


def wanted() -> str:
    """The variable's value, "1" where it is not set; DatasetError where it has another than those above."""
    value = os.environ.get(VARIABLE) or "1"
    if value not in _VALUES:
        raise DatasetError(f"{VARIABLE}={value!r} is none of {', '.join(_VALUES)}", fix="correct it, or unset it")
    return value


def refuse(why: str, fix: str) -> None:
    """Raise DatasetError where native work is required; `why` says what is missing."""
    if wanted() == "require":
        raise DatasetError(f"{VARIABLE}=require cannot be met: {why}", fix=fix)
