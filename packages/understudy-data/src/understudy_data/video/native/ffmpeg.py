"""FFmpeg's functions through the symbols that PyAV's modules are linked with: the libraries already
in memory.

Only the oldest parts of FFmpeg's interfaces are used. `swscale.py` and `loops.py` verify them
before use.

The environment variable `UNDERSTUDY_NATIVE` decides whether frames may be processed outside PyAV's
Python interface.

    0        no: loops run in Python, and PyAV converts to RGB
    1        where possible and verified equal on this machine; elsewhere as with 0. The default
    require  always, or an error in one line gives the reason why not

Images are the same in all three. "Native" are the compiled loops (`loops.py`) and RGB that swscale
writes straight into the batch (`swscale.py`).
"""

import ctypes
import os
from ctypes import c_char_p, c_int, c_void_p
from functools import lru_cache

import av
import av.codec.context
import av.video.reformatter

from understudy_base import DatasetError

VARIABLE = "UNDERSTUDY_NATIVE"
_VALUES = ("0", "1", "require")


def native_mode() -> str:
    """Value of the variable, "1" where it is not set. Raises DatasetError for a value that is not
    listed above.
    """
    value = os.environ.get(VARIABLE) or "1"
    if value not in _VALUES:
        raise DatasetError(
            f"{VARIABLE}={value!r} is none of {', '.join(_VALUES)}", fix="correct it, or unset it"
        )
    return value


PYAV_MAJOR = int(av.__version__.split(".")[0])
"""Major version of PyAV."""


@lru_cache(maxsize=1)
def load_swscale() -> ctypes.CDLL | None:
    """Load the color conversion library; None where its symbols are hidden or `UNDERSTUDY_NATIVE`
    is 0.
    """
    if native_mode() == "0":
        return None
    try:
        library = ctypes.CDLL(av.video.reformatter.__file__)
        library.sws_getContext.argtypes = [c_int] * 7 + [c_void_p] * 3
        library.sws_getContext.restype = c_void_p
        library.sws_freeContext.argtypes = [c_void_p]
        library.sws_freeContext.restype = None
        library.sws_getCoefficients.argtypes = [c_int]
        library.sws_getCoefficients.restype = c_void_p
        library.sws_setColorspaceDetails.argtypes = [
            c_void_p,
            c_void_p,
            c_int,
            c_void_p,
            c_int,
            c_int,
            c_int,
            c_int,
        ]
        library.sws_scale.argtypes = [
            c_void_p,
            c_void_p,
            c_void_p,
            c_int,
            c_int,
            c_void_p,
            c_void_p,
        ]
        library.av_get_pix_fmt.argtypes = [c_char_p]
    except (OSError, AttributeError, TypeError):
        return None
    return library


@lru_cache(maxsize=1)
def load_avcodec() -> ctypes.CDLL | None:
    """Load the codec library; None where its symbols are hidden."""
    try:
        library = ctypes.CDLL(av.codec.context.__file__)
        library.avcodec_get_class.argtypes = []
        library.avcodec_get_class.restype = c_void_p
        library.av_get_pix_fmt.argtypes = [c_char_p]
    except (OSError, AttributeError, TypeError):
        return None
    return library
