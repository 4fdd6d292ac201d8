"""Progress of long work on stderr: a bar on a terminal or in a notebook, occasional plain lines in
a log.

A bar is redrawn with carriage returns, which would fill one line of a log file with megabytes. A
log line holds the count, the recent rate and the remaining time at that rate. A notebook would keep
each redrawn bar, so there one output is updated in place. Needs tqdm, which the distributions that
show progress bring.
"""

import logging
import sys
import time
from types import TracebackType
from typing import Any
from weakref import WeakSet

from tqdm import tqdm

__all__ = ["Progress", "show_log"]

MIN_INTERVAL = 30.0
MAX_INTERVAL = 600.0
"""Seconds between two log lines: at first, and after days of work."""
NOTEBOOK_COLUMNS = 90
"""Characters of a bar in a notebook, which has no terminal to ask."""


_displayed: "WeakSet[Progress]" = WeakSet()
"""Progress with a bar on the screen."""


class Progress:
    """Progress display of a count up to `total`.

    Args:
        total: Number of units of the whole work.
        description: Name of the work.
        unit: Name of a unit, in the singular.
        done: Units done before.
        shown: False displays nothing.
        last: Also log a line at the end of work that was too short for one.

    Attributes:
        n: Units done so far.
    """

    def __init__(
        self,
        total: int,
        description: str,
        unit: str,
        *,
        done: int = 0,
        shown: bool = True,
        last: bool = False,
    ) -> None:
        self.n = done
        self._total = total
        self._description = description
        self._unit = unit
        self._last = last
        self._bar: Any = None
        self._note = ""
        is_notebook = _in_notebook()
        shown = shown and sys.stderr is not None  # closed, as some daemons do
        self._lines = shown and not (is_notebook or sys.stderr.isatty())
        if is_notebook and _displayed:
            shown = False  # each validation of a long run would leave an empty output
        self._last_n = done
        self._last_time = time.monotonic()
        self._start = self._last_time
        self._logged = self.n if not last else -1
        if shown and not self._lines:
            _displayed.add(self)
            bar: Any = tqdm
            options: dict[str, Any] = {"dynamic_ncols": True, "file": sys.stderr}
            if is_notebook:
                bar = NotebookBar
                options = {"ncols": NOTEBOOK_COLUMNS, "ascii": False, "file": _Nowhere()}
                options["delay"] = 0.0 if last else 0.5
            self._bar = bar(
                total=total, desc=description, unit=unit, unit_scale=total > 100_000, initial=done,
                mininterval=0.5, leave=last, **options,
            )  # fmt: skip

    def update(self, count: int = 1) -> None:
        """Count `count` more units."""
        self.n += count
        if self._bar is not None:
            self._bar.update(count)
        elif self._lines:
            now = time.monotonic()
            interval = max(MIN_INTERVAL, min(MAX_INTERVAL, (now - self._start) / 20))
            if now - self._last_time >= interval:
                self._log()

    def set_note(self, text: str) -> None:
        """Append `text` to the bar or to the next log lines."""
        self._note = text
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)

    def write(self, line: str) -> None:
        """Print a separate line."""
        if self._bar is not None or self._lines:
            self.print(line)

    @staticmethod
    def print(line: str) -> None:
        """Print a line to stderr, above a bar that may be there."""
        tqdm.write(line, file=sys.stderr)

    def close(self, failed: bool = False) -> None:
        """End the display; `failed` removes the bar, so that it does not precede the error
        message.
        """
        if self._bar is not None:
            self._bar.leave = self._bar.leave and not failed
            self._bar.close()
            _displayed.discard(self)
        has_line = self._last or self._last_time > self._start
        if self._lines and self._logged != self.n and has_line:
            self._log()
        self._lines = False

    def _log(self) -> None:
        now = time.monotonic()
        rate = (self.n - self._last_n) / max(now - self._last_time, 1e-9)
        line = f"{self._description}: {self.n:,} of {self._total:,} {self._unit}s"
        if self._total:
            line += f" ({self.n / self._total:.0%})"
        line += f", {_rate(rate)}/s"
        if rate and self.n < self._total:
            line += f", {_duration((self._total - self.n) / rate)} left"
        if self._note:
            line += f", {self._note}"
        print(line, file=sys.stderr, flush=True)
        self._last_n = self.n
        self._last_time = now
        self._logged = self.n

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(failed=error is not None)


class _Nowhere:
    """File without content, for the control characters of a bar."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Do nothing."""


class NotebookBar(tqdm):  # type: ignore[type-arg] # a generic in its stubs alone
    """A bar in one output of a notebook."""

    _output: Any = None

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Show the bar, or update it."""
        from IPython.display import display

        text = str(self) if msg is None else msg
        content = {"text/plain": text}
        if self._output is None:
            self._output = display(content, raw=True, display_id=True)
        else:
            self._output.update(content, raw=True)


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook. Does not import IPython."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return False
    return "IPKernelApp" in getattr(ipython.get_ipython(), "config", {})


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 100:
        return f"{minutes:.0f} min"
    return f"{seconds / 3600:.1f} h"


class _StderrHandler(logging.Handler):
    """Prints messages to the current stderr, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)


def show_log() -> None:
    """Print the log of understudy to stderr, as the command line does; a second call does nothing.

    Of other packages it prints warnings and errors. The first `logging.debug(...)` of a package,
    LeRobot's for example, gives a root logger without a handler one that prints the log of
    understudy a second time.
    """
    log = logging.getLogger("understudy")
    root = logging.getLogger()
    if any(isinstance(handler, _StderrHandler) for handler in log.handlers):
        return
    log.addHandler(_StderrHandler())
    log.setLevel(logging.INFO)
    if not root.handlers:
        others = _StderrHandler(logging.WARNING)
        others.addFilter(lambda record: record.name.partition(".")[0] != log.name)
        root.addHandler(others)
