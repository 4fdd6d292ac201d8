"""FFmpeg's own functions, through the symbols that PyAV's modules are linked with: the same libraries, in memory once.

Only the oldest parts of its interfaces are used, and who uses them tries or looks first (`swscale.py`, `loops.py`).
"""

import ctypes
from ctypes import c_char_p, c_int, c_void_p
from functools import lru_cache

import av
import av.codec.context
import av.video.reformatter

from understudy.video.native.switch import wanted

PYAV = int(av.__version__.split(".")[0])
"""Its version."""


@lru_cache(maxsize=1)
def swscale() -> ctypes.CDLL | None:
    """Colour conversion; None where it cannot be reached, or native work is not wanted (`switch.py`)."""
    if wanted() == "0":
        return None
    try:
        found = ctypes.CDLL(av.video.reformatter.__file__)
        found.sws_getContext.argtypes, found.sws_getContext.restype = [c_int] * 7 + [c_void_p] * 3, c_void_p
        found.sws_freeContext.argtypes, found.sws_freeContext.restype = [c_void_p], None
        found.sws_getCoefficients.argtypes, found.sws_getCoefficients.restype = [c_int], c_void_p
        found.sws_setColorspaceDetails.argtypes = [c_void_p, c_void_p, c_int, c_void_p, c_int, c_int, c_int, c_int]
        found.sws_scale.argtypes = [c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p, c_void_p]
        found.av_get_pix_fmt.argtypes = [c_char_p]
    except (OSError, AttributeError, TypeError):
        return None
    return found


@lru_cache(maxsize=1)
def codecs() -> ctypes.CDLL | None:
    """Decoders; None where they cannot be reached."""
    try:
        found = ctypes.CDLL(av.codec.context.__file__)
        found.avcodec_get_class.argtypes, found.avcodec_get_class.restype = [], c_void_p
        found.av_get_pix_fmt.argtypes = [c_char_p]
    except (OSError, AttributeError, TypeError):
        return None
    return found
