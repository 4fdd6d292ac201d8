"""Orders of other loaders are as described."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

import order_baselines
from order_baselines import (
    Read,
    block,
    episode_lanes,
    episode_stream,
    shard_buffer,
    stored_on_each_rank,
    worker_pool,
)
from understudy_base.testing.refusals import refused
from understudy_data.load.explain import droid_like
from understudy_data.order.design_effect import design_effect

LENGTHS = np.array([7, 1, 12, 30, 3, 3, 18, 5, 9, 2, 26, 11])
TOTAL = int(LENGTHS.sum())
FRAMES = {(e, f) for e, n in enumerate(LENGTHS) for f in range(n)}


def all_of(read: Read, positions: np.ndarray) -> list[tuple[int, int]]:
    episode, frame, _ = read(positions)
    return list(zip(episode.tolist(), frame.tolist(), strict=True))


@pytest.mark.parametrize(
    "read",
    [
        episode_lanes(LENGTHS, 5),
        episode_lanes(LENGTHS, 1),
        episode_lanes(LENGTHS, TOTAL + 3),
        block(LENGTHS, 40),
        block(LENGTHS, 1),
        block(LENGTHS, 10 * TOTAL),
    ],
)
def test_each_frame_once_per_epoch_and_alone_as_together(read: Read) -> None:
    positions = np.arange(3 * TOTAL)
    together = all_of(read, positions)
    for epoch in range(3):
        once = together[epoch * TOTAL : (epoch + 1) * TOTAL]
        assert len(once) == len(FRAMES)
        assert set(once) == FRAMES
    assert together[:TOTAL] != together[TOTAL : 2 * TOTAL]
    shuffled = np.random.default_rng(0).permutation(positions)[:50]
    assert all_of(read, shuffled) == [together[p] for p in shuffled]
    assert [all_of(read, positions[p : p + 1])[0] for p in (0, 100, 300)] == [
        together[p] for p in (0, 100, 300)
    ]


def test_lanes_are_whole_episodes_and_blocks_are_whole_blocks() -> None:
    episode, _, _ = episode_lanes(LENGTHS, 4)(np.arange(TOTAL // 4 * 4))
    for lane in range(4):
        runs = [
            e
            for e, before in zip(episode[lane::4], [-1, *episode[lane::4]], strict=False)
            if e != before
        ]
        assert len(runs) == len(set(runs))  # an episode, once left, does not come back in the lane
    episode, _, _ = block(LENGTHS, 40)(np.arange(TOTAL))
    seen = [set(episode[i : i + 40]) for i in range(0, TOTAL, 40)]
    assert all(len(a & b) <= 1 for a, b in pairwise(seen))  # only the episode at the cut
    assert all(not a & b for a, b in zip(seen, seen[2:], strict=False))


def consumer_of(
    positions: np.ndarray, batch: int, ranks: int, workers: int, run: int
) -> np.ndarray:
    """Which of ranks x workers makes each position: a rank's runs of a batch come from its workers
    in turn.
    """
    step = positions // batch
    offset = positions % batch
    rank = offset // (batch // ranks)
    runs = (step * (batch // ranks) + offset % (batch // ranks)) // run
    return rank * workers + runs % workers


def test_pool_holds_so_many_episodes_and_uses_each_up() -> None:
    lengths = np.tile(LENGTHS, 8)
    positions = np.arange(24 * 100)
    read = worker_pool(lengths, batch=24, ranks=2, workers=3, pool=4, positions=positions.size)
    episode, frame, piece = read(positions)
    consumer = consumer_of(positions, 24, 2, 3, 12)
    for c in range(6):
        mine = consumer == c
        left = {p: set(range(lengths[e])) for p, e in zip(piece[mine], episode[mine], strict=True)}
        opened = set()
        closed = set()
        for p, f in zip(piece[mine].tolist(), frame[mine].tolist(), strict=True):
            opened.add(p)
            left[p].remove(f)  # raises if a frame comes twice
            closed |= {p} if not left[p] else set()
            assert len(opened - closed) <= 4
        assert len(closed) > 10
    assert not set.intersection(*(set(piece[consumer == c].tolist()) for c in (0, 1)))


@pytest.mark.long
def test_pool_draws_uniformly_from_the_frames_that_remain() -> None:
    lengths = np.array([2, 6])
    pairs = Counter()
    for seed in range(1000):
        episode, _, _ = worker_pool(
            lengths, batch=1, ranks=1, workers=1, pool=2, positions=2, seed=seed
        )(np.arange(2))
        pairs[tuple(episode.tolist())] += 1
    expected = {
        (0, 0): 2 / 8 * 1 / 7,
        (0, 1): 2 / 8 * 6 / 7,
        (1, 0): 6 / 8 * 2 / 7,
        (1, 1): 6 / 8 * 5 / 7,
    }
    for pair, p in expected.items():
        assert pairs[pair] == pytest.approx(1000 * p, abs=4 * (1000 * p * (1 - p)) ** 0.5)


def test_stream_plays_episodes_in_runs() -> None:
    positions = np.arange(64 * 40)
    episode, frame, piece = episode_stream(
        LENGTHS, batch=64, ranks=2, workers=3, positions=positions.size
    )(positions)
    consumer = consumer_of(positions, 64, 2, 3, 16)
    for c in range(6):
        e, f, p = (x[consumer == c] for x in (episode, frame, piece))
        follows = p[1:] == p[:-1]
        assert (f[1:][follows] == f[:-1][follows] + 1).all()
        assert (f[1:][~follows] == 0).all()
        assert (f[:-1][~follows] == LENGTHS[e[:-1][~follows]] - 1).all()


def test_shard_buffer_walks_each_shard_in_stored_order_and_mixes_them_in_the_buffer() -> None:
    stored = [(e, f) for e, n in enumerate(LENGTHS.tolist()) for f in range(n)]
    number = {sample: i for i, sample in enumerate(stored)}
    first = np.cumsum([0, *(LENGTHS[i : i + 4].sum() for i in (0, 4, 8))])
    plain = [
        number[sample]
        for sample in all_of(shard_buffer(LENGTHS, 60, shards=3, buffer=1), np.arange(60))
    ]
    walked = 0
    for s in range(3):
        mine = [i for i in plain if first[s] <= i < first[s + 1]]
        assert mine == list(range(first[s], first[s] + len(mine)))
        assert len(mine) > 10  # each shard has its turns
        walked += len(mine)
    assert walked == 60
    mixed = all_of(shard_buffer(LENGTHS, 60, shards=3, buffer=20), np.arange(60))
    assert len(set(mixed)) == 60
    late = [number[sample] for sample in mixed if sample[0] < 4]
    assert late != sorted(late)
    assert max(late) < first[1]


def test_all_ranks_read_the_same_stored_frames() -> None:
    stored = [(e, f) for e, n in enumerate(LENGTHS.tolist()) for f in range(n)]
    read = stored_on_each_rank(LENGTHS, batch=12, ranks=3)
    assert all_of(read, np.arange(24)) == [*stored[:4] * 3, *stored[4:8] * 3]
    assert 32 * 4 - TOTAL == 1
    assert all_of(read, np.array([32 * 12])) == [stored[1]]  # the next epoch


def test_baselines_refuse_impossible_arguments() -> None:
    with refused("worker_pool", 12, "8 x 2", kind=ValueError):
        worker_pool(LENGTHS, batch=16, ranks=8, workers=2, pool=1, positions=64)
    with refused("episode_stream", 10, 4, kind=ValueError):
        episode_stream(LENGTHS, batch=10, ranks=4, workers=1, positions=64)
    with refused("shard_buffer", 12, 16, kind=ValueError):
        shard_buffer(LENGTHS, 10)
    with refused("lanes=0", kind=ValueError):
        episode_lanes(LENGTHS, 0)
    with refused("block", "lengths", (2,), kind=ValueError):
        block(np.array([3, 0]), 4)
    with refused("episode_stream", 100_000, kind=ValueError):
        episode_stream(LENGTHS, batch=8, ranks=2, workers=1, positions=64)(np.array([100_000]))


@pytest.mark.long
def test_a_settled_pool_is_worse_than_a_fresh_one() -> None:
    """Drawing by remaining frames, a pool comes to hold the remnants of some episodes and one fresh
    one.
    """
    lengths = droid_like(20_000)
    start = 3 * 2**18
    read = worker_pool(lengths, 256, 8, 8, 4, start + 2**16)
    deff = {}
    for at in (0, start):
        episode, frame, _ = read(np.arange(at, at + 2**15))
        deff[at] = design_effect(episode.reshape(-1, 256), frame.reshape(-1, 256)).mean()
    assert deff[start] > 1.4 * deff[0]


def test_workers_share_one_permutation_of_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = order_baselines.permutation
    monkeypatch.setattr(
        order_baselines, "permutation", lambda n, key: made.append(n) or real(n, key)
    )
    lengths = np.full(5000, 40)
    order_baselines.episode_stream(lengths, 1024, 128, 8, 4096, seed=99)
    order_baselines.worker_pool(lengths, 1024, 128, 8, 1, 4096, seed=99)
    assert made.count(5000) == 1
