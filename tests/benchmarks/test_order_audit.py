"""Figures of the audit: on orders with known figures, and against counting by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from order_audit import as_read, audit, count_decoded, count_open, find_lives, measure_revisit
from understudy_base.testing.refusals import refused
from understudy_data.load.explain import droid_like
from understudy_data.order import Order
from understudy_data.order.design_effect import expected_uniform


class Source:
    """Whole episodes of the given lengths, numbered from `first` on in steps of 3."""

    def __init__(self, name: str, lengths: np.ndarray, first: int = 0, gop: int = 2) -> None:
        self.name = name
        self.gop = gop
        self.reach = (0, 0)
        ids = first + 3 * np.arange(len(lengths))
        self.segments = np.stack([ids, np.zeros_like(ids), lengths], axis=1).astype(np.int64)


def round_robin(lanes: int, length: int):
    """`lanes` episodes of `length` frames read in turn, then the next `lanes` episodes."""

    def read(p: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        lane = p % lanes
        i = p // lanes
        episode = lane + lanes * (i // length)
        return episode, i % length, episode

    return read


def test_round_robin_over_twenty_episodes() -> None:
    lengths = np.full(20_000, 64)
    a = audit(round_robin(20, 64), lengths, 20, world_size=4, span=20 * 1024, gop=12, fps=10)
    assert a.distinct_episodes == 20
    assert (a.open_max, a.frames_in_flight) == (20, 20 * 64)
    assert (a.touches_mean, a.touches_peak) == (20 / 64, 20)  # all lanes turn over together
    assert a.opens_per_piece == 1  # four ranks, five lanes each
    assert a.amplification == 1
    assert (a.revisit, a.revisit_seconds) == (20, 2.0)
    assert a.deff[0] == pytest.approx(1)
    near = np.exp(-np.abs(np.subtract.outer(np.arange(64), np.arange(64))) / 30)
    whole_episode = 0.4 + (0.3 * 64**2 + 0.3 * near.sum()) / 64
    assert a.deff[2] == pytest.approx(whole_episode)  # 64 batches are twenty whole episodes
    assert a.deff_error[2] < 1e-9


def test_a_lane_that_changes_ranks_is_opened_by_each() -> None:
    lengths = np.full(20_000, 64)
    a = audit(round_robin(21, 64), lengths, 20, world_size=4, span=20 * 1024, gop=1)
    assert a.opens_per_piece == 4
    assert a.amplification == 1  # every frame is a key frame: reading apart costs nothing more
    a = audit(round_robin(21, 64), lengths, 20, world_size=4, span=20 * 1024, gop=64)
    assert a.amplification > 3  # every rank decodes the episode from its start


@pytest.mark.long
def test_one_frame_at_a_time_costs_half_a_gop() -> None:
    lengths = np.full(2048, 120)
    order = Order.from_datasets([Source("a", lengths)], batch_size=64, mode="uniform")
    read, _ = as_read(order)
    for gop, reach, expected in (
        (1, (0, 0), 1),
        (12, (0, 0), 6.5),
        (2, (0, 0), 1.5),
        (4, (8, 0), 2.5 + 8 * 0.933),
    ):
        a = audit(read, lengths, 64, span=2**16, gop=gop, reach=reach)
        assert a.amplification == pytest.approx(expected, rel=0.03)
        assert (a.open_max, a.touches_mean, a.opens_per_piece) == (64, 64, 1)


windows = st.tuples(st.integers(0, 7), st.integers(0, 7))


@given(st.integers(1, 40), windows, st.integers(0, 2**32))
def test_decoded_counts_each_picture_of_an_owner_once(
    n: int, reach: tuple[int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 30, 3)
    gop = rng.integers(1, 10, 3)
    owner = rng.integers(0, 2, n)
    episode = rng.integers(0, 3, n)
    frame = rng.integers(0, lengths[episode])
    # A decoder needs all frames from the key frame before a window to the end of the window.
    pictures = {
        (o, e, picture)
        for o, e, f in zip(owner, episode, frame, strict=True)
        for picture in range(
            max(f - reach[0], 0) // gop[e] * gop[e], min(f + reach[1], lengths[e] - 1) + 1
        )
    }
    assert count_decoded(owner, episode, frame, lengths, gop, reach) == len(pictures)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**32))
def test_open_pieces_and_returns_are_counted_right(
    steps: int, batch: int, pieces: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    piece = rng.integers(0, pieces, steps * batch) * 1000
    step = np.arange(steps * batch) // batch
    of, first, last, size = find_lives(piece, step)
    lives = {
        p: (step[piece == p].min(), step[piece == p].max(), (piece == p).sum())
        for p in np.unique(piece)
    }
    assert list(lives.values()) == list(zip(first, last, size, strict=True))
    assert (np.unique(piece)[of] == piece).all()
    opens = [sum(a <= k <= b for a, b, _ in lives.values()) for k in range(steps)]
    frames = [sum(n for a, b, n in lives.values() if a <= k <= b) for k in range(steps)]
    assert count_open(np.bincount(first, minlength=steps), last).tolist() == opens
    assert (
        count_open(np.bincount(first, weights=size, minlength=steps), last, size).tolist() == frames
    )
    again = [
        next((j - i for j in range(i + 1, piece.size) if piece[j] == piece[i]), np.inf)
        for i in range(piece.size)
    ]
    assert measure_revisit(piece, 0, piece.size) == sorted(again)[piece.size // 2]


def test_as_read_numbers_episodes_and_clips_through() -> None:
    sources = [
        Source("a", np.array([50, 7, 90]), first=5),
        Source("b", np.array([400, 33]), first=2, gop=30),
    ]
    order = Order.from_datasets(sources, batch_size=4, frames_in_flight=60, clip=16, lanes=8)
    read, lengths = as_read(order)
    assert lengths.tolist() == [50, 7, 90, 400, 33]
    positions = np.arange(580 * 3)
    episode, frame, piece = read(positions)
    source, own, frames = order.locate(positions)
    ids = np.array([[5, 8, 11, -1], [2, 5, -1, -1]])
    assert (ids[source, episode - 3 * source] == own).all()
    assert (frame == frames).all()
    _, epoch = order.epochs(positions)
    for p in np.unique(piece):
        mine = piece == p
        # of one source, in one epoch
        assert len(set(zip(source[mine], epoch[mine], strict=True))) == 1
        assert mine.sum() <= max(s.clip for s in order.spec.sources)
        assert len(set(zip(own[mine], frame[mine], strict=True))) == mine.sum()


# V = 1280 lanes of clips of 64 hold about as many frames as 256 open episodes of 300. T = 1, 8 and
# 64 batches.
@pytest.mark.long
@pytest.mark.parametrize(
    ("settings_", "published"),
    [
        ({"mode": "uniform"}, (1.00, 1.05, 1.40)),
        ({"clip": 64, "lanes": 1280, "inside": "permuted"}, (1.00, 1.38, 6.4)),
        ({"clip": 64, "lanes": 1280, "inside": "sequential"}, (1.00, 1.47, 7.4)),
        ({"clip": 64, "lanes": 5120, "inside": "permuted"}, (1.00, 1.04, 2.3)),
    ],
)
def test_design_effects_are_the_published_ones(
    settings_: dict, published: tuple[float, ...]
) -> None:
    lengths = droid_like(20_000)
    read, _ = as_read(Order.from_datasets([Source("a", lengths)], batch_size=256, **settings_))
    a = audit(read, lengths, 256, start=2**20, span=2**19)
    assert a.deff == pytest.approx(published, rel=0.08)
    if settings_.get("mode") == "uniform":
        for batches, deff, error in zip((1, 8, 64), a.deff, a.deff_error, strict=True):
            assert abs(deff - expected_uniform(lengths, 256 * batches)) < 5 * error


def test_clips_by_default_keep_what_the_order_promises() -> None:
    """A batch of different clips, at most V open, each by one rank, each frame decoded about once,
    no bursts.
    """
    lengths = droid_like()
    order = Order.from_datasets([Source("a", lengths)], batch_size=256)
    read, _ = as_read(order)
    a = audit(read, lengths, 256, start=10**6 // 256 * 256, span=2**19, world_size=64)
    (source,) = order.spec.sources
    assert a.distinct_episodes > 254
    assert a.deff[0] < 1.02
    assert a.deff[1] < 1.4
    assert a.deff[2] < 7
    assert a.open_max <= source.lanes
    assert a.frames_in_flight <= 100_000
    assert a.opens_per_piece < 1.02
    assert a.amplification < 1.02
    # no resonance: lanes do not turn to new clips together
    assert a.touches_peak <= 3 * a.touches_mean


def test_bad_stretches_are_refused() -> None:
    with refused(63 * 4, 63, 4, kind=ValueError):
        audit(round_robin(4, 8), np.full(100, 8), 4, world_size=2, span=63 * 4)
    with refused("'order'", kind=ValueError):
        audit(round_robin(4, 10**9), np.full(4, 10**9), 4, world_size=2, span=64 * 4)
    with refused(5, 4, kind=ValueError):
        audit(round_robin(4, 8), np.full(100, 8), 4, world_size=5, span=64 * 4)
