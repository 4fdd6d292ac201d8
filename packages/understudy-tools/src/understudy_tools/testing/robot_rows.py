"""Datasets of the rows of a robot arm, and the alarms of a check."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from understudy_data import EpisodeWriter
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.findings import Finding

STATE = "observation.state"
ACTION = "action"
Rows = dict[str, np.ndarray]
Change = Callable[[int, Rows], None]


def episode(number: int, length: int, width: int) -> Rows:
    """Minimum-jerk motion between random places; the state follows by two frames."""
    rng = np.random.default_rng([3, number])
    parts = [np.zeros((1, width))]
    while sum(map(len, parts)) < length + 2:
        steps = np.linspace(0, 1, int(rng.integers(16, 40)))[1:, None]
        place = parts[-1][-1]
        parts.append(
            place
            + (rng.uniform(-1, 1, width) - place) * (10 * steps**3 - 15 * steps**4 + 6 * steps**5)
        )
    path = np.concatenate(parts)[: length + 2]
    noise = rng.normal(0, 0.002, (length, width))
    return {STATE: (path[:length] + noise).astype(np.float32), ACTION: path[2:].astype(np.float32)}


def write_rows(
    root: Path,
    lengths: Sequence[int],
    change: Change = lambda number, rows: None,
    width: int = 6,
    names: Mapping[str, str] | None = None,
) -> Path:
    """Write episodes of rows, each after its `change` in place; `names` maps keys to those of the
    dataset.
    """
    episodes = [episode(number, length, width) for number, length in enumerate(lengths)]
    for number, rows in enumerate(episodes):
        change(number, rows)
    key_of = {key: key for key in episodes[0]} | dict(names or {})
    features = {
        key_of[key]: {"dtype": "float32", "shape": values.shape[1:]}
        for key, values in episodes[0].items()
    }
    with EpisodeWriter(root, fps=20, features=features) as writer:
        for rows in episodes:
            for values in zip(*rows.values(), strict=True):
                writer.add_frame(
                    {key_of[key]: value for key, value in zip(rows, values, strict=True)}, "move"
                )
            writer.save_episode()
    return root


def alarms(root: Path, **keys: str) -> list[Finding]:
    """Errors and warnings of a check of the rows."""
    return [
        finding
        for finding in check_dataset(root, "rows", **keys).findings
        if finding.severity != "note"
    ]
