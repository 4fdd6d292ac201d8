"""Names in docstrings exist: arguments under `Args:`, and files of Python. Imports no module."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("packages", "lab", "tests", "scripts", "examples", "recipes")
FILE = re.compile(r"(?<![\w/.:*-])/?[\w./-]*\w\.py\b")
ARGS = re.compile(r"^Args:\n((?: {4}.*\n|\n)*)", re.MULTILINE)
NOT_OURS = {
    "FILE.py": "of a user",
    "/path/FILE.py": "of a user",
    "my_policy.py": "of a user",
    "../tests/x.py": "an example of a link",
    "policy_code.py": "in a run, the copy of a policy's code",
    "lerobot_train.py": "LeRobot",
    "lerobot/envs/utils.py": "LeRobot",
    "lerobot/envs/libero.py": "LeRobot",
    "examples/libero/main.py": "openpi",
    "scripts/train_pytorch.py": "openpi",
    "compute_droid_nonidle_ranges.py": "openpi",
}
MAKERS = ("__init__", "__new__")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def paths() -> list[Path]:
    """Files of Python, below the root of the repository."""
    found = [*ROOT.glob("*.py")]
    for folder in FOLDERS:
        found += (ROOT / folder).rglob("*.py")
    return [path.relative_to(ROOT) for path in found]


@cache
def trees() -> dict[Path, ast.Module]:
    """Syntax tree of each file of a package, and of others that may name arguments or files."""
    found = {}
    for path in paths():
        text = (ROOT / path).read_text()
        if "src" in path.parts or "Args:\n" in text or FILE.search(text):
            found[path] = ast.parse(text)
    return found


@pytest.fixture(scope="module", autouse=True)
def _no_tree_stays() -> Iterator[None]:
    """Millions of nodes would slow each search for garbage of the tests behind these."""
    yield
    trees.cache_clear()
    documented.cache_clear()


@cache
def documented(tree: ast.Module) -> list[Documented]:
    """The module, its classes and functions. Expressions, most of a tree, hold none."""
    found: list[Documented] = []
    rest: list[ast.AST] = [tree]
    while rest:
        node = rest.pop()
        if isinstance(node, Documented):
            found.append(node)
        rest += [part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.expr)]
    return found


def docstrings(tree: ast.Module) -> Iterator[tuple[Documented, str]]:
    for node in documented(tree):
        yield node, ast.get_docstring(node) or ""


def label(path: Path, node: Documented) -> str:
    return f"{path}: {getattr(node, 'name', 'module')}"


def arguments(text: str) -> list[str]:
    """Names that begin an entry under `Args:`."""
    section = ARGS.search(text + "\n")
    entries = re.findall(r"^ {4}(\S[^:]*):", section[1] if section else "", re.MULTILINE)
    return [name.strip("* ") for entry in entries for name in entry.split(",")]


def classes(files: Iterable[ast.Module]) -> dict[str, ast.ClassDef]:
    nodes = chain.from_iterable(map(documented, files))
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def fields(node: ast.ClassDef, known: dict[str, ast.ClassDef]) -> set[str]:
    """Annotated names of a class and its bases, as of a dataclass or a TypedDict."""
    annotated = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
    names = {target.id for target in annotated if isinstance(target, ast.Name)}
    for base in bases(node, known):
        names |= fields(base, known)
    return names


def bases(node: ast.ClassDef, known: dict[str, ast.ClassDef]) -> list[ast.ClassDef]:
    names = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
    return [known[name] for name in names if name in known and known[name] is not node]


def parameters(node: Documented, known: dict[str, ast.ClassDef]) -> set[str]:
    """Names that a call of a function or class takes; of `**options: Unpack[Options]`, the keys."""
    if isinstance(node, ast.Module):
        return set()
    if isinstance(node, ast.ClassDef):
        names = fields(node, known)
        makers = [
            part for part in node.body if isinstance(part, ast.FunctionDef) and part.name in MAKERS
        ]
        for maker in makers or bases(node, known):
            names |= parameters(maker, known)
        return names
    names = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
    options = node.args.kwarg
    if options is not None and options.annotation is not None:
        taken = re.search(r"Unpack\[(?:\w+\.)*(\w+)\]", ast.unparse(options.annotation))
        names |= fields(known[taken[1]], known) if taken else set()
    return names


def strange_arguments(
    tree: ast.Module,
    known: dict[str, ast.ClassDef],
) -> dict[Documented, list[str]]:
    found = {}
    for node, text in docstrings(tree):
        if "Args:\n" not in text:
            continue
        taken = parameters(node, known)
        strange = [name for name in arguments(text) if name not in taken]
        if strange or not arguments(text):
            found[node] = strange
    return found


class Files:
    """Paths of files, found by their ends."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.by_name: dict[str, list[Path]] = {}
        self.tops: set[Path] = set()
        for path in paths:
            self.by_name.setdefault(path.name, []).append(path)
            if "src" in path.parts[:-2]:
                self.tops.add(Path(*path.parts[: path.parts.index("src") + 2]))

    def exists(self, name: str, path: Path) -> bool:
        """Whether `name` is in the folder of a file, the end of one path, or a path from a root."""
        alike = self.by_name.get(Path(name).name, [])
        if not name.startswith("/") and (path.parent / name) in alike:
            return True
        ends = [other for other in alike if f"/{other.as_posix()}".endswith(f"/{name}")]
        below_roots = [top / name for top in self.tops if top / name in alike]
        return len(ends) == 1 or Path(name) in alike or below_roots != []


def strange_files(path: Path, tree: ast.Module, files: Files) -> list[str]:
    named = [name for _, text in docstrings(tree) for name in FILE.findall(text)]
    return [name for name in named if not files.exists(name, path)]


def test_arguments_of_docstrings_are_parameters() -> None:
    known = classes(trees().values())
    found = {}
    for path, tree in trees().items():
        strange = strange_arguments(tree, known)
        found |= {label(path, node): names for node, names in strange.items()}
    assert found == {}


def test_files_named_in_docstrings_exist() -> None:
    found = set()
    files = Files(paths())
    for path, tree in trees().items():
        if path.name != Path(__file__).name:
            found |= {(str(path), name) for name in strange_files(path, tree, files)}
    assert {(path, name) for path, name in found if name not in NOT_OURS} == set(), "give the path"
    assert {name for _, name in found} == set(NOT_OURS), "no longer named"


@pytest.mark.parametrize(
    ("head", "entries", "strange"),
    [
        ("def f(a, *, b=1):", "a: x.\n        b: y\n            z: continued.", []),
        ("def f(a):", "a, b: x.", ["b"]),
        ("class A(B):", "b: a field of the base.\n        c: none.", ["c"]),
        ("class A(C):", "d: of the base's `__init__`.\n        c: none.", ["c"]),
        ("def f(**options: Unpack[B]):", "b: a key.\n        c: none.", ["c"]),
    ],
)
def test_the_check_of_arguments_sees_a_wrong_name(
    head: str,
    entries: str,
    strange: list[str],
) -> None:
    text = f"{head}\n    '''Do.\n\n    Args:\n        {entries}\n    '''"
    tree = ast.parse(f"class B:\n    b: int\nclass C:\n    def __init__(self, d): ...\n{text}")
    found = strange_arguments(tree, classes([tree]))
    assert [name for names in found.values() for name in names] == strange


def test_the_check_of_files_sees_a_dead_name() -> None:
    folder = Path("packages/a/src/understudy")
    files = Files(folder / name for name in ("a/x.py", "b/x.py", "b/y.py"))
    tree = ast.parse("'''x.py, b/x.py, `y.py`, z.py, c/y.py, but not *.py and https://a.b/z.py.'''")
    assert strange_files(Path("tests/test_a.py"), tree, files) == ["x.py", "z.py", "c/y.py"]
    assert strange_files(folder / "a/x.py", tree, files) == ["z.py", "c/y.py"]
