"""`understudy import` as a command: refusals, kills, proposals, video."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rosbags", reason="needs the extra `import`")

from understudy_base import create_folder
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_kit import main
from understudy_tools.testing.bags import Bag, pixels

KILLED = """
import os, signal, sys
left = int(sys.argv.pop(1))
def hook(event, arguments):
    global left
    if event in ("os.rename", "os.mkdir", "os.remove"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
from understudy_kit.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
MAPPING = (
    "fps: 10\ntask: pick\nfeatures:\n  observation.images.a: /cam/image_raw\n"
    "  action: {stream: /a, field: data}\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("bag 0", "bag 1"):
        with Bag(tmp_path / name) as bag:
            for i in range(12):
                bag.image("/cam/image_raw", i / 10, pixels(i))
                bag.number("/a", i / 10, i)
                bag.number("/other", i / 10, i)
    (tmp_path / "map.yaml").write_text(MAPPING)
    return tmp_path


def words(folder: Path, *more: str) -> list[str]:
    return [
        "import",
        *(str(folder / name) for name in ("bag 0", "bag 1", "out")),
        "--mapping",
        str(folder / "map.yaml"),
        *more,
    ]


def content(folder: Path) -> dict[str, bytes]:
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return {name: data for name, data in files.items() if name != "meta/import.json"}


@pytest.mark.long
def test_import_killed_at_any_change_leaves_nothing_that_looks_finished(folder: Path) -> None:
    assert main(words(folder)) == 0
    expected = content(folder / "out")
    (folder / "out").rename(folder / "whole")
    ends = []
    for change in (0, 2, 5, 9, 14, 20, 27, 35, 44):
        process = subprocess.run(
            [sys.executable, "-c", KILLED, str(change), *words(folder)], capture_output=True
        )
        ends.append(process.returncode)
        assert process.returncode in (0, -signal.SIGKILL), process.stderr.decode()
        if process.returncode == 0:
            break
        if (folder / "out").exists():  # after the last rename
            break
        visible = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
        assert sorted(visible) == ["bag 0", "bag 1", "map.yaml", "whole"]
    assert ends.count(-signal.SIGKILL) >= 5
    if not (folder / "out").exists():
        assert main(words(folder)) == 0
    assert content(folder / "out") == expected
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_import_refuses_outputs_that_exist_or_lie_in_a_source(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "out").mkdir()
    (folder / "out/mine").write_text("mine")
    before = content(folder)
    assert main(words(folder)) == 2
    bag = str(folder / "bag 0")
    assert main(["import", bag, bag, "--mapping", str(folder / "map.yaml")]) == 2
    assert main(["import", bag, f"{bag}/out", "--mapping", str(folder / "map.yaml")]) == 2
    assert main(["import", bag, str(folder / "new")]) == 2  # a bag needs a mapping
    assert main(["import", str(folder / "nowhere"), str(folder / "new")]) == 2
    assert content(folder) == before


def test_import_writes_video_that_decodes_to_the_images(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(folder, "--codec", "libx264", "--crf", "10", "--json")) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["counts"], facts["unused_streams"]) == ({"episodes": 2, "frames": 24}, ["/other"])
    data = EpisodeArrays(folder / "out")
    for frame in range(12):
        sample = data.sample(episode=1, frame=frame)
        image = sample["observation.images.a"].transpose(1, 2, 0).astype(int)
        # also neither mirrored nor with exchanged colors
        assert np.abs(image - pixels(frame)).mean() < 4
        assert sample["action"].item() == frame


def test_lerobot_reads_an_import(folder: Path) -> None:
    lerobot = pytest.importorskip(
        "lerobot.datasets.lerobot_dataset", reason="needs the extra `lerobot`"
    )
    assert main(words(folder, "--storage", "image")) == 0
    data = lerobot.LeRobotDataset("me/imported", root=folder / "out")
    assert (data.num_episodes, data.num_frames, data.meta.fps) == (2, 24, 10)
    for number in range(24):
        sample = data[number]
        image = (sample["observation.images.a"].numpy() * 255).round().astype(np.uint8)
        np.testing.assert_array_equal(image.transpose(1, 2, 0), pixels(number % 12))
        assert sample["action"].item() == number % 12
        assert sample["source.age_ns"].tolist() == [0, 0]
        assert sample["task"] == "pick"


def test_import_proposes_a_mapping_that_it_reads(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(folder / "bag 0"), "--propose"]) == 0
    text = capsys.readouterr().out
    assert "/other" in text
    (folder / "map.yaml").write_text(text)
    assert main(words(folder, "--task", "pick")) == 0
    assert (
        "observation.images.cam"
        in json.loads((folder / "out/meta/info.json").read_text())["features"]
    )


def test_import_lists_all_errors_of_a_mapping(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "map.yaml").write_text("fps: 0\nclock: wall\nfeaturs: {}\n")
    assert main(words(folder)) == 2
    message = capsys.readouterr().err
    assert all(name in message for name in ("fps", "clock", "featurs"))
    assert not (folder / "out").exists()


@pytest.mark.long
def test_import_needs_memory_for_an_episode_and_not_for_its_images(tmp_path: Path) -> None:
    """A bag of 150 MB, of which at most a few images are in memory."""
    frame = np.random.default_rng(0).integers(0, 255, (240, 320, 3), np.uint8)
    with Bag(tmp_path / "bag") as bag:
        for i in range(650):
            bag.image("/cam/image_raw", i / 10, frame)
            bag.number("/a", i / 10, i)
    (tmp_path / "map.yaml").write_text(MAPPING)
    code = """
import sys
import understudy_tools.imports.write, rosbags.highlevel, PIL.Image
from understudy_data.testing.peak_memory import peak_bytes, start_peak
from understudy_kit.cli.main import main
before = start_peak()
assert main(sys.argv[1:]) == 0
print((peak_bytes() - before) / 1e6)
"""
    arguments = [
        "import",
        str(tmp_path / "bag"),
        str(tmp_path / "out"),
        "--mapping",
        str(tmp_path / "map.yaml"),
    ]
    arguments += ["--codec", "libx264"]
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    grown = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment
    )
    assert grown.returncode == 0, grown.stderr
    assert float(grown.stdout.splitlines()[-1]) < 110


def test_import_beside_another_one_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with create_folder(folder / "out") as other:
        (other / "mine").write_text("first")
        assert main(words(folder)) == 2
    assert str(folder / "out") in capsys.readouterr().err
    assert [path.name for path in (folder / "out").iterdir()] == ["mine"]
