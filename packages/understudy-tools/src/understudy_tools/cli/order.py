"""`understudy order explain`: the order of samples, how well it mixes, and its cost in CPU time and
memory.

It reads episode lengths and one video index per camera (for the distance of key frames), but no
frame. Without datasets it uses a synthetic table of lengths like DROID's.
`lab/benchmarks/order_compare.py` audits orders of other loaders next to ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from understudy_base import MOST_LOADER_THREADS, page, parse_bytes
from understudy_kit import Ge, Interval, Positional

if TYPE_CHECKING:
    from understudy_data.load.choose_order import OrderChoice
    from understudy_data.order import Order


@dataclass(frozen=True)
class ExplainConfig:
    """Explain the order of datasets, or of a synthetic table of episode lengths like DROID's."""

    paths: Positional[tuple[str, ...]] = ()
    """Datasets, folders or URLs; several make a mixture."""
    weights: tuple[float, ...] = ()
    """Share of each dataset in the samples; by default all frames are equally frequent."""
    batch_size: Annotated[int, Interval(ge=1, le=1 << 24)] = 256
    """Global batch: samples per step over all ranks."""
    seed: Annotated[int, Interval(ge=0, lt=1 << 64)] = 0
    """Seed of the order."""
    memory: str = "4GB"
    """Memory of a rank's loader, from which the order of datasets is chosen."""
    image_size: tuple[int, int] | None = None
    """Height and width of the images that the loader delivers; the default is the recorded size."""
    frames_in_flight: Annotated[int, Ge(1)] | None = None
    """Frames that all ranks together may hold open. By default only the memory limits them; without
    datasets the limit is 100,000, or 192 per sample for batches above 520.
    """
    clip: Annotated[int, Ge(0)] = 0
    """Frames per clip; 0: chosen for the data."""
    lanes: Annotated[int, Interval(ge=0, le=1 << 24)] = 0
    """Number of lanes; 0: chosen for the data, or the batch size if a clip is given. Few frames are
    shuffled one by one without lanes; give a clip as well.
    """
    inside: Literal["sequential", "permuted"] = "sequential"
    """Order of the frames inside a clip."""
    world_size: Annotated[int, Interval(ge=1, le=1 << 20)] = 8
    """Ranks."""
    gop: Annotated[int, Ge(0)] = 0
    """Frames from key frame to key frame; 0: as in the videos (2 for the synthetic table)."""
    reach: tuple[Annotated[int, Ge(0)], Annotated[int, Ge(0)]] = (0, 0)
    """Frames that a sample's windows extend back and ahead."""
    episodes: Annotated[int, Interval(ge=1, le=10**7)] = 76_000
    """Episodes of the synthetic table, log-normal with a mean of 300 frames."""
    order: str = ""
    """Order file of `order export` or of another tool (docs/audit.md): explain it instead of a new
    order. Its batches are compared with those of a uniform shuffle of its own samples. Steps of one
    size in the file are its batches, and `batch_size` cuts any other file. Datasets that are given
    must be those of the file.
    """

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        errors = []
        if not self.order and self.batch_size % self.world_size:
            errors.append(
                f"batch_size: {self.batch_size} does not divide among {self.world_size} ranks"
            )
        errors += [
            f"paths: {path} is named twice"
            for path in sorted(set(self.paths))
            if self.paths.count(path) > 1
        ]
        try:
            parse_bytes(self.memory)
        except ValueError as error:
            errors.append(str(error))
        if self.weights and len(self.weights) != len(self.paths):
            errors.append(f"weights: {len(self.weights)} given for {len(self.paths)} datasets")
        elif self.weights and not all(
            0 < weight < 2**20 * min(self.weights) for weight in self.weights
        ):
            rule = "must be above 0, the largest less than a million times the smallest"
            errors.append(f"weights: {self.weights} {rule}")
        return errors


@dataclass(frozen=True)
class Table:
    """Episode lengths of one dataset, a source for `Order.from_datasets`."""

    name: str
    lengths: np.ndarray
    gop: int
    reach: tuple[int, int]
    fps: float
    cameras: int
    """Cameras with video, at least 1."""

    @property
    def segments(self) -> np.ndarray:
        """Rows [episode, 0, length), int64 (episodes, 3)."""
        number = np.arange(self.lengths.size)
        return np.stack([number, np.zeros_like(number), self.lengths], axis=1).astype(np.int64)


def explain(config: ExplainConfig) -> None:
    """Print the order, and for datasets the candidates that it was chosen from."""
    if config.order:
        print("\n".join(explain_file(config)))
        return
    tables = read_tables(config)
    choice = choose(tables, config)
    order = choice.order if choice else order_of(tables, config)
    print("\n".join([*map(describe, tables), "", order.explain(), ""]))
    if choice:
        print(render_choice(choice, tables, config))


def explain_file(config: ExplainConfig) -> list[str]:
    """Describe the batches of an order file: their episodes, and whether they are few.

    Raises:
        DatasetError: the file is no order, or not one of the datasets that are given.
    """
    from understudy_data.datasets.episode_arrays import EpisodeArrays
    from understudy_data.load.batch_mixing import BatchMixing
    from understudy_data.order import Order
    from understudy_data.order_file import OrderFile

    file = OrderFile(config.order)
    rows = file.stop - file.start
    batch = min(file.batch_size or config.batch_size, rows)
    order = Order.from_file(file, batch_size=batch)
    datasets = [EpisodeArrays(path) for path in config.paths]
    if datasets:
        order = order.of_datasets(datasets)
    mixing = BatchMixing.measure(order, datasets, order.start, spread=True)
    lines = [f"{config.order}: {order.stop - order.start:,} samples", str(mixing)]
    asked = f"--batch-size {config.batch_size}"
    if batch == file.batch_size != config.batch_size:
        lines.insert(
            1, f"batches are the steps of the file, {batch:,} samples each, not those of {asked}"
        )
    elif batch < config.batch_size:
        lines.insert(1, f"no whole batch of {asked}: all rows are taken as one")
    return [*lines, mixing.advice] if mixing.advice else lines


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


def read_tables(config: ExplainConfig) -> list[Table]:
    """Read the episode lengths of the datasets in `config`, or make the synthetic table."""
    if not config.paths:
        lengths = droid_like(config.episodes)
        return [Table("synthetic, like DROID", lengths, config.gop or 2, config.reach, 30.0, 1)]
    from understudy_data.datasets.episode_arrays import EpisodeArrays

    tables = []
    for path in config.paths:
        dataset = EpisodeArrays(path)
        catalog = dataset.catalog
        segments = dataset.epoch_segments
        gop = config.gop or dataset.gop
        lengths = segments[:, 2] - segments[:, 1]
        cameras = max(1, len(catalog.camera_keys))
        tables.append(Table(path, lengths, gop, config.reach, float(catalog.fps), cameras))
    return tables


def choose(tables: Sequence[Table], config: ExplainConfig) -> "OrderChoice | None":
    """Choose the order of the datasets as a loader does; None without datasets."""
    from understudy_data.datasets.episode_arrays import EpisodeArrays
    from understudy_data.load.choose_order import choose_from_facts
    from understudy_data.load.images.source_facts import read_facts
    from understudy_data.order.make_spec import OrderRequest, check_source, resolve_weights

    if not config.paths:
        return None
    facts = [read_facts(EpisodeArrays(table.name), config.image_size) for table in tables]
    facts = [replace(fact, gop=table.gop, reach=table.reach) for fact, table in zip(facts, tables)]
    in_flight = config.frames_in_flight or 1 << 62
    request = OrderRequest(
        "clips",
        config.batch_size,
        in_flight,
        config.clip or None,
        config.lanes or None,
        config.inside,
    )
    return choose_from_facts(
        facts,
        [check_source(table) for table in tables],
        resolve_weights(tables, config.weights or None, None),
        request,
        config.seed,
        memory=parse_bytes(config.memory),
        world_size=config.world_size,
        num_threads=MOST_LOADER_THREADS,
    )


def order_of(tables: Sequence[Table], config: ExplainConfig) -> "Order":
    """Make the order to explain where there are no datasets."""
    from understudy_data.order import Order

    return Order.from_datasets(
        tables,
        weights=config.weights or None,
        batch_size=config.batch_size,
        seed=config.seed,
        frames_in_flight=config.frames_in_flight,
        clip=config.clip or None,
        lanes=config.lanes or None,
        inside=config.inside,
    )


def describe(table: Table) -> str:
    """Describe a dataset in one line."""
    total = int(table.lengths.sum())
    mean = float(table.lengths.mean())
    size = f"{table.lengths.size:,} episodes, {total:,} frames, {mean:.0f} per episode"
    return f"{table.name}: {size}, a key frame every {table.gop}"


def render_choice(choice: "OrderChoice", tables: Sequence[Table], config: ExplainConfig) -> str:
    """Render the candidates of a choice, one in a row, the chosen one marked."""
    from understudy_data.load.choose_order import WINDOWS
    from understudy_data.order.design_effect import expected_uniform

    lengths = np.concatenate([table.lengths for table in tables])
    total = int(lengths.sum())
    uniform = [
        expected_uniform(lengths, min(total, count * config.batch_size)) for count in WINDOWS
    ]
    width = max(len(str(candidate)) for candidate in choice.candidates)
    lines = [f"  {'':{width}}  {'CPU':>6}  {'memory':>8}  deff over 1, 8 and 64 batches"]
    for candidate in choice.candidates:
        effects = "  ".join(
            f"{base + more:6.2f}" for base, more in zip(uniform, candidate.correlation)
        )
        mark = ">" if candidate is choice.chosen else " "
        memory = f"{candidate.plan.bytes / 1e9:.2f} GB"
        lines.append(f"{mark} {candidate!s:{width}}  {candidate.cost:6.2f}  {memory:>8}  {effects}")
    notes = (
        f"Chosen for {config.memory} of memory in each of {config.world_size} ranks. CPU: multiple "
        "of decoding each image in a row, the mean of an epoch in which nothing is decoded yet. "
        "Of the orders up to 1.25, the one with the least deff over 8 batches is taken. deff is "
        f"an estimate. Terms: {page('glossary.md')}"
    )
    lines += ["", fill(notes, 118)]
    if choice.advice:
        lines.append(fill(choice.advice, 118))
    return "\n".join([*lines, ""])
