"""lab/benchmarks/audit.py: the account of an eventful run equals its record, and the rates are
measured.
"""

from pathlib import Path

import pytest

import audit


@pytest.mark.long
def test_the_account_equals_the_record() -> None:
    found = audit.run(1)
    assert found["equal"]
    assert len(found["compared"]) == 5
    assert found["validation_samples"] == 0


def test_rates_are_measured(tmp_path: Path) -> None:
    for name in ("export", "audit", "audit file", "play"):
        assert audit.part(name, 2560, tmp_path / "order.parquet")["samples_per_cpu_s"] > 0
