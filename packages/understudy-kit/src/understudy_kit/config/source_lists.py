"""`data.sources` as globs and list files, expanded into one entry per dataset before the settings
are checked.

A run stores the entries. So a folder that is added later is no source of it. A stored entry has all
settings, `name` among them: an entry with a name is one dataset, whatever characters its path has.

A list file is CSV in UTF-8 with a header. The column `path` is required. Other columns are settings
of a source (`SourceConfig`), written as on the command line: `name=key` pairs for a mapping, words
for a list. An empty cell is the default.
"""

import csv
import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_origin, get_type_hints
from urllib.parse import unquote, urlsplit

from understudy_base import ConfigError, Record, is_list, is_several, split_view, strip_credentials
from understudy_kit.config.dataset import DatasetConfig, SourceConfig
from understudy_kit.config.files import check_size, parse_json
from understudy_kit.config.help import members, takes_many

_PATH = "path"
_ROOT = "root"
_MOST_NAMED = 5
_INFO = "meta/info.json"
_SHOWN = 40
_RECORDED = "recorded"
"""Value of `stats` that is no file."""
_HUB = "a dataset of the hub is hf://datasets/OWNER/NAME"


def expand_settings(content: Record, where: object = None) -> Record:
    """Return settings of a run, nested as in a file, in which `data.sources` has an entry for each
    dataset.

    Where `data.sources` is a text or has texts, the settings of a single dataset beside it
    (`control_mode`, `action`) become those of all entries that do not have their own.

    Args:
        content: the settings, unchecked.
        where: the file, for messages.

    Raises:
        ConfigError: a glob without a match; a list file that cannot be read, or with an unknown
            column or a missing weight; a path that is no dataset, or that another source has, too,
            unless both are entries with a single path. Lists all of them.
    """
    data = content.get("data")
    if not isinstance(data, Mapping):
        return content
    items = data.get("sources")
    if isinstance(items, str):
        items = [items]
    if not isinstance(items, list | tuple):
        return content
    if not any(isinstance(item, str) or _is_glob(item) for item in items):
        return content
    errors: list[str] = []
    entries: list[Any] = []
    were_expanded: list[bool] = []
    of_texts = 0
    for item in items:
        if not isinstance(item, str) and not _is_glob(item):
            entries.append(item)
            were_expanded.append(False)
            continue
        if isinstance(item, str):
            own = {}
            several = _expand(item, errors)
            of_texts += len(several)
        else:
            own = {name: value for name, value in item.items() if name != _ROOT}
            several = _expand(_root_of(item), errors)
        for where_found, entry in several:
            _check_dataset(entry[_ROOT], where_found, errors)
            entries.append({**own, **entry})
        were_expanded += [True] * len(several)
    errors += _repeated(zip(map(_root_of, entries), were_expanded))
    if errors:
        prefix = f"{where}: data.sources: " if where is not None else "data.sources: "
        raise _as_error(errors, prefix)
    if of_texts == len(entries):  # in the sequence of a shell it would depend on the locale
        entries.sort(key=_root_of)
    shared = {name: data[name] for name in _of_dataset() if of_texts and name in data}
    sources: list[Any] = []
    for entry in entries:
        if isinstance(entry, Mapping):
            entry = {**shared, **entry}
        sources.append(entry)
    not_shared = {name: value for name, value in data.items() if name not in shared}
    return {**content, "data": {**not_shared, "sources": sources}}


def list_sources(address: str) -> list[dict[str, Any]]:
    """Return the settings of each dataset that a glob or a list file stands for, sorted by `root`.

    Raises:
        ConfigError: a glob without a match; a list file that cannot be read; a path that is there
            twice. A path that is no dataset is an entry.
    """
    errors: list[str] = []
    entries = [entry for _, entry in _expand(address, errors)]
    errors += _repeated((entry[_ROOT], True) for entry in entries)
    if errors:
        raise _as_error(errors, "path: ")
    return sorted(entries, key=_root_of)


def _as_error(errors: list[str], head: str) -> ConfigError:
    lines = errors[:_MOST_NAMED]
    if len(errors) > _MOST_NAMED:
        lines.append(f"and {len(errors) - _MOST_NAMED} more")
    return ConfigError(head + "\n  ".join(lines))


def _root_of(item: Any) -> str:
    if not isinstance(item, Mapping):
        return ""
    root = item.get(_ROOT)
    return root if isinstance(root, str) else ""


def _is_glob(item: Any) -> bool:
    """Whether an entry stands for several datasets; one with a name, as a run stores all of them,
    does not.
    """
    return isinstance(item, Mapping) and "name" not in item and is_several(_root_of(item))


def _of_dataset() -> list[str]:
    return [setting.name for setting in fields(DatasetConfig) if setting.name != _ROOT]


def _expand(address: str, errors: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Entries of one address, sorted, each with its place for messages; problems go into
    `errors`.
    """
    try:
        if "\0" in address:
            raise ValueError(f"{address!r} contains the character NUL: leave it out")
        if not is_several(address):
            return [("", {_ROOT: address})]
        if is_list(address):
            return _read_list(Path(os.path.expanduser(address)))
        return _match(address)
    except ValueError as error:
        errors.append(str(error))
        return []


def _match(pattern: str) -> list[tuple[str, dict[str, Any]]]:
    """Folders that a glob matches, sorted, with the place for messages."""
    path, view = split_view(pattern)
    if "**" in path.split("/"):
        raise ValueError(
            f"{pattern} has `**`, for any depth: write a `*` for each level, as in d/*/*/, or a "
            "list file"
        )
    matches = filter(os.path.isdir, glob.iglob(os.path.expanduser(path)))
    folders = sorted({folder.rstrip("/") for folder in matches})
    if not folders:
        raise ValueError(
            f"{pattern} matches no folder in {os.getcwd()}: correct it, or give the path of a list "
            "file"
        )
    return [(f"{pattern} matches ", {_ROOT: folder + view}) for folder in folders]


def _check_dataset(address: str, where: str, errors: list[str]) -> None:
    """Add an error for a folder that is no dataset."""
    path = os.path.expanduser(split_view(address)[0])
    if "://" in path or "@" in os.path.basename(path) or os.path.isfile(os.path.join(path, _INFO)):
        return
    problem = "where there is no folder"
    if os.path.isdir(path):
        problem = f"which is no dataset (no {_INFO})"
        fix = "leave it out" if where else f"correct the path; {_HUB}"
    elif "$" in path:
        fix = "write the path out, variables are not replaced here"
    elif glob.has_magic(path):
        fix = "a row is one dataset, so give a row for each; globs are sources beside the list"
    else:
        fix = f"correct the path; {_HUB}"
    errors.append(f"{where or 'there is '}{address}, {problem}: {fix}")


def _read_list(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Entries of a list file, sorted, each with its place. Relative paths are relative to the
    folder of the file.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path} cannot be read: {reason}; give a CSV file in UTF-8") from error
    names = [name.strip() for name in rows[0]] if rows else []
    if rows and not any(names):
        raise ValueError(
            f"{path} begins with an empty line: its first line names the columns, as in path,weight"
        )
    _check_header(path, names)
    entries = list(_rows(path, rows, names, get_type_hints(SourceConfig)))
    if not entries:
        raise ValueError(f"{path} has a header and no row: add a line for each dataset")
    return sorted(entries, key=lambda row: _root_of(row[1]))


def _check_header(path: Path, names: list[str]) -> None:
    """Raise ValueError for a first line that does not name the columns."""
    columns = [_PATH, *(setting.name for setting in fields(SourceConfig) if setting.name != _ROOT)]
    first = ",".join(names)
    if len(names) == 1 and any(mark in first for mark in ";\t"):
        raise ValueError(f"{path} has the header {first!r}: separate its columns by commas")
    if first.startswith("#"):
        raise ValueError(
            f"{path} begins with {first!r}: its first line names the columns, as in path,weight"
        )
    for name in names:
        if name not in columns and name.lower() in columns:
            raise ValueError(
                f"{path}: the column {name!r} is unknown: columns are lower case, {name.lower()!r}"
            )
    if _PATH not in names:
        raise ValueError(
            f"{path} has the columns {', '.join(names) or 'none'}: name one of them `{_PATH}`"
        )
    for name in names:
        if names.count(name) > 1 and name in columns:
            raise ValueError(f"{path}: the column {name!r} is there twice: keep one")
        if name not in columns:
            near = get_close_matches(name, columns, n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(columns)}"
            raise ValueError(f"{path}: the column {name!r} is unknown: {fix}")


def _rows(
    path: Path, rows: list[list[str]], names: list[str], kinds: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, row in enumerate(rows[1:], 2):
        where = f"{path}, row {number}: "
        if not any(cell.strip() for cell in row):
            continue
        if row[0].lstrip().startswith("#"):
            raise ValueError(
                f"{where}{_shown(row[0])}: a list has no comments; delete it (a folder #x is ./#x)"
            )
        if len(row) != len(names):
            raise ValueError(
                f"{where}{len(row)} cells for {len(names)} columns: quote a cell that has a comma"
            )
        cells = {name: cell.strip() for name, cell in zip(names, row)}
        for name, cell in cells.items():
            if "\0" in cell:
                raise ValueError(
                    f"{where}{name} is {_shown(cell)}, with the character NUL: leave it out"
                )
        if not (address := cells.pop(_PATH)):
            raise ValueError(f"{where}the path is empty: give the folder or URL of a dataset")
        address = _beside(path, address)
        if not cells.get("weight", "1"):
            raise ValueError(
                f"{where}{address} has no weight: give each source one, or leave out the column"
            )
        try:
            entry = {name: _value(name, kinds[name], cell) for name, cell in cells.items() if cell}
        except ValueError as error:
            raise ValueError(f"{where}{error}") from error
        for name, value in entry.items():
            if _is_file(name, value):
                entry[name] = _beside(path, value)
        yield f"{where}names ", {_ROOT: address, **entry}


def _beside(path: Path, cell: str) -> str:
    """Return the path in a cell of the list file `path`: from its folder, with each `..` as
    written; no URL.
    """
    if "://" in cell:
        return cell
    return str(path.parent / os.path.expanduser(cell))


def _is_file(name: str, value: Any) -> bool:
    """Whether the value of a setting is the path of a file, not a word or the key of a feature."""
    if name == "frame_weights":
        return str(value).endswith(".parquet")
    return name == "keep_ranges" or (name == "stats" and value != _RECORDED)


def _value(name: str, kind: Any, cell: str) -> Any:
    """Return a cell as a settings file would hold it: a number, a text, a list or a mapping."""
    if float in members(kind):
        try:
            return float(cell)
        except ValueError as error:
            raise ValueError(f"{name} is {_shown(cell)}: give a number, as in 2.5") from error
    if not takes_many(kind):
        return cell
    if cell[0] in "[{":
        try:
            value = parse_json(cell)
            check_size(value)
            return value
        except ValueError as error:
            raise ValueError(f"{name} is {_shown(cell)}: {error}") from error
    words = cell.split()
    if not any(get_origin(member) is dict for member in members(kind)):
        return words
    pairs = [word.split("=", 1) for word in words]
    if any(len(pair) < 2 for pair in pairs):
        raise ValueError(f"{name} is {_shown(cell)}, no mapping: give NAME=KEY pairs")
    return dict(pairs)


def _shown(cell: str) -> str:
    shortened = cell if len(cell) <= _SHOWN else f"{cell[:_SHOWN]}…"
    return repr(shortened)


def _repeated(roots: Iterable[tuple[str, bool]]) -> Iterator[str]:
    """One line for each dataset that is there twice, of (address, whether it may be there once
    only).
    """
    places: dict[str, tuple[str, bool]] = {}
    for root, once in roots:
        if not root or "\0" in root:  # of an entry, and refused with its other settings
            continue
        place = _place(root)
        earlier, earlier_once = places.get(place, (root, False))
        if place in places and (once or earlier_once):
            same = "twice" if earlier == root else f"as {earlier}, too"
            yield f"{root} is there {same}: keep one, or give parts of it as views, PATH#NAME"
        places[place] = (earlier, once or earlier_once)


def _place(root: str) -> str:
    """Return one spelling for all addresses of a dataset, with its view."""
    path, view = split_view(root)
    if path.startswith("file://"):
        path = unquote(urlsplit(path).path)
    if "://" in path:
        return strip_credentials(path).rstrip("/") + view
    return os.path.realpath(os.path.expanduser(path)) + view
