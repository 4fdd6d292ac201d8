"""What a settings class may bring along, so that flags, help and checks know no policies or data.

Each of these is an attribute of the class, and optional:

    problems()        broken rules between fields, one line each
    run_defaults()    defaults for a new run that follow from other settings, nested as in a file
    expanded()        `Expands`: a file's short forms, written out before they are checked
    OTHER_NAMES       `OtherNames`: hints for names and words that are not of this class
    REFUSED_FLAGS     path of a setting -> why its flag has no effect here
    FURTHER_ARGUMENT  why there is a single argument without a flag
    UNCAPPED          settings for which -1 is no limit

A group of settings may be a `Union`, and the items of a list of dataclasses may be `FromWords`.
"""

from collections.abc import Collection, Sequence
from dataclasses import is_dataclass
from typing import Any, Protocol, get_type_hints, runtime_checkable

from understudy_base import Record


@runtime_checkable
class Union(Protocol):
    """A group of settings that stands for several classes: its setting `type` names one.

    A settings class has at most one field of such a class.
    """

    @classmethod
    def select(cls, values: Record) -> type:
        """Return the class that values of the group name, or the default one.

        Raises:
            ValueError: there is no such type.
        """

    @classmethod
    def by_hand(cls, word: str) -> str:
        """Return the type that a user names by this word now, as it is stored; "" for "".

        A word may be more than a name: code that a user names by hand is trusted from here on.

        Raises:
            ValueError: the word names nothing.
        """

    @classmethod
    def is_same(cls, kind: str, stored: str) -> bool:
        """Return whether a stored type is `kind`, where both have the same class."""

    @classmethod
    def types(cls) -> list[str]:
        """Return the names of all types."""

    @classmethod
    def types_with(cls, setting: str) -> list[str]:
        """Return the types whose class has a setting of this name, spelled as in a flag."""


class OtherNames(Protocol):
    """Hints for names of other programs, and for words at a wrong place."""

    def names(self) -> Collection[str]:
        """Return the known names, dotted and spelled as in flags."""

    def equivalent(self, name: str) -> str | None:
        """Return what takes the place of a dotted name here; None for an unknown one."""

    def misplaced(self, word: str) -> str | None:
        """Return the message about a word that no setting takes; None: there is no better one."""


@runtime_checkable
class Expands(Protocol):
    """A settings class whose files have short forms."""

    @staticmethod
    def expanded(content: Record, where: object = None) -> Record:
        """Return the settings of a new run with each short form written out.

        Args:
            content: the settings, unchecked.
            where: the file, for messages.

        Raises:
            ConfigError: a short form stands for nothing.
        """


@runtime_checkable
class FromWords(Protocol):
    """An item of a list of dataclasses that a flag sets by words, too."""

    @staticmethod
    def from_words(words: Sequence[str], *, new: bool) -> list[str]:
        """Return the words as a file would hold them in the list.

        Args:
            words: behind the flag.
            new: whether these are the settings of a new run.

        Raises:
            ValueError: there is no word, or no word may be given.
        """


def is_union(kind: Any) -> bool:
    """Return whether the type of a setting is a group that stands for several classes."""
    return isinstance(kind, type) and is_dataclass(kind) and isinstance(kind, Union)


def union_of(cls: type) -> tuple[str, Any] | None:
    """Return name and class of the field that is a `Union`; None without one."""
    hints = get_type_hints(cls)
    return next(((name, kind) for name, kind in hints.items() if is_union(kind)), None)


def other_names(cls: type) -> OtherNames | None:
    """Return the hints that a settings class brings for names that are not its own."""
    names: OtherNames | None = getattr(cls, "OTHER_NAMES", None)
    return names


def expanded(cls: type, content: Record, where: object = None) -> Record:
    """Return the settings of a new run with the short forms of the class written out."""
    return cls.expanded(content, where) if isinstance(cls, Expands) else content
