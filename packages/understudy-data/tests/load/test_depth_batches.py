"""Depth in the loader: the batches of the dataset, whatever the memory, resized by nearest
pixels.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.loader import Loader
from understudy_data.order import Order
from understudy_data.testing.batches import least_memory
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.depth import (
    DEPTH,
    HEIGHT,
    SCALE,
    WIDTH,
    add_depth_images,
    add_depth_video,
)
from understudy_data.video.color import AreaResize, ImageSize

TOP = "observation.images.top"
LENGTHS = (12, 8)
KINDS = ("quantized", "as stored", "images")


@pytest.fixture(scope="module", params=KINDS)
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("depth") / "set"
    write_dataset(path, Spec(lengths=LENGTHS, foreign=False))
    if request.param == "quantized":
        add_depth_video(path, LENGTHS, **SCALE)
    elif request.param == "as stored":
        add_depth_video(path, LENGTHS, "gray16le")
    else:
        add_depth_images(path)
    return path


def opened(root: Path) -> EpisodeDataset:
    return EpisodeDataset(root, {DEPTH: [-0.2, 0.0]})


def nearest(images: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Independent of the loader: the pixel whose center is nearest."""
    rows = [int((i + 0.5) * images.shape[-2] / size[0]) for i in range(size[0])]
    columns = [int((i + 0.5) * images.shape[-1] / size[1]) for i in range(size[1])]
    return torch.from_numpy(images.numpy()[..., rows, :][..., columns])


@pytest.mark.parametrize(
    ("size", "kept"),
    [(None, ""), ((17, 23), ""), ((17, 23), "in memory"), (None, "on disk"), ((17, 23), "on disk")],
)
def test_loader_depth_equals_the_datasets(
    root: Path, tmp_path: Path, size: tuple[int, int] | None, kept: str
) -> None:
    data = opened(root)
    order = Order.from_datasets([data], batch_size=4, seed=1, frames_in_flight=8)
    memory = "1GB" if kept else least_memory(data, order=order, image_size=size, num_threads=2)
    folder = tmp_path if kept == "on disk" else None
    loader = Loader(
        data, order=order, memory=memory, image_size=size, num_threads=2, decoded_cache=folder
    )
    assert any(loader.plan.keeps_decoded) == bool(kept)
    with loader:
        for first in range(0, 20, 4):
            batch = next(loader)
            _, episodes, frames = order.locate(np.arange(first, first + 4))
            wanted = data.batch(episodes, frames)
            own = wanted[DEPTH]
            if size is not None and DEPTH in data.video_keys:
                own = nearest(own, size)
            assert batch[DEPTH].dtype == own.dtype
            assert batch[DEPTH].shape == own.shape
            assert torch.equal(batch[DEPTH], own)
            assert batch[TOP].shape[1:] == (3, *(size or (64, 64)))


def test_loader_augments_no_depth(root: Path) -> None:
    seen: set[str] = set()
    data = opened(root)
    with Loader(data, batch_size=4, augment=lambda images, _: seen.update(images)) as loader:
        next(loader)
    assert seen == {TOP}


def test_loader_refuses_a_policys_resizing_for_depth(root: Path) -> None:
    if DEPTH not in opened(root).video_keys:
        pytest.skip("images in rows keep their size")
    size = ImageSize((24, 24), AreaResize(HEIGHT, WIDTH, (24, 24)))
    with (
        refused(where=None, fix="depth"),
        Loader(opened(root), batch_size=4, image_size=size) as loader,
    ):
        next(loader)


def test_loader_joins_depth_of_two_sources(root: Path, tmp_path: Path) -> None:
    (tmp_path / "twin").symlink_to(root)
    data = [opened(root), opened(tmp_path / "twin")]
    order = Order.from_datasets(data, batch_size=4, seed=1, frames_in_flight=8)
    with Loader(data, order=order) as loader:
        batch = next(loader)
    source, episodes, frames = order.locate(np.arange(4))
    for i in range(4):
        own = data[source[i]].sample(int(episodes[i]), int(frames[i]))
        assert torch.equal(batch[DEPTH][i], own[DEPTH])


def test_loader_refuses_sources_with_other_depth(tmp_path: Path) -> None:
    for name, kind in (("stored", "gray16le"), ("quantized", "gray12le")):
        write_dataset(tmp_path / name, Spec(lengths=LENGTHS, foreign=False))
        add_depth_video(tmp_path / name, LENGTHS, kind, **(SCALE if name == "quantized" else {}))
    with refused(repr(DEPTH), "uint16", "float32", kind=ValueError):
        Loader([tmp_path / "stored", tmp_path / "quantized"], batch_size=4)
