"""Progress in a log: plain lines without carriage returns, and none for short work."""

import io
import re
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("tqdm", reason="the distributions that show progress bring tqdm")

from understudy_base import progress
from understudy_base.progress import Progress

LINE = re.compile(
    r"(?P<what>\w+): (?P<done>[\d,]+) of (?P<total>[\d,]+) frames \(\d+%\), [\d.,]+/s"
    r"(, [\d.]+ \w+ left)?"
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


def test_progress_logs_a_line_per_interval(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_progress_logs_less_often_after_days(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress(100_000, "train", "frame", last=True) as bar:
        for _ in range(3 * 8640):  # three days
            clock.now += 10.0
            bar.update()
    assert 3 * 86400 / progress.MAX_INTERVAL < len(capsys.readouterr().err.splitlines()) < 600


def test_progress_logs_nothing_for_short_work(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress(10, "statistics", "frame") as bar:
        bar.update(10)
    assert capsys.readouterr().err == ""
    with Progress(10, "train", "frame", last=True) as bar:
        bar.set_note("loss 0.5")
        bar.update(10)
    assert capsys.readouterr().err.splitlines()[-1].endswith("loss 0.5")


def test_progress_that_is_not_shown_prints_nothing(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress(10, "train", "frame", last=True, shown=False) as bar:
        clock.now += 1000.0
        bar.update(10)
        bar.write("a word")
    assert capsys.readouterr().err == ""
    assert bar.n == 10


def test_progress_without_stderr_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with Progress(10, "train", "step", last=True) as bar:
        bar.update(10)
    assert capsys.readouterr().out == ""


def test_progress_draws_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(10, "train", "frame", last=True) as bar:
        bar.update(10)
    assert "\r" in sys.stderr.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("fails", [True, False])
def test_progress_removes_its_bar_before_an_error(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    with (
        pytest.raises(ZeroDivisionError) if fails else nullcontext(),
        Progress(10, "train", "step", last=True) as bar,
    ):
        bar.update(3)
        _ = 1 / 0 if fails else 1
    assert (terminal.getvalue().rpartition("\r")[2].strip() == "") == fails


class Output:
    """An output of a notebook: its successive texts."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.texts.append(data["text/plain"])


def test_notebook_has_one_output_per_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bar inside another one, and one that takes no time, have none."""
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    outputs = list[Output]()

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Output:
        assert display_id
        outputs.append(Output([data["text/plain"]]))
        return outputs[-1]

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with Progress(3, "statistics", "frame") as short:
        short.update(3)
    for _ in range(2):
        with Progress(10, "train", "step", last=True) as outer:
            with Progress(3, "validation", "chunk") as inner:
                inner.update(3)
            outer.update(10)
    assert len(outputs) == 2
    for output in outputs:
        assert "10/10" in output.texts[-1]
        assert all(
            len(text) <= progress.NOTEBOOK_COLUMNS and text.isprintable() for text in output.texts
        )
    monkeypatch.setattr(shell, "config", {"TerminalIPythonApp": {}})
    with Progress(10, "train", "step") as other:
        other.update(10)
    assert len(outputs) == 2
    assert capsys.readouterr() == ("", "")


def test_show_log_prints_each_line_once_beside_packages_that_configure_the_root_logger() -> None:
    code = """
import logging
from understudy_base.progress import show_log
show_log()
logging.debug("configures a root logger without handlers")
logging.basicConfig()
for name in ("understudy.train", "other"):
    logging.getLogger(name).info("info of %s", name)
    logging.getLogger(name).warning("warning of %s", name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [
        "info of understudy.train", "warning of understudy.train", "warning of other"
    ]  # fmt: skip
