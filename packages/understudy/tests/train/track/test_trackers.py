"""Trackers: however often a run is killed and resumed, each step is in each of them once."""

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from understudy.testing import tracked
from understudy.train.track import metrics_file
from understudy.train.track.trackers import MetricsLog, flatten
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused

PROGRAM = Path(tracked.__file__)
READERS: dict[str, Callable[[Path], tracked.Rows]] = {
    "tensorboard": tracked.in_tensorboard,
    "wandb": tracked.in_wandb,
    "trackio": tracked.in_trackio,
}


def process(root: Path, names: str, begin: int, end: int, how: str) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, root, names, str(begin), str(end), how], capture_output=True
    )
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 0), done.stderr.decode()


@pytest.mark.short("tensorboard")
@pytest.mark.parametrize("name", READERS)
def test_trackers_have_each_step_once_after_kills(tmp_path: Path, name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install 'understudy[{name}]'")
    process(tmp_path, name, 0, 23, "kill")
    process(tmp_path, name, 20, 27, "kill")  # from the checkpoint at step 20
    process(tmp_path, name, 25, 31, "end")
    rows = READERS[name](tmp_path)
    wanted = tracked.expected(31)
    assert sorted(rows) == sorted(wanted)
    for step, values in wanted.items():
        assert rows[step] == pytest.approx(values, rel=1e-6), step
    assert [r["step"] for r in metrics_file.read(tmp_path / "metrics.jsonl", "train")] == list(
        range(1, 32)
    )


class Recorder:
    """A run of wandb that remembers its calls, and may fail."""

    def __init__(self, has: int = 0, fails_at: int = 1 << 30) -> None:
        self.starting_step, self.fails_at, self.steps, self.closed = (
            has + 1,
            fails_at,
            list[int](),
            0,
        )

    def log(self, values: dict[str, float], step: int) -> None:
        if step >= self.fails_at:
            raise OSError("the network is gone")
        self.steps.append(step)

    def finish(self) -> None:
        self.closed += 1


def opened(monkeypatch: pytest.MonkeyPatch, root: Path, step: int, mirror: Recorder) -> MetricsLog:
    wandb = SimpleNamespace(init=lambda **_: mirror, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return MetricsLog(root, ["wandb"], {}, step)


def test_metrics_log_sends_a_tracker_only_missing_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Recorder()
    log = opened(monkeypatch, tmp_path, 0, first)
    log.log_all(record for step in range(1, 13) for record in tracked.records(step))
    log.close()
    assert (first.steps, first.closed) == (list(range(1, 13)), 1)
    for has in (0, 7, 11):  # it lags behind the checkpoint, or is ahead of it
        mirror = Recorder(has)
        log = opened(monkeypatch, tmp_path, 10, mirror)
        assert mirror.steps == list(range(has + 1, 10))  # step 10 may still grow
        log.log_all(tracked.records(11))
        log.close()
        assert mirror.steps == list(range(has + 1, 12))
    assert [r["step"] for r in metrics_file.read(tmp_path / "metrics.jsonl", "val")] == [5, 10]


def test_metrics_log_drops_a_failing_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror = Recorder(fails_at=3)
    log = opened(monkeypatch, tmp_path, 0, mirror)
    log.log_all(record for step in range(1, 9) for record in tracked.records(step))
    log.sync()
    log.close()
    assert mirror.steps == [1, 2]
    assert capsys.readouterr().err.count("the network is gone") == 1
    assert len(metrics_file.read(tmp_path / "metrics.jsonl", "train")) == 8
    again = Recorder(has=2)
    opened(monkeypatch, tmp_path, 8, again).close()
    assert again.steps == list(range(3, 9))


def test_metrics_log_refuses_a_missing_tracker_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with refused("log.trackers", "wandb", "understudy[wandb]", kind=ConfigError):
        MetricsLog(tmp_path, ["wandb"], {}, 0)


def test_metrics_log_writes_on_one_rank(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, ["tensorboard"], {}, 0, writes=False)
    log.log_all(tracked.records(5))
    log.sync()
    log.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("link", ["hardlink_to", "symlink_to"])
def test_copied_run_of_links_leaves_the_metrics_of_the_first(tmp_path: Path, link: str) -> None:
    """As `cp -al` and `cp -rs` copy a run; the copy is then resumed."""
    first = tmp_path / "first.jsonl"
    copy = tmp_path / "copy.jsonl"
    first.write_text('{"kind": "train", "step": 3}\n')
    getattr(copy, link)(first)
    metrics_file.truncate(copy, 3)
    written = metrics_file.MetricsFile(copy)
    written.write([{"kind": "train", "step": 4}])
    written.close()
    assert [record["step"] for record in metrics_file.read(copy)] == [3, 4]
    assert [record["step"] for record in metrics_file.read(first)] == [3]


def test_flatten_keeps_finite_numbers() -> None:
    record = {
        "kind": "val",
        "step": 3,
        "loss": 1,
        "note": "x",
        "none": None,
        "tasks": {"a b": {"loss": 0.5}},
    }
    assert flatten(record | {"bad": float("inf")}) == {"val/loss": 1.0, "val/tasks/a b/loss": 0.5}
