"""docs/installation.md and Containerfile: extras, packages, commands and files are those of the repository."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from understudy_kit.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/installation.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEVELOPMENT = {"all", "test", "docs", "dev"}


def names(requirements: list[str]) -> set[str]:
    return {
        re.split(r"[<>=\[; ]", requirement)[0]
        for requirement in requirements
        if not requirement.startswith("understudy")
    }


def rows() -> dict[str, tuple[set[str], str]]:
    """Extra -> packages and purpose, of the table of the page."""
    table = PAGE.split("## Extras")[1].split("## ")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    return {extra.strip("`"): (set(re.findall(r"`([^`]+)`", packages)), use) for extra, packages, use in cells}


def test_table_has_the_extras_and_packages_of_the_project() -> None:
    extras = PROJECT["optional-dependencies"]
    found = rows()
    assert found.keys() - {"none"} == extras.keys() - DEVELOPMENT
    assert found["none"][0] == names(PROJECT["dependencies"])
    for extra in found.keys() - {"none"}:
        assert found[extra][0] == names(extras[extra]), extra
    absent = extras.keys() - DEVELOPMENT - set(re.split(r"[\[\],]", extras["all"][0]))
    assert set(re.findall(r"`([a-z0-9-]+)`", PAGE.split("`all` has all of these but")[1].split(".")[0])) == absent


def test_page_uses_existing_extras_and_commands() -> None:
    for group in re.findall(r"'\.\[([^\]]+)\]'|\| `([a-z0-9,-]+)` \|$", PAGE, flags=re.MULTILINE):
        for extra in "".join(group).split(","):
            assert extra in PROJECT["optional-dependencies"]
    for command in re.findall(r"^understudy ([a-z]+)", PAGE, flags=re.MULTILINE):
        assert command in COMMANDS


def complete(folder: Path, *words: str) -> set[str]:
    """Words that bash offers for the last one, by the lines of the page."""
    (script,) = re.findall(r"```\n(_understudy.+?)```", PAGE, flags=re.DOTALL)
    program = folder / "understudy"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT / "src"} exec {sys.executable} -m understudy "$@"\n')
    program.chmod(0o755)
    lines = f'''{script}
        complete -p understudy | grep -q -- "-F _understudy" || exit 9
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _understudy understudy "${{@: -1}}"
        printf "%s\\n" "${{COMPREPLY[@]}}"'''
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}
    command = ["bash", "--norc", "-c", lines, "bash", "understudy", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return set(done.stdout.split())


def test_lines_of_the_page_complete_commands_and_flags(tmp_path: Path) -> None:
    assert {"train", "order", "view"} < complete(tmp_path, "") <= {name.split()[0] for name in COMMANDS}
    assert complete(tmp_path, "tra") == {"train"}
    assert {"--optim.lr", "--optim.beta1"} < complete(tmp_path, "train", "--optim.")


def test_containerfile_copies_the_files_that_a_build_needs() -> None:
    text = (ROOT / "Containerfile").read_text()
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", text, flags=re.MULTILINE) for word in line.split()]
    assert all((ROOT / name).exists() for name in copied)
    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    needed = {"pyproject.toml", "src", *PROJECT["license-files"], hooks["metadata"]["hooks"]["custom"]["path"]}
    needed |= {"README.md", "packages"}
    assert needed <= set(copied)
    extras = re.search(r"^ARG EXTRAS=(\S+)$", text, flags=re.MULTILINE)
    assert extras is not None
    assert set(extras[1].split(",")) <= PROJECT["optional-dependencies"].keys()
    python = re.search(r"^ARG PYTHON=(\S+)$", text, flags=re.MULTILINE)
    assert python is not None
    assert f"Programming Language :: Python :: {python[1]}" in PROJECT["classifiers"]
    torch = next(one for one in PROJECT["dependencies"] if one.startswith("torch"))
    assert f"ARG TORCH={torch}\n" in text
    assert 'ENTRYPOINT ["understudy"]' in text


def test_readme_installs_from_the_repository_with_existing_extras() -> None:
    """No release is on a package index, so the first command names the repository."""
    readme = (ROOT / "README.md").read_text()
    (extras, address) = re.findall(r"^pip install 'understudy\[([\w,-]+)\] @ git\+(\S+)'$", readme, flags=re.MULTILINE)[
        0
    ]
    assert address == PROJECT["urls"]["Homepage"]
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
