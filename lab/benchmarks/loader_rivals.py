"""Our loader beside those of other libraries in one run, each with its own defaults.

    python lab/benchmarks/loader_rivals.py [--json] [--out FILE] [--quick] [--python NAME=PATH ...]
                                       [--cache DIR] [--only NAME] [--seconds S] [--rounds N]

Each loader is a process of its own (`rival_loaders.py`) with its own interpreter:
`--python lerobot=PATH`, and so on for the names in INTERPRETERS. Without an interpreter a rival is
skipped, and `conditions` has its name. Rows are datasets of 64 episodes (17,104 frames),
re-encodings of the real recordings in UNDERSTUDY_TEST_DATA where that is set, otherwise of drawn
images. Further cameras repeat the first one's images in files of their own.

In each round all loaders take turns with steps that sleep 10, 50 and 150 ms; the others are stopped
meanwhile. A loader that has used 40 s of a row skips its further steps and rounds (`rounds`).
Figures are medians over rounds:

- `cpu_ms`: user and system time of all its processes per sample, over all step times.
- `cpu_ms_epoch`: the same over the whole first epoch, first batch and all; after 45 s the rest is
  extrapolated from the last 3 s. Only ours holds images or decodes ahead, so that its cost falls
  with time; null for rivals. The goal compares it.
- `waiting`: share of the time spent in `next`, by step time. `first_batch_s`: from the path to the
  first batch, with libraries imported in the main process, the files in the system's cache.
- `peak_mb`: largest proportional set size of all its processes, libraries included, read twice a
  second.
- `read_ratio`: bytes read by system calls (rchar) over the video bytes of the delivered frames.
  Above 1 more is read than used, below 1 images are kept.
- `deff`: design effect over 1, 8 and 64 batches of the first 256 (`order/design_effect.py`). The
  sequence comes from the loader's own sampler; `matches`: each delivered sample was its next one.

Linux only.
"""

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from common import OtherLoader, Results, add_dataset_arguments
from loader_sets import Encoding, Recording, joined
from order_audit import WINDOWS, deff_of
from parsers import make_parser
from rival_loaders import process_tree
from understudy_base import available_cores

CHUNK = 16
TILES = 8
ORDER = 256
STEPS = (10, 50, 150)
MOST_SECONDS = 40.0
EPOCH_SECONDS = 45.0
SCRIPT = Path(__file__).with_name("rival_loaders.py")
INTERPRETERS = {
    "understudy": "understudy",
    "lerobot-pyav": "lerobot",
    "lerobot-torchcodec": "lerobot",
    "lance": "lance",
    "torchcodec-blocks": "torchcodec",
}
"""Name of the interpreter of each loader."""


@dataclass(frozen=True)
class Row:
    """A dataset to measure, and the batch size."""

    encoding: Encoding
    cameras: int
    batch: int

    @property
    def set_name(self) -> str:
        """Name of the dataset."""
        size = self.encoding.height or 480
        return (
            f"{self.encoding.codec.removeprefix('lib')}-g{self.encoding.gop}-{size}-{self.cameras}"
        )

    @property
    def name(self) -> str:
        """Name of the row."""
        return f"{self.set_name}-b{self.batch}"


AV1 = {height: Encoding("libsvtav1", 2, height) for height in (0, 96, 224)}
LONG = {height: Encoding("libx264", 250, height, 23, 3) for height in (0, 224)}
SHAPES = ((AV1[96], 1), (AV1[0], 2), (AV1[0], 4), (AV1[224], 3))
ROWS = [
    *(Row(encoding, cameras, 32) for encoding, cameras in SHAPES),
    Row(LONG[0], 2, 32),
    Row(Encoding("libx264", 30, 0, 23), 2, 32),
    Row(LONG[224], 3, 32),
    Row(Encoding("libx264", 30, 96, 23), 1, 32),
    *(Row(encoding, cameras, 64) for encoding, cameras in SHAPES),
]
QUICK = [Row(Encoding("libx264", 30, 64, 23), 1, 8)]


class Rival(OtherLoader):
    """The process of a loader. Between its turns it is stopped, so that it does not work in those
    of others.
    """

    def __init__(self, name: str, python: str) -> None:
        self.name = name
        self.peak_mb = 0.0
        super().__init__([python, "-P", str(SCRIPT), name])
        self.signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the loader."""
        for process in process_tree(self.process.pid):
            try:
                os.kill(process, number)
            except ProcessLookupError:
                continue

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request while the process runs, and watch its memory; returns the answer."""
        self.signal(signal.SIGCONT)
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done,))
        watch.start()
        answer = self.measure(**request)
        done.set()
        watch.join()
        self.signal(signal.SIGSTOP)
        return answer

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(0.5):
            self.peak_mb = max(
                self.peak_mb, sum(map(proportional_mb, process_tree(self.process.pid)))
            )

    def __exit__(self, *error: object) -> None:
        tree = process_tree(self.process.pid)
        self.signal(signal.SIGCONT)
        super().__exit__(*error)
        for process in tree:  # workers that a busy batch kept from ending
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def proportional_mb(process: int) -> float:
    """Proportional set size of a process in MB; 0 if it ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
        return float(text.split("\nPss:")[1].split()[0]) * 1024 / 1e6
    except (OSError, IndexError):
        return 0.0


@dataclass
class Turns:
    """Answers of one loader in one row."""

    rival: Rival
    root: Path
    answers: list[list[dict[str, Any]]] = field(default_factory=list)
    missing: str = ""

    @property
    def spent(self) -> float:
        """Seconds of all rounds."""
        return sum(answer["seconds"] for answers in self.answers for answer in answers)

    def waiting(self, step: int) -> list[float]:
        """Shares of waiting at one step time."""
        return [
            each["waiting_share"]
            for answers in self.answers
            for each in answers
            if each["step"] == step
        ]

    def finish_epoch(self, frames: int, **asked: Any) -> float | None:
        """CPU milliseconds per sample of the first epoch. A long rest is extrapolated from 3 s."""
        spent = 0.0
        while not self.missing:
            answer = self.rival.ask(root=str(self.root), seconds=3.0, least=2, **asked)
            self.missing, spent = answer.get("missing", ""), spent + answer.get("seconds", 0.0)
            if not self.missing and (answer["all_samples"] >= frames or spent > EPOCH_SECONDS):
                rest = (
                    max(0, frames - answer["all_samples"])
                    * answer["cpu_seconds"]
                    / answer["samples"]
                )
                return float(
                    (answer["all_cpu_seconds"] + rest) / max(frames, answer["all_samples"]) * 1e3
                )
        return None

    def take(self, seconds: float, **asked: Any) -> None:
        """Measure one round, as far as the time allows."""
        answers: list[dict[str, Any]] = []
        for step in STEPS:
            if (
                self.missing
                or self.spent + sum(answer["seconds"] for answer in answers) > MOST_SECONDS
            ):
                break
            answer = self.rival.ask(
                root=str(self.root), seconds=seconds, step_ms=step, least=2, **asked
            )
            self.missing = answer.get("missing", "")
            answers += [] if self.missing else [answer | {"step": step}]
        self.answers += [answers] if answers else []


def figures(turns: Turns, video_bytes: float, order: dict[str, Any], batch: int) -> dict[str, Any]:
    """Medians of a loader's rounds, or the reason why there are none."""
    if turns.missing or not turns.answers:
        return {"loader": turns.rival.name, "missing": turns.missing or "nothing was measured"}
    last = turns.answers[-1][-1]

    def total(answers: list[dict[str, Any]], key: str) -> float:
        return float(sum(answer[key] for answer in answers))

    reads = [total(a, "read_bytes") / (total(a, "samples") * video_bytes) for a in turns.answers]
    return {
        "loader": turns.rival.name,
        "cpu_ms": median(
            total(a, "cpu_seconds") / total(a, "samples") * 1e3 for a in turns.answers
        ),
        "cpu_ms_rounds": [
            total(a, "cpu_seconds") / total(a, "samples") * 1e3 for a in turns.answers
        ],
        "waiting": {
            str(step): median(shares) if (shares := turns.waiting(step)) else None for step in STEPS
        },
        "first_batch_s": last["first_batch_s"],
        "peak_mb": turns.rival.peak_mb,
        "read_ratio": median(reads),
        "deff": design_effects(order, batch),
        "matches": last["matches"],
        "samples": int(sum(total(answers, "samples") for answers in turns.answers)),
        "rounds": len(turns.answers),
    }


def design_effects(order: dict[str, Any], batch: int) -> dict[str, float | None]:
    """Mean design effects over WINDOWS batches, from the samples in their sequence."""
    episode, frame = (np.array(order[key], np.int64).ravel() for key in ("episode", "frame"))
    means, _ = deff_of(
        lambda p: (episode.take(p, mode="wrap"), frame.take(p, mode="wrap"), p),
        batch,
        0,
        len(episode),
    )
    return {
        str(window): mean if window * batch <= len(episode) else None
        for window, mean in zip(WINDOWS, means)
    }


def converted(rival: Rival, root: Path) -> tuple[Path, dict[str, Any] | None]:
    """The copy of a dataset that a loader reads, made where it is missing, with the costs of making
    it.
    """
    if rival.name != "lance":  # the only one that reads a converted copy
        return root, None
    out = root.with_name(f"{root.name}.{rival.name}")
    costs = out.with_name(out.name + ".json")
    if not costs.exists():
        answer = rival.ask(convert=str(root), out=str(out))
        if "missing" in answer:
            return out, answer
        costs.write_text(json.dumps(answer))
    found: dict[str, Any] = json.loads(costs.read_text())
    return out, found


@contextmanager
def started(pythons: dict[str, str]) -> Iterator[dict[str, Rival]]:
    """Processes of all loaders with an interpreter, by name."""
    names = [name for name, interpreter in INTERPRETERS.items() if interpreter in pythons]
    with ExitStack() as stack:
        with ThreadPoolExecutor(len(names)) as pool:
            rivals = list(pool.map(lambda name: Rival(name, pythons[INTERPRETERS[name]]), names))
        yield {rival.name: stack.enter_context(rival) for rival in rivals}


def measure_row(
    row: Row, root: Path, pythons: dict[str, str], seconds: float, rounds: int
) -> list[dict[str, Any]]:
    """Measure one dataset with all loaders in turn."""
    frames = json.loads((root / "meta" / "info.json").read_text())["total_frames"]
    video_bytes = sum(path.stat().st_size for path in root.rglob("*.mp4")) / frames
    asked = {"batch": row.batch, "chunk": CHUNK, "workers": available_cores()}
    found = []
    with started(pythons) as rivals:
        turns = []
        costs = {}
        for name, rival in rivals.items():
            place, costs[name] = converted(rival, root)
            turns.append(Turns(rival, place, missing=(costs[name] or {}).get("missing", "")))
        for _ in range(rounds):
            for turn in turns:
                turn.take(seconds, **asked)
        for turn in turns:
            order = {"episode": [], "frame": []}
            if turn.answers:
                order = turn.rival.ask(root=str(turn.root), order=ORDER, **asked)
            each = figures(turn, video_bytes, order, row.batch)
            each["cpu_ms_epoch"] = (
                turn.finish_epoch(frames, **asked) if turn.rival.name == "understudy" else None
            )
            found.append(
                {**each, "version": turn.rival.version, "conversion": costs[turn.rival.name]}
            )
    return found


def goals(row: dict[str, Any]) -> dict[str, Any]:
    """Our CPU time over the best rival's (at most 0.5), and our deff over 8 batches over its (at
    most 1.02: noise).
    """
    measured = {each["loader"]: each for each in row["loaders"] if "missing" not in each}
    ours = measured.pop("understudy", None)
    if ours is None or not measured:
        return {}
    best = min(measured.values(), key=lambda each: float(each["cpu_ms"]))
    deffs = [each["deff"]["8"] for each in measured.values() if each["deff"]["8"]]
    mixed = ours["deff"]["8"] / min(deffs) if deffs and ours["deff"]["8"] else None
    ratio = (ours["cpu_ms_epoch"] or ours["cpu_ms"]) / best["cpu_ms"]
    return {
        "best_rival": best["loader"],
        "cpu_over_best": ratio,
        "deff8_over_best": mixed,
        "met": ratio <= 0.5 and (mixed is None or mixed <= 1.02),
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the rows that `--out` lacks."""
    real = Path(arguments.real) if arguments.real else None
    quick = arguments.quick
    pythons = {
        "understudy": sys.executable,
        **dict(text.split("=", 1) for text in arguments.python),
    }
    if unknown := set(pythons) - set(INTERPRETERS.values()):
        raise SystemExit(
            f"--python {', '.join(sorted(unknown))}: names are {', '.join(INTERPRETERS.values())}"
        )
    settings = {"chunk": CHUNK, "workers": available_cores(), "steps_ms": STEPS, "quick": quick}
    settings |= {
        "seconds": arguments.seconds,
        "rounds": arguments.rounds,
        "recordings": "real" if real else "drawn",
    }
    settings["skipped"] = [
        name for name, interpreter in INTERPRETERS.items() if interpreter not in pythons
    ]
    results = Results(["rows"], arguments.out, **settings)
    recorded = Recording(arguments.cache, real, quick)
    for row in QUICK if quick else [row for row in ROWS if arguments.only in row.name]:
        if results.has("rows", row.name):
            continue
        root = recorded.cache / f"rivals-{row.set_name}"
        joined(root, recorded.encoded(row.encoding), TILES, row.cameras)
        about = {
            "name": row.name,
            "codec": row.encoding.codec,
            "gop": row.encoding.gop,
            "cameras": row.cameras,
        }
        about |= {"height": row.encoding.height or 480, "batch": row.batch}
        about["loaders"] = measure_row(row, root, pythons, arguments.seconds, arguments.rounds)
        about["goals"] = goals(about)
        results.add("rows", about, render_row(about))
    return results.found


def render_row(row: dict[str, Any]) -> str:
    """One row as a table in Markdown."""
    lines = [f"**{row['name']}** {row['goals']}", ""]
    lines += [
        "| loader | CPU ms (epoch) | waiting 10/50/150 ms | first s | peak MB | read | deff 1/8/64 "
        "| conversion |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for each in row["loaders"]:
        if "missing" in each:
            lines.append(f"| {each['loader']} | missing: {each['missing'][-80:]!r} | | | | | | |")
            continue
        waiting = " / ".join(
            "-" if share is None else f"{share:.1%}" for share in each["waiting"].values()
        )
        deff = " / ".join(
            "-" if value is None else f"{value:.2f}" for value in each["deff"].values()
        )
        read = "-" if each["read_ratio"] is None else f"{each['read_ratio']:.2f}"
        costs = each["conversion"]
        copy = f"{costs['seconds']:.0f} s, {costs['bytes'] / 1e6:.0f} MB" if costs else "none"
        epoch = f" ({each['cpu_ms_epoch']:.2f})" if each["cpu_ms_epoch"] else ""
        cells = (
            f"{each['cpu_ms']:.2f}{epoch}",
            waiting,
            f"{each['first_batch_s']:.1f}",
            f"{each['peak_mb']:,.0f}",
            read,
            deff,
        )
        lines.append(f"| {each['loader']} | " + " | ".join((*cells, copy)) + " |")
    return "\n".join([*lines, ""])


def render_costs(rows: list[dict[str, Any]]) -> str:
    """CPU milliseconds per sample of all loaders, a line per row: a table in Markdown."""
    names = [
        name
        for name in INTERPRETERS
        if any(name == one["loader"] for row in rows for one in row["loaders"])
    ]
    lines = ["| CPU ms | " + " | ".join((*names, "ours / best", "deff(8) / best")) + " |"]
    lines += ["|" + "---|" * (len(names) + 3)]
    for row in rows:
        costs = {
            one["loader"]: one.get("cpu_ms_epoch") or one.get("cpu_ms") for one in row["loaders"]
        }
        cells = [f"{costs[name]:.2f}" if costs.get(name) else "-" for name in names]
        ratios = (row["goals"].get(key) for key in ("cpu_over_best", "deff8_over_best"))
        cells += ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def render(found: dict[str, Any]) -> str:
    """The costs of all rows, and each row as a table."""
    lines = [render_costs(found["rows"]), *(render_row(row) for row in found["rows"])]
    return "\n".join([*lines, "", json.dumps(found["conditions"])])


def main() -> None:
    parser = make_parser(__doc__)
    add_dataset_arguments(parser, seconds=1.0, rounds=3)
    parser.add_argument(
        "--python", action="append", default=[], help="NAME=PATH of a rival's interpreter"
    )
    arguments = parser.parse_args()
    found = measure(arguments)
    print(json.dumps(found) if arguments.json else render(found))


if __name__ == "__main__":
    main()
