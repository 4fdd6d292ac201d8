"""`data.sources` as globs and list files, expanded into one entry per dataset before the settings are checked.

A run stores the entries. So a folder that is added later is no source of it.

A list file is CSV in UTF-8 with a header. The column `path` is required. Other columns are settings of a source
(`SourceConfig`), written as on the command line: `name=key` pairs for a mapping, words for a list. An empty cell is the
default.
"""

import csv
import glob
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from understudy.config.data import DatasetConfig, SourceConfig
from understudy.config.help import members, takes_many
from understudy.dataset_address import split_view
from understudy.errors import ConfigError
from understudy.records import Record

LIST_SUFFIX = ".csv"
"""Suffix of list files."""
_PATH, _ROOT = "path", "root"
_MOST_NAMED = 5
_INFO = "meta/info.json"


def is_several(address: str) -> bool:
    """Return whether an address stands for several datasets: a glob that is no folder itself, or a list file."""
    path = os.path.expanduser(split_view(address)[0])
    return "://" not in address and not os.path.isdir(path) and (_is_list(address) or glob.has_magic(path))


def expand_settings(content: Record, where: object = None) -> Record:
    """Return settings of a run, nested as in a file, in which `data.sources` has an entry for each dataset.

    Where `data.sources` is a text or has texts, the settings of a single dataset beside it (`control_mode`, `action`)
    become those of all entries that do not have their own.

    Args:
        content: the settings, unchecked.
        where: the file, for messages.

    Raises:
        ConfigError: a glob without a match; a list file that cannot be read, or with an unknown column or a missing
            weight; a path that is no dataset, or is there twice. Lists all of them.
    """
    data = content.get("data")
    given = data.get("sources") if isinstance(data, Mapping) else None
    items = [given] if isinstance(given, str) else given
    if not isinstance(data, Mapping) or not isinstance(items, list | tuple):
        return content
    if not any(isinstance(item, str) or is_several(_root_of(item)) for item in items):
        return content
    errors: list[str] = []
    entries: list[Any] = []
    of_texts: list[str] = []
    for item in items:
        if isinstance(item, str) or is_several(_root_of(item)):
            address = item if isinstance(item, str) else _root_of(item)
            own = {} if isinstance(item, str) else {name: value for name, value in item.items() if name != _ROOT}
            found = [{**own, **entry} for entry in _expand(address, errors)]
            of_texts += [entry[_ROOT] for entry in found if isinstance(item, str)]
            entries += found
        else:
            entries.append(item)
    if len(of_texts) == len(entries):  # in the sequence of a shell it would depend on the locale
        entries.sort(key=lambda entry: str(entry[_ROOT]))
    errors += _repeated(of_texts)
    if errors:
        more = f"\n  and {len(errors) - _MOST_NAMED} more" if len(errors) > _MOST_NAMED else ""
        head = f"{where}: data.sources: " if where is not None else "data.sources: "
        raise ConfigError(head + "\n  ".join(errors[:_MOST_NAMED]) + more)
    shared = {name: data[name] for name in _of_dataset() if of_texts and name in data}
    whole = [{**shared, **entry} if isinstance(entry, Mapping) else entry for entry in entries]
    rest = {name: value for name, value in data.items() if name not in shared}
    return {**content, "data": {**rest, "sources": whole}}


def list_sources(address: str) -> list[dict[str, Any]]:
    """Return the settings of each dataset that a glob or a list file stands for, sorted by `root`.

    Raises:
        ConfigError: as `expand_settings`.
    """
    entries: list[dict[str, Any]] = expand_settings({"data": {"sources": [address]}})["data"]["sources"]
    return entries


def _root_of(item: Any) -> str:
    root = item.get(_ROOT) if isinstance(item, Mapping) else None
    return root if isinstance(root, str) else ""


def _is_list(address: str) -> bool:
    return Path(address).suffix.lower() == LIST_SUFFIX


def _of_dataset() -> list[str]:
    return [setting.name for setting in fields(DatasetConfig) if setting.name != _ROOT]


def _expand(address: str, errors: list[str]) -> list[dict[str, Any]]:
    """Entries of one address, sorted; problems go into `errors`."""
    if not is_several(address):
        return [{_ROOT: _checked(address, "", errors)}]
    try:
        found = _read_list(Path(os.path.expanduser(address))) if _is_list(address) else _match(address)
        return [entry | {_ROOT: _checked(entry[_ROOT], where, errors)} for where, entry in found]
    except ValueError as error:
        errors.append(str(error))
        return []


def _match(pattern: str) -> list[tuple[str, dict[str, Any]]]:
    """Folders that a glob matches, sorted, with the place for messages."""
    path, view = split_view(pattern)
    found = (folder.rstrip("/") for folder in glob.iglob(os.path.expanduser(path)) if os.path.isdir(folder))
    folders = sorted(set(found))
    if not folders:
        raise ValueError(f"{pattern} matches no folder in {os.getcwd()}: correct it, or give the path of a list file")
    return [(f"{pattern} matches ", {_ROOT: folder + view}) for folder in folders]


def _checked(address: str, where: str, errors: list[str]) -> str:
    """Return an address; a folder that is no dataset is an error."""
    path = os.path.expanduser(split_view(address)[0])
    if "://" not in path and "@" not in os.path.basename(path) and not os.path.isfile(os.path.join(path, _INFO)):
        what = f"which is no dataset (no {_INFO})" if os.path.isdir(path) else "where there is no folder"
        fix = "leave it out" if where else "correct the path; a dataset of the hub is hf://datasets/OWNER/NAME"
        errors.append(f"{where or 'there is '}{address}, {what}: {fix}")
    return address


def _read_list(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Entries of a list file, sorted, each with its place. Relative paths are relative to the folder of the file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path} cannot be read: {reason}; give a CSV file in UTF-8") from error
    names = [name.strip() for name in rows[0]] if rows else []
    kinds = get_type_hints(SourceConfig)
    known = [_PATH, *(setting.name for setting in fields(SourceConfig) if setting.name != _ROOT)]
    if _PATH not in names:
        raise ValueError(f"{path} has the columns {', '.join(names) or 'none'}: name one of them `{_PATH}`")
    for name in names:
        if name not in known or names.count(name) > 1:
            near = get_close_matches(name, known, n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            problem = "is there twice: keep one" if name in known else f"is unknown: {fix}"
            raise ValueError(f"{path}: the column {name!r} {problem}")
    found = list(_rows(path, rows, names, kinds))
    if not found:
        raise ValueError(f"{path} has a header and no row: add a line for each dataset")
    return sorted(found, key=lambda row: str(row[1][_ROOT]))


def _rows(
    path: Path, rows: list[list[str]], names: list[str], kinds: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, row in enumerate(rows[1:], 2):
        where = f"{path}, row {number}: "
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(names):
            raise ValueError(f"{where}{len(row)} cells for {len(names)} columns: quote a cell that has a comma")
        cells = {name: cell.strip() for name, cell in zip(names, row)}
        if not (address := cells.pop(_PATH)):
            raise ValueError(f"{where}the path is empty: give the folder or URL of a dataset")
        if "://" not in address:
            address = os.path.normpath(path.parent / os.path.expanduser(address))
        if not cells.get("weight", "1"):
            raise ValueError(f"{where}{address} has no weight: give each source one, or leave out the column")
        try:
            entry = {name: _value(name, kinds[name], cell) for name, cell in cells.items() if cell}
        except ValueError as error:
            raise ValueError(f"{where}{error}") from error
        yield f"{where}names ", {_ROOT: address, **entry}


def _value(name: str, kind: Any, cell: str) -> Any:
    """Return a cell as a settings file would hold it: a number, a text, a list or a mapping."""
    if float in members(kind):
        try:
            return float(cell)
        except ValueError as error:
            raise ValueError(f"{name} is {cell!r}: give a number, as in 2.5") from error
    if not takes_many(kind):
        return cell
    if cell[0] in "[{":
        return json.loads(cell)
    words = cell.split()
    if not any(get_origin(member) is dict for member in members(kind)):
        return words
    pairs = [word.split("=", 1) for word in words]
    if any(len(pair) < 2 for pair in pairs):
        raise ValueError(f"{cell!r} is no mapping: give NAME=KEY pairs")
    return dict(pairs)


def _repeated(roots: list[str]) -> Iterator[str]:
    """One line for each dataset that is there twice."""
    places: dict[str, str] = {}
    for root in roots:
        path, view = split_view(root)
        place = (path if "://" in path else os.path.realpath(os.path.expanduser(path))) + view
        if place in places:
            same = "twice" if places[place] == root else f"as {places[place]}, too"
            yield f"{root} is there {same}: keep one, or give parts of it as views, PATH#NAME"
        places.setdefault(place, root)
