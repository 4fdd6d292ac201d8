"""The house of docs/architecture.md: what a room may import and how long a file may be. Reads every file, runs none."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "understudy"

# What each room may import of ours (besides itself), and what it must never import of others.
OURS = {
    "order": set(),
    "data": set(),
    "policies": set(),
    "worlds": set(),
    "load": {"order", "data"},
    "train": {"order", "data", "policies", "worlds", "load"},
    "tools": {"order", "data", "policies", "worlds", "load", "train"},
}
NEVER = {
    "order": {"torch", "pyarrow", "av", "scipy"},
    "data": {"torch.nn", "torch.optim", "mujoco"},
    "policies": {"pyarrow", "av", "mujoco", "torch.distributed"},
    "worlds": {"torch", "pyarrow", "av"},
}


def imports(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def breaches(room: str, names: set[str]) -> list[str]:
    allowed = {room, *OURS[room]}
    bad = []
    for name in names:
        parts = name.split(".")
        if parts[0] == "understudy" and len(parts) > 1 and parts[1] in OURS and parts[1] not in allowed:
            bad.append(name)
        if any(name == never or name.startswith(never + ".") for never in NEVER.get(room, ())):
            bad.append(name)
    return bad


@pytest.mark.parametrize("room", OURS)
def test_no_room_imports_upwards(room: str) -> None:
    files = sorted((SOURCE / room).rglob("*.py"))
    assert files
    for file in files:
        assert breaches(room, imports(ast.parse(file.read_text()))) == [], f"{file.name} breaks the house's rule"


def test_the_check_sees_a_breach() -> None:
    tree = ast.parse("def f():\n    from understudy.train import step\n    import torch.nn.functional as F\n")
    assert sorted(breaches("data", imports(tree))) == ["torch.nn.functional", "understudy.train.step"]


def test_rooms_and_checks_agree() -> None:
    rooms = {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert rooms == set(OURS)


def test_no_file_is_too_long_to_be_one_idea() -> None:
    lines = {file.relative_to(SOURCE): len(file.read_text().splitlines()) for file in SOURCE.rglob("*.py")}
    assert len(lines) > 100
    assert {str(file): count for file, count in lines.items() if count > 400} == {}, "split these by idea"


def test_the_order_uses_no_library_shuffle() -> None:
    """numpy's and torch's shuffles change between versions, so none may decide which sample comes."""
    for file in sorted((SOURCE / "order").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np.random", "numpy.random"):
                assert node.attr == "Philox", f"{file.name}:{node.lineno} uses np.random.{node.attr}"


def test_attention_is_torchs_own() -> None:
    """`F.scaled_dot_product_attention` picks the kernel, and activation checkpointing knows what it returns. A softmax
    is where one written by hand would show; the only one averages the places of a picture."""
    found = {file.name for file in (SOURCE / "policies").glob("*.py") if "softmax(" in file.read_text()}
    assert found <= {"vision.py"}
