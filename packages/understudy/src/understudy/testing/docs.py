"""Code in pages: blocks of a language, commands as bash expands them, settings of a training,
Python that runs.

bash expands the commands of a page with other values of the variables that the page defines;
nothing else is replaced.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy.config.train import TrainConfig
from understudy_kit.cli import main

ROOT = Path(__file__).parents[5]
SOURCES = os.pathsep.join(sorted(map(str, ROOT.glob("packages/*/src"))))
"""The distributions of this checkout, as PYTHONPATH."""
PROGRAMS = ("understudy", "hf", "torchrun", "sbatch", "python", "sky", "kubectl")


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and text of the code blocks of a page."""
    return re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def code(text: str, language: str) -> list[str]:
    """Code blocks of one language."""
    return [block for kind, block in blocks(text) if kind == language]


def run_python(path: Path, names: dict[str, Any], which: slice = slice(None)) -> dict[str, Any]:
    """Run Python blocks of a page in one namespace, which is returned."""
    for block in code(path.read_text(), "python")[which]:
        exec(compile(block, str(path), "exec"), names)
    return names


def expand(block: str, variables: Mapping[str, str], before: Sequence[str] = ()) -> list[list[str]]:
    """Words of each command of a shell block, as bash expands them after the blocks `before`."""
    record = "".join(
        f'{name}() {{ printf "%s\\0" {name} "$@" $\'\\036\'; }}\n' for name in PROGRAMS
    )
    script = f"set -eu\n{record}" + "".join(before) + "printf '\\035'\n" + block
    env = {"PATH": os.environ["PATH"], **variables}
    out = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, check=True
    ).stdout.decode()
    return [command.strip("\0").split("\0") for command in out.partition("\035")[2].split("\036")][
        :-1
    ]


def settings_of(words: list[str]) -> TrainConfig:
    """Settings of the `understudy train` in a command for torchrun or sbatch."""
    if words[0] == "sbatch":
        script = next(number for number, word in enumerate(words) if word.endswith(".sbatch"))
        assert (ROOT / words[script]).is_file()
        run, *rest = words[script + 1 :]
        words = ["train", *rest, "--output-dir", run]
    config = main.read_settings("train", words[words.index("train") + 1 :])
    assert isinstance(config, TrainConfig)
    return config
