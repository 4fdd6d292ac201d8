"""`Loader`: batches in the order's sequence, made ahead of time by threads. Its whole state is one
position.

The order alone decides the samples of a batch. Threads and memory change only when they are made.
"""

import os
import threading
import time
import warnings
import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Unpack

import torch

from understudy_base import MOST_LOADER_THREADS, fair_threads, is_boolean, processes_here, sync
from understudy_data.load.bad_frames import Substitution
from understudy_data.load.batch_request import (
    Batch,
    Datasets,
    ReadOptions,
    make_request,
)
from understudy_data.load.device_copy import DeviceCopy
from understudy_data.load.images.clip_reader import Timings
from understudy_data.load.loader_threads import WorkerPool
from understudy_data.load.memory_plan import MemoryPlan
from understudy_data.load.order_state import adopt_order, order_state, position_in
from understudy_data.load.prepare import Prepared, prepare
from understudy_data.order import Order
from understudy_data.process_rank import ProcessRank

__all__ = ["Batch", "Loader"]


class Loader:
    """Endless iterator over batches: dicts of stacked tensors [batch_size / world_size, ...],
    strings as lists.

        loader = Loader("path or hub id", batch_size=32, seed=0)
        batch = next(loader)

    Besides the keys of the datasets a batch has `position` int64 and `source` int64 (number of the
    dataset). Images are uint8. Datasets with vectors of different widths are padded
    (`real_action_dim`, `action_dim_is_pad`). A camera that only some of them have is black
    elsewhere (`<camera>_is_missing`); see `load/mixed_batches.py`.

    The loader is `Stateful` for `torch.distributed.checkpoint`: `state_dict` and `load_state_dict`.

    Args:
        datasets: an `EpisodeDataset`, a path, URL or hub id, or several; all must have the same
            keys.
        order: the sequence of samples. Save it (`order.to_json()`) to resume in the same sequence.
        batch_size: samples per step over all ranks, instead of `order`. The order is then chosen by
            `choose_order`.
        seed: of that order; 0 by default.
        weights: share of each dataset in that order; by default each is read once in the same time.
        num_threads: threads that make batches; "auto" is one per available core, shared with the
            other ranks of this host (LOCAL_WORLD_SIZE), at most 8. No sample depends on it.
        pin: batches in page-locked memory.
        device: device to which batches are copied, beside the work of the current stream. A CUDA
            device implies `pin`.
        host_keys: keys of batches that are not copied to `device`.
        rank: number of this process; it makes its share of every global batch. By default it is
            found, with `world_size` (`ProcessRank.find`): from torch.distributed, or RANK and
            WORLD_SIZE of the environment.
        world_size: number of processes.
        allow_uneven: let shares of processes differ by one sample, for a loss that is divided by
            the number of samples of all processes. A mean per process, as of DDP, would weigh the
            samples differently.
        position: first position. To resume, the `position` of the earlier loader.
        memory: bytes, or text such as "4GB", for everything that is held at once (`plan`).
        image_size: (height, width) of the images, resized by area averaging; None keeps the
            recorded size.
        augment: called in a loader thread for each sample as augment(images, rng), with the random
            numbers of its position. `images` are uint8 tensors (T, 3, H, W) by camera, to be
            changed in place.
        task_separator: text between several instructions of a task, as " | " of DROID. Each sample
            gets one of them, drawn for its position with the seed of the order, as
            `augment.task_separator` of a run does with its seed. By default `task` is the whole
            text.
        preprocess: called in a loader thread with each complete batch of this process; its result
            is the batch.
        on_bad_frame: for an unreadable sample, "raise" a `DatasetError`, or "substitute" a
            neighbour (`load/bad_frames.py`).
        journal: file to which every substitution is appended.
        bad_frame_cap: share of a dataset's frames that may be substituted.
        decoded_cache: folder on a local disk in which decoded images stay for later epochs and
            other processes, or (folder, size): at most `size` bytes, or text such as "500GB"; by
            default 64 GiB (`images/disk_cache.py`).
        **options: the other arguments above, and arguments of `EpisodeDataset` for paths in
            `datasets`, such as `delta_timestamps`, `keys`, `episodes` and `keep_ranges`; all but
            `image_transforms`.

    Raises:
        TypeError: an unknown option, or options of datasets that are already open.
        ValueError: neither `order` nor `batch_size`, or both; a value out of range; datasets that
            are not those of the order, or that cannot share a batch; memory for less than one
            batch; a `decoded_cache` that is too small or not on a local disk; a CUDA device where
            there is none; a batch that the processes cannot share evenly.
        ConfigError: see `ProcessRank.find`.
        DatasetError: a dataset cannot be opened.
    """

    def __init__(
        self,
        datasets: Datasets,
        *,
        num_threads: int | Literal["auto"] = "auto",
        pin: bool = False,
        device: torch.device | str | None = None,
        host_keys: Collection[str] = (),
        **options: Unpack[ReadOptions],
    ) -> None:
        if num_threads != "auto" and (is_boolean(num_threads) or num_threads < 1):
            raise ValueError(f"num_threads {num_threads}: need at least 1")
        if pin and not torch.cuda.is_available():
            raise ValueError(
                "pin: page-locked memory is for a CUDA device, and torch finds none here; leave it "
                "out"
            )
        self._device_copy = (
            DeviceCopy(torch.device(device), host_keys) if device is not None else None
        )
        self._process = ProcessRank.find(options.get("rank"), options.get("world_size"))
        # The order must not depend on the cores of this machine, nor on the ranks that share them.
        fitted = MOST_LOADER_THREADS if num_threads == "auto" else num_threads
        options |= {"rank": self.rank, "world_size": self.world_size}
        request = make_request(datasets, options, num_threads=fitted)
        self._threads = fair_threads(processes_here()) if num_threads == "auto" else num_threads
        self._pins = pin or (self._device_copy is not None and self._device_copy.pins)
        self._chosen = options.get("order") is None
        self._datasets = request.datasets
        self._adopt(prepare(request, self._threads, self._pins, advises=not self._chosen))
        self._workers: WorkerPool | None = None
        # several threads may read; a signal handler, within a read
        self._reading = threading.RLock()
        self._home: int | None = None  # process in which the threads were started
        self._past_timings = Timings()  # of worker pools that were closed
        self.position = request.position
        """Next position, in whole global batches. Batches made ahead do not count."""
        self.wait_seconds = 0.0
        """Seconds that the consumer has waited for batches."""

    def _adopt(self, prepared: Prepared) -> None:
        """Load as prepared from now on, and warn of what it costs."""
        for line in prepared.advice:
            warnings.warn(line, stacklevel=3)
        self._prepared = prepared

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The batch at `position`. Raises the error of making it; the next call tries again.

        Several threads may call it: each batch goes to one of them.

        Raises:
            RuntimeError: in a forked process, where the loader belongs to the parent.
            ConfigError: at the first batch: this process has another rank than the loader
                (`ProcessRank.check`).
        """
        begin = time.perf_counter()
        if self._home not in (None, os.getpid()):
            raise RuntimeError(
                "this loader runs in the parent of this forked process: make another one here, "
                f"with position={self.position}, or give EpisodeStream to the DataLoader of these "
                "workers"
            )
        with self._reading:
            try:
                if self._workers is None:
                    self._workers = self._start()
                batch = self._workers.take()
                if self._device_copy is not None:
                    batch = self._device_copy.copy(batch)
                self.position += self._prepared.request.order.batch_size
            # also Ctrl-C: the next batch must not depend on the moment of the interrupt
            except BaseException:
                self.close()
                raise
            self.wait_seconds += time.perf_counter() - begin
        return batch

    def _start(self) -> WorkerPool:
        self._process.check("Loader")
        self._home = os.getpid()
        prepared = self._prepared
        request = replace(prepared.request, position=self.position)
        workers = WorkerPool(request, prepared.plan, prepared.buffers, prepared.substitutes)
        # if the loader is never closed
        self._finalizer = weakref.finalize(self, workers.ask_to_stop)
        return workers

    def close(self) -> None:
        """Stop the threads and wait for them. The next batch starts new ones."""
        if self._workers is not None and self._home == os.getpid():
            self._workers.stop()
            # it would keep the workers, and their error with the frames of this loader
            self._finalizer.detach()
            self._past_timings = self.timings
            self._workers = None

    def sync(self) -> None:
        """Make the journal durable."""
        if (journal := self._prepared.request.journal) is not None and os.path.exists(journal):
            sync(Path(journal))

    def state_dict(self) -> dict[str, Any]:
        """State to resume from: {"position": int, "order": JSON text of the order}."""
        return order_state(self.order, self.position)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue at the position of a state.

        An order that the loader chose gives way to that of the state, which other memory or ranks
        may have led to.

        Raises:
            ConfigError: the state of another order; names both orders and each difference.
        """
        order = adopt_order(state_dict, self.order, self._datasets) if self._chosen else self.order
        position = position_in(state_dict, order)
        with self._reading:
            self.close()
            if order.spec != self.order.spec:
                request = replace(self._prepared.request, order=order, datasets=self._datasets)
                self._adopt(prepare(request, self._threads, self._pins, advises=True))
            self.position = position

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Loader has threads and cannot be copied or sent to another process: make one there "
            "from the same datasets and order, with position=loader.position"
        )

    @property
    def plan(self) -> MemoryPlan:
        """Memory that the loader holds, item by item, and how it decodes."""
        return self._prepared.plan

    @property
    def order(self) -> Order:
        """The sequence of samples."""
        return self._prepared.request.order

    @property
    def rank(self) -> int:
        """Number of this process."""
        return self._process.rank

    @property
    def world_size(self) -> int:
        """Number of processes that share each batch."""
        return self._process.world_size

    @property
    def timings(self) -> Timings:
        """Seconds of all threads together so far, by kind of work."""
        parts = [self._past_timings]
        if self._workers:
            parts += self._workers.timings
        return Timings.total(parts)

    @property
    def substitutions(self) -> tuple[Substitution, ...]:
        """Substitutes delivered so far for unreadable samples."""
        substitutes = self._prepared.substitutes
        return tuple(substitutes.made) if substitutes is not None else ()

    @property
    def spare_bytes(self) -> int:
        """Bytes of `memory` that the plan leaves free."""
        return max(0, self.plan.memory - self.plan.bytes)

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
