"""The torchcodec backend returns the images of the PyAV backend, to the bit; without it, one clear
error.

torchcodec brings no FFmpeg. Where the system has none, the libraries in PyAV's wheel are linked
under their plain names in a folder on LD_LIBRARY_PATH. It must be set before the process starts, so
the comparison runs in its own process.
"""

import importlib.util
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import av
import pytest

from understudy_base.testing.refusals import refused
from understudy_data.testing.videos import (
    KINDS,
    QUARTER_TURNS,
    insert_in_entry,
    set_matrix,
    write_video,
)
from understudy_data.video.reader import open_video

_COMPARE = """
import pickle, sys
import numpy as np
from understudy_data.video.reader import open_video
try:
    import torchcodec.decoders
except RuntimeError as error:
    print("torchcodec does not load:", str(error).strip().splitlines()[0])
    sys.exit(75)
rng = np.random.default_rng(0)
for path in sys.argv[1:]:
    ours = open_video(path)
    theirs = pickle.loads(pickle.dumps(open_video(path, backend="torchcodec")))
    for name in ("count", "height", "width", "fps", "codec", "gop"):
        assert getattr(ours, name) == getattr(theirs, name), (path, name)
    first = np.arange(min(ours.count, 60))
    orders = [first, rng.permutation(ours.count)[:20], np.array([3, 3, 0, 3])]
    for order in orders:
        assert np.array_equal(ours.read(order), theirs.read(order)), (path, order)
    assert theirs.read(np.array([], np.int64)).shape == (0, ours.height, ours.width, 3)
    try:
        theirs.read(np.array([ours.count]))
    except IndexError:
        pass
    else:
        raise AssertionError("an image outside was returned")
    cursor = theirs.cursor()
    assert (cursor.position, theirs.gops.key_frames.tolist()) == (-1, ours.gops.key_frames.tolist())
    for wanted in (np.arange(min(ours.count, 5)), np.array([1, 3])):
        images = [image for run in cursor.runs(wanted, 2) for image in run]
        assert np.array_equal(np.stack(images), ours.read(wanted)), path
        assert cursor.position == wanted[-1] + 1
        cursor.park()
        assert cursor.position == -1
    theirs.close()
    assert np.array_equal(ours.read(np.array([1])), theirs.read(np.array([1])))
print("equal:", len(sys.argv) - 1)
"""


def _bundled_ffmpeg(folder: Path) -> bool:
    """Link PyAV's own FFmpeg libraries into `folder` under the names that torchcodec searches."""
    bundled = Path(av.__file__).parent.parent / "av.libs"
    for library in bundled.glob("*.so*") if bundled.is_dir() else []:
        (folder / library.name).symlink_to(library)
        plain = re.fullmatch(r"(lib(?:av|sw)\w+)-[0-9a-f]+\.so\.(\d+)[.\d]*", library.name)
        if plain:
            (folder / f"{plain[1]}.so.{plain[2]}").symlink_to(library)
    return any(folder.iterdir())


@pytest.mark.long
def test_torchcodec_equals_pyav(tmp_path: Path) -> None:
    if importlib.util.find_spec("torchcodec") is None:
        pytest.skip("torchcodec is not installed")
    left_out = {"h264-refresh"}
    if tuple(map(int, version("torchcodec").split(".")[:2])) < (
        0,
        13,
    ):  # 0.11.1 gives another frame now and then: 51 of 4,800 in a random sequence
        left_out |= {"hevc-open"}
    paths = [write_video(tmp_path / f"{kind}.mp4", kind) for kind in KINDS if kind not in left_out]
    # no multiple of 32
    paths.append(write_video(tmp_path / "wide.mp4", "h264-gop2", height=46, width=90))
    paths += [
        set_matrix(write_video(tmp_path / f"turned-{name}.mp4", "h264-bframes"), matrix)
        for name, matrix in {**QUARTER_TURNS, "mirrored": (-1 << 16, 0, 0, 0, 1 << 16, 0)}.items()
    ]
    paths.append(
        set_matrix(
            write_video(tmp_path / "odd.mp4", "av1-gop2", height=46, width=90), QUARTER_TURNS[1]
        )
    )
    paths.append(write_video(tmp_path / "colors.mp4", "h264-gop2"))
    insert_in_entry(paths[-1], b"\0\0\0\x13colrnclx\0\x01\0\x01\0\x01\0")
    paths += sorted(
        Path(os.environ.get("UNDERSTUDY_TEST_DATA", tmp_path)).glob(
            "*/videos/**/episode_000001.mp4"
        )
    )
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if _bundled_ffmpeg(libraries):
        environment["LD_LIBRARY_PATH"] = f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    command = [sys.executable, "-c", _COMPARE, *map(str, paths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 75:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["equal:", str(len(paths))]


@pytest.mark.parametrize(
    "error", [ImportError("No module named 'torchcodec'"), RuntimeError("Could not load\nlib")]
)
def test_torchcodec_missing(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name.startswith("torchcodec"):
                raise error

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    for name in [name for name in sys.modules if name.startswith("torchcodec")]:
        monkeypatch.delitem(sys.modules, name)
    path = write_video(tmp_path / "clip.mp4", "h264-gop2", 4)
    with refused("video_backend='torchcodec'", fix="understudy-data[torchcodec]") as raised:
        open_video(path, backend="torchcodec")
    assert "understudy-data[torchcodec]" in raised.value.fix
    assert open_video(path).count == 4  # the default works without it
