"""The arguments that `Loader` and `EpisodeStream` share: datasets, their order, and the share of this process."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

from torch import Tensor

from understudy.bytesize import parse_bytes
from understudy.data.dataset import EpisodeDataset
from understudy.data.format.catalog import Catalog
from understudy.load.fit_order import fit_order
from understudy.load.mixture import Mixture
from understudy.order import Order, rank_slice
from understudy.order.layout import LARGEST
from understudy.order.make_spec import as_list
from understudy.order.sample_random import SampleRng

Batch: TypeAlias = dict[str, Any]
Augment: TypeAlias = Callable[[dict[str, Tensor], SampleRng], None]
Datasets: TypeAlias = "EpisodeDataset | Catalog | str | os.PathLike[str] | Sequence[Any]"
"""One dataset, path, hub id or catalog, or several of them."""


@dataclass(frozen=True)
class BatchRequest:
    """The batches of one process: the arguments that `Loader` and `EpisodeStream` share."""

    order: Order
    datasets: tuple[EpisodeDataset, ...]
    """In the sequence of the order's sources."""
    rank: int = 0
    world_size: int = 1
    """The process makes the share of `rank` of every global batch (`order/rank_positions.py`)."""
    position: int = 0
    """First position. To resume, the `position` of the earlier loader."""
    memory: int | str = "4GB"
    """Bytes, or text such as "4GB", for everything that is held at once (`Loader.plan`)."""
    image_size: tuple[int, int] | None = None
    """(height, width) of the images, resized by area averaging; None keeps the recorded size."""
    augment: Augment | None = None
    """Called in a loader thread for each sample, with its images and the random numbers of its position.

    The images are a dict of uint8 tensors (T, 3, H, W) by camera, to be changed in place.
    """
    preprocess: Callable[[Batch], Batch] | None = None
    """Called in a loader thread with each complete batch of this process; its result is the batch. To tokenise, say."""
    on_bad_frame: Literal["raise", "substitute"] = "raise"
    """For an unreadable sample: raise `DatasetError`, or deliver a neighbour instead (`bad_frames.py`)."""
    journal: str | Path | None = None
    """File to which every substitution is appended."""
    bad_frame_cap: float = 0.01
    """Share of a source's frames that may be substituted."""

    def __post_init__(self) -> None:
        rank_slice(self.order.batch_size, self.rank, self.world_size)
        if not 0 <= self.position < LARGEST:
            raise ValueError(f"position {self.position}: positions are 0 to 2**62 - 1")
        if self.on_bad_frame not in ("raise", "substitute"):
            raise ValueError(f"on_bad_frame {self.on_bad_frame!r}: need 'raise' or 'substitute'")

    @property
    def memory_bytes(self) -> int:
        """`memory` in bytes."""
        return parse_bytes(self.memory)

    @property
    def share(self) -> tuple[int, int]:
        """Offsets [low, high) of this process in every global batch."""
        return rank_slice(self.order.batch_size, self.rank, self.world_size)


_OWN = {field.name for field in fields(BatchRequest)} - {"order", "datasets"}


def make_request(
    datasets: Datasets,
    *,
    order: Order | None,
    batch_size: int | None,
    seed: int | None,
    weights: Sequence[float] | Mapping[str, float] | None,
    num_threads: int,
    options: Mapping[str, Any],
) -> BatchRequest:
    """Checked request from the arguments of a constructor.

    Args:
        datasets: opened with those of `options` that are no fields of `BatchRequest`, where they are paths.
        num_threads: for `fit_order`, where no order is given.

    Raises:
        ValueError: see `Loader`.
        TypeError: an unknown option.
    """
    opened = _open(datasets, {key: value for key, value in options.items() if key not in _OWN})
    own = {key: value for key, value in options.items() if key in _OWN}
    if order is None:
        if batch_size is None:
            raise ValueError("neither order nor batch_size: give batch_size=32, or order=Order.from_datasets(...)")
        order, _ = fit_order(
            opened,
            memory=parse_bytes(own.get("memory", BatchRequest.memory)),
            world_size=own.get("world_size", 1),
            num_threads=num_threads,
            image_size=own.get("image_size"),
            batch_size=batch_size,
            seed=0 if seed is None else seed,
            weights=weights,
        )
    elif (batch_size, seed, weights) != (None, None, None):
        raise ValueError(
            f"order besides batch_size, seed or weights: the order has them (batch_size {order.batch_size}, seed "
            f"{order.seed}); leave them out"
        )
    request = BatchRequest(order, tuple(opened), **own)
    Order.from_json(order.spec, opened)  # refuses other datasets, and another selection than the order's
    Mixture.from_datasets(opened)  # refuses datasets that no batch can combine
    return request


def _open(datasets: Datasets, options: Mapping[str, Any]) -> list[EpisodeDataset]:
    several = isinstance(datasets, Iterable) and not isinstance(datasets, (str, bytes, os.PathLike, Mapping))
    given: list[Any] = list(datasets) if several else [datasets]  # type: ignore[arg-type]
    paths = [isinstance(one, (str, os.PathLike, Catalog)) for one in given]
    if options and not any(paths):
        raise TypeError(
            f"unknown options {sorted(options)}: options of a dataset are for paths; give them to EpisodeDataset(...)"
        )
    opened = [EpisodeDataset(one, **options) if path else one for one, path in zip(given, paths)]
    return as_list(opened if several else opened[0])
