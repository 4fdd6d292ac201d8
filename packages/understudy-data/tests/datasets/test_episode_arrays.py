"""EpisodeArrays: samples as numpy arrays equal the written data, and need no torch."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.testing.datasets import Spec, expected, identity, write_dataset

TOP = "observation.images.top"
PNG = "observation.images.png"
SECONDS = {"action": [0, 0.1, 0.5], TOP: [-0.1, 0.0]}
OFFSETS = {"action": [0, 1, 5], TOP: [-1, 0]}
NO_TORCH = """
import sys
sys.modules["torch"] = None
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.load import batch_mixing, choose_order
from understudy_data.load.images.source_facts import read_facts
data = EpisodeArrays(sys.argv[1])
print(data[0]["action"].shape, read_facts(data).gop)
"""


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_arrays_are_the_written_data(tmp_path: Path, version: str) -> None:
    spec = Spec(
        version=version, lengths=(5, 3, 7), ids=(0, 2, 5), images=(PNG,), rich=True, foreign=False
    )
    truth = write_dataset(tmp_path / "data", spec)
    data = EpisodeArrays(tmp_path / "data", SECONDS)
    assert len(data) == 15
    for number, (episode, frame) in enumerate(truth.frames):
        sample = data[number]
        wanted = expected(truth, episode, frame, OFFSETS)
        assert sample.keys() == wanted.keys()
        for key, value in wanted.items():
            if key in (TOP, PNG):
                pictures = sample[key].reshape(-1, 3, 64, 64)
                wanted_pictures = np.asarray(value).reshape(-1, 3).tolist()
                assert [list(identity(picture)) for picture in pictures] == wanted_pictures
            else:
                np.testing.assert_array_equal(sample[key], value, err_msg=key)


def test_transforms_get_arrays(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", Spec(foreign=False))
    data = EpisodeArrays(tmp_path / "data", image_transforms=lambda images: images[:, ::2])
    assert data[3][TOP].shape == (3, 32, 64)


def test_datasets_and_plans_need_no_torch(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", Spec(gop=3, foreign=False))
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH, str(tmp_path / "data")], capture_output=True, text=True
    )
    assert done.stdout == "(2,) 3\n", done.stderr


def test_recorded_frames_are_those_of_whole_episodes(tmp_path: Path) -> None:
    truth = write_dataset(tmp_path / "d", Spec(lengths=(6, 9), foreign=False))
    data = EpisodeArrays(tmp_path / "d", episodes=[1], drop_n_first_frames=4)
    values = data.recorded_values("action", 0)
    assert values.shape == (6, 2)
    assert np.array_equal(values, truth.rows[0]["action"])
    images = data.recorded_images().read(TOP, 0, np.array([0, 5]))
    assert [identity(image)[2] for image in images] == [0, 5]


def test_loss_runs_and_view_are_empty_without_either(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(6, 9), foreign=False))
    data = EpisodeArrays(tmp_path / "d")
    rows, factors = data.loss_runs()
    assert (rows.shape, factors.shape) == ((0, 2), (0,))
    assert data.view_record == ""
    assert data.prompt_names(data.catalog) == ["next.reward"]
