"""`EpisodeStream`: the batches of `Loader` through the workers of torch's DataLoader.

    stream = EpisodeStream("path or hub id", batch_size=32, seed=0, position=position)
    for batch in DataLoader(stream, batch_size=None, num_workers=2):  # whole batches: no collation
        ...
        # the whole state; batches made ahead do not count
        position = stream.position_after(batch)

Worker w of W makes the batches w, w + W, w + 2W, …, and DataLoader asks its workers in turn. So the
batches come in the sequence of a Loader for any number of workers. A restart with another number of
workers neither skips nor repeats one.

Threads or workers. A Loader decodes each frame once. W workers share nothing, and where two of them
read one lane, both decode the frames between their samples.
`Order.from_datasets(..., lanes=W * batch_size)` (or a multiple) gives each lane to one worker, and
each frame is again decoded once. Workers also copy each batch into shared memory. So prefer
`Loader` unless you need the DataLoader around it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Literal, Unpack

import torch.utils.data

from understudy_data.load.batch_request import Datasets, ReadOptions, make_request
from understudy_data.load.loader import Batch, Loader
from understudy_data.load.order_state import adopt_order, order_state, position_in
from understudy_data.order import Order
from understudy_data.process_rank import ProcessRank

_WORKERS = 4
"""Workers for which an order is chosen: their number is known only later, and an order for four
serves fewer.
"""


class EpisodeStream(torch.utils.data.IterableDataset[Batch]):
    """Endless stream of the batches of `Loader`, for `DataLoader(stream, batch_size=None, ...)`.

    A worker uses one thread; without workers the threads are those of `Loader`. Leave the
    DataLoader out of `accelerator.prepare`: each process already gets its share of every batch.

    Args:
        datasets: as for `Loader`.
        **options: as for `Loader`, where they concern no thread or device. `memory` is that of all
            workers of this rank together, in equal shares; an order is chosen for four of them.
            `journal` and `decoded_cache` are one for all workers. `bad_frame_cap` holds for each
            worker, which has its list of substitutions.

    Raises:
        ValueError: as `Loader`, in the constructor. A `DatasetError` of an unreadable sample comes
            with the batch.
        ConfigError: as `Loader`; with the first batch, also where Accelerate divides the batches
            once more.
    """

    def __init__(self, datasets: Datasets, **options: Unpack[ReadOptions]) -> None:
        self._process = ProcessRank.find(options.get("rank"), options.get("world_size"))
        options |= {"rank": self.rank, "world_size": self.world_size}
        # Here, not in a worker: mistakes are raised at once.
        self._request = make_request(datasets, options, num_threads=1, workers=_WORKERS)
        if (cache := self._request.disk_cache) is not None:  # mistakes in it, too
            _ = [
                cache.open(data, self._request.image_size)
                for data in self._request.datasets
                if data.video_keys
            ]
        self._chosen = options.get("order") is None
        self._memory = self._request.memory_bytes
        self.position = self._request.position
        """First position of the next pass."""

    @property
    def order(self) -> Order:
        """The sequence of samples."""
        return self._request.order

    @property
    def rank(self) -> int:
        """Number of this process."""
        return self._process.rank

    @property
    def world_size(self) -> int:
        """Number of processes that share each batch."""
        return self._process.world_size

    def __iter__(self) -> Iterator[Batch]:
        """Batches of this worker from `position` on."""
        self._process.check("EpisodeStream")
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        # W successive batches are one batch of W times the size, of which each worker makes its
        # part as a rank would: offsets [w*B + r*B//R, w*B + (r+1)*B//R) for worker w on rank r of
        # R.
        request = self._request
        order = request.order.with_batch_size(request.order.batch_size * workers)
        order.stop = request.order.stop  # of a file: whole batches, not whole rounds of the workers
        share = replace(
            request,
            order=order,
            rank=worker * request.world_size + request.rank,
            world_size=workers * request.world_size,
            memory=max(1, self._memory // workers),
            position=self.position,
        )
        options = {field.name: getattr(share, field.name) for field in fields(share)}
        num_threads: int | Literal["auto"] = "auto" if info is None else 1
        with Loader(num_threads=num_threads, **options) as loader:
            yield from loader

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: positions count on through all epochs.

        Accelerate calls it in every process before the first batch.

        Raises:
            ConfigError: Accelerate divides the batches once more.
        """
        self._process.check("EpisodeStream")

    def __getstate__(self) -> dict[str, Any]:
        # in a worker that is spawned there is neither group nor caller to compare
        self._process.check("EpisodeStream")
        return self.__dict__

    def position_after(self, batch: Mapping[str, Any]) -> int:
        """Position behind the global batch of which `batch` is this rank's share: `position` of the
        next pass.
        """
        low, _ = self._request.share
        return int(batch["position"][0]) - low + self.order.batch_size

    def state_after(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """State behind `batch`, for `load_state_dict` of an `EpisodeStream` or a `Loader`."""
        return order_state(self.order, self.position_after(batch))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Begin the next pass at the position of a state.

        An order that the stream chose gives way to that of the state, as in `Loader`.

        Raises:
            ConfigError: the state of another order; names both orders and each difference.
        """
        order = self.order
        if self._chosen:
            order = adopt_order(state_dict, order, self._request.datasets)
        self.position = position_in(state_dict, order)
        self._request = replace(self._request, order=order)
