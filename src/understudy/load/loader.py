"""Loader: ready batches in the order's sequence, made ahead of time by threads. Its whole state is one position.

Which samples a batch holds is the order's decision alone; threads and memory change when the work is done, never what
comes out.
"""

import os
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, NoReturn

import torch

from understudy.bytesize import parse_bytes
from understudy.data.dataset import EpisodeDataset
from understudy.deprecation import renamed_arguments, renamed_attribute
from understudy.load.bad_frames import Substitutes, Substitution
from understudy.load.batch_builder import Augment, Batch, Stream
from understudy.load.device_copy import Delivery
from understudy.load.images.buffer_pool import Buffers
from understudy.load.images.clip_reader import Spent, sum_of
from understudy.load.images.decoded_cache import kept
from understudy.load.memory_plan import make_plan
from understudy.load.mixture import Mixture, picture_shapes
from understudy.load.workers import Engine
from understudy.order import Order
from understudy.order.layout import LARGEST
from understudy.order.placement import rank_slice
from understudy.order.settle import listed

__all__ = ["Batch", "Loader"]


class Loader:
    """Iterates batches without end: dicts of stacked tensors [B / world, ...], strings as lists.

    Besides the datasets' own keys a batch has `position` int64 and `source` int64 (which dataset). Pictures are uint8.

    Args:
        datasets: as given to `Order.from_datasets`, in the same sequence, or one; all have the same keys. Where
            widths of vectors differ they are padded, and told: `real_action_dim`, `action_dim_is_pad`; where some lack
            a camera, `<camera>_is_missing` tells (`mixture.py`).
        order: the samples; without it, `Order.from_datasets(datasets, batch_size=batch_size, seed=seed)`.
            the samples of a step over all ranks. Save the loader's own `order` (`order.to_json()`).
        rank, world: this process makes its share of every global batch (`order/placement.py`).
        threads: how many make batches; "auto" is one per available core, at most 8.
        memory: bytes, or text such as "4GB", for all that is held: see `plan`. A dataset whose pictures all fit (the
            first ones first) keeps them decoded, another one has them decoded when needed, each once per clip.
        start: the position to begin with: `position` of the loader that is carried on.
        size: (height, width) that pictures are resized to, by area averaging.
        augment: called in the thread for each sample with its pictures (camera -> uint8 tensor (T, 3, H, W), to be
            changed in place) and the random numbers of its position (`order.draws.SampleRng`).
        on_bad_frame: what to do with a sample that cannot be read: raise `DatasetError`, or deliver its neighbour
            instead (`bad_frames.py`), which `substitutions` lists and the file `journal` records, up to
            `bad_frame_cap`, a share of the frames of a source.
        pin: batches in page-locked memory. device: where batches are copied to, beside the work of the current stream;
            for a CUDA device this pins as well.

    Raises:
        ValueError: neither an order nor a batch_size, or both; a size that is not understood, a negative start, a rank
            outside the world, datasets that are not those of the order or that differ in what no batch can hold,
            memory for less than one batch, `pin` or a CUDA `device` where there is none.
    """

    @renamed_arguments(world="world_size", threads="num_threads", start="position", size="image_size")
    def __init__(
        self,
        datasets: EpisodeDataset | Sequence[EpisodeDataset],
        *,
        order: Order | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        num_threads: int | Literal["auto"] = "auto",
        memory: int | str = "4GB",
        position: int = 0,
        image_size: tuple[int, int] | None = None,
        augment: Augment | None = None,
        on_bad_frame: Literal["raise", "substitute"] = "raise",
        journal: str | Path | None = None,
        bad_frame_cap: float = 0.01,
        pin: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        datasets = listed(datasets)
        if order is None:
            if batch_size is None:
                raise ValueError(
                    "neither order nor batch_size: give order=Order.from_datasets(...), or batch_size=32 for defaults"
                )
            order = Order.from_datasets(datasets, batch_size=batch_size, seed=0 if seed is None else seed)
        elif batch_size is not None or seed is not None:
            raise ValueError(
                f"order and batch_size or seed: the order has both (batch_size {order.batch_size}, seed {order.seed}); "
                "leave them out"
            )
        check_place(datasets, order, rank, world_size, position)
        self._order, self._rank, self._world_size = order, rank, world_size
        count = min(8, _cores()) if num_threads == "auto" else num_threads
        if count < 1:
            raise ValueError(f"num_threads {num_threads}: need at least 1")
        if on_bad_frame not in ("raise", "substitute"):
            raise ValueError(f"on_bad_frame {on_bad_frame!r}: it is 'raise' or 'substitute'")
        self._image_size, self._augment = image_size, augment
        self._substitutes = Substitutes(order, journal, bad_frame_cap) if on_bad_frame == "substitute" else None
        if pin and not torch.cuda.is_available():
            raise ValueError("pin: page-locked memory is for a CUDA device, and torch finds none here; leave it out")
        self._delivery = Delivery(torch.device(device)) if device is not None else None
        cameras = len(picture_shapes(datasets, image_size)[0])  # refuses pictures of several sizes
        self.plan = make_plan(
            datasets,
            order,
            rank=rank,
            world_size=world_size,
            num_threads=count,
            memory=parse_bytes(memory),
            image_size=image_size,
        )
        """What is held in memory, and how it is used."""
        self._sources = tuple(kept(d, image_size) if stays else d for d, stays in zip(datasets, self.plan.kept))
        pin = pin or (self._delivery is not None and self._delivery.pins)
        self._buffers = Buffers((self.plan.ahead + 2) * cameras, pin)  # an array of each camera's, as planned
        self._engine: Engine | None = None
        self._home: int | None = None  # the process in which threads were started
        self._before = Spent()
        self.position = position
        """The next position to be handed out, in whole global batches; what was made ahead is not counted."""
        self.wait_seconds = 0.0
        """Seconds that the consumer has spent waiting for batches so far."""

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The batch at `position`. An error in making it is raised here, and the next call tries again.

        Raises:
            RuntimeError: in a forked process, whose parent's loader this is.
        """
        asked = time.perf_counter()
        if self._home not in (None, os.getpid()):
            raise RuntimeError(
                f"this loader is at work in the process that forked this one: make another one here, with "
                f"position={self.position}, or give EpisodeStream to the DataLoader whose workers these are"
            )
        try:
            if self._engine is None:
                self._engine = self._start()
            batch = self._engine.take()
            if self._delivery is not None:
                batch = self._delivery.copy(batch)
            self.position += self._order.batch_size
        except BaseException:  # a Ctrl-C as well: which batch comes next must not hang on where it struck
            self.close()
            raise
        self.wait_seconds += time.perf_counter() - asked
        return batch

    def _start(self) -> Engine:
        self._home = os.getpid()
        place = self._order, self._sources, self._rank, self._world_size, self.position
        engine = Engine(Stream(*place, self._image_size, self._augment, self._substitutes), self.plan, self._buffers)
        weakref.finalize(self, engine.ask_to_stop)  # where nobody closes it
        return engine

    def close(self) -> None:
        """Stop the threads and wait for them. The next batch that is asked for starts new ones."""
        if self._engine is not None and self._home == os.getpid():
            self._engine.stop()
            self._before, self._engine = self.timings, None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Loader has threads and cannot be copied or sent to another process: make one there from the same "
            "datasets and order, with position=loader.position"
        )

    @property
    def order(self) -> Order:
        """Which samples come."""
        return self._order

    @property
    def timings(self) -> Spent:
        """Seconds of all threads together so far, by what they went into."""
        return sum_of([self._before, *(self._engine.spent if self._engine else ())])

    @property
    def substitutions(self) -> tuple[Substitution, ...]:
        """What was delivered instead of what could not be read, so far."""
        return tuple(self._substitutes.made) if self._substitutes is not None else ()

    @property
    def spare_bytes(self) -> int:
        """Bytes of `memory` that are not planned for."""
        return max(0, self.plan.memory - self.plan.bytes)

    waited = renamed_attribute("waited", "wait_seconds")
    times = renamed_attribute("times", "timings")
    spare = renamed_attribute("spare", "spare_bytes")

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_place(datasets: Sequence[EpisodeDataset], order: Order, rank: int, world_size: int, position: int) -> None:
    """Refuse what is no place in an order of these datasets: see the ValueError of `Loader`."""
    rank_slice(order.batch_size, rank, world_size)  # refuses a rank outside the world
    Order.from_json(order.spec, datasets)  # refuses other datasets, or a selection other than the order's
    Mixture.of(datasets)  # refuses sources that no batch can hold together
    if not 0 <= position < LARGEST:
        raise ValueError(f"position {position}: positions are 0 to 2**62 - 1")


def _cores() -> int:
    """Cores this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
