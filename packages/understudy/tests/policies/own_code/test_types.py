"""A policy in a file, `FILE.py:NAME`: the file of docs/own_policies.md, unchanged, through every
command.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import understudy
from understudy.config.train import TrainConfig
from understudy.policies.inference import load_policy
from understudy.policies.own_code import trusted, types
from understudy.policies.own_code.types import CODE, given_code
from understudy.policies.registry import PolicyType, policy_type
from understudy.testing.runs import series, tiny_dataset
from understudy.train.checkpoint.checksums import SEAL, add_seal
from understudy_base import ConfigError
from understudy_kit import load, main, validate_new
from understudy_kit.cli.main import read_settings

PAGE = (Path(__file__).parents[5] / "docs" / "own_policies.md").read_text()
FLAGS = [
    "--steps",
    "4",
    "--batch-size",
    "4",
    "--val.every",
    "2",
    "--checkpoint.every",
    "2",
    "--log.no-report",
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the file of the documentation, and a dataset."""
    block = re.search(r'```python title="my_policy.py"\n(.*?)```', PAGE, re.DOTALL)
    assert block is not None
    (tmp_path / "my_policy.py").write_text(block[1])
    tiny_dataset(tmp_path / "data")
    return tmp_path


def command(name: str, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own: nothing is imported there yet."""
    line = [sys.executable, "-m", "understudy", name, *map(str, words)]
    return subprocess.run(
        line, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ}
    )


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has named no code by hand yet; returns the folder of the list."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv(trusted.NAMED, "")
    return tmp_path / "config" / "understudy"


def forget() -> None:
    """Forget the imported files and those that were named, as a new process does."""
    types._types.clear()
    types._imported.clear()
    os.environ[trusted.NAMED] = ""


def trained(place: Path, *words: str) -> Path:
    flags = [
        "--policy.type",
        f"{place / 'my_policy.py'}:MINE",
        "--policy.hidden",
        "8",
        "--data.root",
        str(place / "data"),
    ]
    assert main(["train", *flags, *FLAGS, *words, "--output-dir", str(place / "run")]) == 0
    return place / "run"


def test_settings_pin_the_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    config = read_settings(
        "train",
        ["--policy.type", "my_policy.py:MINE", "--policy.hidden", "8", "--data.root", "data"],
    )
    kind = config.policy.type
    assert (kind.startswith(f"{place / 'my_policy.py'}:MINE#"), config.policy.hidden) == (True, 8)
    (place / "c.json").write_text(
        json.dumps({"policy": {"type": "my_policy.py:MINE", "hidden": 8}})
    )
    assert load(TrainConfig, place / "c.json").policy == config.policy
    assert (
        validate_new(TrainConfig, {"policy": {"type": kind, "hidden": 8}}).policy == config.policy
    )
    for words in (["nowhere.py:MINE"], ["my_policy.py:OTHER"], ["my_policy.py:nn"]):
        with pytest.raises(ConfigError) as error:
            read_settings("train", ["--policy.type", *words, "--data.root", "data"])
        assert words[0].rpartition(":")[2] in str(error.value)
    with pytest.raises(ConfigError, match=r"FILE\.py:NAME"):
        read_settings("train", ["--policy.type", "my_policy.py", "--data.root", "data"])
    for name in ("MyPolicy", "OTHER"):  # the message names the type that the file has
        with pytest.raises(ConfigError, match=f"{name} .* MINE$"):
            read_settings("train", ["--policy.type", f"my_policy.py:{name}", "--data.root", "data"])
    with pytest.raises(ConfigError, match=r"--policy\.hidden\?"):
        read_settings("train", ["--policy.type", "my_policy.py:MINE", "--policy.hiden", "8"])


def test_settings_of_code_that_is_gone_are_not_called_unknown(place: Path) -> None:
    kind = types.name_by_hand(f"{place / 'my_policy.py'}:MINE")
    os.remove(place / "my_policy.py")
    forget()
    with pytest.raises(ConfigError) as error:
        validate_new(TrainConfig, {"policy": {"type": kind, "hidden": 8}})
    assert "--policy-code" in str(error.value)
    assert "hidden" not in str(error.value)


def test_file_trains_resumes_and_acts(place: Path, tmp_path: Path) -> None:
    run = trained(place)
    assert len(series(run)) == 4
    assert (
        (run / CODE).read_bytes()
        == (run / "policy" / CODE).read_bytes()
        == (place / "my_policy.py").read_bytes()
    )
    forget()
    assert main(["resume", str(run), "--steps", "6"]) == 0
    assert main(["export", str(run), "--output-dir", str(tmp_path / "export")]) == 0
    assert main(["validate", str(run)]) == 0
    policy = load_policy(tmp_path / "export")
    (camera,) = policy.metadata["cameras"]
    observation = {"observation.state": np.zeros(policy.config.state_dim, np.float32), "task": ""}
    assert (
        policy.act(
            {**observation, camera: np.zeros((64, 64, 3), np.uint8)},
        ).shape[0]
        == policy.config.chunk
    )


def test_changed_code_is_imported_only_where_it_is_given(
    place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = trained(place)
    file = place / "my_policy.py"
    file.write_text(file.read_text() + "\nCHANGED = True\n")
    forget()
    with pytest.raises(ValueError, match="--policy-code"):
        load_policy(run)
    assert main(["resume", str(run), "--steps", "6"]) == 2
    assert load_policy(run, code=file).config.hidden == 8
    assert caplog.text.count("sha256") == 1
    forget()
    assert load_policy(run, code=file).config.hidden == 8
    assert caplog.text.count("sha256") == 1  # once per process
    forget()
    assert main(["resume", str(run), "--steps", "6", "--policy-code", str(file)]) == 0
    assert os.environ.get(types.GIVEN) is None


def stranger(place: Path, run: Path, kind: str) -> Path:
    """Return a copy of a run whose policy and settings name other code."""
    copy = Path(shutil.copytree(run, place / "run"))
    stored = json.loads((copy / "policy" / "config.json").read_text())
    (copy / "policy" / "config.json").write_text(json.dumps({**stored, "type": kind}))
    (copy / "policy" / "understudy.sha256").unlink()
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(
        re.sub(r"type: .*my_policy.py:MINE#[0-9a-f]{64}", f"type: {kind}", text)
    )
    order = json.loads((copy / "order.json").read_text())
    order["policy"]["type"] = kind
    order.pop(SEAL)
    (copy / "order.json").write_text(json.dumps(add_seal(order)))
    return copy


def test_no_reader_of_a_folder_imports_code_that_was_not_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(place)
    monkeypatch.chdir(place)
    evil = place / "evil" / "x.py"
    evil.parent.mkdir()
    evil.write_text(f"open({str(place / 'ran')!r}, 'w')\n")
    (place / "link.py").symlink_to(evil)
    digest = hashlib.sha256(evil.read_bytes()).hexdigest()
    forms = (
        evil,
        f"/proc/self/root{evil}",
        "/proc/self/cwd/evil/x.py",
        "evil/x.py",
        place / "link.py",
    )
    for number, kind in enumerate(
        f"{path}:MINE{mark}" for path in forms for mark in (f"#{digest}", "", "#")
    ):
        copy = stranger(place / f"repo{number}", run, kind)
        forget()
        with pytest.raises(ValueError) as error:
            load_policy(copy / "policy")
        assert "MINE" in str(error.value)
        if digest in kind:
            assert all(text in str(error.value) for text in (str(evil), digest, "--policy-code"))
        assert not (place / "ran").exists(), kind
        if number not in (0, 6):
            continue
        for name in (
            "report",
            "validate",
            "resume",
            "export",
            "rollout",
            "serve",
            "contract",
            "push",
            "view",
            "why",
        ):
            with suppress(SystemExit):
                main([name, str(copy), *(["me/x"] if name == "push" else [])])
            assert not (place / "ran").exists(), name
        for name in ("statistics", "train", "profile", "plan", "tokenizer fit"):
            with suppress(SystemExit):
                main([*name.split(), str(copy / "config.yaml")])
            assert not (place / "ran").exists(), name
    capsys.readouterr()


def test_refusal_names_the_file_its_digest_and_the_flag(place: Path) -> None:
    run = trained(place)
    shutil.rmtree(place / "config")  # another user, or another machine
    forget()
    digest = hashlib.sha256((place / "my_policy.py").read_bytes()).hexdigest()
    with pytest.raises(ValueError) as error:
        load_policy(run)
    expected = (str(place / "my_policy.py"), digest, f"--policy-code {place / 'my_policy.py'}")
    assert all(text in str(error.value) for text in expected)
    assert main(["validate", str(run)]) == 2
    assert main(["validate", str(run), "--policy-code", str(place / "my_policy.py")]) == 0
    forget()
    assert main(["validate", str(run)]) == 0  # named by hand once


def test_a_settings_file_is_not_the_users_word(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "policy": {"type": str(place / "my_policy.py") + ":MINE", "hidden": 8},
        "data": {"root": "data"},
    }
    (place / "c.json").write_text(json.dumps(settings))
    assert main(["train", str(place / "c.json"), "--print-config"]) == 2
    shown = capsys.readouterr().err
    assert f"--policy-code {place / 'my_policy.py'}" in shown
    with pytest.raises(ConfigError):
        understudy.train(place / "c.json")
    given = ["--policy.type", f"{place / 'my_policy.py'}:MINE"]
    assert main(["train", str(place / "c.json"), *given, "--print-config"]) == 0
    forget()
    assert main(["train", str(place / "c.json"), "--print-config"]) == 0


def test_a_mapping_in_python_is_the_users_word(place: Path) -> None:
    settings: dict[str, Any] = {
        "policy": {"type": str(place / "my_policy.py") + ":MINE", "hidden": 8}
    }
    settings |= {
        "data": {"root": str(place / "data")},
        "output_dir": str(place / "run"),
        "steps": 1,
        "batch_size": 2,
    }
    run = understudy.train({**settings, "val": {"every": 0}, "log": {"report": False}})
    forget()
    assert load_policy(run).config.hidden == 8


def test_named_code_at_another_path_is_not_trusted(place: Path) -> None:
    """Equal code at another place may read other files beside itself."""
    run = trained(place)
    forget()
    (place / "other").mkdir()
    other = Path(shutil.copy(place / "my_policy.py", place / "other"))
    kind = types.pin(f"{other}:MINE")
    with pytest.raises(ValueError, match="--policy-code"):
        types.import_type(kind, PolicyType)
    assert types.import_type(types.pin(f"{place / 'my_policy.py'}:MINE"), PolicyType)
    assert load_policy(run)


def test_resume_takes_the_type_as_the_users_word(place: Path) -> None:
    run = trained(place)
    shutil.rmtree(place / "config")
    forget()
    kind = f"{place / 'my_policy.py'}:MINE"
    assert main(["resume", str(run), "--steps", "6", "--policy.type", kind]) == 0
    assert series(run)[-1]["step"] == 6


def test_expert_of_a_settings_file_is_not_imported(place: Path) -> None:
    evil = place / "expert.py"
    evil.write_text(f"open({str(place / 'ran')!r}, 'w')\n\ndef act(env, seen): ...\n")
    (place / "r.json").write_text(
        json.dumps({"expert": f"{evil}:act", "output_dir": str(place / "o"), "episodes": 1})
    )
    assert main(["record", str(place / "r.json")]) == 2
    assert not (place / "ran").exists()
    assert not (place / "o").exists()


def test_devices_and_pipes_in_place_of_code_are_refused(place: Path) -> None:
    os.mkfifo(place / "pipe.py")
    (place / "zero.py").symlink_to("/dev/zero")
    for name in ("pipe.py", "zero.py"):
        with pytest.raises(ValueError, match="plain"):
            types.import_type(f"{place / name}:MINE#{'0' * 64}", PolicyType)


@pytest.mark.long
def test_processes_of_a_user_without_a_home_go_on(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (place / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "file"))  # a list that cannot be written
    run = trained(place)
    (warning,) = {
        record.getMessage() for record in caplog.records if "--policy-code" in record.getMessage()
    }
    assert str(place / "my_policy.py") in warning
    assert command("validate", run, cwd=place).returncode == 0  # a child of this process
    forget()
    assert command("validate", run, cwd=place).returncode == 2
    monkeypatch.setenv(types.GIVEN, str(place / "my_policy.py"))
    assert command("validate", run, cwd=place).returncode == 0


def test_a_run_from_elsewhere_may_not_name_code(place: Path) -> None:
    run = trained(place)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(re.sub(r"MINE#[0-9a-f]{64}", "MINE", text))
    forget()
    assert main(["resume", str(run), "--steps", "6"]) == 2


def test_given_code_is_forgotten_after_the_block(place: Path) -> None:
    kind = types.name_by_hand(f"{place / 'my_policy.py'}:MINE")
    with given_code(place / "my_policy.py"):
        assert policy_type(kind).settings.type == "mine"
    assert types.GIVEN not in os.environ


@pytest.mark.long
def test_processes_of_their_own_find_the_file(place: Path) -> None:
    flags = [
        "--policy.type",
        "my_policy.py:MINE",
        "--data.root",
        "data",
        *FLAGS,
        "--output-dir",
        "run",
    ]
    done = command("train", *flags, "--launch", "2", cwd=place)
    assert done.returncode == 0, done.stderr
    assert command("plan", *flags[:4], cwd=place).returncode == 0
    done = command("resume", "run", "--steps", "5", cwd=place)
    assert done.returncode == 0, done.stderr
