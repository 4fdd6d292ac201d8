"""docs/installation.md and Containerfile: extras, packages, commands and files are those of the
repository.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from understudy.testing.docs import SOURCES
from understudy_kit.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/installation.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAPERS = {
    path.parent.name: tomllib.loads(path.read_text())["project"]
    for path in ROOT.glob("packages/*/pyproject.toml")
}
DOORS = PROJECT["optional-dependencies"]


def names(requirements: list[str], distribution: str) -> set[str]:
    return {re.split(r"[<>=\[; ]", requirement)[0] for requirement in requirements} - {distribution}


def rows(heading: str) -> list[list[str]]:
    """Cells of the table below a heading of the page."""
    table = PAGE.split(f"## {heading}\n")[1].split("## ")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][
        1:
    ]


def quoted(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def all_distributions(door: str) -> set[str]:
    """Distributions that an extra of the root installs."""
    found = set()
    for line in DOORS[door]:
        inner = re.fullmatch(r"understudy-wheels\[([\w,-]+)\]", line)
        if inner is None:
            found.add(re.split(r"[\[ ]", line)[0])
        else:
            found |= set().union(*map(all_distributions, inner[1].split(",")))
    return found


def test_table_has_the_distributions_of_each_door() -> None:
    listed = {}
    for door, distributions, _ in rows("Distributions"):
        own = quoted(distributions)
        named = set()
        for name in own:
            named |= listed.get(name, {name})
        listed[door.strip("`")] = named
    assert set().union(*listed.values()) == set(PAPERS)
    for door, distributions in listed.items():
        assert distributions == all_distributions(door), door


def test_a_door_installs_all_siblings_that_its_distributions_need() -> None:
    """pip finds a sibling by the root's reference alone."""
    for door in DOORS:
        found = all_distributions(door)
        for name in found:
            needed = {
                re.split(r"[=\[]", line)[0] for line in PAPERS[name]["dependencies"]
            } & PAPERS.keys()
            assert needed <= found, (door, name)


def test_table_has_the_extras_and_packages_of_the_distributions() -> None:
    found = {
        extra.strip("`"): (owner.strip("`"), quoted(packages))
        for extra, owner, packages, _ in rows("Extras")
    }
    declared = {
        extra: owner
        for owner, project in PAPERS.items()
        for extra in project.get("optional-dependencies", {})
        if owner != "understudy-conformance" and extra not in ("torch", "robot", "zoo")
    }
    assert {extra: owner for extra, (owner, _) in found.items()} == declared
    for extra, (owner, packages) in found.items():
        assert packages == names(PAPERS[owner]["optional-dependencies"][extra], owner), extra
    doors = {door.strip("`") for door, *_ in rows("Distributions")}
    assert DOORS.keys() == found.keys() | doors | {"base", "all"}
    named = set(re.split(r"[\[\],]", DOORS["all"][0]))
    absent = found.keys() - named - {"remote"}  # s3 and hub include it
    assert quoted(PAGE.split("`all` has all of these but")[1].split(".")[0]) == absent


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
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={SOURCES} exec {sys.executable} -m understudy "$@"\n'
    )
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
    assert (
        {"train", "order", "view"}
        < complete(tmp_path, "")
        <= {name.split()[0] for name in COMMANDS}
    )
    assert complete(tmp_path, "tra") == {"train"}
    assert {"--optim.lr", "--optim.beta1"} < complete(tmp_path, "train", "--optim.")


def test_containerfile_copies_the_files_that_a_build_needs() -> None:
    text = (ROOT / "Containerfile").read_text()
    copied = [
        word
        for line in re.findall(r"^COPY (.+) \S+$", text, flags=re.MULTILINE)
        for word in line.split()
    ]
    assert all((ROOT / name).exists() for name in copied)
    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    needed = {
        "pyproject.toml",
        *PROJECT["license-files"],
        hooks["metadata"]["hooks"]["custom"]["path"],
    }
    needed |= {"README.md", "packages"}
    assert needed <= set(copied)
    extras = re.search(r"^ARG EXTRAS=(\S+)$", text, flags=re.MULTILINE)
    assert extras is not None
    assert set(extras[1].split(",")) <= PROJECT["optional-dependencies"].keys()
    python = re.search(r"^ARG PYTHON=(\S+)$", text, flags=re.MULTILINE)
    assert python is not None
    assert f"Programming Language :: Python :: {python[1]}" in PROJECT["classifiers"]
    torch = next(one for one in PAPERS["understudy"]["dependencies"] if one.startswith("torch"))
    assert f"ARG TORCH={torch}\n" in text
    assert 'ENTRYPOINT ["understudy"]' in text


def test_readme_installs_from_the_repository_with_existing_extras() -> None:
    """No release is on a package index, so the first command names the repository."""
    readme = (ROOT / "README.md").read_text()
    [(extras, address)] = re.findall(
        r"^pip install 'understudy-wheels\[([\w,-]+)\] @ git\+(\S+)'$", readme, flags=re.M
    )
    assert address == PROJECT["urls"]["Homepage"]
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
