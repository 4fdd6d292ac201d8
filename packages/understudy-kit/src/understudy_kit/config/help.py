"""Help text of a settings class: each setting with its flag, meaning and default, in groups.

The meaning of a setting is the docstring below its field, read from the source. The same types give
the placeholder of a value in the help (`placeholder`) and the rule in an error (`expected`).
"""

import ast
import difflib
import functools
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from itertools import pairwise
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from understudy_base import with_addresses
from understudy_kit.config.declare import POSITIONAL
from understudy_kit.config.hooks import is_union

COLUMN = 30
"""Column at which the meanings begin; a longer flag has a separate line."""
VALUES = {int: "INT", float: "FLOAT", str: "TEXT"}
"""Placeholder of a value by its type."""
RULES = {int: "a whole number", float: "a number", bool: "true or false"}
"""Description of a value by its type; others are texts."""
OTHER_TYPE = {
    "int_type", "int_parsing", "int_from_float", "float_type", "float_parsing",
    "bool_type", "bool_parsing", "string_type", "literal_error",
    "dict_type", "tuple_type", "list_type", "too_short", "too_long", "missing",
}  # fmt: skip
"""Pydantic's errors about a value of another type than its setting; the message is `expected`."""


@dataclass(frozen=True)
class Setting:
    """One setting of a class.

    Attributes:
        path: Dotted path.
        kind: Type of its values.
        text: Meaning, as one line.
        default: Default value.
        positional: Whether it is an argument without a flag.
    """

    path: str
    kind: Any
    text: str
    default: Any
    positional: bool = False

    def flag(self) -> str:
        """Return the flag with a placeholder of its value: `--optim.lr FLOAT`."""
        if self.kind is bool:
            return f"{flag_of(self.path)}, {negation_of(self.path)}"
        name = self.path.rpartition(".")[2].replace("_", "-")
        return f"{flag_of(self.path)} {placeholder(self.kind, name)}"

    def meaning(self) -> str:
        """Return the meaning with the default, unless the text or an empty value already gives
        it.
        """
        if self.default in (None, "", (), {}):
            says_default = "default" in self.text or "equired" in self.text or self.positional
            return self.text if says_default else f"{self.text} (default: none)".strip()
        return f"{self.text} (default: {_shown(self.default)})".strip()


@dataclass(frozen=True)
class Group:
    """Settings of one dataclass, without those of the dataclasses inside it."""

    name: str
    """Dotted path; empty for the outermost class."""
    text: str
    settings: list[Setting]


def groups(cls: type, default: Any = None, name: str = "") -> Iterator[Group]:
    """Yield the groups of a settings class, the outermost first.

    Args:
        cls: The settings class.
        default: An instance with the defaults to show; None for those of the class.
        name: Dotted path of the class.
    """
    hints = get_type_hints(cls, include_extras=True)
    texts = _texts(cls)
    plain = []
    inner = []
    prefix = f"{name}." if name else ""
    for setting in fields(cls):
        value = _default_of(setting) if default is None else getattr(default, setting.name)
        if is_dataclass(value):
            inner.append((type(value), value, f"{prefix}{setting.name}"))
        elif item_class(get_type_hints(cls)[setting.name]) is None:
            markers = getattr(hints[setting.name], "__metadata__", ())
            positional = POSITIONAL in markers
            text = texts.get(setting.name, "")
            kind = get_type_hints(cls)[setting.name]
            if is_union(cls) and setting.name == "type":
                union: Any = cls
                kind = Literal[tuple(union.types())]
                text = f"{text} The settings of another one: --{prefix}type NAME --help."
            plain.append(Setting(f"{prefix}{setting.name}", kind, text, value, positional))
    yield Group(name, with_addresses(" ".join(inspect.cleandoc(cls.__doc__ or "").split())), plain)
    for kind, value, path in inner:
        yield from groups(kind, value, path)


def format_groups(shown_groups: Sequence[Group]) -> str:
    """Format groups of flags for a terminal, one paragraph each."""
    parts = []
    for group in shown_groups:
        rows = [
            (setting.flag(), setting.meaning())
            for setting in group.settings
            if not setting.positional
        ]
        if rows:
            head = "settings:"
            if group.name:
                title = f"{group.name}: {group.text}" if group.text else group.name
                head = wrap(title)
            parts.append("\n".join([head, format_rows(rows)]))
    return "\n\n".join(parts)


def format_items(cls: type) -> str:
    """Format the settings of a class with names as in a file."""
    rows = [
        (f"{item.path} {placeholder(item.kind)}".strip(), item.meaning())
        for item in next(groups(cls)).settings
    ]
    return format_rows(rows)


def format_rows(rows: Sequence[tuple[str, str]]) -> str:
    """Format names and meanings in two columns."""
    lines = []
    for name, text in rows:
        width = max(30, _width() - COLUMN)
        wrapped = textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False) or [""]
        first = f"  {name}"
        if len(first) > COLUMN - 2:
            lines.append(first)
            first = ""
        lines.append(f"{first:<{COLUMN}}{wrapped[0]}".rstrip())
        lines += [" " * COLUMN + line for line in wrapped[1:]]
    return "\n".join(lines)


def first_sentence(text: str) -> str:
    """Return the first sentence of a meaning, with the default behind it."""
    sentence, stop, remaining = text.partition(". ")
    match = re.search(r"\(default: [^()]*\)$", remaining)
    default = match[0] if match else ""
    return f"{sentence}{stop.strip()} {default}".strip()


def flag_of(path: str) -> str:
    """Return the flag of a dotted path: `--data.val-fraction`."""
    return "--" + path.replace("_", "-")


def negation_of(path: str) -> str:
    """Return the flag that switches a setting off: `--log.no-report`."""
    group, dot, name = path.rpartition(".")
    return flag_of(f"{group}{dot}no-{name}")


def members(kind: Any) -> list[Any]:
    """Return the types of a union without None, or the type itself."""
    if get_origin(kind) in (None, Literal, tuple, dict, Mapping):
        return [kind]
    return [member for member in get_args(kind) if member is not NoneType]


def takes_many(kind: Any) -> bool:
    """Return whether any number of words may follow the flag of a setting of this type."""
    return any(
        get_origin(member) is dict or Ellipsis in get_args(member) for member in members(kind)
    )


def item_class(kind: Any) -> type | None:
    """Return the class of the items of a list of dataclasses, which flags cannot set; None for
    other types.
    """
    return next(
        (item for item in get_args(kind) if isinstance(item, type) and is_dataclass(item)), None
    )


def choices(kind: Any) -> tuple[str, ...]:
    """Return the values to choose from, also of those inside a union, a list or a mapping."""
    if get_origin(kind) is Literal:
        return tuple(str(choice) for choice in get_args(kind) if choice not in ("", None))
    inside: list[str] = []
    for inner in get_args(kind):
        if inner is not Ellipsis:
            inside += choices(inner)
    return tuple(dict.fromkeys(inside))


def expected(kind: Any, name: str = "") -> str:
    """Describe the values of a type, as in `must be a whole number or one of 'latest', 'best'`.

    Args:
        kind: the type.
        name: its setting or flag, for an example; a flag takes words, and a file lists and
            mappings.
    """
    rules = []
    flag = name.startswith("--")
    for member in members(kind):
        origin = get_origin(member)
        inside = get_args(member)
        if origin is tuple:
            if Ellipsis in inside:
                form = "" if flag else "a list, each item "
            else:
                form = f"{len(inside)} values, each "
                if not flag:
                    form = f"a list of {form}"
            rules.append(f"{form}{expected(inside[0])}")
        elif origin in (dict, Mapping):
            first = (choices(inside[0]) or ("NAME",))[0]
            last = (choices(inside[0]) or ("OTHER",))[-1]
            kinds, example = ("weights", "0.5") if inside[1] is float else ("pairs", "TEXT")
            example = (choices(inside[1]) or (example,))[-1]
            pairs = f"{kinds} as in `{name} {first} {example} {last} {example}`"
            if not flag:
                pairs = f"{kinds} as in `{{{first}: {example}, {last}: {example}}}`"
            rules.append(pairs)
        elif origin is Literal:
            listed = ", ".join(map(repr, choices(member)))
            if len(choices(member)) > 1:
                listed = f"one of {listed}"
            rules.append(listed)
        else:
            rules.append(RULES.get(member, "a text"))
    return ", or ".join(rules)


def nearest_choice(kind: Any, value: Any) -> str:
    """Return the choice that a misspelt word is near to, or ""."""
    if not isinstance(value, str):
        return ""
    return next(iter(difflib.get_close_matches(value, choices(kind), n=1)), "")


def placeholder(kind: Any, name: str = "name") -> str:
    """Return the placeholder of a value: `INT`, `{cpu,cuda}`, `TEXT ...`.

    Args:
        kind: Type of the value.
        name: Name of the setting. A choice, or weights of choices, is `NAME | NAME WEIGHT ...` by
            it.
    """
    origin = get_origin(kind)
    inside = get_args(kind)
    if kind is bool:
        return "{true,false}"
    if origin is Literal:
        names = choices(kind)
        return "{" + ",".join(names) + "}" if len(names) > 1 else names[0]
    if origin is tuple:
        kinds = [placeholder(member) for member in inside if member is not Ellipsis]
        more = " ..." if Ellipsis in inside else ""
        return " ".join(kinds) + more
    if origin is dict:
        pair = " ".join(placeholder(member) for member in inside)
        return pair.replace("TEXT", "NAME", 1) + " ..."
    if {Literal, dict} <= set(map(get_origin, inside)):  # a choice, or weights of choices
        pairs = next(get_args(member) for member in inside if get_origin(member) is dict)
        if not choices(pairs[0]):  # names of the data's own
            return f"{name.upper()} | NAME {name.upper()} ..."
        return f"{name.upper()} | {name.upper()} WEIGHT ..."
    if inside:  # a union
        return "|".join(placeholder(member) for member in inside if member is not NoneType)
    return VALUES.get(kind, "VALUE")


def _default_of(setting: "Field[Any]") -> Any:
    if setting.default is not MISSING:
        return setting.default
    if setting.default_factory is not MISSING:
        return setting.default_factory()
    return None


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict):
        return " ".join(f"{key} {entry}" for key, entry in value.items())
    if isinstance(value, tuple | list):
        return " ".join(map(str, value))
    return str(value)


@functools.cache
def _texts(cls: type) -> dict[str, str]:
    """Docstrings of the fields of a class, each as one line; those of a class override its
    bases'.
    """
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(base))
            body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
        except (OSError, TypeError, SyntaxError):  # a class without source
            continue
        for node, doc in pairwise(body):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and isinstance(doc, ast.Expr)
            ):
                text = getattr(doc.value, "value", None)
                if isinstance(text, str):
                    texts[node.target.id] = with_addresses(" ".join(text.split()))
    return texts


def wrap(text: str) -> str:
    """Break the lines of each paragraph at the width of the terminal."""
    parts = text.strip().split("\n\n")
    lines = [
        textwrap.wrap(part, _width(), break_on_hyphens=False, break_long_words=False)
        for part in parts
    ]
    return "\n\n".join(map("\n".join, lines))


def _width() -> int:
    return max(60, min(120, shutil.get_terminal_size().columns))
