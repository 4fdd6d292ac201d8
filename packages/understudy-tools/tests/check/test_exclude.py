"""The argument that leaves bad episodes out, where that is the remedy, to paste into `train` and
`edit`.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from understudy_base import parse_ids
from understudy_data.testing.datasets import Spec, edit_json, write_dataset
from understudy_kit import main
from understudy_tools.check.contents import format_report
from understudy_tools.check.examine import check_dataset
from understudy_tools.report.check_page import check_page

LENGTHS = (6, 9, 4, 7, 8, 5)
EXCLUDED = {"train": "--data.exclude-episodes 0 2-4", "edit": "--exclude-episodes 0 2-4"}


def data(root: Path, episode: int) -> Path:
    return next((root / "data").rglob(f"episode_{episode:06d}.parquet"))


def break_files(root: Path) -> None:
    """No readable file of four episodes."""
    for episode in (0, 3, 4):
        data(root, episode).write_bytes(b"not parquet")
    next((root / "videos").rglob("episode_000002.mp4")).unlink()


def give_wrong_lengths(root: Path) -> None:
    """Rows and video of episode 1 agree: only meta/ is wrong, and is to be mended."""
    path = root / "meta/episodes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["length"] = 8
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def break_totals(root: Path) -> None:
    edit_json(root / "meta/info.json", lambda info: info.update(total_frames=3))


def break_all(root: Path) -> None:
    for episode in range(len(LENGTHS)):
        data(root, episode).write_bytes(b"not parquet")


@pytest.mark.parametrize(
    ("faults", "exclude"),
    [
        ((), {}),
        ((break_totals,), {}),
        ((give_wrong_lengths,), {}),
        ((break_files,), EXCLUDED),
        ((break_files, give_wrong_lengths, break_totals), EXCLUDED),
        ((break_all,), {}),
    ],
)
def test_it_has_the_episodes_that_a_fix_leaves_out(
    faults: tuple[Callable[[Path], None], ...], exclude: dict[str, str], tmp_path: Path
) -> None:
    root = tmp_path / "set"
    write_dataset(root, Spec("v2.1", lengths=LENGTHS, chunks_size=1000))
    for fault in faults:
        fault(root)
    report = check_dataset(root)
    assert report.exclude == exclude
    assert report.to_json()["exclude"] == exclude
    last = format_report(report).splitlines()[-1]
    page = check_page(report, 0)
    for argument in EXCLUDED.values():
        assert (argument in last) == bool(exclude)
    assert ("Leave them out" in page) == bool(exclude)
    assert all(f"{command} {words}" in page for command, words in exclude.items())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_edit_takes_it(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write_dataset(root, Spec("v2.1", lengths=LENGTHS, chunks_size=1000))
    break_files(root)
    words = check_dataset(root).exclude["edit"].split()
    assert main(["edit", str(root), str(tmp_path / "out"), *words]) == 0
    report = check_dataset(tmp_path / "out")
    assert (report.episodes, report.exclude, report.is_sound) == (2, {}, True)


def test_it_names_each_of_many_episodes(tmp_path: Path) -> None:
    """However many ranges they are."""
    root = tmp_path / "set"
    write_dataset(root, Spec("v2.1", lengths=(3,) * 30, chunks_size=1000, cameras=()))
    for episode in range(0, 30, 2):
        data(root, episode).write_bytes(b"not parquet")
    report = replace(check_dataset(root), ranking=())
    _, *words = report.exclude["train"].split()
    assert parse_ids(words) == list(range(0, 30, 2))
