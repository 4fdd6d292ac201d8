"""Our order beside five others, holding about as many frames: counted over a stretch of bounded length."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from understudy.config.declare import Positional

if TYPE_CHECKING:
    import numpy as np

    from understudy.order import Order
    from understudy.order.audit.audit import Audit
    from understudy.order.audit.baselines import Read


MOST = 1 << 22
"""Positions to look at, and as many before them: memory and time stay bounded, whatever is held. What holds more than a
quarter of this (as a rule, all there is) is not seen to come and go often enough to settle, and the text says so."""

FEW = 1 << 20
"""Positions to look at where that is enough, or where no number that can be looked at would be: a second of CPU time or
two for each order."""

WIDEST = 64
"""Batches of the widest window that is looked at."""

LARGEST = {"batch": 1 << 24, "world": 1 << 20, "workers": 1 << 12, "episodes": 10**7, "lanes": 1 << 24}
"""The most that may be asked for; beyond, tables no longer fit in memory."""


@dataclass(frozen=True)
class ExplainConfig:
    """What to explain. Without PATHS: a synthetic table of episode lengths like DROID's."""

    paths: Positional[tuple[str, ...]] = ()
    """Datasets, folders or URLs; several make a mixture."""
    weights: tuple[float, ...] = ()
    """Share of each dataset in the samples; none given: each frame equally often."""
    batch: int = 256
    """Global batch: samples per step over all ranks."""
    seed: int = 0
    """Seed of the order."""
    frames_in_flight: int | None = None
    """Frames that all ranks together may hold open; none: 100,000, or 192 per sample of a batch of more than 520."""
    clip: int = 0
    """Frames per clip, to try another one; 0: chosen for the data."""
    lanes: int = 0
    """Lanes, to try another number; 0: chosen for the data, or the batch where a clip is given. (Few frames that are
    shuffled one by one have none; give a clip as well.)"""
    inside: Literal["sequential", "permuted"] = "sequential"
    """Order of the frames inside a clip."""
    world: int = 8
    """Ranks."""
    workers: int = 8
    """Loader workers per rank, of the orders that depend on them."""
    gop: int = 0
    """Pictures from key frame to key frame; 0: as in the videos (2 for the synthetic table)."""
    reach: tuple[int, int] = (0, 0)
    """Pictures that a sample's windows reach back and ahead."""
    frame_bytes: float = 4096.0
    """Compressed bytes of one picture."""
    episodes: int = 76_000
    """Episodes of the synthetic table, log-normal with a mean of 300 frames."""
    picture: str = ""
    """Draw the comparison to this file (.png, .svg, .pdf)."""

    def problems(self) -> list[str]:
        """What is wrong with the settings together, one line each."""
        from understudy.report.style import foreign

        found = [
            f"{name}: must be at least 1"
            for name in ("batch", "world", "workers", "episodes", "frames_in_flight")
            if (value := getattr(self, name)) is not None and value < 1
        ]
        found += [
            f"{name}: {getattr(self, name)} is more than {most}, the most that can be explained"
            for name, most in LARGEST.items()
            if getattr(self, name) > most
        ]
        if not found and self.batch % self.world:
            found.append(f"batch: {self.batch} does not divide among {self.world} ranks")
        if min(self.gop, self.clip, self.lanes, *self.reach) < 0:
            found.append("gop, reach, clip, lanes: must not be negative")
        found += [f"paths: {path} is named twice" for path in sorted(set(self.paths)) if self.paths.count(path) > 1]
        if self.weights and len(self.weights) != len(self.paths):
            found.append(f"weights: {len(self.weights)} given for {len(self.paths)} datasets")
        elif self.weights and not all(0 < weight < 2**20 * min(self.weights) for weight in self.weights):
            found.append(f"weights: {self.weights} must be above 0, the largest less than a million times the smallest")
        if not 0 <= self.seed < 2**64:
            found.append("seed: must be in [0, 2**64)")
        if not 0 < self.frame_bytes < float("inf"):
            found.append("frame_bytes: must be above 0")
        if self.picture and not Path(self.picture).absolute().parent.is_dir():
            found.append(f"picture: there is no folder {Path(self.picture).parent}; make it first")
        found += foreign(self.picture)
        if self.picture and self.batch * WIDEST > MOST:
            found.append(f"picture: batches of {self.batch} are too large to be compared; leave it out")
        if self.picture and not self.picture.endswith((".png", ".svg", ".pdf")):
            found.append(f"picture: {self.picture!r} must end in .png, .svg or .pdf")
        return found


@dataclass(frozen=True)
class Table:
    """The lengths of one dataset, as `Order.from_datasets` takes a source."""

    name: str
    lengths: "np.ndarray"
    gop: int
    reach: tuple[int, int]
    fps: float
    cameras: int
    """Cameras with video, at least 1."""
    decoded: int = 0
    """Bytes of all its pictures, decoded; 0: not known."""

    @property
    def segments(self) -> "np.ndarray":
        """int64 (episodes, 3) rows [episode, 0, length)."""
        import numpy as np

        number = np.arange(self.lengths.size)
        return np.stack([number, np.zeros_like(number), self.lengths], axis=1).astype(np.int64)


@dataclass(frozen=True)
class Side:
    """One order of the comparison: its name, how to read it, and its figures; or why there are none."""

    name: str
    read: "Read | None"
    figures: "Audit | None"
    missing: str = ""


@dataclass(frozen=True)
class Comparison:
    """Our order and the others beside it."""

    order: "Order"
    lengths: "np.ndarray"
    start: int
    """The first position looked at: far enough into a run for every order to have settled."""
    sides: tuple[Side, ...]
    settled: bool
    """Whether the stretch sees what is held come and go several times."""


def read_tables(config: ExplainConfig) -> list[Table]:
    """The lengths of the datasets that `config` names, or the synthetic table."""
    from understudy.order.audit.baselines import droid_like

    if not config.paths:
        lengths = droid_like(config.episodes)
        return [Table("synthetic, like DROID", lengths, config.gop or 2, config.reach, 30.0, 1)]
    from understudy.data.dataset import EpisodeDataset
    from understudy.data.format.catalog import Catalog

    tables = []
    for path in config.paths:
        catalog = Catalog.open(path)
        lengths = catalog.episodes.lengths
        sizes = [catalog.features[camera].size for camera in catalog.camera_keys]
        decoded = 3 * int(lengths.sum()) * sum(size[0] * size[1] for size in sizes if size) if all(sizes) else 0
        gop = config.gop or EpisodeDataset(catalog).gop
        lengths, cameras = lengths[lengths > 0], max(1, len(sizes))
        tables.append(Table(path, lengths, gop, config.reach, float(catalog.fps), cameras, decoded))
    return tables


def order_of(tables: Sequence[Table], config: ExplainConfig) -> "Order":
    """The order that is explained."""
    from understudy.order import Order

    return Order.from_datasets(
        tables,
        **_asked(config),
        frames_in_flight=config.frames_in_flight,
        clip=config.clip or None,
        lanes=config.lanes or None,
        inside=config.inside,
    )


def _asked(config: ExplainConfig) -> dict[str, Any]:
    return {"weights": config.weights or None, "batch_size": config.batch, "seed": config.seed}


def compare(tables: Sequence[Table], config: ExplainConfig, order: "Order | None" = None) -> Comparison:
    """Audit our order over the tables, and the others holding about as many frames as ours has in flight.

    How far it is, is shown on stderr where it takes more than two seconds.
    """
    import numpy as np

    from understudy.order import Order
    from understudy.order.audit import baselines as other
    from understudy.order.audit.audit import as_read, audit
    from understudy.progress import tqdm

    order = order or order_of(tables, config)
    clips, lengths = as_read(order)
    uniform, _ = as_read(Order.from_datasets(tables, **_asked(config), mode="uniform"))
    # A source whose order is the uniform shuffle is held whole; otherwise V lanes hold a clip of S each.
    held = sum(s.frames if s.clip == 1 else min(s.frames, s.clip * s.lanes) for s in order.spec.sources)
    episodes = _whole(held / float(lengths.mean()), config.batch, lengths.size)
    pool = max(1, episodes // (config.world * config.workers))
    # A pool has forgotten after about two turnovers that it started full; the stretch must see several more.
    start = min(3 * held, MOST) // config.batch * config.batch
    settled = 4 * held <= MOST
    enough = max(min(2048 * config.batch, FEW), 4 * held) if settled else FEW
    span = max(WIDEST * config.batch, min(enough, MOST))
    last = start + span
    each = {"batch": config.batch, "ranks": config.world, "workers": config.workers, "positions": last}
    makers: dict[str, Callable[[], other.Read]] = {
        "clips": lambda: clips,
        "uniform": lambda: uniform,
        "episode lanes": lambda: other.episode_lanes(lengths, episodes, config.seed),
        "block shuffle": lambda: other.block(lengths, held, config.seed),
        "worker pool": lambda: other.worker_pool(lengths, **each, pool=pool, seed=config.seed),
        "episode stream": lambda: other.episode_stream(lengths, **each, seed=config.seed),
    }
    cameras = np.average([table.cameras for table in tables], weights=order.spec.schedule[0].slots)
    sides = []
    every = 0.5 if sys.stderr.isatty() else 15.0
    bar = tqdm(makers.items(), "orders compared", delay=2, mininterval=every, file=sys.stderr, leave=False)
    for name, make in bar:
        try:
            read = make()
            figures = audit(
                read,
                lengths,
                config.batch,
                name=name,
                world_size=config.world,
                start=start,
                span=span,
                gop=np.repeat([table.gop for table in tables], [table.lengths.size for table in tables]),
                reach=config.reach,
                fps=tables[0].fps,
                frame_bytes=config.frame_bytes * float(cameras),
            )
        except ValueError as error:  # too few episodes to give every worker one; a clip that outlasts the stretch
            sides.append(Side(name, None, None, str(error)))
            continue
        sides.append(Side(name, read, figures))
    return Comparison(order, lengths, start, tuple(sides), settled)


def _whole(fitting: float, batch: int, most: int) -> int:
    """Whole episodes for so many frames: a multiple of the batch if that fits, so that a lane keeps its rank."""
    episodes = max(1, min(round(fitting), most))
    return episodes // batch * batch or episodes
