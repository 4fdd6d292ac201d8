"""Counters, gauges and histograms of the server, in the text format of Prometheus."""

import threading
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
    "understudy_skipped_observations_total": "counter, observations of LeRobot's clients without a "
    "pass, by reason",
    "understudy_delay_actions": "histogram, actions that robots executed while they waited for a "
    "chunk",
}


class Metrics:
    """Figures of a server. Safe in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # by name and series
        self._figures: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def count(self, name: str, label: str = "", by: float = 1) -> None:
        """Add to a counter; `label` is 'name="value"'."""
        with self._lock:
            self._figures[name][_series(name, label)] += by

    def value(self, name: str, label: str = "") -> float:
        """Return a counter, 0 where nothing was counted."""
        with self._lock:
            return self._figures[name][_series(name, label)]

    def observe(
        self, name: str, value: float, label: str = "", bounds: Sequence[float] = SECONDS
    ) -> None:
        """Add a value to a histogram."""
        with self._lock:
            series = self._figures[name]
            for bound in (*bounds, float("inf")):
                limit = f'le="{bound:g}"'.replace("inf", "+Inf")
                labels = f"{label},{limit}" if label else limit
                series[_series(f"{name}_bucket", labels)] += value <= bound
            series[_series(f"{name}_sum", label)] += value
            series[_series(f"{name}_count", label)] += 1

    def text(self, gauges: Mapping[str, float]) -> str:
        """Return everything as text, with the present values of gauges by name."""
        with self._lock:
            figures = {name: dict(series) for name, series in sorted(self._figures.items())}
        lines = []
        for name, series in (
            figures | {name: {name: value} for name, value in gauges.items()}
        ).items():
            kind, _, text = HELP[name].partition(", ")
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{key} {value:.15g}" for key, value in series.items()]
        return "\n".join(lines) + "\n"


def _series(name: str, label: str) -> str:
    return f"{name}{{{label}}}" if label else name
