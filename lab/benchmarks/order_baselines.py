"""Orders of other loaders, restated in a few lines each, for a side-by-side audit.

Each restates the effect of its system on the *lengths* of the episodes. Queues, files, decoding and
timing are left out, and so is everything that only its own RNG decides. Frames come from the same
ciphers as in `Order`, so an audit has the same result on every machine.

    episode_lanes    V lines read in turn, each one whole episode after another, frames shuffled
                     inside an episode
    block            shuffled episodes cut into blocks of equal size, frames shuffled inside a block
                     (CorgiPile, MosaicML Streaming's py1br)
    worker_pool      every worker of every rank draws from its own pool of open episodes
                     (LeRobot's episode-pool streaming, in its default sampling by remaining frames)
    episode_stream   every worker of every rank plays its own episodes one after another, in runs
                     (iterable datasets that shuffle episodes and read them in sequence)
    stored_on_each_rank
                     all ranks read the same stored frames
                     (a stream in each rank that knows no rank)
    shard_buffer     one reader for all ranks walks a few shards of the files into a buffer, and
                     draws from the buffer (LeRobot's StreamingLeRobotDataset, whose rank 0 reads
                     for all under accelerate)
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from heapq import heapreplace
from itertools import count

import numpy as np

from understudy_data.order.random import make_key, permutation, permute_each, philox

Read = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""An order to audit: int64 positions (n,) -> (episode, frame, piece), int64 (n,) each.

A piece is opened, read for a while and closed: a clip, an episode or a single frame. Each opening
has its own number, so an episode that returns in the next epoch is another piece.
"""


def episode_lanes(lengths: np.ndarray, lanes: int, seed: int = 0) -> Read:
    """Shuffled episodes end to end, cut into `lanes` equal lines that are read in turn; frames
    shuffled per episode.

    With as many lanes as samples in a batch, each batch holds one frame of each of `lanes`
    episodes, for the length of an episode. Whole episodes cannot be mixed better.
    """
    lengths = _check(lengths, "episode_lanes", lanes=lanes)
    total = int(lengths.sum())

    def read(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        episode, frame, piece = _like(positions)
        for epoch, index, p in _epochs(positions, total):
            line = _line(lengths.size, seed, epoch)
            lane = p % lanes
            i = p // lanes
            q = lane * (total // lanes) + np.minimum(lane, total % lanes) + i
            episode[index], offset = _find(line, lengths, q)
            frame[index] = _shuffled_inside(episode[index], offset, lengths, seed, epoch)
            piece[index] = epoch * lengths.size + episode[index]
        return episode, frame, piece

    return read


def block(lengths: np.ndarray, frames: int, seed: int = 0) -> Read:
    """Shuffled episodes end to end, cut into blocks of `frames`; each block is shuffled and read in
    turn.
    """
    lengths = _check(lengths, "block", frames=frames)
    total = int(lengths.sum())

    def read(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        episode, frame, piece = _like(positions)
        for epoch, index, p in _epochs(positions, total):
            line = _line(lengths.size, seed, epoch)
            q = np.empty_like(p)
            for number in np.unique(p // frames):
                inside = p // frames == number
                first = int(number) * frames
                order = permutation(
                    min(frames, total - first), make_key(seed, "rival block", epoch, int(number))
                )
                q[inside] = first + order.forward((p[inside] - first).astype(np.uint64)).astype(
                    np.int64
                )
            episode[index], frame[index] = _find(line, lengths, q)
            piece[index] = epoch * lengths.size + episode[index]
        return episode, frame, piece

    return read


def worker_pool(
    lengths: np.ndarray,
    batch: int,
    ranks: int,
    workers: int,
    pool: int,
    positions: int,
    seed: int = 0,
) -> Read:
    """Each of ranks x workers keeps `pool` of its own episodes open and draws a random remaining
    frame of them.

    An exhausted episode is replaced by the worker's next one. A rank takes whole batches of
    `batch / ranks` from its workers in turn. The order is a simulation from the start, so only
    positions below `positions` can be read.

    Uniform draws from the remaining frames are equivalent to an exponential clock for each frame,
    started when its episode is admitted, with frames taken as their clocks ring: clocks have no
    memory, so the next to ring is uniform among the rest. The whole stream of a worker is then one
    sort.
    """
    lengths = _check(lengths, "worker_pool", batch=batch, ranks=ranks, workers=workers, pool=pool)
    per_rank = _per_rank("worker_pool", batch, ranks, workers, lengths)
    consumers = ranks * workers
    need = per_rank * -(-positions // (batch * workers))  # frames of each worker
    table = np.empty((consumers, need, 3), np.int64)
    for c in range(consumers):
        # a heap of times: each place of the pool is free for its next episode
        free_at = [0.0] * pool
        line: list[int] = []
        clocks: list[np.ndarray] = []
        drawn = 0
        for e in _stripe(lengths, c, consumers, seed):
            line.append(e)
            clocks.append(
                free_at[0]
                + _exponential(int(lengths[e]), make_key(seed, "rival pool", c, len(line)))
            )
            heapreplace(free_at, float(clocks[-1].max()))
            drawn += int(lengths[e])
            # Frames that ring before the next admission are final: no later episode can come in
            # between.
            if drawn >= need and sum(np.count_nonzero(t < free_at[0]) for t in clocks) >= need:
                break
        by = np.argsort(np.concatenate(clocks), kind="stable")[:need]
        table[c] = _rows(line, lengths, consumers, c)[by]
    return _deal(table, batch, ranks, workers, per_rank, "worker_pool")


def episode_stream(
    lengths: np.ndarray,
    batch: int,
    ranks: int,
    workers: int,
    positions: int,
    run: int = 16,
    seed: int = 0,
) -> Read:
    """Each of ranks x workers reads its own episodes one after another, frame by frame.

    A worker hands out runs of `run` consecutive frames (its own small batch). A rank collects its
    share of the global batch from its workers in turn. Only positions below `positions` can be
    read.
    """
    lengths = _check(lengths, "episode_stream", batch=batch, ranks=ranks, workers=workers, run=run)
    per_rank = _per_rank("episode_stream", batch, ranks, workers, lengths)
    run = next(r for r in range(min(run, per_rank), 0, -1) if per_rank % r == 0)
    consumers = ranks * workers
    need = run * -(-(per_rank // run * -(-positions // batch)) // workers)  # frames of each worker
    table = np.empty((consumers, need, 3), np.int64)
    for c in range(consumers):
        line: list[int] = []
        drawn = 0
        for e in _stripe(lengths, c, consumers, seed):
            line.append(e)
            drawn += int(lengths[e])
            if drawn >= need:
                break
        table[c] = _rows(line, lengths, consumers, c)[:need]
    return _deal(table, batch, ranks, workers, run, "episode_stream")


def shard_buffer(
    lengths: np.ndarray, positions: int, shards: int = 16, buffer: int = 1000, seed: int = 0
) -> Read:
    """Draw a random shard, exchange its next stored frame for a random one of `buffer` frames, and
    hand that one out.

    The shards are consecutive episodes in equal numbers. The first `buffer` frames fill the buffer
    and hand out nothing. An exhausted shard begins again at once, with the frames of the next
    epoch. Only positions below `positions` can be read.
    """
    lengths = _check(lengths, "shard_buffer", positions=positions, shards=shards, buffer=buffer)
    if lengths.size < shards:
        raise ValueError(
            f"shard_buffer: {lengths.size} episodes for {shards} shards: need one each"
        )
    read = buffer + positions  # frames
    words, others = philox(
        make_key(seed, "rival buffer"), np.arange(read, dtype=np.uint64), np.zeros(read, np.uint64)
    )
    shard = (words % np.uint64(shards)).astype(np.int64)
    place = (others % np.uint64(buffer)).astype(np.int64)
    place[:buffer] = np.arange(buffer)
    first = np.cumsum([0, *(part.size for part in np.array_split(lengths, shards))])
    row = np.empty((read, 3), np.int64)
    for s in range(shards):
        here = np.flatnonzero(shard == s)
        size = lengths[first[s] : first[s + 1]]
        epoch, offset = np.divmod(np.arange(here.size), int(size.sum()))
        episode, frame = _find(np.arange(size.size), size, offset)
        row[here] = np.stack(
            [first[s] + episode, frame, epoch * lengths.size + first[s] + episode], axis=1
        )
    by = np.argsort(place, kind="stable")  # the frames that were in each place, one after the other
    same = place[by][1:] == place[by][:-1]
    table = np.empty((positions, 3), np.int64)
    table[by[1:][same] - buffer] = row[by[:-1][same]]

    def reader(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return table[positions, 0], table[positions, 1], table[positions, 2]

    return reader


def stored_on_each_rank(lengths: np.ndarray, batch: int, ranks: int) -> Read:
    """Each rank reads the same `batch / ranks` stored frames of a step, one after another."""
    lengths = _check(lengths, "stored_on_each_rank", batch=batch, ranks=ranks)
    per_rank = _per_rank("stored_on_each_rank", batch, ranks, 1, lengths)
    total = int(lengths.sum())

    def read(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        step, offset = np.divmod(np.asarray(positions, np.int64), batch)
        epoch, q = np.divmod(step * per_rank + offset % per_rank, total)
        episode, frame = _find(np.arange(lengths.size), lengths, q)
        return episode, frame, epoch * lengths.size + episode

    return read


# ---- shared by them


@lru_cache(maxsize=2)
def _line(episodes: int, seed: int, epoch: int) -> np.ndarray:
    """Episodes in the shuffled order of an epoch, int64 (episodes,); the same for all workers."""
    every = np.arange(episodes, dtype=np.uint64)
    return (
        permutation(episodes, make_key(seed, "rival episodes", epoch))
        .forward(every)
        .astype(np.int64)
    )


def _exponential(n: int, key: int) -> np.ndarray:
    """Exponential variables of mean 1, float64 (n,)."""
    words, _ = philox(key, np.arange(n, dtype=np.uint64), np.zeros(n, np.uint64))
    return -np.log(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)


def _check(lengths: np.ndarray, name: str, **counts: int) -> np.ndarray:
    lengths = np.asarray(lengths, np.int64)
    if lengths.ndim != 1 or lengths.size == 0 or int(lengths.min()) < 1:
        raise ValueError(
            f"{name}: lengths must be (episodes,) of at least one frame each, not {lengths.shape}"
        )
    for key, value in counts.items():
        if value < 1:
            raise ValueError(f"{name}: {key}={value}, must be at least 1")
    return lengths


def _per_rank(name: str, batch: int, ranks: int, workers: int, lengths: np.ndarray) -> int:
    if batch % ranks:
        raise ValueError(f"{name}: a batch of {batch} does not divide among {ranks} ranks")
    if lengths.size < ranks * workers:
        raise ValueError(
            f"{name}: {lengths.size} episodes for {ranks} x {workers} workers: need one each"
        )
    return batch // ranks


def _like(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        np.empty(len(positions), np.int64),
        np.empty(len(positions), np.int64),
        np.empty(len(positions), np.int64),
    )


def _epochs(positions: np.ndarray, total: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(epoch, indices into `positions`, positions inside that epoch) for each epoch of
    `positions`.
    """
    epoch, p = np.divmod(np.asarray(positions, np.int64), total)
    for e in np.unique(epoch):
        index = np.flatnonzero(epoch == e)
        yield int(e), index, p[index]


def _find(line: np.ndarray, lengths: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Episode and frame of frame number q of the episodes `line`, end to end."""
    end = np.cumsum(lengths[line])
    place = np.searchsorted(end, q, side="right")
    return line[place], q - (end - lengths[line])[place]


def _shuffled_inside(
    episode: np.ndarray, offset: np.ndarray, lengths: np.ndarray, seed: int, epoch: int
) -> np.ndarray:
    """Frame number `offset` in each episode's own permutation of this epoch."""
    words, _ = philox(
        make_key(seed, "rival inside", epoch),
        episode.view(np.uint64),
        np.zeros(len(episode), np.uint64),
    )
    return permute_each(offset.view(np.uint64), lengths[episode].view(np.uint64), words).view(
        np.int64
    )


def _stripe(lengths: np.ndarray, consumer: int, consumers: int, seed: int) -> Iterator[int]:
    """One worker's endless episodes: every consumers-th of a shuffled line, epoch after epoch."""
    for epoch in count():
        yield from _line(lengths.size, seed, epoch)[consumer::consumers].tolist()


def _rows(line: list[int], lengths: np.ndarray, consumers: int, consumer: int) -> np.ndarray:
    """Frames of the episodes `line`, one after another: int64 (n, 3) rows [episode, frame,
    piece].
    """
    size = lengths[line]
    turn = np.repeat(np.arange(len(line)), size)
    frame = np.arange(turn.size) - (np.cumsum(size) - size)[turn]
    return np.stack([np.array(line)[turn], frame, turn * consumers + consumer], axis=1)


def _deal(table: np.ndarray, batch: int, ranks: int, workers: int, run: int, name: str) -> Read:
    """Reader of `table` (rank * workers + worker, frame, 3): a rank takes runs from its workers in
    turn.
    """
    per_rank = batch // ranks

    def read(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        step, offset = np.divmod(np.asarray(positions, np.int64), batch)
        rank, offset = np.divmod(offset, per_rank)
        runs, inside = np.divmod(step * per_rank + offset, run)  # of this rank, from the start
        turn, worker = np.divmod(runs, workers)
        index = turn * run + inside
        if index.size and int(index.max()) >= table.shape[1]:
            raise ValueError(
                f"{name}: position {int(np.max(positions))} lies beyond the simulated stretch"
            )
        row = table[rank * workers + worker, index]
        return row[:, 0], row[:, 1], row[:, 2]

    return read
