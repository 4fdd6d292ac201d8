"""Errors that users see, and addresses of pages for their messages. `UnderstudyError` is the base
of all errors.
"""

import re
import sys
from typing import TYPE_CHECKING, TypeVar

from understudy_base.credentials import redact
from understudy_base.records import Record

if TYPE_CHECKING:
    from typing_extensions import Self  # of `typing` since Python 3.11

DOCUMENTATION = "https://github.com/understudy-robotics/understudy/tree/main/docs"
"""Folder of the pages: `Documentation` in the metadata of the package."""


class UnderstudyError(Exception):
    """Base of every error that understudy raises on purpose. The message is one line."""


class ConfigError(UnderstudyError, ValueError):
    """Invalid settings. The message addresses their author; the command line exits with 2."""


class DataAccessError(UnderstudyError):
    """Data cannot be had: the dataset is at fault (`DatasetError`), or its source (`SourceError`).

    The message is one line with the value (file, episode), the rule that it breaks and the remedy.
    Credentials of addresses are removed from it.

    Attributes:
        what: The broken rule.
        where: File, episode or address, or None.
        fix: The remedy, or "".
    """

    def __init__(self, what: str, *, where: object = None, fix: str = "") -> None:
        self.what = redact(what)
        self.where = redact(where) if isinstance(where, str) else where
        self.fix = redact(fix)
        text = self.what
        if self.where is not None:
            text = f"{self.where}: {text}"
        if self.fix:
            text = f"{text} ({self.fix})"
        super().__init__(text)

    def replaced(self, **changes: object) -> "Self":
        """Return the same error with another `where` or `fix`, to raise from this one."""
        return _rebuild(type(self), self.fields() | changes)

    def fields(self) -> dict[str, object]:
        """Arguments that make this error again."""
        return {"what": self.what, "where": self.where, "fix": self.fix}

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.fields()))


_Error = TypeVar("_Error", bound=DataAccessError)


class DatasetError(DataAccessError, ValueError):
    """A dataset cannot be used as requested. The command line prints it and exits with 2."""


class MissingFileError(DatasetError):
    """A file is missing. This is the only failure that can be a valid answer to a question."""


class EmptyDatasetError(DatasetError):
    """A dataset lists no episode, as when its recording has just begun."""


class LfsPointerError(DatasetError):
    """The file is a git LFS pointer: a clone has it until the real file is downloaded."""


class SourceError(DataAccessError):
    """The source of a file gives no answer, or the file changed since it was opened.

    It says nothing about the data, so no other sample may replace the one that was asked for.

    Attributes:
        transient: Whether the same command may succeed later: retries ended at their deadline.
    """

    def __init__(
        self, what: str, *, where: object = None, fix: str = "", transient: bool = False
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.transient = transient

    def fields(self) -> dict[str, object]:
        """Arguments that make this error again."""
        return {**super().fields(), "transient": self.transient}


def is_wrong_input(error: BaseException | None) -> bool:
    """Return whether the same command would fail again: settings or data are wrong, and no outage
    is the cause.
    """
    if isinstance(error, SourceError):
        return not error.transient
    return isinstance(error, ConfigError | DatasetError)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is that of an allocator without memory: torch's on any device, or
    Python's.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}  # by name: torch is not imported here
    if kinds & {"MemoryError", "OutOfMemoryError"}:
        return True
    text = str(error)
    return "RuntimeError" in kinds and "DefaultCPUAllocator" in text and "memory" in text


def is_offline(error: BaseException | None) -> bool:
    """Return whether no connection was made: the network is the cause, and neither a name nor a
    token.
    """
    # by name: each library of HTTP has its own
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {
        "ConnectError",
        "ConnectTimeout",
        "ConnectionError",
        "gaierror",
        "OfflineModeIsEnabled",
    }:
        return True
    return error is not None and is_offline(error.__cause__ or error.__context__)


def hub_remedy(error: BaseException) -> str:
    """Return the remedy for a request that the hub refused, or that did not reach it."""
    offline_mode = getattr(sys.modules.get("huggingface_hub.constants"), "HF_HUB_OFFLINE", False)
    if is_offline(error) and offline_mode:
        return "HF_HUB_OFFLINE forbids requests to the hub: unset it, or give a local folder"
    if is_offline(error):
        return (
            "no connection to the hub: check the network, a proxy and HF_ENDPOINT, or give a "
            "local folder"
        )
    return "check the name, log in with `hf auth login`, or set HF_TOKEN"


def summarize(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    text = lines[0].strip()
    if len(text) > 200:
        text = f"{text[:200]}…"
    return f"{type(error).__name__}: {text}"


def _rebuild(kind: type[_Error], fields: Record) -> _Error:
    return kind(**fields)


def page(name: str) -> str:
    """Return the address of a page, as in `page("policies.md")`."""
    return f"{DOCUMENTATION}/{name}"


def with_addresses(text: str) -> str:
    """Return a docstring with the addresses of the pages that it names as files of this
    repository.
    """
    return re.sub(r"(?<![\w/])docs/(?=\w+\.md\b)", f"{DOCUMENTATION}/", text)
