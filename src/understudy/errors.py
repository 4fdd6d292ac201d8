"""Errors that a user sees. `UnderstudyError` is the base of all of them."""

from understudy.addresses import redact


class UnderstudyError(Exception):
    """Base of every error that understudy raises on purpose. The message is one line."""


class ConfigError(UnderstudyError, ValueError):
    """Settings that cannot be used. The message is for the person who wrote them; the command line exits with 2."""


class RankError(UnderstudyError, OSError):
    """Another process of this run failed or went away; the message is that process's own error."""


class CheckpointError(UnderstudyError, OSError):
    """A checkpoint could not be written or read; earlier ones are untouched."""


class DatasetError(UnderstudyError, ValueError):
    """A dataset cannot be used as asked.

    The message is one line that names the value (file, episode), the rule it breaks and the remedy; the command line
    prints it as it is and exits with 2. No credentials of an address stand in it.
    """

    def __init__(self, what: str, *, where: object = None, fix: str = "") -> None:
        what, fix, where = redact(what), redact(fix), redact(where) if isinstance(where, str) else where
        self.what, self.where, self.fix = what, where, fix
        text = f"{where}: {what}" if where is not None else what
        super().__init__(f"{text} ({fix})" if fix else text)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.fix))


class MissingFileError(DatasetError):
    """There is no such file: the one failure that may be an answer."""


class LfsPointerError(DatasetError):
    """The file is what git LFS leaves in a clone until the file itself is downloaded."""


class SourceError(DatasetError):
    """The source gave no answer, or is no longer what it was. This says nothing about the data: it is no bad picture or
    row, and nothing may stand in for what could not be read."""


def _rebuild(kind: type[DatasetError], what: str, where: object, fix: str) -> DatasetError:
    return kind(what, where=where, fix=fix)
