"""How far long work has come, on stderr: a bar on a terminal, a plain line now and then in a log. Needs the extra
`train`.

A bar is drawn over itself with carriage returns, which a log file keeps as one line of megabytes. A line of a log says
how much is done, at what rate lately, and how much time is left at that rate.
"""

import sys
import time
from types import TracebackType
from typing import Any

from understudy.extras import optional_imports

with optional_imports():
    from tqdm import tqdm

__all__ = ["Progress", "tqdm"]

MIN_INTERVAL, MAX_INTERVAL = 30.0, 600.0
"""Seconds between two lines of a log: at first, and of work that takes days."""


class Progress:
    """Counts up to `total`.

    Args:
        what: the work; unit: what is counted, in the singular. done: how many were done before.
        shown: False shows nothing. last: also a line at the end, however short the work was.
    """

    def __init__(
        self, total: int, what: str, unit: str, *, done: int = 0, shown: bool = True, last: bool = False
    ) -> None:
        self.n = done
        self._total, self._what, self._unit, self._last = total, what, unit, last
        self._bar: Any = None
        self._note = ""
        self._lines = shown and not sys.stderr.isatty()
        self._from, self._since = done, time.monotonic()
        self._began = self._since
        self._told = self.n if not last else -1
        if shown and not self._lines:
            self._bar = tqdm(
                total=total, desc=what, unit=unit, unit_scale=total > 100_000, initial=done, mininterval=0.5,
                dynamic_ncols=True, file=sys.stderr, leave=last,
            )  # fmt: skip

    def update(self, count: int = 1) -> None:
        """So many more are done."""
        self.n += count
        if self._bar is not None:
            self._bar.update(count)
        elif self._lines:
            now = time.monotonic()
            if now - self._since >= max(MIN_INTERVAL, min(MAX_INTERVAL, (now - self._began) / 20)):
                self._line()

    def note(self, text: str) -> None:
        """What stands behind the next lines."""
        self._note = text
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)

    def say(self, line: str) -> None:
        """A line of its own."""
        if self._bar is not None or self._lines:
            tqdm.write(line, file=sys.stderr)

    def close(self, failed: bool = False) -> None:
        """The end. failed: no bar stays above the message about that."""
        if self._bar is not None:
            self._bar.leave = self._bar.leave and not failed
            self._bar.close()
        elif self._lines and self._told != self.n and (self._last or self._since > self._began):
            self._line()
        self._lines = False

    def _line(self) -> None:
        now = time.monotonic()
        rate = (self.n - self._from) / max(now - self._since, 1e-9)
        left = f", {_duration((self._total - self.n) / rate)} left" if rate and self.n < self._total else ""
        share = f" ({self.n / self._total:.0%})" if self._total else ""
        note = f", {self._note}" if self._note else ""
        done = f"{self.n:,} of {self._total:,} {self._unit}s{share}"
        print(f"{self._what}: {done}, {_rate(rate)}/s{left}{note}", file=sys.stderr, flush=True)
        self._from, self._since, self._told = self.n, now, self.n

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
