"""A policy in a file, `FILE.py:NAME`: the file of docs/policies.md, unchanged, through every command."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.policies import editable
from support.runs import series, tiny_dataset
from understudy.cli.main import main, read_settings
from understudy.config.schema import load, validate_new
from understudy.config.train import TrainConfig
from understudy.errors import ConfigError
from understudy.policies import registry
from understudy.policies.inference import load_policy
from understudy.policies.registry import CODE, PolicyType, given_code, policy_type

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
FLAGS = ["--steps", "4", "--batch-size", "4", "--val.every", "2", "--checkpoint.every", "2", "--log.no-report"]


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
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ})


def forget() -> None:
    """Forget the imported files, as a new process does."""
    registry._types.clear()
    registry._contents.clear()


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
        "train", ["--policy.type", "my_policy.py:MINE", "--policy.hidden", "8", "--data.root", "data"]
    )
    kind = config.policy.type
    assert (kind.startswith(f"{place / 'my_policy.py'}:MINE#"), config.policy.hidden) == (True, 8)
    (place / "c.json").write_text(json.dumps({"policy": {"type": "my_policy.py:MINE", "hidden": 8}}))
    assert load(TrainConfig, place / "c.json").policy == config.policy
    assert validate_new(TrainConfig, {"policy": {"type": kind, "hidden": 8}}).policy == config.policy
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
    kind = registry.pin(f"{place / 'my_policy.py'}:MINE")
    os.remove(place / "my_policy.py")
    forget()
    with pytest.raises(ConfigError) as error:
        validate_new(TrainConfig, {"policy": {"type": kind, "hidden": 8}})
    assert "--policy-code" in str(error.value)
    assert "hidden" not in str(error.value)


def test_file_trains_resumes_and_acts(place: Path, tmp_path: Path) -> None:
    run = trained(place)
    assert len(series(run)) == 4
    assert (run / CODE).read_bytes() == (run / "policy" / CODE).read_bytes() == (place / "my_policy.py").read_bytes()
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
    run, file = trained(place), place / "my_policy.py"
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
    assert os.environ.get(registry.GIVEN) is None


def test_a_downloaded_folder_imports_nothing(place: Path, tmp_path: Path) -> None:
    run = trained(place)
    copy = editable(shutil.copytree(run / "policy", tmp_path / "pulled"))
    os.remove(place / "my_policy.py")
    (copy / "evil.py").write_text("raise SystemExit('imported')\n")
    stored = json.loads((copy / "config.json").read_text())
    for name in (CODE, "evil.py"):  # the author of the folder guessed the path of the download
        digest = registry._digest((copy / name).read_bytes())
        for kind in (f"{copy / name}:MINE#{digest}", f"{copy / name}:MINE", f"{copy / name}:MINE#"):
            (copy / "config.json").write_text(json.dumps({**stored, "type": kind}))
            forget()
            with pytest.raises(ValueError, match="MINE"):
                load_policy(copy)
    (copy / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=CODE):
        load_policy(copy)
    assert load_policy(copy, code=copy / CODE).config.hidden == 8  # its user has read it


@pytest.mark.parametrize("mark", registry.DOWNLOADED)
def test_code_below_any_mark_of_a_download_is_not_imported(mark: str, tmp_path: Path) -> None:
    code = tmp_path / "blobs" / "evil.py"
    link = tmp_path / "pulled" / "policy" / "evil.py"
    for path in (code, link, tmp_path / "pulled" / mark):
        path.parent.mkdir(parents=True, exist_ok=True)
    code.write_text("raise SystemExit('imported')\n")
    (tmp_path / "pulled" / mark).touch()
    link.symlink_to(code)  # as in the hub's cache
    with pytest.raises(ValueError, match="download"):
        registry.import_type(f"{link}:MINE#{registry._digest(code.read_bytes())}", PolicyType)


def test_code_at_a_relative_path_is_not_imported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The author of a download knows the name of its folder, and not its place."""
    kind = registry.pin(f"{place / 'my_policy.py'}:MINE")
    monkeypatch.chdir(place)
    with pytest.raises(ValueError, match="download"):
        registry.import_type(kind.removeprefix(f"{place}/"), PolicyType)
    assert registry.import_type(kind, PolicyType)


def test_a_run_from_elsewhere_may_not_name_code(place: Path) -> None:
    run = trained(place)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(re.sub(r"MINE#[0-9a-f]{64}", "MINE", text))
    forget()
    assert main(["resume", str(run), "--steps", "6"]) == 2


def test_given_code_is_forgotten_after_the_block(place: Path) -> None:
    kind = registry.pin(f"{place / 'my_policy.py'}:MINE")
    with given_code(place / "my_policy.py"):
        assert policy_type(kind).settings.type == "mine"
    assert registry.GIVEN not in os.environ


@pytest.mark.long
def test_processes_of_their_own_find_the_file(place: Path) -> None:
    flags = ["--policy.type", "my_policy.py:MINE", "--data.root", "data", *FLAGS, "--output-dir", "run"]
    done = command("train", *flags, "--launch", "2", cwd=place)
    assert done.returncode == 0, done.stderr
    assert command("plan", *flags[:4], cwd=place).returncode == 0
    done = command("resume", "run", "--steps", "5", cwd=place)
    assert done.returncode == 0, done.stderr
