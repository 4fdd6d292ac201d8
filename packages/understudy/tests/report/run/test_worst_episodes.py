"""The validation episodes with the largest losses in a report: ranked, with frames and actions, or
with the reason.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from understudy.report.run.worst_episodes import render_worst_episodes
from understudy.testing.pages import blocks_of, charts_of, html_of
from understudy.testing.runs import series
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.run import open_checkpoint
from understudy.train.validation.episode_sums import EpisodeSums
from understudy.train.validation.open_loop import EpisodeActions
from understudy_base import DatasetError
from understudy_data import EpisodeDataset
from understudy_kit import Block, Blocks, main


def cards(section: Blocks) -> dict[int, Block]:
    """Card of each episode."""
    found = (
        (re.match(r"episode (\d+): loss ", card["title"]), card)
        for card in blocks_of("card", section)
    )
    return {int(title[1]): card for title, card in found if title}


def losses(run: Path) -> dict[int, float]:
    sums = EpisodeSums.read(RunDir(run).episode_losses(4))
    assert sums is not None
    return dict(zip(sums.episode.tolist(), sums.losses().tolist()))


@pytest.fixture
def refuse_policies(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes every attempt to load a checkpoint an error."""

    def refuse() -> None:
        def load(*arguments: object) -> None:
            raise AssertionError("a checkpoint is loaded")

        monkeypatch.setattr("understudy.train.run.open_checkpoint", load)

    return refuse


def test_worst_episodes_have_frames_and_both_actions(compared: Path) -> None:
    section = render_worst_episodes(RunDir(compared), series(compared, "val"), 2)
    expected = sorted(losses(compared).items(), key=lambda pair: -pair[1])[:2]
    ids = " ".join(map(str, sorted(episode for episode, _ in expected)))
    assert f"understudy view {compared} --episodes {ids}" in html_of(*section)
    found = cards(section)
    assert list(found) == [episode for episode, _ in expected]
    [horizon] = blocks_of("chart", section[:1])
    assert horizon["axes"] == ["actions after the observation"]
    assert horizon["lines"][0]["x"] == [[1, 2, 3]]
    with open_checkpoint(compared) as (state, validation):
        actions = EpisodeActions(state, validation)
        for episode, loss in expected:
            page = html_of(found[episode])
            catalog = validation.datasets[0].catalog
            length = int(catalog.episodes.lengths[catalog.episodes.row_of(episode)])
            assert found[episode]["title"].endswith(f"{loss:.4f}")
            assert page.count("<img") == min(8, length)
            assert f"episode {episode}:" in page
            predicted = actions.predict(0, episode, length)
            charts = charts_of(page)
            assert len(charts) == 2
            for joint, chart in enumerate(charts):
                recorded, dashed = chart["lines"]
                assert len(recorded["value"]) == len(dashed["value"]) == length
                assert dashed["value"] == pytest.approx(predicted["actions"][:, joint], rel=1e-4)
                assert dashed["name"] == f"predicted, MAE {predicted['mae'][joint]:.3g}"


def test_worst_episodes_of_an_active_run_load_no_policy(
    compared: Path, tmp_path: Path, refuse_policies: Callable[[], None]
) -> None:
    shutil.copytree(compared, tmp_path / "r")
    refuse_policies()
    lock = RunDir(tmp_path / "r").lock()
    section = render_worst_episodes(RunDir(tmp_path / "r"), series(compared, "val"), 1)
    lock.close()
    page = html_of(*section)
    assert "<img" in page
    assert [[line["name"] for line in chart["lines"]] for chart in charts_of(page)] == [
        ["recorded"]
    ] * 2
    quick = render_worst_episodes(RunDir(compared), series(compared, "val"), 1, predict=False)
    assert f"understudy report {compared}" in html_of(*quick)
    parts = [
        [card["blocks"][:-1] for card in cards(blocks).values()] for blocks in (quick, section)
    ]
    assert parts[0] == parts[1] != [[]]


def test_worst_episodes_without_the_dataset_have_losses_alone(
    compared: Path, tmp_path: Path
) -> None:
    shutil.copytree(compared, tmp_path / "r")
    config = (tmp_path / "r/config.yaml").read_text()
    root = RunDir(compared).settings().data.root
    (tmp_path / "r/config.yaml").write_text(config.replace(root, str(tmp_path / "gone")))
    section = render_worst_episodes(RunDir(tmp_path / "r"), series(compared, "val"), 2)
    assert len(cards(section)) == 2
    page = html_of(*section)
    assert str(tmp_path / "gone") in page
    assert ("<img" in page, charts_of(page)) == (False, [])


def test_worst_episodes_name_a_camera_that_cannot_be_read(compared: Path, tmp_path: Path) -> None:
    """In a copy of the dataset with another name."""
    root = Path(RunDir(compared).settings().data.root)
    shutil.copytree(root, tmp_path / "data")
    shutil.copytree(compared, tmp_path / "r")
    config = (tmp_path / "r/config.yaml").read_text()
    (tmp_path / "r/config.yaml").write_text(config.replace(str(root), str(tmp_path / "data")))
    for video in (tmp_path / "data").rglob("*.mp4"):
        video.write_bytes(video.read_bytes()[:100])
    section = render_worst_episodes(
        RunDir(tmp_path / "r"), series(compared, "val"), 1, predict=False
    )
    (card,) = cards(section).values()
    page = html_of(card)
    assert "<img" not in page
    assert "observation.images" in page
    assert charts_of(page)


def test_worst_episodes_without_sums_are_a_note(compared: Path, tmp_path: Path) -> None:
    assert render_worst_episodes(RunDir(compared), [], 3) == []
    assert render_worst_episodes(RunDir(compared), series(compared, "val"), 0) == []
    shutil.copytree(compared, tmp_path / "r")
    shutil.rmtree(tmp_path / "r/validation")
    section = render_worst_episodes(RunDir(tmp_path / "r"), series(compared, "val"), 3)
    assert str(tmp_path / "r/validation") in html_of(*section)
    assert cards(section) == {}


def test_actions_that_cannot_be_read_give_the_reason(
    compared: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise DatasetError("cannot be read", where="file-000.parquet")

    monkeypatch.setattr(EpisodeDataset, "recorded_values", fail)
    section = render_worst_episodes(RunDir(compared), series(compared, "val"), 1, predict=False)
    page = html_of(*section)
    assert "file-000.parquet" in page
    assert ("<img" in page, charts_of(page)) == (True, [])


def test_unexpected_errors_are_not_hidden(compared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(EpisodeDataset, "recorded_values", fail)
    with pytest.raises(KeyError):
        render_worst_episodes(RunDir(compared), series(compared, "val"), 1, predict=False)


@pytest.mark.long
def test_report_takes_the_number_of_worst_episodes(compared: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(compared), "--output", str(out), "--worst-episodes", "1"]) == 0
    assert len(re.findall(r"<h3>episode \d+: loss ", out.read_text())) == 1
