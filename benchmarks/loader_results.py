"""Results of `loader.py`: one JSON object that grows, its file, and its table.

Each finished row is written at once, so a stopped run loses one row at most. The next run with the same file measures
missing rows only. One file can hold figures of several runs, each with its own date, but not of other settings or
another machine. `loader.py` and `loader_remote.py` measure.
"""

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

EMPTY: dict[str, Any] = {
    "rows": [],
    "parquet_only_samples_per_s": None,
    "parquet_only_cpu_ms_per_sample": None,
    "parquet_only_lerobot_cpu_ms_per_sample": None,
    "first_batch_s": None,
    "first_batches": [],
    "remote": [],
    "conditions": {},
}
"""The empty object: every key, before any measurement."""
SAME = ("cpu", "cores", "understudy", "recordings", "quick", "batch", "chunk", "rounds", "seconds")
"""The conditions that figures of one object share."""


class Results:
    """The object `found`, in `file` if there is one.

    Args:
        conditions: conditions of this run. The object keeps those of its first run.

    Raises:
        SystemExit: the file holds figures of other conditions.
    """

    def __init__(self, file: Path | None, conditions: dict[str, Any]) -> None:
        self._file = file
        earlier = json.loads(file.read_text()) if file is not None and file.exists() else {}
        self.found: dict[str, Any] = json.loads(json.dumps(EMPTY)) | {"conditions": conditions} | earlier
        for key in SAME:
            theirs, ours = self.found["conditions"].get(key), conditions[key]
            if theirs != ours:
                raise SystemExit(
                    f"{file}: its figures are of {key} {theirs!r}, this run is of {ours!r}; take another file"
                )

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Add a row to `rows`, `first_batches` or `remote` with its date and the load. Prints and writes it."""
        now = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), "load_average": list(os.getloadavg())}
        self.found[key].append(row | now)
        say({"rows": _row, "first_batches": _first, "remote": _remote}[key](row))
        self._write()

    def set(self, **figures: Any) -> None:
        """Set single figures."""
        self.found |= figures
        say("; ".join(f"{key} {value}" for key, value in figures.items()))
        self._write()

    def _write(self) -> None:
        self.found["conditions"]["load_average_after"] = list(os.getloadavg())
        limits = {row["name"]: row["limit_per_s"] for row in self.found["rows"]}
        for each in self.found["first_batches"]:  # its row may be measured later
            limit = limits.get(each["name"])
            each["floor_s"] = each["pictures"] / (limit * each["cameras"]) if limit else None
        short = [each["seconds"] for each in self.found["first_batches"] if each["gop"] == 2]
        self.found["first_batch_s"] = short[0] if short else None
        if self._file is not None:
            making = self._file.with_name(self._file.name + ".making")
            making.write_text(json.dumps(self.found, indent=1) + "\n")
            making.replace(self._file)


def say(*words: object) -> None:
    print(*words, file=sys.stderr, flush=True)


def _row(row: dict[str, Any]) -> str:
    other = row["lerobot_cpu_ms_per_sample"]
    return (
        f"{row['name']}: {row['samples_per_s']:,.0f} samples/s, {row['over_limit']:.2f} of the limit, "
        f"{row['over_codec_limit']:.2f} of the codec, {row['over_shuffled_limit']:.2f} of it shuffled, "
        f"{row['cpu_ms_per_sample']:.3f} CPU ms, "
        f"{row['peak_mb']:,.0f} MB of {row['planned_mb']:,.0f} planned"
        + (f"; LeRobot {other:.2f} CPU ms" if other else "")
    )


def _first(each: dict[str, Any]) -> str:
    floor = each.get("floor_s")
    return (
        f"first batch of {each['name']} after {each['seconds']:.2f} s: needs {each['pictures']:.0f} frames"
        + (f", {floor:.2f} s at the limit" if floor else "")
    )  # fmt: skip


def _remote(each: dict[str, Any]) -> str:
    return (
        f"remote, {each['server']}, GOP {each['gop']}: {each['amplification']:.3f} times the frames' bytes, "
        f"first batch after {each['first_batch_fraction_of_file']:.1%} of a file, {each['over_local']:.2f} of local"
    )


COLUMNS = ("samples/s", "limit/s", "of limit", "codec/s", "of codec", "shuffled/s", "of shuf.")
COLUMNS += ("CPU ms", "limit", "codec", "shuffled", "LeRobot", "factor", "deff(1)", "uniform", "MB", "planned")


def render(found: dict[str, Any]) -> str:
    """The rows as a table, and the other figures below it."""
    lines = [f"{'':<24}" + "".join(f"{name:>11}" for name in COLUMNS)] if found["rows"] else []
    for row in found["rows"]:
        other = row["lerobot_cpu_ms_per_sample"]
        cells = [
            f"{row['samples_per_s']:,.0f}",
            f"{row['limit_per_s']:,.0f}",
            f"{row['over_limit']:.2f}",
            f"{row['codec_limit_per_s']:,.0f}",
            f"{row['over_codec_limit']:.2f}",
            f"{row['shuffled_limit_per_s']:,.0f}",
            f"{row['over_shuffled_limit']:.2f}",
            f"{row['cpu_ms_per_sample']:.3f}",
            f"{row['limit_cpu_ms_per_sample']:.3f}",
            f"{row['codec_limit_cpu_ms_per_sample']:.3f}",
            f"{row['shuffled_limit_cpu_ms_per_sample']:.3f}",
            f"{other:.2f}" if other else "-",
            f"{other / row['cpu_ms_per_sample']:.1f}" if other else "-",
            f"{row['deff1']:.3f}",
            f"{row['deff1_uniform']:.3f}",
            f"{row['peak_mb']:,.0f}",
            f"{row['planned_mb']:,.0f}",
        ]
        lines.append(f"{row['name']:<24}" + "".join(f"{cell:>11}" for cell in cells))
    rate, other = found["parquet_only_samples_per_s"], found["parquet_only_lerobot_cpu_ms_per_sample"]
    if rate is not None:
        cost = f"{found['parquet_only_cpu_ms_per_sample'] * 1e3:.1f} CPU us per sample"
        theirs = f" (LeRobot {other * 1e3:.0f})" if other else ""
        lines += ["", f"rows without video: {rate:,.0f} samples/s, {cost}{theirs}"]
    lines += [_first(each) for each in found["first_batches"]]
    lines += [_remote(each) for each in found["remote"]]
    return "\n".join([*lines, "", json.dumps(found["conditions"])])
