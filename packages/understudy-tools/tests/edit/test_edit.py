"""`understudy edit`: rows and images to the bit, exact statistics, named refusals."""

import json
import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy_base import DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.testing import recording
from understudy_data.testing.datasets import Spec, edit_column, edit_json, identity, write_dataset
from understudy_data.testing.servers import RangeServer, folder
from understudy_data.testing.videos import moving_pictures, write_video
from understudy_data.video.reader import open_video
from understudy_tools.check.examine import check_dataset
from understudy_tools.cli.edit import EditConfig, make_plans
from understudy_tools.edit.features import cast_values
from understudy_tools.edit.write_set import write_outputs
from understudy_tools.testing.edited import assert_equal_frames, edit, episode

CAMERA = "observation.images.top"
SETS = {
    "v2.0 with B-frames": Spec("v2.0", cameras=(CAMERA,), b_frames=2, gop=6, chunks_size=2),
    "v2.1 rich, two cameras, late clock": Spec(
        "v2.1",
        cameras=(CAMERA, "observation.images.wrist"),
        rich=True,
        late_timestamps=True,
        ids=(2, 5, 9),
    ),
    "v3.0 packed, images in rows": Spec(
        "v3.0",
        images=("observation.images.side",),
        rich=True,
        reverse_videos=True,
        nan_row=True,
        gop=3,
    ),
    "v3.0 AV1, no frame_index": Spec(
        "v3.0", codec="libsvtav1", per_video_file=3, gop=3, omit=("frame_index",)
    ),
}


@pytest.fixture(scope="module")
def v30(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of 12, 9 and 8 frames with a key frame every 4, and DROID's texts about
    them.
    """
    root = tmp_path_factory.mktemp("source") / "v30"
    write_dataset(root, Spec("v3.0", lengths=(12, 9, 8), gop=4, recorded_as=True))
    return root


def record(root: Path, episodes: range) -> Path:
    with EpisodeWriter(
        root, fps=recording.FPS, features=recording.FEATURES, codec="libx264"
    ) as writer:
        for number in episodes:
            for frame in range(recording.length(number)):
                values: dict[str, Any] = {"observation.state": recording.state(number, frame)}
                for camera, (key, shape) in enumerate(
                    (("top", (32, 32, 3)), ("wrist", (16, 32, 3)))
                ):
                    values[f"observation.images.{key}"] = np.full(
                        shape, recording.shade(number, frame, camera), np.uint8
                    )
                writer.add_frame(values, task=recording.task(number))
            writer.save_episode()
    return root


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SETS)
def test_edit_converts_every_version_to_the_bit(name: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    out = tmp_path / "out"
    truth = write_dataset(source, SETS[name])
    written = edit(source, out)[""]
    assert Catalog.open(out).version == "v3.0"
    assert Catalog.open(out).report() == [
        line for line in Catalog.open(out).report() if "constant" in line
    ]
    assert [one for one in written.videos.values() if one.encoded] == []
    for number, before in enumerate(SETS[name].episode_ids):
        now = episode(out, number)
        assert_equal_frames(now, episode(source, before))
        assert now["task"] == truth.tasks[before]
        clock = (np.arange(len(now["task"])) / SETS[name].fps).astype(np.float32)
        assert np.array_equal(now["timestamp"], clock)
    assert written.clocks == (len(truth.tasks) if SETS[name].late_timestamps else 0)
    found = {
        one.rule
        for one in check_dataset(str(out), "all", show_progress=False).findings
        if one.severity == "error"
    }
    assert found == ({"values.finite"} if SETS[name].nan_row else set())  # kept as recorded


def test_edit_merge_of_a_split_is_the_original_recording(tmp_path: Path) -> None:
    whole = record(tmp_path / "whole", range(5))
    parts = edit(whole, tmp_path / "parts", split=("a=0-2", "b=3,4"))
    assert {name: part.episodes for name, part in parts.items()} == {"a": 3, "b": 2}
    edit(tmp_path / "parts/a", tmp_path / "parts/b", tmp_path / "merged")
    for number in range(5):
        now = episode(tmp_path / "merged", number)
        before = episode(whole, number)
        assert_equal_frames(now, before)
        assert all(
            np.array_equal(now[key], before[key])
            for key in ("index", "episode_index", "task_index", "timestamp")
        )
    for name in ("meta/stats.json", "meta/info.json"):
        now, before = (
            json.loads((root / name).read_text()) for root in (tmp_path / "merged", whole)
        )
        assert now == before
    tables = [
        pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet")
        for root in (tmp_path / "merged", whole)
    ]
    assert tables[0].equals(tables[1].replace_schema_metadata(None))


def test_edit_statistics_of_a_merge_are_those_of_all_rows(v30: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_dataset(other, Spec("v2.1", lengths=(5, 7), gop=4))
    edit(v30, other, tmp_path / "out")
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())
    for key in ("action", "observation.state", "next.reward"):
        parts = [episode(root, e)[key] for root, n in ((v30, 3), (other, 2)) for e in range(n)]
        rows = np.concatenate([part.reshape(len(part), -1) for part in parts]).astype(np.float64)
        assert stats[key]["count"] == [12 + 9 + 8 + 5 + 7]
        assert np.array_equal(stats[key]["min"], rows.min(0))
        assert np.array_equal(stats[key]["max"], rows.max(0))
        assert np.allclose(stats[key]["mean"], rows.mean(0), rtol=0, atol=1e-15)
        assert np.allclose(stats[key]["std"], rows.std(0), rtol=0, atol=1e-15)
        assert np.allclose(stats[key]["q99"], np.quantile(rows, 0.99, axis=0), rtol=0, atol=1e-15)
    images = np.concatenate(
        [episode(root, e)[CAMERA] for root, n in ((v30, 3), (other, 2)) for e in range(n)]
    )
    assert np.allclose(
        np.ravel(stats[CAMERA]["mean"]), images.mean((0, 2, 3)) / 255, rtol=0, atol=1e-12
    )
    assert stats[CAMERA]["count"] == [41]


@pytest.mark.parametrize("b_frames", [0, 2])
def test_edit_copies_from_key_frames_and_encodes_other_cuts(b_frames: int, tmp_path: Path) -> None:
    source = tmp_path / "source"
    out = tmp_path / "out"
    write_dataset(
        source, Spec("v3.0", lengths=(12, 8, 8), gop=4, b_frames=b_frames, per_video_file=3)
    )
    ranges = {"0": [[0, 4], [5, 9]], "1": [[0, 8]], "2": [[4, 7]]}
    (tmp_path / "keep.json").write_text(json.dumps(ranges))
    written = edit(source, out, keep_ranges=str(tmp_path / "keep.json"))[""]
    if not b_frames:  # [5, 9) begins off a key frame; [4, 7) ends inside a GOP
        assert (len(written.videos[CAMERA].encoded), written.videos[CAMERA].copied) == (1, 3)
    equal = 0
    for number, (before, start, stop) in enumerate([(0, 0, 4), (0, 5, 9), (1, 0, 8), (2, 4, 7)]):
        now = episode(out, number)
        own = episode(source, before)
        assert [identity(image) for image in now[CAMERA]] == [
            (0, before, f) for f in range(start, stop)
        ]
        equal += np.array_equal(now[CAMERA], own[CAMERA][start:stop])
        now[CAMERA] = own[CAMERA][start:stop]
        assert_equal_frames(now, own, slice(start, stop))
    assert equal == written.videos[CAMERA].copied
    assert check_dataset(str(out), "all", show_progress=False).is_sound


def test_edit_renames_drops_and_casts_features(v30: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rename = ("observation.images.top=observation.images.front", "action=action.joint")
    edit(
        v30, out, rename=rename, drop_features=("next.reward",), cast=("observation.state=float64",)
    )
    now = episode(out, 1)
    before = episode(v30, 1)
    assert now.keys() == before.keys() - {"next.reward", "action", CAMERA} | {
        "action.joint",
        "observation.images.front",
    }
    assert np.array_equal(now["action.joint"], before["action"])
    assert np.array_equal(now["observation.images.front"], before[CAMERA])
    assert now["observation.state"].dtype == np.float64
    assert np.array_equal(now["observation.state"], before["observation.state"])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rename": ("actoin=a",)}, "actoin"),
        ({"rename": ("action=observation.state",)}, "observation.state"),
        ({"rename": ("action=a/b",)}, "a/b"),
        ({"drop_features": ("nothing",)}, "nothing"),
        ({"cast": ("action=int32",)}, "action"),
        ({"cast": ("action=text",)}, "text"),
        ({"cast": ("actoin=float32",)}, "actoin"),
        ({"rename": ("action=.",)}, "'.'"),
        ({"episodes": ("99999999999999999999",)}, "99999999999999999999"),
        ({"exclude_episodes": ("0-99999999",)}, "0-99999999"),
        ({"size": "9000x9000"}, "9000x9000"),
        ({"episodes": ("7",)}, "7"),
        ({"episodes": ("3-1",)}, "3-1"),
        ({"where": "succes"}, "succes"),
        ({"split": ("train=0.9", "val=0.2")}, "1.1"),
        ({"split": ("train=0,1", "val=1")}, "episode 1"),
        ({"subtasks_from": "action"}, "action"),
        ({"cameras": ("left",), "gop": 2}, "left"),
        ({"size": "33"}, "33"),
    ],
)
def test_edit_refuses_by_name_and_leaves_nothing(
    settings: dict[str, Any], named: str, v30: Path, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError) as caught:
        edit(v30, tmp_path / "out", **settings)
    assert named in f"{caught.value.what} {caught.value.where}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "dtype", "kept"),
    [
        (16777217, "float32", False),
        (1 << 24, "float32", True),
        (1e300, "float32", False),
        (0.1, "float32", True),
        (2.5, "int64", False),
        (2, "bool", False),
        (1, "bool", True),
        (float("nan"), "int64", False),
        ((1 << 63) - 1, "float64", False),
        (300, "uint8", False),
        (float("inf"), "float32", True),
    ],
)
def test_cast_values_refuses_what_a_dtype_cannot_hold(value: float, dtype: str, kept: bool) -> None:
    if kept:
        assert cast_values(np.array([0, value]), dtype, "key", "set")[1] == np.dtype(dtype).type(
            value
        )
        return
    with pytest.raises(DatasetError, match=re.escape(repr(value))):
        cast_values(np.array([0, value]), dtype, "key", "set")


def test_edit_refuses_a_cast_that_changes_values(tmp_path: Path) -> None:
    write_dataset(tmp_path / "source", Spec("v3.0", lengths=(3,), cameras=(), rich=True))
    edit(tmp_path / "source", tmp_path / "out", cast=("deep=float32",))
    now, before = (episode(tmp_path / name, 0)["deep"] for name in ("out", "source"))
    assert now.dtype == np.float32
    assert np.array_equal(now, before)
    [path] = (tmp_path / "source/data/chunk-000").glob("*.parquet")
    edit_json(
        tmp_path / "source/meta/info.json",
        lambda info: info["features"]["next.reward"].update(dtype="int64"),
    )
    edit_column(path, "next.reward", lambda _: [0, 1, 2**24 + 1], pa.int64())
    with pytest.raises(DatasetError, match="16777217"):
        edit(tmp_path / "source", tmp_path / "cast", cast=("next.reward=float32",))


def test_edit_refuses_to_merge_sets_that_differ_and_names_the_difference(
    v30: Path, tmp_path: Path
) -> None:
    changes: dict[str, tuple[Spec, Any]] = {
        "fps": (Spec("v3.0", fps=20), None),
        "'action' has shape": (Spec("v3.0", action_dim=3), None),
        "next.done": (Spec("v3.0", rich=True), None),
        "robot type": (Spec("v3.0"), lambda info: info.update(robot_type="other_arm")),
        "named 'z'": (
            Spec("v3.0"),
            lambda info: info["features"]["observation.state"].update(names=["a", "b", "z"]),
        ),
        "float64": (Spec("v3.0"), lambda info: info["features"]["action"].update(dtype="float64")),
    }
    for number, (named, (spec, change)) in enumerate(changes.items()):
        other = tmp_path / str(number)
        write_dataset(other, spec)
        if change is not None:
            edit_json(other / "meta/info.json", change)
        with pytest.raises(DatasetError) as caught:
            edit(v30, other, tmp_path / "out")
        assert named in caught.value.what
        # the set that lacks it
        assert caught.value.where == str(v30 if named == "next.done" else other)


def test_edit_reads_a_set_over_http(v30: Path, tmp_path: Path) -> None:
    with RangeServer(folder(v30, "/set")) as server:
        config = EditConfig(paths=(f"{server.url}/set", str(tmp_path / "out")), episodes=("1-2",))
        plans = make_plans(config, [Catalog.open(config.paths[0])], tmp_path / "out")
        written = write_outputs(plans, tmp_path / "out", ["understudy", "edit"])[""]
    assert written.videos[CAMERA].copied == 2
    for number in range(2):
        assert_equal_frames(episode(tmp_path / "out", number), episode(v30, number + 1))


@pytest.mark.parametrize("kind", ["data", "videos"])
def test_edit_names_missing_files_before_it_writes(kind: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_dataset(source, Spec("v2.1", lengths=(4, 4, 4)))
    [lost] = (source / kind).glob("**/episode_000001.*")
    lost.unlink()
    with refused(lost.name, where="source", fix="--exclude-episodes 1"):
        edit(source, tmp_path / "out")
    edit(source, tmp_path / "out", exclude_episodes=("1",))
    assert_equal_frames(episode(tmp_path / "out", 1), episode(source, 2))


def test_edit_names_undeclared_columns_that_are_left_out(tmp_path: Path) -> None:
    write_dataset(tmp_path / "source", Spec("v3.0", extra=True, cameras=()))
    [written] = edit(tmp_path / "source", tmp_path / "out").values()
    assert written.undeclared == ["battery", "operator"]


def test_edit_is_never_in_place_and_overwrites_nothing(v30: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty", target_is_directory=True)
    for out in (tmp_path / "taken", tmp_path / "file", tmp_path / "link", v30, v30 / "inside"):
        with pytest.raises((DatasetError, AssertionError)):
            edit(v30, out)
    assert [path.read_text() for path in (tmp_path / "taken/notes.txt", tmp_path / "file")] == [
        "mine",
        "mine",
    ]
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["notes.txt"]
    assert (tmp_path / "link").is_symlink()
    assert not list((tmp_path / "empty").iterdir())
    assert not (v30 / "inside").exists()


def test_edit_fills_an_empty_folder_and_spares_one_that_is_filled_meanwhile(
    v30: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("empty", "late"):
        (tmp_path / name).mkdir()
    edit(v30, tmp_path / "empty")
    assert_equal_frames(episode(tmp_path / "empty", 1), episode(v30, 1))

    def fill(*arguments: object, **settings: object) -> None:
        (tmp_path / "late/notes.txt").write_text("mine")

    monkeypatch.setattr("understudy_tools.edit.write_set.write_provenance", fill)
    with pytest.raises((DatasetError, FileExistsError)):
        edit(v30, tmp_path / "late")
    assert [(path.name, path.read_text()) for path in (tmp_path / "late").iterdir()] == [
        ("notes.txt", "mine")
    ]


def test_edit_changes_tasks_and_numbers_those_in_use(v30: Path, tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(json.dumps({"push the blue block": "push it"}))
    edit(v30, tmp_path / "out", tasks=str(tmp_path / "tasks.json"), exclude_episodes=("0",))
    before = [episode(v30, number)["task"] for number in (1, 2)]
    wanted = [[text.replace("push the blue block", "push it") for text in own] for own in before]
    assert [episode(tmp_path / "out", number)["task"] for number in (0, 1)] == wanted
    assert sorted(Catalog.open(tmp_path / "out").tasks) == sorted(
        {text for own in wanted for text in own}
    )
    edit(v30, tmp_path / "one", task="do it")
    assert set(episode(tmp_path / "one", 1)["task"]) == {"do it"}


def test_edit_numbers_tasks_by_the_lists_of_the_sources(tmp_path: Path) -> None:
    write_dataset(tmp_path / "source", Spec("v3.0", lengths=(2,) * 6, cameras=()))
    edit(tmp_path / "source", tmp_path / "out", episodes=("2-5",))
    # the first to appear, and the last of the list
    assert episode(tmp_path / "out", 0)["task"] == ["wait"] * 2
    assert Catalog.open(tmp_path / "out").tasks == Catalog.open(tmp_path / "source").tasks


def test_edit_attaches_metadata_and_selects_by_it(v30: Path, tmp_path: Path) -> None:
    lines = [
        "episode_index,success,quality,operator",
        "0,true,4,ann",
        "1,false,5,bo",
        "2,true,,ann",
    ]
    (tmp_path / "meta.csv").write_text("\n".join(lines) + "\n")
    edit(v30, tmp_path / "rated", metadata=str(tmp_path / "meta.csv"))
    metadata = Catalog.open(tmp_path / "rated").episode_metadata()
    assert metadata["success"] == {0: True, 1: False, 2: True}
    assert metadata["quality"] == {0: 4, 1: 5}
    assert metadata["recording_folderpath"][1] == "gs://lab/day-1"  # of the source
    for where, kept in (
        ("success", [0, 2]),
        ("quality >= 3 and success", [0]),
        ('operator == "bo"', [1]),
    ):
        out = tmp_path / f"kept{kept[-1]}{len(kept)}"
        edit(tmp_path / "rated", out, where=where)
        origin = json.loads((out / "meta/edit.json").read_text())
        assert [entry[1] for entry in origin["episodes"]] == kept
        assert origin["sources"][0]["edited"]["sources"][0]["root"] == str(v30)
    (tmp_path / "meta.csv").write_text("\n".join(lines[:3]) + "\n")
    with pytest.raises(DatasetError, match="first 2"):
        edit(v30, tmp_path / "out", metadata=str(tmp_path / "meta.csv"))


def test_edit_leaves_out_the_bad_episodes_of_a_check(v30: Path, tmp_path: Path) -> None:
    (tmp_path / "check.json").write_text(json.dumps({"bad_episodes": [1]}))
    edit(v30, tmp_path / "out", exclude_bad=str(tmp_path / "check.json"))
    origin = json.loads((tmp_path / "out/meta/edit.json").read_text())
    assert origin["episodes"] == [[0, 0, 0, 12], [0, 2, 0, 8]]
    assert len(origin["sources"][0]["digest"]) == 32


def test_edit_writes_subtasks_as_a_text_column(v30: Path, tmp_path: Path) -> None:
    steps = {
        "0": [{"start": 0.2, "end": 0.5, "subtask": "reach"}, {"start": 0.8, "subtask": "lift"}]
    }
    (tmp_path / "steps.json").write_text(json.dumps(steps))
    edit(v30, tmp_path / "out", subtasks=str(tmp_path / "steps.json"), drop_n_first_frames=1)
    own = ["", *["reach"] * 3, *[""] * 3, *["lift"] * 4]
    assert episode(tmp_path / "out", 0)["subtask"] == own
    assert episode(tmp_path / "out", 1)["subtask"] == [""] * 8
    data = EpisodeArrays(tmp_path / "out", response="subtask")
    assert data.sample(0, 2)["response"] == "reach"
    for bad in (
        [{"start": 0, "end": 0.5, "subtask": "a"}, {"start": 0.4, "subtask": "b"}],
        [{"start": 1.2, "subtask": "a"}],
    ):
        (tmp_path / "steps.json").write_text(json.dumps({"0": bad}))
        with refused(where="steps.json"):
            edit(v30, tmp_path / "bad", subtasks=str(tmp_path / "steps.json"))


def test_edit_refuses_a_size_that_the_encoder_cannot_write(v30: Path, tmp_path: Path) -> None:
    with refused("32x32", "libx265", 64, where="mp4", fix="--codec"):
        edit(v30, tmp_path / "out", size="32", codec="libx265")
    assert not (tmp_path / "out").exists()
    assert edit(v30, tmp_path / "out", codec="libx265", gop=3)[""].videos[CAMERA].quality.psnr > 30


def test_small_hevc_is_encoded_as_h264_where_it_cannot_be_copied(tmp_path: Path) -> None:
    feature = {"dtype": "video", "shape": (48, 64, 3)}
    with EpisodeWriter(
        tmp_path / "small", fps=10, features={CAMERA: feature}, codec="libx264"
    ) as writer:
        for image in moving_pictures(20):
            writer.add_frame({CAMERA: image}, task="x")
        writer.save_episode()
    write_video(next((tmp_path / "small/videos").rglob("*.mp4")), "hevc-closed", 20)
    for name, dropped, codec in (("whole", 0, "hevc"), ("cut", 1, "h264")):
        edit(tmp_path / "small", tmp_path / name, drop_n_first_frames=dropped)
        assert open_video(next((tmp_path / name / "videos").rglob("*.mp4"))).codec == codec


def test_transcoded_cameras_record_the_settings_of_the_encoder(v30: Path, tmp_path: Path) -> None:
    # episodes have fewer frames than a GOP
    edit(v30, tmp_path / "out", codec="libx264", gop=50, crf=30)
    info = json.loads((tmp_path / "out/meta/info.json").read_text())["features"][CAMERA]["info"]
    assert (info["video.codec"], info["video.g"], info["video.crf"]) == ("h264", 50, 30)


def test_edit_transcodes_to_size_codec_and_key_frames(v30: Path, tmp_path: Path) -> None:
    written = edit(v30, tmp_path / "out", size="32", codec="libx264", gop=3)[""]
    assert len(written.videos[CAMERA].encoded) == 3
    assert written.videos[CAMERA].quality.images == 8 * 3
    assert written.videos[CAMERA].quality.psnr > 30
    info = json.loads((tmp_path / "out/meta/info.json").read_text())["features"][CAMERA]
    assert (info["shape"], info["info"]["video.codec"], info["info"]["video.g"]) == (
        [32, 32, 3],
        "h264",
        3,
    )
    video = open_video(next((tmp_path / "out/videos").rglob("*.mp4")))
    assert (video.codec, video.height, video.gop, video.count) == ("h264", 32, 3, 29)
    now = episode(tmp_path / "out", 2)
    before = episode(v30, 2)
    count, channels, height, width = before[CAMERA].shape
    small = before[CAMERA].reshape(count, channels, height // 2, 2, width // 2, 2).mean((3, 5))
    assert np.abs(now[CAMERA] - small).mean() < 8
    assert check_dataset(str(tmp_path / "out"), "all", show_progress=False).is_sound


def test_edit_declares_the_pixel_format_of_copied_video(tmp_path: Path) -> None:
    write_dataset(tmp_path / "source", Spec("v2.1", lengths=(4,)))
    [path] = (tmp_path / "source/videos").rglob("*.mp4")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width = 64
        stream.height = 64
        stream.pix_fmt = "yuv444p"
        frames = [
            av.VideoFrame.from_ndarray(np.full((64, 64, 3), i, np.uint8), format="rgb24")
            for i in range(4)
        ]
        container.mux([packet for frame in [*frames, None] for packet in stream.encode(frame)])
    assert edit(tmp_path / "source", tmp_path / "out")[""].videos[CAMERA].copied == 1
    info = json.loads((tmp_path / "out/meta/info.json").read_text())["features"][CAMERA]["info"]
    assert info["video.pix_fmt"] == "yuv444p"
