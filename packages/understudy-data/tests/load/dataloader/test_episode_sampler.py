"""EpisodeSampler in a plain DataLoader and a StatefulDataLoader: every epoch whole, after any
stop.
"""

import itertools
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from understudy_base import ConfigError
from understudy_base.testing.refusals import refused, warned
from understudy_data.load.dataloader.episode_sampler import EpisodeSampler
from understudy_data.order import ClipOrder
from understudy_data.testing.index_dataset import Indices

DATA = Indices(13, 8, 21, 30)  # 72 frames
N = 72


def stream(count: int, **kwargs: object) -> list[int]:
    """The first `count` samples of a run that is never stopped and has no batches."""
    return list(itertools.islice(forever(EpisodeSampler(DATA, **kwargs)), count))


def forever(sampler: EpisodeSampler) -> Iterator[int]:
    """Pass after pass."""
    while True:
        yield from sampler


def test_every_epoch_holds_every_index_once_and_in_another_order():
    sampler = EpisodeSampler(DATA)
    epochs = [list(sampler) for _ in range(4)]
    assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert len(sampler) == N
    assert list(EpisodeSampler(DATA, seed=1)) != epochs[0]
    assert list(EpisodeSampler(DATA)) == epochs[0]


def test_a_list_of_one_dataset_is_that_dataset():
    assert list(EpisodeSampler([DATA])) == list(EpisodeSampler(DATA))
    with refused("2 datasets", "Loader", kind=ValueError):
        EpisodeSampler([DATA, DATA])
    with refused("str", "'runs/demo/dataset'", kind=ValueError):
        EpisodeSampler("runs/demo/dataset")


def test_unknown_arguments_are_refused_with_ours():
    with refused("generator", "seed", kind=TypeError):
        EpisodeSampler(DATA, generator=None)
    with refused(["sead"], kind=TypeError):
        EpisodeSampler(DATA, sead=1)


def test_without_shuffling_storage_order():
    assert list(EpisodeSampler(DATA, shuffle=False)) == list(range(N))


def test_episodes_and_dropped_frames():
    with warned("episode 10", "drop_n_first_frames 2", "drop_n_last_frames 6"):
        sampler = EpisodeSampler(
            DATA, episodes=[30, 0, 10], drop_n_first_frames=2, drop_n_last_frames=6, shuffle=False
        )
    # Episode 10 has 8 frames, all dropped; 0 is at 0..12 and 30 at 42..71 of the dataset.
    assert list(sampler) == [*range(2, 7), *range(44, 66)]
    assert len(sampler) == 27
    with warned("episode 10", "drop_n_first_frames 2"):
        shuffled = EpisodeSampler(
            DATA, episodes=[30, 0, 10], drop_n_first_frames=2, drop_n_last_frames=6
        )
    assert sorted(shuffled) == [*range(2, 7), *range(44, 66)]
    assert sampler.indices == shuffled.indices == [*range(2, 7), *range(44, 66)]
    assert EpisodeSampler(DATA).indices == list(range(N))


def test_nothing_is_said_where_every_episode_keeps_a_frame():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        EpisodeSampler(DATA, drop_n_first_frames=3, drop_n_last_frames=4)
        EpisodeSampler(Indices(3, 0, 4), drop_n_first_frames=2)  # the empty one was empty before


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("start", [0, 1, 4, N - 1, N])
@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_a_state_of_lerobots_sampler_goes_on_there(shuffle: bool, start: int, epoch: int):
    straight = EpisodeSampler(DATA, shuffle=shuffle, seed=4)
    passes = [list(straight) for _ in range(epoch + 2)]
    # by a loop that says its epochs, from the saved one or from 0 on
    for numbered in (False, True):
        for first in (epoch, 0):
            sampler = EpisodeSampler(DATA, shuffle=shuffle, seed=4)
            sampler.load_state_dict({"epoch": epoch, "start_index": start})
            if numbered:
                sampler.set_epoch(first)
            assert len(sampler) == N - start
            assert list(sampler) == passes[epoch][start:]  # none, where it was over
            if numbered:
                sampler.set_epoch(first + 1)
            assert len(sampler) == N
            assert list(sampler) == passes[epoch + 1]


def test_a_state_of_lerobots_sampler_becomes_one_of_ours():
    for start in (5, N):
        sampler = EpisodeSampler(DATA, seed=4)
        sampler.load_state_dict({"epoch": 2, "start_index": start})
        assert sampler.state_dict()["position"] == 2 * N + start
    behind = EpisodeSampler(DATA, seed=4)
    behind.load_state_dict(sampler.state_dict())
    assert list(behind) == list(at_epoch(3))
    batched = EpisodeSampler(DATA, seed=4, batch_size=10)
    batched.load_state_dict({"epoch": 0, "start_index": N})
    # 80 of 144 were the first pass
    assert (len(batched), list(batched), len(batched)) == (0, [], 70)


def at_epoch(epoch: int) -> EpisodeSampler:
    sampler = EpisodeSampler(DATA, seed=4)
    sampler.set_epoch(epoch)
    return sampler


@pytest.mark.parametrize(
    "state", [{"epoch": -1, "start_index": 0}, {"epoch": 0, "start_index": N + 1}, {"epoch": 0}]
)
def test_a_state_that_is_none_of_lerobots_is_refused(state: dict):
    with pytest.raises(ValueError, match=r"epoch|start_index"):
        EpisodeSampler(DATA).load_state_dict(state)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"episodes": [0, 5]}, ["episodes", [5]]),
        ({"episodes": []}, ["drop_n_first_frames 0", "drop_n_last_frames 0"]),
        (
            {"drop_n_first_frames": 20, "drop_n_last_frames": 10},
            ["drop_n_first_frames 20", "drop_n_last_frames 10", 30],
        ),
        ({"drop_n_first_frames": -1}, ["drop_n_first_frames", -1]),
        ({"seed": -1}, ["seed", -1]),
        ({"batch_size": 0}, ["batch", 0]),
        ({"rank": 0, "world_size": 2}, ["world_size 2", "batch_size"]),
        ({"batch_size": 7, "rank": 0, "world_size": 2}, ["batch_size 7", 2]),
        ({"batch_size": 8, "world_size": 2, "rank": 2}, ["rank", 2]),
    ],
)
def test_bad_arguments_are_refused(kwargs, words):
    with refused(*words, kind=ValueError):
        EpisodeSampler(DATA, **kwargs)


def test_data_without_segments_or_with_others_is_refused():
    with refused("source 0", "int", "'1'", "segments", kind=ValueError):
        EpisodeSampler([1, 2, 3])
    wrong = Indices(3, 4)
    wrong.segments = wrong.segments[:1]
    wrong.__class__ = type("Longer", (Indices,), {"__len__": lambda self: 7})
    with refused("Longer", 7, 3, kind=ValueError):
        EpisodeSampler(wrong)


@pytest.mark.parametrize("batch", [1, 5, 16, 72, 100])
def test_passes_of_whole_batches_drop_and_repeat_nothing(batch):
    """The last batch is filled from the next epoch, which then starts behind the samples that it
    lent.
    """
    sampler = EpisodeSampler(DATA, batch_size=batch)
    passes = []
    for _ in range(7):
        length = len(sampler)
        passes.append(list(sampler))
        assert len(passes[-1]) == length
        assert length % batch == 0
    together = list(itertools.chain.from_iterable(passes))
    assert together == stream(len(together))
    for start in range(0, len(together) - N + 1, N):
        assert sorted(together[start : start + N]) == list(range(N))


@given(st.data())
def test_stops_worlds_and_batches_change_and_the_stream_does_not(data):
    """The fourth of the known faults and the rest of them: position counts consumed samples, not
    step times batch.
    """
    expected = stream(5 * 30 * 36)
    position = 0
    state = None
    for _ in range(data.draw(st.integers(1, 5))):
        world = data.draw(st.integers(1, 4))
        batch = world * data.draw(st.integers(1, 9))
        ranks = [
            EpisodeSampler(DATA, batch_size=batch, rank=rank, world_size=world)
            for rank in range(world)
        ]
        for sampler in ranks:
            if state is not None:
                sampler.load_state_dict(state)
        loaders = [forever(sampler) for sampler in ranks]
        for _ in range(data.draw(st.integers(1, 30))):
            shares = [list(itertools.islice(loader, batch // world)) for loader in loaders]
            assert list(itertools.chain(*shares)) == expected[position : position + batch]
            position += batch
        states = [sampler.state_dict() for sampler in ranks]
        assert all(one == states[0] for one in states)
        assert states[0]["position"] == position
        state = states[0]


def test_a_rank_walks_only_its_own_indices(monkeypatch):
    asked = []
    locate = ClipOrder.locate
    monkeypatch.setattr(
        ClipOrder,
        "locate",
        lambda order, positions: asked.append(positions) or locate(order, positions),
    )
    sampler = EpisodeSampler(DATA, batch_size=12, rank=1, world_size=4)
    assert len(list(sampler)) == 18
    offsets = np.concatenate(asked) % 12
    assert len(offsets) == 18
    assert set(offsets.tolist()) == {3, 4, 5}
    begun = iter(sampler)
    # a batch counts once the rank's whole share of it is yielded
    for position in (0, 0, 12, 12, 12, 24):
        next(begun)
        assert sampler.state_dict()["position"] == 72 + position


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loader_with_workers_says_what_it_consumed(workers):
    """Workers draw ahead, so the sampler's own count runs ahead of the training; `consumed` does
    not.
    """

    def run(sampler, steps):
        seen = []
        loader = DataLoader(DATA, batch_size=8, sampler=sampler, num_workers=workers)
        while len(seen) < steps:
            seen += [batch.tolist() for batch in itertools.islice(loader, steps - len(seen))]
        return seen

    whole = run(EpisodeSampler(DATA, batch_size=8), 20)
    first = EpisodeSampler(DATA, batch_size=8)
    start = run(first, 5)
    if workers:
        assert first.state_dict()["position"] > 40
    resumed = EpisodeSampler(DATA, batch_size=8)
    resumed.load_state_dict(first.state_dict(consumed=5 * 8))
    assert start + run(resumed, 15) == whole


def test_short_last_batches_without_batch():
    """batch_size 16 over 72: five batches an epoch, the last of 8; resumed in epoch 2 after three
    of them.
    """

    def epochs(sampler, numbers):
        seen = []
        for epoch in numbers:
            sampler.set_epoch(epoch)
            seen.append(
                [batch.tolist() for batch in DataLoader(DATA, batch_size=16, sampler=sampler)]
            )
        return seen

    whole = epochs(EpisodeSampler(DATA), range(4))
    assert [len(batch) for batch in whole[0]] == [16, 16, 16, 16, 8]
    first = EpisodeSampler(DATA)
    epochs(first, range(2))
    resumed = EpisodeSampler(DATA)
    resumed.load_state_dict(first.state_dict(consumed=2 * 72 + 3 * 16))
    assert epochs(resumed, range(2, 4)) == [whole[2][3:], whole[3]]


def test_set_epoch_is_as_with_other_samplers():
    whole = [list(e) for e in np.array_split(stream(6 * N), 6)]
    sampler = EpisodeSampler(DATA)
    for epoch in (0, 1, 4, 2, 2):
        sampler.set_epoch(epoch)
        assert list(sampler) == whole[epoch]
    sampler.set_epoch(3)
    list(itertools.islice(sampler, 10))  # left in the middle
    sampler.set_epoch(4)
    assert list(sampler) == whole[4]
    for bad in (-1, -5):
        with pytest.raises(ValueError, match="epoch"):
            sampler.set_epoch(bad)


def test_naming_the_next_epoch_goes_on_where_this_one_ends():
    """Also where another batch before a restart has left passes that end elsewhere than in a run of
    this batch.
    """
    sampler = EpisodeSampler(DATA, batch_size=16)
    sampler.load_state_dict(sampler.state_dict(consumed=75))
    seen = []
    for epoch in range(1, 6):
        sampler.set_epoch(epoch)
        seen += list(sampler)
    assert seen == stream(75 + len(seen))[75:]
    assert len(seen) > 4 * N
    # a pass from 75 to 155, the first whole batch behind 144
    sampler.load_state_dict(sampler.state_dict(consumed=75))
    sampler.set_epoch(1)
    assert list(itertools.islice(sampler, 20)) == stream(95)[75:]
    sampler.set_epoch(2)
    assert list(itertools.islice(sampler, 20)) == stream(175)[155:]


def test_epochs_that_are_less_than_a_batch_are_numbered_by_batches():
    sampler = EpisodeSampler(DATA, batch_size=100)
    expected = stream(900)
    for epoch in (0, 1, 2, 3, 4, 5, 8, 2):
        sampler.set_epoch(epoch)
        assert list(sampler) == expected[100 * epoch : 100 * (epoch + 1)]


def test_a_pass_that_is_started_again_starts_again():
    sampler = EpisodeSampler(DATA)
    first = list(itertools.islice(sampler, 10))
    assert list(sampler)[:10] == first
    sampler.load_state_dict({**sampler.state_dict(), "position": 30})
    assert (
        list(itertools.islice(sampler, 5)) == list(itertools.islice(sampler, 5)) == stream(35)[30:]
    )


def test_the_first_epoch_named_after_a_restore_is_the_restored_one():
    expected = stream(4 * N)
    for number in (0, 2, 7):  # Accelerate says 0, a careful loop 2, a loop that counts otherwise 7
        sampler = EpisodeSampler(DATA)
        sampler.load_state_dict({**sampler.state_dict(), "position": 2 * N + 10})
        sampler.set_epoch(number)
        assert len(sampler) == N - 10
        assert list(sampler) == expected[2 * N + 10 : 3 * N]
        sampler.set_epoch(number + 1)
        assert list(sampler) == expected[3 * N :]
    with refused("epoch 1", 5, kind=ValueError):
        sampler.set_epoch(1)


def test_a_state_is_plain_and_another_order_is_refused():
    state = EpisodeSampler(DATA, batch_size=8).state_dict()
    assert {type(value) for value in state.values()} == {int, str}
    for other, words in (
        (EpisodeSampler(DATA, seed=3), ["seed", "0 -> 3"]),
        (EpisodeSampler(DATA, shuffle=False), ["shuffling", "True -> False"]),
        (EpisodeSampler(DATA, episodes=[0, 10]), [72, 21]),
        (EpisodeSampler(DATA, drop_n_last_frames=1), [72, 68]),
    ):
        with refused(*words, kind=ConfigError):
            other.load_state_dict(state)
    EpisodeSampler(DATA, batch_size=16).load_state_dict(state)
    for wrong in ({}, {"epoch": 3, "start": 5}, {**state, "position": -8}):
        with refused("position", "order", kind=ConfigError):
            EpisodeSampler(DATA).load_state_dict(wrong)
    with refused("consumed", -1, kind=ValueError):
        EpisodeSampler(DATA).state_dict(consumed=-1)


@pytest.mark.parametrize(
    ("workers", "batch", "stop"),
    # 72 is a multiple of 8 and not of 16; stops in the first epoch, at its end (batch 8), in the
    # second
    [
        *((0, batch, stop) for batch in (8, 16) for stop in (2, 9, 13)),
        (2, 16, 13),
        (2, 8, 9),
    ],
)
def test_stateful_dataloader(workers, batch, stop):
    def make():
        sampler = EpisodeSampler(DATA, batch_size=batch)
        return StatefulDataLoader(DATA, batch_size=batch, sampler=sampler, num_workers=workers)

    def run(loader, steps):
        seen = []
        while len(seen) < steps:
            for value in loader:
                seen.append(value.tolist())
                if len(seen) == steps:
                    return seen, loader.state_dict()
        raise AssertionError("no batches")

    whole, _ = run(make(), 24)
    start, state = run(make(), stop)
    resumed = make()
    resumed.load_state_dict(state)
    middle, state = run(resumed, 5)
    again = make()  # the second resume
    again.load_state_dict(state)
    end, _ = run(again, 24 - stop - 5)
    assert start + middle + end == whole
    assert list(itertools.chain(*whole)) == stream(24 * batch)
