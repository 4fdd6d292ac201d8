"""EpisodeStream: the Loader's batches for people who keep torch's DataLoader and its workers.

    stream = EpisodeStream([data], order=order, start=position)
    for batch in DataLoader(stream, batch_size=None, num_workers=2):     # whole batches: nothing left to collate
        ...
        position = stream.position_after(batch)                          # the whole state, whatever was made ahead

Worker w of W makes the batches w, w + W, w + 2W, … and DataLoader asks the workers in turn, so the batches come as one
Loader would give them, for any number of workers; none is left out or repeated where that number changes at a restart.

Threads or workers. A Loader decodes each frame once. W workers share nothing, and where two of them read one lane, both
decode the frames between their samples. `Order.from_datasets(..., lanes=W * batch_size)` (or a multiple) gives each
lane to one worker, and each frame is again decoded once. Workers also copy each batch into shared memory. So
prefer `Loader` unless you need the DataLoader around it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch.utils.data

from understudy.bytesize import parse_bytes
from understudy.data.dataset import EpisodeDataset
from understudy.deprecation import renamed_arguments, renamed_attribute
from understudy.load.batch_builder import Augment
from understudy.load.loader import Batch, Loader, check_place
from understudy.order import Order
from understudy.order.placement import rank_slice
from understudy.order.settle import listed


class EpisodeStream(torch.utils.data.IterableDataset[Batch]):
    """Batches without end, equal to those of `Loader`. Give it to `DataLoader(stream, batch_size=None, ...)`.

    datasets, order, rank, world, size, augment, on_bad_frame, journal, bad_frame_cap: as for `Loader` (a cap, and the
        list of what was replaced, are each worker's own; the journal is one file).
    memory: bytes, or text such as "4GB", of all workers of this rank together; each takes an equal share.
    start: the position to begin with; settable between passes.

    A worker uses one thread; without workers the Loader chooses. Not for `accelerator.prepare`, which would have one
    process make everybody's batches: give `rank` and `world` here instead.

    Raises ValueError as `Loader` does, when it is made; `DatasetError` for what cannot be read comes with the batch.
    """

    @renamed_arguments(world="world_size", start="position", size="image_size")
    def __init__(
        self,
        datasets: EpisodeDataset | Sequence[EpisodeDataset],
        *,
        order: Order,
        rank: int = 0,
        world_size: int = 1,
        memory: int | str = "4GB",
        position: int = 0,
        image_size: tuple[int, int] | None = None,
        augment: Augment | None = None,
        on_bad_frame: Literal["raise", "substitute"] = "raise",
        journal: str | Path | None = None,
        bad_frame_cap: float = 0.01,
    ) -> None:
        datasets = listed(datasets)
        check_place(datasets, order, rank, world_size, position)  # here, not in a worker
        self._datasets, self._order, self._rank, self._world_size = datasets, order, rank, world_size
        self._memory, self._first = parse_bytes(memory), rank_slice(order.batch_size, rank, world_size)[0]
        self._making: dict[str, Any] = {
            "image_size": image_size,
            "augment": augment,
            "on_bad_frame": on_bad_frame,
            "journal": journal,
            "bad_frame_cap": bad_frame_cap,
        }
        self.position = position

    def __iter__(self) -> Iterator[Batch]:
        """This worker's batches, from `start` on."""
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        # W batches one behind the other are one batch of W times the size, of which each worker makes its part as a
        # rank would: offsets [w*B + r*B//R, w*B + (r+1)*B//R) for worker w on rank r of R.
        spec = replace(self._order.spec, batch=self._order.batch_size * workers)
        with Loader(
            self._datasets,
            order=Order.from_json(spec, self._datasets),
            rank=worker * self._world_size + self._rank,
            world_size=workers * self._world_size,
            num_threads="auto" if info is None else 1,
            memory=max(1, self._memory // workers),
            position=self.position,
            **self._making,
        ) as loader:
            yield from loader

    start = renamed_attribute("start", "position")

    def position_after(self, batch: dict[str, Any]) -> int:
        """Where to go on once `batch` (this rank's share of one global batch) is used: `start` of the next pass."""
        return int(batch["position"][0]) - self._first + self._order.batch_size
