"""Images as 4:2:0 planes: the colors of the CPU's way, half the bytes, and clear refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import understudy as us
from support.datasets import SIDE, Spec, write_dataset
from support.runs import series, tiny_config, tiny_dataset
from understudy.config.train import LoaderConfig
from understudy.errors import DatasetError
from understudy.load.images.planes import PlanePacker, packed_shape, planes_to_rgb
from understudy.train import run
from understudy.video.color import Converter
from understudy.video.native.swscale import make_noise

SPACES = [(2, 0), (1, 1), (5, 1), (6, 2), (9, 2), (7, 1), (4, 1)]


@pytest.mark.parametrize(("space", "range_"), SPACES)
@pytest.mark.parametrize("size", [(32, 48), (50, 70)])
def test_colors_are_those_of_the_cpu(size: tuple[int, int], space: int, range_: int) -> None:
    frame = make_noise("yuv420p", *size)
    frame.colorspace, frame.color_range = space, range_
    wanted, packed = np.empty((3, *size), np.uint8), np.zeros((2, *packed_shape(*size)), np.uint8)
    Converter().write(frame, wanted)
    PlanePacker().write_all([frame], [1], packed)
    found = planes_to_rgb(torch.from_numpy(packed)).numpy().astype(int)
    assert np.abs(found[1] - wanted).max() <= 1
    assert not found[0].any()  # a missing image is black
    assert packed[0].nbytes == wanted.nbytes // 2 + size[1]


def test_resized_colors_are_within_one_level() -> None:
    frame = make_noise("yuv420p", 50, 70)
    wanted, packed = np.empty((3, 16, 24), np.uint8), np.empty(packed_shape(50, 70), np.uint8)
    Converter((16, 24)).write(frame, wanted)
    PlanePacker().write(frame, packed)
    found = planes_to_rgb(torch.from_numpy(packed)[None, None], (16, 24))
    assert found.shape == (1, 1, 3, 16, 24)
    assert np.abs(found[0, 0].numpy().astype(int) - wanted).max() <= 1


def test_other_pixel_formats_are_refused_by_name() -> None:
    with pytest.raises(DatasetError) as caught:
        PlanePacker().write(make_noise("yuv444p", 16, 16), np.empty(packed_shape(16, 16), np.uint8))
    assert "yuv444p" in caught.value.what


def test_odd_sides_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="17x16"):
        packed_shape(16, 17)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("planes") / "set"
    write_dataset(root, Spec(lengths=(9, 7, 11), gop=4, cameras=("observation.images.a", "observation.images.b")))
    return root


def batches(data: Any, count: int = 4, **options: Any) -> list[dict[str, Any]]:
    chosen = {} if "order" in options else {"batch_size": 4, "seed": 1}
    with us.Loader(data, **chosen, **options) as loader:
        return [
            {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in next(loader).items()} for _ in range(count)
        ]


@pytest.mark.parametrize("size", [None, (12, 10)])
def test_batches_are_those_of_rgb(data: Path, size: tuple[int, int] | None) -> None:
    options: dict[str, Any] = {"image_size": size, "delta_timestamps": {"observation.images.b": [-0.1, 0.0]}}
    options["order"] = us.Loader(data, batch_size=4, seed=1, **options).order  # planes would have another
    for rgb, yuv in zip(*(batches(data, colors=colors, **options) for colors in ("rgb", "yuv")), strict=True):
        assert rgb.keys() == yuv.keys()
        for key, value in rgb.items():
            if key in ("observation.images.a", "observation.images.b"):
                assert yuv[key].dtype == torch.uint8
                assert yuv[key].shape == value.shape
                assert (yuv[key].int() - value.int()).abs().max() <= 1
            else:
                assert torch.equal(yuv[key], value) if isinstance(value, torch.Tensor) else yuv[key] == value


def test_unfit_arguments_are_refused(data: Path) -> None:
    for options in ({"colors": "hsv"}, {"colors": "yuv", "augment": lambda images, rng: None}):
        with pytest.raises(ValueError, match="colors"):
            batches(data, 1, **options)
    with pytest.raises(ValueError, match="torchcodec"):
        batches(data, 1, colors="yuv", video_backend="torchcodec")


def test_planes_without_a_gpu_are_warned_of(data: Path, recwarn: pytest.WarningsRecorder) -> None:
    batches(data, 1, colors="rgb")
    assert not [each for each in recwarn if "colors" in str(each.message)]
    with pytest.warns(UserWarning, match="colors"):
        batches(data, 1, colors="yuv")


def test_run_with_planes_is_the_run_with_rgb(tmp_path: Path) -> None:
    """Images have the network's size, so the losses are equal. Validation and contract read RGB in both runs."""
    root = tiny_dataset(tmp_path / "data")
    for colors in ("rgb", "yuv"):
        config = tiny_config(root, tmp_path / colors, steps=3, val={"every": 3}, policy={"image_size": (SIDE, SIDE)})
        changed = tiny_config(root, tmp_path / colors, loader=LoaderConfig(num_threads=1, colors=colors))  # type: ignore[arg-type]
        uniform = replace(config.data, shuffle="uniform")  # planes would have another order
        assert run.train(replace(config, loader=changed.loader, data=uniform)) == run.DONE
    for kind in ("train", "val"):
        losses = [[record["loss"] for record in series(tmp_path / colors, kind)] for colors in ("rgb", "yuv")]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)
        assert len(losses[0]) >= 1
    for file in ("normalisation.json", "contract.json"):
        assert (tmp_path / "rgb" / "policy" / file).stat().st_size == (
            tmp_path / "yuv" / "policy" / file
        ).stat().st_size
