"""Flags of the command line: a second settings file over the first one.

`--optim.lr 3e-4` is `optim: {lr: 3e-4}` in a file. By the type of its setting, the words of a flag
become one text, a list, or the pairs of a mapping. `schema.validate` converts and checks them
together with the file.
"""

import difflib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from understudy_base import ConfigError, MissingExtraError, Record
from understudy_kit.config.declare import POSITIONAL, ByHand
from understudy_kit.config.help import flag_of, item_class, members, negation_of, takes_many
from understudy_kit.config.hooks import FromWords, expanded, is_union, other_names, union_of
from understudy_kit.config.schema import validate, validate_new, with_checked_lists

_TWICE = "is given twice; give all its values after one flag"


@dataclass(frozen=True)
class Setting:
    """One setting of a class, below all its groups.

    Attributes:
        path: Dotted path.
        kind: Type of its values.
        positional: Whether it is an argument without a flag.
        item: Class of its items, if it is a list of dataclasses. Only a file can set it, unless the
            class is `FromWords`.
        by_hand: What to do with a value that a flag gives, besides; None for nothing.
    """

    path: str
    kind: Any
    positional: bool = False
    item: type | None = None
    by_hand: ByHand | None = None


def list_settings(cls: type, chosen: type | None = None, prefix: str = "") -> Iterator[Setting]:
    """Yield all settings of a dataclass.

    Args:
        cls: the dataclass.
        chosen: class of the group that is a `Union`; None is its default one.
        prefix: dotted path of the dataclass, with a dot behind it.
    """
    marked = get_type_hints(cls, include_extras=True)
    hints = get_type_hints(cls)
    for name in (entry.name for entry in fields(cls)):
        kind = hints[name]
        path = f"{prefix}{name}"
        if isinstance(kind, type) and is_dataclass(kind):
            group: Any = kind
            if is_union(kind):
                group = chosen or group.select({})
            yield from list_settings(group, None, f"{path}.")
        else:
            marks = getattr(marked[name], "__metadata__", ())
            by_hand = next((mark for mark in marks if isinstance(mark, ByHand)), None)
            yield Setting(path, kind, POSITIONAL in marks, item_class(kind), by_hand)


def read_flags(
    cls: type, words: Sequence[str], content: Record, where: object = None, *, new: bool = True
) -> Any:
    """Return the settings of a file with flags over them.

    Args:
        cls: class of the settings.
        words: the command line after the name of the command and the file.
        content: settings of the file.
        where: the file, for messages.
        new: whether the settings bring defaults that the file and the flags lack (`run_defaults`);
            not for a stored run.

    Raises:
        ConfigError: lists all errors of the file, or else all of the flags in one line.
    """
    if content and new:
        written_out = expanded(cls, content, where)
        of_file: Any = validate(cls, written_out, where)
        if written_out is content:  # else flags may still be about the short forms
            content = with_checked_lists(content, of_file)
    line = _Line(cls, _copy(content), new=new)
    line.read(deque(words))
    check: Any = validate_new if new else validate
    config: Any = None
    try:
        config = check(cls, line.content, flags=line.paths)
    except ConfigError as error:
        line.errors.append(str(error))
    except MissingExtraError:
        if not line.errors:
            raise
    if line.errors:
        raise ConfigError("; ".join(line.errors))
    return config


def _copy(content: Any) -> Any:
    """Return mappings and lists anew; what they hold besides is never changed."""
    if isinstance(content, Mapping):
        return {name: _copy(value) for name, value in content.items()}
    return [_copy(value) for value in content] if isinstance(content, list) else content


def chosen_type(cls: type, words: Sequence[str]) -> str:
    """Return the type that flags name for the `Union` of a settings class; "" without one."""
    if (union := union_of(cls)) is None:
        return ""
    named = ""
    for word, following in zip(words, [*words[1:], ""]):
        flag, equals, text = word.partition("=")
        if flag == type_flag(union[0]):
            named = text if equals else following
    return named


def type_flag(group: str) -> str:
    """Return the flag that names the type of a `Union`."""
    return flag_of(f"{group}.type")


def name_by_hand(cls: type, words: Sequence[str]) -> None:
    """Tell the `Union` of a class what flags name, before a stored type is read that may need
    it.
    """
    if (union := union_of(cls)) is not None:
        with suppress(ValueError):  # `read_flags` describes it
            union[1].by_hand(chosen_type(cls, words))


@dataclass
class _Line:
    """A command line as it is read into `content`."""

    cls: type
    content: dict[str, Any]
    paths: set[str] = field(default_factory=set)
    new: bool = True
    """Whether these are settings of a new run."""
    errors: list[str] = field(default_factory=list)
    settings: dict[str, Setting] = field(default_factory=dict)
    group: str = ""
    """Name of the group that is a `Union`; "" without one."""
    typed: bool = True
    """Whether the type that a flag names is known."""

    def read(self, words: deque[str]) -> None:
        """Put the value of each flag into the content, and describe those that are unknown or have
        none.
        """
        self._choose_class(chosen_type(self.cls, list(words)))
        refused: Mapping[str, str] = getattr(self.cls, "REFUSED_FLAGS", {})
        further: str = getattr(self.cls, "FURTHER_ARGUMENT", "")
        free = []
        flags = {}
        off = {}
        for path, known in self.settings.items():
            if known.positional:
                free.append(known)
                continue
            flags[flag_of(path)] = known
            if known.kind is bool:
                off[negation_of(path)] = known
        bare = list[str]()
        flag = ""
        while words:
            word = words.popleft()
            if not _is_flag(word):
                if free and bare and further:
                    if len(bare) == 1:
                        self.errors.append(f"{word}: {further}")
                elif not free or (bare and not takes_many(free[0].kind)):
                    self.errors.append(self._misplaced(word, flag))
                bare.append(word)
                continue
            flag, equals, text = word.partition("=")
            name = flag.replace("_", "-")
            setting = flags.get(name)
            values = [text] if equals else _take_values(setting, words)
            if setting is None and name in off and not equals:
                self._put(off[name], False)
                words.extendleft(reversed(values))
            elif setting is None:
                if self._is_known_group(name):
                    self.errors.append(self._unknown(flag, list(flags)))
            elif why := refused.get(setting.path):
                self.errors.append(f"{flag}: has no effect here: {why}")
            else:
                try:
                    self._put(setting, self._value(setting, values))
                except ValueError as error:
                    self.errors.append(f"{flag}: {error}")
        if bare and free:
            value = bare if takes_many(free[0].kind) else bare[0]
            _insert(self.content, free[0].path, value)

    def _choose_class(self, kind: str) -> None:
        """Fill `settings`, with those of the `Union` that a flag or else the file names.

        The settings of another type than the file's start anew.
        """
        chosen = None
        if (union := union_of(self.cls)) is not None:
            self.group, base = union
            make: Any = next(
                entry for entry in fields(self.cls) if entry.name == self.group
            ).default_factory
            values = self.content.setdefault(self.group, {"type": make().type})
            chosen = base.select(values)
            try:
                kind = base.by_hand(kind)
                named = base.select({"type": kind}) if kind else chosen
                if named is not chosen or (kind and not base.is_same(kind, values.get("type", ""))):
                    chosen = named
                    self.content[self.group] = {}
            except ValueError as error:
                self.errors.append(f"{type_flag(self.group)}: {error}")
                self.typed = False
        self.settings = {setting.path: setting for setting in list_settings(self.cls, chosen)}

    def _value(self, setting: Setting, words: list[str]) -> Any:
        """Return the words of a flag as a file would hold them, joined with those that were given
        before.

        Raises:
            ValueError: they are no value of this setting.
        """
        if setting.item is not None:
            if not isinstance(setting.item, FromWords):
                raise ValueError("a list, which only a settings file can set")
            if setting.path in self.paths:
                raise ValueError(_TWICE)
            return setting.item.from_words(words, new=self.new)
        value = shape(setting.kind, words)
        return _joined(setting, value, self.content) if setting.path in self.paths else value

    def _put(self, setting: Setting, value: Any) -> None:
        if setting.path == f"{self.group}.type" and not self.typed:
            return
        if setting.by_hand is not None:
            setting.by_hand.act(value)
        _insert(self.content, setting.path, value)
        self.paths.add(setting.path)

    def _unknown(self, flag: str, flags: list[str]) -> str:
        """Describe an unknown flag: its equivalent here, the policy that has it, or the nearest
        name.
        """
        name = flag.lstrip("-").replace("_", "-")
        others = other_names(self.cls)
        if others and (ours := others.equivalent(name.removeprefix("no-"))):
            return f"{flag}: unknown setting; here it is {ours}"
        if whole := self._mapping_of(name):
            key = flag.lstrip("-")[len(whole.path) + 1 :]
            return (
                f"{flag}: unknown setting; a value of this mapping is given as "
                f"{flag_of(whole.path)} {key} VALUE"
            )
        if types := self._types_with(name):
            wanted = (
                f"{self.group} types {', '.join(types)}: add {type_flag(self.group)} {types[0]}"
            )
            return f"{flag}: a setting of the {wanted}"
        foreign = [f"--{other}" for other in others.names()] if others else []
        close = difflib.get_close_matches(f"--{name}", [*foreign, *flags], n=1, cutoff=0.85)
        if others and close and close[0] not in flags:
            ours = others.equivalent(close[0][2:])
            return f"{flag}: unknown setting; {close[0]} of another trainer is here {ours}"
        close = difflib.get_close_matches(f"--{name}", flags, n=1, cutoff=0.65)
        if not close:
            close = [known for known in flags if known.rpartition(".")[2] == name]
        hint = f"did you mean {close[0]}?" if close else "--help lists all"
        return f"{flag}: unknown setting; {hint}"

    def _is_known_group(self, name: str) -> bool:
        """Return whether an unknown flag deserves a message: not one of a group of unknown type."""
        others = other_names(self.cls)
        is_inside = name.startswith(f"{flag_of(self.group)}.")
        return self.typed or not is_inside or (others is not None and name[2:] in others.names())

    def _types_with(self, name: str) -> list[str]:
        """Return the types of the `Union` that have the setting of an unknown flag."""
        group, _, setting = name.partition(".")
        setting = setting.partition(".")[0]
        union = union_of(self.cls)
        if union is None or group != self.group or setting == "type":
            return []
        types: list[str] = union[1].types_with(setting)
        return types

    def _misplaced(self, word: str, flag: str) -> str:
        """Describe a word that no setting takes; `flag` is the flag before it."""
        others = other_names(self.cls)
        if others is not None and (message := others.misplaced(word)):
            return message
        kinds = {flag_of(setting.path): setting.kind for setting in self.settings.values()}
        if kinds.get(flag.replace("_", "-"), bool) is not bool:
            return f"{flag}: takes one value, and {word} is left over"
        if flag:
            return f"{flag}: takes no value but true or false, not {word}"
        return f"{word}: unexpected argument; settings are --name value"

    def _mapping_of(self, name: str) -> Setting | None:
        """Return the setting with names and values in which the unknown `name` would be one; None
        without.
        """
        for setting in self.settings.values():
            is_mapping = any(get_origin(member) is dict for member in members(setting.kind))
            if is_mapping and name.startswith(setting.path.replace("_", "-") + "."):
                return setting
        return None


def _is_flag(word: str) -> bool:
    """Return whether a word is a flag, not a value; -1 and -.5 are values."""
    return word.startswith("-") and len(word) > 1 and re.match(r"-(\.?\d|inf\b)", word) is None


def _take_values(setting: Setting | None, words: deque[str]) -> list[str]:
    """Take the values of a flag from the words behind it."""
    values: list[str] = []
    while words and not _is_flag(words[0]) and _wants(setting, values, words[0]):
        values.append(words.popleft())
    return values


def _wants(setting: Setting | None, values: list[str], word: str) -> bool:
    """Return whether a flag with some values takes the next word as another one; an unknown flag
    takes all.
    """
    kind = None if setting is None else setting.kind
    if kind is bool:
        return not values and word.lower() in ("true", "false")
    if kind is None or takes_many(kind):
        return True
    sizes = [len(get_args(member)) for member in members(kind) if get_origin(member) is tuple]
    most = sizes[0] if sizes else 1
    return len(values) < most


def shape(kind: Any, words: list[str]) -> Any:
    """Return the words of a flag as a file would hold them: a text, a list or a mapping.

    Raises:
        ValueError: the words have another number than the type.
    """
    if kind is bool:
        text = words[0].lower() if words else "true"
        if text not in ("true", "false"):
            raise ValueError(f"takes no value but true or false, not {words[0]}")
        return text == "true"
    # an unset variable of a shell must not select everything
    if takes_many(kind) and not (words and words[0].strip()):
        raise ValueError("no value follows it; leave it out for none")
    if not words:
        raise ValueError("its value is missing")
    if words == ["None"] and NoneType in get_args(kind):
        return None
    for member in members(kind):
        if get_origin(member) is tuple:
            is_square = get_args(member) == (int, int) and len(words) == 1
            return words * 2 if is_square else words
        if get_origin(member) is dict and (len(words) > 1 or kind is member or "=" in words[0]):
            return _pairs(words)
    return words[0]


def _pairs(words: list[str]) -> dict[str, str]:
    """Return the mapping of words `NAME=VALUE`, or `NAME VALUE`. Raises ValueError for others."""
    parts = words
    if all(re.fullmatch(r"[^=]+=.+", word) for word in words):
        parts = []
        for word in words:
            parts += word.split("=", 1)
    if len(parts) % 2:
        raise ValueError(f"needs pairs of a name and a value, not {' '.join(parts)}")
    return dict(zip(parts[::2], parts[1::2]))


def _joined(setting: Setting, value: Any, content: dict[str, Any]) -> Any:
    """Return the value of a flag that is given again: the last one, or a mapping with the names of
    both.

    Raises:
        ValueError: it is a list, whose earlier values would be lost.
    """
    earlier: Any = content
    for name in setting.path.split("."):
        earlier = earlier[name]
    if isinstance(value, dict) and isinstance(earlier, dict):
        return earlier | value
    if takes_many(setting.kind):
        raise ValueError(_TWICE)
    return value


def _insert(content: dict[str, Any], path: str, value: Any) -> None:
    *groups, name = path.split(".")
    for group in groups:
        content = content.setdefault(group, {})
    content[name] = value
