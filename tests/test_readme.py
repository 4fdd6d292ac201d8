"""The examples of the README run as written, on a recording like that of `make demo`."""

import re
from pathlib import Path

import pytest

pytest.importorskip("mujoco", reason="the recording needs the extra demo")

README = Path(__file__).parents[1] / "README.md"


def test_readme_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from understudy.cli.main import main

    monkeypatch.chdir(tmp_path)
    assert main(["record", "--out", "runs/demo/dataset", "--episodes", "6"]) == 0
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    names: dict = {}
    exec(compile(code, str(README), "exec"), names)
    sample, batch = names["sample"], names["batch"]
    assert sample["action"].shape == (4, 4)
    assert sample["observation.images.front"].shape == (2, 3, 64, 64)
    assert sample["action_is_pad"].shape == (4,)
    assert sample["task"].startswith("pick up the ")
    assert batch["action"].shape == (32, 4, 4)
    assert names["loader"].position == 32


def test_readme_names_all_commands() -> None:
    from understudy.cli.main import COMMANDS

    named = set(re.findall(r"^understudy ((?:order )?[a-z]+)", README.read_text(), flags=re.MULTILINE))
    assert named == set(COMMANDS)
