"""Views in runs: the run of the settings spelled out, recorded with version and digest, and kept on
resume.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from understudy.config.data import DataConfig
from understudy.config.train import TrainConfig
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import open_data
from understudy_base.testing.refusals import refused
from understudy_data.testing.datasets import Spec, edit_json, write_dataset
from understudy_kit import SourceConfig, main, override

SPELLED = {"where": "length > 6", "val_episodes": (2, 5), "drop_n_last_frames": 1}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tiny_dataset(tmp_path / "d")
    words = ["--where", "length > 6", "--val-episodes", "2", "5", "--drop-n-last-frames", "1"]
    assert main(["select", str(tmp_path / "d"), "v", *words]) == 0
    return tmp_path / "d"


def configured(root: Path, out: Path, **changes: object) -> TrainConfig:
    short = {"steps": 4, "checkpoint": {"every": 2}, "val": {"every": 4}, "device": "cpu"}
    return override(
        tiny_config(Path(f"{root}#v"), out, **short), data={"val_fraction": None, **changes}
    )


def test_a_run_on_a_view_is_that_of_its_settings_and_keeps_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spelled = override(configured(root, tmp_path / "spelled"), data={"root": str(root), **SPELLED})
    assert run.train(spelled) == run.DONE
    monkeypatch.chdir(tmp_path)
    named = configured(Path("d"), tmp_path / "named")
    assert run.train(replace(named, steps=2)) == run.DONE
    digest = json.loads((root / "meta/views/v.json").read_text())["versions"][0]["digest"]
    assert RunDir(tmp_path / "named").read_record()["sources"][0]["view"] == f"v@1 {digest}"
    # version 2 is of no interest to the run
    assert main(["select", "d", "v", "--episodes", "1", "2"]) == 0
    monkeypatch.chdir("/")
    assert run.resume(replace(RunDir(tmp_path / "named").settings(), steps=4)) == run.DONE
    orders = [RunDir(tmp_path / name).read_record()["order"] for name in ("spelled", "named")]
    assert orders[0] == orders[1]
    assert run.evaluate_checkpoint(tmp_path / "named") == run.evaluate_checkpoint(
        tmp_path / "spelled"
    )


def test_a_run_refuses_another_view_and_moves_with_its_own(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    assert run.train(replace(configured(root, out), steps=2)) == run.DONE
    moved = tmp_path / "moved"
    shutil.move(root, moved)
    before = run.evaluate_checkpoint(out, data_root=str(moved))  # of its version of its view
    view = moved / "meta/views/v.json"
    assert (
        main(["select", str(moved), "v", "--episodes", "1", "2", "3", "--val-episodes", "2"]) == 0
    )
    assert main(["select", str(moved), "w", "--episodes", "1", "2", "3"]) == 0
    assert run.evaluate_checkpoint(out, data_root=str(moved)) == before
    for other in ("v@2", "w"):
        with refused("v@1", other.partition("@")[0] + other[1:], where="moved"):
            run.evaluate_checkpoint(out, data_root=f"{moved}#{other}")
    edit_json(view, lambda content: content["versions"].reverse())
    with refused("v@1", where="moved", fix="restore"):
        run.evaluate_checkpoint(out, data_root=str(moved))
    view.unlink()
    with refused("v@1", where="moved", fix="w"):
        run.evaluate_checkpoint(out, data_root=str(moved))
    config = RunDir(out).settings()
    with refused("v@1", where="moved"):
        open_data(override(config, data={"root": str(moved)}), RunDir(out).read_record()["sources"])


def test_views_of_one_dataset_are_sources_of_a_mixture(root: Path, tmp_path: Path) -> None:
    assert main(["select", str(root), "w", "--episodes", "1", "2", "8", "--val-fraction", "0"]) == 0
    sources = (
        SourceConfig(root=f"{root}#v"),
        SourceConfig(root=f"{root}#w@1", exclude_episodes=(2,)),
    )
    config = tiny_config(root, tmp_path / "r")
    data = open_data(replace(config, data=replace(DataConfig(sources=sources), chunk_size=3)))
    assert data.names == ("d", "d#2")
    trained, held_out = (
        [sorted({*part.segments[:, 0].tolist()}) if part else [] for part in parts]
        for parts in (data.training, data.validation)
    )
    lengths = {
        int(e): int(n)
        for e, n in zip(
            data.training[0].catalog.episodes.ids, data.training[0].catalog.episodes.lengths
        )
    }
    assert trained == [[e for e, n in lengths.items() if n > 6 and e not in (2, 5)], [1, 8]]
    assert held_out == [[2, 5], []]
    assert [str(part.view) for part in data.training] == ["v@1", "w@1"]


@pytest.mark.parametrize("view", [("--val-fraction", "0.4"), ("--val-episodes", "2")])
@pytest.mark.parametrize(
    "changes", [{"val_fraction": 0.2}, {"val_fraction": 0.1}, {"val_episodes": (1,)}]
)
def test_another_split_beside_a_view_is_refused(
    root: Path, tmp_path: Path, view: tuple[str, ...], changes: dict[str, object]
) -> None:
    assert main(["select", str(root), "split", *view]) == 0
    data = {"val_fraction": None, "root": f"{root}#split", **changes}
    with refused("split@1", *changes, where=None, fix="view"):
        open_data(override(tiny_config(root, tmp_path / "r"), data=data))


def test_the_split_of_a_view_counts_and_the_setting_without_one(root: Path, tmp_path: Path) -> None:
    assert main(["select", str(root), "split", "--val-fraction", "0.4"]) == 0
    assert main(["select", str(root), "whole", "--episodes", *map(str, range(10))]) == 0
    counts = []
    for name, fraction in (
        ("split", None),
        ("split", 0.4),
        ("whole", 0.4),
        ("whole", 0.1),
        ("whole", None),
    ):
        data = {"val_fraction": fraction, "root": f"{root}#{name}"}
        (part,) = open_data(override(tiny_config(root, tmp_path / "r"), data=data)).validation
        counts.append(part.num_episodes if part else 0)
    assert counts == [4, 4, 4, 2, 2]


def test_an_update_takes_the_episodes_of_the_version_that_the_run_has(tmp_path: Path) -> None:
    root = tmp_path / "d"
    out = tmp_path / "r"
    lengths = (9, 7, 11, 8, 6, 10, 9, 7, 8, 12, 10, 6, 9, 6)
    write_dataset(root, Spec(lengths=lengths[:10], gop=4))  # in files of two
    assert main(["select", str(root), "v", "--where", "length > 6", "--val-episodes", "2"]) == 0
    assert run.train(replace(configured(root, out), steps=2)) == run.DONE
    shutil.move(root / "meta/views", tmp_path / "views")
    shutil.rmtree(root)
    write_dataset(root, Spec(lengths=lengths, gop=4))
    shutil.move(tmp_path / "views", root / "meta/views")
    assert main(["select", str(root), "v", "--where", "length < 8", "--val-episodes", "1"]) == 0
    config = RunDir(out).settings()
    assert run.resume(replace(config, steps=4, data=replace(config.data, update=True))) == run.DONE
    (entry,) = checkpoint.read_state(out / "checkpoints/step-00000004")["updates"][0]["sources"]
    assert (entry["first"], entry["last"], entry["view"][:4]) == (10, 13, "v@1 ")
    data = open_data(RunDir(out).settings(), [*RunDir(out).read_record()["sources"], entry])
    assert sorted({*data.training[1].segments[:, 0].tolist()}) == [10, 12]
