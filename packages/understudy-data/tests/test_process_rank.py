"""Rank of a process: from the process group, the environment or the caller; and loaders that keep
to it.
"""

import itertools
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.dataloader.episode_sampler import EpisodeSampler
from understudy_data.load.dataloader.episode_stream import EpisodeStream
from understudy_data.load.loader import Loader
from understudy_data.process_rank import ProcessRank, warn_once
from understudy_data.testing.datasets import Spec, write_dataset

BATCH = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks") / "dataset"
    write_dataset(path, Spec(lengths=(9, 7, 8), gop=4))
    return path


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process without rank and without earlier warnings, and no process group left behind."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    warn_once.cache_clear()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def join_group(rank: int, world_size: int) -> None:
    """Become a rank of a process group whose other ranks are not needed."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


def set_rank(monkeypatch: pytest.MonkeyPatch, rank: str, world_size: str) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)


def loaded(root: Path, **options: Any) -> Loader:
    return Loader(root, batch_size=BATCH, seed=0, num_threads=1, **options)


def streamed(root: Path, **options: Any) -> EpisodeStream:
    return EpisodeStream(root, batch_size=BATCH, seed=0, **options)


def sampled(root: Path, **options: Any) -> EpisodeSampler:
    return EpisodeSampler(EpisodeDataset(root), batch_size=BATCH, seed=0, **options)


READERS = pytest.mark.parametrize("make", [loaded, streamed, sampled])
Make = Callable[..., Any]


def take(reader: Any, count: int = 2) -> list[Any]:
    """Positions of the first batches, or the first indices of a sampler."""
    items = list(
        itertools.islice(reader, count * (BATCH if isinstance(reader, EpisodeSampler) else 1))
    )
    if isinstance(reader, Loader):
        reader.close()
    return (
        items
        if isinstance(reader, EpisodeSampler)
        else [item["position"].tolist() for item in items]
    )


@READERS
def test_rank_is_that_of_the_environment(
    make: Make, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (make(root).rank, make(root).world_size) == (0, 1)
    expected = take(make(root, rank=1, world_size=2))
    set_rank(monkeypatch, "1", "2")
    reader = make(root)
    assert (reader.rank, reader.world_size) == (1, 2)
    assert take(reader) == expected


@READERS
def test_rank_is_that_of_the_process_group(
    make: Make, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join_group(1, 2)
    # of hosts, as some operators of clusters set it; of Lightning
    for names in (("0", "3"), ("", "2")):
        set_rank(monkeypatch, *names)
        reader = make(root)
        assert (reader.rank, reader.world_size) == (1, 2)
        take(reader)


@pytest.mark.parametrize(
    ("rank", "world_size"),
    [("1", ""), ("", "2"), ("2", "2"), ("-1", "2"), ("one", "2"), ("0", "0"), ("1.0", "2")],
)
def test_environment_that_names_no_rank_is_refused(
    rank: str, world_size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rank(monkeypatch, rank, world_size)
    with pytest.raises(ConfigError):
        ProcessRank.find()
    assert ProcessRank.find(3, 4).rank == 3


def test_group_of_one_in_an_environment_of_several_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_rank(monkeypatch, "1", "2")
    join_group(0, 1)
    with pytest.raises(ConfigError):
        ProcessRank.find()


@READERS
def test_group_that_is_made_later_is_refused_at_the_first_sample(make: Make, root: Path) -> None:
    reader = make(root)
    join_group(1, 2)
    with pytest.raises(ConfigError):
        take(reader)
    if isinstance(reader, EpisodeStream):
        with pytest.raises(ConfigError):
            pickle.dumps(reader)  # as for a worker that is spawned


@READERS
def test_group_that_is_made_later_with_the_rank_of_the_environment_is_accepted(
    make: Make, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rank(monkeypatch, "1", "2")
    reader = make(root)
    join_group(1, 2)
    take(reader)


@READERS
def test_rank_0_of_1_in_a_group_of_several_warns_once(
    make: Make, root: Path, recwarn: pytest.WarningsRecorder
) -> None:
    join_group(1, 2)
    for _ in range(2):
        take(make(root, rank=0, world_size=1))
    assert len(recwarn) == 1
    take(make(root, rank=0, world_size=2))  # tensor parallel ranks may read the same samples
    take(make(root, rank=1, world_size=2))
    assert len(recwarn) == 1


def test_workers_of_a_stream_have_the_rank_of_their_process(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rank(monkeypatch, "1", "2")
    batches = DataLoader(streamed(root), batch_size=None, num_workers=2)
    assert [batch["position"].tolist() for batch in itertools.islice(batches, 3)] == [
        [2, 3],
        [6, 7],
        [10, 11],
    ]


def test_sampler_of_several_ranks_needs_the_global_batch(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rank(monkeypatch, "0", "2")
    with pytest.raises(ValueError, match="batch_size"):
        EpisodeSampler(EpisodeDataset(root))


@pytest.mark.parametrize("make", [Loader, EpisodeStream, EpisodeSampler])
def test_shares_of_unlike_size_are_refused(
    make: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_rank(monkeypatch, "1", "2")
    data = EpisodeDataset(root)
    with refused("batch_size", 7, kind=ValueError):
        make(data, batch_size=7)
    make(data, batch_size=6)
    if make is not EpisodeSampler:
        [positions] = take(make(data, batch_size=7, allow_uneven=True), 1)
        assert positions == [3, 4, 5, 6]


def test_three_threads_that_read_a_loader_share_its_batches(root: Path) -> None:
    loader = loaded(root)
    taken = []

    def read() -> None:
        for _ in range(10):
            taken.append(next(loader)["position"].tolist())  # the loader has no end

    threads = [threading.Thread(target=read, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert sorted(taken) == [list(range(at, at + BATCH)) for at in range(0, 30 * BATCH, BATCH)]
    assert loader.position == 30 * BATCH
    assert take(loader, 1) == [list(range(30 * BATCH, 31 * BATCH))]


def test_locals_of_a_caller_are_not_kept(root: Path) -> None:
    pytest.importorskip("accelerate")
    model = torch.nn.Linear(2, 2)
    alive = weakref.ref(model)
    with Loader(root, batch_size=BATCH) as loader:
        next(loader)
    del model
    assert alive() is None
