"""Flags of the command line: a second settings file over the first one.

`--optim.lr 3e-4` is `optim: {lr: 3e-4}` in a file. By the type of its setting, the words of a flag become one text, a
list, or the pairs of a mapping. `schema.validate` converts and checks them together with the file.
"""

import copy
import difflib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from understudy.config.dataset import SourceConfig
from understudy.config.declare import CODE, POSITIONAL
from understudy.config.files import SUFFIXES
from understudy.config.foreign import FOREIGN, equivalent
from understudy.config.help import flag_of, item_class, members, negation_of, takes_many
from understudy.config.schema import validate, validate_new
from understudy.config.source_lists import expand_settings
from understudy.errors import ConfigError
from understudy.optional_packages import MissingExtraError
from understudy.policies.own_code.types import is_code, name_by_hand, pin
from understudy.policies.registry import BUILT_IN, PolicySettings, policy_type
from understudy.records import Record

_TWICE = "is given twice; give all its values after one flag"
TRAINS = "--data.root"
"""Flag of the commands with the settings of a training, into which names of other trainers are translated."""


@dataclass(frozen=True)
class Setting:
    """One setting of a class, below all its groups.

    Attributes:
        path: Dotted path.
        kind: Type of its values.
        positional: Whether it is an argument without a flag.
        item: Class of its items, if it is a list of dataclasses, which only a file can set; of `SourceConfig` a flag
            sets globs and list files.
        is_code: Whether its value names code, which a flag trusts and a file does not.
    """

    path: str
    kind: Any
    positional: bool = False
    item: type | None = None
    is_code: bool = False


def list_settings(cls: type, policy: type | None = None, prefix: str = "") -> Iterator[Setting]:
    """Yield all settings of a dataclass, with those of the class `policy` in its group; the default is `flow`."""
    marked, hints = get_type_hints(cls, include_extras=True), get_type_hints(cls)
    for name in (entry.name for entry in fields(cls)):
        kind, path = hints[name], f"{prefix}{name}"
        if isinstance(kind, type) and is_dataclass(kind):
            group: Any = kind
            yield from list_settings((policy or group.select({})) if is_policy(kind) else kind, None, f"{path}.")
        else:
            marks = getattr(marked[name], "__metadata__", ())
            yield Setting(path, kind, POSITIONAL in marks, item_class(kind), CODE in marks)


def is_policy(kind: Any) -> bool:
    """Return whether a type is a class of policy settings."""
    return isinstance(kind, type) and issubclass(kind, PolicySettings)


def read_flags(cls: type, words: Sequence[str], content: Record, where: object = None, *, new: bool = True) -> Any:
    """Return the settings of a file with flags over them.

    Args:
        cls: class of the settings.
        words: the command line after the name of the command and the file.
        content: settings of the file.
        where: the file, for messages.
        new: whether the policy brings defaults for settings that the file and the flags lack; not for a stored run.

    Raises:
        ConfigError: lists all errors of the file, or else all of the flags in one line.
    """
    if content and new:
        validate(cls, expand_settings(content, where), where)
    line = _Line(cls, copy.deepcopy(dict(content)), new=new)
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


def chosen_type(words: Sequence[str]) -> str:
    """Return the type of policy that flags name; "" without one."""
    policy_type = ""
    for word, following in zip(words, [*words[1:], ""]):
        flag, equals, text = word.partition("=")
        if flag == "--policy.type":
            policy_type = text if equals else following
    return policy_type


def trust_named_code(words: Sequence[str]) -> None:
    """Trust the code that flags name as the type of policy, before a stored type is read that may name it, too."""
    with suppress(ValueError):  # `read_flags` describes it
        name_by_hand(chosen_type(words))


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
    typed: bool = True
    """Whether the type of policy is known."""

    def read(self, words: deque[str]) -> None:
        """Put the value of each flag into the content, and describe those that are unknown or have none."""
        self._choose_policy(chosen_type(list(words)))
        refused: Mapping[str, str] = getattr(self.cls, "REFUSED_FLAGS", {})
        further: str = getattr(self.cls, "FURTHER_ARGUMENT", "")
        free = [setting for setting in self.settings.values() if setting.positional]
        flags = {flag_of(path): setting for path, setting in self.settings.items() if not setting.positional}
        off = {negation_of(setting.path): setting for setting in flags.values() if setting.kind is bool}
        bare, flag = list[str](), ""
        while words:
            word = words.popleft()
            if not _is_flag(word):
                if free and bare and further:
                    self.errors += [f"{word}: {further}"] if len(bare) == 1 else []
                elif not free or (bare and not takes_many(free[0].kind)):
                    self.errors.append(_misplaced(word, flag, list(flags)))
                bare.append(word)
                continue
            flag, equals, text = word.partition("=")
            name = flag.replace("_", "-")
            setting = flags.get(name)
            values = [text] if equals else []
            while not equals and words and not _is_flag(words[0]) and _wants(setting, values, words[0]):
                values.append(words.popleft())
            if setting is None and name in off and not equals:
                self._put(off[name], False)
                words.extendleft(reversed(values))
            elif setting is None:
                if self.typed or not name.startswith("--policy.") or name[2:] in FOREIGN:
                    self.errors.append(self._unknown(flag, list(flags)))
            elif why := refused.get(setting.path):
                self.errors.append(f"{flag}: has no effect here: {why}")
            elif setting.item is SourceConfig and setting.path in self.paths:
                self.errors.append(f"{flag}: {_TWICE}")
            elif setting.item is SourceConfig and values and self.new:
                self._put(setting, values)
            elif setting.item is SourceConfig and not self.new:
                self.errors.append(f"{flag}: a run keeps the sources it was started with; start a new run for others")
            elif setting.item is SourceConfig:
                self.errors.append(f"{flag}: no value follows it; give globs in quotes, or a list file in CSV")
            elif setting.item is not None:
                self.errors.append(f"{flag}: a list, which only a settings file can set")
            else:
                try:
                    value = shape(setting.kind, values)
                    if setting.path in self.paths:
                        value = _joined(setting, value, self.content)
                    self._put(setting, value)
                except ValueError as error:
                    self.errors.append(f"{flag}: {error}")
        if bare and free:
            _insert(self.content, free[0].path, bare if takes_many(free[0].kind) else bare[0])

    def _choose_policy(self, kind: str) -> None:
        """Fill `settings`, with those of the policy that a flag or else the file names; another type starts anew."""
        policy = get_type_hints(self.cls).get("policy")
        chosen = None
        if is_policy(policy):
            base: Any = policy
            make: Any = next(entry for entry in fields(self.cls) if entry.name == "policy").default_factory
            group = self.content.setdefault("policy", {"type": make().type})
            chosen = base.select(group)
            try:
                kind = name_by_hand(kind)
                named = base.select({"type": kind}) if kind else chosen
                if named is not chosen or (is_code(kind) and kind != pin(group["type"])):
                    chosen = named
                    self.content["policy"] = {}
            except ValueError as error:
                self.errors.append(f"--policy.type: {error}")
                self.typed = False
        self.settings = {setting.path: setting for setting in list_settings(self.cls, chosen)}

    def _put(self, setting: Setting, value: Any) -> None:
        if setting.path == "policy.type" and not self.typed:
            return
        if setting.is_code:
            name_by_hand(value)
        _insert(self.content, setting.path, value)
        self.paths.add(setting.path)

    def _unknown(self, flag: str, flags: list[str]) -> str:
        """Describe an unknown flag: its equivalent here, the policy that has it, or the nearest name."""
        name, trains = flag.lstrip("-").replace("_", "-"), TRAINS in flags
        if trains and (ours := equivalent(name.removeprefix("no-"))):
            return f"{flag}: unknown setting; here it is {ours}"
        if whole := self._mapping_of(name):
            key = flag.lstrip("-")[len(whole.path) + 1 :]
            return f"{flag}: unknown setting; a value of this mapping is given as {flag_of(whole.path)} {key} VALUE"
        if "--policy.type" in flags and (types := _types_with(name)):
            return f"{flag}: a setting of the policy types {', '.join(types)}: add --policy.type {types[0]}"
        foreign = [f"--{other}" for other in FOREIGN] if trains else []
        close = difflib.get_close_matches(f"--{name}", [*foreign, *flags], n=1, cutoff=0.85)
        if close and close[0] not in flags:
            return f"{flag}: unknown setting; {close[0]} of another trainer is here {FOREIGN[close[0][2:]]}"
        close = difflib.get_close_matches(f"--{name}", flags, n=1, cutoff=0.65)
        close = close or [candidate for candidate in flags if candidate.rpartition(".")[2] == name][:1]
        return f"{flag}: unknown setting; " + (f"did you mean {close[0]}?" if close else "--help lists all")

    def _mapping_of(self, name: str) -> Setting | None:
        """Return the setting with names and values in which the unknown `name` would be one; None without."""
        for setting in self.settings.values():
            is_mapping = any(get_origin(member) is dict for member in members(setting.kind))
            if is_mapping and name.startswith(setting.path.replace("_", "-") + "."):
                return setting
        return None


def _is_flag(word: str) -> bool:
    """Return whether a word is a flag, not a value; -1 and -.5 are values."""
    return word.startswith("-") and len(word) > 1 and re.match(r"-(\.?\d|inf\b)", word) is None


def _wants(setting: Setting | None, values: list[str], word: str) -> bool:
    """Return whether a flag with some values takes the next word as another one; an unknown flag takes all."""
    kind = None if setting is None else setting.kind
    if kind is bool:
        return not values and word.lower() in ("true", "false")
    if kind is None or takes_many(kind):
        return True
    sizes = [len(get_args(member)) for member in members(kind) if get_origin(member) is tuple]
    return len(values) < (sizes[0] if sizes else 1)


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
    if takes_many(kind) and not (words and words[0].strip()):  # an unset variable of a shell must not select everything
        raise ValueError("no value follows it; leave it out for none")
    if not words:
        raise ValueError("its value is missing")
    if words == ["None"] and NoneType in get_args(kind):
        return None
    for member in members(kind):
        if get_origin(member) is tuple:
            return words * 2 if get_args(member) == (int, int) and len(words) == 1 else words
        if get_origin(member) is dict and (len(words) > 1 or kind is member or "=" in words[0]):
            if all(re.fullmatch(r"[^=]+=.+", word) for word in words):
                words = [part for word in words for part in word.split("=", 1)]
            if len(words) % 2:
                raise ValueError(f"needs pairs of a name and a value, not {' '.join(words)}")
            return dict(zip(words[::2], words[1::2]))
    return words[0]


def _joined(setting: Setting, value: Any, content: dict[str, Any]) -> Any:
    """Return the value of a flag that is given again: the last one, or a mapping with the names of both.

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


def _types_with(name: str) -> list[str]:
    """Return the built-in policy types that have the setting `policy.NAME`."""
    group, _, setting = name.partition(".")
    setting = setting.partition(".")[0]
    if group != "policy" or setting == "type":
        return []
    types = {kind: fields(policy_type(kind).settings) for kind in BUILT_IN}
    return [kind for kind, owned in types.items() if setting in {entry.name.replace("_", "-") for entry in owned}]


def _misplaced(word: str, flag: str, flags: list[str]) -> str:
    """Describe a word that no setting takes; `flag` is the flag before it."""
    name, override, _ = word.partition("=")
    if TRAINS in flags:
        path = Path(word)
        if override and (ours := equivalent(name)):
            return f"{name}: unknown setting; here it is {ours}"
        if (path / "meta").is_dir():
            return f"{word}: this is a dataset; did you mean --data.root {word}?"
        if (path / "checkpoints").is_dir():
            return f"{word}: this is a run; did you mean understudy resume {word}?"
        if path.suffix in SUFFIXES:
            return f"{word}: a settings file comes before the flags, and there is one"
        if path.suffix:
            return f"{word}: settings files end in {', '.join(SUFFIXES)}"
        if "/" in word or path.exists():
            return f"{word}: not a settings file ({', '.join(SUFFIXES)}); a dataset is given as --data.root {word}"
    if flag:
        return f"{flag}: takes no value but true or false, not {word}"
    return f"{word}: unexpected argument; settings are --name value"
