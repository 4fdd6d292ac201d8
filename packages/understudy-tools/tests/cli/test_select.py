"""`understudy select` and views: the selection of the settings spelled out, by name, in every tool,
unchangeable.
"""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_base import split_view
from understudy_base.testing.refusals import absent, refused
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.selection.select import open_episodes
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.order import Order
from understudy_data.storage.remote_options import RemoteOptions
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.servers import RangeServer, folder
from understudy_data.testing.weights import write_weights
from understudy_kit import main
from understudy_tools.check.examine import check_dataset

LENGTHS = (6, 9, 4, 0, 12, 7)
IDS = (1, 2, 5, 6, 9, 10)
WINDOW = {"action": [0.0, 0.1, 0.2]}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset without views, with keep.json and w.parquet beside it."""
    root = tmp_path_factory.mktemp("views")
    write_dataset(root / "d", Spec(lengths=LENGTHS, ids=IDS, cameras=()))
    (root / "keep.json").write_text(json.dumps({"1": [[0, 5]], "9": [[2, 11]], "10": [[0, 7]]}))
    frames = [(e, f) for e, length in zip(IDS, LENGTHS) for f in range(length)]
    write_weights(
        root / "w.parquet", {frame: (0.0, 1.0, 2.5)[i % 3] for i, frame in enumerate(frames)}
    )
    return root


@pytest.fixture
def root(shared: Path, tmp_path: Path) -> Path:
    shutil.copytree(shared, tmp_path, dirs_exist_ok=True)
    return tmp_path / "d"


def save(root: Path | str, name: str, **options: Any) -> None:
    words = ["select", str(root), name]
    for key, value in options.items():
        values = [] if value is True else value if isinstance(value, (list, tuple)) else [value]
        words += ["--" + key.replace("_", "-"), *map(str, values)]
    assert main(words) == 0


def view_file(root: Path, name: str) -> Path:
    return root / "meta/views" / f"{name}.json"


def versions(root: Path, name: str) -> list[dict[str, Any]]:
    return list(json.loads(view_file(root, name).read_text())["versions"])


def same(a: EpisodeArrays, b: EpisodeArrays) -> None:
    """The same samples, windows and weights, and the same order to the byte."""
    for name in ("segments", "epoch_segments", "window_stops"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    if b.frame_weights is not None:
        assert a.frame_weights is not None
        assert a.frame_weights.digest == b.frame_weights.digest
    orders = [Order.from_datasets([data], batch_size=4, seed=3).to_json() for data in (a, b)]
    assert orders[0] == orders[1]


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_view_is_its_settings_spelled_out(
    shared: Path, tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    root = tmp_path_factory.mktemp("spelled") / "d"
    shutil.copytree(shared / "d", root)
    options: dict[str, Any] = {
        "episodes": [1, 9, 10],
        "exclude_episodes": [2],
        "where": "length > 4",
        "drop_n_first_frames": 1,
        "drop_n_last_frames": 1,
        "keep_ranges": str(shared / "keep.json"),
        "frame_weights": str(shared / "w.parquet"),
    }
    chosen = {name: options[name] for name in data.draw(st.sets(st.sampled_from(sorted(options))))}
    if "keep_ranges" in chosen and data.draw(st.booleans()):
        chosen["keep_rule"] = "start"
    if "frame_weights" in chosen:
        chosen["frame_weights_in"] = data.draw(st.sampled_from(["order", "loss", "both"]))
        if chosen["frame_weights_in"] == "order":
            chosen["frame_weights_in"] = "loss"
    save(root, "v", **chosen)
    same(EpisodeArrays(f"{root}#v", WINDOW), EpisodeArrays(root, WINDOW, **chosen))
    beside = {"exclude_episodes": [9]}  # as beside the settings
    together = {**chosen, "exclude_episodes": sorted({*chosen.get("exclude_episodes", ()), 9})}
    same(EpisodeArrays(f"{root}#v", WINDOW, **beside), EpisodeArrays(root, WINDOW, **together))


def test_each_change_is_a_version_and_earlier_ones_stay(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(root, "v", episodes=[1, 2])
    first = versions(root, "v")
    save(root, "v", episodes=[1, 2])
    assert versions(root, "v") == first
    save(root, "v", where="length > 8")
    assert versions(root, "v")[:1] == first
    for address, ids in {"v": [2, 9], "v@2": [2, 9], "v@1": [1, 2]}.items():
        assert open_episodes(f"{root}#{address}").episodes.ids.tolist() == ids
    save(root, "w")
    capsys.readouterr()
    assert main(["select", str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    facts = [("v@2", versions(root, "v")[1]["digest"][:12], "2 of 6", 21), ("w@1", "5 of 6", 38)]
    assert [absent(line, *values) for line, values in zip(lines, facts, strict=True)] == [[], []]
    for address in ("v@3", "u"):
        with refused(address, where="d", fix="v"):
            Catalog.open(f"{root}#{address}")


def test_a_view_is_printed_as_the_flags_that_make_it(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = root.parent / "keep.json"
    condition = " or ".join(f"length > {4 + number % 3}" for number in range(60))
    chosen = {
        "where": f'{condition} or "it\'s" in task',
        "episodes": [1, 2, 9],
        "keep_ranges": keep,
    }
    capsys.readouterr()
    save(root, "v", **chosen, keep_rule="start", val_fraction=0.25)
    words = shlex.split(capsys.readouterr().out.rpartition("; ")[2])
    assert main(["select", str(root), "again", *words]) == 0
    assert versions(root, "again")[0]["select"] == versions(root, "v")[0]["select"]
    capsys.readouterr()
    monkeypatch.setattr("understudy_tools.cli.select._LISTED", 2)
    save(root, "w", episodes=[9, 2, 5])
    assert capsys.readouterr().out.endswith("; --episodes 9 2 ... (3 in all)\n")
    save(root, "u")
    assert "--" not in capsys.readouterr().out


def test_files_of_a_view_cannot_change_unseen(root: Path) -> None:
    keep = root.parent / "keep.json"
    weights = root.parent / "w.parquet"
    save(root, "v", keep_ranges=keep, frame_weights=weights)
    before = EpisodeArrays(f"{root}#v", name="d")
    keep.write_text("{}")
    weights.unlink()
    same(EpisodeArrays(f"{root}#v"), before)
    moved = root.parent / "elsewhere"
    shutil.move(root, moved)
    same(EpisodeArrays(f"{moved}#v", name="d"), before)
    for path in (moved / "meta/views/files").iterdir():
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"?")
        with refused("content", where=path.name):
            Catalog.open(f"{moved}#v")
        path.write_bytes(content)
    view = view_file(moved, "v")
    view.write_text(view.read_text().replace('"window"', '"start"'))
    with refused("digest", where="v.json"):
        Catalog.open(f"{moved}#v")


@pytest.mark.parametrize(
    ("beside", "names"),
    [
        ({"episodes": [5]}, ("episodes", "v@1")),
        ({"keep_ranges": {"1": [[0, 2]]}}, ("keep_ranges", "v@1")),
        ({"keep_rule": "start"}, ("keep_rule", "v@1", "start", "window")),
    ],
)
def test_a_contradiction_names_both(
    root: Path, beside: dict[str, Any], names: tuple[str, ...]
) -> None:
    save(root, "v", episodes=[1, 9], keep_ranges=root.parent / "keep.json")
    with refused(*names, where=None, fix="view"):
        EpisodeArrays(f"{root}#v", **beside)


def test_settings_beside_a_view_narrow_it(root: Path) -> None:
    save(root, "v", where="length > 5", episodes=[1, 2, 5, 9], drop_n_first_frames=2)
    beside: dict[str, Any] = {
        "where": "length < 10",
        "episodes": np.array([2, 9]),
        "drop_n_first_frames": 1,
    }
    narrowed = EpisodeArrays(f"{root}#v", **beside)
    assert narrowed.segments.tolist() == [[2, 2, 9]]
    save(f"{root}#v", "w", where="length < 10")
    assert EpisodeArrays(f"{root}#w").segments.tolist() == [[1, 2, 6], [2, 2, 9]]


def grow(root: Path, episodes: int) -> Path:
    """Append episodes to a dataset of the writer."""
    features = {"action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]}}
    with EpisodeWriter(root, fps=10, features=features, resume=root.exists()) as writer:
        for number in range(episodes):
            for frame in range(5):
                writer.add_frame({"action": np.full(2, number + frame, np.float32)}, task="wait")
            writer.save_episode()
    return root


def test_a_grown_dataset_is_reported_and_a_frozen_view_is_not_extended(tmp_path: Path) -> None:
    root = grow(tmp_path / "d", 4)
    save(root, "open", where="length > 1")
    save(root, "frozen", where="length > 1", freeze=True)
    grow(root, 2)
    for name, episodes in (("open", 6), ("frozen", 4)):
        data = EpisodeArrays(f"{root}#{name}")
        assert data.num_episodes == episodes
        assert not absent(data.notes[0], f"{name}@1", f"{episodes} of 6", "4 of 4")
    save(root, "open", where="length > 1")
    assert absent(EpisodeArrays(f"{root}#open@2").notes[0], "4 of 4")


def test_a_view_of_other_episodes_is_refused(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as a renumbered dataset. `edit` writes none."""
    save(root, "v", episodes=[2, 9])
    assert main(["edit", f"{root}#v", str(tmp_path / "out")]) == 0
    out = Catalog.open(tmp_path / "out")
    assert out.episodes.lengths.tolist() == [9, 12]
    assert not (tmp_path / "out/meta/views").exists()
    shutil.copytree(root / "meta/views", tmp_path / "out/meta/views")
    with refused(6, where="v.json"):
        Catalog.open(f"{tmp_path / 'out'}#v")
    capsys.readouterr()
    assert main(["select", str(tmp_path / "out")]) == 0
    assert not absent(capsys.readouterr().out, "v", 6)


def test_check_reports_a_damaged_view_and_leaves_out_other_episodes(root: Path) -> None:
    save(root, "good", episodes=[1, 2])
    save(root, "bad", episodes=[1, 2])
    view_file(root, "bad").write_text("{}")
    report = check_dataset(root, "rows")
    assert [f.place.file for f in report.findings if f.rule == "metadata.views"] == [
        "meta/views/bad.json"
    ]
    assert 6 in {e for f in report.findings for e in f.place.episodes}  # it has no frames
    ours = check_dataset(f"{root}#good", "rows")
    assert 6 not in {e for f in ours.findings for e in f.place.episodes}
    assert {f.rule for f in ours.findings} == {
        f.rule for f in report.findings if set(f.place.episodes) != {6}
    }


def test_every_tool_takes_a_view(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(root, "v", episodes=[1, 9])
    address = f"{root}#v"
    assert (
        main(["ranges", address, "--output", str(tmp_path / "r.json"), "--threshold", "1e-9"]) == 0
    )
    assert sorted(json.loads((tmp_path / "r.json").read_text())) == ["1", "9"]
    capsys.readouterr()
    assert main(["order", "explain", address, "--batch-size", "8"]) == 0
    assert not absent(capsys.readouterr().out.splitlines()[0], "2 episodes", "18 frames")
    assert main(["segment", address, str(tmp_path / "s"), "--by", "task"]) == 0
    assert int(Catalog.open(tmp_path / "s").episodes.lengths.sum()) == 18
    assert main(["view", address, "--export", str(tmp_path / "page"), "--episodes", "2"]) != 0


def test_views_are_read_from_a_server(root: Path, tmp_path: Path) -> None:
    for first in (1, 2, 5):
        save(
            root, "v", episodes=[first, 9], keep_ranges=root.parent / "keep.json", keep_rule="start"
        )
    save(root, "w", frame_weights=root.parent / "w.parquet")
    with RangeServer(folder(root)) as server:
        options = RemoteOptions(cache=str(tmp_path / "cache"))
        for name in ("v", "v@2", "w"):
            remote = Catalog.open(f"{server.url}#{name}", options)
            same(EpisodeArrays(remote, name="d"), EpisodeArrays(f"{root}#{name}"))
            assert (
                open_episodes(remote).episodes.ids.tolist()
                == open_episodes(f"{root}#{name}").episodes.ids.tolist()
            )
        with refused("nope", where=""):
            Catalog.open(f"{server.url}#nope", options)
        assert main(["select", server.url, "v", "--episodes", "1"]) != 0


def test_a_folder_of_that_name_is_no_view(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(root, tmp_path / "d#v")
    assert Catalog.open(f"{tmp_path}/d#v").view is None
    monkeypatch.chdir(tmp_path)
    assert split_view("d#v") == ("d#v", "")
    parts = {
        "d#w": ("d", "#w"),
        "d#w@2": ("d", "#w@2"),
        "hf://datasets/o/n@main#w@2": ("hf://datasets/o/n@main", "#w@2"),
        "o/n#a-b_1": ("o/n", "#a-b_1"),
    }
    assert {address: split_view(address) for address in parts} == parts
    for address in ("d", "d#2", "d#w@0", "d#", "d#w.json", "s3://b/d#2"):
        assert split_view(address) == (address, "")


@pytest.mark.parametrize(
    "words", [[], ["--episodes", "1"], ["a", "b"], ["1st"], ["v", "--episodes", "77"]]
)
def test_refused_calls_write_nothing(
    root: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["select", str(root), *words])
    assert (code == 0) == (words == [])
    assert not (root / "meta/views").exists()
