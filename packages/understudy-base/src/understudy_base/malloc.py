"""The C library's handling of freed memory, a setting of the whole process."""

import ctypes
from functools import lru_cache

# parameters of glibc's mallopt
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Let this process reuse the memory of freed images instead of returning it to the system.

    glibc returns freed blocks of that size to the system at once and requests zeroed ones for the
    next image. This takes up to a third of the loader's time at 640x480, nearly all of it in the
    kernel. After this call, blocks below 8 MB are reused, up to 256 MB at the top of each arena.
    Blocks of 8 MB and more are returned as before.

    The setting applies to the whole process and cannot be undone. Only the command line makes it by
    itself; a training loop of your own should call it before the first batch. It does nothing with
    another C library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 8 << 20)
        mallopt(_TRIM_THRESHOLD, 256 << 20)
