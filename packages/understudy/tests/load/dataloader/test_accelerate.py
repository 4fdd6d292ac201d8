"""Readers under Accelerate, and the known faults of resuming, each with a control that has it.

72 frames, global batch 16: an epoch is four and a half batches, so that last batches are uneven.
"""

import itertools
import warnings

import numpy as np
import pytest
from torch.utils.data import DataLoader

from understudy import ConfigError, EpisodeDataset, EpisodeSampler, EpisodeStream, Loader
from understudy.testing.accelerate_run import DATA, StepSampler, train, train_on_two_ranks
from understudy.testing.ranks import in_ranks
from understudy_data.testing.datasets import Spec, write_dataset

N = len(DATA)


@pytest.fixture
def one_process():
    """Accelerate keeps its state in the process; leave none behind."""
    pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def in_order(count: int) -> list[int]:
    """The samples at positions 0 .. count - 1."""
    sampler = EpisodeSampler(DATA)
    return list(
        itertools.islice(
            itertools.chain.from_iterable(iter(sampler) for _ in itertools.count()), count
        )
    )


def test_one_process_in_any_epoch(one_process):
    """Accelerate calls set_epoch(0) on a restored sampler (D1): the control replays epoch 0."""
    for kind, right in (("ours", True), ("control", False)):
        whole = train(kind, steps=15, batch=16)
        resumed = train(kind, steps=8, batch=16, position=7 * 16, step=7)
        assert (resumed == whole[7:]) == right
    assert train("ours", steps=15, batch=16) == np.array(in_order(240)).reshape(15, 16).tolist()


@pytest.mark.long
def test_two_ranks_and_then_one(one_process, tmp_path):
    """D1, D2 and D3 with two real processes, Accelerate sharing the batches out."""
    jobs = [
        {"kind": kind, "batch": 8, **job}
        for kind in ("ours", "control")
        for job in (
            {"steps": 15},
            {"steps": 8, "position": 7 * 16, "step": 7},  # D1: past the first epoch
            # D2: inside the first, up to its uneven last batch
            {"steps": 3, "position": 2 * 16, "step": 2},
            # D3: ten steps on two ranks, ten on one
            {"steps": 5, "position": 10 * 16 + 10 * 8, "step": 20},
        )
    ]
    (whole, later, within, twice), control = np.split(
        np.array(train_on_two_ranks(tmp_path, jobs), object), [4]
    )
    assert list(itertools.chain(*whole)) == in_order(15 * 16)
    assert later == whole[7:]
    assert within == whole[2:5]
    assert list(itertools.chain(*twice)) == in_order(240 + 80)[240:]

    other_whole, other_later, other_within, other_twice = control
    assert other_later != other_whole[7:]
    assert other_within[:2] == other_whole[2:4]
    assert other_within[2] != other_whole[4]  # the padding of the last batch
    assert other_twice == other_whole[:5]  # epoch 0 again

    # And without Accelerate's part in it: two epochs of five steps on two ranks, then ten steps of
    # 8, are 8 samples into the fourth epoch; twenty steps, all it knows, are taken for four epochs.
    sampler = StepSampler(N)
    sampler.resume(step=20, batch=8, world=2)
    assert (sampler.epoch, sampler.start) == (4, 0) != (3, 8)


def test_one_rank_goes_on_where_two_stopped(one_process):
    """Then one process, ten steps of 8 from position 160, and its state names position 240."""
    assert (
        list(itertools.chain(*train("ours", steps=10, batch=8, position=160)))
        == in_order(240)[160:]
    )


def read_by_prepared_loaders(root: str) -> dict[str, object]:
    """In one rank: the frames that prepared readers give, or the class of their error."""
    from accelerate import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(cpu=True)
    data = EpisodeDataset(root)
    undispatched = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False)
    )
    stream = EpisodeStream(data, batch_size=4, seed=0)
    whole = {"rank": 0, "world_size": 1}
    sampler = EpisodeSampler(data, batch_size=4)
    undivided = EpisodeSampler(data, batch_size=4, **whole)
    readers = {
        "loader": accelerator.prepare(Loader(data, batch_size=4, seed=0)),
        "stream": DataLoader(stream, batch_size=None),
        "sampler": DataLoader(data, batch_size=2, sampler=sampler),
        "prepared stream": accelerator.prepare(DataLoader(stream, batch_size=None)),
        "in workers": accelerator.prepare(DataLoader(stream, batch_size=None, num_workers=1)),
        "in spawned": accelerator.prepare(
            DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="spawn")
        ),
        "not dispatched": undispatched.prepare(DataLoader(stream, batch_size=None)),
        "divided sampler": accelerator.prepare(DataLoader(data, batch_size=2, sampler=sampler)),
        "undivided": accelerator.prepare(DataLoader(data, batch_size=2, sampler=undivided)),
    }
    steps = len(data) // 4
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of rank 0 of 1, which is right where Accelerate divides
        for name, reader in readers.items():
            try:
                batches = list(itertools.islice(iter(reader), steps))
                found[name] = [b["index"].tolist() for b in batches]
            except Exception as error:
                found[name] = (
                    type(error).__name__ if isinstance(error, ConfigError) else repr(error)
                )
    accelerator.wait_for_everyone()  # a rank that ends resets what the other still receives
    return found


@pytest.mark.long
def test_prepared_readers_give_each_frame_once_or_are_refused(tmp_path):
    pytest.importorskip("accelerate")
    write_dataset(tmp_path / "dataset", Spec(lengths=(9, 7, 8), gop=4))
    ranks = in_ranks(2, read_by_prepared_loaders, str(tmp_path / "dataset"))
    for name in ("loader", "stream", "sampler", "undivided"):
        assert [{len(batch) for batch in rank[name]} for rank in ranks] == [{2}, {2}], ranks
        assert sorted(itertools.chain(*ranks[0][name], *ranks[1][name])) == list(range(24)), name
    for name in (
        "divided sampler",
        "prepared stream",
        "in workers",
        "in spawned",
        "not dispatched",
    ):
        assert [rank[name] for rank in ranks] == ["ConfigError", "ConfigError"], name
