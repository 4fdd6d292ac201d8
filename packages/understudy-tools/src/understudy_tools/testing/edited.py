"""Edited datasets, and the comparison of episodes between two datasets."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from understudy_data import Catalog, EpisodeArrays, Workers
from understudy_tools.cli.edit import EditConfig, SegmentConfig, make_plan, make_plans
from understudy_tools.edit.write_set import Written, write_outputs

RENUMBERED = ("index", "episode_index", "frame_index", "timestamp", "task_index")


def edit(*paths: Path, workers: Workers | None = None, **settings: Any) -> dict[str, Written]:
    """Run `understudy edit` without its command line."""
    config = EditConfig(paths=tuple(map(str, paths)), **settings)
    assert config.problems() == []
    plans = make_plans(config, [Catalog.open(path) for path in paths[:-1]], paths[-1])
    return write_outputs(plans, paths[-1], ["understudy", "edit"], workers)


def segment(source: Path, out: Path, **settings: Any) -> Written:
    """Run `understudy segment` without its command line."""
    config = SegmentConfig(paths=(str(source), str(out)), **settings)
    assert config.problems() == []
    return write_outputs(
        {"": make_plan(config, Catalog.open(source), out)}, out, ["understudy", "segment"]
    )[""]


def episode(root: Path, number: int) -> dict[str, Any]:
    """All columns, tasks and images of an episode, in the order of its frames."""
    data = EpisodeArrays(root)
    length = int(data.catalog.episodes.lengths[data.catalog.episodes.row_of(number)])
    return data.batch(np.full(length, number), np.arange(length))


def content(root: Path) -> dict[str, bytes]:
    """All files but the origin, which has the command."""
    files = {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    assert not [name for name in files if "/." in f"/{name}"]
    origin = json.loads(files.pop("meta/edit.json"))
    del origin["command"]
    return files | {"origin": json.dumps(origin).encode()}


def assert_equal_frames(
    now: dict[str, Any], before: dict[str, Any], frames: slice = slice(None)
) -> None:
    """Compare an edited episode with frames of a source episode to the bit, all but the
    numbering.
    """
    assert now.keys() == before.keys()
    for key in before.keys() - set(RENUMBERED):
        wanted = before[key][frames]
        if isinstance(wanted, np.ndarray):
            assert now[key].dtype == wanted.dtype, key
            assert now[key].shape == wanted.shape, key
            assert now[key].tobytes() == wanted.tobytes(), key
        else:
            assert now[key] == wanted, key
    assert now["frame_index"].tolist() == list(range(len(now["frame_index"])))
