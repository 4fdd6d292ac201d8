"""Settings as frozen dataclasses: read from a YAML, TOML or JSON file, checked as a whole, written
back, compared.

A dataclass is the only schema: pydantic checks a file and the flags over it (`flags.py`), and all
errors are reported at once, by dotted path or flag. The settings themselves are next to each
command.
"""

import difflib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from understudy_base import ConfigError, Record, remember_credentials
from understudy_kit.config.files import read_file
from understudy_kit.config.help import (
    OTHER_TYPE,
    expected,
    flag_of,
    item_class,
    members,
    nearest_choice,
)
from understudy_kit.config.hooks import OtherNames, expanded, other_names
from understudy_kit.config.values import Misfit, find_misfits, selected, type_hints, with_ids

T = TypeVar("T")

_LEAVES = frozenset((str, int, float, bool, type(None)))


def validate(
    cls: type[T],
    content: Record,
    where: object = None,
    fresh: bool = True,
    brought: Record | None = None,
    flags: Collection[str] = (),
) -> T:
    """Make an instance of the dataclass `cls` from a nested mapping; missing names take the
    defaults.

    Credentials in addresses are removed (`without_credentials`).

    Args:
        cls: the settings class.
        content: the settings.
        where: the file, for messages.
        fresh: see `without_credentials`.
        brought: defaults that precede those of the classes, nested like `content`.
        flags: dotted paths that the command line gives: a message about them has the flag, and all
            are in one line.

    Raises:
        ConfigError: lists *all* errors, one `dotted.path: reason` a line; an unknown name comes
            with the nearest known one.
    """
    from pydantic import ValidationError

    content = _joined(cls, brought or {}, content)
    for name in getattr(cls, "UNCAPPED", ()):
        if str(content.get(name)) == "-1":
            content[name] = None
    content, misfits = with_ids(cls, content)
    misfits += find_misfits(cls, content)
    lines = [*_unknown_names(cls, content, other_names(cls)), *_unwritable(content)]
    for misfit in misfits:
        label = _label(misfit.path, flags)
        lines.append(f"{label}: {misfit.rule or _other_type(misfit.kind, label, misfit.value)}")
    try:
        kind: Any = cls
        config: T = _adapter(kind).validate_python(content)
    except ValidationError as error:
        lines += _describe_errors(cls, content, error.errors(), flags, misfits)
    if lines and flags:
        raise ConfigError("; ".join(lines))
    if lines:
        raise _as_error(lines, where)
    return without_credentials(config, fresh)


@cache
def _adapter(cls: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def validate_new(
    cls: type[T],
    content: Record,
    where: object = None,
    fresh: bool = True,
    flags: Collection[str] = (),
) -> T:
    """`validate` the settings of a new run: missing names take the defaults of its `run_defaults`.

    Short forms are written out (`Expands`).

    Raises:
        ConfigError: as in `validate`.
        MissingExtraError: the defaults are those of a package that is not installed.
    """
    content = expanded(cls, content, where)
    config = validate(cls, content, where, fresh, flags=flags)
    for _ in range(2):  # the schedule follows from the steps, which may be brought, too
        if brought := run_defaults(config):
            config = validate(cls, content, where, fresh, brought, flags)
    return config


def with_checked_lists(content: Record, config: Any) -> dict[str, Any]:
    """Return settings in which lists of dataclasses have the items of `config`, which is made of
    them: `validate` does not check those again.
    """
    checked = dict(content)
    for name, value in content.items():
        made = getattr(config, name, None)
        if isinstance(value, Mapping) and is_dataclass(made):
            checked[name] = with_checked_lists(value, made)
        elif isinstance(value, list) and isinstance(made, tuple) and all(map(is_dataclass, made)):
            checked[name] = list(made)
    return checked


def run_defaults(config: Any) -> dict[str, Any]:
    """Return the defaults that follow from other settings of `config`; empty for a class without
    such.
    """
    return config.run_defaults() if hasattr(config, "run_defaults") else {}


def _joined(cls: type, brought: Record, content: Record) -> dict[str, Any]:
    """Return `content` with the values of `brought` under the names that it lacks, group by
    group.
    """
    hints = type_hints(cls)
    joined = {**brought, **content}
    for name in brought.keys() & content.keys():
        if is_dataclass(hints[name]) and isinstance(content[name], Mapping):
            joined[name] = _joined(hints[name], brought[name], content[name])
    return joined


@cache
def _fields_of(cls: type) -> tuple[str, ...]:
    """Names of the fields of a dataclass."""
    return tuple(field.name for field in fields(cls))


def without_credentials(config: T, fresh: bool = True) -> T:
    """Return settings whose URLs have no credentials, so that no file or message contains any.

    The credentials stay in the memory of the process, for opening those URLs (`credentials.py`).

    Args:
        config: the settings.
        fresh: whether they replace credentials of the same addresses that are already known.
    """
    credentials: dict[str, str] = {}

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return remember_credentials(value, credentials, fresh)
        if isinstance(value, Mapping):
            return {key: clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(clean(item) for item in value)
        if is_dataclass(value) and not isinstance(value, type):
            values = {name: getattr(value, name) for name in _fields_of(type(value))}
            clean_values = {name: clean(item) for name, item in values.items()}
            return value if clean_values == values else replace(value, **clean_values)
        return value

    cleaned: T = clean(config)
    return cleaned


def complete(config: T, where: object = None) -> T:
    """Return `config` if its `problems()`, the rules between fields, are empty.

    This is separate from `validate`, because a file may leave required settings to the command
    line.

    Raises:
        ConfigError: lists all problems.
    """
    problems = getattr(config, "problems", None)
    if problems is not None and (errors := problems()):
        raise _as_error(errors, where)
    return config


def load(cls: type[T], path: str | Path, fresh: bool = True) -> T:
    """Read and `validate_new` a settings file."""
    return validate_new(cls, read_file(path), where=path, fresh=fresh)


def override(config: T, **changes: Any) -> T:
    """Return `config` with changed settings; a mapping changes a group:
    `override(config, val={"every": 0})`.
    """
    for name, value in changes.items():
        group = getattr(config, name)
        if is_dataclass(group) and isinstance(value, Mapping):
            value = override(group, **value)
        config = replace(config, **{name: value})  # type: ignore[type-var]
    return config


def dump_yaml(config: Any) -> str:
    """Write all settings, defaults included, as YAML that `load` reads back to an equal value."""
    import yaml

    # of libyaml, where PyYAML was built with it
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    # ASCII: PyYAML would write U+0085 as a line break.
    text: str = yaml.dump(plain(config), Dumper=dumper, sort_keys=False)
    return text


def plain(config: Any) -> dict[str, Any]:
    """Convert settings to nested dicts and lists of plain values (tuples become lists, paths become
    strings).
    """

    def simple(value: Any) -> Any:
        if type(value) in _LEAVES:
            return value
        if is_dataclass(value) and not isinstance(value, type):
            return {name: simple(getattr(value, name)) for name in _fields_of(type(value))}
        if isinstance(value, Mapping):
            return {key: simple(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [simple(item) for item in value]
        if type(value).__module__ == "numpy" and getattr(value, "ndim", 0) == 0:
            return value.item()
        return str(value) if isinstance(value, Path) else value

    content: dict[str, Any] = simple(config)
    return content


def differences(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Return dotted path -> (old, new) for every leaf in which two settings of the same class
    differ.
    """
    old_leaves = flat(plain(old))
    new_leaves = flat(plain(new))
    found = {}
    for path in old_leaves | new_leaves:
        pair = (old_leaves.get(path), new_leaves.get(path))
        if pair[0] != pair[1]:
            found[path] = pair
    return found


def flat(content: Record, prefix: str = "") -> dict[str, Any]:
    """Return dotted path -> value for every leaf of nested settings (`plain`)."""
    leaves: dict[str, Any] = {}
    for key, value in content.items():
        path = f"{prefix}{key}"
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            leaves.update(flat(value, path + "."))
        else:
            leaves[path] = value
    return leaves


def _as_error(lines: list[str], where: object) -> ConfigError:
    head = f"{where}: " if where is not None else ""
    if len(lines) == 1:
        return ConfigError(head + lines[0])
    return ConfigError("\n  ".join([f"{head}{len(lines)} settings cannot be used", *lines]))


def _label(path: Sequence[str], flags: Collection[str]) -> str:
    """Return the flag of a setting, or of the list that it is in, and else its dotted path."""
    for end in (len(path), len(path) - 1):
        dotted = ".".join(path[:end])
        if dotted in flags:
            return flag_of(dotted)
    return ".".join(path)


def _describe_errors(
    cls: type,
    content: Record,
    errors: Iterable[Any],
    flags: Collection[str],
    named: Iterable[Misfit],
) -> list[str]:
    """One line for each wrong setting that is not `named`: path or flag, rule, and the value if it
    is a plain one.
    """
    reports: dict[tuple[str, ...], list[Any]] = {}
    kinds: dict[tuple[str, ...], Any] = {}
    for error in errors:
        path, kind = _setting_at(cls, content, error["loc"])
        reports.setdefault(path, []).append(error)
        kinds[path] = kind
    lines = []
    for path, group in reports.items():
        if any(misfit.path[: len(path)] == path for misfit in named):
            continue
        label = _label(path, flags)
        of_rule = [error for error in group if error["type"] not in OTHER_TYPE]
        error = (of_rule or group)[0]
        shown = error["input"] if isinstance(error["input"], str | int | float) else None
        given = str(shown).lower() if isinstance(shown, bool) else shown
        if of_rule:
            rule = f"{error['msg'][:1].lower()}{error['msg'][1:]}"
            not_given = f", not {given}" if shown is not None else ""
            lines.append(f"{label}: {rule}{not_given}")
        else:
            alone = _as_list(kinds[path], error, shown)
            lines.append(f"{label}: {_other_type(kinds[path], label, shown)}{alone}")
    return lines


def _other_type(kind: Any, label: str, value: Any) -> str:
    """Describe a value of another type than its setting; None is one that is not shown."""
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    near = nearest_choice(kind, value)
    given = f", not {shown}" if value is not None else ""
    hint = f"; did you mean {near}?" if near else ""
    return f"must be {expected(kind, label)}{given}{hint}"


def _as_list(kind: Any, error: Any, shown: Any) -> str:
    """Return the remedy for a value alone where a list of such is needed, else ""."""
    if error["type"] != "tuple_type" or shown is None:
        return ""
    takes_list = any(Ellipsis in get_args(member) for member in members(kind))
    return f"; give [{json.dumps(shown)}]" if takes_list else ""


def _setting_at(cls: type, content: Any, place: Sequence[Any]) -> tuple[tuple[str, ...], Any]:
    """Return path and type of the setting to which pydantic's place of an error belongs."""
    path = list[str]()
    kind = cls
    for part in place:
        if isinstance(kind, type) and is_dataclass(kind):
            kind = type_hints(selected(kind, content) or kind).get(part, Any)
        elif isinstance(part, int) and (item := item_class(kind)) is not None:
            kind = item
        else:
            break
        path.append(str(part))
        try:
            content = content[part]
        except (KeyError, IndexError, TypeError):
            content = {}
    return tuple(path), kind


def _unwritable(content: Any, path: str = "") -> Iterator[str]:
    """One line for each text with the character NUL, which no system accepts in a name."""
    if isinstance(content, Mapping):
        for name, value in content.items():
            below = f"{path}.{name}" if path else str(name)
            yield from _unwritable(value, below)
    elif isinstance(content, list | tuple):
        for number, value in enumerate(content):
            yield from _unwritable(value, f"{path}.{number}")
    elif isinstance(content, str) and "\0" in content:
        yield f"{path}: {content!r} contains the character NUL"


def _of_other_tools(path: str, value: Any, others: OtherNames | None) -> list[str]:
    """One line for a name that `others` know, or for each such name in a group that is unknown
    here.
    """
    if others is None:
        return []
    if ours := others.equivalent(path):
        return [f"{path}: unknown name; here it is {ours}"]
    if not isinstance(value, Mapping):
        return []
    lines = list[str]()
    for name, item in value.items():
        lines += _of_other_tools(f"{path}.{name}", item, others)
    return lines


def _unknown_names(
    cls: type,
    content: Record,
    others: OtherNames | None,
    prefix: str = "",
) -> Iterator[str]:
    """One line for each unknown name: pydantic ignores them, and a misspelt setting would silently
    be its default.
    """
    hints = type_hints(cls)
    field_names = [field.name for field in fields(cls)]
    for name, value in content.items():
        if name not in field_names:
            if ours := _of_other_tools(f"{prefix}{name}", value, others):
                yield from ours
                continue
            close = difflib.get_close_matches(str(name), field_names, n=1, cutoff=0.5)
            hint = f"known here: {', '.join(field_names)}"
            if close:
                hint = f"did you mean {close[0]!r}?"
            yield f"{prefix}{name}: unknown name; {hint}"
        else:
            yield from _unknown_inside(hints[name], value, f"{prefix}{name}", others)


def _unknown_inside(
    kind: Any,
    value: Any,
    path: str,
    others: OtherNames | None,
) -> Iterator[str]:
    """One line for each unknown name in a value of the type `kind`: a dataclass, or a union or
    collection of some.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        if isinstance(value, Mapping):
            cls = selected(kind, value)
            if cls is None:
                yield from _of_other_tools(path, value, others)
            else:
                yield from _unknown_names(cls, value, others, f"{path}.")
        return
    for member in members(kind):
        origin = get_origin(member)
        inner = get_args(member)
        if is_dataclass(member):
            yield from _unknown_inside(member, value, path, others)
        elif isinstance(value, Mapping) and inner and _is_mapping(origin):
            for name, item in value.items():
                yield from _unknown_inside(inner[1], item, f"{path}.{name}", others)
        elif isinstance(value, list) and origin is tuple:
            for number, item in enumerate(value):
                yield from _unknown_inside(inner[0], item, f"{path}.{number}", others)


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)
