"""metrics.jsonl, checkpoints and the run directory: nothing torn is ever read, nothing is
overwritten.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.config.train import DataConfig, TrainConfig
from understudy.train.checkpoint import checkpoint, run_dir
from understudy.train.checkpoint.run_dir import (
    FORMAT,
    RECORDED,
    RunDir,
    RunInUseError,
    resumed_settings,
)
from understudy.train.track import metrics_file
from understudy_base import ConfigError
from understudy_base.testing.calls import recorded_calls
from understudy_base.testing.refusals import refused
from understudy_kit import read_file

RECORDS = [{"kind": "train", "step": step, "loss": math.pi / (step + 1)} for step in range(1, 6)]


def write(path: Path, records: list[dict]) -> None:
    file = metrics_file.MetricsFile(path)
    file.write(records)
    file.close()


@given(st.integers(0, 400))
def test_metrics_file_torn_anywhere_reads_as_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "torn.jsonl"
    path.unlink(missing_ok=True)
    write(path, RECORDS)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    assert metrics_file.read(path) == RECORDS[: whole[:cut].count(b"\n")]
    metrics_file.truncate(path, 3)
    write(path, [{"kind": "train", "step": 9}])  # a torn tail must not swallow the next line
    assert metrics_file.read(path) == [
        *RECORDS[: min(3, whole[:cut].count(b"\n"))],
        {"kind": "train", "step": 9},
    ]


def test_truncate_removes_later_records_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(
        path,
        [
            *RECORDS,
            {"kind": "val", "step": 3, "loss": 1.0},
            {"kind": "val", "step": 4, "loss": 1.0},
        ],
    )
    metrics_file.truncate(path, 3)
    assert [(r["kind"], r["step"]) for r in metrics_file.read(path)] == [
        ("train", 1),
        ("train", 2),
        ("train", 3),
        ("val", 3),
    ]
    assert metrics_file.read(path, "val") == [{"kind": "val", "step": 3, "loss": 1.0}]


def test_metrics_file_is_strict_json_and_names_a_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write(
        path,
        [
            {
                "kind": "train",
                "step": 1,
                "loss": float("nan"),
                "grad_norm": float("inf"),
                "note": "é",
            }
        ],
    )
    assert json.loads(path.read_text())["loss"] is None
    path.write_text("{nonsense\n" + path.read_text())
    with refused(path, 1, kind=ConfigError):
        metrics_file.read(path)
    assert metrics_file.read(tmp_path / "none.jsonl") == []


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {
        "weights/a": torch.full((3, 2), value),
        "step/a": torch.tensor(value),
        "weights/b": torch.zeros(0),
    }


def test_checkpoint_reads_back_bit_equal_and_is_never_overwritten(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 7, tensors(0.1), {"position": 70})
    assert checkpoint.save(tmp_path, 7, tensors(0.2), {"position": 0}) == path
    live = tensors(0.0)
    state = checkpoint.load(path, live)
    assert (state["step"], state["position"]) == (7, 70)
    assert all(torch.equal(live[name], tensor) for name, tensor in tensors(0.1).items())


def test_find_latest_returns_the_highest_complete_one(tmp_path: Path) -> None:
    assert checkpoint.find_latest(tmp_path / "nowhere") is None
    for step in (9, 10, 100):
        checkpoint.save(tmp_path, step, tensors(step), {})
    (tmp_path / "step-00000200.tmp").mkdir()
    (tmp_path / "step-later").mkdir()
    assert checkpoint.find_latest(tmp_path) == tmp_path / "step-00000100"
    checkpoint.prune(tmp_path, keep_last=2)
    assert checkpoint.list_steps(tmp_path) == [10, 100]
    assert not list(tmp_path.glob("*.tmp"))
    checkpoint.prune(tmp_path, keep_last=5)
    assert checkpoint.list_steps(tmp_path) == [10, 100]


def test_load_refuses_a_checkpoint_of_another_kind(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, tensors(1.0), {})
    for wrong in ({"weights/c": torch.zeros(2)}, {"weights/a": torch.zeros(5, 5)}):
        with pytest.raises(checkpoint.CheckpointError, match="step-00000001"):
            checkpoint.load(path, wrong)
    (path / "state.json").write_text('{"format": 99}')
    with refused(path, 99, kind=checkpoint.CheckpointError):
        checkpoint.load(path, tensors(0.0))
    (path / "state.json").write_text("[")
    with pytest.raises(checkpoint.CheckpointError, match=r"state\.json"):
        checkpoint.read_state(path)


def test_load_refuses_damaged_tensor_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = checkpoint.save(tmp_path, 1, tensors(1.0), {})
    for file in path.glob("*.distcp"):
        file.write_bytes(file.read_bytes()[:10])
    with refused(path, kind=checkpoint.CheckpointError):
        checkpoint.load(path, tensors(0.0))
    (path / ".metadata").write_bytes(b"no pickle")
    caplog.clear()
    with refused(path, kind=checkpoint.CheckpointError):
        checkpoint.load(path, tensors(0.0))
    # one error, not a library's traceback beside it
    assert not [r for r in caplog.records if r.name == "root"]


@pytest.mark.parametrize("broken", ["fsync", "rename"])
def test_save_on_a_failing_disk_keeps_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    checkpoint.save(tmp_path, 1, tensors(1.0), {})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "fsync") if broken == "fsync" else (Path, "rename")), full)
        with refused("Errno 28", kind=checkpoint.CheckpointError):
            checkpoint.save(tmp_path, 2, tensors(2.0), {})
    assert checkpoint.list_steps(tmp_path) == [1]
    live = tensors(0.0)
    checkpoint.load(tmp_path / "step-00000001", live)
    assert torch.equal(live["weights/a"], tensors(1.0)["weights/a"])


def test_run_dir_begins_once(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "r")
    config = TrainConfig(data=DataConfig(root="d"))
    with refused(tmp_path / "r", "config.yaml", kind=ConfigError):
        run.settings()
    decided = {name: {} for name in RECORDED - {"format"}}
    run.begin(config, decided)
    with refused(tmp_path / "r", "--output-dir", kind=ConfigError):
        run.begin(config, decided)
    moved = run.root.rename(tmp_path / "moved")
    assert resumed_settings(str(moved)).output_dir == str(moved)


@pytest.mark.parametrize("version", [None, 1, 4, FORMAT + 1, str(FORMAT)])
def test_run_dir_refuses_another_version_before_its_settings(
    tmp_path: Path, version: object
) -> None:
    run = RunDir(tmp_path)
    run.begin(TrainConfig(data=DataConfig(root="d")), {name: {} for name in RECORDED - {"format"}})
    content = json.loads(run.order.read_text()) | {"format": version}
    if version is None:
        del content["format"]
    run.order.write_text(json.dumps(content))
    run.config.write_text("something: that this version has never heard of\n")
    found = "format" if version is None else f"of format {version}"
    with refused(tmp_path, found, kind=ConfigError):
        run.settings()


@pytest.mark.parametrize(
    "name",
    [
        "order.json",
        "frames.parquet",
        "metrics.jsonl",
        "report.html",
        "policy/x",
        "checkpoints/x",
        "rollouts/x",
    ],
)
def test_run_dir_begin_overwrites_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    (tmp_path / "notes.txt").write_text("is in the way of no run")
    with pytest.raises(ConfigError, match=Path(name).parts[0]):
        RunDir(tmp_path).begin(
            TrainConfig(data=DataConfig(root="d")), {key: {} for key in RECORDED - {"format"}}
        )
    assert (tmp_path / name).read_text() == "mine"


def test_run_dir_begins_again_after_withdraw_or_kill(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    config = TrainConfig(data=DataConfig(root="d"))
    decided = {key: {} for key in RECORDED - {"format"}}
    run.begin(config, decided)
    metrics_file.MetricsFile(run.metrics).write(RECORDS)
    run.withdraw()
    run.begin(config, decided)
    run.config.unlink()  # as a kill leaves it
    run.begin(config, decided)


def test_run_dir_keeps_results_of_rollouts_on_withdraw(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.begin(TrainConfig(data=DataConfig(root="d")), {key: {} for key in RECORDED - {"format"}})
    run.rollouts.mkdir()
    (run.rollouts / "step-00000005.json").write_text("{}")
    before = set(tmp_path.rglob("*"))
    run.withdraw()
    assert set(tmp_path.rglob("*")) == before


def test_run_dir_refuses_a_file_and_locks_without_content(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with refused(tmp_path / "file", "--output-dir", kind=ConfigError):
        RunDir(tmp_path / "file").lock()
    (tmp_path / ".lock").write_text("mine")
    RunDir(tmp_path).lock().close()
    assert (tmp_path / ".lock").read_text() == "mine"


def test_prune_leaves_other_folders(tmp_path: Path) -> None:
    for name in ("step-1", "step-mine.tmp", "step-00000001.bak", "step-٣٣٣٣٣٣٣٣"):
        (tmp_path / name).mkdir()
    before = set(tmp_path.iterdir())
    for step in (2, 3):
        checkpoint.save(tmp_path, step, tensors(step), {})
    checkpoint.prune(tmp_path, keep_last=1)
    assert set(tmp_path.iterdir()) == before | {tmp_path / "step-00000003"}


def test_run_dir_lock_is_exclusive(tmp_path: Path) -> None:
    held = RunDir(tmp_path).lock()
    with refused(tmp_path, kind=RunInUseError):
        RunDir(tmp_path).lock()
    held.close()
    RunDir(tmp_path).lock().close()


def test_metrics_file_names_itself_when_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    file = metrics_file.MetricsFile(tmp_path / "metrics.jsonl")
    with pytest.raises(OSError, match=r"metrics\.jsonl'$"):
        file.sync()
    file.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="wants a disk that is full")
def test_metrics_file_on_a_full_disk_names_the_file() -> None:
    file = metrics_file.MetricsFile(Path("/dev/full"))
    with pytest.raises(OSError, match="/dev/full"):
        file.write(RECORDS)
    file.close()


def test_checkpoint_data_is_durable_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = recorded_calls(monkeypatch)
    path = checkpoint.save(tmp_path, 1, tensors(1.0), {})
    named = calls.index(("rename", path))
    flushed = [entry.name for call, entry in calls[:named] if call == "fsync"]
    for file in path.iterdir():  # under its own name or that of its draft
        assert any(file.name in name for name in flushed), file
    # the folder, with all its entries
    assert calls[named - 1] == ("fsync", path.with_name(f"{path.name}.tmp"))
    assert ("fsync", tmp_path) in calls[named:]
    assert calls[-1][1] == tmp_path


def test_settings_are_parsed_again_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "r")
    run.begin(TrainConfig(data=DataConfig(root="d")), {key: {} for key in RECORDED - {"format"}})
    parsed = list[Path]()

    def read(path: Path) -> dict[str, Any]:
        parsed.append(path)
        return read_file(path)

    monkeypatch.setattr(run_dir, "read_file", read)
    first = run.settings()
    assert RunDir(tmp_path / "r").settings() == first
    assert len(parsed) == 1
    before = run.config.read_text()
    times = run.config.stat()
    run.config.write_text(before.replace(f"steps: {first.steps}", f"steps: {first.steps + 1}"))
    assert run.config.stat().st_size == times.st_size
    os.utime(run.config, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert run.settings().steps == first.steps + 1
    assert len(parsed) == 2
    run.config.unlink()
    with refused("config.yaml", where=None, fix=None, kind=ConfigError):
        run.settings()
