"""How often each frame was trained on, counted over every sample of a run or of an order file.

Memory is 4 bytes per frame, twice that at the end, and a block of samples. Steps of a run are
numbered from 1, as in metrics.jsonl, those of a file as in its column `step`: checkpoint N holds
the steps 1 to N, or 0 to N - 1.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from understudy.train.account import Account
from understudy.train.checkpoint.checkpoint import list_steps
from understudy.train.data.frames_file import TASK, TRAINING, VALIDATION
from understudy.train.data.versions_read import list_versions
from understudy.train.memory_check import available_memory
from understudy_base import ConfigError, Progress, parse_ids
from understudy_data import OrderFile, Samples

_COUNTER = 16  # bytes per frame, about
_AT_ONCE = 1 << 17  # frames of a block


class FrameCounts:
    """Counts of the frames of several sources, and the episodes of each.

    Args:
        names: of the sources.
        source: int64 (K,), number of the source of each row.
        rows: int64 (K, 3), rows [episode, start, stop) of all frames, in any sequence.
        task: texts (K,).
    """

    def __init__(
        self, names: Sequence[str], source: np.ndarray, rows: np.ndarray, task: np.ndarray
    ) -> None:
        self.names = names
        self._keys, first, inverse = np.unique(
            Samples.pack(source, rows[:, 0]), return_index=True, return_inverse=True
        )
        self.source = source[first]
        self.episode = rows[first, 0]
        self.task = task[first]
        """(E,): of each episode, in the sequence of the sources, ascending."""
        lengths = np.zeros(len(first), np.int64)
        np.maximum.at(lengths, inverse, rows[:, 2])
        self.begins = np.append(0, np.cumsum(lengths))
        """int64 (E + 1,): number of the first frame of each episode."""
        self.counts = np.zeros(self.begins[-1] + 1, np.uint32)
        """Samples of each frame, and a last 0."""
        held = self.counts.view(np.int32)  # rows that hold each frame, before it counts samples
        np.add.at(held, self.begins[inverse] + rows[:, 1], 1)
        np.subtract.at(held, self.begins[inverse] + rows[:, 2], 1)
        np.cumsum(held, dtype=np.int32, out=held)
        self.lengths = np.add.reduceat(held > 0, self.begins[:-1], dtype=np.int64) * (lengths > 0)
        """int64 (E,): frames of each episode that the rows hold."""
        held[:] = 0
        self.parts = [column[:0] for column in (source, rows, task)]
        """Rows of one task each, of the episodes in which it changes."""
        self.marks: dict[str, np.ndarray] = {}
        """Marked episodes, bool (E,)."""
        self.first: dict[str, dict[str, Any]] = {}
        """First sample of a marked episode."""

    def mark(self, name: str, texts: Sequence[str]) -> list[str]:
        """Mark episodes, each text "ID", "FIRST-LAST" or "SOURCE:ID"; return those that lack
        episodes.

        Raises:
            ConfigError: a text is none of these, or leaves the source open.
        """
        self.marks.setdefault(name, np.zeros(len(self.episode), bool))
        unknown = []
        for text in texts:
            named, colon, written = text.rpartition(":")
            numbers = [n for n, source in enumerate(self.names) if source == named or not colon]
            fix = f"give ID, FIRST-LAST or SOURCE:ID, with a source of {', '.join(self.names)}"
            if len(numbers) != 1:
                raise ConfigError(f"{name}: {text!r}: {fix}")
            try:
                ids = parse_ids([written])
            except ValueError as error:
                raise ConfigError(f"{name}: {text!r}: {error}; {fix}") from None
            marked = np.isin(self.episode, ids) & (self.source == numbers[0])
            self.marks[name] |= marked
            size = len(ids)
            held = int(marked.sum())
            if held < max(1, size):
                lacking = f"{size - held} of {text}" if held else text
                unknown.append(lacking)
        return unknown

    def count(self, blocks: Iterable[Samples], total: int) -> dict[str, Any]:
        """Count the samples of blocks, and return their figures."""
        begin = time.perf_counter()
        skipped = 0
        with Progress(total, "audit", "sample") as progress:
            for block in blocks:
                chosen = np.flatnonzero(block.weight > 0)
                row = np.searchsorted(
                    self._keys, Samples.pack(block.source[chosen], block.episode[chosen])
                )
                np.add.at(self.counts, self.begins[row] + block.frame[chosen], 1)
                skipped += len(block.weight) - len(chosen)
                for mark, marked in self.marks.items():
                    if mark not in self.first and len(hit := chosen[marked[row]]):
                        place = {
                            name: int(getattr(block, name)[hit[0]])
                            for name in ("step", "position", "episode", "frame")
                        }
                        self.first[mark] = {"source": self.names[block.source[hit[0]]], **place}
                progress.update(len(block.weight))
        seconds = time.perf_counter() - begin
        table = self.table()
        result: dict[str, Any] = {
            "samples": int(table["samples"].sum()),
            "not_trained": skipped,
            "seconds": seconds,
        }
        for mark, marked in self.marks.items():
            figures = {name: int(table[name][marked].sum()) for name in ("frames", "samples")}
            result[mark] = {"episodes": int(marked.sum()), **figures, "first": self.first.get(mark)}
        used = ~self.marks["validation"]
        columns = {
            "episodes": used,
            "frames": used * table["frames"],
            "seen": used * table["seen"],
            "samples": table["samples"],
        }
        sums = {
            name: np.bincount(self.source, column, len(self.names))
            for name, column in columns.items()
        }
        result["sources"] = {}
        for number, source in enumerate(self.names):
            of_source = {name: int(column[number]) for name, column in sums.items()}
            result["sources"][source] = of_source
        return result | {
            "tasks": self._by_task(table["samples"]),
            "samples_per_s": (result["samples"] + skipped) / max(seconds, 1e-9),
        }

    def _by_task(self, samples: np.ndarray) -> dict[str, int]:
        """Sum the samples of the episodes (E,) by task, in episodes with several those of their
        frames.
        """
        source, rows, tasks = self.parts
        row = np.searchsorted(self._keys, Samples.pack(source, rows[:, 0]))
        # frames may be left out
        ends = np.minimum(self.begins[row, None] + rows[:, 1:], self.begins[row + 1, None])
        of_parts = np.add.reduceat(self.counts, ends.reshape(-1), dtype=np.int64)[::2] * (
            ends[:, 0] < ends[:, 1]
        )
        whole = np.delete(np.arange(len(samples)), row)
        texts, number = np.unique(
            np.append(self.task[whole], tasks).astype(str), return_inverse=True
        )
        sums = np.bincount(number, np.append(samples[whole], of_parts))
        return dict(zip(texts.tolist(), sums.astype(int).tolist()))

    def table(self) -> dict[str, np.ndarray]:
        """Columns of the episodes; `seen` are frames that were trained on, `most` the samples of
        one of them.
        """
        begins = self.begins[:-1]
        columns = {
            "seen": np.add.reduceat(self.counts > 0, begins, dtype=np.uint32),
            "samples": np.add.reduceat(self.counts, begins, dtype=np.uint32),
            "most": np.maximum.reduceat(self.counts, begins),
        }
        table = {
            "source": np.array(self.names)[self.source],
            "episode": self.episode,
            "task": self.task,
        }
        return table | {
            "frames": self.lengths,
            **{name: of * (self.lengths > 0) for name, of in columns.items()},
        }

    def frames(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield the columns of the frames, block by block."""
        for start in range(0, int(self.begins[-1]), _AT_ONCE):
            number = np.arange(start, min(start + _AT_ONCE, int(self.begins[-1])))
            row = np.searchsorted(self.begins, number, side="right") - 1
            names = np.array(self.names)[self.source[row]]
            frame = number - self.begins[row]
            yield {
                "source": names,
                "episode": self.episode[row],
                "frame": frame,
                "samples": self.counts[number],
            }


def audit_run(
    root: Path, step: int | str, without: Sequence[str]
) -> tuple[dict[str, Any], FrameCounts]:
    """Count the samples of a run up to a checkpoint. Nothing in the run directory is changed.

    Args:
        root: the run directory.
        step: step of the checkpoint, "latest" or "best".
        without: withdrawn episodes, see `FrameCounts.mark`.

    Raises:
        ConfigError: there is no such checkpoint, or the files of the run contradict each other.
    """
    account = Account.open(root, step)
    state = account.state
    frames = account.frames
    data = account.state["settings"]["data"]
    part = frames["part"]
    used = frames["part"] <= VALIDATION
    counts = FrameCounts(
        list(account.sources), *(frames[name][used] for name in ("source", "rows", "task"))
    )
    counts.parts = [frames[name][part == TASK] for name in ("source", "rows", "task")]
    roots = [source["root"] for source in data["sources"]] or [data["root"]]
    # sources may be parts of one dataset
    dataset = np.array([roots.index(place) for place in roots])
    episodes = Samples.pack(dataset[frames["source"]], frames["episode"])
    episode = Samples.pack(dataset[counts.source], counts.episode)
    counts.marks["validation"] = np.isin(episode, episodes[part == VALIDATION])
    unknown = counts.mark("without", without)
    delivered = np.zeros((len(account.spans), len(roots)), np.int64)

    def blocks() -> Iterator[Samples]:
        for number, span in enumerate(account.spans):
            for block in account.samples([span]):
                delivered[number] += np.bincount(block.source, minlength=len(roots))
                yield block._replace(step=block.step + 1)

    counts.marks["without"] = np.isin(episode, episode[counts.marks["without"]])
    result = counts.count(blocks(), state["position"])
    versions = list_versions(account.run.read_record(), state["starts"])
    steps = [number for number in list_steps(account.run.checkpoints) if number <= state["step"]]
    for start, samples in zip(state["starts"], delivered, strict=True):
        start["shares"] = (samples / max(1, int(samples.sum()))).tolist()
        start.pop("versions", None)
        start["weights"] = (account.by_source(start["weights"]) / sum(start["weights"])).tolist()
    withdrawn = counts.marks["without"]
    first = result["without"]["first"]
    result["without"] |= {
        "unknown": unknown,
        "in_statistics": bool(
            np.isin(
                episode[withdrawn], episodes[(part == TRAINING) & (frames["update"] == 0)]
            ).any()
        ),
        "checkpoints": [number for number in steps if first and number >= first["step"]],
    }
    names = list(account.sources)
    updates = []
    for update in state.get("updates", ()):
        for entry in update["sources"]:
            updates.append([update["step"], names[entry["of"]], entry["first"], entry["last"]])
    return result | {
        "of": str(root),
        "checkpoint": state["step"],
        "checkpoints": steps,
        "training": account.run.is_active(),
        "starts": state["starts"],
        "versions": versions,
        "updates": updates,
        "skipped_steps": account.skipped.tolist(),
        "substitutions": [vars(entry) for entry in account.substitutes],
        "init_from": state["settings"]["init_from"],
    }, counts


def audit_file(
    path: Path, step: int | str, reserved: Sequence[str], without: Sequence[str]
) -> tuple[dict[str, Any], FrameCounts]:
    """Count the samples of an order file of any trainer, those of steps below `step`; "latest":
    all.

    `reserved` and `without`: see `FrameCounts.mark`.

    Raises:
        ConfigError: no step is below `step`, or the file has no steps.
    """
    file = OrderFile(path)
    keys = np.empty(0, np.int64)
    stops = np.empty(0, np.int64)
    last = -1
    if step != "latest" and not file.has_steps:
        raise ConfigError(f"checkpoint: {path} has no column `step`; leave it out")

    def blocks() -> Iterator[Samples]:
        for block in file.blocks():
            count = len(block.step)
            if step != "latest":
                count = int(np.searchsorted(block.step, int(step)))
            if not count:
                return
            yield block.head(count)

    for block in blocks():
        ends = np.append(stops, block.frame + 1)
        keys, inverse = np.unique(
            np.append(keys, Samples.pack(block.source, block.episode)), return_inverse=True
        )
        stops = np.zeros_like(keys)
        np.maximum.at(stops, inverse, ends)
        last = int(block.step[-1])
    if step not in ("latest", last + 1) or not len(keys):
        raise ConfigError(f"checkpoint: {step}: {path} has no step before it, or ends earlier")
    source, episodes = Samples.unpack(keys)
    if stops.sum() * _COUNTER > available_memory():
        episode = int(episodes[stops.argmax()])
        raise ConfigError(
            f"{path}: frame {stops.max() - 1} of episode {episode}: give the number in the episode"
        )
    rows = np.stack([episodes, stops * 0, stops], axis=1)
    counts = FrameCounts(file.names, source, rows, np.full(len(keys), ""))
    unknown = {
        mark: counts.mark(mark, ids)
        for mark, ids in (("validation", reserved), ("without", without))
    }
    result = counts.count(blocks(), file.stop - file.start) | {"of": str(path)}
    if step != "latest":
        result["checkpoint"] = step
    for mark, texts in unknown.items():
        result[mark]["unknown"] = texts
    return result, counts
