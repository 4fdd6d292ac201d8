"""`understudy view RUN`: validation episodes with predicted actions, found by the entry point of
the project.
"""

import json
from pathlib import Path

import pytest

from understudy.report.viewed_run import open_run
from understudy.testing.runs import trained_run
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import main
from understudy_kit.cli.main import WRONG_INPUT
from understudy_kit.testing.packages import install


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return trained_run(tmp_path / "run")


def test_page_of_a_run_has_predicted_actions(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = open_run(str(run), "latest", ())
    assert opened is not None
    with opened as (title, sources, predict):
        [(_, catalog, rows)] = sources
        episode = int(catalog.episodes.ids[rows[0]])
        length = int(catalog.episodes.lengths[rows[0]])
        expected = predict(0, episode, length)
    assert "step" in title
    page = tmp_path / "page"
    assert main(["view", str(run), "--export", str(page), "--episodes", str(episode)]) == 0
    script = (page / f"0/{episode}/predicted.json.js").read_text()
    stored = json.loads(script.partition(", ")[2].rpartition(");")[0])
    assert stored["mae"] == pytest.approx(expected["mae"], rel=1e-5)
    assert [len(values) for values in stored["values"]] == [length] * len(stored["mae"])
    others = sorted(set(catalog.episodes.ids.tolist()) - set(catalog.episodes.ids[rows].tolist()))
    capsys.readouterr()
    words = ["view", str(run), "--export", str(tmp_path / "none"), "--episodes", str(others[0])]
    assert main(words) == WRONG_INPUT
    assert "episodes: none is a validation episode" in capsys.readouterr().err
    assert (
        main([*words[:4], "--keep-ranges", "keep.json", "--episodes", str(episode)]) == WRONG_INPUT
    )


def test_folder_that_is_no_run_is_left_to_others(tmp_path: Path) -> None:
    assert open_run(str(tmp_path), "latest", ()) is None


def test_checkpoint_that_is_not_there_is_named(run: Path) -> None:
    opened = open_run(str(run), 999, ())
    assert opened is not None
    with refused("999", kind=ConfigError), opened:
        pass


def test_a_broken_source_stops_only_what_no_other_shows(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path / "site", "sick-1", "[understudy.view_sources]\na-sick = toys_sick:nowhere\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    opened = open_run(str(run), "latest", ())
    assert opened is not None
    with opened as (_, sources, _):
        [(_, catalog, rows)] = sources
        episode = int(catalog.episodes.ids[rows[0]])
    assert (
        main(["view", str(run), "--export", str(tmp_path / "page"), "--episodes", str(episode)])
        == 0
    )
    capsys.readouterr()
    other = tmp_path / "other"
    other.mkdir()
    for words in ([], ["--checkpoint", "best"]):
        assert main(["view", str(other), "--no-browser", *words]) == WRONG_INPUT
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "'a-sick'" in said


def test_run_without_a_package_that_shows_it_is_named(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("understudy_base.find_entry_points", lambda group: {})
    assert main(["view", str(run), "--no-browser"]) == WRONG_INPUT
    assert "pip install" in capsys.readouterr().err
