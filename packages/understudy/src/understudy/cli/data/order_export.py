"""`understudy order export`: the samples of a run or of an order as a parquet file, a row per
sample.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from understudy_base import MOST_LOADER_THREADS, ConfigError, parse_bytes
from understudy_kit import Ge, Interval, Positional

if TYPE_CHECKING:
    from understudy_data import Samples


@dataclass(frozen=True)
class ExportConfig:
    """Write the samples of a run, or the order of datasets, as a parquet file, a row per sample."""

    paths: Positional[tuple[str, ...]] = ()
    """A run, or one or several datasets, and last the new file."""
    from_step: Annotated[int, Ge(0)] = 0
    """First step, from 0."""
    steps: Annotated[int, Ge(0)] = 0
    """Number of steps; 0: to the checkpoint of a run; of datasets, until the batches hold as many
    samples as frames.
    """
    world_size: Annotated[int, Interval(ge=1, le=1 << 20)] = 1
    """Ranks, for the column `rank`."""
    checkpoint: Annotated[int, Ge(0)] | Literal["latest", "best"] = "latest"
    """Step of a run's checkpoint, up to which its samples are known, `latest` or `best`."""
    batch_size: Annotated[int, Interval(ge=1, le=1 << 24)] = 256
    """Of datasets: samples per step over all ranks."""
    seed: Annotated[int, Interval(ge=0, lt=1 << 64)] = 0
    """Of datasets: seed of the order."""
    weights: tuple[float, ...] = ()
    """Of datasets: share of each in the samples; by default all frames are equally frequent."""
    memory: str = "4GB"
    """Of datasets: memory of a rank's loader, from which the order is chosen."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        if len(self.paths) < 2:
            return ["paths: required: understudy order export RUN|DATA OUT.parquet"]
        problems = [
            f"paths: {path} is named twice"
            for path in sorted(set(self.paths))
            if self.paths.count(path) > 1
        ]
        runs = [path for path in self.paths[:-1] if Path(path, "order.json").is_file()]
        if runs and self.paths[2:]:
            problems.append(f"paths: {runs[0]} is a run, which is exported alone")
        unused = ["batch_size", "seed", "weights", "memory"] if runs else ["checkpoint"]
        changed = [name for name in unused if getattr(self, name) != getattr(ExportConfig, name)]
        source = "a run" if runs else "datasets"
        return problems + [f"{name}: not for {source}; leave it out" for name in changed]


def export(config: ExportConfig) -> None:
    """Write the file and print its size."""
    from understudy.train.account import Account
    from understudy_base import Progress
    from understudy_data import EpisodeDataset, OrderExport, Span, choose_order

    *paths, out = config.paths
    first = config.from_step
    ranks = config.world_size
    if Path(paths[0], "order.json").is_file():
        account = Account.open(Path(paths[0]), config.checkpoint)
        end = first + config.steps if config.steps else account.state["step"]
        spans = account.cut(first, end)
        written = account.export(spans)
        blocks = account.samples(spans, ranks)
    else:
        datasets = []
        for path in paths:
            name = path if len(paths) > 1 else None
            datasets.append(EpisodeDataset(path, name=name))
        try:
            order = choose_order(
                datasets,
                memory=parse_bytes(config.memory),
                world_size=ranks,
                num_threads=MOST_LOADER_THREADS,
                weights=config.weights or None,
                batch_size=config.batch_size,
                seed=config.seed,
            ).order
        except ValueError as error:
            raise ConfigError(str(error)) from error
        steps = config.steps or -(-sum(map(len, datasets)) // config.batch_size)
        span = Span(first, first * config.batch_size, config.batch_size, steps)
        spans = [span]
        facts = {source.name: OrderExport.facts_of(source) for source in datasets}
        written = OrderExport(order.spec, spans, facts)
        blocks = span.samples(order.locate, ranks)
    total = sum(span.steps * span.batch for span in spans)
    if not total or ranks > min(span.batch for span in spans):
        raise ConfigError(
            f"from_step {first}, world_size {ranks}: there are no such steps, or fewer samples "
            "than ranks"
        )
    with Progress(total, "export", "sample") as progress:

        def counted() -> "Iterator[Samples]":
            for block in blocks:
                yield block
                progress.update(len(block.step))

        written.write(out, counted())
    print(f"{out}: {total:,} samples, from position {spans[0].position}")
