"""Globs and list files as `data.sources`: which entries they stand for, and what is wrong with
others.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from understudy.config.train import TrainConfig
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.storage.dataset_root import Files
from understudy_kit import complete, dump_yaml, list_sources, load, validate_new
from understudy_kit.config.flags import read_flags


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
    # as a shell writes it
    assert roots("--data.sources", "data/c", "data/a") == ["data/a", "data/c"]
    assert roots("--data.sources", f"{data}/[ab]") == [f"{data}/a", f"{data}/b"]
    assert roots("--data.sources", "data/[ab]#good") == ["data/a#good", "data/b#good"]


def test_a_file_of_settings_may_have_a_glob(data: Path, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "data:\n  sources: data/*/\n  control_mode: joint\n  action: command\n"
    )
    config = load(TrainConfig, tmp_path / "c.yaml").data
    assert [source.root for source in config.sources] == ["data/a", "data/b", "data/c"]
    assert {(source.control_mode, source.action) for source in config.sources} == {
        ("joint", "command")
    }
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
    first, second, third = read_flags(
        TrainConfig, ["--data.sources", "data/list.csv"], {}
    ).data.sources
    assert (first.root, first.weight, first.name, first.episodes, first.cameras) == (
        "data/a",
        1.0,
        "",
        (),
        {},
    )
    assert (second.root, second.weight, second.name) == ("data/b", 2.5, "two")
    assert second.episodes == (0, 1, 2, 7)
    assert second.cameras == {"front": "cam0", "wrist": "cam1"}
    assert second.where == 'task == "a, b"'
    assert third.root == "https://host/x"
    assert [entry["root"] for entry in list_sources("data/list.csv")] == [
        "data/a",
        "data/b",
        "https://host/x",
    ]


def test_settings_beside_a_list_are_those_of_rows_without_their_own(data: Path) -> None:
    listed(data / "list.csv", "path,action\na,command\nb,\n")
    words = ["--data.sources", "data/list.csv", "--data.action", "target", "--data.state", "qpos"]
    sources = read_flags(TrainConfig, words, {}).data.sources
    assert [(source.action, source.state) for source in sources] == [
        ("command", "qpos"),
        ("target", "qpos"),
    ]


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


def dataset(folder: Path) -> Path:
    (folder / "meta").mkdir(parents=True)
    (folder / "meta/info.json").write_text("{}")
    return folder


def entries(*items: Any) -> list[str]:
    return [
        source.root
        for source in validate_new(TrainConfig, {"data": {"sources": list(items)}}).data.sources
    ]


def test_sources_given_by_two_flags_are_refused(data: Path) -> None:
    with refused("--data.sources", "twice", kind=ConfigError):
        roots("--data.sources", "data/a", "data/b", "--data.sources", "data/c")


def test_files_of_a_row_are_relative_to_its_list(data: Path) -> None:
    text = (
        "path,keep_ranges,stats,frame_weights\na,k.json,s/norm.json,w.parquet\n"
        "b,/k.json,recorded,quality\n"
    )
    listed(data / "list.csv", f"{text}c,,https://host/s.json,s3://bucket/w.parquet\n")
    a, b, c = read_flags(TrainConfig, ["--data.sources", "data/list.csv"], {}).data.sources
    assert (a.keep_ranges, a.stats, a.frame_weights) == (
        "data/k.json",
        "data/s/norm.json",
        "data/w.parquet",
    )
    assert (b.keep_ranges, b.stats, b.frame_weights) == ("/k.json", "recorded", "quality")
    assert (c.keep_ranges, c.stats, c.frame_weights) == (
        "",
        "https://host/s.json",
        "s3://bucket/w.parquet",
    )


def test_dots_behind_a_link_lead_where_the_link_leads(data: Path, tmp_path: Path) -> None:
    behind = dataset(tmp_path / "far/x")
    dataset(tmp_path / "data/x")
    (tmp_path / "far/inner").mkdir()
    os.symlink(tmp_path / "far/inner", data / "link")
    listed(data / "list.csv", "path,keep_ranges\nlink/../x,link/../k.json\n")
    (source,) = read_flags(TrainConfig, ["--data.sources", "data/list.csv"], {}).data.sources
    assert Files(source.root).root == str(behind)
    assert os.path.realpath(source.keep_ranges) == str(tmp_path / "far/k.json")
    assert [Files(root).root for root in roots("--data.sources", "data/link/../[x]")] == [
        str(behind)
    ]
    assert Files("data/link/../x").root == str(behind)
    assert Files("data/link/../../data/x").root == str(data / "x")


def test_stored_sources_are_never_expanded(data: Path, tmp_path: Path) -> None:
    dataset(data / "set[1]")
    dataset(data / "set1")
    run = read_flags(TrainConfig, ["--data.sources", "data/set*", "data/a"], {})
    assert [source.root for source in run.data.sources] == ["data/a", "data/set1", "data/set[1]"]
    stored = tmp_path / "config.yaml"
    stored.write_text(dump_yaml(run))
    os.rename(data / "set[1]", data / "moved")
    assert load(TrainConfig, stored).data.sources == run.data.sources
    os.rename(data / "moved", data / "set[1]")
    assert entries({"root": "data/set[1]"}) == ["data/set[1]"]


@pytest.mark.parametrize(
    "items",
    [
        ("data/*/", "data/[ab]"),
        ("data/[ab]", {"root": "data/a"}),
        ({"root": "data/./b"}, {"root": "data/[ab]"}),
        ({"root": "data/[ab]"}, {"root": "data/[bc]"}),
        ("data/*/", "data/list.csv"),
        ("data/list.csv", {"root": "https://host/x"}),
        ("data/list.csv", "https://user:word@host/x/"),
        ("data/[ab]", "file://{data}/b"),
        ("data/[ab]", {"root": "{data}/b", "name": "b"}),
    ],
)
def test_a_source_of_a_glob_or_list_is_there_once(data: Path, items: tuple[Any, ...]) -> None:
    listed(data / "list.csv", "path\nc\nhttps://host/x/\n")
    whole = [
        item.replace("{data}", str(data))
        if isinstance(item, str)
        else item | {"root": item["root"].replace("{data}", str(data))}
        for item in items
    ]
    with refused("data.sources", "views", kind=ConfigError):
        entries(*whole)


def test_parts_of_a_dataset_may_be_several_sources(data: Path) -> None:
    assert entries("data/[ab]#good", "data/[ab]#rest", "data/c")[-1] == "data/c"
    by_hand = [{"root": "data/a", "where": "success"}, {"root": "data/a", "where": "not success"}]
    assert entries(*by_hand, "data/b") == ["data/a", "data/a", "data/b"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("path;weight\na;1\n", ("path;weight", "commas")),
        ("path\tweight\na\t1\n", ("commas",)),
        ("Path,Weight\na,1\n", ("Path", "lower", "path")),
        ("path,Weight\na,1\n", ("Weight", "lower", "weight")),
        ("\npath,weight\na,1\n", ("empty", "path,weight")),
        ("# sets\npath,weight\na,1\n", ("# sets", "path,weight")),
        ("path,weight\n# sets\na,1\n", ("row 2", "comments")),
        ("path\n*/\n", ("row 2", "globs")),
        ("path\n$HOME/a\n", ("row 2", "$HOME/a", "variables")),
        ("path\nlerobot/pusht\n", ("row 2", "lerobot/pusht", "hf://datasets/OWNER/NAME")),
        ("path\na\0b\n", ("row 2", r"a\x00b", "NUL")),
        ("path,name\na,x\0y\n", ("row 2", "name", r"x\x00y")),
        ("path,cameras\na,{front\n", ("row 2", "cameras", "{front", "JSON")),
        ('path,cameras\na,"{""x"": 1, ""x"": 2}"\n', ("row 2", "cameras", "JSON", 2)),
        (f"path,cameras\na,{'[' * 9000}\n", ("row 2", "cameras", "JSON")),
        (f"path,cameras\na,{'[' * 300}{']' * 300}\n", ("row 2", "cameras", "nested")),
    ],
)
def test_a_refused_list_file_says_what_is_allowed(
    data: Path, text: str, named: tuple[Any, ...]
) -> None:
    listed(data / "list.csv", text)
    with refused("data.sources", "list.csv", *named, kind=ConfigError):
        roots("--data.sources", "data/list.csv")


def test_addresses_that_nothing_can_match_are_refused(data: Path) -> None:
    for address in ("data/**/", "**"):
        with refused("data.sources", address, "level", kind=ConfigError):
            entries(address)
    for address in ("data/\0*", "x\0.csv", "~\0/a", "data/a\0"):
        with refused("data.sources", "NUL", kind=ConfigError):
            entries(address)
    with refused("data.sources.0.root", "NUL", kind=ConfigError):
        entries({"root": "~\0/a*"}, "data/a")


@pytest.mark.parametrize("root", ["data/*", "data/list.csv"])
def test_a_single_root_is_no_glob_or_list(data: Path, root: str) -> None:
    listed(data / "list.csv", "path\na\n")
    with refused("data.root", root, "--data.sources", kind=ConfigError):
        complete(read_flags(TrainConfig, ["--data.root", root, "--output-dir", "run"], {}))
