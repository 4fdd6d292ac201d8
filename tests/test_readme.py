"""The examples of the README and of docs/loading.md run as written, on a recording like that of `make demo`."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mujoco", reason="the recording needs the extra demo")

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recording of the examples."""
    from understudy.cli.main import main

    root = tmp_path_factory.mktemp("readme")
    assert main(["record", "--output-dir", str(root / "runs/demo/dataset"), "--episodes", "6"]) == 0
    return root


def run_code(path: Path, blocks: slice, **names: Any) -> dict[str, Any]:
    """Execute Python blocks of a page in one namespace, which is returned."""
    for code in re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)[blocks]:
        exec(compile(code, str(path), "exec"), names)
    return names


@pytest.mark.slow
def test_readme_loader_example_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names = run_code(README, slice(0, 1))
    assert names["state"].shape == (32, 4)
    assert names["batch"]["observation.images.front"].shape == (32, 3, 64, 64)
    assert names["saved"]["position"] == 100 * 32


@pytest.mark.slow
def test_readme_policy_example_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import understudy as us
    from understudy.cli.main import main

    monkeypatch.chdir(folder)
    small = ["--steps", "1", "--batch-size", "8", "--val.every", "0", "--log.no-report"]
    assert main(["train", "--data.root", "runs/demo/dataset", "--output-dir", "runs/table", *small]) == 0
    observation = us.EpisodeDataset("runs/demo/dataset")[0]
    names = run_code(README, slice(1, 2), us=us, observation=observation)
    assert names["actions"].shape == (8, 4)


def test_loading_page_example_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names = run_code(ROOT / "docs" / "loading.md", slice(None))
    sample, batch = names["sample"], names["batch"]
    assert sample["action"].shape == (4, 4)
    assert sample["observation.images.front"].shape == (2, 3, 64, 64)
    assert sample["action_is_pad"].shape == (4,)
    assert sample["task"].startswith("pick up the ")
    assert batch["action"].shape == (32, 4, 4)
    assert names["loader"].position == 32


def test_readme_names_all_commands() -> None:
    from understudy.cli.main import COMMANDS

    named = set(
        re.findall(r"^understudy ((?:(?:order|fast|tokenizer) )?[a-z]+)", README.read_text(), flags=re.MULTILINE)
    )
    assert named == set(COMMANDS)
