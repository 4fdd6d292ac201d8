"""Counters, gauges and histograms of the server, in the text format of Prometheus."""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
ACTIONS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32)

HELP = {
    "understudy_requests_total": "counter, requests by outcome",
    "understudy_mismatches_total": "counter, differences between robots and training by kind",
    "understudy_clamped_chunks_total": "counter, chunks with an action that was moved to its bound",
    "understudy_refused_connections_total": "counter, connections that were refused, by reason",
    "understudy_connections": "gauge, connected robots",
    "understudy_queue": "gauge, waiting requests",
    "understudy_request_seconds": "histogram, seconds of a request by stage: wall, queue, compute",
    "understudy_batch_robots": "histogram, robots that shared a pass",
    "understudy_skipped_observations_total": "counter, observations of LeRobot's clients without a pass, by reason",
    "understudy_delay_actions": "histogram, actions that robots executed while they waited for a chunk",
}


class Metrics:
    """Figures of a server. Safe in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], float] = defaultdict(float)
        self._histograms: dict[tuple[str, str], _Histogram] = {}

    def count(self, name: str, label: str = "", by: float = 1) -> None:
        """Add to a counter or a gauge; `label` is 'name="value"'."""
        with self._lock:
            self._counts[name, label] += by

    def value(self, name: str, label: str = "") -> float:
        """Return a counter, 0 where nothing was counted."""
        with self._lock:
            return self._counts.get((name, label), 0.0)

    def observe(self, name: str, value: float, label: str = "", bounds: Sequence[float] = SECONDS) -> None:
        """Add a value to a histogram."""
        with self._lock:
            self._histograms.setdefault((name, label), _Histogram(bounds)).add(value)

    def text(self, gauges: Mapping[str, float]) -> str:
        """Return everything as text.

        Args:
            gauges: present values by name, beside the counted ones.
        """
        with self._lock:
            lines: dict[str, list[str]] = defaultdict(list)
            for (name, label), value in sorted(self._counts.items()):
                lines[name].append(f"{name}{_braces(label)} {_number(value)}")
            for (name, label), histogram in sorted(self._histograms.items()):
                lines[name] += histogram.lines(name, label)
        for name, value in gauges.items():
            lines[name].append(f"{name} {_number(value)}")
        found = []
        for name, own in lines.items():
            kind, _, text = HELP[name].partition(", ")
            found += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *own]
        return "\n".join(found) + "\n"


class _Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, label: str) -> list[str]:
        found, total = [], 0
        for bound, count in zip([*map(_number, self._bounds), "+Inf"], self._counts):
            total += count
            each = f'{label},le="{bound}"' if label else f'le="{bound}"'
            found.append(f"{name}_bucket{{{each}}} {total}")
        return [*found, f"{name}_sum{_braces(label)} {self._sum:.9g}", f"{name}_count{_braces(label)} {total}"]


def _braces(label: str) -> str:
    return f"{{{label}}}" if label else ""


def _number(value: float) -> str:
    return f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"
