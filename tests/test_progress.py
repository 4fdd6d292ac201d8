"""Progress in a log: plain lines, none of them drawn over another, and none for work that is done at once."""

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


def test_a_log_gets_a_line_now_and_then(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10_000, "statistics", "frame") as bar:
        for _ in range(99):
            clock.now += 1.0
            bar.update(100)
    said = capsys.readouterr().err
    lines = said.splitlines()
    assert "\r" not in said
    assert 99 / progress.MIN_INTERVAL - 1 < len(lines) <= 99 / progress.MIN_INTERVAL + 1
    assert all(LINE.match(line) for line in lines)
    first = LINE.match(lines[0])
    assert first is not None
    assert first["done"] == "3,000"
    assert "100/s, 70 s left" in lines[0]  # 7,000 frames at the rate so far
    assert lines[-1].startswith("statistics: 9,900 of 10,000 frames")


def test_a_log_of_days_does_not_grow_with_every_half_minute(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(100_000, "train", "frame", last=True) as bar:
        for _ in range(3 * 8640):  # three days
            clock.now += 10.0
            bar.update()
    assert 3 * 86400 / progress.MAX_INTERVAL < len(capsys.readouterr().err.splitlines()) < 600


def test_work_that_is_done_at_once_is_not_worth_a_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10, "statistics", "frame") as bar:
        bar.update(10)
    assert capsys.readouterr().err == ""
    with Progress(10, "train", "frame", last=True) as bar:
        bar.note("loss 0.5")
        bar.update(10)
    assert capsys.readouterr().err.splitlines()[-1].endswith("loss 0.5")


def test_who_is_not_shown_says_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10, "train", "frame", last=True, shown=False) as bar:
        clock.now += 1000.0
        bar.update(10)
        bar.say("a word")
    assert capsys.readouterr().err == ""
    assert bar.n == 10


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(10, "train", "frame", last=True) as bar:
        bar.update(10)
    assert "\r" in sys.stderr.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("fails", [True, False])
def test_no_bar_stays_above_an_error(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(ZeroDivisionError) if fails else nullcontext(), Progress(10, "train", "step", last=True) as bar:
        bar.update(3)
        _ = 1 / 0 if fails else 1
    assert (terminal.getvalue().rpartition("\r")[2].strip() == "") == fails
