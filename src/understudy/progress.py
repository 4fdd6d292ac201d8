"""Progress of long work on stderr: a bar on a terminal, occasional plain lines in a log. Needs the extra `train`.

A bar is redrawn with carriage returns, which would fill one line of a log file with megabytes. A log line holds the
count, the recent rate and the remaining time at that rate.
"""

import logging
import sys
import time
from types import TracebackType
from typing import Any

from understudy.optional_packages import optional_imports

with optional_imports():
    from tqdm import tqdm

__all__ = ["Progress", "show_log", "tqdm"]

MIN_INTERVAL, MAX_INTERVAL = 30.0, 600.0
"""Seconds between two log lines: at first, and after days of work."""


class Progress:
    """Progress display of a count up to `total`.

    Args:
        total: Number of units of the whole work.
        what: Name of the work.
        unit: Name of a unit, in the singular.
        done: Units done before.
        shown: False displays nothing.
        last: Also log a line at the end of work that was too short for one.

    Attributes:
        n: Units done so far.
    """

    def __init__(
        self, total: int, what: str, unit: str, *, done: int = 0, shown: bool = True, last: bool = False
    ) -> None:
        self.n = done
        self._total, self._what, self._unit, self._last = total, what, unit, last
        self._bar: Any = None
        self._note = ""
        self._lines = shown and not sys.stderr.isatty()
        self._last_n, self._last_time = done, time.monotonic()
        self._start = self._last_time
        self._logged = self.n if not last else -1
        if shown and not self._lines:
            self._bar = tqdm(
                total=total, desc=what, unit=unit, unit_scale=total > 100_000, initial=done, mininterval=0.5,
                dynamic_ncols=True, file=sys.stderr, leave=last,
            )  # fmt: skip

    def update(self, count: int = 1) -> None:
        """Count `count` more units."""
        self.n += count
        if self._bar is not None:
            self._bar.update(count)
        elif self._lines:
            now = time.monotonic()
            if now - self._last_time >= max(MIN_INTERVAL, min(MAX_INTERVAL, (now - self._start) / 20)):
                self._log()

    def set_note(self, text: str) -> None:
        """Append `text` to the bar or to the next log lines."""
        self._note = text
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)

    def write(self, line: str) -> None:
        """Print a separate line."""
        if self._bar is not None or self._lines:
            tqdm.write(line, file=sys.stderr)

    def close(self, failed: bool = False) -> None:
        """End the display; `failed` removes the bar, so that it does not precede the error message."""
        if self._bar is not None:
            self._bar.leave = self._bar.leave and not failed
            self._bar.close()
        elif self._lines and self._logged != self.n and (self._last or self._last_time > self._start):
            self._log()
        self._lines = False

    def _log(self) -> None:
        now = time.monotonic()
        rate = (self.n - self._last_n) / max(now - self._last_time, 1e-9)
        left = f", {_duration((self._total - self.n) / rate)} left" if rate and self.n < self._total else ""
        share = f" ({self.n / self._total:.0%})" if self._total else ""
        note = f", {self._note}" if self._note else ""
        done = f"{self.n:,} of {self._total:,} {self._unit}s{share}"
        print(f"{self._what}: {done}, {_rate(rate)}/s{left}{note}", file=sys.stderr, flush=True)
        self._last_n, self._last_time, self._logged = self.n, now, self.n

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes:.0f} min" if minutes < 100 else f"{hours:.1f} h"


class _StderrHandler(logging.Handler):
    """Prints messages to the current stderr, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)


def show_log() -> None:
    """Print the log of understudy to stderr, as the command line does; a second call does nothing."""
    log = logging.getLogger("understudy")
    if not any(isinstance(handler, _StderrHandler) for handler in log.handlers):
        log.addHandler(_StderrHandler())
        log.setLevel(logging.INFO)
