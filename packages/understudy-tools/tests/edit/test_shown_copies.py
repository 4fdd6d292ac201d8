"""Videos whose containers say how they are shown, in copies and encodings; containers without a
plain MP4 index.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.videos import (
    QUARTER_TURNS,
    insert_in_entry,
    moving_pictures,
    set_matrix,
)
from understudy_data.video.reader import open_video
from understudy_tools.check.examine import check_dataset
from understudy_tools.cli.edit import describe, format_summary
from understudy_tools.testing.edited import edit, episode, segment

CAMERA = "observation.images.top"


def _videos(root: Path) -> list[Path]:
    return sorted((root / "videos").rglob("*.mp4"))


@pytest.fixture
def turned(tmp_path: Path) -> Path:
    """Four episodes of 8 frames, 48 high and 64 wide as coded, each turned another way."""
    root = tmp_path / "turned"
    write_dataset(root, Spec("v2.1", lengths=(8, 8, 8, 8), gop=4))
    for turns, path in enumerate(_videos(root)):
        _film(path, "mp4", turns)
        set_matrix(path, QUARTER_TURNS[turns])
    return root


def _film(path: Path, form: str, seed: int, options: dict[str, str] | None = None) -> None:
    with av.open(str(path), "w", format=form, options=options or {}) as out:
        stream = out.add_stream("libx264", rate=10, options={"g": "4", "bf": "0", "crf": "10"})
        stream.height = 64
        stream.width = 64
        stream.pix_fmt = "yuv420p"
        for picture in moving_pictures(8, 64, 64, seed):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode(None))


def test_edit_copies_turned_videos_with_their_matrix(turned: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    written = edit(turned, out)[""]
    assert written.videos[CAMERA].encoded == []
    assert len(_videos(out)) == 4
    assert {open_video(path).shown.turns for path in _videos(out)} == {0, 1, 2, 3}
    for number in range(4):
        assert np.array_equal(episode(out, number)[CAMERA], episode(turned, number)[CAMERA])
    stats = json.loads((out / "meta/stats.json").read_text())[CAMERA]
    images = np.concatenate([episode(turned, number)[CAMERA] for number in range(4)])
    assert np.allclose(np.ravel(stats["mean"]), images.mean((0, 2, 3)) / 255, rtol=0, atol=1e-12)


@pytest.mark.parametrize("settings", [{"gop": 2}, {"size": "32x48"}, {"drop_n_first_frames": 1}])
def test_edit_encodes_turned_videos_upright(
    turned: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    edit(turned, out, **settings)
    assert {open_video(path).shown.turns for path in _videos(out)} == {0}
    if "size" not in settings:
        first = settings.get("drop_n_first_frames", 0)
        for number in range(4):
            now = episode(out, number)[CAMERA]
            before = episode(turned, number)[CAMERA][first:]
            assert np.abs(now.astype(int) - before).mean() < 12
    else:
        assert EpisodeArrays(out)[0][CAMERA].shape == (3, 48, 32)


@pytest.mark.parametrize(
    "box", [b"\0\0\0\x10pasp\0\0\0\x04\0\0\0\x03", b"\0\0\0\x13colrnclx\0\x01\0\x01\0\x01\0"]
)
def test_edit_joins_no_videos_that_are_shown_differently(tmp_path: Path, box: bytes) -> None:
    root = tmp_path / "source"
    out = tmp_path / "out"
    write_dataset(root, Spec("v2.1", lengths=(8, 8), gop=4))
    for path in _videos(root):
        _film(path, "mp4", 0)
    insert_in_entry(_videos(root)[1], box)
    edit(root, out)
    assert len(_videos(out)) == 2
    for number in range(2):
        assert np.array_equal(episode(out, number)[CAMERA], episode(root, number)[CAMERA])
    assert [open_video(path).shown.aspect for path in _videos(out)] == [
        open_video(path).shown.aspect for path in _videos(root)
    ]


def _edited(**settings: Any) -> Callable[[Path, Path], dict[str, Any]]:
    return lambda source, out: edit(source, out, **settings)


WAYS: dict[str, Callable[[Path, Path], Any]] = {
    "first frames": _edited(drop_n_first_frames=3),
    "size": _edited(size="32x32"),
    "segment": lambda source, out: {"": segment(source, out, times=str(source / "cuts.json"))},
    "merge": lambda source, out: edit(source, source, out, gop=2),
    "copy": _edited(),
}


@pytest.mark.short(
    "mpegts-first frames", "fragmented-first frames", "matroska-copy", "matroska-first frames"
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("container", ["matroska", "mpegts", "fragmented"])
def test_edit_of_containers_without_an_index(tmp_path: Path, container: str, way: str) -> None:
    root = tmp_path / "source"
    out = tmp_path / "out"
    write_dataset(root, Spec("v2.1", lengths=(8, 8), gop=4))
    (root / "cuts.json").write_text(json.dumps({"0": [0.3], "1": [0.5]}))
    options = {"movflags": "frag_keyframe+empty_moov"} if container == "fragmented" else {}
    for number, path in enumerate(_videos(root)):
        _film(path, "mp4" if options else container, number, options)
    written = WAYS[way](root, out)[""]
    assert written.videos[CAMERA].bytes_before > 1000
    facts = describe(written, str(out))
    assert any("copied" in line for line in format_summary(facts))
    assert check_dataset(str(out), "all", show_progress=False).is_sound
