"""Policies, runs and datasets go to the hub and come back: equal to the byte, or a clear
refusal.
"""

import errno
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("huggingface_hub", reason="needs the extra hub")

import understudy as us
from understudy.config.train import TrainConfig
from understudy.testing.policies import policy
from understudy.testing.runs import same_run, trained_run
from understudy.train.paths import with_local_files
from understudy_base import ConfigError, MissingExtraError
from understudy_base.testing.refusals import refused
from understudy_data import checksums
from understudy_data.checksums import ChecksumError
from understudy_data.hub.download import pull
from understudy_data.hub.ids import HubId
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.writable_hub import TOKEN, Repo, WritableHub, serve_hub
from understudy_kit import main
from understudy_kit.cli.main import FAILED, WRONG_INPUT


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
    return {
        str(own): path.read_bytes()
        for own, path in found.items()
        if not any(p.startswith(".") for p in own.parts)
    }


def observation() -> dict[str, object]:
    images = {
        f"observation.images.{name}": np.full((16, 16, 3), 90, np.uint8)
        for name in ("front", "wrist")
    }
    return {
        **images,
        "observation.state": np.array([0.5, 1.0], np.float32),
        "task": "pick up the red block",
    }


def test_pushed_policy_acts_from_its_hub_id(
    hub: WritableHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "policy")
    assert main(["push", str(folder), "--to", "hf://me/policy"]) == 0
    repo = hub.repos["models/me/policy"]
    assert repo.private
    assert {
        name: data for name, data in repo.files("main").items() if not name.startswith(".")
    } == contents(folder)
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


def test_files_of_a_repository_are_replaced_on_request_alone(
    hub: WritableHub, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "policy")
    words = ["push", str(folder), "--to", "hf://me/policy"]
    assert main([*words, "--public"]) == 0
    assert not hub.repos["models/me/policy"].private
    first = hub.repos["models/me/policy"].main
    policy(seed=3).save(folder)
    assert main(words) == WRONG_INPUT
    assert hub.repos["models/me/policy"].main == first
    assert main([*words, "--update"]) == 0
    assert (
        hub.repos["models/me/policy"].files("main")["model.safetensors"]
        == contents(folder)["model.safetensors"]
    )
    assert (
        hub.repos["models/me/policy"].files(first)["model.safetensors"]
        != contents(folder)["model.safetensors"]
    )


@pytest.mark.parametrize(
    "to", ["hf://datasets/me/policy", "me/policy", "hf://me", "hf://me/policy@v1"]
)
def test_wrong_repository_is_refused_before_it_is_made(
    hub: WritableHub, tmp_path: Path, to: str
) -> None:
    assert main(["push", str(saved(tmp_path / "policy")), "--to", to]) == WRONG_INPUT
    assert hub.repos == {}


def test_dataset_comes_back_as_last_published(hub: WritableHub, tmp_path: Path) -> None:
    write_dataset(tmp_path / "three", Spec(lengths=(4, 3, 3), gop=2))
    write_dataset(tmp_path / "one", Spec(lengths=(4,), gop=2))
    assert main(["push", str(tmp_path / "three"), "--to", "hf://datasets/me/set"]) == 0
    repo = hub.repos["datasets/me/set"]
    repo.add({"LICENSE": b"mine", "media/image.png": b"mine"})
    assert main(["push", str(tmp_path / "one"), "--to", "hf://datasets/me/set", "--update"]) == 0
    assert {"LICENSE", "media/image.png"} <= set(repo.files("main"))
    assert main(["pull", "hf://datasets/me/set"]) == 0
    assert us.Catalog.open(tmp_path / "set").episodes.ids.tolist() == [0]


def test_folders_behind_links_are_published(
    hub: WritableHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=(4,), gop=2))
    whole = contents(tmp_path / "set")
    (tmp_path / "set" / "videos").rename(tmp_path / "other disk")
    (tmp_path / "set" / "videos").symlink_to(tmp_path / "other disk")
    words = ["push", str(tmp_path / "set"), "--to", "hf://datasets/me/set"]
    assert main(words) == 0
    published = hub.repos["datasets/me/set"].files("main")
    assert {
        path: content for path, content in published.items() if not path.startswith(".")
    } == whole
    for link, to in (("loop", tmp_path / "set"), ("lost", tmp_path / "nothing")):
        (tmp_path / "set" / link).symlink_to(to)
        assert main([*words, "--update"]) == WRONG_INPUT
        assert str(tmp_path / "set" / link) in capsys.readouterr().err
        (tmp_path / "set" / link).unlink()
    assert hub.repos["datasets/me/set"].files("main") == published


def test_damaged_dataset_is_refused_by_name(
    hub: WritableHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = tmp_path / "set" / "meta" / "info.json"
    info.parent.mkdir(parents=True)
    info.write_text("[")
    assert main(["push", str(tmp_path / "set"), "--to", "hf://datasets/me/set"]) == WRONG_INPUT
    assert str(info) in capsys.readouterr().err
    assert hub.repos == {}


def test_edited_card_of_a_repository_stays(hub: WritableHub, tmp_path: Path) -> None:
    folder = saved(tmp_path / "policy")
    words = ["push", str(folder), "--to", "hf://me/policy"]
    hub.repos["models/me/policy"] = repo = Repo()
    repo.add({"README.md": b"my words"})
    assert main(words) == 0
    assert repo.files("main")["README.md"] == b"my words"
    repo.add({"README.md": (folder / "README.md").read_bytes()})
    (folder / "README.md").write_text("other words")
    assert main([*words, "--update"]) == 0
    assert repo.files("main")["README.md"] == b"other words"
    policy(seed=3).save(tmp_path / "second")
    assert main(["push", str(tmp_path / "second"), "--to", "hf://me/policy", "--update"]) == 0
    assert repo.files("main")["README.md"] == b"other words"


def test_readme_of_a_repository_is_replaced_on_request_alone(
    hub: WritableHub, tmp_path: Path
) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=(4,), gop=2))
    (tmp_path / "set" / "README.md").write_text("of the folder")
    hub.repos["datasets/me/set"] = repo = Repo()
    repo.add({"README.md": b"of the hub"})
    words = ["push", str(tmp_path / "set"), "--to", "hf://datasets/me/set"]
    assert main(words) == WRONG_INPUT
    assert repo.files("main") == {"README.md": b"of the hub"}
    assert main([*words, "--update"]) == 0
    assert repo.files("main")["README.md"] == b"of the folder"


def test_other_folder_is_refused(
    hub: WritableHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_pulled_file_that_was_changed_is_fetched_again(hub: WritableHub, tmp_path: Path) -> None:
    folder = saved(tmp_path / "policy")
    assert main(["push", str(folder), "--to", "hf://me/policy"]) == 0
    repo = hub.repos["models/me/policy"]
    sound = (folder / "model.safetensors").read_bytes()
    repo.add({"model.safetensors": sound[:-1] + bytes([sound[-1] ^ 1])})
    with refused("model.safetensors", kind=ConfigError):
        pull(HubId("me/policy"), tmp_path / "back")
    assert not (tmp_path / "back").exists()
    with refused(kind=ChecksumError) as caught:
        us.load_policy("hf://me/policy")
    assert caught.value.path.name == "model.safetensors"
    repo.add({"model.safetensors": sound})
    assert contents(pull(HubId("me/policy"), tmp_path / "back")) == contents(folder)


@pytest.mark.parametrize("inner", ["", "policy"])
def test_policy_that_was_changed_is_not_published(
    inner: str, hub: WritableHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No load would accept it. Its author may remove the line of the file."""
    folder = saved(tmp_path / "own" / inner)
    if inner:
        for name in ("config.yaml", "order.json"):
            (tmp_path / "own" / name).write_text("{}")
        (tmp_path / "own" / "checkpoints" / "step-00000001").mkdir(parents=True)
    config = folder / "config.json"
    sums = folder / checksums.FILE
    config.write_text(config.read_text() + "\n")
    command = ["push", str(tmp_path / "own"), "--to", "hf://me/own"]
    assert main(command) == WRONG_INPUT
    assert str(config) in capsys.readouterr().err
    assert hub.repos == {}
    sums.write_text(
        "".join(line for line in sums.read_text().splitlines(True) if "config.json" not in line)
    )
    if not inner:
        assert main(command) == 0


def test_stopped_pull_continues(
    hub: WritableHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_pull_replaces_no_folder(
    hub: WritableHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(saved(tmp_path / "source")), "--to", "hf://me/policy"]) == 0
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "mine.txt").write_text("mine")
    # resume has no other folder to name: its remedy is the command that has
    for command in ("pull", "resume"):
        assert main([command, "hf://me/policy"]) == WRONG_INPUT
        assert "understudy pull hf://me/policy --output-dir" in capsys.readouterr().err
    assert contents(tmp_path / "policy") == {"mine.txt": b"mine"}


def test_stopped_pull_continues_after_another_commit(hub: WritableHub, tmp_path: Path) -> None:
    assert main(["push", str(saved(tmp_path / "policy")), "--to", "hf://me/policy"]) == 0
    repo = hub.repos["models/me/policy"]
    hub.broken = "normalisation"
    repo.add({"old.txt": b"of the first commit"})
    assert main(["pull", "hf://me/policy", "--output-dir", "copy"]) == WRONG_INPUT
    repo.add({"old.txt": None, "new.txt": b"of the second commit"})
    hub.broken = ""
    hub.downloads.clear()
    assert main(["pull", "hf://me/policy", "--output-dir", "copy"]) == 0
    assert contents(tmp_path / "copy") == contents(tmp_path / "policy") | {
        "new.txt": b"of the second commit"
    }
    assert not [path for path in hub.downloads if path.endswith("model.safetensors")]


def test_processes_of_a_run_fetch_it_once(hub: WritableHub, tmp_path: Path) -> None:
    """As the ranks of `resume hf://me/policy` do."""
    assert main(["push", str(saved(tmp_path / "policy")), "--to", "hf://me/policy"]) == 0
    with ThreadPoolExecutor(3) as ranks:
        found = list(ranks.map(lambda rank: pull(HubId("me/policy"), tmp_path / "copy"), range(3)))
    assert found == [tmp_path / "copy"] * 3
    assert contents(tmp_path / "copy") == contents(tmp_path / "policy")
    assert len([path for path in hub.downloads if path.endswith("config.json")]) == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    "name", ["../evil.txt", "policy/../../evil.txt", "/evil.txt", "..", "a\\..\\..\\evil.txt"]
)
def test_names_outside_the_folder_are_refused(
    hub: WritableHub,
    tmp_path: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["push", str(saved(tmp_path / "policy")), "--to", "hf://me/policy"]) == 0
    hub.repos["models/me/policy"].add({name: b"evil"})
    asked: list[list[str]] = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda *args, **kwargs: asked.append(args)
    )
    assert main(["pull", "hf://me/policy", "--output-dir", str(tmp_path / "a/copy")]) == WRONG_INPUT
    assert repr(name) in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
    assert asked == []


def test_policy_is_loaded_without_names_outside_its_folder(
    hub: WritableHub, tmp_path: Path
) -> None:
    assert main(["push", str(saved(tmp_path / "policy")), "--to", "hf://me/policy"]) == 0
    hub.repos["models/me/policy"].add({"../evil.txt": b"evil", "/evil.txt": b"evil"})
    assert torch.equal(us.load_policy("hf://me/policy").policy.fuse.weight, policy().fuse.weight)
    assert not [path for path in hub.downloads if "evil" in path]


def test_full_disk_is_no_error_of_the_hub(
    hub: WritableHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    hub.repos["models/me/policy"] = Repo()
    hub.repos["models/me/policy"].add({"config.json": b"{}"})
    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    with pytest.raises(OSError) as caught:
        us.load_policy("hf://me/policy")
    assert caught.value.errno == errno.ENOSPC
    assert main(["pull", "hf://me/policy"]) == FAILED


def test_policy_of_a_run_comes_without_its_checkpoints(hub: WritableHub, tmp_path: Path) -> None:
    folder = saved(tmp_path / "policy")
    hub.repos["models/me/run"] = repo = Repo()
    repo.add({f"policy/{name}": content for name, content in contents(folder).items()})
    repo.add({"checkpoints/step-8/part.distcp": b"large"})
    loaded = us.load_policy("hf://me/run")
    assert torch.equal(loaded.policy.fuse.weight, policy().fuse.weight)
    config = with_local_files(TrainConfig(init_from="hf://me/run"))
    assert (Path(config.init_from) / "config.json").read_bytes() == (
        folder / "config.json"
    ).read_bytes()
    assert not [path for path in hub.downloads if "checkpoints" in path]


def test_path_is_never_a_repository(
    hub: WritableHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["push", str(saved(tmp_path / "source")), "--to", "hf://me/policy"]) == 0
    with pytest.raises(FileNotFoundError):
        us.load_policy(Path("me/policy"))
    with refused("me/nothing", kind=ConfigError):
        us.load_policy("me/nothing")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError):
        us.load_policy("me/policy")
    with pytest.raises(MissingExtraError):
        us.load_policy("hf://me/policy")


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
    trained_run(whole)
    (whole / "wandb").mkdir()
    (whole / "wandb" / "wandb-metadata.json").write_text('{"host": "mine", "email": "me@home"}')
    assert main(["push", str(whole), "--to", "hf://me/run", "--checkpoint", "8"]) == 0
    assert not [
        path for path in hub.repos["models/me/run"].files("main") if path.startswith("wandb")
    ]
    shutil.rmtree(whole / "wandb")
    hub.repos["models/me/run"].add({"policy/README.md": b"my words"})
    assert main(["push", str(whole), "--to", "hf://me/run", "--checkpoint", "8", "--update"]) == 0
    assert hub.repos["models/me/run"].files("main")["policy/README.md"] == b"my words"
    hub.repos["models/me/run"].add({"policy/README.md": (whole / "policy/README.md").read_bytes()})
    steps = {
        name.split("/")[1]
        for name in hub.repos["models/me/run"].files("main")
        if name.startswith("checkpoints/")
    }
    assert steps == {"step-00000008"}
    assert main(["resume", "hf://me/run", "--log.no-report"]) == 0
    same_run(whole, tmp_path / "run")
    before = len(hub.downloads)
    with caplog.at_level(logging.INFO, "understudy"):
        assert main(["resume", "hf://me/run", "--log.no-report"]) == 0  # the run there continues
    assert len(hub.downloads) == before


def test_checkpoint_of_a_run_is_chosen_by_its_step(
    hub: WritableHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    for name in ("step-00000008", "step-00000012", "step-00000016.tmp", "best-00000004"):
        (run / "checkpoints" / name).mkdir(parents=True)
        (run / "checkpoints" / name / ".metadata").write_text(name)
    for name in ("config.yaml", "order.json", "STOP"):
        (run / name).write_text("{}")
    words = ["push", str(run), "--to", "hf://me/run", "--checkpoint"]
    assert main([*words, "4"]) == WRONG_INPUT
    assert "8, 12" in capsys.readouterr().err
    assert hub.repos == {}
    for step, folder in (("latest", "step-00000012"), ("8", "step-00000008")):
        assert main([*words, step, "--update"]) == 0
        published = set(hub.repos["models/me/run"].files("main")) - {".gitattributes"}
        assert published == {"config.yaml", "order.json", f"checkpoints/{folder}/.metadata"}


def test_no_connection_is_named_as_the_cause(
    hub: WritableHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("hf_api.api.endpoint", "constants.ENDPOINT"):
        monkeypatch.setattr(f"huggingface_hub.{name}", "http://127.0.0.1:9")
    folder = saved(tmp_path / "policy")
    for words in (["push", str(folder), "--to", "hf://me/policy"], ["pull", "hf://me/other"]):
        assert main(words) == WRONG_INPUT
        message = capsys.readouterr().err
        assert "network" in message
        assert "log in" not in message


@pytest.mark.long
def test_offline_mode_is_named_as_the_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    for words in (
        ["pull", "hf://me/other"],
        ["serve", "me/other"],
        ["check", "hf://datasets/me/other"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "understudy", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode in (FAILED, WRONG_INPUT)
        assert "HF_HUB_OFFLINE forbids" in done.stderr
        assert "network" not in done.stderr


def test_mistyped_folder_is_named_with_its_neighbour(
    hub: WritableHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "policies" / "table")
    assert main(["push", "policys/tabel", "--to", "hf://me/policy"]) == WRONG_INPUT
    assert str(folder) in capsys.readouterr().err
