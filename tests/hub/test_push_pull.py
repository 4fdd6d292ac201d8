"""Policies, runs and datasets go to the hub and come back: equal to the byte, or a clear refusal."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("huggingface_hub", reason="needs the extra hub")

import understudy as us
from support.datasets import Spec, write_dataset
from support.policies import policy
from support.runs import same_run, tiny_config, tiny_dataset
from support.writable_hub import TOKEN, WritableHub, serve_hub
from understudy.cli.main import WRONG_INPUT, main
from understudy.errors import ConfigError
from understudy.train import run


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[WritableHub]:
    monkeypatch.chdir(tmp_path)
    with serve_hub(monkeypatch, tmp_path / "cache") as found:
        yield found


def saved(folder: Path) -> Path:
    policy().save(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Files of a folder without hidden ones."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {str(own): path.read_bytes() for own, path in found.items() if not any(p.startswith(".") for p in own.parts)}


def observation() -> dict[str, object]:
    images = {f"observation.images.{name}": np.full((16, 16, 3), 90, np.uint8) for name in ("front", "wrist")}
    return {**images, "observation.state": np.array([0.5, 1.0], np.float32), "task": "pick up the red block"}


def test_pushed_policy_acts_from_its_hub_id(
    hub: WritableHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "policy")
    assert main(["push", str(folder), "--to", "hf://me/policy"]) == 0
    repo = hub.repos["models/me/policy"]
    assert repo.private
    assert {name: data for name, data in repo.files("main").items() if not name.startswith(".")} == contents(folder)
    assert TOKEN not in "".join(capsys.readouterr())
    repo.add({"old.bin": b"a pickle", "large.pt": b"another"})
    own, theirs, named, pinned = (
        us.load_policy(place).act(observation(), generator=torch.Generator().manual_seed(0))
        for place in (folder, "hf://me/policy", "me/policy", f"hf://me/policy@{repo.main}")
    )
    assert np.array_equal(own, theirs)
    assert np.array_equal(own, named)
    assert np.array_equal(own, pinned)
    assert not [path for path in hub.downloads if path.endswith((".bin", ".pt"))]


def test_local_folder_of_that_name_takes_precedence(hub: WritableHub, tmp_path: Path) -> None:
    policy(seed=5).save(tmp_path / "me" / "policy")
    assert torch.equal(us.load_policy("me/policy").policy.fuse.weight, policy(seed=5).fuse.weight)
    assert hub.downloads == []


def test_files_of_a_repository_are_replaced_on_request_alone(hub: WritableHub, tmp_path: Path) -> None:
    folder = saved(tmp_path / "policy")
    words = ["push", str(folder), "--to", "hf://me/policy"]
    assert main([*words, "--public"]) == 0
    assert not hub.repos["models/me/policy"].private
    first = hub.repos["models/me/policy"].main
    policy(seed=3).save(folder)
    assert main(words) == WRONG_INPUT
    assert hub.repos["models/me/policy"].main == first
    assert main([*words, "--update"]) == 0
    assert hub.repos["models/me/policy"].files("main")["model.safetensors"] == contents(folder)["model.safetensors"]
    assert hub.repos["models/me/policy"].files(first)["model.safetensors"] != contents(folder)["model.safetensors"]


@pytest.mark.parametrize("to", ["hf://datasets/me/policy", "me/policy", "hf://me", "hf://me/policy@v1"])
def test_wrong_repository_is_refused_before_it_is_made(hub: WritableHub, tmp_path: Path, to: str) -> None:
    assert main(["push", str(saved(tmp_path / "policy")), "--to", to]) == WRONG_INPUT
    assert hub.repos == {}


def test_other_folder_is_refused(hub: WritableHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "some").mkdir()
    assert main(["push", str(tmp_path / "some"), "--to", "hf://me/policy"]) == WRONG_INPUT
    assert str(tmp_path / "some") in capsys.readouterr().err
    assert hub.repos == {}


def test_dataset_comes_back_and_opens_by_its_id(
    hub: WritableHub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=(4, 3), gop=2))
    (tmp_path / "set" / ".hidden").write_text("mine")
    for extra in ([], ["--update"]):
        assert main(["push", str(tmp_path / "set"), "--to", "hf://datasets/me/set", *extra]) == 0
    repo = hub.repos["datasets/me/set"]
    version = us.Catalog.open(tmp_path / "set").version
    assert repo.tags == {version: repo.main}
    assert ".hidden" not in repo.files("main")
    assert main(["pull", "hf://datasets/me/set", "--output-dir", "here/copy"]) == 0
    assert contents(tmp_path / "here" / "copy") == contents(tmp_path / "set")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["copy"]
    before = len(hub.downloads)
    assert main(["pull", "hf://datasets/me/set", "--output-dir", "here/copy"]) == 0
    assert len(hub.downloads) == before


def test_stopped_pull_continues(hub: WritableHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", str(saved(tmp_path / "policy")), "--to", "hf://me/policy"]) == 0
    hub.broken = "model.safetensors"
    assert main(["pull", "hf://me/policy", "--output-dir", "copy"]) == WRONG_INPUT
    assert not (tmp_path / "copy").exists()
    assert TOKEN not in "".join(capsys.readouterr())
    hub.broken = ""
    done = {path for path in hub.downloads if path.endswith("config.json")}
    hub.downloads.clear()
    assert main(["pull", "hf://me/policy", "--output-dir", "copy"]) == 0
    assert contents(tmp_path / "copy") == contents(tmp_path / "policy")
    assert done
    assert not [path for path in hub.downloads if path.endswith("config.json")]


def test_pull_replaces_no_folder(hub: WritableHub, tmp_path: Path) -> None:
    assert main(["push", str(saved(tmp_path / "source")), "--to", "hf://me/policy"]) == 0
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "mine.txt").write_text("mine")
    assert main(["pull", "hf://me/policy"]) == WRONG_INPUT
    assert contents(tmp_path / "policy") == {"mine.txt": b"mine"}


def test_missing_repository_is_named(hub: WritableHub, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        us.load_policy("hf://me/nothing")
    assert str(caught.value).startswith("hf://me/nothing: ")
    assert main(["pull", "hf://me/nothing"]) == WRONG_INPUT
    assert os.listdir(tmp_path) in ([], ["cache"])


def test_run_resumes_from_the_hub_as_if_it_had_never_left(
    hub: WritableHub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = tmp_path / "whole"
    assert run.train(tiny_config(tiny_dataset(tmp_path / "data"), whole)) == run.DONE
    assert main(["push", str(whole), "--to", "hf://me/run", "--checkpoint", "8"]) == 0
    steps = {name.split("/")[1] for name in hub.repos["models/me/run"].files("main") if name.startswith("checkpoints/")}
    assert steps == {"step-00000008"}
    assert main(["resume", "hf://me/run", "--log.no-report"]) == 0
    same_run(whole, tmp_path / "run")
    before = len(hub.downloads)
    with caplog.at_level(logging.INFO, "understudy"):
        assert main(["resume", "hf://me/run", "--log.no-report"]) == 0  # the run there continues
    assert len(hub.downloads) == before
