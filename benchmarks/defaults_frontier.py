"""The order that a loader chooses beside those of others, by arithmetic: CPU time, memory and mixing of each.

A cell is a dataset and a memory. Costs are frames decoded per sample, in CPU time relative to decoding in a row
(`order/cost.py`); copies are not counted. Mixing is the design effect over 1, 8 and 64 batches, exact for the order
under the correlations of `order/design_effect.py`. Each rival holds RGB frames or decoders of the same bytes
(`RIVALS`). Its processes, and the time until its buffers are full, are not counted, in its favor.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import log
from typing import Any

import numpy as np

from order_audit import WINDOWS, as_read, deff_of
from order_baselines import block, episode_stream, worker_pool
from understudy.load.choose_order import choose_from_facts
from understudy.load.memory_plan import SourceFacts
from understudy.order.cost import uniform_cost
from understudy.order.design_effect import expected_uniform
from understudy.order.make_spec import CheckedSource, OrderRequest

EPISODE = 267  # frames of a recorded episode
WORKERS, RUN = 4, 16  # of rivals: LeRobot's default, and frames that a stream's worker hands out together
LINES, CAMERAS, GOPS, MEMORIES = (224, 480), (1, 3), (2, 30, 250), (1, 4, 16)
FRAMES = (2_136, 8_544, 40_000, 400_000, 4_000_000)
PIXELS = {224: 224 * 224, 480: 480 * 640}
DECODED = {
    (224, 2): (88_416, 843_144, 1_160),
    (224, 30): (88_416, 843_144, 650),
    (224, 250): (88_416, 1_108_392, 350),
    (480, 2): (491_520, 2_022_016, 8_920),
    (480, 30): (463_200, 1_873_800, 3_070),
    (480, 250): (463_200, 3_263_400, 1_720),
}
"""By (lines, GOP), in bytes: a decoded frame that waits, a live decoder, and a compressed frame. AV1 for 480 lines with
GOP 2, H.264 for all others: as `defaults.py` measures."""
MS_PER_FRAME = {(480, 2): 1.84, (480, 30): 0.68, (480, 250): 0.68}
_SMALL_MS = 0.11

RIVALS = {
    "uniform": "map-style dataset, each sample decodes from its key frame; all images as RGB where they fit",
    "shuffled blocks": "whole episodes end to end in blocks, decoded in a row; a block of RGB frames fills the memory",
    "worker pool": "4 workers draw remaining frames of whole decoded episodes; RGB frames fill the memory, and are "
    "freed as they are drawn",
    "episode pool": "LeRobot's: 4 workers draw remaining frames of open episodes, each decoded from its key frame; "
    "packets and a decoder of each episode fill the memory",
    "episode stream": "workers play episodes in a row in runs of 16; each holds a decoder and 16 RGB frames, and as "
    "many as fill the memory, 64 a rank at most",
}
"""How each rival reads, and the contents of its memory."""


@dataclass(frozen=True)
class Cell:
    """One dataset in one memory."""

    gop: int
    frames: int
    lines: int
    cameras: int
    memory_gb: int
    batch: int = 32
    ranks: int = 1

    @property
    def image(self) -> int:
        """Bytes of the RGB images of a sample."""
        return 3 * PIXELS[self.lines] * self.cameras

    @property
    def rgb_frames(self) -> int:
        """Samples whose RGB images fill the memory of all ranks."""
        return self.memory_gb * 10**9 * self.ranks // self.image


def cells(quick: bool) -> Iterator[Cell]:
    """All cells: with batches of 32 on one rank, and of 256 on 8 ranks for 480 lines and one camera."""
    if quick:
        yield from (Cell(gop, 2_136, 480, 1, 1) for gop in (2, 250))
        return
    yield from (Cell(*numbers) for numbers in product(GOPS, FRAMES, LINES, CAMERAS, MEMORIES))
    yield from (Cell(gop, frames, 480, 1, 4, 256, 8) for gop, frames in product(GOPS, FRAMES[2:]))


def frontier_row(cell: Cell) -> dict[str, Any]:
    """Our choice and each rival in one cell; `better` has rivals that are cheaper and mix better over 8 batches."""
    choice = choose(cell)
    chosen = choice.chosen
    read, _ = as_read(choice.order)
    deff, _ = deff_of(read, cell.batch, 0, _stretch(cell.batch, cell.frames))
    ours = {"order": str(chosen), "cost": chosen.cost, "bytes": chosen.plan.bytes, "deff": deff}
    rivals = {name: figures for name in RIVALS if (figures := rival(name, cell)) is not None}
    better = [
        {"rival": name, "cost": figures["cost"] / ours["cost"], "deff8": figures["deff"][1] / deff[1]}
        for name, figures in rivals.items()
        if figures["cost"] < ours["cost"] and figures["deff"][1] < deff[1]
    ]
    return {**vars(cell), "ours": ours, "rivals": rivals, "better": better, "advice": choice.advice}


def choose(cell: Cell) -> Any:
    """The choice of a loader (`load/choose_order.OrderChoice`)."""
    frame, decoder, _ = DECODED[cell.lines, cell.gop]
    count = episode_lengths(cell.frames)
    facts = SourceFacts(
        name="data",
        frames=cell.frames,
        gop=cell.gop,
        reach=(0, 0),
        window=1,
        frame=(frame,) * cell.cameras,
        decoder=(decoder,) * cell.cameras,
        resized=False,
        sample=cell.image,
        all_images=cell.frames * cell.cameras * min(frame, 3 * PIXELS[cell.lines]),
        columns=(min(cell.frames * 200, 100_000_000),),
        row_cache=256_000_000,
        is_remote=False,
        decode_ms=MS_PER_FRAME.get((cell.lines, cell.gop), _SMALL_MS) * cell.cameras,
        pixels=PIXELS[cell.lines],
    )
    segments = np.stack([np.arange(len(count)), np.zeros_like(count), count], axis=1)
    source = CheckedSource("data", segments, cell.frames, "data", cell.gop, (0, 0))
    request = OrderRequest("clips", cell.batch, 1 << 62, None, None, "sequential")
    memory = cell.memory_gb * 10**9
    return choose_from_facts([facts], [source], [1.0], request, 0, memory=memory, world_size=cell.ranks, num_threads=8)


@lru_cache(maxsize=1)
def episode_lengths(frames: int) -> np.ndarray:
    """Lengths of the episodes of a dataset, int64 (episodes,): 200 to 334 frames, but for the last."""
    lengths = EPISODE + (np.arange(frames // 200 + 1) * 83 % 135) - 67
    last = int(np.searchsorted(np.cumsum(lengths), frames))
    lengths = lengths[: last + 1]
    lengths[-1] -= lengths.sum() - frames
    return lengths


def rival(name: str, cell: Cell) -> dict[str, Any] | None:
    """Cost, bytes and design effects of a rival; None where its workers have no episode each."""
    single, memory = uniform_cost(cell.gop), cell.memory_gb * 10**9
    _, decoder, packet = DECODED[cell.lines, cell.gop]
    frames, held = cell.frames, min(cell.rgb_frames, cell.frames)
    episodes = len(episode_lengths(frames)) // cell.ranks
    if name == "uniform":
        resident = cell.rgb_frames >= frames
        cost, kept = (1.0, frames * cell.image // cell.ranks) if resident else (single, 0)
        return {"cost": cost, "bytes": kept, "deff": _uniform_deff(frames, cell.batch)}
    if name == "shuffled blocks":
        return {"cost": 1.0, "bytes": held * cell.image // cell.ranks, "deff": _block_deff(frames, held, cell.batch)}
    workers, per_episode = WORKERS, cell.image * EPISODE / (log(EPISODE) + 0.58)  # of an episode, the mean of its life
    if name == "episode stream":
        each = cell.cameras * decoder + RUN * cell.image
        workers = max(1, min(64, memory // each, episodes))
        deff = _stream_deff(frames, cell.batch, cell.ranks, workers)
        return {"cost": 1.0, "bytes": workers * each, "deff": deff}
    if episodes < workers:
        return None
    cost = 1.0
    if name == "episode pool":
        cost, per_episode = single, cell.cameras * (decoder + EPISODE * packet)
    pool = max(1, min(int(memory / per_episode / workers), episodes // workers))
    deff = _pool_deff(frames, cell.batch, cell.ranks, workers, pool)
    return {"cost": cost, "bytes": int(pool * workers * per_episode), "deff": deff}


def _stretch(batch: int, frames: int) -> int:
    """Positions to look at: an epoch, or 128 stretches of 64 batches."""
    return max(64 * batch, min(max(frames, 16 * 64 * batch), 128 * 64 * batch))


@lru_cache
def _uniform_deff(frames: int, batch: int) -> list[float]:
    return [expected_uniform(episode_lengths(frames), min(frames, count * batch)) for count in WINDOWS]


@lru_cache
def _block_deff(frames: int, held: int, batch: int) -> list[float]:
    return deff_of(block(episode_lengths(frames), held), batch, 0, _stretch(batch, frames))[0]


@lru_cache
def _pool_deff(frames: int, batch: int, ranks: int, workers: int, pool: int) -> list[float]:
    # The initial state of a pool is lost after about two turnovers of all its episodes.
    start = min(2 * pool * workers * ranks * EPISODE, 1 << 21)
    stop = start + _stretch(batch, min(frames, 1 << 17))
    return deff_of(worker_pool(episode_lengths(frames), batch, ranks, workers, pool, stop), batch, start, stop)[0]


@lru_cache
def _stream_deff(frames: int, batch: int, ranks: int, workers: int) -> list[float]:
    stop = _stretch(batch, min(frames, 1 << 17))
    return deff_of(episode_stream(episode_lengths(frames), batch, ranks, workers, stop, RUN), batch, 0, stop)[0]
