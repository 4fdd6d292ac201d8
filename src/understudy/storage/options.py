"""How a dataset that is not on this machine is read: the settings, and the cache folder they default to."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from understudy.deprecation import renamed_fields
from understudy.storage.retry import RetryPolicy


@renamed_fields(patience="retry", threads="num_threads")
@dataclass(frozen=True)
class RemoteOptions:
    """How a dataset that is not on this machine is read.

    Attributes:
        storage_options: for the file system, as its fsspec driver takes them (`key`, `token`, `endpoint_url`, ...; for
            https:// `headers`). Credentials that the drivers find by themselves need not be here.
        cache: a folder on a local disk, which all processes of this host share; "" for the user's cache folder.
        cache_bytes: what the cache may hold at most.
        retry: deadlines and pauses.
        num_threads: spans that are fetched ahead at the same time.
    """

    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # credentials are among them
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
        """The cache folder that is meant."""
        return os.path.abspath(os.path.expanduser(self.cache)) if self.cache else default_cache_folder()


def default_cache_folder() -> str:
    """`$XDG_CACHE_HOME/understudy`, or that system's usual place."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.expanduser("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    return os.path.join(home, "understudy")
