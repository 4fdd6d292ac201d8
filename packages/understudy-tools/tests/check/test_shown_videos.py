"""Findings about what a container says of how its video is shown, and about further streams."""

from pathlib import Path

import pytest

from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.videos import QUARTER_TURNS, insert_in_entry, set_matrix
from understudy_tools.check.examine import check_dataset


def _found(root: Path) -> list[tuple[str, str]]:
    findings = check_dataset(str(root), "all", show_progress=False).findings
    return [
        (one.rule, one.severity)
        for one in findings
        if one.rule in ("videos.shown", "videos.streams")
    ]


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        (lambda path: set_matrix(path, QUARTER_TURNS[2]), "note"),
        (lambda path: set_matrix(path, (1 << 16, 0, 0, 0, -1 << 16, 0)), "warning"),
        (lambda path: set_matrix(path, (56756, 32768, 0, -32768, 56756, 0)), "warning"),
        (lambda path: insert_in_entry(path, b"\0\0\0\x10pasp\0\0\0\x04\0\0\0\x03"), "warning"),
        (
            lambda path: insert_in_entry(path, b"\0\0\0\x28clap" + (32).to_bytes(4, "big") * 8),
            "warning",
        ),
    ],
)
def test_check_names_how_a_video_is_shown(tmp_path: Path, change: object, severity: str) -> None:
    root = tmp_path / "set"
    write_dataset(root, Spec("v2.1", lengths=(8, 8), gop=4))
    assert _found(root) == []
    change(sorted((root / "videos").rglob("*.mp4"))[1])
    assert _found(root) == [("videos.shown", severity)]
