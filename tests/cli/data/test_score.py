"""`understudy score`: its columns, its quantiles, its refusals, and kills."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import understudy as us
from understudy.policies.policy import load
from understudy.testing.runs import tiny_config
from understudy.train import run
from understudy.train.checkpoint.run_dir import RunDir
from understudy_base import BeingWritten, ConfigError, DatasetError, hold_folder
from understudy_base.testing.refusals import refused
from understudy_data.parts import Workers
from understudy_data.testing.outcomes import FPS, write_outcomes
from understudy_kit import override
from understudy_kit.cli import main
from understudy_tools.cli.edit import EditConfig, edit
from understudy_zoo import score as score_module
from understudy_zoo.cli.score import ScoreConfig, score
from understudy_zoo.value.config import ValueSettings

LENGTHS = [5, 6, 1, 7, 4, 6]
SUCCESS = [True, False, True, None, False, True]
COLUMNS = ("value", "advantage", "advantage_is_positive")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data`, a run `value` on it, and a run `flow` that has no value function."""
    root = tmp_path_factory.mktemp("score")
    write_outcomes(root / "data", LENGTHS, SUCCESS)
    config = override(
        tiny_config(root / "data", root / "flow"),
        steps=2,
        val={"every": 0},
        optim={"ema": {"decay": 0.0}},
    )
    run.train(config)
    policy = ValueSettings(
        width=16, bins=11, text_bytes=16, returns="time", horizon=2.0, discount=0.9
    )
    run.train(override(config, output_dir=str(root / "value"), steps=8, policy=policy))
    return root


def frames(root: Path) -> list[dict[str, Any]]:
    data = us.EpisodeDataset(root)
    return [data[index] for index in range(len(data))]


def test_score_writes_values_and_advantages(
    scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scored"
    arguments = [
        "score",
        str(scene / "value"),
        str(scene / "data"),
        str(out),
        "--num-steps",
        "3",
        "--positive",
        "0.4",
    ]
    assert main.main([*arguments, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    before = frames(scene / "data")
    after = frames(out)
    assert len(before) == len(after) == summary["frames"]
    for old, new in zip(before, after, strict=True):
        assert set(new) == set(old) | set(COLUMNS)
        assert all(
            torch.equal(old[key], new[key]) for key in ("action", "observation.state", "reward")
        )
    policy = load(scene / "value/policy")
    batch = {
        "observation.state": torch.stack([f["observation.state"] for f in before]),
        "task": [f["task"] for f in before],
    }
    with torch.no_grad():
        expected = policy.values(policy.preprocess(batch))  # type: ignore[operator]
    torch.testing.assert_close(
        torch.stack([frame["value"] for frame in after]), expected, atol=1e-5, rtol=0
    )
    advantages = _naive_advantages(after)
    np.testing.assert_allclose(
        [float(frame["advantage"]) for frame in after], advantages, atol=1e-5
    )
    tasks = np.array([frame["task"] for frame in after])
    positive = np.array([bool(frame["advantage_is_positive"]) for frame in after])
    for task in np.unique(tasks):
        ranked = np.array(advantages)[tasks == task]
        assert (positive[tasks == task] == (ranked > np.quantile(ranked, 0.6))).all()
    origin = json.loads((out / "meta/edit.json").read_text())
    assert set(origin["score"]["values"]["policy"]) >= {"config.json", "model.safetensors"}
    assert origin["score"]["num_steps"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["scored"]


def _naive_advantages(after: list[dict[str, Any]]) -> list[float]:
    """Advantage over 3 steps of each frame from the written values, one step at a time."""
    advantages = []
    first = 0
    for length, won in zip(LENGTHS, SUCCESS):
        values = [float(frame["value"]) for frame in after[first : first + length]]
        for t in range(length):
            total = 0.0
            k = 0
            while k < 3 and t + k < (length if won is not None else length - 1):
                last = t + k == length - 1
                total += 0.9**k * ((0.0 if won else -2.0) if last else -1 / FPS)
                k += 1
            advantages.append(
                total + (0.9**k * values[t + k] if t + k < length else 0.0) - values[t]
            )
        first += length
    return advantages


def test_interventions_are_positive(scene: Path, tmp_path: Path) -> None:
    paths = (str(scene / "value"), str(scene / "data"), str(tmp_path / "out"))
    score(ScoreConfig(paths=paths, num_steps=3, positive=0.1, interventions="helped"))
    after = frames(tmp_path / "out")
    assert all(bool(frame["advantage_is_positive"]) for frame in after if int(frame["helped"]))
    assert not all(bool(frame["advantage_is_positive"]) for frame in after)


def test_score_refuses_what_it_cannot_use(scene: Path, tmp_path: Path) -> None:
    data = str(scene / "data")
    out = str(tmp_path / "out")
    with refused("flow", kind=ConfigError):
        score(ScoreConfig(paths=(str(scene / "flow"), data, out)))
    with refused("'other'", kind=ConfigError):
        score(ScoreConfig(paths=(str(scene / "value"), data, out), source="other"))
    with refused("'task'", where="data"):
        score(ScoreConfig(paths=(str(scene / "value"), data, out), interventions="task"))
    assert not list(tmp_path.iterdir())  # all of these come before the pass over the frames
    assert ScoreConfig(paths=(data, out)).problems()
    assert ScoreConfig(paths=(str(scene / "value"), data, data)).problems()  # it exists
    score(ScoreConfig(paths=(str(scene / "value"), data, out)))
    with refused("advantage", where="out", fix="--drop-features"):
        score(ScoreConfig(paths=(str(scene / "value"), out, str(tmp_path / "twice"))))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


SCRIPT = """
import sys, time
from understudy_zoo import score
score.BATCH, score.PIECE = 2, 4
of_batch = score.ValueFunction.read
def slow(self, part):
    time.sleep(seconds)
    return of_batch(self, part)
score.ValueFunction.read = slow
seconds, paths = float(sys.argv[1]), tuple(sys.argv[2:])
sys.argv[1:] = ["score"]  # the command in meta/edit.json
from understudy_zoo.cli.score import ScoreConfig, score as command
command(ScoreConfig(paths=paths, num_threads=1))
"""


def contents(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.mark.long
def test_killed_score_continues_to_equal_bytes(scene: Path, tmp_path: Path) -> None:
    def start(out: Path, seconds: float) -> subprocess.Popen[bytes]:
        words = [
            sys.executable,
            "-c",
            SCRIPT,
            str(seconds),
            str(scene / "value"),
            str(scene / "data"),
            str(out),
        ]
        return subprocess.Popen(words)

    assert start(tmp_path / "whole/out", 0).wait(300) == 0
    killed = tmp_path / "killed/out"
    pieces = tmp_path / "killed/.out.values"
    for count in (1, 3):
        process = start(killed, 0.5)
        deadline = time.monotonic() + 300
        while len(list(pieces.glob("*.part"))) < count:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not killed.exists()
    kept = len(list(pieces.glob("*.part")))
    assert start(killed, 0).wait(300) == 0
    assert kept >= 3
    assert not pieces.exists()
    assert contents(killed) == contents(tmp_path / "whole/out")


@pytest.mark.parametrize("workers", [1, 2])
def test_values_are_equal_for_any_number_of_processes(
    scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    opened = scene / "value", str(scene / "data"), "", "cpu"
    function = score_module.open_value_function(*opened)
    frames = len(function.dataset)
    whole = score_module.compute_values(
        score_module.ComputeValues(opened, 1, "one", function), frames, Workers()
    )
    monkeypatch.setattr(score_module, "PIECE", 8)
    work = score_module.ComputeValues(opened, 1, "one")
    with Workers(workers, folder=tmp_path) as engine:
        values = score_module.compute_values(work, frames, engine)
    assert len(list(tmp_path.glob("*.part"))) == -(-frames // 8) > 2
    np.testing.assert_allclose(values, whole, rtol=1e-5)  # batches of other sizes round otherwise
    with Workers(folder=tmp_path) as engine:
        kept = score_module.compute_values(work, frames, engine)
        other = score_module.compute_values(replace(work, identity="another"), frames, engine)
    assert values.tobytes() == kept.tobytes() == other.tobytes()
    assert len(list(tmp_path.glob("*.part"))) == 2 * -(-frames // 8)


def test_kept_values_belong_to_all_that_they_depend_on(
    scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second call with another mapping, separator, task or policy computes anew; settings of
    advantages do not.
    """
    identities: list[str] = []

    def compute(work: score_module.ComputeValues, frames: int, workers: Workers) -> np.ndarray:
        identities.append(work.identity)
        return np.zeros(frames, np.float32)

    monkeypatch.setattr(score_module, "compute_values", compute)

    def identity(run_root: Path, data: Path = scene / "data", **changes: Any) -> str:
        score(
            ScoreConfig(
                paths=(str(run_root), str(data), str(tmp_path / f"out{len(identities)}")), **changes
            )
        )
        return identities[-1]

    def changed(name: str, **changes: Any) -> Path:
        shutil.copytree(scene / "value", tmp_path / name)
        run_dir = RunDir(tmp_path / name)
        run_dir.write_settings(
            override(run_dir.settings(), output_dir=str(tmp_path / name), **changes)
        )
        return tmp_path / name

    first = identity(scene / "value")
    assert identity(scene / "value", num_steps=2, positive=0.5) == first
    texts = tmp_path / "tasks.json"
    texts.write_text(json.dumps({"task 0": "another"}))
    edit(EditConfig(paths=(str(scene / "data"), str(tmp_path / "renamed")), tasks=str(texts)))
    others = [
        identity(changed("separated", augment={"task_separator": ";"})),
        identity(changed("mapped", data={"action": "observation.state"})),
        identity(changed("robot", data={"robot_type": "arm"})),
        identity(scene / "value", tmp_path / "renamed"),
    ]
    assert len({first, *others}) == 5


def test_two_calls_do_not_write_one_output(scene: Path, tmp_path: Path) -> None:
    paths = (str(scene / "value"), str(scene / "data"), str(tmp_path / "out"))
    pieces = tmp_path / ".out.values"
    pieces.mkdir()
    with hold_folder(pieces), pytest.raises(DatasetError) as caught:
        score(ScoreConfig(paths=paths))
    assert isinstance(caught.value.__cause__, BeingWritten)
    score(ScoreConfig(paths=paths))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    pieces.mkdir()
    with pytest.raises(BeingWritten), hold_folder(pieces.with_name("removed")):
        pass
    with pytest.raises(BeingWritten), hold_folder(pieces), hold_folder(pieces):
        pass


def test_a_value_that_is_not_finite_names_the_episode(scene: Path, tmp_path: Path) -> None:
    shutil.copytree(scene / "data", tmp_path / "data")
    (file,) = (tmp_path / "data/data").rglob("*.parquet")
    table = pq.read_table(file)
    states = np.array(table["observation.state"].to_pylist())
    states[sum(LENGTHS[:3]) + 2] = np.nan  # frame 2 of episode 3, which was cut
    column = pa.array(states.tolist(), table.schema.field("observation.state").type)
    pq.write_table(
        table.set_column(
            table.schema.get_field_index("observation.state"), "observation.state", column
        ),
        file,
    )
    with refused(2, 3, where="data", fix="--exclude-episodes 3"):
        score(
            ScoreConfig(paths=(str(scene / "value"), str(tmp_path / "data"), str(tmp_path / "out")))
        )
    assert not (tmp_path / "out").exists()


def test_files_of_others_in_the_place_of_the_values_stay(scene: Path, tmp_path: Path) -> None:
    (tmp_path / ".out.values").mkdir()
    (tmp_path / ".out.values/mine.txt").write_text("mine")
    score(ScoreConfig(paths=(str(scene / "value"), str(scene / "data"), str(tmp_path / "out"))))
    assert [path.name for path in (tmp_path / ".out.values").iterdir()] == ["mine.txt"]
    assert (tmp_path / ".out.values/mine.txt").read_text() == "mine"
