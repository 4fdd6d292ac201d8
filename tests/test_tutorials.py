"""The tutorials of docs/, word for word: their commands and code run in sequence, in one folder.

bash expands the commands with other values of the variables that a page defines; nothing else is replaced. Those of
`understudy` and the code then run in this process. For sbatch and torchrun the settings are read.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

import understudy as us
from understudy.cli import main
from understudy.config.train import TrainConfig
from understudy.train.checkpoint.run_dir import RunDir

ROOT = Path(__file__).parents[1]
PROGRAMS = ("understudy", "torchrun", "sbatch")
PAGES = ("dataset", "research", "robot", "cluster")
TINY = (
    "--policy.image-size 16 --policy.width 16 --policy.layers 1 --policy.channels 8 --policy.blocks 1 --log.no-report"
)
SMALL = {"STEPS": "2", "MORE": "3", "BATCH": "4", "LAUNCH": "", "OPTIONS": TINY}


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of the code blocks of a page."""
    text = (ROOT / f"docs/tutorial_{page}.md").read_text()
    return re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def expand(before: list[str], block: str) -> list[list[str]]:
    """Words of each command of a shell block, expanded by bash after the blocks before it."""
    record = "".join(f'{name}() {{ printf "%s\\0" {name} "$@" $\'\\036\'; }}\n' for name in PROGRAMS)
    script = f"set -eu\n{record}" + "".join(before) + "printf '\\035'\n" + block
    env = {"PATH": os.environ["PATH"]} | SMALL
    out = subprocess.run(["bash", "-c", script], env=env, capture_output=True, check=True).stdout.decode()
    return [command.strip("\0").split("\0") for command in out.partition("\035")[2].split("\036")][:-1]


def follow(page: str) -> list[str]:
    """Follow a page in the current folder; returns the programs and commands that it called."""
    called, shell, names = [], list[str](), dict[str, object]()
    for language, block in blocks(page):
        if language == "python":
            exec(compile(block, f"tutorial_{page}.md", "exec"), names)
            continue
        assert language == "sh", "every block of a tutorial is executed"
        for words in expand(shell, block):
            called.append(" ".join(words[:2]) if words[0] == "understudy" else words[0])
            if words[0] == "understudy":
                assert main.main(words[1:]) == 0, words
            elif words[0] == "sbatch":
                script = next(number for number, word in enumerate(words) if word.endswith(".sbatch"))
                assert (ROOT / words[script]).is_file()
                run, *rest = words[script + 1 :]
                assert isinstance(main.read_settings("train", [*rest, "--output-dir", run]), TrainConfig)
            else:
                assert isinstance(main.read_settings("train", words[words.index("train") + 1 :]), TrainConfig)
        shell.append(block)
    return called


@pytest.mark.long
def test_tutorials_run_word_for_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    called, printed = {}, {}
    for page in PAGES:
        called[page], printed[page] = follow(page), capsys.readouterr().out
    for word in ("rate: training saw", "shape: training saw", "instruction: training saw"):
        assert word in printed["robot"], "each mistake is named"
    assert called["dataset"] == [f"understudy {name}" for name in ("check", "view", "edit", "edit", "check")]
    assert [name for name in called["cluster"] if name in PROGRAMS] == ["sbatch", "torchrun"]
    pages = (
        "check.html",
        "view/index.html",
        "checked.html",
        "comparison.html",
        "runs/tutorial/report.html",
    )
    assert [page for page in pages if not (tmp_path / page).is_file()] == []
    assert us.Catalog.open("data/tutorial").episodes.ids.size == 11, "episode 2 failed and is left out"
    assert RunDir(Path("runs/cluster")).settings().steps == 3
    assert "Worst validation episodes" in (tmp_path / "runs/tutorial/report.html").read_text()
