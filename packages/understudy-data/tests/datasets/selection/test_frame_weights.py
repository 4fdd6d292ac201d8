"""Frame weights: their counts in an epoch and factors of the loss, by the formulas, and the refusal
of wrong ones.
"""

import pickle
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.dataloader.episode_sampler import EpisodeSampler
from understudy_data.load.loader import Loader
from understudy_data.order import Order
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.weights import Frame, count_frames, write_weights

LENGTHS = (6, 9, 4, 12)
IDS = (1, 2, 5, 9)
FRAMES = [(episode, frame) for episode, length in zip(IDS, LENGTHS) for frame in range(length)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`next.weight` is a column of 0, 1 and 2.5."""
    path = tmp_path_factory.mktemp("weights") / "set"
    write_dataset(path, Spec(lengths=LENGTHS, ids=IDS, cameras=()))
    return path


def opened(
    root: Path, path: Path, weights: dict[Frame, float], use: str = "both", **more: Any
) -> EpisodeDataset:
    return EpisodeDataset(
        root, frame_weights=write_weights(path, weights, seed=0), frame_weights_in=use, **more
    )


def by_frame(values: list[float]) -> dict[Frame, float]:
    return {frame: values[i % len(values)] for i, frame in enumerate(FRAMES)}


def factors(data: EpisodeDataset) -> dict[Frame, float]:
    frames = sorted(count_frames(data.segments))
    batch = data.batch(*(np.array(column) for column in zip(*frames)))
    return dict(zip(frames, batch["loss_weight"].tolist()))


@settings(max_examples=12)
@given(
    values=st.lists(st.integers(0, 5), min_size=1, max_size=31), batch=st.sampled_from([1, 4, 20])
)
def test_epochs_have_each_frame_as_often_as_its_weight(
    root: Path, tmp_path_factory: pytest.TempPathFactory, values: list[int], batch: int
) -> None:
    weights = by_frame([float(value) for value in values])
    path = tmp_path_factory.getbasetemp() / "whole.parquet"
    if not any(weights.values()):
        with refused("31", where="whole.parquet"):
            opened(root, path, weights, "order")
        return
    data = opened(root, path, weights, "order")
    want = Counter({frame: int(weight) for frame, weight in weights.items() if weight})
    assert count_frames(data.epoch_segments) == want
    assert count_frames(data.segments) == Counter(want.keys())
    order = Order.from_datasets(data, batch_size=batch, clip=3, lanes=2)
    epoch = want.total()
    for number in range(3):
        _, episode, frame = order.locate(np.arange(number * epoch, (number + 1) * epoch))
        assert Counter(zip(episode.tolist(), frame.tolist())) == want
    sampler = EpisodeSampler(data, seed=batch)
    for _ in range(2):
        assert Counter(zip(*(part.tolist() for part in data.locate(list(sampler))))) == want
    assert len(sampler) == epoch


@settings(max_examples=8)
@given(
    values=st.lists(
        st.sampled_from([0.0, 1e-3, 0.4, 0.5, 1.0, 1.49, 1.5, 2.2, 7.75]), min_size=2, max_size=31
    )
)
def test_count_times_factor_is_the_weight(
    root: Path, tmp_path_factory: pytest.TempPathFactory, values: list[float]
) -> None:
    weights = by_frame([1.0, *values])
    path = tmp_path_factory.getbasetemp() / "any.parquet"
    both = opened(root, path, weights)
    loss = opened(root, path, weights, "loss")
    counts = count_frames(both.epoch_segments)
    want = {frame: weight for frame, weight in weights.items() if weight}
    assert counts == {frame: max(1, int(weight + 0.5)) for frame, weight in want.items()}
    product = {frame: counts[frame] * factor for frame, factor in factors(both).items()}
    assert product == pytest.approx(want, rel=1e-6)
    assert factors(loss) == pytest.approx(want, rel=1e-6)
    assert count_frames(loss.epoch_segments) == Counter(want.keys())
    facts = both.frame_weights.facts
    assert (facts.frames, facts.zero, facts.largest) == (31, 31 - len(want), max(want.values()))
    squares = sum(Fraction(weight) ** 2 for weight in want.values())
    assert facts.effective == pytest.approx(float(sum(map(Fraction, want.values())) ** 2 / squares))
    assert facts.epoch == sum(counts.values())


@pytest.mark.parametrize(("values", "share"), [([0.5], 1 / 3), ([0.5, 1.5], 1 / 2), ([3.0], 3 / 4)])
def test_default_shares_of_sources_are_those_of_one_pass(
    root: Path, tmp_path: Path, values: list[float], share: float
) -> None:
    """The second source has no weights; an epoch of the first one may have several passes."""
    one = dict.fromkeys(FRAMES, 1.0) | {
        f: values[k % len(values)] for k, f in enumerate(FRAMES[:30])
    }
    one = {frame: weight for frame, weight in one.items() if frame in FRAMES[:30]} | {
        FRAMES[30]: 0.0
    }
    weighted = opened(root, tmp_path / "w.parquet", one, "order", name="weighted")
    plain = opened(
        root,
        tmp_path / "p.parquet",
        dict.fromkeys(FRAMES, 1.0) | {FRAMES[30]: 0.0},
        "order",
        name="plain",
    )
    slots = np.array(
        Order.from_datasets([weighted, plain], batch_size=6, seed=0).spec.schedule[0].slots, float
    )
    assert slots[0] / slots.sum() == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(
    ("values", "passes"),
    [([2.0, 1.0], 1), ([0.5, 1.0], 2), ([0.25, 1.5, 3.0], 4), ([np.float32(0.1), 1.0], 10)],
)
def test_fractions_in_the_order_are_exact_over_the_passes_of_an_epoch(
    root: Path, tmp_path: Path, values: list[float], passes: int
) -> None:
    weights = by_frame(values)
    data = opened(root, tmp_path / "w.parquet", weights, "order")
    assert data.frame_weights.facts.passes == passes
    assert count_frames(data.epoch_segments) == {
        f: round(float(weight) * passes) for f, weight in weights.items()
    }
    assert "loss_weight" not in data[0]


def test_weights_join_other_selections(root: Path, tmp_path: Path) -> None:
    weights = by_frame([0.0, 2.0, 2.0, 1.0])
    rest = {
        "keep_ranges": {"2": [[2, 8]], "9": [[0, 3], [5, 12]]},
        "keep_rule": "start",
        "drop_n_last_frames": 1,
    }
    plain = EpisodeDataset(root, delta_timestamps={"action": [0.0, 0.2]}, **rest)
    data = opened(
        root,
        tmp_path / "w.parquet",
        weights,
        "order",
        delta_timestamps={"action": [0.0, 0.2]},
        **rest,
    )
    want = {frame: int(weights[frame]) for frame in count_frames(plain.segments) if weights[frame]}
    assert count_frames(data.epoch_segments) == want
    for number in range(len(data)):  # windows end where they did
        sample = data[number]
        other = plain.sample(int(sample["episode_index"]), int(sample["frame_index"]))
        assert sample["action_is_pad"].tolist() == other["action_is_pad"].tolist()
        assert sample["action"].tolist() == other["action"].tolist()
    partly = {
        frame: weight for frame, weight in weights.items() if frame in count_frames(plain.segments)
    }
    assert (
        count_frames(opened(root, tmp_path / "p.parquet", partly, "order", **rest).epoch_segments)
        == want
    )


def test_a_column_has_the_weights(root: Path, tmp_path: Path) -> None:
    values = dict(zip(FRAMES, EpisodeDataset(root).batch(*np.array(FRAMES).T)["index"].tolist()))
    column = EpisodeDataset(root, frame_weights="index", frame_weights_in="order")
    file = opened(root, tmp_path / "w.parquet", values, "order")
    assert np.array_equal(column.epoch_segments, file.epoch_segments)
    assert column.frame_weights.digest == file.frame_weights.digest
    for key in ("task", "action", "weight"):  # text, two numbers per frame, no feature
        with refused(f"{key!r}", where="set", fix="index"):
            EpisodeDataset(root, frame_weights=key)


def test_loaders_have_the_weights(root: Path, tmp_path: Path) -> None:
    weights = by_frame([0.0, 1.0, 2.0, 3.0, 2.5])
    data = opened(root, tmp_path / "w.parquet", weights)
    want = count_frames(data.epoch_segments)
    steps = 6
    batch_size = want.total() // steps  # 9
    assert want.total() % steps == 0
    order = Order.from_datasets(data, batch_size=batch_size)
    for world in (1, 2, 4, 5):
        seen: Counter[Frame] = Counter()
        for rank in range(world):
            place = {"rank": rank, "world_size": world, "allow_uneven": True}
            with Loader(data, order=order, num_threads=1 + world % 2, **place) as loader:
                for _ in range(steps):
                    batch = next(loader)
                    frames = list(
                        zip(batch["episode_index"].tolist(), batch["frame_index"].tolist())
                    )
                    seen.update(frames)
                    expected = [weights[f] / want[f] for f in frames]
                    assert batch["loss_weight"].tolist() == pytest.approx(expected, rel=1e-6)
        assert seen == want
    plain = EpisodeDataset(root, name="plain")
    with Loader([data, plain], batch_size=8, num_threads=1) as loader:
        batch = next(loader)
        own = batch["source"] == 1
        assert own.any()
        assert not own.all()
        assert (batch["loss_weight"][own] == 1).all()
    copied = pickle.loads(pickle.dumps(data))
    assert np.array_equal(copied.epoch_segments, data.epoch_segments)
    assert factors(copied) == factors(data)
    sampled = DataLoader(data, batch_size=4, sampler=EpisodeSampler(data), num_workers=2)
    found = [
        (int(e), int(f))
        for batch in sampled
        for e, f in zip(batch["episode_index"], batch["frame_index"])
    ]
    assert Counter(found) == want
    inner = {
        (e, f) for e, start, stop in data.segments.tolist() for f in range(start + 1, stop - 2)
    }
    shorter = (data[i] for i in EpisodeSampler(data, drop_n_first_frames=1, drop_n_last_frames=2))
    found = [(int(sample["episode_index"]), int(sample["frame_index"])) for sample in shorter]
    assert Counter(found) == Counter(
        {frame: count for frame, count in want.items() if frame in inner}
    )


def test_saved_order_refuses_other_weights(root: Path, tmp_path: Path) -> None:
    data = opened(root, tmp_path / "a.parquet", by_frame([1.0, 2.0]))
    saved = Order.from_datasets(data, batch_size=4).to_json()
    assert Order.from_json(saved, data).spec.sources[0].frames == data.frame_weights.facts.epoch
    other = opened(root, tmp_path / "b.parquet", by_frame([2.0, 1.0]))
    now = Order.from_datasets(other, batch_size=4)
    assert now.spec.sources[0].frames != data.frame_weights.facts.epoch
    with refused(
        *(order.spec.sources[0].data[:8] for order in (Order.from_json(saved, data), now)),
        kind=ValueError,
    ):
        Order.from_json(saved, other)
    assert data.frame_weights.digest != other.frame_weights.digest
    near = by_frame([1.0, 2.0]) | {(9, 10): 2.125}  # as often, by another weight
    third = opened(root, tmp_path / "c.parquet", near)
    assert np.array_equal(third.epoch_segments, data.epoch_segments)
    assert third.frame_weights.digest != data.frame_weights.digest
    assert (
        opened(root, tmp_path / "d.parquet", near, "loss").frame_weights.digest
        != third.frame_weights.digest
    )


def edited(change: Callable[[dict[str, list[Any]]], Any]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "episode": [episode for episode, _ in FRAMES],
        "frame": [frame for _, frame in FRAMES],
        "weight": [1.0] * len(FRAMES),
    }
    change(columns)
    return pa.table(columns)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c["weight"].__setitem__(7, float("nan")), ["frame 1", "episode 2", "nan"]),
        (lambda c: c["weight"].__setitem__(7, float("inf")), ["frame 1", "episode 2", "inf"]),
        (lambda c: c["weight"].__setitem__(6, -0.5), ["frame 0", "episode 2", "-0.5"]),
        (lambda c: c["weight"].__setitem__(6, 1001.0), ["frame 0", "episode 2", "1001"]),
        (lambda c: c["weight"].__setitem__(6, 1e-7), ["frame 0", "episode 2", "1e-07"]),
        (lambda c: c["weight"].__setitem__(6, None), ["'weight'", "1"]),
        (lambda c: [column.pop(15) for column in c.values()], ["1", "frame 0", "episode 5"]),
        (
            lambda c: [column.__delitem__(slice(6, 15)) for column in c.values()],
            ["9", "frame 0", "episode 2"],
        ),
        (lambda c: c["frame"].__setitem__(8, 1), ["frame 1", "episode 2"]),
        (lambda c: c["episode"].__setitem__(8, 3), ["episode 3"]),
        (lambda c: c["frame"].__setitem__(14, 9), ["frame 9", "episode 2"]),
        (lambda c: c["frame"].__setitem__(6, -1), ["frame -1", "episode 2"]),
        (lambda c: c.__setitem__("weight", ["1"] * len(FRAMES)), ["'weight'", "string"]),
        (lambda c: c.__setitem__("frame", [0.5] * len(FRAMES)), ["'frame'", "double"]),
        (lambda c: c.pop("weight"), ["'weight'"]),
        (lambda c: c.__setitem__("episode_index", c["episode"]), ["episode", "episode_index"]),
        (lambda c: [column.clear() for column in c.values()] and c.__setitem__("weight", []), []),
    ],
)
def test_wrong_files_are_refused(
    change: Callable[[dict[str, list[Any]]], Any], named: list[str], root: Path, tmp_path: Path
) -> None:
    pq.write_table(edited(change), tmp_path / "w.parquet", row_group_size=7)
    with refused(*named, where="w.parquet"):
        EpisodeDataset(root, frame_weights=tmp_path / "w.parquet")


def test_weights_without_an_order_are_refused(root: Path, tmp_path: Path) -> None:
    with refused("0.123", "100", where="w.parquet", fix="'both'"):
        opened(root, tmp_path / "w.parquet", by_frame([0.123, 1.0]), "order")
    with refused("31000", where="w.parquet", fix="mean"):
        opened(root, tmp_path / "w.parquet", by_frame([1000.0]), "order")
    with refused("'sum'"):
        opened(root, tmp_path / "w.parquet", by_frame([1.0]), "sum")
    (tmp_path / "bad.parquet").write_text("no parquet")
    for name in ("bad.parquet", "absent.parquet"):
        with refused("frame_weights", where=name):
            EpisodeDataset(root, frame_weights=tmp_path / name)
