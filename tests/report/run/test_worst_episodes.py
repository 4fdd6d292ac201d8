"""The validation episodes with the largest losses in a report: ranked, with frames and actions, or with the reason."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.runs import series
from understudy.cli.main import main
from understudy.report.run import worst_episodes
from understudy.report.run.worst_episodes import PREDICTED, RECORDED, render_worst_episodes
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.run import open_checkpoint
from understudy.train.validation.episode_sums import EpisodeSums
from understudy.train.validation.open_loop import EpisodeActions


def cards(section: str) -> dict[int, str]:
    """Episode -> the text from its title on."""
    parts = re.split(r"<h3>episode (\d+): loss ", section)
    return {int(episode): body for episode, body in zip(parts[1::2], parts[2::2])}


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
    found = cards(section)
    assert list(found) == [episode for episode, _ in expected]
    with open_checkpoint(compared) as (state, validation):
        actions = EpisodeActions(state, validation)
        for episode, loss in expected:
            card, catalog = found[episode], validation.datasets[0].catalog
            length = int(catalog.episodes.lengths[catalog.episodes.row_of(episode)])
            assert card.startswith(f"{loss:.4f}")
            assert card.count("<img") == min(8, length)
            assert (card.count(f'stroke="{RECORDED}"'), card.count(f'stroke="{PREDICTED}"')) == (2, 2)
            for mae in actions.predict(0, episode, length)["mae"]:
                assert f"MAE {mae:.3g}" in card


def test_worst_episodes_of_an_active_run_load_no_policy(
    compared: Path, tmp_path: Path, refuse_policies: Callable[[], None]
) -> None:
    shutil.copytree(compared, tmp_path / "r")
    refuse_policies()
    lock = RunDir(tmp_path / "r").lock()
    section = render_worst_episodes(RunDir(tmp_path / "r"), series(compared, "val"), 1)
    lock.close()
    assert "<img" in section
    assert RECORDED in section
    assert PREDICTED not in section
    quick = render_worst_episodes(RunDir(compared), series(compared, "val"), 1, predict=False)
    assert f"understudy report {compared}" in quick
    assert cards(quick) == cards(section)


def test_worst_episodes_without_the_dataset_have_losses_alone(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "r")
    config = (tmp_path / "r/config.yaml").read_text()
    root = RunDir(compared).settings().data.root
    (tmp_path / "r/config.yaml").write_text(config.replace(root, str(tmp_path / "gone")))
    section = render_worst_episodes(RunDir(tmp_path / "r"), series(compared, "val"), 2)
    assert len(cards(section)) == 2
    assert str(tmp_path / "gone") in section
    assert ("<img" in section, "<svg" in section) == (False, False)


def test_worst_episodes_name_a_camera_that_cannot_be_read(compared: Path, tmp_path: Path) -> None:
    """In a copy of the dataset with another name."""
    root = Path(RunDir(compared).settings().data.root)
    shutil.copytree(root, tmp_path / "data")
    shutil.copytree(compared, tmp_path / "r")
    config = (tmp_path / "r/config.yaml").read_text()
    (tmp_path / "r/config.yaml").write_text(config.replace(str(root), str(tmp_path / "data")))
    for video in (tmp_path / "data").rglob("*.mp4"):
        video.write_bytes(video.read_bytes()[:100])
    section = render_worst_episodes(RunDir(tmp_path / "r"), series(compared, "val"), 1, predict=False)
    (card,) = cards(section).values()
    assert "<img" not in card
    assert "observation.images" in card
    assert RECORDED in card


def test_worst_episodes_without_sums_are_a_note(compared: Path, tmp_path: Path) -> None:
    assert render_worst_episodes(RunDir(compared), [], 3) == ""
    assert render_worst_episodes(RunDir(compared), series(compared, "val"), 0) == ""
    shutil.copytree(compared, tmp_path / "r")
    shutil.rmtree(tmp_path / "r/validation")
    section = render_worst_episodes(RunDir(tmp_path / "r"), series(compared, "val"), 3)
    assert str(tmp_path / "r/validation") in section
    assert cards(section) == {}


def test_unexpected_errors_are_not_hidden(compared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(worst_episodes, "Columns", fail)
    with pytest.raises(KeyError):
        render_worst_episodes(RunDir(compared), series(compared, "val"), 1, predict=False)


@pytest.mark.long
def test_report_takes_the_number_of_worst_episodes(compared: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main(["report", str(compared), "--output", str(out), "--worst-episodes", "1"]) == 0
    assert len(cards(out.read_text())) == 1
