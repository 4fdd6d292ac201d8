"""Folders of LeRobot's tests whose items differ, or that understudy refuses."""

import pytest

from shared import explain

COLORS = (
    "8-bit colours without a range, marked as depth: delivered as they are stored; LeRobot "
    "makes them float32"
)
FAILURES = {
    f"test_items_are_equal[{name}]": reason
    for reason, names in {
        COLORS: (
            *(f"test_aggregate_datasets0/test_{part}" for part in ("0", "1", "aggr")),
            *(f"test_aggregate_with_low_thresh0/small_{part}" for part in ("0", "1", "aggr")),
            *(
                f"test_video_timestamps_regressi0/regression_{part}"
                for part in ("0", "1", "2", "aggr")
            ),
        ),
        "images of mode RGB, marked as depth: refused, and the error says how to read them": tuple(
            f"test_aggregate_image_datasets0/image_{part}" for part in ("0", "1", "aggr")
        ),
    }.items()
    for name in names
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    explain(items, FAILURES)
