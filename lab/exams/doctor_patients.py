"""Patients of lerobot-doctor's own tests, examined by `understudy check`: recall and false alarms
in both directions.

The tests of lerobot-doctor make datasets with one planted fault each. Release 0.6.1 of LeRobot
refuses their healthy dataset: template of paths, task list and statistics differ. So a healthy one
of its format is laid out first, and their tests plant the same faults in it. The comparison is
published; no test fails for it.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lerobot_doctor import dataset_loader, runner

from shared import explain, publish
from understudy_base import DatasetError
from understudy_data.datasets.stats.running import RunningStatistics
from understudy_data.datasets.write.dataset_files import tasks_table
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.findings import Finding

VERDICTS: Counter[str] = Counter()
LINES: list[str] = []
RESULTS: list[Any] = []


def lay_out(create: Callable[..., Path]) -> Callable[..., Path]:
    """Wrap their maker of datasets: paths, tasks, episode tables and statistics as LeRobot 0.6.1
    writes them.
    """

    def create_dataset(root: Path, *args: Any, **options: Any) -> Path:
        create(root, *args, **options)
        info = json.loads((root / "meta/info.json").read_text())
        info["data_path"] = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        info |= {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
        (root / "meta/info.json").write_text(json.dumps(info))
        tasks = tasks_table(["pick and place"])
        pq.write_table(tasks, root / "meta/tasks.parquet")
        path = root / "meta/episodes/chunk-000/file-000.parquet"
        table = pq.read_table(path)
        numbers = list(range(len(table)))
        table = table.append_column("data/chunk_index", pa.array([0] * len(table), pa.int64()))
        table = table.append_column("data/file_index", pa.array(numbers, pa.int64()))
        pq.write_table(
            table.append_column("tasks", pa.array([["pick and place"]] * len(table))), path
        )
        files = sorted((root / "data").rglob("*.parquet"))
        for file in files:
            rows = pq.read_table(file)
            for key in ("action", "observation.state"):
                values = np.cumsum(
                    np.array(rows[key].to_pylist(), np.float32), axis=0, dtype=np.float32
                )
                column = pa.array(values.tolist(), pa.list_(pa.float32(), values.shape[1]))
                rows = rows.set_column(rows.column_names.index(key), key, column)
            pq.write_table(rows, file)
        if (root / "meta/stats.json").exists():
            rows = pa.concat_tables([pq.read_table(file) for file in files])
            (root / "meta/stats.json").write_text(
                json.dumps(statistics(rows, list(info["features"])))
            )
        return root

    return create_dataset


def statistics(rows: pa.Table, keys: list[str]) -> dict[str, Any]:
    """Statistics of all columns, as meta/stats.json has them."""
    result = {}
    for key in keys:
        values = np.array(rows[key].to_pylist())
        running = RunningStatistics(values.shape[1:])
        running.add(values)
        result[key] = {name: figure.tolist() for name, figure in running.result().items()}
    return result


def load_local(root: Path, *args: Any, **options: Any) -> Any:
    loaded = _load_local(root, *args, **options)
    RESULTS.append(Path(root))
    return loaded


_load_local = dataset_loader.load_local
dataset_loader.load_local = load_local


def record(check: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any, **options: Any) -> Any:
        result = check(*args, **options)
        RESULTS.append(result)
        return result

    return checked


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Replace their maker of datasets and wrap their checks, before a test module imports them."""
    conftest = sys.modules.get("tests.conftest")
    if conftest is None or getattr(conftest, "laid_out", False):
        return
    conftest.create_dataset = lay_out(conftest.create_dataset)  # type: ignore[attr-defined]
    conftest.laid_out = True  # type: ignore[attr-defined]
    for name, check in runner._get_all_checks().items():
        module = sys.modules[check.__module__]
        setattr(module, check.__name__, record(check))
        assert name in check.__name__


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run a test of theirs, then examine its patient."""
    RESULTS.clear()
    yield
    roots = [entry for entry in RESULTS if isinstance(entry, Path)]
    results = [entry for entry in RESULTS if not isinstance(entry, Path)]
    if not roots or not results:
        return
    theirs = max(
        (["PASS", "WARN", "FAIL"].index(result.severity.value) for result in results), default=0
    )
    try:
        findings = check_dataset(roots[-1]).findings
    except DatasetError:
        findings = (Finding("metadata.unreadable", "error", "refused"),)
    severities = {finding.severity for finding in findings}
    ours = 2 if "error" in severities else 1 if "warning" in severities else 0
    words = ("nothing", "a warning", "an error")
    VERDICTS[f"lerobot-doctor {words[theirs]}, understudy {words[ours]}"] += 1
    if bool(ours) != bool(theirs):
        rules = ", ".join(sorted({finding.rule for finding in findings})) or "none"
        messages = [
            m.message for result in results for m in result.messages if m.severity.value != "PASS"
        ]
        LINES.append(
            f"{item.nodeid.rpartition('/')[2]}: theirs {words[theirs]} "
            f"({'; '.join(messages)[:160]}); ours {rules}"
        )


OTHER_WORDS = (
    "the tests are those of release 0.1.0; the installed 0.2.0 has another text for the "
    "same finding"
)
FAILURES = dict.fromkeys(("test_missing_tasks_parquet", "test_non_v3_version_warns"), OTHER_WORDS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    explain(items, FAILURES)


def pytest_sessionfinish() -> None:
    publish(
        [*(f"{count} patients: {verdict}." for verdict, count in VERDICTS.most_common()), *LINES]
    )
