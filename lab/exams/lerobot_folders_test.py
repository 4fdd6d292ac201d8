"""Datasets that the tests of LeRobot write: every item of each, as `LeRobotDataset` and as
`EpisodeDataset` deliver it.

The tests of LeRobot run first and leave their folders. Their own results do not count.
"""

import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest
from lerobot.datasets.lerobot_dataset import LeRobotDataset

import understudy as us
from lerobot_items import differences
from shared import publish
from understudy_base import UnderstudyError

WRITTEN = Path("written")
WRITERS = (
    "dataset_reader",
    "dataset_metadata",
    "dataset_writer",
    "lerobot_dataset",
    "datasets",
    "depth",
    "aggregate",
    "streaming",
    "quantiles_dataset_integration",
    "dataset_tools",
)
"""Test files of LeRobot that write datasets."""
VERDICTS: Counter[str] = Counter()


def folders() -> list[Path]:
    """Folders of datasets below the temporary folders of LeRobot's tests, which run now if there
    are none.
    """
    if not WRITTEN.exists():
        files = [f"tests/datasets/test_{name}.py" for name in WRITERS]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            *files,
            f"--basetemp={WRITTEN}",
            "--timeout=300",
        ]
        command += ["-o", "tmp_path_retention_policy=all"]
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")
        }
        with Path("written.log").open("w") as log:
            subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
    return sorted(
        {path.parents[1].relative_to(WRITTEN) for path in WRITTEN.rglob("meta/info.json")}
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("folder", folders(), ids=str)


def open_theirs(root: Path) -> LeRobotDataset | None:
    """Open a folder with LeRobot; None where it refuses it."""
    try:
        dataset = LeRobotDataset("exam/folder", root=root)
        dataset[0]
        return dataset
    except Exception:
        return None


def open_ours(root: Path) -> us.EpisodeDataset:
    """Open a folder with depth in LeRobot's unit, or as stored where it is none; the first item is
    read.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            dataset = us.EpisodeDataset(root, depth_unit="mm")
            dataset[0]
        except UnderstudyError:
            dataset = us.EpisodeDataset(root)
            dataset[0]
    return dataset


def test_items_are_equal(folder: Path) -> None:
    root = WRITTEN / folder
    if json.loads((root / "meta/info.json").read_text()).get("total_frames") == 0:
        VERDICTS["without a frame"] += 1
        pytest.skip("no frame to compare")
    theirs = open_theirs(root)
    try:
        ours = open_ours(root)
    except UnderstudyError:
        VERDICTS["refused by both" if theirs is None else "refused by understudy alone"] += 1
        if theirs is None:
            return
        raise
    if theirs is None:
        VERDICTS["refused by LeRobot alone"] += 1
        for index in range(len(ours)):
            ours[index]
        return
    found = differences(root, theirs, ours)
    VERDICTS["different" if found else "equal"] += 1
    assert not found, "\n".join(found[:10])


def teardown_module() -> None:
    total = sum(VERDICTS.values())
    figures = ", ".join(f"{count} {verdict}" for verdict, count in VERDICTS.most_common())
    publish([f"{total} folders: {figures}."])
