"""Messages and help name pages by addresses: who installed a wheel has no folder docs/."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.policies.registry import own_type_names
from understudy.testing.docs import ROOT
from understudy_base import page, with_addresses
from understudy_base.errors import DOCUMENTATION
from understudy_kit.cli import main
from understudy_kit.cli.commands import COMMANDS

FILE = re.compile(r"(?<!main/)\bdocs/|(?<![\w/])[a-z_]+\.md\b")
"""A page as a file."""
OWN = {"README.md"}


def printable(source: str) -> Iterator[str]:
    """Texts of a module that are no docstrings, parts of formatted ones too."""
    tree = ast.parse(source)
    blocks = [
        body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)
    ]
    docs = {id(line.value) for body in blocks for line in body if isinstance(line, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def named_files(source: str) -> list[str]:
    """Texts of a module that name a page as a file, but for the first lines of this mechanism."""
    return [
        text
        for text in printable(source)
        if FILE.search(text) and text not in OWN and text != DOCUMENTATION
    ]


def test_no_text_of_the_source_names_a_page_as_a_file() -> None:
    found = {}
    for path in ROOT.glob("packages/*/src/**/*.py"):
        source = path.read_text()
        texts = named_files(source) if FILE.search(source) else []
        # arguments of `page`
        pages = [text for text in texts if not re.fullmatch(r"[a-z_]+\.md", text)]
        if pages and path.name != "errors.py":
            found[str(path)] = pages
    assert found == {}
    assert named_files('print(f"{x}: see docs/policies.md")') != []
    assert named_files('"""docs/policies.md"""\nraise ValueError("see policies.md")') == [
        "see policies.md"
    ]


def test_pages_that_are_named_exist() -> None:
    calls = [
        name
        for path in ROOT.glob("packages/*/src/**/*.py")
        for name in re.findall(r"\bpage\(['\"]([^'\"]+)['\"]\)", path.read_text())
    ]
    assert len(calls) >= 6
    assert [name for name in calls if not (ROOT / "docs" / name.partition("#")[0]).is_file()] == []


def test_address_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Documentation"] == DOCUMENTATION
    assert (
        with_addresses("(docs/order.md, x/docs/order.md)")
        == f"({page('order.md')}, x/docs/order.md)"
    )


@pytest.mark.parametrize("columns", [40, 80])
def test_help_names_whole_addresses(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    calls = [name.split() for name in COMMANDS]
    calls += [
        ["train", "--policy.type", kind]
        for kind in own_type_names()
        if not kind.startswith("lerobot")
    ]
    for words in calls if columns == 80 else [["train"], ["edit"]]:
        with pytest.raises(SystemExit):
            main.main([*words, "--help"])
        printed = capsys.readouterr().out
        assert len(printed) > 100
        assert (
            FILE.findall(
                printed.replace("README.md", "").replace(
                    f"{DOCUMENTATION}/", "https://x/main/docs/"
                )
            )
            == []
        )
        addresses = re.findall(rf"{re.escape(DOCUMENTATION)}/\S*", printed)
        assert len(addresses) > 0
        names = [
            re.sub(r"[).,:;]+$", "", address).rpartition("/")[2].partition("#")[0]
            for address in addresses
        ]
        assert [name for name in names if not Path(ROOT, "docs", name).is_file()] == []
