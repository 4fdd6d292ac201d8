"""How the C library treats freed memory: a setting of the whole process, so the process's owner makes it."""

import ctypes
from functools import lru_cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Have this process keep the memory of pictures that it frees, for the next pictures.

    glibc gives freed pieces of their size back to the system at once and gets zeroed ones for the next picture: up to a
    third of the loader's time at 640x480, nearly all of it inside the kernel. Afterwards pieces below 8 MB are kept, at
    most 256 MB at the top of each arena. Pieces of 8 MB and more go back as before.

    This is a setting of the whole process and cannot be taken back, so no part of understudy makes it but the command
    line. Call it before the first batch in a training loop of your own. It does nothing with another C library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 8 << 20)
        mallopt(_TRIM_THRESHOLD, 256 << 20)
