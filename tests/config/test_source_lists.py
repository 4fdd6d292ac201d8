"""Globs and list files as `data.sources`: which entries they stand for, and what is wrong with others."""

import os
from pathlib import Path
from typing import Any

import pytest

from support.refusals import refused
from understudy.config.flags import read_flags
from understudy.config.schema import load, validate_new
from understudy.config.source_lists import list_sources
from understudy.config.train import TrainConfig
from understudy.errors import ConfigError


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of three datasets, and one that is none."""
    for name in ("b", "a", "c"):
        (tmp_path / "data" / name / "meta").mkdir(parents=True)
        (tmp_path / "data" / name / "meta/info.json").write_text("{}")
    (tmp_path / "data/readme.txt").write_text("")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def roots(*words: str, **content: Any) -> list[str]:
    return [source.root for source in read_flags(TrainConfig, words, content).data.sources]


def listed(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_glob_is_each_folder_that_it_matches_sorted(data: Path) -> None:
    assert roots("--data.sources", "data/*/") == ["data/a", "data/b", "data/c"]
    assert roots("--data.sources", "data/*") == ["data/a", "data/b", "data/c"]
    assert roots("--data.sources", "data/c", "data/a") == ["data/a", "data/c"]  # as a shell writes it
    assert roots("--data.sources", f"{data}/[ab]") == [f"{data}/a", f"{data}/b"]
    assert roots("--data.sources", "data/[ab]#good") == ["data/a#good", "data/b#good"]


def test_a_file_of_settings_may_have_a_glob(data: Path, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("data:\n  sources: data/*/\n  control_mode: joint\n  action: command\n")
    config = load(TrainConfig, tmp_path / "c.yaml").data
    assert [source.root for source in config.sources] == ["data/a", "data/b", "data/c"]
    assert {(source.control_mode, source.action) for source in config.sources} == {("joint", "command")}
    assert (config.control_mode, config.action) == ("", "action")
    assert not list(config.problems())
    entries = [{"root": "data/[bc]", "weight": 2, "action": "x"}, {"root": "data/a", "weight": 1}]
    mixed = validate_new(TrainConfig, {"data": {"sources": entries}}).data.sources
    assert [(s.root, s.weight, s.action) for s in mixed] == [
        ("data/b", 2, "x"),
        ("data/c", 2, "x"),
        ("data/a", 1, "action"),
    ]


def test_a_folder_with_the_name_of_a_glob_is_itself(data: Path) -> None:
    os.rename(data / "a", data / "[bc]")
    assert roots("--data.sources", "data/[bc]") == ["data/[bc]"]


def test_a_list_file_has_a_row_for_each_source(data: Path, tmp_path: Path) -> None:
    text = (
        "path,weight,name,episodes,cameras,where\r\n"
        'b,2.5,two,0-2 7,front=cam0 wrist=cam1,"task == ""a, b"""\r\n'
        "\r\n"
        "a,1,,,,\r\n"
        "https://host/x,3,,,,\r\n"
    )
    listed(data / "list.csv", "\ufeff" + text)
    first, second, third = read_flags(TrainConfig, ["--data.sources", "data/list.csv"], {}).data.sources
    assert (first.root, first.weight, first.name, first.episodes, first.cameras) == ("data/a", 1.0, "", (), {})
    assert (second.root, second.weight, second.name) == ("data/b", 2.5, "two")
    assert second.episodes == (0, 1, 2, 7)
    assert second.cameras == {"front": "cam0", "wrist": "cam1"}
    assert second.where == 'task == "a, b"'
    assert third.root == "https://host/x"
    assert [entry["root"] for entry in list_sources("data/list.csv")] == ["data/a", "data/b", "https://host/x"]


def test_settings_beside_a_list_are_those_of_rows_without_their_own(data: Path) -> None:
    listed(data / "list.csv", "path,action\na,command\nb,\n")
    words = ["--data.sources", "data/list.csv", "--data.action", "target", "--data.state", "qpos"]
    sources = read_flags(TrainConfig, words, {}).data.sources
    assert [(source.action, source.state) for source in sources] == [("command", "qpos"), ("target", "qpos")]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("path,weigth\na,1\n", ("weigth", "weight")),
        ("path,size\na,1\n", ("size", "weight")),
        ("path,weight,weight\na,1,1\n", ("weight", "twice")),
        ("root,weight\na,1\n", ("root, weight", "path")),
        ("path,weight\n", ("list.csv", "header")),
        ("", ("none", "path")),
        ("path,weight\na,1\nb,\n", ("row 3", "data/b", "weight")),
        ("path,weight\n,1\n", ("row 2", "path")),
        ("path,weight\na,1,2\n", ("row 2", 3, 2)),
        ("path,weight\na,1\nreadme.txt,1\n", ("row 3", "data/readme.txt")),
        ("path,weight\n../other,1\n", ("row 2", "other")),
        ("path,weight\na,1\n./a/,1\n", ("data/a", "twice")),
        ("path,cameras\na,front\n", ("row 2", "front", "NAME=KEY")),
        ("path,weight\na,much\n", ("weight", "much")),
    ],
)
def test_a_wrong_list_file_is_refused(data: Path, text: str, named: tuple[Any, ...]) -> None:
    listed(data / "list.csv", text)
    with refused("data.sources", *named, kind=ConfigError):
        roots("--data.sources", "data/list.csv")


def test_what_a_glob_may_not_match_is_refused(data: Path, tmp_path: Path) -> None:
    with refused("data.sources", "nothing/*/", kind=ConfigError):
        roots("--data.sources", "nothing/*/")
    with refused("data.sources", "other", kind=ConfigError):
        roots("--data.sources", "*/")
    os.symlink(data / "a", data / "d")
    with refused("data.sources", "data/d", "data/a", kind=ConfigError):
        roots("--data.sources", "data/*/")
    with refused("data.sources", "gone.csv", kind=ConfigError):
        roots("--data.sources", "gone.csv")
    with refused("c.yaml", "data.sources", "x/*", kind=ConfigError):
        (tmp_path / "c.yaml").write_text("data: {sources: x/*}")
        load(TrainConfig, tmp_path / "c.yaml")


def test_a_flag_without_a_value_is_refused() -> None:
    with refused("--data.sources", "CSV", kind=ConfigError):
        read_flags(TrainConfig, ["--data.sources"], {})


def test_a_stored_run_keeps_its_sources(data: Path) -> None:
    with refused("--data.sources", kind=ConfigError):
        read_flags(TrainConfig, ["--data.sources", "data/*/"], {}, new=False)
