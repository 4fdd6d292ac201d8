"""Counts that no machine bears are one line before anything is started, and never a crash."""

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train import run
from understudy_base import ConfigError
from understudy_kit import HostLimit, launch, main


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("limits") / "dataset")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--torch-threads", "100000"),
        ("--torch-threads", str(HostLimit.THREADS.largest + 1)),
        ("--loader.num-threads", "100000"),
        ("--launch", "100000"),
        ("--launch", "999999999999999999999999999999"),
        ("--policy.layers", "1000000000"),
        ("--policy.noise_samples", "1000000000"),
        ("--policy.width", "80000000000000"),
        ("--batch-size", "1000000000000"),
        ("--data.chunk-size", "1000000000000"),
        ("--data.frames-in-flight", "99999999999999999999"),
        ("--steps", "99999999999999999999"),
        ("--rollout.num-envs", "1000000"),
        ("--augment.shift", "1000000"),
    ],
)
def test_limits_of_settings_are_one_line(
    data: Path, tmp_path: Path, flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["train", "--data.root", str(data), "--output-dir", str(tmp_path / "r"), flag, value])
        == 2
    )
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert value in told
    assert flag.removeprefix("--").replace("-", "_").split("_")[0] in told
    assert not (tmp_path / "r").exists()


def test_limits_of_other_commands(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(data), "--num-threads", "100000"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(ConfigError, match="100000"):
        launch.launch(["true"], 100_000)


def test_train_refuses_a_network_larger_than_memory(data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, tmp_path / "r")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigError, match=r"policy: .*parameters"):
        run.train(replace(config, policy=replace(config.policy, width=2**20)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # kB
    assert not (tmp_path / "r/config.yaml").exists()


@pytest.mark.long
def test_largest_threads_can_run(data: Path, tmp_path: Path) -> None:
    """As many arithmetic threads as may be asked for, in a process of its own."""
    call = [
        "train",
        "--data.root",
        str(data),
        "--output-dir",
        str(tmp_path / "r"),
        "--steps",
        "1",
        "--val.every",
        "0",
    ]
    small = [
        "--policy.image_size",
        "16",
        "16",
        "--policy.channels",
        "8",
        "--policy.width",
        "16",
        "--batch-size",
        "4",
    ]
    threads = [
        "--torch-threads",
        str(HostLimit.THREADS.largest),
        "--loader.num-threads",
        str(HostLimit.LOADER_THREADS.largest),
    ]
    command = [sys.executable, "-m", "understudy", *call, *small, *threads, "--log.no-report"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
