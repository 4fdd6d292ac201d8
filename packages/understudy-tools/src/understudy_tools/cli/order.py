"""`understudy order explain`: the order of samples, how well it mixes, and its cost in CPU time and
memory.

It reads episode lengths and one video index per camera (for the distance of key frames), but no
frame. Without datasets it uses a synthetic table of lengths like DROID's.
`lab/benchmarks/order_compare.py` audits orders of other loaders next to ours.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from understudy_base import parse_bytes
from understudy_kit import Ge, Interval, Positional

if TYPE_CHECKING:
    from understudy_data import ExplainedOrder


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


def explain(config: ExplainConfig) -> None:
    """Print the order, and for datasets the candidates that it was chosen from."""
    print(explained(config))


def explained(config: ExplainConfig) -> "ExplainedOrder":
    """Return the order that a loader would read, or the order of a file or of a synthetic table."""
    from understudy_data import ExplainedOrder

    if config.order:
        return ExplainedOrder.of_file(config.order, config.batch_size, config.paths)
    options = order_options(config)
    if not config.paths:
        gop = config.gop or 2
        return ExplainedOrder.like_droid(config.episodes, gop=gop, reach=config.reach, **options)
    return ExplainedOrder.of_datasets(
        config.paths,
        gop=config.gop,
        reach=config.reach,
        memory=config.memory,
        world_size=config.world_size,
        image_size=config.image_size,
        **options,
    )


def order_options(config: ExplainConfig) -> dict[str, Any]:
    """Return the settings of the order, None where the data decide."""
    return {
        "weights": config.weights or None,
        "batch_size": config.batch_size,
        "seed": config.seed,
        "frames_in_flight": config.frames_in_flight,
        "clip": config.clip or None,
        "lanes": config.lanes or None,
        "inside": config.inside,
    }
