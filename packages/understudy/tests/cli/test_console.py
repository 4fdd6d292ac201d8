"""No command ends in an error of an encoder: tasks, joints and names of folders on any console, in
any locale.
"""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import understudy as us
from understudy_kit.cli.commands import COMMANDS
from understudy_kit.cli.console import ESCAPE, write_any_text

LETTERS = "夹 π 🤖"
LOCALES = {
    "C without UTF-8": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "ascii": {"PYTHONIOENCODING": "ascii:strict"},
}


def run(folder: Path, locale: dict[str, str], *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a folder under a locale."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LC_", "LANG", "PYTHONIO"))
    }
    command = [sys.executable, "-m", "understudy", *words]
    return subprocess.run(
        command, cwd=folder, env=kept | locale, capture_output=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset whose name, robot, joints and task have letters beyond any one-byte
    encoding.
    """
    folder = tmp_path_factory.mktemp("console")
    keys = ("observation.state", "action")
    features = {key: {"dtype": "float32", "shape": (2,), "names": ["µ", "π"]} for key in keys}
    rng = np.random.default_rng(0)
    with us.EpisodeWriter(
        folder / "数据/夹", fps=10, features=features, robot_type="夹爪"
    ) as writer:
        for _ in range(4):
            for _ in range(12):
                writer.add_frame(
                    {key: rng.normal(size=2).astype(np.float32) for key in keys}, LETTERS
                )
            writer.save_episode()
    return folder


@pytest.mark.long
@pytest.mark.parametrize("locale", LOCALES.values(), ids=LOCALES)
def test_commands_print_texts_of_others(
    locale: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    for words in (
        ["check", "数据/夹"],
        ["check", "数据/夹", "--json"],
        ["select", "数据/夹", f"v{tmp_path.name[-4:].strip('_')}", "--where", '"夹" in task'],
        ["edit", "数据/夹", str(tmp_path / "数据"), "--episodes", "0-1"],
        ["order", "explain", "数据/夹"],
        ["contract", "数据/夹"],
        ["train", "--data.root", "数据/夹", "--print-config"],
    ):
        done = run(folder, locale, *words)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), (
            words,
            done.stderr.decode(),
        )
    info = json.loads((tmp_path / "数据/meta/info.json").read_text(encoding="utf-8"))
    assert info["robot_type"] == "夹爪"
    assert run(folder, locale, "check", "数据/没有").returncode == 2


@pytest.mark.long
@pytest.mark.parametrize("locale", LOCALES.values(), ids=LOCALES)
def test_json_stays_json_on_any_console(locale: dict[str, str], folder: Path) -> None:
    printed = run(folder, locale, "check", "数据/夹", "--json").stdout
    encoding = "cp1252" if "PYTHONIOENCODING" in locale else "utf-8"
    assert LETTERS in json.dumps(json.loads(printed.decode(encoding)), ensure_ascii=False)


@pytest.mark.long
def test_a_run_is_written_in_the_locale_of_nothing(folder: Path) -> None:
    small = [
        "--steps",
        "1",
        "--batch-size",
        "2",
        "--policy.width",
        "16",
        "--policy.layers",
        "1",
        "--val.every",
        "0",
    ]
    words = ["train", "--data.root", "数据/夹", "--output-dir", "数据/run", *small]
    done = run(folder, LOCALES["C without UTF-8"], *words)
    assert done.returncode == 0, done.stderr.decode()
    for path in (folder / "数据/run").rglob("*"):
        if path.suffix in (".json", ".jsonl", ".yaml", ".html", ".csv"):
            assert "\\udc" not in path.read_text(encoding="utf-8"), path


def test_help_of_every_command_under_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    from understudy_kit.cli import main

    for name in ("", *COMMANDS):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", stream)
        write_any_text()
        try:
            code = main.main([*name.split(), "--help"])
        except SystemExit as end:
            code = int(end.code or 0)
        stream.flush()
        monkeypatch.undo()
        assert code == 0, name


def test_letters_that_an_encoding_lacks_are_those_of_json() -> None:
    write_any_text()
    text = f"{LETTERS} \udcff"
    assert json.loads(b'"' + text.encode("ascii", ESCAPE) + b'"') == text
    assert text.encode("utf-8", ESCAPE).startswith(LETTERS.encode())


def test_a_name_that_is_no_text_is_one_line(folder: Path) -> None:
    target = os.fsdecode(os.fsencode(folder) + b"/caf\xe9")
    try:
        os.makedirs(target)
    except OSError:
        pytest.skip("the file system takes UTF-8 names alone")
    done = run(folder, {"LC_ALL": "C.UTF-8"}, "edit", "数据/夹", f"{target}/out", "--episodes", "0")
    assert done.returncode in (0, 2), done.stderr.decode()
    assert b"Traceback" not in done.stderr
