"""Mixtures of robots whose cameras differ: other names, other sizes, or none where others have
one.
"""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.dataloader.episode_sampler import EpisodeSampler
from understudy_data.load.dataloader.episode_stream import EpisodeStream
from understudy_data.load.loader import Loader
from understudy_data.load.mixed_batches import Mixture, image_shapes
from understudy_data.order import Order
from understudy_data.order.sample_random import SampleRng
from understudy_data.testing import datasets as written
from understudy_data.testing.batches import all_same, least_memory
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.video.color import AreaResize

ACTION = "action"
STATE = "observation.state"
FRONT = "observation.images.front"
WRIST = "observation.images.wrist"
KEYS = [ACTION, STATE, FRONT, WRIST]
LARGE = 10**9
SPECS = {
    "both": Spec(
        lengths=(30, 1, 24), cameras=("observation.images.cam_0", "observation.images.cam_1")
    ),
    "one": Spec(
        lengths=(9, 17), fps=30, cameras=("observation.images.top",), gop=12, version="v2.1"
    ),
    "none": Spec(lengths=(12, 25), fps=50, cameras=()),
    "bare": Spec(lengths=(5, 4), cameras=()),
    "stored": Spec(lengths=(6, 9), cameras=(), images=("observation.images.png",)),
}
NAMES = {
    "both": {FRONT: "observation.images.cam_0", WRIST: "observation.images.cam_1"},
    "one": {FRONT: "observation.images.top"},
    "none": {},
    "bare": {},
    "stored": {FRONT: "observation.images.png"},
}
LACKS = {
    "both": (),
    "one": (WRIST,),
    "none": (FRONT, WRIST),
    "bare": (FRONT, WRIST),
    "stored": (WRIST,),
}
SIDES = (written.SIDE, written.SIDE)
WINDOWS: dict[str, list[float]] = {FRONT: [-0.1, 0.0], WRIST: [0.0, 0.2, 0.2]}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("cameras")
    for name, spec in SPECS.items():
        write_dataset(path / name, spec)
    return {name: path / name for name in SPECS}


def opened(
    roots: dict[str, Path], names: Sequence[str], windows: bool = False, **options: Any
) -> list[EpisodeDataset]:
    return [
        EpisodeDataset(
            roots[name],
            {ACTION: [0.0, 0.1], **(WINDOWS if windows else {})},
            names=NAMES[name],
            missing_cameras=dict.fromkeys(LACKS[name], SIDES),
            keys=[key for key in KEYS if key not in LACKS[name]],
            **{"frame_cache_bytes": 0, **options},
        )
        for name in names
    ]


def check(batch: dict[str, Any], datasets: Sequence[EpisodeDataset], order: Order) -> None:
    """Row by row the samples of their own datasets, and whether each camera is missing."""
    missing = {camera for dataset in datasets for camera in dataset.missing_cameras}
    plain = set(datasets[0][0]) - {f"{camera}_is_missing" for camera in missing}
    assert batch.keys() == plain | {f"{camera}_is_missing" for camera in missing} | {
        "position",
        "source",
    }
    for row, (source, episode, frame) in enumerate(zip(*order.locate(batch["position"].numpy()))):
        sample = datasets[source].sample(int(episode), int(frame))
        for key, value in sample.items():
            got = batch[key][row]
            assert torch.equal(got, value) if isinstance(value, torch.Tensor) else got == value, key
        for camera in missing:
            assert bool(batch[f"{camera}_is_missing"][row]) == (
                camera in datasets[source].missing_cameras
            )
            assert (not batch[camera][row].any()) == (camera in datasets[source].missing_cameras)


@settings(max_examples=20)
@given(
    names=st.sampled_from(
        [
            ["both"],
            ["one"],
            ["both", "one"],
            ["one", "both"],
            ["none", "both"],
            ["one", "none"],
            ["none", "one", "both"],
            ["none"],
            ["none", "bare"],
            ["stored", "none"],
            ["none", "stored"],
        ]
    ),
    windows=st.booleans(),
    batch=st.integers(1, 7),
    mode=st.sampled_from(["clips", "clips", "uniform", "sequential"]),
    extra=st.sampled_from([0, 300_000, LARGE]),
    threads=st.sampled_from([1, 3]),
    start=st.integers(0, 200),
    world=st.integers(1, 3),
)
def test_mixture_camera_samples_equal_those_of_their_dataset(  # type: ignore[no-untyped-def]
    roots, names, windows, batch, mode, extra, threads, start, world
) -> None:
    datasets = opened(roots, names, windows)
    world = min(world, batch)
    options: dict[str, Any] = {"mode": mode} if mode != "clips" else {"clip": 5, "lanes": batch}
    order = Order.from_datasets(datasets, batch_size=batch, seed=3, **options)
    for rank in range(world):
        place: dict[str, Any] = {"rank": rank, "world_size": world, "allow_uneven": True}
        memory = extra + least_memory(*datasets, order=order, **place)
        with Loader(
            datasets, order=order, num_threads=threads, memory=memory, position=start, **place
        ) as loader:
            for _ in range(8):  # more than there are buffers: black images held another one before
                check(next(loader), datasets, order)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_mixture_cameras_in_streams_and_samplers(roots: dict[str, Path]) -> None:
    datasets = opened(roots, ["both", "one", "none"])
    order = Order.from_datasets(datasets, batch_size=4, seed=3, clip=4, lanes=8)
    stream = DataLoader(
        EpisodeStream(datasets, order=order, position=8), batch_size=None, num_workers=2
    )
    with Loader(datasets, order=order, position=8) as loader:
        assert all_same(list(islice(stream, 4)), list(islice(loader, 4)))
    alone = datasets[1]
    for batch in DataLoader(alone, batch_size=5, sampler=EpisodeSampler(alone, seed=0)):
        assert batch[f"{WRIST}_is_missing"].all()
        assert not batch[WRIST].any()
        assert batch[FRONT].any()


def test_plan_counts_black_images(roots: dict[str, Path]) -> None:
    for names in (["none"], ["both"], ["none", "both"]):
        datasets = opened(roots, names, windows=True)
        with Loader(datasets, order=Order.from_datasets(datasets, batch_size=4, seed=3)) as loader:
            (item,) = (item for item in loader.plan.items if item.name == "batches")
        assert item.bytes == (loader.plan.batches_ahead + 2) * 4 * (2 + 3) * 3 * written.SIDE**2


def test_loader_augments_no_black_images(roots: dict[str, Path]) -> None:
    seen: list[tuple[str, ...]] = []

    def lighter(pictures: dict[str, torch.Tensor], draws: SampleRng) -> None:
        seen.append(tuple(pictures))
        for picture in pictures.values():
            picture.clamp_(min=9)

    datasets = opened(roots, ["both", "one"])
    order = Order.from_datasets(datasets, batch_size=4, seed=3)
    with Loader(datasets, order=order, augment=lighter) as loader:
        batch = next(loader)
    missing = batch[f"{WRIST}_is_missing"]
    assert missing.any()
    assert not missing.all()
    assert not batch[WRIST][missing].any()
    assert (batch[WRIST][~missing].amin((1, 2, 3)) == 9).any() or (batch[FRONT] >= 9).all()
    assert {(FRONT,), (FRONT, WRIST)} == set(seen)


def test_mixture_of_several_image_sizes_needs_image_size(
    roots: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A camera of 64 x 64 in one source and 32 x 32 in another; and one that is absent in its own
    size.
    """
    datasets = opened(roots, ["both", "one"])
    small = half_size(tmp_path / "small", monkeypatch)
    datasets = [*datasets, small]
    order = Order.from_datasets(datasets, batch_size=6, seed=3, clip=4, lanes=6)
    with refused(
        f"'{FRONT}'",
        (3, 64, 64),
        "(both)",
        (3, 32, 32),
        "(small)",
        "image_size=(height, width)",
        kind=ValueError,
    ):
        Loader(datasets, order=order)
    for memory in (least_memory(*datasets, order=order, image_size=(24, 40)), LARGE):
        with Loader(datasets, order=order, image_size=(24, 40), memory=memory) as loader:
            for batch in (next(loader) for _ in range(8)):
                assert batch[FRONT].shape == (6, 3, 24, 40)
                assert batch[WRIST].shape == (6, 3, 24, 40)
                for row, (source, episode, frame) in enumerate(
                    zip(*order.locate(batch["position"].numpy()))
                ):
                    sample = datasets[source].sample(int(episode), int(frame))
                    for camera in (FRONT, WRIST):
                        out = np.empty((3, 24, 40), np.uint8)
                        AreaResize(*sample[camera].shape[1:], (24, 40))(sample[camera].numpy(), out)
                        assert np.array_equal(batch[camera][row].numpy(), out)


def half_size(root: Path, monkeypatch: pytest.MonkeyPatch) -> EpisodeDataset:
    full = written.picture
    with monkeypatch.context() as patch:
        patch.setattr(written, "SIDE", 32)
        patch.setattr(
            written, "picture", lambda *who: np.ascontiguousarray(full_picture(full, *who))
        )
        write_dataset(root, Spec(lengths=(8, 11), cameras=("observation.images.top",)))
    names = {FRONT: "observation.images.top"}
    absent = {WRIST: (48, 48)}
    return EpisodeDataset(
        root, {ACTION: [0.0, 0.1]}, names=names, missing_cameras=absent, keys=[ACTION, STATE, FRONT]
    )


def full_picture(make: Any, *who: int) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(written, "SIDE", 64)
        return make(*who)[::2, ::2]


def test_mixture_refuses_cameras_that_no_batch_combines(roots: dict[str, Path]) -> None:
    with refused(["observation.images.wrist"], "missing_cameras={camera: size}", kind=ValueError):
        Mixture.from_datasets(
            [
                *opened(roots, ["both"]),
                EpisodeDataset(
                    roots["one"],
                    {ACTION: [0.0, 0.1]},
                    names=NAMES["one"],
                    keys=[ACTION, STATE, FRONT],
                ),
            ]
        )
    for names in (["both", "stored"], ["stored", "none", "both"], ["none", "both", "stored"]):
        with refused(f"'{FRONT}'", "image", "video", kind=ValueError):
            Mixture.from_datasets(opened(roots, names))
    other = EpisodeDataset(
        roots["none"],
        {ACTION: [0.0, 0.1]},
        missing_cameras={FRONT: SIDES, WRIST: (8, 8)},
        keys=[ACTION, STATE],
    )
    with refused(
        f"'{WRIST}'", (3, 64, 64), (3, 8, 8), "image_size=(height, width)", kind=ValueError
    ):
        image_shapes([*opened(roots, ["both"]), other], None)
