"""An order in words: the candidates that it was chosen from, with their cost and memory, or the
batches of an order file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from textwrap import fill
from typing import Self, TypedDict, Unpack

import numpy as np

from understudy_base import MOST_LOADER_THREADS, page, parse_bytes
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.load.batch_mixing import BatchMixing
from understudy_data.load.choose_order import WINDOWS, OrderChoice, choose_from_facts
from understudy_data.load.images.source_facts import read_facts
from understudy_data.order import Order
from understudy_data.order.design_effect import expected_uniform
from understudy_data.order.make_spec import OrderRequest, check_source, resolve_weights
from understudy_data.order_file import OrderFile


def droid_like(episodes: int = 76_000, mean: float = 300.0, spread: float = 0.6) -> np.ndarray:
    """Episode lengths like DROID's, int64 (episodes,): log-normal, `mean` frames, one in twenty
    above 2.2 times that.

    The lengths are not drawn. They are the quantiles (i + 1/2) / episodes of the distribution,
    visited in steps of the golden ratio, so that long and short ones mix in storage order. The
    table is the same on every machine.
    """
    normal = NormalDist()
    z = np.array([normal.inv_cdf((i + 0.5) / episodes) for i in range(episodes)])
    lengths = np.maximum(1, np.rint(mean * np.exp(spread * z - spread**2 / 2))).astype(np.int64)
    golden = np.arange(episodes) * 0.6180339887498949 % 1.0
    return lengths[np.argsort(np.argsort(golden, kind="stable"), kind="stable")]


@dataclass(frozen=True)
class LengthTable:
    """Episode lengths of one dataset, a source for `Order.from_datasets`."""

    name: str
    """Address of the dataset; any name of a table that belongs to none."""
    lengths: np.ndarray
    """Frames of each episode, int64 (episodes,)."""
    gop: int
    """Frames from key frame to key frame."""
    reach: tuple[int, int]
    """Frames that a sample's windows extend back and ahead."""
    fps: float
    cameras: int
    """Cameras with video, at least 1."""

    @classmethod
    def read(cls, path: str, gop: int, reach: tuple[int, int]) -> Self:
        """Read the lengths of the selected episodes of a dataset; `gop` 0: as in its videos."""
        dataset = EpisodeArrays(path)
        segments = dataset.epoch_segments
        lengths = segments[:, 2] - segments[:, 1]
        cameras = max(1, len(dataset.catalog.camera_keys))
        return cls(path, lengths, gop or dataset.gop, reach, float(dataset.catalog.fps), cameras)

    @classmethod
    def like_droid(cls, episodes: int, gop: int, reach: tuple[int, int]) -> Self:
        """Return the table `droid_like` at 30 frames per second, with one camera."""
        return cls("synthetic, like DROID", droid_like(episodes), gop, reach, 30.0, 1)

    @property
    def segments(self) -> np.ndarray:
        """Rows [episode, 0, length), int64 (episodes, 3)."""
        number = np.arange(self.lengths.size)
        return np.stack([number, np.zeros_like(number), self.lengths], axis=1).astype(np.int64)

    def __str__(self) -> str:
        total = int(self.lengths.sum())
        mean = float(self.lengths.mean())
        size = f"{self.lengths.size:,} episodes, {total:,} frames, {mean:.0f} per episode"
        return f"{self.name}: {size}, a key frame every {self.gop}"


class OrderOptions(TypedDict):
    """Settings of an order, of which None is the default for the data."""

    weights: Sequence[float] | None
    batch_size: int
    seed: int
    frames_in_flight: int | None
    clip: int | None
    lanes: int | None
    inside: str


@dataclass(frozen=True)
class ExplainedOrder:
    """An order, and the lines that explain it.

    Attributes:
        order: the order.
        lines: the explanation.
        tables: lengths of its datasets; () of a file.
        choice: the candidates that a loader would choose it from; None where there are no datasets
            to load.
    """

    order: Order
    lines: tuple[str, ...]
    tables: tuple[LengthTable, ...] = ()
    choice: OrderChoice | None = None

    def __str__(self) -> str:
        return "\n".join(self.lines)

    @classmethod
    def of_lengths(cls, tables: Sequence[LengthTable], **options: Unpack[OrderOptions]) -> Self:
        """Explain the order of tables that belong to no dataset."""
        order = Order.from_datasets(tables, **options)
        return cls(order, _describe(tables, order), tuple(tables))

    @classmethod
    def like_droid(
        cls, episodes: int, *, gop: int, reach: tuple[int, int], **options: Unpack[OrderOptions]
    ) -> Self:
        """Explain the order of a synthetic table (`LengthTable.like_droid`)."""
        return cls.of_lengths([LengthTable.like_droid(episodes, gop, reach)], **options)

    @classmethod
    def of_datasets(
        cls,
        paths: Sequence[str],
        *,
        gop: int,
        reach: tuple[int, int],
        memory: str,
        world_size: int,
        image_size: tuple[int, int] | None,
        **options: Unpack[OrderOptions],
    ) -> Self:
        """Choose the order of datasets as a loader does, and explain it and its candidates.

        Args:
            paths: their addresses.
            gop: frames from key frame to key frame; 0: as in the videos.
            reach: frames that a sample's windows extend back and ahead.
            memory: memory of a rank's loader, "4GB".
            world_size: number of ranks.
            image_size: height and width of the images to deliver; None: as recorded.
            options: settings of the order.

        Raises:
            DatasetError: a dataset cannot be read.
        """
        tables = [LengthTable.read(path, gop, reach) for path in paths]
        facts = []
        for table in tables:
            recorded = read_facts(EpisodeArrays(table.name), image_size)
            facts.append(replace(recorded, gop=table.gop, reach=table.reach))
        batch = options["batch_size"]
        request = OrderRequest(
            "clips",
            batch,
            options["frames_in_flight"] or 1 << 62,
            options["clip"],
            options["lanes"],
            options["inside"],
        )
        choice = choose_from_facts(
            facts,
            [check_source(table) for table in tables],
            resolve_weights(tables, options["weights"], None),
            request,
            options["seed"],
            memory=parse_bytes(memory),
            world_size=world_size,
            num_threads=MOST_LOADER_THREADS,
        )
        candidates = _candidates(choice, np.concatenate([table.lengths for table in tables]), batch)
        notes = (
            f"Chosen for {memory} of memory in each of {world_size} ranks. CPU: multiple of "
            "decoding each image in a row, the mean of an epoch in which nothing is decoded yet. "
            "Of the orders up to 1.25, the one with the least deff over 8 batches is taken. deff "
            f"is an estimate. Terms: {page('glossary.md')}"
        )
        advice = [fill(choice.advice, 118)] if choice.advice else []
        lines = *_describe(tables, choice.order), *candidates, "", fill(notes, 118), *advice, ""
        return cls(choice.order, lines, tuple(tables), choice)

    @classmethod
    def of_file(cls, path: str, batch_size: int, datasets: Sequence[str] = ()) -> Self:
        """Describe the batches of an order file: their episodes, and whether they are few.

        Args:
            path: the file.
            batch_size: samples of a batch, where the steps of the file are not of one size.
            datasets: addresses of its datasets; () for none.

        Raises:
            DatasetError: the file is no order, or not one of the datasets that are given.
        """
        file = OrderFile(path)
        batch = min(file.batch_size or batch_size, file.stop - file.start)
        order = Order.from_file(file, batch_size=batch)
        opened = [EpisodeArrays(dataset) for dataset in datasets]
        if opened:
            order = order.of_datasets(opened)
        mixing = BatchMixing.measure(order, opened, order.start, spread=True)
        lines = [f"{path}: {order.stop - order.start:,} samples", str(mixing)]
        asked = f"--batch-size {batch_size}"
        if batch == file.batch_size != batch_size:
            steps = f"batches are the steps of the file, {batch:,} samples each, not those of"
            lines.insert(1, f"{steps} {asked}")
        elif batch < batch_size:
            lines.insert(1, f"no whole batch of {asked}: all rows are taken as one")
        if mixing.advice:
            lines.append(mixing.advice)
        return cls(order, tuple(lines))


def _describe(tables: Sequence[LengthTable], order: Order) -> tuple[str, ...]:
    return (*map(str, tables), "", order.explain(), "")


def _candidates(choice: OrderChoice, lengths: np.ndarray, batch: int) -> list[str]:
    """Lines of the candidates of a choice, the chosen one marked.

    Args:
        choice: the choice.
        lengths: of all episodes, int64 (episodes,).
        batch: samples of a batch.
    """
    total = int(lengths.sum())
    uniform = [expected_uniform(lengths, min(total, count * batch)) for count in WINDOWS]
    width = max(len(str(candidate)) for candidate in choice.candidates)
    lines = [f"  {'':{width}}  {'CPU':>6}  {'memory':>8}  deff over 1, 8 and 64 batches"]
    for candidate in choice.candidates:
        effects = [f"{u + more:6.2f}" for u, more in zip(uniform, candidate.correlation)]
        mark = ">" if candidate is choice.chosen else " "
        memory = f"{candidate.plan.bytes / 1e9:.2f} GB"
        figures = f"{candidate.cost:6.2f}  {memory:>8}  {'  '.join(effects)}"
        lines.append(f"{mark} {candidate!s:{width}}  {figures}")
    return lines
