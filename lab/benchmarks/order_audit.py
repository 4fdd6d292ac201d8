"""Effects of an order on training and on the disk, in figures, from episode lengths alone. Reads no
data.

`audit` examines one contiguous stretch of positions. `Audit` documents its figures. Only `deff`
rests on a model (`design_effect.py`); all others are counted.
"""

from dataclasses import dataclass

import numpy as np

from order_baselines import Read
from understudy_data.order.design_effect import Correlation, design_effect
from understudy_data.order.order import Order
from understudy_data.order.rank_positions import rank_slice

WINDOWS = (1, 8, 64)
"""Batches: one step; the memory of Adam's first moment; a stretch in which weights drift."""


@dataclass(frozen=True)
class Audit:
    """Figures of one order. A step is a global batch. A piece is opened, read and closed: a clip or
    an episode.
    """

    name: str
    batch_size: int
    world_size: int
    stretch: tuple[int, int]
    """Positions examined, [first, last)."""
    distinct_episodes: float
    """Distinct episodes in a batch, mean."""
    deff: tuple[float, ...]
    """Variance of the mean over 1, 8 and 64 batches, relative to independent draws (a model:
    `Correlation`).
    """
    deff_error: tuple[float, ...]
    """Standard errors of `deff` over the windows examined."""
    open_max: int
    """Pieces open at the worst step: touched in it, or touched before and again later."""
    frames_in_flight: int
    """Frames in the open pieces at the worst step: in memory, if each piece is fetched once."""
    touches_mean: float
    """Pieces opened per step, mean: the requests of a step."""
    touches_peak: int
    """Pieces opened at the worst step: the burst that prefetching must hide."""
    opens_per_piece: float
    """Ranks that open the same piece, mean."""
    amplification: float
    """Frames decoded per sample and camera, if every rank decodes each frame that it needs of an
    open piece once.
    """
    revisit: float
    """Samples from one sample of an episode to the next of the same, median; `inf` if most do not
    return.
    """
    revisit_seconds: float
    """The same in seconds of recorded data (samples / fps)."""


def as_read(order: Order) -> tuple[Read, np.ndarray]:
    """An `Order` in the form that `audit` takes: (read, lengths of its episodes int64).

    The episodes of all sources are numbered consecutively, source by source, each in the sequence
    of its episode ids. A length is the last selected frame + 1. A piece is a clip in one epoch of
    its source.
    """
    spec = order.spec
    ids, rows = zip(
        *(np.unique(layout.segments[:, 0], return_inverse=True) for layout in order.layouts),
        strict=True,
    )
    first = np.cumsum([0, *(len(i) for i in ids)])
    lengths = np.zeros(first[-1], np.int64)
    for d, layout in enumerate(order.layouts):
        np.maximum.at(lengths, first[d] + rows[d], layout.segments[:, 2])

    def read(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        source, epoch, line = order.lines(positions)
        episode = np.empty_like(source)
        frame = np.empty_like(source)
        piece = np.empty_like(source)
        for d in np.unique(source):
            rows_of_source = np.flatnonzero(source == d)
            of = spec.sources[d]
            episode_ids, frame[rows_of_source] = order.layouts[d].locate(
                line[rows_of_source].view(np.uint64)
            )
            episode[rows_of_source] = first[d] + np.searchsorted(ids[d], episode_ids)
            number = (
                epoch[rows_of_source] * -(-of.frames // of.clip) + line[rows_of_source] // of.clip
            )
            piece[rows_of_source] = number * len(spec.sources) + d
        return episode, frame, piece

    return read, lengths


def audit(
    read: Read,
    lengths: np.ndarray,
    batch_size: int,
    *,
    name: str = "order",
    world_size: int = 8,
    start: int = 0,
    span: int = 2**20,
    gop: int | np.ndarray = 2,
    reach: tuple[int, int] = (0, 0),
    fps: float = 30.0,
    model: Correlation | None = None,
) -> Audit:
    """Compute the figures of one order over positions [start, start + span), rounded down to whole
    batches.

    Args:
        read: the order: positions -> (episode, frame, piece), with the episodes of all datasets
            numbered consecutively.
        lengths: int64 (episodes,), frames of each episode in storage (windows end there).
        batch_size: samples of a global batch.
        name: of the order, for messages and tables.
        world_size: ranks; each makes its own slice of every batch (`rank_positions`).
        start: first position.
        span: positions; many times the frames in flight, so that pieces come and go several times.
            Figures that cannot be known at its ends (was this piece open before?) are counted in
            its middle half only.
        gop: frames from key frame to key frame, of all episodes or int64 (episodes,).
        reach: frames that a sample's window reaches back and ahead.
        fps: frames per second of the recordings.
        model: correlation of samples, for `deff`.

    Raises:
        ValueError: the stretch holds fewer than 64 batches or opens nothing, or there are more
            ranks than samples.
    """
    steps = span // batch_size
    if steps < max(WINDOWS):
        raise ValueError(
            f"audit: {span} positions are {steps} batches of {batch_size}; need at least "
            f"{max(WINDOWS)}"
        )
    episode, frame, piece = read(np.arange(start, start + steps * batch_size, dtype=np.int64))
    step = np.repeat(np.arange(steps), batch_size)
    deff, error = deff_of(read, batch_size, start, start + steps * batch_size, model)
    of, first, last, size = find_lives(piece, step)
    opened = np.bincount(first, minlength=steps)
    opens = count_open(opened, last)
    frames_open = count_open(np.bincount(first, weights=size, minlength=steps), last, size)
    settled = slice(steps // 4, steps * 3 // 4)

    # pieces opened in the settled part ...
    fresh = (first >= settled.start) & (first < settled.stop)
    if not fresh.any():
        raise ValueError(
            f"audit: {name!r} opens nothing in steps {settled.start}..{settled.stop}; use a longer "
            "span"
        )
    rows = np.flatnonzero(fresh[of])  # ... and their samples, to the end of the stretch
    rank = _ranks(batch_size, world_size)[rows % batch_size]
    owners = np.unique(of[rows] * world_size + rank).size
    gops = np.broadcast_to(np.asarray(gop, np.int64), len(lengths))
    decoded = count_decoded(
        of[rows] * world_size + rank, episode[rows], frame[rows], np.asarray(lengths), gops, reach
    )
    revisit = measure_revisit(episode, steps // 4 * batch_size, steps // 2 * batch_size)
    return Audit(
        name=name,
        batch_size=batch_size,
        world_size=world_size,
        stretch=(start, start + steps * batch_size),
        distinct_episodes=_distinct(episode.reshape(steps, batch_size)),
        deff=tuple(deff),
        deff_error=tuple(error),
        open_max=int(opens[settled].max()),
        frames_in_flight=round(float(frames_open[settled].max())),
        touches_mean=float(opened[settled].mean()),
        touches_peak=int(opened[settled].max()),
        opens_per_piece=owners / int(fresh.sum()),
        amplification=decoded / rows.size,
        revisit=revisit,
        revisit_seconds=revisit / fps,
    )


def deff_of(
    read: Read, batch_size: int, start: int, stop: int, model: Correlation | None = None
) -> tuple[list[float], list[float]]:
    """Means and standard errors of the design effects over WINDOWS batches, of 32 stretches of
    [start, stop).
    """
    means = []
    errors = []
    for batches in WINDOWS:
        size = batch_size * batches
        places = np.linspace(0, max(0, (stop - start) // size - 1), 32).round().astype(np.int64)
        positions = start + np.unique(places)[:, None] * size + np.arange(size)
        episode, frame, _ = read(positions.ravel())
        values = design_effect(
            episode.reshape(positions.shape), frame.reshape(positions.shape), model
        )
        means.append(float(values.mean()))
        errors.append(float(values.std() / np.sqrt(values.size)))
    return means, errors


def _distinct(episode: np.ndarray) -> float:
    """Mean number of distinct values in a row of (steps, batch_size)."""
    ordered = np.sort(episode, axis=1)
    return 1.0 + float((ordered[:, 1:] != ordered[:, :-1]).sum()) / episode.shape[0]


def find_lives(
    piece: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Piece of each sample, 0..pieces, and first step, last step and samples of each piece: int64
    each.
    """
    _, start, of, size = np.unique(
        piece, return_index=True, return_inverse=True, return_counts=True
    )
    last = np.zeros(size.size, np.int64)
    last[of] = step  # steps rise along the stretch, and numpy keeps the last of several writes
    return of, step[start], last, size


def count_open(opened: np.ndarray, last: np.ndarray, size: np.ndarray | None = None) -> np.ndarray:
    """Pieces (or frames) open in each step: those opened up to it, without those whose last step
    was before it.
    """
    closed = np.bincount(last, weights=size, minlength=opened.size)
    return np.cumsum(opened) - (np.cumsum(closed) - closed)


def _ranks(batch_size: int, world_size: int) -> np.ndarray:
    """Rank of each offset in a batch, int64 (batch_size,)."""
    bounds = [rank_slice(batch_size, r, world_size) for r in range(world_size)]
    return np.repeat(np.arange(world_size), [high - low for low, high in bounds])


def count_decoded(
    owner: np.ndarray,
    episode: np.ndarray,
    frame: np.ndarray,
    lengths: np.ndarray,
    gop: np.ndarray,
    reach: tuple[int, int],
) -> int:
    """Frames decoded if each owner decodes the frames that its samples of an episode need once,
    from key frames on.

    A sample needs the frames from the key frame at or before its window's first frame to its
    window's last. Key frames are assumed at every multiple of the episode's `gop`. The result is
    the length of the union of those intervals.
    """
    by = np.lexsort((frame, episode, owner))
    owner = owner[by]
    episode = episode[by]
    frame = frame[by]
    begin = np.maximum(frame - reach[0], 0) // gop[episode] * gop[episode]
    end = np.minimum(frame + reach[1], lengths[episode] - 1)
    # both ends rise with the frame, so decoded frames reach to the sample before
    behind = begin[1:] - 1
    same = (owner[1:] == owner[:-1]) & (episode[1:] == episode[:-1])
    behind = np.where(same, np.maximum(behind, end[:-1]), behind)
    return int(end[0] - begin[0] + 1 + (end[1:] - behind).sum())


def measure_revisit(episode: np.ndarray, start: int, stop: int) -> float:
    """Median distance from samples [start, stop) to the next sample of the same episode; `inf`
    beyond the stretch.
    """
    by = np.argsort(episode, kind="stable")
    again = np.full(episode.size, np.inf)
    same = episode[by][1:] == episode[by][:-1]
    again[by[:-1][same]] = np.diff(by)[same]
    ordered = np.sort(again[start:stop])
    return float(ordered[ordered.size // 2])
