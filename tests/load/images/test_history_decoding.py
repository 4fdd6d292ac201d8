"""Long histories: each frame is decoded once, however many samples and windows it is in."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from support.datasets import Spec, write_dataset
from support.servers import RangeServer, folder
from understudy.data.dataset import EpisodeDataset
from understudy.data.format.catalog import Catalog
from understudy.load.batch_request import BatchRequest
from understudy.load.images.buffer_pool import BufferPool
from understudy.load.images.clip_reader import DecodePolicy, Timings
from understudy.load.loader_threads import WorkerPool
from understudy.load.memory_plan import MemoryPlan
from understudy.order import Order
from understudy.storage.remote_options import RemoteOptions

TOP = "observation.images.top"
FPS, LENGTHS, BATCH = 10, (80, 64), 8
TAKEN, AHEAD = 15 * BATCH, 6 * BATCH
"""Samples that a test takes, and those that the loader may prepare behind them."""
HISTORY = [float(-age) for age in range(5, -1, -1)]
"""Six frames, one second apart."""


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Datasets by the distance of their key frames."""
    path = tmp_path_factory.mktemp("history")
    for gop in (2, 30, 250):
        write_dataset(path / str(gop), Spec(lengths=LENGTHS, gop=gop, fps=FPS, per_video_file=2))
    return {gop: path / str(gop) for gop in (2, 30, 250)}


@contextmanager
def opened(root: Path, remote: bool, cache: Path, times: list[float]) -> Iterator[EpisodeDataset]:
    windows = {TOP: times} if len(times) > 1 else None
    if not remote:
        yield EpisodeDataset(root, delta_timestamps=windows, frame_cache_bytes=0)
        return
    with RangeServer(folder(root, "/set")) as server:
        catalog = Catalog.open(f"{server.url}/set", RemoteOptions(cache=str(cache)))
        yield EpisodeDataset(catalog, delta_timestamps=windows, frame_cache_bytes=0)


def shuffled(data: EpisodeDataset, clip: int) -> Order:
    """One lane of clips."""
    return Order.from_datasets([data], batch_size=BATCH, seed=1, clip=clip, lanes=1)


def needed(data: EpisodeDataset, clip: int, count: int) -> int:
    """Frames that the clips of the first `count` samples need, each once per clip."""
    _, episodes, frames = shuffled(data, clip).locate(np.arange(count))
    starts = np.cumsum((0, *LENGTHS))
    total, own, last = 0, set[int](), -1
    for number, frame in zip((starts[episodes] + frames).tolist(), frames.tolist()):
        if number != last + 1:  # another clip
            total, own = total + len(own), set()
        own |= {number - min(frame, round(-seconds * FPS)) for seconds in HISTORY}
        last = number
    return total + len(own)


def decoded(data: EpisodeDataset, clip: int, plain: EpisodeDataset | None = None) -> int:
    """Frames that decoders return for `TAKEN` samples; with `plain` the batches are compared."""
    memory = MemoryPlan(10**9, (), 1, 1, (False,), (DecodePolicy(8, keep_decoder=True),), ())
    workers = WorkerPool(BatchRequest(shuffled(data, clip), (data,)), memory, BufferPool(5, False))
    try:
        for number in range(TAKEN // BATCH):
            batch = workers.take()
            if plain is not None and number % 6 == 0:
                wanted = plain.batch(batch["episode_index"].numpy(), batch["frame_index"].numpy())
                for key in (TOP, f"{TOP}_is_pad"):
                    assert torch.equal(batch[key], wanted[key])
    finally:
        workers.stop()
    return Timings.total(workers.timings).frames


@pytest.mark.parametrize(
    "remote", [pytest.param(False, id="local"), pytest.param(True, id="remote", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("gop", [2, 30, 250])
def test_a_clip_decodes_each_frame_of_a_long_history_once(
    roots: dict[int, Path], tmp_path: Path, gop: int, remote: bool
) -> None:
    plain = EpisodeDataset(roots[gop], delta_timestamps={TOP: HISTORY})
    with opened(roots[gop], remote, tmp_path, HISTORY) as data:
        for clip in (36, sum(LENGTHS)):
            found = decoded(data, clip, plain)
            assert needed(data, clip, TAKEN) <= found <= needed(data, clip, TAKEN + AHEAD) < 3 * TAKEN


def test_windows_of_clips_cost_less_than_windows_of_samples(roots: dict[int, Path], tmp_path: Path) -> None:
    """Control: clips of one frame decode the window of each sample."""
    with opened(roots[30], False, tmp_path, HISTORY) as data, opened(roots[30], False, tmp_path, [0.0]) as now:
        assert TAKEN <= decoded(now, 36) <= TAKEN + AHEAD
        assert decoded(data, 36) < 2.5 * TAKEN
        assert decoded(data, 1) > 4 * TAKEN
