"""Shared by the benchmarks: arguments, results that grow in a file, and processes that measure on
request.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch

from understudy_base import __version__, available_cores
from understudy_data.video.native.loops import load_loops, loops_status

CACHE = Path(tempfile.gettempdir()) / "understudy-bench"


def conditions() -> dict[str, Any]:
    """Date, machine and versions of a measurement."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "cpu": cpu_name(),
        "cores": available_cores(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else [],
        "understudy": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "av": av.__version__,
        "loops": "compiled" if load_loops() else f"Python: {loops_status().reason}",
    }


def cpu_name() -> str:
    """Name of the processor, if the system provides it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def add_dataset_arguments(parser: argparse.ArgumentParser, seconds: float, rounds: int) -> None:
    """Add the arguments of benchmarks that load videos."""
    parser.add_argument(
        "--out",
        default="",
        help="file of the object, written after each row; a later run adds to it",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny datasets and rounds, as a smoke test"
    )
    parser.add_argument("--only", default="", help="rows with this in their name")
    parser.add_argument(
        "--real",
        default=os.environ.get("UNDERSTUDY_TEST_DATA", ""),
        help="folder of real recordings",
    )
    parser.add_argument("--cache", default=CACHE, type=Path, help="folder of the datasets")
    parser.add_argument("--seconds", type=float, default=seconds, help="of a round")
    parser.add_argument("--rounds", type=int, default=rounds, help="medians are over these")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)


def child(script: str, part: str, **setting: Any) -> list[str]:
    """Command that runs a part of a benchmark in a process of its own: `arguments.part` is (part,
    JSON).
    """
    return [sys.executable, script, "--part", part, json.dumps(setting)]


def anonymous_bytes() -> int:
    """Resident memory of this process that is of no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024


def cpu_seconds() -> float:
    """CPU time of all threads of this process and of its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def sources(tree: str | Path) -> str:
    """Return the folders of sources of a checkout, as PYTHONPATH; those of before the distributions
    have one, `src`.
    """
    return os.pathsep.join(
        map(str, [*sorted(Path(tree).glob("packages/*/src")), Path(tree, "src")])
    )


def say(*words: object) -> None:
    """Print to stderr."""
    print(*words, file=sys.stderr, flush=True)


class Results:
    """One JSON object with lists of rows, and its file: each row is written at once.

    Args:
        parts: names of the lists.
        out: path of the file; "" for none. A row that is in it is not measured again.
        settings: settings of this run.

    Raises:
        SystemExit: the file has figures of other settings or of another machine.
    """

    def __init__(self, parts: Sequence[str], out: str, **settings: Any) -> None:
        self.file = Path(out) if out else None
        settings = json.loads(json.dumps(conditions() | settings))
        self.found: dict[str, Any] = {part: [] for part in parts} | {"conditions": settings}
        if self.file and self.file.exists():
            self.found |= json.loads(self.file.read_text())
        for key in ("cpu", "cores", "understudy", "quick", "recordings", "seconds", "rounds"):
            if (before := self.found["conditions"].get(key)) != settings.get(key):
                raise SystemExit(
                    f"{out}: its figures are of {key} {before!r}, not {settings.get(key)!r}; take "
                    "another file"
                )

    def has(self, part: str, name: str) -> bool:
        """Whether the row was measured before."""
        return any(row["name"] == name for row in self.found[part])

    def add(self, part: str, row: dict[str, Any], text: str) -> None:
        """Add a row with the load of the machine, write all, and print `text`."""
        now = conditions()
        self.found[part].append(row | {"date": now["date"], "load_average": now["load_average"]})
        self.write()
        say(text)

    def write(self) -> None:
        """Write the file."""
        if self.file:
            making = self.file.with_name(self.file.name + ".making")
            making.write_text(json.dumps(self.found, indent=1) + "\n")
            making.replace(self.file)


class OtherLoader:
    """A process that measures on request, one line of JSON in and one out; a context manager.

    `version` is its reported version; `missing` the reason why it cannot measure, or "".
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        first = self._answer()
        self.version, self.missing = str(first.get("version", "")), str(first.get("missing", ""))

    def measure(self, **request: Any) -> dict[str, Any]:
        """Send a request; returns the answer, or {"missing": reason}."""
        if self.missing:
            return {"missing": self.missing}
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it ended, and gives no answer
            print(json.dumps(request), file=self.process.stdin, flush=True)
        return self._answer()

    def require(self, **request: Any) -> dict[str, Any]:
        """Send a request; returns the answer.

        Raises:
            SystemExit: there is none.
        """
        answer = self.measure(**request)
        if "missing" in answer:
            raise SystemExit(f"a measuring process failed: {answer['missing']}")
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.missing = f"it ended with exit code {self.process.wait()}"
            return {"missing": self.missing}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> "OtherLoader":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # it ended before it read a request
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
