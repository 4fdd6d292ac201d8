"""Progress in a log: plain lines without carriage returns, and none for short work."""

import io
import re
import sys
from contextlib import nullcontext

import pytest

from understudy import progress
from understudy.progress import Progress

LINE = re.compile(
    r"(?P<what>\w+): (?P<done>[\d,]+) of (?P<total>[\d,]+) frames \(\d+%\), [\d.,]+/s(, [\d.]+ \w+ left)?"
)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_progress_logs_a_line_per_interval(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10_000, "statistics", "frame") as bar:
        for _ in range(99):
            clock.now += 1.0
            bar.update(100)
    output = capsys.readouterr().err
    lines = output.splitlines()
    assert "\r" not in output
    assert 99 / progress.MIN_INTERVAL - 1 < len(lines) <= 99 / progress.MIN_INTERVAL + 1
    assert all(LINE.match(line) for line in lines)
    first = LINE.match(lines[0])
    assert first is not None
    assert first["done"] == "3,000"
    assert "100/s, 70 s left" in lines[0]  # 7,000 frames at the rate so far
    assert lines[-1].startswith("statistics: 9,900 of 10,000 frames")


def test_progress_logs_less_often_after_days(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(100_000, "train", "frame", last=True) as bar:
        for _ in range(3 * 8640):  # three days
            clock.now += 10.0
            bar.update()
    assert 3 * 86400 / progress.MAX_INTERVAL < len(capsys.readouterr().err.splitlines()) < 600


def test_progress_logs_nothing_for_short_work(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10, "statistics", "frame") as bar:
        bar.update(10)
    assert capsys.readouterr().err == ""
    with Progress(10, "train", "frame", last=True) as bar:
        bar.set_note("loss 0.5")
        bar.update(10)
    assert capsys.readouterr().err.splitlines()[-1].endswith("loss 0.5")


def test_progress_that_is_not_shown_prints_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10, "train", "frame", last=True, shown=False) as bar:
        clock.now += 1000.0
        bar.update(10)
        bar.write("a word")
    assert capsys.readouterr().err == ""
    assert bar.n == 10


def test_progress_draws_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(10, "train", "frame", last=True) as bar:
        bar.update(10)
    assert "\r" in sys.stderr.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("fails", [True, False])
def test_progress_removes_its_bar_before_an_error(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(ZeroDivisionError) if fails else nullcontext(), Progress(10, "train", "step", last=True) as bar:
        bar.update(3)
        _ = 1 / 0 if fails else 1
    assert (terminal.getvalue().rpartition("\r")[2].strip() == "") == fails
