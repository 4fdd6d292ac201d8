"""The samples that a run was trained on up to a checkpoint, from its own files alone: no dataset is
opened.

The order gives the sample of each position. Positions belong to steps by the starts of the run,
which its checkpoints list. The journals of substitutions replace samples, and metrics.jsonl has the
steps that changed no weight.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.export import find_checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.frames_file import TRAINING, WEIGHT
from understudy.train.data.updates import current_spec, read_all_frames, recorded_sources
from understudy.train.data.versions_read import Versions, latest_versions
from understudy.train.track import metrics_file
from understudy_base import ConfigError
from understudy_data import Order, OrderExport, Samples, Span, Substitution


@dataclass(frozen=True)
class Account:
    """The samples of a run up to a checkpoint."""

    run: RunDir
    state: dict[str, Any]
    """State of the checkpoint."""
    order: Order
    of: np.ndarray
    """Number of the source to which each source of the order belongs: updates count as their
    sources.
    """
    frames: dict[str, np.ndarray]
    """Columns of the frames (`read_all_frames`)."""
    sources: dict[str, str]
    """Digest of the episode lengths of each source, by name."""
    versions: Versions
    """Versions of the sources that the latest start read."""
    spans: list[Span]
    """Steps from each start of the run to the next."""
    substitutes: list[Substitution]
    """Samples that were replaced, by position."""
    skipped: np.ndarray
    """int64, ascending: steps that changed no weight, numbered from 1 as in metrics.jsonl."""

    @classmethod
    def open(cls, root: Path, step: int | str = "latest") -> "Account":
        """Read the files of a run, which may be training.

        Raises:
            ConfigError: there is no run or no such checkpoint, or its files contradict each other.
        """
        run = RunDir(root)
        if not run.config.is_file():
            run.settings()  # raises
        record = run.read_record()
        best = record["settings"]["checkpoint"]["keep_best"]
        state = checkpoint.read_state(find_checkpoint(run.checkpoints, step, best))
        spec = current_spec(record, state)
        updates = state.get("updates", ())
        entries = recorded_sources(record, updates)
        frames, sources = read_all_frames(run, record, updates)
        trained = [
            frames["rows"][(frames["source"] == n) & (frames["part"] == TRAINING)]
            for n in range(len(entries))
        ]
        datasets = [
            SimpleNamespace(name=e["name"], segments=rows) for e, rows in zip(entries, trained)
        ]
        order = Order.from_json(spec, datasets)
        of = np.array([entry.get("of", number) for number, entry in enumerate(entries)])
        frames["source"] = of[frames["source"]]
        starts = state.get("starts")
        spans = []
        if not starts or starts[0]["step"]:
            raise ConfigError(
                f"{root}: has no account of its first steps, which an earlier version of "
                "understudy made"
            )
        for start, end in zip(starts, [*starts[1:], state], strict=True):
            spans.append(
                Span(start["step"], start["position"], start["batch"], end["step"] - start["step"])
            )
            if spans[-1].stop != end["position"]:
                raise ConfigError(
                    f"{root}: step {end['step']} begins at {end['position']}, not at "
                    f"{spans[-1].stop}"
                )
        journals = Substitution.read_journals(root)
        substitutes = sorted(
            (e for e in journals if e.position < state["position"]), key=lambda e: e.position
        )
        lines = (line for line in metrics_file.iterate(run.metrics) if line["kind"] == "train")
        steps = np.array(
            [(line["step"], line["skipped"]) for line in lines if line["step"] <= state["step"]],
            np.int64,
        )
        steps = steps.reshape(-1, 2)
        if not np.array_equal(steps[:, 0], np.arange(1, state["step"] + 1)):
            raise ConfigError(
                f"{run.metrics}: has {len(steps)} of {state['step']} steps; restore the file"
            )
        versions = latest_versions(record, state)
        return cls(
            run,
            state,
            order,
            of,
            frames,
            sources,
            versions,
            spans,
            substitutes,
            steps[steps[:, 1] > 0, 0],
        )

    def export(self, spans: Sequence[Span]) -> OrderExport:
        """Return the export of some steps, in which updates are parts of their sources."""
        facts = {name: {"lengths": digest} for name, digest in self.sources.items()}
        for of_source, version in zip(facts.values(), self.versions):
            of_source |= {name: version[name] for name in ("version", "address")}
        spec = self.order.spec.merged(self.of.tolist(), len(self.sources))
        return OrderExport(spec, spans, facts)

    def by_source(self, shares: Sequence[float]) -> np.ndarray:
        """Return the sums over each source and its updates."""
        return np.bincount(self.of[: len(shares)], shares, len(self.sources))

    def samples(self, spans: Sequence[Span], world_size: int = 1) -> Iterator[Samples]:
        """Yield the samples of some steps, substitutes in their places; those of skipped steps
        weigh 0.
        """
        positions = np.array([entry.position for entry in self.substitutes], np.int64)
        frames = self.frames
        for block in chain.from_iterable(
            span.samples(self.order.locate, world_size) for span in spans
        ):
            block = block._replace(source=self.of[block.source])
            low, high = np.searchsorted(positions, [block.position[0], block.position[-1] + 1])
            for entry in self.substitutes[low:high]:
                row = entry.position - block.position[0]
                if (entry.episode, entry.frame) != (block.episode[row], block.frame[row]):
                    raise ConfigError(
                        f"{self.run.root}: the substitute at position {entry.position} is of "
                        "another run"
                    )
                block.episode[row] = entry.instead_episode
                block.frame[row] = entry.instead_frame
            for source in np.unique(frames["source"][frames["part"] == WEIGHT]):
                runs = (frames["source"] == source) & (frames["part"] == WEIGHT)
                rows = np.flatnonzero(block.source == source)
                starts = Samples.pack(frames["episode"][runs], frames["start"][runs])
                packed = Samples.pack(block.episode[rows], block.frame[rows])
                block.weight[rows] = frames["weight"][runs][
                    np.searchsorted(starts, packed, "right") - 1
                ]
            block.weight[np.isin(block.step + 1, self.skipped)] = 0
            yield block

    def cut(self, first: int, stop: int) -> list[Span]:
        """Return the spans of the steps [first, stop)."""
        cuts = [
            (span, max(first, span.step), min(stop, span.step + span.steps)) for span in self.spans
        ]
        return [
            Span(low, span.position + (low - span.step) * span.batch, span.batch, high - low)
            for span, low, high in cuts
            if low < high
        ]
