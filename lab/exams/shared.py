"""Rules for foreign tests that fail: each is explained in one line, and an explained failure that
passes is an error.

A shim calls `explain` from its hook `pytest_collection_modifyitems`.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_base import DatasetError, UnderstudyError
from understudy_data.datasets.stats.running import RunningStatistics


def explain(
    items: Iterable[pytest.Item],
    failures: Mapping[str, str],
    skips: Mapping[str, str] | None = None,
) -> None:
    """Mark tests that are known to fail, and tests of code that understudy has no counterpart of.

    Args:
        items: collected tests.
        failures: name of a test (`test_a`, `test_a[b]`, `Class::test_a`) or class -> reason in one
            line.
        skips: the same for tests that are not run.

    Raises:
        UsageError: a name is not collected.
    """
    unused = {*failures, *(skips or {})}
    for item in items:
        short = item.nodeid.partition("::")[2]
        file = item.nodeid.partition("::")[0].rpartition("/")[2]
        names = (
            short,
            short.partition("[")[0],
            short.rpartition("::")[2],
            short.rpartition("::")[2].partition("[")[0],
        )
        for name in (*names, short.partition("::")[0], file):
            if name in failures:
                item.add_marker(pytest.mark.xfail(reason=failures[name], strict=True))
            elif name in (skips or {}):
                item.add_marker(pytest.mark.skip(reason=(skips or {})[name]))
            else:
                continue
            unused.discard(name)
            break
    if unused:
        raise pytest.UsageError(f"explained, but not collected: {', '.join(sorted(unused))}")


def accept_our_refusals() -> None:
    """Let `pytest.raises` accept our errors: where a foreign test expects a refusal, type and text
    are ours.
    """
    original = pytest.raises

    def raises(
        expected: Any = BaseException,
        *args: Any,
        match: str | re.Pattern[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        if args:
            return original((*_types(expected), UnderstudyError), *args, **kwargs)

        def allowed(error: BaseException) -> bool:
            text_fits = match is None or re.search(match, str(error)) is not None
            return isinstance(error, UnderstudyError) or text_fits

        return original((*_types(expected), UnderstudyError), check=allowed, **kwargs)

    pytest.raises = raises  # type: ignore[assignment]


def _types(expected: Any) -> tuple[type[BaseException], ...]:
    return expected if isinstance(expected, tuple) else (expected,)


class RowStatistics:
    """`RunningStatistics` of rows of the last axis, at least two, with the interface of LeRobot's
    and OpenTau's.
    """

    def __init__(self, *settings: Any, **named: Any) -> None:
        self._statistics: RunningStatistics | None = None

    def update(self, batch: np.ndarray) -> None:
        rows = batch.reshape(-1, batch.shape[-1])
        self._statistics = self._statistics or RunningStatistics(rows.shape[1:], keep=1 << 20)
        try:
            self._statistics.add(rows)
        except ValueError as error:
            raise DatasetError(str(error)) from error

    def get_statistics(self) -> dict[str, np.ndarray]:
        if self._statistics is None or self._statistics.rows < 2:
            raise DatasetError("fewer than two rows")
        return self._statistics.result()


def publish(lines: list[str]) -> None:
    """Add lines to the section of this exam in lab/journal/exams.md."""
    Path(os.environ["EXAM_FACTS"]).write_text(json.dumps({"lines": lines}, indent=1) + "\n")
