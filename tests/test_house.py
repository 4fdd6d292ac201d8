"""The rooms of docs/architecture.md: imports between them, sizes of files and folders. Imports no module."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "understudy"
MOST_LINES, MOST_FILES, MOST_FLOORS = 700, 25, 6

# ROOMS: rooms that a room may import, besides itself and the root files. NEVER: foreign modules it must not import.
CELLAR = {"storage", "video"}
GROUND = {"order", "data", "contract", "policies", "envs", "config"}
ROOMS: dict[str, set[str]] = {
    "hub": set(),
    "storage": set(),
    "video": {"storage"},
    "order": set(),
    "data": {"hub"} | CELLAR,
    "edit": {"order", "data"} | CELLAR,
    "contract": set(),
    "policies": {"hub", "order", "contract"},
    "envs": set(),
    "config": {"policies", "envs"},
    "imports": {"data", "config"} | CELLAR,
    "optim": {"config"},
    "distributed": {"config"},
    "load": {"order", "data"} | CELLAR,
    "integrations": {"order", "data", "load"} | CELLAR,
    "check": {"order", "data"} | CELLAR,
    "rollout": {"order", "contract", "policies", "envs", "config"},
    "serve": {"order", "contract", "policies", "config"},
    "train": {"hub"} | GROUND | CELLAR | {"optim", "distributed", "load", "rollout"},
    "report": GROUND | {"load", "check", "rollout", "train", "video"},
    "cli": {"hub"}
    | GROUND
    | CELLAR
    | {"edit", "imports", "optim", "distributed", "load", "check", "rollout", "serve", "train", "report"},
}
NEVER = {
    "order": {"torch", "pyarrow", "av", "scipy"},
    "hub": {"torch", "av", "pyarrow"},
    "storage": {"torch", "av"},
    "video": {"torch", "pyarrow"},
    "data": {"torch.nn", "torch.optim", "mujoco"},
    "edit": {"torch", "mujoco"},
    "imports": {"torch", "mujoco"},
    "contract": {"torch", "pyarrow", "av", "scipy"},
    "policies": {"pyarrow", "av", "mujoco", "torch.distributed"},
    "optim": {"pyarrow", "av", "mujoco"},
    "serve": {"pyarrow", "av", "mujoco"},
    "check": {"torch.nn", "torch.optim", "mujoco"},
    "config": {"torch", "pyarrow", "av"},
    "envs": {"torch", "pyarrow", "av"},
}


def named(path: Path) -> str:
    """ "data.format.catalog" for data/format/catalog.py, "" for the package itself."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {named(path): path for path in sorted(SOURCE.rglob("*.py"))}
PACKAGES = {named(path) for path in SOURCE.rglob("__init__.py")}


def imports(tree: ast.AST) -> set[str]:
    """Dotted names that a file imports, foreign and ours; type-checking imports count, too."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def modules(tree: ast.AST) -> set[str]:
    """Our modules that a file imports."""
    found = set()
    for name in imports(tree):
        if name.split(".")[0] == "understudy":
            own = name.removeprefix("understudy").removeprefix(".")
            found.add(own if own in MODULES else own.rpartition(".")[0])
    return found


@cache
def trees() -> dict[str, ast.Module]:
    """Syntax tree of each module. Collecting the tests of this file parses nothing."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


@cache
def graph() -> dict[str, set[str]]:
    return {name: modules(tree) - {name} for name, tree in trees().items()}


def room(module: str) -> str:
    first = module.split(".")[0]
    return first if first in PACKAGES else ""


def breaches(own: str, tree: ast.AST) -> list[str]:
    allowed = {own, "", *ROOMS.get(own, set())}
    bad = [module for module in modules(tree) if room(module) not in allowed]
    never = NEVER.get(own, set())
    bad += [name for name in imports(tree) if any(name == no or name.startswith(no + ".") for no in never)]
    return sorted(bad)


def test_rooms_and_checks_agree() -> None:
    assert {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"} == set(ROOMS)
    assert len(MODULES) > 200


def test_rooms_form_an_order() -> None:
    """Each room imports rooms above it in the table only: no circle between rooms is possible."""
    seen: set[str] = set()
    for name, allowed in ROOMS.items():
        assert allowed <= seen, name
        seen.add(name)


@pytest.mark.parametrize("own", ROOMS)
def test_no_room_imports_upwards(own: str) -> None:
    files = [module for module in MODULES if room(module) == own]
    assert files
    assert {module: bad for module in files if (bad := breaches(own, trees()[module]))} == {}


def test_the_root_imports_no_room() -> None:
    """Except the package itself, which loads its public names at first use, and `python -m understudy`."""
    root = [module for module in MODULES if room(module) == "" and module not in ("", "__main__")]
    assert {module: bad for module in root if (bad := sorted(filter(room, graph()[module])))} == {}


def test_the_check_sees_a_breach() -> None:
    tree = ast.parse("def f():\n    from understudy.train import optimizer_step\n    import torch.nn.functional as F\n")
    assert breaches("data", tree) == ["torch.nn.functional", "train.optimizer_step"]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or not (strongly connected components, Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph.get(name, set()):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            found.extend([sorted(group)] if len(group) > 1 else [])

    for name in graph:
        if name not in index:
            visit(name)
    return found


def test_no_circles() -> None:
    assert circles({name: others for name, others in graph().items() if name}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def folders() -> dict[str, list[str]]:
    """Modules of each folder, without its `__init__`."""
    found = defaultdict(list)
    for module in MODULES:
        if module not in PACKAGES:
            found[module.rpartition(".")[0]].append(module)
    return found


def test_no_folder_is_too_large() -> None:
    """The root may have one file more: scripts/seams.py divides it among distributions, and then it is gone."""
    most = {"": MOST_FILES + 1}
    assert {name: len(own) for name, own in folders().items() if len(own) > most.get(name, MOST_FILES)} == {}


def floors(graph: dict[str, set[str]], own: list[str]) -> int:
    """Length of the longest chain of imports among the files of a folder."""
    height: dict[str, int] = {}

    def of(module: str) -> int:
        if module not in height:
            height[module] = 1 + max((of(other) for other in graph[module] if other in own), default=0)
        return height[module]

    return max(map(of, own))


def test_no_folder_is_too_deep() -> None:
    assert {name: high for name, own in folders().items() if (high := floors(graph(), own)) > MOST_FLOORS} == {}
    assert floors({"a": {"b"}, "b": {"c"}, "c": set()}, ["a", "b", "c"]) == 3


def test_no_file_is_too_long() -> None:
    lines = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}, "split these by idea"


@pytest.mark.parametrize("package", sorted(PACKAGES - {""}))
def test_each_folder_has_a_map(package: str) -> None:
    """The docstring of `__init__` names every file and folder in it, and no other."""
    text = ast.get_docstring(trees()[package]) or ""
    entries = {found[1] for line in text.splitlines() if (found := re.match(r" *(\w+)  +\S", line))}
    below = [module for module in MODULES if module.rpartition(".")[0] == package]
    assert entries == {module.rpartition(".")[2] for module in below}


def private(tree: ast.Module, own: str) -> list[str]:
    """Private names of other rooms that a file uses: imported, or as an attribute of an imported module."""
    aliases: dict[str, str] = {}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("understudy"):
            for alias in node.names:
                module = f"{node.module}.{alias.name}".removeprefix("understudy.")
                if alias.name.startswith("_") and alias.name != "__version__" and room(module) != own:
                    found.append(module)
                if module in MODULES and room(module) != own:
                    aliases[alias.asname or alias.name] = module
    for node in ast.walk(tree):
        hidden = isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if hidden and isinstance(node.value, ast.Name) and node.value.id in aliases:
            found.append(f"{aliases[node.value.id]}.{node.attr}")
    return found


def test_no_room_uses_private_names_of_another() -> None:
    assert {module: bad for module, tree in trees().items() if (bad := private(tree, room(module)))} == {}
    assert private(ast.parse("from understudy.data import dataset\ndataset._secret()"), "load") == [
        "data.dataset._secret"
    ]
    assert private(ast.parse("from understudy.data.dataset import _secret"), "load") == ["data.dataset._secret"]


def test_the_order_uses_no_library_shuffle() -> None:
    """Shuffles of numpy and torch change between versions, so none may choose samples."""
    for module, tree in trees().items():
        for node in ast.walk(tree) if room(module) == "order" else ():
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np.random", "numpy.random"):
                assert node.attr == "Philox", f"{module}:{node.lineno} uses np.random.{node.attr}"


def test_attention_is_from_torch() -> None:
    """`F.scaled_dot_product_attention` picks the kernel, and activation checkpointing saves its outputs.

    A hand-written attention would need a softmax. Those of today average the places of an image, and bins of a return.
    """
    found = {
        str(path.relative_to(SOURCE)) for path in (SOURCE / "policies").rglob("*.py") if "softmax(" in path.read_text()
    }
    assert found <= {"policies/common/encoders.py", "policies/value/model.py"}


def concrete_policies(tree: ast.AST) -> list[str]:
    """Concrete policies that a file names: modules below a type's own folder, and classes of it."""
    kinds = {path.name for path in (SOURCE / "policies").iterdir() if path.is_dir()} - {
        "common",
        "graph",
        "own_code",
        "__pycache__",
    }
    found = [module for module in modules(tree) if module.startswith(tuple(f"policies.{kind}" for kind in kinds))]
    names = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    }
    prefixes = tuple(kind.title() for kind in kinds)
    return sorted(
        [
            *found,
            *(
                name
                for name in names
                if name.startswith(prefixes) and name.endswith(("Policy", "PolicyConfig", "Settings"))
            ),
        ]
    )


@pytest.mark.parametrize("own", ["train", "rollout", "report", "load", "distributed", "optim", "config", "cli"])
def test_no_room_names_a_concrete_policy(own: str) -> None:
    files = [module for module in MODULES if room(module) == own]
    assert {module: bad for module in files if (bad := concrete_policies(trees()[module]))} == {}
    assert concrete_policies(ast.parse("from understudy.policies.flow.model import FlowPolicy\nFlowPolicy()")) == [
        "FlowPolicy",
        "policies.flow.model",
    ]
