"""Options for reading remote datasets, and the default cache folder."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from understudy.storage.retry import RetryPolicy


@dataclass(frozen=True)
class RemoteOptions:
    """Options for reading a remote dataset.

    Attributes:
        storage_options: Options of the file system's fsspec driver (`key`, `token`, `endpoint_url`, ...); `headers` for
            https://. Credentials that the driver finds by itself can be left out.
        cache: Folder on a local disk, shared by all processes of this host; "" is the user's cache folder.
        cache_bytes: Most bytes that the cache holds.
        retry: Deadlines, and pauses between attempts.
        num_threads: Number of spans that are prefetched at the same time.
    """

    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold credentials
    cache: str = ""
    cache_bytes: int = 64 << 30
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    num_threads: int = 8

    def __post_init__(self) -> None:
        for name, least in (("cache_bytes", 0), ("num_threads", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r}: it must be a whole number, at least {least}")

    @property
    def folder(self) -> str:
        """Absolute path of the cache folder."""
        return os.path.abspath(os.path.expanduser(self.cache)) if self.cache else default_cache_folder()


def default_cache_folder() -> str:
    """Return `$XDG_CACHE_HOME/understudy`, or the operating system's equivalent."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.expanduser("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    return os.path.join(home, "understudy")
