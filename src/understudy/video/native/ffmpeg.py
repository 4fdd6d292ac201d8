"""FFmpeg's functions through the symbols that PyAV's modules are linked with: the libraries already in memory.

Only the oldest parts of FFmpeg's interfaces are used. `swscale.py` and `loops.py` verify them before use.
"""

import ctypes
from ctypes import c_char_p, c_int, c_void_p
from functools import lru_cache

import av
import av.codec.context
import av.video.reformatter

from understudy.video.native.env_variable import native_mode

PYAV_MAJOR = int(av.__version__.split(".")[0])
"""Major version of PyAV."""


@lru_cache(maxsize=1)
def load_swscale() -> ctypes.CDLL | None:
    """Load the color conversion library; None where its symbols are hidden or `UNDERSTUDY_NATIVE` is 0."""
    if native_mode() == "0":
        return None
    try:
        library = ctypes.CDLL(av.video.reformatter.__file__)
        library.sws_getContext.argtypes, library.sws_getContext.restype = [c_int] * 7 + [c_void_p] * 3, c_void_p
        library.sws_freeContext.argtypes, library.sws_freeContext.restype = [c_void_p], None
        library.sws_getCoefficients.argtypes, library.sws_getCoefficients.restype = [c_int], c_void_p
        library.sws_setColorspaceDetails.argtypes = [c_void_p, c_void_p, c_int, c_void_p, c_int, c_int, c_int, c_int]
        library.sws_scale.argtypes = [c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p, c_void_p]
        library.av_get_pix_fmt.argtypes = [c_char_p]
    except (OSError, AttributeError, TypeError):
        return None
    return library


@lru_cache(maxsize=1)
def load_avcodec() -> ctypes.CDLL | None:
    """Load the codec library; None where its symbols are hidden."""
    try:
        library = ctypes.CDLL(av.codec.context.__file__)
        library.avcodec_get_class.argtypes, library.avcodec_get_class.restype = [], c_void_p
        library.av_get_pix_fmt.argtypes = [c_char_p]
    except (OSError, AttributeError, TypeError):
        return None
    return library
