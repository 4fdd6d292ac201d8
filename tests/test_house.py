"""Rooms (`ROOMS`): imports between them, sizes of files and folders. Imports no
module.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALONE = {"understudy_conformance", "understudy_lerobot_service"}
SOURCES = {
    path.name: path
    for path in sorted(ROOT.glob("packages/*/src/understudy*"))
    if path.name not in ALONE
}
"""Folder of each package."""
MOST_LINES = 850
MOST_FILES = 25
MOST_FLOORS = 6

# ROOMS: rooms of the same package that a room may import, besides itself and the files at its root;
# test_seams.py has the imports between packages. NEVER: foreign modules that a room must not
# import.
ROOMS: dict[str, dict[str, set[str]]] = {
    "understudy": {
        "policies": set(),
        "config": {"policies"},
        "optim": {"config"},
        "distributed": {"config"},
        "train": {"policies", "config", "optim", "distributed"},
        "report": {"policies", "config", "train"},
        "cli": {"policies", "config", "optim", "distributed", "train", "report"},
    },
    "understudy_data": {
        "hub": set(),
        "storage": set(),
        "video": {"storage"},
        "order": set(),
        "datasets": {"hub", "storage", "video"},
        "load": {"storage", "video", "order", "datasets"},
        "integrations": {"storage", "video", "order", "datasets", "load"},
    },
    "understudy_kit": {
        "config": set(),
        "report": {"config"},
        "cli": {"config", "report"},
    },
    "understudy_client": {"contract": set()},
    "understudy_tools": {
        "edit": set(),
        "imports": set(),
        "check": set(),
        "report": {"check"},
        "cli": {"edit", "imports", "check", "report"},
    },
    "understudy_robot": {
        "contracts": set(),
        "envs": set(),
        "serve": {"contracts", "envs"},
        "rollout": {"contracts", "envs", "serve"},
        "report": {"contracts", "envs", "serve", "rollout"},
        "cli": {"contracts", "envs", "serve", "rollout", "report"},
    },
    "understudy_zoo": {
        "lerobot": set(),
        "pi05": {"lerobot"},
        "value": {"lerobot", "pi05"},
        "world_action": {"lerobot", "pi05", "value"},
        "checkpoint": {"lerobot", "pi05", "value", "world_action"},
        "cli": {"lerobot", "pi05", "value", "world_action", "checkpoint"},
    },
}
NEVER = {
    "order": {"torch", "pyarrow", "av", "scipy"},
    "hub": {"torch", "av", "pyarrow"},
    "storage": {"torch", "av"},
    "video": {"torch", "pyarrow"},
    "datasets": {"torch.nn", "torch.optim", "mujoco"},
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


def named(path: Path, source: Path) -> str:
    """Name of the module of a file."""
    parts = path.relative_to(source.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    named(path, source): path
    for source in SOURCES.values()
    for path in sorted(source.rglob("*.py"))
    if "testing" not in path.relative_to(source).parts
}
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


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
        if name.split(".")[0] in SOURCES:
            found.add(name if name in MODULES else name.rpartition(".")[0] or name)
    return found


@cache
def trees() -> dict[str, ast.Module]:
    """Syntax tree of each module. Collecting the tests of this file parses nothing."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


@pytest.fixture(scope="module", autouse=True)
def _no_tree_stays() -> Iterator[None]:
    """Millions of nodes would slow each search for garbage of the tests behind these."""
    yield
    trees.cache_clear()


@cache
def graph() -> dict[str, set[str]]:
    return {name: modules(tree) - {name} for name, tree in trees().items()}


def room(module: str) -> str:
    """ "understudy.policies" for a module of it, "understudy" for one at the root."""
    top, *parts = module.split(".")
    first = f"{top}.{parts[0]}" if parts else top
    return first if first in PACKAGES else top


def breaches(own: str, tree: ast.AST) -> list[str]:
    top, _, name = own.partition(".")
    allowed = {own, top, *(f"{top}.{other}" for other in ROOMS[top][name])}
    bad = [
        module
        for module in modules(tree)
        if module.split(".")[0] == top and room(module) not in allowed
    ]
    never = NEVER.get(name, set())
    bad += [
        name
        for name in imports(tree)
        if any(name == no or name.startswith(no + ".") for no in never)
    ]
    return sorted(bad)


def test_rooms_and_checks_agree() -> None:
    for name, source in SOURCES.items():
        folders = {path.parent.name for path in source.glob("*/__init__.py")} - {"testing"}
        assert folders == set(ROOMS.get(name, ()))
    assert len(MODULES) > 200


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_form_an_order(package: str) -> None:
    """Each room imports rooms above it in the table only: no circle between rooms is possible."""
    seen: set[str] = set()
    for name, allowed in ROOMS[package].items():
        assert allowed <= seen, name
        seen.add(name)


@pytest.mark.parametrize(
    "own", [f"{package}.{name}" for package, rooms in ROOMS.items() for name in rooms]
)
def test_no_room_imports_upwards(own: str) -> None:
    files = [module for module in MODULES if room(module) == own]
    assert files
    assert {module: bad for module in files if (bad := breaches(own, trees()[module]))} == {}


@pytest.mark.parametrize(
    "package", ["understudy_base", "understudy_kit", "understudy_client", "understudy_tools"]
)
def test_small_distributions_import_no_torch(package: str) -> None:
    own = {
        module: imports(trees()[module]) for module in MODULES if module.split(".")[0] == package
    }
    assert {
        module
        for module, names in own.items()
        if any(name.split(".")[0] == "torch" for name in names)
    } == set()


def test_loggers_are_below_that_of_the_program() -> None:
    """`--debug` and a user's settings go by the logger `understudy`: other packages spell the
    name.
    """
    own_names = []
    for module, tree in trees().items():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        texts = [ast.unparse(call) for call in calls]
        if module.split(".")[0] != "understudy" and "logging.getLogger(__name__)" in texts:
            own_names.append(module)
    assert own_names == []


def test_the_check_sees_a_breach() -> None:
    tree = ast.parse(
        "def f():\n    from understudy.train import optimizer_step\n"
        "    import torch.nn.functional as F\n"
    )
    assert breaches("understudy.policies", tree) == ["understudy.train.optimizer_step"]
    assert breaches("understudy_kit.config", tree) == ["torch.nn.functional"]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or not (strongly connected components,
    Tarjan 1972).
    """
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
    assert circles({name: others for name, others in graph().items() if name not in SOURCES}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def folders() -> dict[str, list[str]]:
    """Modules of each folder, without its `__init__`."""
    found = defaultdict(list)
    for module in MODULES:
        if module not in PACKAGES:
            found[module.rpartition(".")[0]].append(module)
    return found


def test_no_folder_is_too_large() -> None:
    assert {name: len(own) for name, own in folders().items() if len(own) > MOST_FILES} == {}


def floors(graph: dict[str, set[str]], own: list[str]) -> int:
    """Length of the longest chain of imports among the files of a folder."""
    height: dict[str, int] = {}

    def of(module: str) -> int:
        if module not in height:
            height[module] = 1 + max(
                (of(other) for other in graph[module] if other in own), default=0
            )
        return height[module]

    return max(map(of, own))


def test_no_folder_is_too_deep() -> None:
    assert {
        name: high
        for name, own in folders().items()
        if (high := floors(graph(), own)) > MOST_FLOORS
    } == {}
    assert floors({"a": {"b"}, "b": {"c"}, "c": set()}, ["a", "b", "c"]) == 3


def test_no_file_is_too_long() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}, (
        "split these by idea"
    )


@pytest.mark.parametrize("package", sorted(PACKAGES - SOURCES.keys()))
def test_each_folder_has_a_map(package: str) -> None:
    """The docstring of `__init__` names every file and folder in it, and no other."""
    text = ast.get_docstring(trees()[package]) or ""
    entries = {found[1] for line in text.splitlines() if (found := re.match(r" *(\w+)  +\S", line))}
    below = [module for module in MODULES if module.rpartition(".")[0] == package]
    assert entries == {module.rpartition(".")[2] for module in below}


def private(tree: ast.Module, own: str) -> list[str]:
    """Private names of other rooms that a file uses: imported, or as an attribute of an imported
    module.
    """
    aliases: dict[str, str] = {}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("understudy"):
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                if (
                    alias.name.startswith("_")
                    and alias.name != "__version__"
                    and room(module) != own
                ):
                    found.append(module)
                if module in MODULES and room(module) != own:
                    aliases[alias.asname or alias.name] = module
    for node in ast.walk(tree):
        hidden = (
            isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
        )
        if hidden and isinstance(node.value, ast.Name) and node.value.id in aliases:
            found.append(f"{aliases[node.value.id]}.{node.attr}")
    return found


def test_no_room_uses_private_names_of_another() -> None:
    assert {
        module: bad for module, tree in trees().items() if (bad := private(tree, room(module)))
    } == {}
    secret = "understudy.train.loop._secret"
    for text in (
        "from understudy.train import loop\nloop._secret()",
        "from understudy.train.loop import _secret",
    ):
        assert private(ast.parse(text), "understudy_kit.report") == [secret]


def test_the_order_uses_no_library_shuffle() -> None:
    """Shuffles of numpy and torch change between versions, so none may choose samples."""
    for module, tree in trees().items():
        for node in ast.walk(tree) if room(module).endswith(".order") else ():
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in (
                "np.random",
                "numpy.random",
            ):
                assert node.attr == "Philox", f"{module}:{node.lineno} uses np.random.{node.attr}"


def test_attention_is_from_torch() -> None:
    """`F.scaled_dot_product_attention` picks the kernel, and activation checkpointing saves its
    outputs.

    A hand-written attention would need a softmax. Those of today average the places of an image,
    and bins of a return.
    """
    found = {name for name, path in MODULES.items() if "softmax(" in path.read_text()}
    assert all(name.endswith(("policies.common.encoders", "value.model")) for name in found)


POLICIES = ("flow", "lerobot", "pi05", "value", "world_action")


def concrete_policies(tree: ast.AST) -> list[str]:
    """Concrete policies that a file names: modules below a type's own folder, and classes of it."""
    places = tuple(
        f"{package}.{kind}"
        for package in ("understudy.policies", "understudy_zoo")
        for kind in POLICIES
    )
    found = [module for module in modules(tree) if module.startswith(places)]
    names = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    }
    prefixes = tuple(kind.title() for kind in POLICIES)
    ends = ("Policy", "PolicyConfig", "Settings")
    return sorted(
        [*found, *(name for name in names if name.startswith(prefixes) and name.endswith(ends))]
    )


@pytest.mark.parametrize(
    "own", ["train", "rollout", "report", "load", "distributed", "optim", "config", "cli"]
)
def test_no_room_names_a_concrete_policy(own: str) -> None:
    files = [module for module in MODULES if room(module).partition(".")[2] == own]
    named = {
        module: concrete_policies(trees()[module]) for module in files if "_zoo." not in module
    }
    assert {module: bad for module, bad in named.items() if bad} == {}
    assert concrete_policies(
        ast.parse("from understudy.policies.flow.model import FlowPolicy\nFlowPolicy()")
    ) == [
        "FlowPolicy",
        "understudy.policies.flow.model",
    ]
