"""`understudy segment`: cuts at times, by text and at pauses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_base import DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_tools.edit.plan import cut_at_pauses
from understudy_tools.motion import IdleRule
from understudy_tools.testing.edited import assert_equal_frames, edit, episode, segment

CAMERA = "observation.images.top"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes of 12 and 8 frames at 10 fps, a key frame every 2; the task of the second
    changes at frame 4.
    """
    root = tmp_path_factory.mktemp("source") / "v30"
    write_dataset(root, Spec("v3.0", lengths=(12, 8)))
    return root


def origins(root: Path) -> list[list[int]]:
    """[episode id, start, stop] of each episode of an edited dataset."""
    return [entry[1:] for entry in json.loads((root / "meta/edit.json").read_text())["episodes"]]


@pytest.mark.parametrize(
    ("times", "unit", "cuts"),
    [
        ({"0": [0.4, 0.6]}, "seconds", [[0, 0, 4], [0, 4, 6], [0, 6, 12]]),
        ({"1": [[2, 4], [4, 8]], "0": [[6, 12]]}, "frames", [[0, 6, 12], [1, 2, 4], [1, 4, 8]]),
    ],
)
def test_segment_at_times_copies_frames_to_the_bit(
    times: dict[str, Any], unit: str, cuts: list[list[int]], source: Path, tmp_path: Path
) -> None:
    (tmp_path / "times.json").write_text(json.dumps(times))
    written = segment(source, tmp_path / "out", times=str(tmp_path / "times.json"), unit=unit)
    assert origins(tmp_path / "out") == cuts
    assert written.videos[CAMERA].encoded == []
    for number, (before, start, stop) in enumerate(cuts):
        assert_equal_frames(
            episode(tmp_path / "out", number), episode(source, before), slice(start, stop)
        )


@pytest.mark.parametrize(
    "times",
    [{"0": [[0, 5], [4, 8]]}, {"0": [[3, 3]]}, {"0": [13]}, {"0": ["a"]}, {"7": [1], "0": [1]}],
)
def test_segment_refuses_times_that_are_no_segments(
    times: dict[str, Any], source: Path, tmp_path: Path
) -> None:
    (tmp_path / "times.json").write_text(json.dumps(times))
    with refused(next(iter(times)), where="times.json"):
        segment(source, tmp_path / "out", times=str(tmp_path / "times.json"), unit="frames")
    assert not (tmp_path / "out").exists()


def test_segment_by_text_makes_the_text_the_task(source: Path, tmp_path: Path) -> None:
    lines = "episode,start,end,subtask\n0,0,0.4,reach\n0,0.4,0.8,grasp\n1,0.2,,lift\n"
    (tmp_path / "steps.csv").write_text(lines)
    segment(source, tmp_path / "out", subtasks=str(tmp_path / "steps.csv"), task_from_text=True)
    assert origins(tmp_path / "out") == [[0, 0, 4], [0, 4, 8], [1, 2, 8]]
    assert [set(episode(tmp_path / "out", number)["task"]) for number in range(3)] == [
        {"reach"},
        {"grasp"},
        {"lift"},
    ]
    edit(source, tmp_path / "named", subtasks=str(tmp_path / "steps.csv"))
    segment(tmp_path / "named", tmp_path / "again", by="subtask", min_frames=5)
    assert origins(tmp_path / "again") == [[1, 2, 8]]
    segment(source, tmp_path / "tasks", by="task")
    assert origins(tmp_path / "tasks") == [[0, 0, 12], [1, 0, 4], [1, 4, 8]]


def test_segment_cuts_at_pauses_and_leaves_them_out(tmp_path: Path) -> None:
    features = {
        "action": {"dtype": "float32", "shape": (1,)},
        "reward": {"dtype": "float32", "shape": (1,)},
    }
    with EpisodeWriter(tmp_path / "source", fps=10, features=features) as writer:
        for frame in range(40):
            moving = frame < 12 or frame >= 28
            writer.add_frame(
                {"action": np.float32(frame if moving else 11), "reward": np.float32(frame)},
                task="go",
            )
        writer.save_episode()
    segment(tmp_path / "source", tmp_path / "out", by="pauses", min_idle=5)
    # the first frames of a pause stay
    assert origins(tmp_path / "out") == [[0, 0, 17], [0, 28, 40]]
    with refused(where="source", fix="--min-idle"):
        segment(tmp_path / "source", tmp_path / "copy", by="pauses", min_idle=39)
    assert not (tmp_path / "copy").exists()
    with pytest.warns(UserWarning, match="1 episodes"):
        segment(tmp_path / "source", tmp_path / "copy", by="task")
    catalog = Catalog.open(tmp_path / "source")
    with pytest.raises(DatasetError, match="joint"):
        cut_at_pauses(catalog, 0, ["joint"], IdleRule())
