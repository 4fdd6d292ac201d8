"""An order file plays the samples of its order, to the bit: any ranks, threads, workers and
resume.
"""

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from understudy_base import ConfigError, DatasetError
from understudy_base.testing.refusals import refused, warned
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.bad_frames import Substitutes
from understudy_data.load.dataloader.episode_sampler import EpisodeSampler
from understudy_data.load.dataloader.episode_stream import EpisodeStream
from understudy_data.load.loader import Loader
from understudy_data.load.order_rows import OrderExport, Span
from understudy_data.order import Order
from understudy_data.order_file import OrderFile
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.index_dataset import Indices
from understudy_kit import main

BATCH = 6


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("order_files")
    write_dataset(path / "a", Spec(lengths=(30, 24, 41), gop=4))
    write_dataset(path / "b", Spec(lengths=(12, 19), gop=2))
    return path


def opened(root: Path, *names: str, **options: Any) -> list[EpisodeDataset]:
    return [
        EpisodeDataset(root / name, delta_timestamps={"action": [0.0, 0.1]}, **options)
        for name in names
    ]


def written(
    path: Path, order: Order, data: list[EpisodeDataset], steps: int, first: int = 0
) -> Order:
    """The order, written as a file and opened again."""
    span = Span(first, first * order.batch_size, order.batch_size, steps)
    facts = {source.name: OrderExport.facts_of(source) for source in data}
    OrderExport(order.spec, [span], facts).write(path, span.samples(order.locate))
    return Order.from_file(path)


ORDERS: dict[str, Any] = {
    "uniform": {"mode": "uniform"},
    "clips": {"clip": 8, "lanes": 12},
    "permuted": {"clip": 8, "lanes": 6, "inside": "permuted"},
    "sequential": {"mode": "sequential"},
    "weights": {"weights": [3, 1], "clip": 8, "lanes": 12},
    "exact weights": {"weights": [0.73, 0.27], "clip": 8, "lanes": 12},
}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key]
        for key, value in one.items()
    )


def take(loader: Any) -> list[dict[str, Any]]:
    with loader:
        return list(loader)


@pytest.mark.short("clips", "exact weights")
@pytest.mark.parametrize("kind", ORDERS)
def test_order_files_play_the_same_batches(root: Path, tmp_path: Path, kind: str) -> None:
    """Over two epochs: on 1, 2 and 3 ranks, from a position in the middle, and by workers of a
    DataLoader.
    """
    names = ("a", "b") if "weights" in kind else ("a",)
    order = Order.from_datasets(opened(root, *names), batch_size=BATCH, seed=3, **ORDERS[kind])
    steps = 2 * -(-sum(map(len, opened(root, *names))) // BATCH)
    played = written(tmp_path / "order.parquet", order, opened(root, *names), steps)
    with Loader(opened(root, *names), order=order, num_threads=3) as loader:
        plain = [next(loader) for _ in range(steps)]
    for world in (1, 2, 3):
        for rank in range(world):
            options: dict[str, Any] = {
                "order": played,
                "rank": rank,
                "world_size": world,
                "memory": "9MB",
            }
            batches = take(Loader(opened(root, *names), num_threads=2, **options))
            low = rank * BATCH // world
            high = (rank + 1) * BATCH // world
            assert len(batches) == steps
            for whole, batch in zip(plain, batches, strict=True):
                assert same({key: value[low:high] for key, value in whole.items()}, batch)
    resumed = Loader(opened(root, *names), order=played)
    resumed.load_state_dict({"position": 7 * BATCH, "order": order.to_json()})
    assert all(map(same, plain[7:], take(resumed)))
    stream = EpisodeStream(opened(root, *names), order=played, position=3 * BATCH)
    batches = list(DataLoader(stream, batch_size=None, num_workers=2))
    assert len(batches) == steps - 3
    assert all(map(same, plain[3:], batches))


def test_order_files_of_a_range_begin_and_end_there(root: Path, tmp_path: Path) -> None:
    data = opened(root, "a")
    order = Order.from_datasets(data, batch_size=BATCH, seed=3)
    played = written(tmp_path / "order.parquet", order, data, 4, first=10)
    assert (played.start, played.stop) == (60, 84)
    with refused("position", "60", "84", kind=ValueError):
        Loader(data, order=played)
    positions = [
        batch["position"].tolist() for batch in take(Loader(data, order=played, position=66))
    ]
    assert positions == np.arange(66, 84).reshape(3, BATCH).tolist()
    with refused("shares", kind=ValueError):
        played.with_weights(70, {"a": 1.0})
    with warned("4 rows"):
        other = Order.from_file(tmp_path / "order.parquet", batch_size=10)
    assert [len(batch["position"]) for batch in take(Loader(data, order=other, position=60))] == [
        10,
        10,
    ]


def test_substitutes_of_an_order_file_are_those_of_its_order(root: Path, tmp_path: Path) -> None:
    data = opened(root, "a")
    order = Order.from_datasets(data, batch_size=BATCH, seed=3, clip=8, lanes=6)
    played = written(tmp_path / "order.parquet", order, data, 4).of_datasets(data)
    for position in range(24):
        assert np.array_equal(played.neighbors(position, 20), order.neighbors(position, 20))
    assert Substitutes(played, None, 0.01).find(3, 0, 0, 0, "bad", lambda episode, frame: None)


def test_order_files_refuse_other_datasets(root: Path, tmp_path: Path) -> None:
    data = opened(root, "a")
    played = written(
        tmp_path / "order.parquet", Order.from_datasets(data, batch_size=BATCH), data, 4
    )
    with refused("episodes", "b", where="order.parquet", fix="a"):
        Loader(opened(root, "b"), order=played)
    with refused("episodes", where="order.parquet", fix="a"):
        Loader(opened(root, "a", "b"), order=played)
    shutil.copytree(root / "a", tmp_path / "copy")
    assert len(take(Loader(tmp_path / "copy", order=played))) == 4
    # of the same dataset, but not all of the file
    part = Loader(opened(root, "a", episodes=[0, 1]), order=played)
    with part, pytest.raises(DatasetError, match="episode 2"):
        list(part)


def test_order_files_name_another_publication(tmp_path: Path) -> None:
    """A dataset that has grown plays; one with other episodes is refused with the address of the
    first.
    """
    place = tmp_path / "all"
    writer = tmp_path / "writer"
    order = tmp_path / "order.parquet"
    write_dataset(writer, Spec(lengths=(9, 7), gop=4))
    assert main(["publish", str(writer), str(place)]) == 0
    assert (
        main(
            ["order", "export", str(place), str(order), "--batch-size", str(BATCH), "--steps", "2"]
        )
        == 0
    )
    (stated,) = OrderFile(order).facts["datasets"]
    assert (stated["version"], stated["address"]) == ("publication 000001", f"{place}@000001")
    played = Order.from_file(order)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        played.of_datasets(EpisodeDataset(place))
    write_dataset(tmp_path / "more", Spec(lengths=(5,), gop=4))
    assert main(["publish", str(tmp_path / "more"), str(place)]) == 0
    with pytest.warns(UserWarning, match="publication 000001.*publication 000002"):
        assert len(take(Loader(EpisodeDataset(place), order=played))) == 2
    write_dataset(tmp_path / "other", Spec(lengths=(8, 8), gop=4))
    with refused("episodes", where="order.parquet", fix=f"{place}@000001"):
        played.of_datasets(EpisodeDataset(tmp_path / "other"))


def test_order_files_of_two_datasets_refuse_one(root: Path, tmp_path: Path, capsys: Any) -> None:
    both = opened(root, "a", "b")
    exported = tmp_path / "order.parquet"
    hand = tmp_path / "hand.parquet"
    written(exported, Order.from_datasets(both, batch_size=BATCH), both, 4)
    by_hand(hand, [("ab"[i % 2], 0, i // 2) for i in range(12)], "dataset", "episode", "frame")
    for path in (exported, hand):
        with refused("a", "b", where=path.name, fix="a, b"):
            Loader(opened(root, "a"), order=Order.from_file(path, batch_size=BATCH))
        assert main(["order", "explain", str(root / "a"), "--order", str(path)]) == 2
        assert str(path) in capsys.readouterr().err


def test_order_files_name_a_dataset_of_another_name(root: Path, tmp_path: Path) -> None:
    """A folder may be renamed, but not without a word."""
    path = by_hand(
        tmp_path / "hand.parquet", [("b", 0, i) for i in range(12)], "dataset", "episode", "frame"
    )
    with warned("'a'", "'b'"):
        batches = take(Loader(opened(root, "a"), order=Order.from_file(path, batch_size=BATCH)))
    assert len(batches) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Loader(opened(root, "b"), order=Order.from_file(path, batch_size=BATCH)).close()


def by_hand(path: Path, rows: list[tuple[Any, ...]], *names: str) -> Path:
    pq.write_table(
        pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))),
        path,
        row_group_size=7,
    )
    return path


def test_handmade_orders_are_played(root: Path, tmp_path: Path) -> None:
    rows = [("b" if i % 3 else "a", i % 2, i % 11, i // 4) for i in range(20)]
    names = ("dataset", "episode", "frame", "step")
    order = Order.from_file(by_hand(tmp_path / "hand.parquet", rows, *names))
    batches = take(Loader(opened(root, "a", "b"), order=order))
    assert [len(batch["position"]) for batch in batches] == [4] * 5
    found = [
        (("a", "b")[source], episode, frame)
        for batch in batches
        for source, episode, frame in zip(
            *(batch[key].tolist() for key in ("source", "episode_index", "frame_index"))
        )
    ]
    assert found == [row[:3] for row in rows]
    with refused("episodes", where="hand.parquet", fix="a, b"):
        Loader(opened(root, "b", "a"), order=order)
    with refused("batch_size", kind=ValueError):
        Order.from_file(by_hand(tmp_path / "alone.parquet", [(0, 1)] * 8, "episode", "frame"))
    beyond = by_hand(tmp_path / "beyond.parquet", [(0, 1), (1, 24)] * 4, "episode", "frame")
    with refused(24, where="beyond.parquet"):
        Loader(opened(root, "a"), order=Order.from_file(beyond, batch_size=4))
    state = Loader(opened(root, "a", "b"), order=order).state_dict()
    other = Order.from_file(
        by_hand(tmp_path / "other.parquet", [row[:3] for row in rows[::-1][:12]], *names[:3]),
        batch_size=4,
    )
    with pytest.raises(ConfigError):
        Loader(opened(root, "b", "a"), order=other).load_state_dict(state)


def test_another_batch_size_cuts_the_same_samples_anew(root: Path, tmp_path: Path) -> None:
    """Steps of 4 and of 2 rows: a batch size is required, and no column `step` moves a sample."""
    rows = [(i % 2, i % 11, i // 4 if i < 16 else 4 + (i - 16) // 2) for i in range(24)]
    hand = by_hand(tmp_path / "hand.parquet", rows, "episode", "frame", "step")
    with refused("batch_size", kind=ValueError):
        Order.from_file(hand)
    same = by_hand(tmp_path / "same.parquet", rows[:16], "episode", "frame", "step")
    for path, batch_size in ((hand, 4), (hand, 6), (same, 8)):
        with warned(batch_size, "step"):
            order = Order.from_file(path, batch_size=batch_size)
        batches = take(Loader(opened(root, "a"), order=order))
        assert {len(batch["position"]) for batch in batches} == {batch_size}
        columns = [
            torch.cat([b[key] for b in batches]).tolist()
            for key in ("episode_index", "frame_index")
        ]
        assert list(zip(*columns, strict=True)) == [row[:2] for row in rows[: order.stop]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            Order.from_file(same, batch_size=4).batch_size == Order.from_file(same).batch_size == 4
        )


DATA = Indices(13, 8, 21, 30)


def test_sampler_writes_and_plays_order_files(tmp_path: Path) -> None:
    sampler = EpisodeSampler(DATA, seed=2, batch_size=8, rank=0, world_size=1)
    indices = [index for _ in range(2) for index in sampler][: 8 * 17]
    EpisodeSampler(DATA, seed=2, batch_size=8, rank=0, world_size=1).to_file(
        tmp_path / "order.parquet", steps=17
    )
    played = Order.from_file(tmp_path / "order.parquet")
    assert list(EpisodeSampler(DATA, order=played)) == indices
    halves = [
        list(EpisodeSampler(DATA, order=played, rank=rank, world_size=2)) for rank in range(2)
    ]
    assert [
        i
        for pair in zip(*(np.reshape(half, (-1, 4)).tolist() for half in halves))
        for i in [*pair[0], *pair[1]]
    ] == indices
    resumed = EpisodeSampler(DATA, order=played)
    resumed.load_state_dict(EpisodeSampler(DATA, order=played).state_dict(consumed=40))
    assert list(resumed) == indices[40:]
    with refused(136, where="order.parquet"):
        list(resumed)
    resumed.to_file(tmp_path / "again.parquet", steps=17)
    assert [a.tolist() for a in OrderFile(tmp_path / "again.parquet").read(0)] == [
        a.tolist() for a in OrderFile(tmp_path / "order.parquet").read(0)
    ]
    with refused("seed", kind=ValueError):
        EpisodeSampler(DATA, order=played, seed=2)
    with refused(20, kind=ValueError):
        list(EpisodeSampler(Indices(13, 8, 20, 30), order=played))
    loaded = torch.cat(
        list(
            DataLoader(
                DATA, batch_size=8, sampler=EpisodeSampler(DATA, order=played), num_workers=2
            )
        )
    )
    assert loaded.tolist() == indices


def test_command_exports_the_order_that_a_loader_chooses(
    root: Path, tmp_path: Path, capsys: Any
) -> None:
    words = [
        "order",
        "export",
        str(root / "a"),
        str(tmp_path / "order.parquet"),
        "--batch-size",
        "6",
        "--seed",
        "4",
    ]
    assert main([*words, "--world-size", "3"]) == 0
    with Loader(root / "a", batch_size=6, seed=4, num_threads=1) as loader:
        plain = [next(loader) for _ in range(-(-95 // 6))]
    table = pq.read_table(tmp_path / "order.parquet")
    assert table.num_rows == len(plain) * 6
    for name, key in (
        ("position", "position"),
        ("episode", "episode_index"),
        ("frame", "frame_index"),
    ):
        assert table[name].to_pylist() == torch.cat([batch[key] for batch in plain]).tolist()
    assert table["rank"].to_pylist() == [0, 0, 1, 1, 2, 2] * len(plain)
    assert table["step"].to_pylist() == np.repeat(np.arange(len(plain)), 6).tolist()
    assert set(table["dataset"].to_pylist()) == {"a"}
    assert main(words) == 2
    assert "exists" in capsys.readouterr().err
    for wrong in (["--world-size", "7"], ["--weights", "1", "2"], ["--memory", "1kB"]):
        assert main([*words[:3], str(tmp_path / "wrong.parquet"), "--batch-size", "6", *wrong]) == 2
        assert "understudy order export" in capsys.readouterr().err
    assert main([*words[:3], words[2], str(tmp_path / "wrong.parquet")]) == 2
    assert "twice" in capsys.readouterr().err
    assert not list(tmp_path.glob("*wrong*"))
    both = [str(root / "a"), str(root / "b"), str(tmp_path / "both.parquet"), "--weights", "3", "1"]
    assert (
        main(["order", "export", *both, "--batch-size", "8", "--from-step", "5", "--steps", "10"])
        == 0
    )
    table = pq.read_table(tmp_path / "both.parquet")
    assert table["position"].to_pylist() == list(range(40, 120))
    assert table["dataset"].to_pylist().count(str(root / "a")) == 60


def test_spans_of_ranks() -> None:
    located = [np.zeros(10, np.int64)] * 3
    blocks = list(Span(2, 10, 5, 2).samples(lambda positions: located, world_size=2))
    assert blocks[0].rank.tolist() == [0, 0, 1, 1, 1] * 2
    assert blocks[0].step.tolist() == [2] * 5 + [3] * 5
