"""Packages that each distribution imports are those that its `pyproject.toml` names. Imports no
module of ours.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAPERS = {
    path.parent.name: tomllib.loads(path.read_text())["project"]
    for path in ROOT.glob("packages/*/pyproject.toml")
}
PACKAGES = {
    "PIL": "pillow",
    "grpc": "grpcio",
    "libero": "hf-libero",
    "rerun": "rerun-sdk",
    "yaml": "pyyaml",
}
"""Module -> package, where the names differ."""
AT_ONCE = {
    ("understudy-data", "torch"): "the loaders, which the extra `torch` adds",
    (
        "understudy-base",
        "tqdm",
    ): "of progress.py alone; distributions that show progress ask for it",
}
"""Packages that modules import at once, and that an installation may lack."""
UNDECLARED = {
    ("understudy-base", "ipython"): "only looked at where a notebook has imported it",
    ("understudy-base", "tqdm"): "as above",
    ("understudy-base", "typing-extensions"): "seen by type checkers alone",
    ("understudy-client", "typing-extensions"): "seen by type checkers alone",
    ("understudy-conformance", "torch"): "reseeded where the loader under test has it",
    ("understudy-data", "accelerate"): "of lerobot-train, into which the loader goes",
    ("understudy-tools", "backports"): "zstd before Python 3.14, brought by rosbags",
    ("understudy-tools", "compression"): "zstd of Python 3.14",
    ("understudy-tools", "imagecodecs"): "where a Zarr store has images that need it",
    ("understudy-tools", "lz4"): "brought by rosbags",
    ("understudy-tools", "numcodecs"): "brought by zarr",
    ("understudy-zoo", "diffusers"): "brought by lerobot[diffusion]",
    ("understudy-zoo", "num2words"): "brought by lerobot[smolvla]",
    ("understudy-zoo", "torchvision"): "brought by lerobot",
    ("understudy-zoo", "transformers"): "brought by lerobot[smolvla]",
}
"""(distribution, package) that no `pyproject.toml` names, and why that is right."""


def imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield (package, whether it is imported at once) for each import of another package than ours
    and Python.
    """
    at_once = set(tree.body)
    for node in ast.walk(tree):
        modules: list[Any] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            modules = [word.value for word in node.args[:1] if isinstance(word, ast.Constant)]
        for module in modules:
            top = module.partition(".")[0]
            if top not in sys.stdlib_module_names and top.partition("_")[0] != "understudy":
                yield PACKAGES.get(top, top.lower().replace("_", "-")), node in at_once


@cache
def imported(distribution: str) -> dict[str, bool]:
    """Packages that a distribution imports -> whether some module of it imports them at once."""
    found: dict[str, bool] = {}
    for path in (ROOT / "packages" / distribution).glob("src/*/**/*.py*"):
        if path.suffix in (".py", ".pyi") and "testing" not in path.parts:
            for package, at_once in imports(ast.parse(path.read_text(encoding="utf-8"))):
                found[package] = found.get(package, False) or at_once
    return found


def names(requirements: list[str]) -> set[str]:
    found = {re.split(r"[\[<>=!~; ]", line)[0] for line in requirements}
    return {name.lower().replace("_", "-") for name in found}


def needed(distribution: str) -> set[str]:
    """Packages that come with a distribution: its dependencies and those of its siblings."""
    found = names(PAPERS[distribution]["dependencies"])
    for sibling in found & PAPERS.keys():
        found |= needed(sibling)
    return found


def optional(distribution: str) -> set[str]:
    """Packages that an extra of a distribution, or of one that it needs, may add."""
    found = set()
    for name in {distribution, *needed(distribution)} & PAPERS.keys():
        for requirements in PAPERS[name].get("optional-dependencies", {}).values():
            found |= names(requirements)
    return found


@pytest.mark.parametrize("distribution", sorted(PAPERS))
def test_imports_are_declared(distribution: str) -> None:
    known = needed(distribution) | optional(distribution)
    strange = {name for name in imported(distribution) if name not in known}
    assert strange == {name for owner, name in UNDECLARED if owner == distribution}


@pytest.mark.parametrize("distribution", sorted(PAPERS))
def test_imports_at_once_need_no_extra(distribution: str) -> None:
    found = {name for name, at_once in imported(distribution).items() if at_once}
    assert found - needed(distribution) == {
        name for owner, name in AT_ONCE if owner == distribution
    }


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import numpy.random, os", [("numpy", True)]),
        ("from PIL import Image", [("pillow", True)]),
        ("def f():\n    from grpc.aio import server", [("grpcio", False)]),
        ("h5py = import_module('h5py._hl')", [("h5py", False)]),
        ("from understudy_base import errors", []),
        ("from understudy.train import run", []),
    ],
)
def test_an_import_is_seen_however_it_is_written(code: str, found: list[tuple[str, bool]]) -> None:
    assert list(imports(ast.parse(code))) == found
