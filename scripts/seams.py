"""Imports between distributions: `python scripts/seams.py`.

ARROWS says which of them may import which; tests/test_seams.py refuses others. With `--against` it
lists those that are not allowed.

An import counts wherever it is written: in a function, in a stub, as an attribute of an imported
module, as a text "module", or as "module:name", also below the package of the file.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LEARNING = {"base", "data", "kit", "client"}
ARROWS: dict[str, set[str]] = {
    "base": set(),
    "data": {"base"},
    "kit": {"base"},
    "client": {"base"},
    "tools": LEARNING,
    "understudy": LEARNING,
    "robot": LEARNING | {"understudy"},
    "zoo": LEARNING | {"understudy"},
    "conformance": set(),
    "lerobot_service": LEARNING | {"understudy", "robot"},
}


class Crossing(NamedTuple):
    """A name that a module takes from another distribution."""

    wheel: str
    """Distribution of the module."""
    module: str
    """The module, without `understudy.`."""
    other: str
    """Distribution of the name."""
    name: str
    """`MODULE:NAME`, without `understudy.`; `MODULE:` for a module."""

    def __str__(self) -> str:
        return f"{self.wheel} -> {self.other}: {self.module} takes {self.name}"


def find_modules(root: Path = ROOT) -> dict[str, dict[str, Path]]:
    """Files of each distribution by the name of the module; that of a stub ends with `.pyi`."""
    found: dict[str, dict[str, Path]] = defaultdict(dict)
    for top in root.glob("packages/*/src/*"):
        for path in [*top.rglob("*.py"), *top.rglob("*.pyi")]:
            parts = path.relative_to(top).with_suffix("").parts
            if parts[0] == "testing":
                continue
            wheel = top.name.removeprefix("understudy_")
            name = ".".join([top.name, *parts]).removesuffix(".__init__")
            found[wheel][name + (".pyi" if path.suffix == ".pyi" else "")] = path
    return dict(found)


def find_crossings(wheels: dict[str, dict[str, Path]]) -> list[Crossing]:
    """Return each name that crosses from one distribution to another, once per module."""
    owners = {module: wheel for wheel, files in wheels.items() for module in files}
    found = set()
    for wheel, files in wheels.items():
        for module, path in files.items():
            tree = ast.parse(path.read_text(encoding="utf-8"))
            package = module if path.stem == "__init__" else module.rpartition(".")[0]
            for source, name in names_taken(tree, package, owners):
                other = owners[source]
                if other != wheel:
                    found.add(Crossing(wheel, short(module), other, f"{short(source)}:{name}"))
    return sorted(found, key=str)


def short(module: str) -> str:
    """Return the name of a module without `understudy.`."""
    return module.removeprefix("understudy.")


def against(crossings: list[Crossing]) -> list[Crossing]:
    """Return those that are not allowed."""
    return [crossing for crossing in crossings if crossing.other not in ARROWS[crossing.wheel]]


def past_face(crossings: list[Crossing]) -> list[Crossing]:
    """Return those whose name is not taken from the top of its distribution, its `__init__.pyi`."""
    return [crossing for crossing in crossings if not crossing.name.startswith(top_of(crossing))]


def top_of(crossing: Crossing) -> str:
    """Return the start of a name that is taken from the top of its distribution."""
    package = "understudy" if crossing.other == "understudy" else f"understudy_{crossing.other}"
    return f"{package}:"


def names_by_seam(crossings: list[Crossing]) -> dict[tuple[str, str], set[str]]:
    """Return the names of each seam, (distribution that takes them, distribution that has them)."""
    names: dict[tuple[str, str], set[str]] = defaultdict(set)
    for crossing in crossings:
        names[crossing.wheel, crossing.other].add(crossing.name)
    return dict(names)


def names_taken(
    tree: ast.Module,
    package: str,
    owners: dict[str, str],
) -> Iterator[tuple[str, str]]:
    """Yield each (module of ours, name) that a file takes; the name is "" for a module itself.

    Args:
        tree: of the file.
        package: of the file; texts "module:name" may be below it.
        owners: all modules.
    """
    local: dict[str, str] = {}
    loggers = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in owners:
                    local[alias.asname or alias.name] = alias.name
                    yield alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                if module in owners:
                    local[alias.asname or alias.name] = module
                    yield module, ""
                elif str(node.module) in owners:
                    yield str(node.module), alias.name
        elif isinstance(node, ast.Call) and dotted(node.func) == "logging.getLogger":
            loggers |= set(node.args)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield from attribute_taken(node, local, owners)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in loggers:
            yield from text_taken(node.value, package, owners)


def attribute_taken(
    node: ast.Attribute,
    local: dict[str, str],
    owners: dict[str, str],
) -> Iterator[tuple[str, str]]:
    """Yield the name that an attribute takes from an imported module.

    Args:
        node: the attribute.
        local: modules by the name that the file gives them.
        owners: all modules.
    """
    text = dotted(node.value)
    for name, module in local.items():
        if text == name or text.startswith(f"{name}."):
            source = module + text.removeprefix(name)
            if source in owners and f"{source}.{node.attr}" not in owners:
                yield source, node.attr


def dotted(node: ast.expr) -> str:
    """Return the text of a name with attributes, "" for any other expression."""
    attributes = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(attributes)])


def text_taken(text: str, package: str, owners: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the module of a text, or its module and name, "module:name"."""
    module, colon, name = text.partition(":")
    if not colon:
        if "." in text and text in owners:
            yield text, ""
    elif name.isidentifier():
        for source in (module, f"{package}.{module}"):
            if source in owners:
                yield source, name


def main() -> int:
    """Print the seams, and with `--against` the names that are not allowed."""
    crossings = find_crossings(find_modules())
    wrong = against(crossings)
    if "--against" in sys.argv[1:]:
        print("\n".join(map(str, wrong)))
        return 0
    modules = defaultdict(set)
    for crossing in crossings:
        modules[crossing.wheel, crossing.other].add(crossing.module)
    for (wheel, other), taken in sorted(names_by_seam(crossings).items()):
        mark = "" if other in ARROWS[wheel] else "  not allowed"
        takers = len(modules[wheel, other])
        print(f"{wheel + ' -> ' + other:32}{len(taken):4} names in {takers:3} modules{mark}")
    print(f"names against the arrows: {len(wrong)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
