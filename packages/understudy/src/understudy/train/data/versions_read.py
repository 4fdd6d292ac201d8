"""Versions of the datasets that a run read, for records and messages.

order.json has those of its start, and each checkpoint those of every start up to it. They are no
part of a sample's identity: a run goes on with another version whose episodes are equal.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from understudy.config.data import DataConfig
from understudy.train.data.run_data import RunData
from understudy_base import Record, split_view
from understudy_data import Catalog

Versions = Sequence[Mapping[str, str]]
"""Of each source `source`, its name, and `version` and `address` of its dataset
(`Files.version_read`).

Sources are compared by their sequence: that of a run never changes, and a name may follow the
address.
"""


def versions_read(data: RunData) -> list[dict[str, str]]:
    """Return the version of the dataset of each source; an update has that of its source."""
    versions = []
    for source in data.configured:
        files = source.training.catalog.files
        versions.append(
            {"source": source.name, "version": files.version_read, "address": files.version_address}
        )
    return versions


def latest_versions(record: Record, saved: Record | None) -> Versions:
    """Return the versions of the latest start before a checkpoint; with no `saved` state those of
    order.json.
    """
    starts: Sequence[Record] = (saved or {}).get("starts", ())
    latest: Versions = starts[-1].get("versions", ()) if starts else ()
    return latest or record.get("versions", ())


def list_versions(record: Record, starts: Sequence[Record]) -> list[dict[str, Any]]:
    """Return step, source, version and address where a start of a run read another version than the
    one before.
    """
    rows = list[dict[str, Any]]()
    latest = dict[int, str]()
    for start in ({"step": 0, "versions": record.get("versions", ())}, *starts):
        for number, version in enumerate(start.get("versions", ())):
            if latest.get(number) != version["version"]:
                rows.append({"step": start["step"], **version})
            latest[number] = version["version"]
    return rows


def describe_versions(before: Versions, now: Versions | None, settings: DataConfig) -> list[str]:
    """Return a line for each source of which another version was read before, or for all if none
    differs.

    Args:
        before: the recorded versions.
        now: those of the data that is open; None if it cannot be opened.
        settings: those of the run's data.
    """
    present = [of["version"] for of in now] if now is not None else [""] * len(before)
    changed = [of["version"] != version for of, version in zip(before, present, strict=True)]
    lines = []
    for number, (of, version, is_changed) in enumerate(zip(before, present, changed, strict=True)):
        if is_changed or not any(changed):
            line = f"  {of['source']}: the run read {of['version'] or 'an unknown version'}"
            if is_changed and version:
                line += f", now {version}"
            if is_changed:
                line += _remedy(of["address"], number, settings)
            else:
                line += ", whose files of meta/ are unchanged"
            lines.append(line)
    return lines


def _remedy(address: str, number: int, settings: DataConfig) -> str:
    """Say how to read the version at `address` again; "" where it is not there."""
    if not address or Catalog.is_gone(address):
        return ""
    sources = settings.mixed()
    view = split_view(sources[number].root)[1] if number < len(sources) else ""
    if settings.sources:
        return f"; set data.sources.{number}.root: {address}{view} in config.yaml of the run"
    return f"; to read that one: --data.root {shlex.quote(address + view)}"
