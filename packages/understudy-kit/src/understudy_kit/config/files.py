"""Settings files: YAML, TOML or JSON, read as one mapping of plain values."""

import json
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from understudy_base import ConfigError

SUFFIXES = (".yaml", ".yml", ".toml", ".json")
"""Suffixes of settings files."""
_DEPTH = 100
_VALUES = 1_000_000
"""Levels of a file, and values that its aliases may stand for beyond twice those that it has."""


def read_file(path: str | Path) -> dict[str, Any]:
    """Read the mapping in a settings file (`SUFFIXES`), unchecked.

    Raises:
        ConfigError: the file cannot be read or parsed, or does not hold a mapping.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from error
    if path.suffix == ".toml":
        try:
            return _as_mapping(path, tomllib.loads(text))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: not valid TOML: {error}") from error
    if path.suffix == ".json":
        return _as_mapping(path, _parse_json(path, text))
    import yaml

    try:
        content = yaml.load(text, _unique_loader())
    # a number of 5,000 digits; thousands of brackets
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    return _as_mapping(path, content)


def _parse_json(path: Path, text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_json(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError: it is none, repeats a key, or is nested
    too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from error


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a mapping. Raises ValueError: a key is there twice, as in a file that two editors
    merged.
    """
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice} is set {names.count(twice)} times; keep one of them")
    return mapping


@cache
def _unique_loader() -> Any:
    """Return yaml's safe loader, which also refuses a repeated key; a key beside a merge (`<<`) is
    none.
    """
    import yaml

    # of libyaml where it is there: six times as fast
    parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(parser):  # type: ignore[misc, valid-type]
        def flatten_mapping(self, node: Any) -> None:
            """Refuse a repeated key; take the pairs of merges (`<<`) once, so that merges of merges
            do not multiply.
            """
            _unique(
                [(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            )
            super().flatten_mapping(node)
            pairs = dict[Any, tuple[Any, Any]]()
            for key, value in node.value:
                identity = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
                pairs[identity] = (key, value)
            node.value = list(pairs.values())

    return Loader


def _as_mapping(path: Path, content: Any) -> dict[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds a {type(content).__name__}, expected `name: value` lines")
    try:
        check_size(content)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return content


def check_size(content: Any) -> None:
    """Visit each list and mapping once, however many aliases name it.

    Raises:
        ValueError: one holds itself, is nested too deeply, or aliases stand for too many values.
            Every later walk takes an alias for the values that it stands for.
    """
    sizes = dict[int, int]()  # values that a list or mapping stands for, by its identity
    entered = dict[int, Any]()
    stack: list[tuple[Any, Iterator[Any]]] = [(content, iter(_items(content)))]
    entered[id(content)] = content
    while stack:
        value, items = stack[-1]
        item = next(
            (item for item in items if isinstance(item, dict | list) and id(item) not in sizes),
            None,
        )
        if item is None:
            sizes[id(value)] = 1 + sum(sizes.get(id(inner), 1) for inner in _items(value))
            del entered[id(value)]
            stack.pop()
        elif id(item) in entered:
            raise ValueError(
                "a list or mapping holds itself, through an alias of YAML: write its values out"
            )
        elif len(stack) >= _DEPTH:
            raise ValueError(
                f"lists and mappings are nested more than {_DEPTH} levels deep; settings have a few"
            )
        else:
            entered[id(item)] = item
            stack.append((item, iter(_items(item))))
    if sizes[id(content)] > max(_VALUES, 2 * _count(content, sizes)):
        raise ValueError(
            f"its aliases stand for {sizes[id(content)]:,} values: write out those that a setting "
            "needs"
        )


def _items(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _count(content: Any, sizes: dict[int, int]) -> int:
    """Return the number of values that a file has, each list and mapping once."""
    seen = {id(content)}
    waiting = [content]
    count = 0
    while waiting:
        items = _items(waiting.pop())
        count += len(items)
        for item in items:
            if id(item) in sizes and id(item) not in seen:
                seen.add(id(item))
                waiting.append(item)
    return count
