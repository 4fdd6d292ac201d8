"""What an order does to training and to the disk, in figures: from the lengths of the episodes alone, reading no data.

`audit` reads one contiguous stretch of positions and counts. What a figure means stands beside it in `Audit`; the only
one that rests on a model is `deff` (`design_effect.py`), everything else is counted.
"""

from dataclasses import dataclass

import numpy as np

from understudy.order.audit.baselines import Read
from understudy.order.audit.design_effect import Correlation, design_effect
from understudy.order.order import Order
from understudy.order.placement import rank_slice

__all__ = ["Audit", "audit", "reading"]

WINDOWS = (1, 8, 64)  # batches: one step; the memory of Adam's first moment; a stretch in which weights drift


@dataclass(frozen=True)
class Audit:
    """The figures of one order. A step is a global batch; a piece is what is opened, read, closed: clip or episode."""

    name: str
    batch: int
    world: int
    stretch: tuple[int, int]
    """The positions looked at, [first, last)."""
    distinct_episodes: float
    """Different episodes in a batch, mean."""
    deff: tuple[float, ...]
    """Variance of the mean over 1, 8 and 64 batches, in units of that of independent draws (a model: `Correlation`)."""
    deff_error: tuple[float, ...]
    """Standard errors of `deff` over the windows looked at."""
    open_mean: float
    """Pieces open during a step: touched in it, or touched before and again later. Mean over steps."""
    open_max: int
    frames_in_flight: int
    """Frames in the open pieces, at the worst step: what stays in memory if each piece is fetched once."""
    bytes_in_flight: int
    """The same, in compressed bytes of all cameras."""
    touches_mean: float
    """Pieces opened per step, mean: the requests a step costs."""
    touches_peak: int
    """... and at the worst step: the burst that prefetching must hide."""
    opens_per_piece: float
    """How many of the `world` ranks open one and the same piece, mean."""
    amplification: float
    """Pictures decoded per sample and camera, if every rank decodes each picture it needs of an open piece once."""
    revisit: float
    """Samples from one sample of an episode to the next one of it, median; `inf` if most do not return at all."""
    revisit_seconds: float
    """The same as seconds of recorded data that go by in between (samples / fps)."""


def reading(order: Order) -> tuple[Read, np.ndarray]:
    """An `Order` as what `audit` takes: (its reading, the lengths of its episodes int64).

    The episodes of all sources are numbered through, source by source, each in the order of its episode ids. A length
    is the last selected frame + 1. A piece is a clip in one epoch of its source.
    """
    spec = order.spec
    ids, rows = zip(*(np.unique(at.segments[:, 0], return_inverse=True) for at in order.layouts), strict=True)
    first = np.cumsum([0, *(len(i) for i in ids)])
    lengths = np.zeros(first[-1], np.int64)
    for d, layout in enumerate(order.layouts):
        np.maximum.at(lengths, first[d] + rows[d], layout.segments[:, 2])

    def read(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        source, epoch, line = order.lines(positions)
        episode, frame, piece = np.empty_like(source), np.empty_like(source), np.empty_like(source)
        for d in np.unique(source):
            at, of = np.flatnonzero(source == d), spec.sources[d]
            found, frame[at] = order.layouts[d].locate(line[at].view(np.uint64))
            episode[at] = first[d] + np.searchsorted(ids[d], found)
            number = epoch[at] * -(-of.frames // of.clip) + line[at] // of.clip
            piece[at] = number * len(spec.sources) + d
        return episode, frame, piece

    return read, lengths


def audit(
    read: Read,
    lengths: np.ndarray,
    batch: int,
    *,
    name: str = "order",
    world: int = 8,
    start: int = 0,
    span: int = 2**20,
    gop: int | np.ndarray = 2,
    reach: tuple[int, int] = (0, 0),
    fps: float = 30.0,
    frame_bytes: float = 4096.0,
    model: Correlation | None = None,
) -> Audit:
    """Count the figures of one order over positions [start, start + span), rounded down to whole batches.

    Args:
        read: the order: positions -> (episode, frame, piece); of several datasets, number the episodes through.
        lengths: int64 (episodes,), frames of each episode in storage (windows end there).
        batch: global batch, samples per step.
        world: ranks; each makes its own slice of every batch (`rank_positions`).
        span: long enough for pieces to come and go several times: many times the frames in flight. What cannot be known
            at the ends of the stretch (was this piece open before?) is counted in its middle half only.
        gop: pictures from key frame to key frame, of all episodes or int64 (episodes,).
        reach: pictures that a sample's window reaches back and ahead.
        frame_bytes: compressed bytes of a frame, all cameras together.

    Raises:
        ValueError: if the stretch holds fewer than 64 batches, or opens nothing, or there are more ranks than samples.
    """
    steps = span // batch
    if steps < max(WINDOWS):
        raise ValueError(f"audit: {span} positions are {steps} batches of {batch}; at least {max(WINDOWS)} are needed")
    episode, frame, piece = read(np.arange(start, start + steps * batch, dtype=np.int64))
    step = np.repeat(np.arange(steps), batch)
    deff, error = zip(*(_deff(episode, frame, batch, w, model) for w in WINDOWS), strict=True)
    of, first, last, size = _lives(piece, step)
    opened = np.bincount(first, minlength=steps)
    opens = _running(opened, last)
    frames_open = _running(np.bincount(first, weights=size, minlength=steps), last, size)
    settled = slice(steps // 4, steps * 3 // 4)

    fresh = (first >= settled.start) & (first < settled.stop)  # the pieces opened in the settled part ...
    if not fresh.any():
        raise ValueError(f"audit: {name!r} opens nothing in steps {settled.start}..{settled.stop}; use a longer span")
    rows = np.flatnonzero(fresh[of])  # ... and all that is read of them, to the end of the stretch
    rank = _ranks(batch, world)[rows % batch]
    owners = np.unique(of[rows] * world + rank).size
    gops = np.broadcast_to(np.asarray(gop, np.int64), len(lengths))
    decoded = _decoded(of[rows] * world + rank, episode[rows], frame[rows], np.asarray(lengths), gops, reach)
    revisit = _revisit(episode, steps // 4 * batch, steps // 2 * batch)
    in_flight = float(frames_open[settled].max())
    return Audit(
        name=name,
        batch=batch,
        world=world,
        stretch=(start, start + steps * batch),
        distinct_episodes=_distinct(episode.reshape(steps, batch)),
        deff=deff,
        deff_error=error,
        open_mean=float(opens[settled].mean()),
        open_max=int(opens[settled].max()),
        frames_in_flight=round(in_flight),
        bytes_in_flight=round(in_flight * frame_bytes),
        touches_mean=float(opened[settled].mean()),
        touches_peak=int(opened[settled].max()),
        opens_per_piece=owners / int(fresh.sum()),
        amplification=decoded / rows.size,
        revisit=revisit,
        revisit_seconds=revisit / fps,
    )


def _deff(
    episode: np.ndarray, frame: np.ndarray, batch: int, batches: int, model: Correlation | None
) -> tuple[float, float]:
    """Mean and standard error of the design effect over up to 32 windows of so many batches, evenly spread."""
    n = batch * batches
    available = episode.size // n
    windows = np.linspace(0, available - 1, min(32, available)).round().astype(np.int64)
    at = windows[:, None] * n + np.arange(n)
    values = design_effect(episode[at], frame[at], model)
    return float(values.mean()), float(values.std() / np.sqrt(values.size))


def _distinct(episode: np.ndarray) -> float:
    """Mean number of different values in a row of (steps, batch)."""
    ordered = np.sort(episode, axis=1)
    return 1.0 + float((ordered[:, 1:] != ordered[:, :-1]).sum()) / episode.shape[0]


def _lives(piece: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(which piece each sample is of, 0..pieces; and of each piece its first step, last step, samples), int64."""
    _, start, of, size = np.unique(piece, return_index=True, return_inverse=True, return_counts=True)
    last = np.zeros(size.size, np.int64)
    last[of] = step  # steps rise along the stretch, and of several writes to one place numpy keeps the last
    return of, step[start], last, size


def _running(opened: np.ndarray, last: np.ndarray, size: np.ndarray | None = None) -> np.ndarray:
    """What is open in each step: everything `opened` up to it, less what had its last step before it."""
    closed = np.bincount(last, weights=size, minlength=opened.size)
    return np.cumsum(opened) - (np.cumsum(closed) - closed)


def _ranks(batch: int, world: int) -> np.ndarray:
    """The rank that makes each place of a batch, int64 (batch,)."""
    bounds = [rank_slice(batch, r, world) for r in range(world)]
    return np.repeat(np.arange(world), [high - low for low, high in bounds])


def _decoded(
    owner: np.ndarray,
    episode: np.ndarray,
    frame: np.ndarray,
    lengths: np.ndarray,
    gop: np.ndarray,
    reach: tuple[int, int],
) -> int:
    """Pictures decoded if each owner decodes what its samples of an episode need once, from key frame on.

    A sample needs the pictures from the key frame at or before its window's first to its window's last; key frames are
    taken to be at every multiple of the episode's `gop` from its start. This is the length of the union of those
    intervals.
    """
    by = np.lexsort((frame, episode, owner))
    owner, episode, frame = owner[by], episode[by], frame[by]
    begin = np.maximum(frame - reach[0], 0) // gop[episode] * gop[episode]
    end = np.minimum(frame + reach[1], lengths[episode] - 1)
    behind = begin[1:] - 1  # both ends rise with the frame, so what is decoded already reaches to the sample before
    same = (owner[1:] == owner[:-1]) & (episode[1:] == episode[:-1])
    behind = np.where(same, np.maximum(behind, end[:-1]), behind)
    return int(end[0] - begin[0] + 1 + (end[1:] - behind).sum())


def _revisit(episode: np.ndarray, start: int, stop: int) -> float:
    """Median distance from samples [start, stop) to the next sample of the same episode; `inf` beyond the stretch."""
    by = np.argsort(episode, kind="stable")
    again = np.full(episode.size, np.inf)
    same = episode[by][1:] == episode[by][:-1]
    again[by[:-1][same]] = np.diff(by)[same]
    ordered = np.sort(again[start:stop])
    return float(ordered[ordered.size // 2])
