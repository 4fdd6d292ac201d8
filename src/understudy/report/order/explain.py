"""Audit of our order and five others holding about as many frames, over a bounded number of positions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from understudy.bytesize import parse_bytes
from understudy.config.declare import Positional

if TYPE_CHECKING:
    import numpy as np

    from understudy.load.choose_order import OrderChoice
    from understudy.order import Order
    from understudy.order.audit.audit import Audit
    from understudy.order.audit.baselines import Read


MOST = 1 << 22
"""Most positions to audit, and most positions before them, which bounds memory and time. An order that holds more than
a quarter of this many frames has not settled, and the text notes it."""

FEW = 1 << 20
"""Positions to audit if they suffice, or if no affordable number would: one or two seconds of CPU time per order."""

WIDEST = 64
"""Batches of the widest window."""

LARGEST = {"batch_size": 1 << 24, "world_size": 1 << 20, "num_workers": 1 << 12, "episodes": 10**7, "lanes": 1 << 24}
"""Upper limits of settings; beyond them tables do not fit in memory."""


@dataclass(frozen=True)
class ExplainConfig:
    """Explain the order of datasets, or of a synthetic table of episode lengths like DROID's."""

    paths: Positional[tuple[str, ...]] = ()
    """Datasets, folders or URLs; several make a mixture."""
    weights: tuple[float, ...] = ()
    """Share of each dataset in the samples; by default all frames are equally frequent."""
    batch_size: int = 256
    """Global batch: samples per step over all ranks."""
    seed: int = 0
    """Seed of the order."""
    memory: str = "4GB"
    """Memory of a rank's loader, from which the order of datasets is chosen."""
    image_size: tuple[int, int] | None = None
    """Height and width of the images that the loader delivers; the default is the recorded size."""
    frames_in_flight: int | None = None
    """Frames that all ranks together may hold open. By default only the memory limits them; without datasets the limit
    is 100,000, or 192 per sample for batches above 520."""
    clip: int = 0
    """Frames per clip; 0: chosen for the data."""
    lanes: int = 0
    """Number of lanes; 0: chosen for the data, or the batch size if a clip is given. Few frames are shuffled one by
    one without lanes; give a clip as well."""
    inside: Literal["sequential", "permuted"] = "sequential"
    """Order of the frames inside a clip."""
    world_size: int = 8
    """Ranks."""
    num_workers: int = 8
    """Loader workers per rank, for the orders that depend on them."""
    gop: int = 0
    """Frames from key frame to key frame; 0: as in the videos (2 for the synthetic table)."""
    reach: tuple[int, int] = (0, 0)
    """Frames that a sample's windows extend back and ahead."""
    frame_bytes: float = 4096.0
    """Compressed bytes of one frame."""
    episodes: int = 76_000
    """Episodes of the synthetic table, log-normal with a mean of 300 frames."""
    overwrite: bool = False
    """Replace an earlier figure."""
    figure: str = ""
    """Figure of the comparison to write (.png, .svg, .pdf)."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        from understudy.report.style import check_figure_path

        found = [
            f"{name}: must be at least 1"
            for name in ("batch_size", "world_size", "num_workers", "episodes", "frames_in_flight")
            if (value := getattr(self, name)) is not None and value < 1
        ]
        found += [
            f"{name}: {getattr(self, name)} exceeds the limit of {most}"
            for name, most in LARGEST.items()
            if getattr(self, name) > most
        ]
        if not found and self.batch_size % self.world_size:
            found.append(f"batch_size: {self.batch_size} does not divide among {self.world_size} ranks")
        if min(self.gop, self.clip, self.lanes, *self.reach) < 0:
            found.append("gop, reach, clip, lanes: must not be negative")
        found += [f"paths: {path} is named twice" for path in sorted(set(self.paths)) if self.paths.count(path) > 1]
        try:
            parse_bytes(self.memory)
        except ValueError as error:
            found.append(str(error))
        if self.weights and len(self.weights) != len(self.paths):
            found.append(f"weights: {len(self.weights)} given for {len(self.paths)} datasets")
        elif self.weights and not all(0 < weight < 2**20 * min(self.weights) for weight in self.weights):
            found.append(f"weights: {self.weights} must be above 0, the largest less than a million times the smallest")
        if not 0 <= self.seed < 2**64:
            found.append("seed: must be in [0, 2**64)")
        if not 0 < self.frame_bytes < float("inf"):
            found.append("frame_bytes: must be above 0")
        if self.figure and self.batch_size * WIDEST > MOST:
            found.append(f"figure: batches of {self.batch_size} are too large for a comparison; leave it out")
        return found + check_figure_path(self.figure)


@dataclass(frozen=True)
class Table:
    """Episode lengths of one dataset, a source for `Order.from_datasets`."""

    name: str
    lengths: "np.ndarray"
    gop: int
    reach: tuple[int, int]
    fps: float
    cameras: int
    """Cameras with video, at least 1."""

    @property
    def segments(self) -> "np.ndarray":
        """Rows [episode, 0, length), int64 (episodes, 3)."""
        import numpy as np

        number = np.arange(self.lengths.size)
        return np.stack([number, np.zeros_like(number), self.lengths], axis=1).astype(np.int64)


@dataclass(frozen=True)
class Side:
    """One order of the comparison: its name, its reader and its figures, or the reason why it has none."""

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
    """First audited position, at which every order has settled."""
    sides: tuple[Side, ...]
    settled: bool
    """Whether the audited positions cover several turnovers of the frames held."""


def read_tables(config: ExplainConfig) -> list[Table]:
    """Read the episode lengths of the datasets in `config`, or make the synthetic table."""
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
        gop = config.gop or EpisodeDataset(catalog).gop
        lengths, cameras = lengths[lengths > 0], max(1, len(catalog.camera_keys))
        tables.append(Table(path, lengths, gop, config.reach, float(catalog.fps), cameras))
    return tables


def choose(tables: Sequence[Table], config: ExplainConfig) -> "OrderChoice | None":
    """Choose the order of the datasets as a loader does; None without datasets."""
    from understudy.cores import MOST_LOADER_THREADS
    from understudy.data.dataset import EpisodeDataset
    from understudy.load.choose_order import choose_from_facts
    from understudy.load.memory_plan import read_facts
    from understudy.order.make_spec import OrderRequest, check_source, resolve_weights

    if not config.paths:
        return None
    facts = [read_facts(EpisodeDataset(table.name), config.image_size) for table in tables]
    facts = [replace(fact, gop=table.gop, reach=table.reach) for fact, table in zip(facts, tables)]
    in_flight = config.frames_in_flight or 1 << 62
    request = OrderRequest(
        "clips", config.batch_size, in_flight, config.clip or None, config.lanes or None, config.inside
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
    return {"weights": config.weights or None, "batch_size": config.batch_size, "seed": config.seed}


def compare(tables: Sequence[Table], config: ExplainConfig, order: "Order | None" = None) -> Comparison:
    """Audit our order over the tables, and five others holding about as many frames as ours has in flight.

    Progress is shown on stderr.
    """
    import numpy as np

    from understudy.order import Order
    from understudy.order.audit import baselines as other
    from understudy.order.audit.audit import as_read, audit
    from understudy.progress import Progress

    order = order or order_of(tables, config)
    clips, lengths = as_read(order)
    uniform, _ = as_read(Order.from_datasets(tables, **_asked(config), mode="uniform"))
    # A source in uniform order is held whole; otherwise V lanes hold a clip of S each.
    held = sum(s.frames if s.clip == 1 else min(s.frames, s.clip * s.lanes) for s in order.spec.sources)
    episodes = _whole(held / float(lengths.mean()), config.batch_size, lengths.size)
    pool = max(1, episodes // (config.world_size * config.num_workers))
    # The initial state of a pool is lost after about two turnovers; the audit must cover several more.
    start = min(3 * held, MOST) // config.batch_size * config.batch_size
    settled = 4 * held <= MOST
    enough = max(min(2048 * config.batch_size, FEW), 4 * held) if settled else FEW
    span = max(WIDEST * config.batch_size, min(enough, MOST))
    last = start + span
    each = {"batch": config.batch_size, "ranks": config.world_size, "workers": config.num_workers, "positions": last}
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
    with Progress(len(makers), "orders", "order") as progress:
        for name, make in makers.items():
            try:
                read = make()
                figures = audit(
                    read,
                    lengths,
                    config.batch_size,
                    name=name,
                    world_size=config.world_size,
                    start=start,
                    span=span,
                    gop=np.repeat([table.gop for table in tables], [table.lengths.size for table in tables]),
                    reach=config.reach,
                    fps=tables[0].fps,
                    frame_bytes=config.frame_bytes * float(cameras),
                )
            except ValueError as error:  # fewer episodes than workers; a clip longer than the audit
                sides.append(Side(name, None, None, str(error)))
            else:
                sides.append(Side(name, read, figures))
            progress.update()
    return Comparison(order, lengths, start, tuple(sides), settled)


def _whole(fitting: float, batch: int, most: int) -> int:
    """Round to whole episodes, to a multiple of the batch if possible, so that a lane has one rank."""
    episodes = max(1, min(round(fitting), most))
    return episodes // batch * batch or episodes
