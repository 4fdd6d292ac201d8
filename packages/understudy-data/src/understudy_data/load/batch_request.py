"""The arguments that `Loader` and `EpisodeStream` share: datasets, their order, and the share of
this process.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from torch import Tensor

from understudy_base import parse_bytes
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.selection_fields import SelectionOptions
from understudy_data.datasets.read.returns import ReturnTarget
from understudy_data.datasets.selection.select import Selection
from understudy_data.load.choose_order import choose_order
from understudy_data.load.images.disk_cache import DiskCache
from understudy_data.load.mixed_batches import Mixture
from understudy_data.load.same_version import agree_on_publications, check_same, find_board
from understudy_data.order import Order, rank_slice
from understudy_data.order.frame_numbering import LARGEST
from understudy_data.order.make_spec import as_list
from understudy_data.order.sample_random import SampleRng
from understudy_data.storage.remote_options import RemoteOptions

Batch: TypeAlias = dict[str, Any]
Augment: TypeAlias = Callable[[dict[str, Tensor], SampleRng], None]
Preprocess: TypeAlias = Callable[[Batch], Batch]
Datasets: TypeAlias = "EpisodeDataset | Catalog | str | os.PathLike[str] | Sequence[Any]"
"""One dataset, path, hub id or catalog, or several of them."""


class DatasetOptions(SelectionOptions, total=False):
    """Arguments of `EpisodeDataset` for the paths, hub ids and catalogs among `datasets`; it
    documents them.
    """

    delta_timestamps: Mapping[str, Sequence[float]] | None
    select: Selection | None
    tolerance_s: float
    keys: Sequence[str] | None
    names: Mapping[str, str] | None
    missing_cameras: Mapping[str, tuple[int, int]] | None
    depth_unit: Literal["m", "mm"] | None
    response: str | None
    prompt_metadata: Sequence[str] | None
    returns: ReturnTarget | Mapping[str, Any] | None
    name: str | None
    video_backend: str
    frame_cache_bytes: int


class BatchOptions(TypedDict, total=False):
    """Arguments that `Loader` and `EpisodeStream` share, besides those of datasets; `Loader`
    documents them.
    """

    order: Order | None
    batch_size: int | None
    seed: int | None
    weights: Sequence[float] | Mapping[str, float] | None
    rank: int | None
    world_size: int | None
    allow_uneven: bool
    position: int
    memory: int | str
    image_size: tuple[int, int] | None
    augment: Augment | None
    task_separator: str
    preprocess: Preprocess | None
    on_bad_frame: Literal["raise", "substitute"]
    journal: str | Path | None
    bad_frame_cap: float
    decoded_cache: str | os.PathLike[str] | tuple[str | os.PathLike[str], int | str] | None


class ReadOptions(BatchOptions, DatasetOptions, total=False):
    """Keyword arguments of `Loader` and `EpisodeStream`."""


@dataclass(frozen=True)
class BatchRequest:
    """The batches of one process, from checked arguments."""

    order: Order
    datasets: tuple[EpisodeDataset, ...]
    """In the sequence of the order's sources."""
    rank: int = 0
    world_size: int = 1
    """The process makes the share of `rank` of every global batch (`order/rank_positions.py`)."""
    allow_uneven: bool = False
    """Let shares differ by one sample."""
    position: int = 0
    """First position. To resume, the `position` of the earlier loader."""
    memory: int | str = "4GB"
    """Bytes, or text such as "4GB", for everything that is held at once (`Loader.plan`)."""
    image_size: tuple[int, int] | None = None
    """(height, width) of the images, resized by area averaging, depth by nearest pixel; None: as
    recorded.
    """
    augment: Augment | None = None
    """Called in a loader thread for each sample, with its images and the random numbers of its
    position.

    The images are a dict of uint8 tensors (T, 3, H, W) by camera, to be changed in place. Depth is
    not among them.
    """
    task_separator: str = ""
    """Text between several instructions of a task, of which each sample gets one, drawn for its
    position with the order's seed; "": the text as it is.
    """
    preprocess: Preprocess | None = None
    """Called in a loader thread with each complete batch of this process; its result is the batch.
    To tokenise, say.
    """
    on_bad_frame: Literal["raise", "substitute"] = "raise"
    """For an unreadable sample: raise `DatasetError`, or deliver a neighbour instead
    (`bad_frames.py`).
    """
    journal: str | Path | None = None
    """File to which every substitution is appended."""
    bad_frame_cap: float = 0.01
    """Share of a source's frames that may be substituted."""
    decoded_cache: str | os.PathLike[str] | tuple[str | os.PathLike[str], int | str] | None = None
    """Folder on a local disk for decoded images (`images/disk_cache.py`), or that and its largest
    size; None: none.
    """

    def __post_init__(self) -> None:
        rank_slice(self.order.batch_size, self.rank, self.world_size)
        if self.order.batch_size % self.world_size and not self.allow_uneven:
            raise ValueError(
                f"batch_size {self.order.batch_size} over {self.world_size} ranks: a mean of each "
                "rank's loss would weigh samples unevenly; give a multiple, or allow_uneven=True "
                "if the loss is divided by the number of samples of all ranks"
            )
        whole = isinstance(self.position, Integral) and not isinstance(self.position, bool)
        first = self.order.start
        last = min(self.order.stop, LARGEST - 1)
        if not whole or not first <= self.position <= last:
            raise ValueError(
                f"position {self.position!r:.80}: need a whole number, {first} to {last}"
            )
        if not isinstance(self.task_separator, str):
            raise ValueError(f"task_separator {self.task_separator!r:.80}: need a text, as ' | '")
        if self.on_bad_frame not in ("raise", "substitute"):
            raise ValueError(f"on_bad_frame {self.on_bad_frame!r}: need 'raise' or 'substitute'")

    @property
    def memory_bytes(self) -> int:
        """`memory` in bytes."""
        return parse_bytes(self.memory)

    @property
    def disk_cache(self) -> DiskCache | None:
        """`decoded_cache` with its size in bytes."""
        if self.decoded_cache is None:
            return None
        if isinstance(self.decoded_cache, tuple):
            folder, size = self.decoded_cache
        else:
            folder = self.decoded_cache
            size = RemoteOptions().cache_bytes
        try:
            return DiskCache(os.path.abspath(os.path.expanduser(folder)), parse_bytes(size))
        except ValueError as error:
            raise ValueError(str(error).replace("memory", "decoded_cache: size", 1)) from error

    @property
    def share(self) -> tuple[int, int]:
        """Offsets [low, high) of this process in every global batch."""
        return rank_slice(self.order.batch_size, self.rank, self.world_size)


def make_request(
    datasets: Datasets,
    options: ReadOptions,
    *,
    num_threads: int,
    workers: int = 1,
) -> BatchRequest:
    """Checked request from the arguments of a constructor.

    Args:
        datasets: paths are opened with the options of datasets.
        options: keyword arguments of the constructor, with the rank that was found.
        num_threads: for `choose_order`, where no order is given.
        workers: for `choose_order`.

    Raises:
        ValueError: see `Loader`.
        TypeError: an unknown option, or an option of datasets that are already open.
    """
    settings: dict[str, Any] = {
        name: value for name, value in options.items() if name in BatchOptions.__annotations__
    }
    sources, is_list = _listed(datasets)
    board = find_board(sources, options)
    sources = agree_on_publications(sources, board)
    options_of_datasets = {name: value for name, value in options.items() if name not in settings}
    one_or_more = sources if is_list else sources[0]
    opened = _open(one_or_more, options_of_datasets)
    order, batch_size, seed, weights = (
        settings.pop(name, None) for name in ("order", "batch_size", "seed", "weights")
    )
    if order is None:
        if batch_size is None:
            raise ValueError(
                "neither order nor batch_size: give batch_size=32, or "
                "order=Order.from_datasets(...)"
            )
        order_seed = 0 if seed is None else seed
        choice = choose_order(
            opened,
            memory=parse_bytes(settings.get("memory", BatchRequest.memory)),
            world_size=settings["world_size"],
            num_threads=num_threads,
            workers=workers,
            image_size=settings.get("image_size"),
            decoded_cache=settings.get("decoded_cache") is not None,
            batch_size=batch_size,
            seed=order_seed,
            weights=weights,
        )
        order = choice.order
        if choice.advice:
            warnings.warn(choice.advice, stacklevel=3)
    elif (batch_size, seed, weights) != (None, None, None):
        raise ValueError(
            "order besides batch_size, seed or weights: the order has them (batch_size "
            f"{order.batch_size}, seed {order.seed}); leave them out"
        )
    # refuses other datasets, and another selection than the order's
    order = order.of_datasets(opened)
    request = BatchRequest(order, tuple(opened), **settings)
    check_same(order, opened, board)
    Mixture.from_datasets(opened)  # refuses datasets that no batch can combine
    return request


FOREIGN = {
    "buffer_size": "give an order: Order.from_datasets(frames_in_flight=...)",
    "collate_fn": "batches are made of tensors here; give preprocess, which gets each complete "
    "batch",
    "episode_pool_size": "give an order: Order.from_datasets(frames_in_flight=...)",
    "drop_last": "leave it out; the stream of samples has no end",
    "generator": "give seed, which with a position keys every random number",
    "iterable_shuffle": "leave it out; samples are always shuffled, by seed",
    "num_workers": "a Loader has num_threads",
    "persistent_workers": "leave it out; threads live as long as the loader",
    "pin_memory": "a Loader pins its batches with device='cuda', or with pin=True",
    "prefetch_factor": "give memory, which bounds the batches that are made ahead",
    "sampler": "give order",
    "shuffle": "leave it out; samples are always shuffled, by seed; Order.from_datasets(mode=...) "
    "makes other orders",
    "video_decoder_cache_size": "give memory, in bytes, for images and decoders together",
}
"""Arguments of torch's DataLoader and of streaming datasets -> the equivalent here."""


class NoOptions(TypedDict):
    """Keyword arguments of a function that refuses all."""


def refuse_foreign(options: Iterable[str]) -> None:
    """Raise TypeError with the equivalents of the options that other loaders have."""
    if foreign := [f"{name}: {FOREIGN[name]}" for name in sorted({*options} & FOREIGN.keys())]:
        fix = "a DataLoader around an EpisodeStream has its own"
        raise TypeError(f"options of other loaders: {'; '.join(foreign)} ({fix})")


def _listed(datasets: Datasets) -> tuple[list[Any], bool]:
    """Return the datasets as a list, and whether they were several."""
    several = isinstance(datasets, Iterable) and not isinstance(
        datasets, (str, bytes, os.PathLike, Mapping)
    )
    if several:
        return list(datasets), True  # type: ignore[arg-type]
    return [datasets], False


def _open(datasets: Datasets, options: Mapping[str, Any]) -> list[EpisodeDataset]:
    sources, several = _listed(datasets)
    paths = [isinstance(source, (str, os.PathLike, Catalog)) for source in sources]
    names = DatasetOptions.__annotations__
    refuse_foreign(options)
    if unknown := sorted(options.keys() - names.keys()):
        near = get_close_matches(unknown[0], [*names, *BatchOptions.__annotations__], n=1)
        fix = f"did you mean {near[0]!r}?" if near else f"datasets have {', '.join(names)}"
        fix = "give augment or preprocess" if unknown == ["image_transforms"] else fix
        raise TypeError(f"unknown options {unknown}: {fix}")
    if options and not any(paths):
        raise TypeError(
            f"options {sorted(options)}: no dataset is opened here; give them to "
            "EpisodeDataset(...)"
        )
    opened = []
    for source, is_path in zip(sources, paths):
        dataset = EpisodeDataset(source, **options) if is_path else source
        opened.append(dataset)
    return as_list(opened) if several else as_list(opened[0])
