"""The tutorials of docs/, word for word: their commands and code run in sequence, in one folder.

bash expands the commands with other values of the variables that a page defines; nothing else is
replaced. Those of `understudy` and the code then run in this process. For sbatch and torchrun the
settings are read.
"""

from pathlib import Path

import pytest

import understudy as us
from understudy.testing.docs import PROGRAMS, ROOT, blocks, expand, settings_of
from understudy.train.checkpoint.run_dir import RunDir
from understudy_kit.cli import main

PAGES = ("dataset", "research", "robot", "cluster")
TINY = (
    "--policy.image-size 16 --policy.width 16 --policy.layers 1 --policy.channels 8 "
    "--policy.blocks 1 --log.no-report"
)
SMALL = {"STEPS": "2", "MORE": "3", "BATCH": "4", "LAUNCH": "", "OPTIONS": TINY}


def follow(page: str) -> list[str]:
    """Follow a page in the current folder; returns the programs and commands that it called."""
    called = []
    shell = list[str]()
    names = dict[str, object]()
    for language, block in blocks((ROOT / f"docs/tutorial_{page}.md").read_text()):
        if language == "python":
            exec(compile(block, f"tutorial_{page}.md", "exec"), names)
            continue
        assert language == "sh", "every block of a tutorial is executed"
        for words in expand(block, SMALL, shell):
            called.append(" ".join(words[:2]) if words[0] == "understudy" else words[0])
            if words[0] == "understudy":
                assert main.main(words[1:]) == 0, words
            else:
                settings_of(words)
        shell.append(block)
    return called


@pytest.mark.long
def test_tutorials_run_word_for_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    called = {}
    printed = {}
    for page in PAGES:
        called[page], printed[page] = follow(page), capsys.readouterr().out
    for word in ("rate: training saw", "shape: training saw", "instruction: training saw"):
        assert word in printed["robot"], "each mistake is named"
    assert called["dataset"] == [
        f"understudy {name}" for name in ("check", "view", "edit", "edit", "check")
    ]
    assert [name for name in called["cluster"] if name in PROGRAMS] == ["sbatch", "torchrun"]
    pages = (
        "check.html",
        "view/index.html",
        "checked.html",
        "comparison.html",
        "runs/tutorial/report.html",
    )
    assert [page for page in pages if not (tmp_path / page).is_file()] == []
    assert us.Catalog.open("data/tutorial").episodes.ids.size == 11, (
        "episode 2 failed and is left out"
    )
    assert RunDir(Path("runs/cluster")).settings().steps == 3
    assert "Worst validation episodes" in (tmp_path / "runs/tutorial/report.html").read_text()
