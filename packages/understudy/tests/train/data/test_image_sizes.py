"""Sources whose images differ in size: a policy that keeps the aspect ratio keeps it in a mixture,
too.
"""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from understudy.config.train import TrainConfig
from understudy.policies.common.images import letterbox, write_letterbox
from understudy.policies.flow.config import FlowSettings
from understudy.policies.pi05.config import Pi05Settings
from understudy.testing.mixtures import TOP, mixed
from understudy.train.data.run_data import RunData, open_data
from understudy_base import DatasetError
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.load.loader import Loader
from understudy_data.load.validation_data import ValidationData
from understudy_data.video.color import ImageSize
from understudy_kit import SourceConfig

# height, width; multiples, so that nothing is rounded
SIZES = {"tall": (128, 96), "wide": (96, 192)}
SIDE = 64


def disc(height: int, width: int) -> np.ndarray:
    """A white disc in the middle of a grey image, uint8 [H, W, 3]."""
    y, x = np.mgrid[:height, :width]
    inside = (y - (height - 1) / 2) ** 2 + (x - (width - 1) / 2) ** 2 < 40**2
    return np.repeat(np.where(inside, 235, 60).astype(np.uint8)[..., None], 3, axis=2)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SourceConfig]:
    root = tmp_path_factory.mktemp("sizes")
    rng = np.random.default_rng(0)
    for name, size in SIZES.items():
        vectors = {
            key: {"dtype": "float32", "shape": (2,)} for key in ("action", "observation.state")
        }
        features = {TOP: {"dtype": "video", "shape": (*size, 3)}, **vectors}
        with EpisodeWriter(root / name, fps=10, features=features, codec="libx264") as writer:
            for _ in range(4):
                for _ in range(6):
                    numbers = {key: rng.normal(0, 1, 2).astype(np.float32) for key in vectors}
                    writer.add_frame({TOP: disc(*size), **numbers}, task="push")
                writer.save_episode()
    return {name: SourceConfig(str(root / name), name, "joint", name=name) for name in SIZES}


def settings(*chosen: SourceConfig, policy: Any) -> TrainConfig:
    config = mixed(chosen, Path("nowhere"))
    return replace(config, policy=policy, data=replace(config.data, val_fraction=0.25))


def images(config: TrainConfig, data: RunData) -> dict[tuple[str, int, int], Tensor]:
    """Images that a loader gives, by (source, episode, frame)."""
    found = {}
    with Loader(
        data.training, order=data.order(config), num_threads=2, image_size=data.size
    ) as loader:
        for _, batch in zip(range(8), loader):
            numbers = zip(
                batch["source"].tolist(),
                batch["episode_index"].tolist(),
                batch["frame_index"].tolist(),
            )
            for row, (source, episode, frame) in enumerate(numbers):
                found[data.names[source], episode, frame] = batch[TOP][row]
    return found


def extent(image: Tensor) -> tuple[int, int]:
    """Height and width of the disc in a float image [3, H, W] of -1..1."""
    bright = image.mean(dim=0) > 0.2
    return int(bright.any(dim=1).sum()), int(bright.any(dim=0).sum())


PI05 = Pi05Settings(size="tiny")
FLOW = FlowSettings(image_size=(SIDE, SIDE))


def test_a_disc_of_each_source_stays_round(sources: dict[str, SourceConfig]) -> None:
    """Each image of a mixture is to the bit that of its source alone; control: area averaging
    squashes the disc.
    """
    config = settings(*sources.values(), policy=PI05)
    data = open_data(config)
    assert data.size == (SIDE, SIDE)
    together = {key: letterbox(image[None], SIDE)[0] for key, image in images(config, data).items()}
    for name, source in sources.items():
        single = settings(source, policy=PI05)
        alone_data = open_data(single)
        assert alone_data.size is None
        alone = {
            key: letterbox(image[None], SIDE)[0]
            for key, image in images(single, alone_data).items()
        }
        shared = {key for key in together if key[0] == name} & alone.keys()
        assert len(shared) > 5
        for key in shared:
            assert torch.equal(together[key], alone[key])
            height, width = extent(together[key])
            assert abs(height - width) <= 1
            assert height > 24
    squashed = settings(*sources.values(), policy=FLOW)
    for image in images(squashed, open_data(squashed)).values():
        height, width = extent(image / 127.5 - 1)
        assert abs(height - width) > 10


def test_validation_images_are_those_of_the_loader(sources: dict[str, SourceConfig]) -> None:
    data = open_data(settings(*sources.values(), policy=PI05))
    found = ValidationData.from_sources(data, mixed=True)
    assert found is not None
    for held in (found, found.keep_decoded(1 << 30)):
        for at in range(len(found)):
            batch = held.batch(slice(at, at + 1))
            own = data.validation[int(found.numbers[found.source[at]])]
            assert own is not None
            raw = own.sample(int(found.episode[at]), int(found.frame[at]))[TOP]
            assert raw.shape[1:] in SIZES.values()
            assert batch[TOP].shape == (1, 3, SIDE, SIDE)
            assert torch.equal(letterbox(batch[TOP], SIDE), letterbox(raw[None], SIDE))


def test_stored_images_of_another_size_are_refused(
    sources: dict[str, SourceConfig], tmp_path: Path
) -> None:
    features = {TOP: {"dtype": "image", "shape": (96, 96, 3)}}
    features |= {
        key: {"dtype": "float32", "shape": (2,)} for key in ("action", "observation.state")
    }
    with EpisodeWriter(tmp_path / "rows", fps=10, features=features) as writer:
        for _ in range(2):
            for _ in range(4):
                zeros = {key: np.zeros(2, np.float32) for key in ("action", "observation.state")}
                writer.add_frame({TOP: disc(96, 96), **zeros}, task="push")
            writer.save_episode()
    stored = SourceConfig(str(tmp_path / "rows"), "rows", "joint", name="rows")
    with pytest.raises(DatasetError) as caught:
        open_data(settings(*sources.values(), stored, policy=PI05))
    assert TOP in str(caught.value)
    # which follows from the size of the network
    assert "policy.image_size" not in str(caught.value)


@pytest.mark.parametrize("size", [(48, 64), (64, 48), (97, 31), (20, 20), (SIDE, SIDE)])
def test_written_letterbox_is_the_letterbox(size: tuple[int, int]) -> None:
    image = torch.randint(
        0, 256, (3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    out = np.empty((3, SIDE, SIDE), np.uint8)
    write_letterbox(image.numpy(), out)
    assert torch.equal(letterbox(torch.from_numpy(out)[None], SIDE), letterbox(image[None], SIDE))
    with pytest.raises(ValueError, match="square"):
        write_letterbox(image.numpy(), np.empty((3, SIDE, 32), np.uint8))


def test_image_size_survives_pickle() -> None:
    size = pickle.loads(pickle.dumps(ImageSize((48, 64), write_letterbox)))
    assert (size, size.resize) == ((48, 64), write_letterbox)
