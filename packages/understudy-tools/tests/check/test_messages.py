"""Messages and remedies of check: singular words, rates of videos, all bad episodes, gross
faults.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from understudy_base import DatasetError
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.testing.datasets import Spec, edit_column, edit_json, edit_times, write_dataset
from understudy_kit.cli import main
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.findings import Finding
from understudy_tools.cli.edit import format_summary

TOP = "observation.images.top"
LENGTHS = (12, 9, 14, 11, 10, 12)


def of_rule(root: Path, rule: str) -> list[Finding]:
    return [one for one in check_dataset(root, "rows").findings if one.rule == rule]


def test_one_thing_is_named_in_the_singular(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dataset of one episode and one camera, with one row that is not finite, one wrong split and
    a wrong video.
    """
    spec = Spec(lengths=(6,), nan_row=True, foreign=False)
    write_dataset(tmp_path / "set", spec)
    write_dataset(tmp_path / "other", Spec(lengths=(1,), fps=20, foreign=False))
    edit_json(
        tmp_path / "set/meta/info.json",
        lambda info: info.update(splits={"train": "0:3"}, total_frames=9),
    )
    [video], [short] = ((tmp_path / name).rglob("*.mp4") for name in ("set", "other"))
    video.write_bytes(short.read_bytes())
    (tmp_path / "set/data/chunk-000/file-007.parquet").write_bytes(b"")
    assert main.main(["check", str(tmp_path / "set"), "--page", str(tmp_path / "page.html")]) == 1
    text = capsys.readouterr().out
    assert "1 episode," in text
    assert re.findall(r"(?<![\d.,])1 (?:more )?(?:bad )?[a-z]+s (?!of)\b", text) == []
    with pytest.raises(DatasetError) as error:
        EpisodeArrays(tmp_path / "set").sample(1, 0)
    assert "1 episodes" not in error.value.fix


@pytest.mark.parametrize(
    ("declared", "proposed"),
    [(10, None), (20, None), (8, 8.0), (None, None)],
    ids=["fps", "other", "rows", "unknown"],
)
def test_the_remedy_of_a_clock_follows_the_videos(
    tmp_path: Path, declared: float | None, proposed: float | None
) -> None:
    """Timestamps advance at 8 frames per second, and info.json declares 10: correcting it breaks
    videos of 10 or 20.
    """
    write_dataset(tmp_path / "set", Spec(version="v2.1", lengths=LENGTHS, foreign=False))
    edit_times(tmp_path / "set", lambda number, times: times * 10 / 8)

    def declare(info: dict[str, Any]) -> None:
        info["features"][TOP]["info"] = {} if declared is None else {"video.fps": declared}

    edit_json(tmp_path / "set/meta/info.json", declare)
    [clock] = of_rule(tmp_path / "set", "clock.fps")
    assert (clock.measured, clock.expected) == (pytest.approx(8, rel=0.01), 10)
    assert ("info.json" in clock.fix) == (declared in (8, None))
    assert bool(re.search(r"fps: 8\b", clock.fix)) == (proposed is not None)


def test_no_remedy_leaves_all_episodes_out(tmp_path: Path) -> None:
    skip = re.compile(r"skip|exclude")
    write_dataset(tmp_path / "set", Spec(version="v2.1", lengths=LENGTHS, foreign=False))
    files = sorted((tmp_path / "set").rglob("*.mp4"))
    files[0].unlink()
    [some] = of_rule(tmp_path / "set", "files.missing")
    assert skip.search(some.fix)
    for path in files[1:-1]:
        path.unlink()
    files[-1].write_bytes(b"")
    for path in (tmp_path / "set/data").rglob("*.parquet"):
        path.unlink()
    findings = check_dataset(tmp_path / "set", "rows").findings
    whole = [one for one in findings if len(one.place.episodes) == len(LENGTHS)]
    assert "files.missing" in {one.rule for one in whole}
    assert [one.fix for one in whole if skip.search(one.fix) or not one.fix] == []


@pytest.mark.parametrize(
    ("rule", "small", "gross"),
    [
        ("clock.gap", 0.1, 30.0),
        ("clock.jitter", 0.002, 0.03),
        ("clock.start", 0.1, 50.0),
    ],
)
def test_a_gross_fault_has_a_finding_beside_that_of_all_episodes(
    tmp_path: Path, rule: str, small: float, gross: float
) -> None:
    def change(number: int, times: np.ndarray) -> np.ndarray:
        size = gross if number == 3 else small
        first = {"clock.gap": len(times) - 3, "clock.jitter": len(times) - 1, "clock.start": 0}[
            rule
        ]
        return times + size * (np.arange(len(times)) >= first)

    write_dataset(
        tmp_path / "set", Spec(version="v2.1", lengths=LENGTHS, cameras=(), foreign=False)
    )
    edit_times(tmp_path / "set", change)
    assert {one.place.episodes for one in of_rule(tmp_path / "set", rule)} == {
        (3,),
        (0, 1, 2, 4, 5),
    }


def test_a_gross_start_of_a_video_is_a_finding_of_its_own(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=LENGTHS, per_video_file=6, foreign=False))
    for path in (tmp_path / "set/meta/episodes").rglob("*.parquet"):
        late = np.where(np.array(pq.read_table(path)["episode_index"].to_pylist()) == 5, 3.0, 0.1)
        for end in ("from", "to"):
            edit_column(
                path, f"videos/{TOP}/{end}_timestamp", lambda times, late=late: times + late
            )
    assert {one.place.episodes for one in of_rule(tmp_path / "set", "videos.start")} == {
        (5,),
        (0, 1, 2, 3, 4),
    }


@pytest.mark.parametrize(("number", "shown"), [(3, 3), (9, 4)])
def test_check_lists_all_missing_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, shown: int
) -> None:
    write_dataset(
        tmp_path / "set", Spec(version="v2.1", lengths=(4,) * 12, cameras=(), foreign=False)
    )
    files = sorted((tmp_path / "set/data").rglob("*.parquet"))[:number]
    for path in files:
        path.unlink()
    main.main(["check", str(tmp_path / "set"), "--depth", "metadata", "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    [line] = [finding["message"] for finding in findings if finding["rule"] == "files.missing"]
    assert [path.name in line for path in files] == [True] * shown + [False] * (number - shown)
    assert f"{number} of 12" in line
    assert (f"{number - shown} more" in line) == (number > shown)
    assert f"0-{number - 1}" in line


@pytest.mark.parametrize(("size", "named"), [(10_000, True), (1_100, False)])
def test_a_summary_names_the_quality_where_the_output_is_much_larger(
    size: int, named: bool
) -> None:
    camera = {"copied": 0, "encoded": 3, "bytes_before": 1_000, "bytes": size}
    camera |= {"images_compared": 3, "psnr_db": 42.0, "ssim": 0.99}
    facts = {
        "root": "out",
        "episodes": 1,
        "frames": 9,
        "tasks": 1,
        "timestamps_rewritten": 0,
        "undeclared_columns": [],
    }
    lines = format_summary(
        facts | {"skipped_features": {}, "cameras": {TOP: camera}, "skipped": [], "left_out": []}
    )
    assert any("--crf" in line for line in lines) == named
