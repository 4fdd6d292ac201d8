"""docs/training.md: its commands parse, its settings load, its files exist."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from support.refusals import refused
from understudy.cli import main
from understudy.config.schema import complete, dump_yaml, load
from understudy.config.train import DataConfig, TrainConfig
from understudy.policies.flow.model import FlowPolicy, FlowPolicyConfig
from understudy.train.checkpoint import run_dir

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "training.md").read_text()
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in block.splitlines()
]


def test_page_has_commands() -> None:
    assert len(COMMANDS) >= 8
    assert {command.split()[0] for command in COMMANDS} == {"understudy", "torchrun", "accelerate", "sbatch"}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_parses(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TrainConfig(data=DataConfig(root="d"))
    (tmp_path / "CONFIG.yaml").write_text(dump_yaml(settings))
    monkeypatch.setattr(run_dir, "resumed_settings", {"RUN": settings}.__getitem__)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    if words[0] == "sbatch":
        script = next(number for number, word in enumerate(words) if word.endswith(".sbatch"))
        assert (ROOT / words[script]).is_file()
        run, *rest = words[script + 1 :]
        words = ["understudy", "train", *rest, "--output-dir", run]
    if words[0] in ("torchrun", "accelerate"):
        words = words[words.index("-m") + 1 :]
    named = main.COMMANDS[words[1]]
    count, arguments = main.split_launch(words[2:])
    read = main.read_settings(words[1], arguments)
    assert not isinstance(read, TrainConfig) or read.data.root == "d"  # the file was read, not only the flags
    assert (count is not None) == ("--launch" in command)
    assert count is None or named.launchable


def test_linked_files_exist_and_launched_commands_are_listed() -> None:
    for path in re.findall(r"\]\(\.\./([^)]+)\)", PAGE):
        assert (ROOT / path).is_file(), path
    launched = {name for name, command in main.COMMANDS.items() if command.launchable}
    (named,) = re.findall(r"`--launch N` works for (.*?)\.", PAGE)
    assert set(re.findall(r"`(\w+)`", named)) == launched


def test_mixture_loads(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "c.yaml").write_text(block)
    config = complete(load(TrainConfig, tmp_path / "c.yaml"))
    assert config.data.names() == ("table", "arms")
    assert (
        TrainConfig(data=config.data, mode={"policy": 3.0, "inverse_dynamics": 1.0}).mode_weights()["policy"] == 3 / 4
    )


def test_robot_code_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A robot needs the folder alone: narrower than the widest, with one joint learned as a difference."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    camera = "observation.images.front"
    maps = {"offset": [[0.0] * 3, [0.0] * 3], "spread": [[1.0] * 3, [0.0] * 3]}
    units = {
        "heads": ["g1::joint", "so101::joint"],
        "action": maps,
        "observation.state": maps,
        "delta": [[False] * 3, [True, False, False]],
        "dims": {"action": [3, 2], "observation.state": [3, 2]},
    }
    config = FlowPolicyConfig(3, 3, (camera, "observation.images.wrist"), image_size=(16, 16), future=True)
    robots = {"g1::joint": {"cameras": list(config.cameras)}, "so101::joint": {"cameras": [camera]}}
    FlowPolicy(config, units).save(tmp_path / "POLICY", metadata={"heads": robots})
    monkeypatch.chdir(tmp_path)
    names = {"image": np.zeros((24, 32, 3), np.uint8), "state": np.array([5.0, 6.0])}
    with refused("'observation.images.wrist'", kind=ValueError):
        exec(block.replace("so101", "g1"), names | {"state": np.zeros(3)})
    with refused("observation.state", 2, 3, kind=ValueError):
        exec(block, names | {"state": np.array([5.0])})
    exec(block, names)
    expected = np.broadcast_to(np.float32([5, 0]), (config.chunk, 2))  # spread 0: no motion
    np.testing.assert_array_equal(names["actions"], expected)
