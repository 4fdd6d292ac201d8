"""Mixtures of different robots: every sample equals that of its dataset, padded and marked, in any
batch.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.dataloader.episode_stream import EpisodeStream
from understudy_data.load.loader import Loader
from understudy_data.load.mixed_batches import Mixture
from understudy_data.order import Order
from understudy_data.testing.batches import least_memory
from understudy_data.testing.datasets import Spec, write_dataset

TOP = "observation.images.top"
ACTION = "action"
STATE = "observation.state"
SPECS = {
    "arm": Spec(lengths=(30, 24, 1, 41), fps=10),
    "hand": Spec(
        lengths=(9, 1, 17), fps=30, action_dim=5, state_dim=7, version="v2.1", codec="libsvtav1"
    ),
    "gripper": Spec(lengths=(12, 25), fps=50, action_dim=1, gop=12),
}
WIDTHS = {
    "arm": {ACTION: 2, STATE: 3},
    "hand": {ACTION: 5, STATE: 7},
    "gripper": {ACTION: 1, STATE: 3},
}
WINDOWS = {ACTION: [0.0, 0.1, 0.2], TOP: [-0.1, 0.0]}
LARGE = 10**9


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("mixture")
    for name, spec in SPECS.items():
        write_dataset(path / name, spec)
    return {name: path / name for name in SPECS}


def opened(roots: dict[str, Path], names: Sequence[str], **options: Any) -> list[EpisodeDataset]:
    given_ = {"delta_timestamps": WINDOWS, "frame_cache_bytes": 0, **options}
    return [EpisodeDataset(roots[name], **given_) for name in names]


def check(
    batch: dict[str, Any], datasets: Sequence[EpisodeDataset], order: Order, names: Sequence[str]
) -> None:
    """The batch equals the samples of its datasets, bit for bit; padding is zero and marked."""
    source, episode, frame = order.locate(batch["position"].numpy())
    widest = {key: max(WIDTHS[name][key] for name in names) for key in (ACTION, STATE)}
    differ = {key for key in widest if len({WIDTHS[name][key] for name in names}) > 1}
    assert batch["source"].tolist() == source.tolist()
    plain = datasets[0].batch(*datasets[0].locate([0]))
    extra = {f"real_{key}_dim" for key in differ} | {f"{key}_dim_is_pad" for key in differ}
    # whatever sources the batch holds
    assert batch.keys() == plain.keys() | extra | {"position", "source"}
    for s in np.unique(source).tolist():
        at = np.flatnonzero(source == s)
        alone = datasets[s].batch(episode[at], frame[at])
        for key, value in alone.items():
            if key not in differ:
                got = (
                    batch[key][at]
                    if isinstance(value, torch.Tensor)
                    else [batch[key][i] for i in at]
                )
                assert torch.equal(got, value) if isinstance(value, torch.Tensor) else got == value
                continue
            own = WIDTHS[names[s]][key]
            value = value.unsqueeze(-1) if own == 1 else value
            assert batch[key].shape == (len(source), *value.shape[1:-1], widest[key])
            assert batch[key].dtype == value.dtype
            assert torch.equal(batch[key][at][..., :own], value)
            assert not batch[key][at][..., own:].any()
            assert batch[f"real_{key}_dim"][at].tolist() == [own] * len(at)
            padding = [[d >= own for d in range(widest[key])]] * len(at)
            assert batch[f"{key}_dim_is_pad"][at].tolist() == padding


@settings(max_examples=25)
@given(
    names=st.permutations(list(SPECS)).flatmap(lambda all_: st.sampled_from([all_, all_[:2]])),
    weights=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    batch=st.integers(1, 7),
    mode=st.sampled_from(["clips", "clips", "uniform", "sequential"]),
    memory=st.sampled_from([0, 300_000, LARGE]),
    threads=st.sampled_from([1, 3]),
    start=st.integers(0, 300),
    world=st.integers(1, 3),
)
def test_mixture_samples_equal_those_of_their_dataset(  # type: ignore[no-untyped-def]
    roots, names, weights, batch, mode, memory, threads, start, world
) -> None:
    datasets = opened(roots, names)
    world = min(world, batch)
    options: dict[str, Any] = {"mode": mode} if mode != "clips" else {"clip": 5, "lanes": batch}
    order = Order.from_datasets(
        datasets, batch_size=batch, seed=3, weights=weights[: len(names)], **options
    )
    for rank in range(world):
        place = {"rank": rank, "world_size": world, "allow_uneven": True}
        enough = least_memory(*datasets, order=order, **place)
        with Loader(
            datasets,
            order=order,
            num_threads=threads,
            memory=enough + memory,
            position=start,
            **place,
        ) as loader:
            for _ in range(4):
                check(next(loader), datasets, order, names)


def test_mixture_adds_no_keys_for_equal_widths(roots: dict[str, Path]) -> None:
    datasets = [*opened(roots, ["arm"]), *opened(roots, ["gripper"])]
    assert Mixture.from_datasets(datasets).widths == {ACTION: 2}  # the states are equally wide
    assert Mixture.from_datasets(opened(roots, ["hand"])).widths == {}


def declared(root: Path, copy: Path, key: str, **changes: Any) -> Path:
    """A dataset whose info.json declares a feature differently; the files are those of `root`."""
    copy.mkdir()
    for part in ("data", "videos"):
        (copy / part).symlink_to(root / part)
    (copy / "meta").mkdir()
    for file in (root / "meta").iterdir():
        if file.name != "info.json":
            (copy / "meta" / file.name).symlink_to(file)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][key] |= changes
    (copy / "meta/info.json").write_text(json.dumps(info))
    return copy


def test_mixture_takes_the_wider_dtype(roots: dict[str, Path], tmp_path: Path) -> None:
    twin = declared(roots["arm"], tmp_path / "twin", "timestamp", dtype="float64")
    datasets = [*opened(roots, ["arm"]), EpisodeDataset(twin, delta_timestamps=WINDOWS)]
    order = Order.from_datasets(datasets, batch_size=1, seed=3, clip=2, lanes=1)
    with Loader(datasets, order=order) as loader:
        for batch in (next(loader) for _ in range(8)):
            source, episode, frame = (int(a[0]) for a in order.locate(batch["position"].numpy()))
            assert batch["timestamp"].dtype == torch.float64
            assert (
                batch["timestamp"][0]
                == datasets[source].sample(episode, frame)["timestamp"].double()
            )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"keys": [ACTION, TOP]},
            ["(arm)", "(hand)", ["next.reward", "observation.state"], "keys=[...]"],
        ),
        (
            {"keys": [ACTION, STATE, "next.reward"], "delta_timestamps": {ACTION: WINDOWS[ACTION]}},
            [[TOP], "keys=[...]"],
        ),
        ({"delta_timestamps": {**WINDOWS, ACTION: [0.0]}}, ["'action'", 3, 1, "delta_timestamps"]),
        ({"delta_timestamps": {TOP: WINDOWS[TOP]}}, ["'action'", 3, 0, "delta_timestamps"]),
    ],
)
def test_mixture_refuses_datasets_that_no_batch_combines(
    roots: dict[str, Path], options: dict[str, Any], words: list[Any]
) -> None:
    datasets = [*opened(roots, ["arm"]), *opened(roots, ["hand"], **options)]
    order = Order.from_datasets(datasets, batch_size=3, seed=3)
    for kind in (Loader, EpisodeStream):
        with refused(*words, kind=ValueError):
            kind(datasets, order=order)


def test_mixture_refuses_other_shapes_than_float_vectors(
    roots: dict[str, Path], tmp_path: Path
) -> None:
    for name, changes, words in (
        ("whole", {"dtype": "int64"}, ["'action'", "float32", "int64", "keys="]),
        ("text", {"dtype": "string"}, ["'action'", "float32", "text", "keys="]),
        ("matrix", {"shape": [2, 1]}, ["'action'", (2,), (2, 1), "keys=[...]"]),
    ):
        odd = EpisodeDataset(declared(roots["arm"], tmp_path / name, ACTION, **changes))
        with refused(*words, kind=ValueError):
            Mixture.from_datasets([EpisodeDataset(roots["arm"]), odd])
