"""Move one distribution out of `src/understudy`: `python scripts/move_wheels.py WHEEL`.

WHEEL is one of the table in `seams.py`, in this order: base, data, kit, client, tools, robot, zoo,
understudy. The last one comes last, because no package can lie in two folders. Its modules go to
`packages/understudy-WHEEL/src/understudy_WHEEL`, its tests and helpers of tests along, and all
texts of the repository that name them follow. Texts that need a reader are printed. With `--show`
it prints the places, and moves nothing.

Stored files, groups of entry points and names of loggers keep their names.
"""

import ast
import json
import re
import runpy
import shutil
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/understudy"
TESTS = ROOT / "tests"
RUFF = ROOT / ".venv/bin/ruff"
SEAMS = runpy.run_path(str(ROOT / "scripts/seams.py"))
ORDER = list(SEAMS["WHEELS"])
ALLOWED = SEAMS["ARROWS"]

PLACES = {
    "base": {"load.malloc": "malloc"},
    "data": {"data": "datasets"},
    "kit": {
        "distributed.launch": "launch",
        "distributed.signals": "signals",
        "rollout.intervals": "intervals",
    },
    "client": {
        "serve.access": "access",
        "serve.async_chunks": "async_chunks",
        "serve.client": "client",
        "serve.dialects": "dialects",
        "serve.protocol": "protocol",
    },
    "tools": {
        "hub.upload": "upload",
        "storage.bucket": "bucket",
        "cli.data": "cli",
    },
    "understudy": {},
    "robot": {
        "config.serve": "serve.config",
        "policies.contracts": "contracts",
        "policies.folder_contract": "folder_contract",
        "report.run.rollouts": "report.rollouts",
        "train.background_rollouts": "background_rollouts",
        "cli.data": "cli",
    },
    "zoo": {
        "policies": "",
        "policies.flow.graph": "flow_graph",
        "data.read.returns": "returns",
        "train": "",
        "train.validation.imagined": "imagined",
        "cli.data": "cli",
    },
}
"""Modules and folders whose name below the distribution is not that below `understudy`."""
FILES = {
    "video/native/loops.c": "data",
    "video/native/_loops.so": "data",
    "contract/contract.schema.json": "client",
    "report/static/page.css": "kit",
    "report/static/page.html": "kit",
    "report/static/curves.js": "kit",
    "report/static/view.css": "tools",
    "report/static/view.html": "tools",
    "report/static/view.js": "tools",
    "py.typed": "understudy",
}
"""Files that are no modules."""
MOVED: set[str] = set()
"""The distribution that moves."""
GROUPS = ("understudy.envs", "understudy.serve", "understudy.services", "understudy.policies")
"""Groups of entry points and names of loggers: quoted alone, they are no modules."""
STAY = ("docs", "support")
"""Folders of tests of the whole project."""
WHOLE = (
    "commit_messages", "docstrings", "error_matches", "exams_script", "house", "other_systems",
    "refusals", "seams", "setup_script", "version", "wheels_script",
)  # fmt: skip
"""Tests of the whole project, next to those folders."""
NATURAL = ("video/native/test_loops",)
"""Tests that go with their module, though a few of them run the program."""
LABORATORY = ("benchmarks", "gpu")
"""Folders of tests of programs that no distribution has."""
NOT_REWRITTEN = ("CHANGELOG.md", "scripts/seams.py", "scripts/move_wheels.py")
TEXTS = {
    ".py", ".pyi", ".md", ".toml", ".yml", ".yaml", ".ipynb", ".sh", ".c", ".js", ".html", ".css",
    ".json", ".sbatch", ".txt", "",
}  # fmt: skip


class Move(NamedTuple):
    """A file and its new place, both relative to the repository."""

    old: Path
    new: Path


# ------------------------------------------------------------------------------ names


def package(wheel: str) -> str:
    """Return the import name of a distribution."""
    return "understudy" if wheel == "understudy" else f"understudy_{wheel}"


def folder(wheel: str) -> Path:
    """Return its folder, relative to the repository."""
    name = "understudy" if wheel == "understudy" else f"understudy-{wheel}"
    return Path("packages", name)


def new_parts(wheel: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the name of a module below its distribution, from that below `understudy`."""
    for count in range(len(parts), 0, -1):
        old = ".".join(parts[:count])
        if old in PLACES[wheel]:
            place = PLACES[wheel][old]
            return (*(place.split(".") if place else ()), *parts[count:])
    return parts


@cache
def modules() -> dict[str, tuple[str, ...]]:
    """Modules below `src/understudy` by name, with their parts; packages without `__init__`."""
    found = {}
    for path in sorted([*SOURCE.rglob("*.py")]):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(["understudy", *parts]).removesuffix(".__init__")] = parts
    return found


def owner(module: str) -> str:
    """Return the distribution of a module of ours, moved or not."""
    top = module.partition(".")[0]
    if top == "understudy":
        return str(SEAMS["find_wheel"](modules()[module])) if module in modules() else "understudy"
    return top.removeprefix("understudy_")


def moved_names(wheel: str) -> dict[str, str]:
    """Return old and new names of the modules of a distribution."""
    names = {}
    for module, parts in modules().items():
        if SEAMS["find_wheel"](parts) == wheel:
            place = new_parts(wheel, parts)
            names[module] = ".".join([package(wheel), *place]).removesuffix(".__init__")
    return names


# ------------------------------------------------------------------------------ texts


class Rewriter:
    """Rewrites names of modules and files in texts."""

    def __init__(self, names: dict[str, str], moves: Iterable[Move]) -> None:
        self.names = names
        """Old and new names of modules."""
        self.paths = {str(move.old): str(move.new) for move in moves}
        self.short = {}
        for old, new in self.paths.items():
            if old.startswith("src/understudy/") and "/src/" in new:
                below = new.split("/src/", 1)[1].split("/", 1)[1]
                self.short[old.removeprefix("src/understudy/")] = below
        self.first_words = {name.split(".")[0] for name in names}

    def rewrite(self, path: Path, text: str) -> str:
        """Return a text with the new names."""
        if path.suffix in (".py", ".pyi"):
            if path.is_relative_to("tests/support"):
                helpers = "|".join(name.removeprefix("support.") for name in self.names if name.startswith("support."))
                text = re.sub(rf"^from ({helpers}) import", r"from support.\1 import", text, flags=re.MULTILINE)
            text = self.rewrite_imports(text)
            text = self.rewrite_loggers(text, path)
        text = self.rewrite_texts_of_imports(text)
        text = re.sub(r"(?<![\w./-])(?:understudy|support)(?:\.[A-Za-z_]\w*)+", self.new_name, text)
        return self.rewrite_paths(text)

    def new_name(self, found: re.Match[str]) -> str:
        """Return the new form of a dotted name."""
        text = found[0]
        before = found.string[found.start() - 1 : found.start()]
        after = found.string[found.end() : found.end() + 1]
        if before and before in "\"'`" and after == before and text in GROUPS:
            return text
        parts = text.split(".")
        for count in range(len(parts), 1, -1):
            module = ".".join(parts[:count])
            if module in self.names:
                return ".".join([self.names[module], *parts[count:]])
            if module in modules():
                return text
        return text

    def statements(self, module: str, names: list[tuple[str, str]]) -> list[str]:
        """Return the statements in place of `from MODULE import NAMES`, `[(name, as)]`."""
        groups: dict[str, list[str]] = defaultdict(list)
        for name, local in names:
            full = f"{module}.{name}"
            if full in self.names:
                new, _, last = self.names[full].rpartition(".")
                alias = local or (name if last != name else "")
                groups[new].append(f"{last} as {alias}" if alias and (local or alias != last) else last)
            else:
                stays = full in modules() or module not in self.names
                # The marks keep the name from being renamed with the others.
                new = module.replace(".", "\x00") if stays else self.names[module]
                groups[new].append(f"{name} as {local}" if local else name)
        return [f"from {new} import {', '.join(taken)}" for new, taken in groups.items()]

    def changes(self, module: str, names: list[tuple[str, str]]) -> bool:
        """Return whether an import statement changes."""
        return module in self.names or any(f"{module}.{name}" in self.names for name, _ in names)

    def rewrite_imports(self, text: str) -> str:
        """Rewrite the statements `from understudy... import ...` of a Python file."""
        lines = text.splitlines(keepends=True)
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
        for node in sorted(nodes, key=lambda node: node.lineno, reverse=True):
            if str(node.module).split(".")[0] not in self.first_words:
                continue
            names = [(alias.name, alias.asname or "") for alias in node.names]
            statements = self.statements(str(node.module), names)
            if not self.changes(str(node.module), names):
                continue
            first, last = node.lineno - 1, int(node.end_lineno or node.lineno) - 1
            begin = lines[first][: node.col_offset]
            end = lines[last].encode()[int(node.end_col_offset or 0) :].decode()
            separator = "; " if begin.strip() or end.lstrip().startswith(";") else f"\n{begin}"
            lines[first : last + 1] = [begin + separator.join(statements) + end]
        return "".join(lines)

    def rewrite_texts_of_imports(self, text: str) -> str:
        """Rewrite statements of one line within texts: programs in tests, examples in pages."""

        def replace(found: re.Match[str]) -> str:
            names = [tuple(name.strip().partition(" as ")[::2]) for name in found[2].split(",")]
            if not self.changes(found[1], names):
                return found[0]
            return "; ".join(self.statements(found[1], names))

        words = r"\w+(?: as \w+)?"
        return re.sub(rf"\bfrom ((?:understudy|support)(?:\.\w+)*) import ({words}(?:, {words})*)", replace, text)

    def rewrite_loggers(self, text: str, path: Path) -> str:
        """Keep the names of loggers, which a user may set."""
        if "getLogger(__name__)" not in text or not path.is_relative_to(Path("src/understudy")):
            return text
        if str(path) not in self.paths or "/src/understudy/" in self.paths[str(path)]:
            return text
        name = ".".join(path.relative_to("src").with_suffix("").parts)
        # The marks keep the name from being renamed with the others.
        marked = name.replace(".", "\x00")
        return text.replace("getLogger(__name__)", f'getLogger("{marked}")')

    def rewrite_paths(self, text: str) -> str:
        """Rewrite paths of files: from the repository, or below the package."""

        def replace(found: re.Match[str]) -> str:
            name = found[0]
            if name in self.paths:
                return self.paths[name]
            for begin in ("understudy/", ""):
                if name.startswith(begin) and name.removeprefix(begin) in self.short and "/" in name:
                    return begin + self.short[name.removeprefix(begin)] if not begin else self.installed(name)
            return name

        text = re.sub(r"(?<![\w/-])(?:[\w-]+/)+[\w-]+\.\w+\b", replace, text)
        linked = re.sub(r"(?<=\.\./)(?:src|tests)/(?:[\w-]+/)*[\w-]+\.\w+\b", replace, text)
        return linked.replace("\x00", ".")

    def installed(self, name: str) -> str:
        """Return the path of a file in an installed package."""
        return self.paths[f"src/{name}"].split("/src/", 1)[1]


# ------------------------------------------------------------------------------ tests


class Suite:
    """The tests and helpers of tests, and the distributions that each needs."""

    def __init__(self) -> None:
        self.trees = {path: ast.parse(path.read_text()) for path in sorted(TESTS.rglob("*.py"))}
        self.helpers = {path.stem: path for path in (TESTS / "support").glob("*.py")}
        self.owners = {name: wheel for wheel, files in SEAMS["find_modules"]().items() for name in files}
        self.public = self.public_owners()
        self.commands = self.command_owners()
        self.uses = {path: self.helpers_of(path) for path in self.trees}
        self.needs = {path: self.needs_of(path, set()) for path in self.trees}

    def public_owners(self) -> dict[str, str]:
        """Distribution of each public name of `us`."""
        stub = ast.parse((SOURCE / "__init__.pyi").read_text())
        found = {}
        for node in stub.body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    module = str(node.module)
                    full = f"{module}.{alias.name}"
                    found[alias.name] = self.owners.get(full) or self.owners.get(module, "understudy")
        return found

    def command_owners(self) -> dict[str, str]:
        """Distribution of each command, by its first word."""
        found = {}
        places = [*ROOT.glob("src/understudy/cli/commands.py"), *ROOT.glob("packages/*/src/*/cli/commands.py")]
        for node in ast.walk(ast.parse(places[0].read_text())):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    target = getattr(value, "args", [None])[0]
                    if isinstance(key, ast.Constant) and isinstance(target, ast.Constant):
                        module = f"understudy.cli.{str(target.value).partition(':')[0]}"
                        if module in self.owners:
                            found[str(key.value).split()[0]] = self.owners[module]
        return found

    def helpers_of(self, path: Path) -> set[Path]:
        """Helpers in `tests/support` that a file imports."""
        found = set()
        for node in ast.walk(self.trees[path]):
            if isinstance(node, ast.ImportFrom):
                names = str(node.module).split(".")
                if names[0] == "support":
                    names += [alias.name for alias in node.names]
                elif path.parent.name != "support":  # a program may name its neighbours alone
                    continue
                found |= {self.helpers[name] for name in names if name in self.helpers}
            elif isinstance(node, ast.Constant) and str(node.value).endswith(".py"):
                found |= {other for other in self.helpers.values() if other.name == node.value}
        return found

    def needs_of(self, path: Path, seen: set[Path]) -> set[str]:
        """Distributions that a file needs, with those of its helpers."""
        if path in seen:
            return set()
        seen.add(path)
        found = self.own_needs(path)
        for helper in self.uses[path]:
            found |= self.needs_of(helper, seen)
        return found - {"conformance", "lerobot_service"}

    def own_needs(self, path: Path) -> set[str]:
        """Distributions that a file itself needs."""
        tree = self.trees[path]
        text = path.read_text()
        found = set()
        for module, _ in SEAMS["names_taken"](tree, "", self.owners):
            if module != "understudy":
                found.add(self.owners[module])
        for module in re.findall(r"\b(?:from|import) (understudy[\w.]*)", text):
            while module and module != "understudy":
                if module in self.owners:
                    found.add(self.owners[module])
                    break
                module = module.rpartition(".")[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "us":
                found.add(self.public.get(node.attr, "understudy"))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {"understudy"} if re.search(r"\bimport understudy\b(?!\.)", node.value) else set()
        if re.search(r'"-m",\s*"understudy"|cli\.main|cli import main|scripts', text):
            found.add("kit")
            words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
            found |= {owner for command, owner in self.commands.items() if command in words}
        return found

    def place(self, path: Path) -> str:
        """Return the distribution of a test; "" for one of the whole project."""
        parts = path.relative_to(TESTS).with_suffix("").parts
        if parts[0] in STAY or parts[0] in LABORATORY or parts == ("conftest",):
            return ""
        if len(parts) == 1 and parts[0].removeprefix("test_") in WHOLE:
            return ""
        natural = self.natural(parts)
        if "/".join(parts) in NATURAL:
            return natural
        if natural and self.needs[path] <= ALLOWED[natural] | {natural}:
            return natural
        if len(parts) == 1 and not self.needs[path]:
            return ""
        for wheel in ORDER:
            if self.needs[path] <= ALLOWED[wheel] | {wheel}:
                return wheel
        return ""

    def natural(self, parts: tuple[str, ...]) -> str:
        """Return the distribution of the module that a test is named for; "" without one."""
        names = (*parts[:-1], parts[-1].removeprefix("test_"))
        try:
            return str(SEAMS["find_wheel"](names))
        except LookupError:
            return ""

    def place_helper(self, path: Path, seen: tuple[Path, ...] = ()) -> str:
        """Return the distribution of a helper: the highest that all of its users may import."""
        users = {other for other, helpers in self.uses.items() if path in helpers}
        users -= {path, *seen}
        wheels = set()
        for user in users:
            wheels.add(self.place_helper(user, (*seen, path)) if user.parent == path.parent else self.place(user))
        wheels -= {""}
        if not wheels:
            return ""
        chosen = ""
        for wheel in ORDER:
            fits = self.needs[path] <= ALLOWED[wheel] | {wheel}
            if fits and all(wheel == other or wheel in ALLOWED[other] for other in wheels):
                chosen = wheel
        return chosen


# ------------------------------------------------------------------------------ the move


def plan(wheel: str, suite: Suite) -> list[Move]:
    """Return all files of a distribution with their new places."""
    target = folder(wheel) / "src" / package(wheel)
    moves = []
    for path in sorted([*SOURCE.rglob("*.py"), *SOURCE.rglob("*.pyi")]):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if SEAMS["find_wheel"](parts) == wheel:
            new = target.joinpath(*new_parts(wheel, parts)).with_suffix(path.suffix)
            moves.append(Move(path.relative_to(ROOT), new))
    for name, which in FILES.items():
        if which == wheel and (SOURCE / name).exists():
            *parents, last = name.split("/")
            new = target.joinpath(*new_parts(wheel, tuple(parents)), last)
            moves.append(Move(Path("src/understudy", name), new))
    for path in suite.trees:
        parts = path.relative_to(TESTS).parts
        if parts[0] == "support":
            if path.parent.name == "support" and suite.place_helper(path) == wheel:
                moves.append(Move(path.relative_to(ROOT), target / "testing" / path.name))
        elif suite.place(path) == wheel:
            *parents, last = parts
            if suite.natural((*parents, path.stem)) == wheel:
                parents = list(new_parts(wheel, tuple(parents)))
            moves.append(Move(path.relative_to(ROOT), folder(wheel).joinpath("tests", *parents, last)))
    moves += data_of_tests(moves)
    check_moves(moves)
    return moves


def data_of_tests(moves: list[Move]) -> list[Move]:
    """Return files next to tests, and in folders without tests, such as golden ones."""
    found = []
    for old, new in {move.old.parent: move.new.parent for move in moves if move.old.parts[0] == "tests"}.items():
        if old.name in ("support", "tests"):
            continue
        remaining = set((ROOT / old).glob("test_*.py")) - {ROOT / move.old for move in moves}
        for path in sorted((ROOT / old).rglob("*")):
            below = path.relative_to(ROOT / old)
            is_data = path.is_file() and path.suffix not in (".py", ".pyc")
            if (
                is_data
                and not remaining
                and not any(list((ROOT / old / part).glob("test_*.py")) for part in below.parents if part.parts)
            ):
                found.append(Move(path.relative_to(ROOT), new / below))
    return found


def check_moves(moves: list[Move]) -> None:
    """Refuse two files of one place."""
    places = defaultdict(list)
    for move in moves:
        places[move.new].append(str(move.old))
    twice = {str(new): olds for new, olds in places.items() if len(olds) > 1}
    if twice:
        raise SystemExit(f"several files of one place: {twice}")


def tracked() -> list[Path]:
    """Return all files of the repository that git knows, relative to it."""
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    return [Path(name) for name in listed if (ROOT / name).is_file()]


def move_files(moves: list[Move]) -> None:
    """Move files, those that git does not know, too."""
    for old, new in moves:
        (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(ROOT / old, ROOT / new)
    subprocess.check_call(["git", "add", "--all", "src", "tests", "packages"], cwd=ROOT)


def split_maps(wheel: str, moves: list[Move]) -> None:
    """Give each folder of modules an `__init__.py` with the entries of its own files."""
    old_maps = {}
    for path in sorted(SOURCE.rglob("__init__.py")):
        old_maps[path.parent.relative_to(SOURCE)] = path.read_text()
    for move in moves:
        if move.old.name == "__init__.py" and move.old.is_relative_to("src"):
            old_maps[move.old.parent.relative_to("src/understudy")] = (ROOT / move.new).read_text()
    entries = {}
    for old_folder, text in old_maps.items():
        for name, line in map_entries(text).items():
            entries[old_folder / name] = line
    origins: dict[Path, Path] = {}
    titles: dict[Path, Path] = {}
    for move in moves:
        if move.old.is_relative_to("src") and move.new.suffix == ".py":
            old, new = move.old.relative_to("src/understudy"), move.new
            while True:
                origins.setdefault(new.with_suffix(""), old.with_suffix(""))
                titles.setdefault(new.parent, old.parent)
                old, new = old.parent, new.parent
                if new.name == package(wheel):
                    break
    top = ROOT / folder(wheel) / "src" / package(wheel)
    for place in sorted({path.parent for path in [*top.rglob("*.py")]}):
        write_map(wheel, place, origins, titles, entries, old_maps)
    for path in sorted(top.rglob("__init__.py"), reverse=True):
        if path.parent != top and not [
            other for other in path.parent.iterdir() if other != path and other.name != "__pycache__"
        ]:
            subprocess.check_call(["git", "rm", "-rqf", str(path)], cwd=ROOT)
    for old_folder, text in sorted(old_maps.items(), reverse=True):
        path = SOURCE / old_folder / "__init__.py"
        if not path.parent.exists():
            continue
        if not path.exists():
            remaining = list(path.parent.rglob("*.py"))
            if not remaining:
                continue
            docstring = ast.get_docstring(ast.parse(text)) or ""
            path.write_text(f'"""{docstring}\n"""\n')
        keep_entries(path)


def write_map(
    wheel: str,
    place: Path,
    origins: dict[Path, Path],
    titles: dict[Path, Path],
    entries: dict[Path, str],
    old_maps: dict[Path, str],
) -> None:
    """Write or complete the docstring of a new package."""
    path = place / "__init__.py"
    if path.exists() and place.name != package(wheel):
        keep_entries(path)
    names = sorted(other.stem for other in place.glob("*.py") if not other.stem.startswith("_"))
    names += sorted(
        other.name
        for other in place.iterdir()
        if other.is_dir() and other.name != "__pycache__" and list(other.glob("*.py"))
    )
    lines = {}
    for name in names:
        origin = origins.get((place / name).relative_to(ROOT))
        line = entries.get(origin, "") if origin else ""
        line = WORDS.get(name, "") or line
        lines[name] = line or first_line(place / name)
    if path.exists():
        known = map_entries(path.read_text())
        missing = {name: line for name, line in lines.items() if name not in known}
        if missing and place.name != package(wheel):
            add_entries(path, missing)
        return
    if place.name == package(wheel):
        title = f"{SUMMARIES[wheel]}"
    elif place.name == "testing":
        title = "Helpers of tests, for the suites of all distributions."
    else:
        title = title_of(old_maps.get(titles.get(place.relative_to(ROOT), Path("none")), '"""?\n"""'))
    width = max(map(len, lines), default=0) + 2
    text = "\n".join(f"{name:<{width}}{line}" for name, line in sorted(lines.items()))
    path.write_text(f'"""{title}\n\n{text}\n"""\n')


def map_entries(text: str) -> dict[str, str]:
    """Return the entries of the docstring of a package: name -> words."""
    docstring = ast.get_docstring(ast.parse(text)) or ""
    found = {}
    for line in docstring.splitlines()[1:]:
        if entry := re.match(r" *(\w+)  +(\S.*)", line):
            found[entry[1]] = entry[2]
    return found


def title_of(text: str) -> str:
    """Return the first line of the docstring of a package."""
    return (ast.get_docstring(ast.parse(text)) or "?").splitlines()[0]


def first_line(place: Path) -> str:
    """Return the first line of the docstring of a module or package, as words of a map."""
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    line = title_of(path.read_text()) if path.exists() else place.name
    line = line.split(". ")[0].rstrip(".")
    line = re.sub(rf"^{place.name}: ", "", line, flags=re.IGNORECASE)
    return line if line[1:2].isupper() or line.startswith("`") else line[:1].lower() + line[1:]


def keep_entries(path: Path) -> None:
    """Drop entries of files that are gone from the docstring of a package."""
    text = path.read_text()
    for name in map_entries(text):
        if not (path.parent / f"{name}.py").exists() and not (path.parent / name / "__init__.py").exists():
            text = re.sub(rf"^ *{name}  +\S.*\n(?:  {{8,}}\S.*\n)*", "", text, count=1, flags=re.MULTILINE)
    path.write_text(text)


def add_entries(path: Path, missing: dict[str, str]) -> None:
    """Add entries to the docstring of a package."""
    text = path.read_text()
    known = map_entries(text)
    width = max(map(len, [*known, *missing])) + 2
    lines = "".join(f"{name:<{width}}{line}\n" for name, line in missing.items())
    end = text.index('"""', 3)
    head = text[:end].rstrip("\n")
    path.write_text(f"{head}\n{'' if known else chr(10)}{lines}{text[end:]}")


def remove_empty(top: Path) -> None:
    """Remove folders without files, and packages whose files have all moved."""
    for place in sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True):
        shutil.rmtree(place / "__pycache__", ignore_errors=True)
        if place.exists() and not any(place.iterdir()):
            place.rmdir()


def rewrite_all(rewriter: Rewriter, moves: list[Move]) -> None:
    """Rewrite all texts of the repository, each by its old place."""
    old_places = {move.new: move.old for move in moves}
    for path in tracked():
        if path.suffix not in TEXTS or str(path) in NOT_REWRITTEN:
            continue
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        new = rewriter.rewrite(old_places.get(path, path), text)
        if new != text:
            (ROOT / path).write_text(new, encoding="utf-8")


def point_at_helpers(moves: list[Move]) -> None:
    """Correct the paths of helpers that tests run as programs."""
    places = {move.old.name: move.new for move in moves if move.old.parts[:2] == ("tests", "support")}
    for path in tracked():
        if path.suffix != ".py" or "tests" not in path.parts:
            continue

        def replace(found: re.Match[str], path: Path = path) -> str:
            place = places.get(found[1])
            return f'Path(__file__).parents[{len(path.parts) - 1}] / "{place}"' if place else found[0]

        text = (ROOT / path).read_text()
        new = re.sub(r'Path\(__file__\)\.parents\[\d\] / "support" / "(\w+\.py)"', replace, text)
        if new != text:
            (ROOT / path).write_text(new)


def shift_parents(moves: list[Move]) -> None:
    """Count the folders up to the repository anew in the tests that moved."""
    for old, new in moves:
        if old.parts[0] != "tests" or new.suffix != ".py":
            continue
        depth, now = len(old.parts) - 1, len(new.parts) - 1

        def replace(found: re.Match[str], depth: int = depth, now: int = now, new: Path = new) -> str:
            if int(found[2]) == depth:
                return f"{found[1]}.parents[{now}]"
            print(f"{new}: {found[0]} counts folders; look at it")
            return found[0]

        text = (ROOT / new).read_text()
        text = re.sub(r"(Path\(__file__\)(?:\.resolve\(\))?)\.parents\[(\d)\]", replace, text)
        (ROOT / new).write_text(text)


def look_for_fixtures() -> None:
    """Print tests that ask for a fixture of a folder that is not theirs."""
    homes = defaultdict(set)
    files = [path for path in tracked() if path.suffix == ".py" and "tests" in path.parts]
    trees = {path: ast.parse((ROOT / path).read_text()) for path in [*files, Path("conftest.py")]}
    functions = {
        path: [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] for path, tree in trees.items()
    }
    fixtures = {
        path: {node.name for node in nodes if "fixture" in ast.unparse(node.decorator_list[:1] or node.args)}
        for path, nodes in functions.items()
    }
    for path, names in fixtures.items():
        if path.name == "conftest.py":
            for name in names:
                homes[name].add(path.parent)
    for path, nodes in functions.items():
        asked = {
            argument.arg
            for node in nodes
            for argument in node.args.args
            if node.name.startswith("test_") or node.name in fixtures[path]
        }
        for name in sorted(asked & homes.keys() - fixtures[path]):
            decorators = [ast.unparse(part) for node in nodes for part in node.decorator_list]
            given = name in re.findall(r"\w+", " ".join(decorators)) or f"import {name}" in "".join(
                map(ast.unparse, trees[path].body)
            )
            if not given and not any(path.is_relative_to(home) for home in homes[name]):
                print(f"{path}: its fixture {name} is in {', '.join(map(str, homes[name]))}")


def wrap_long_lines() -> None:
    """Break lines of docstrings and comments that new names made too long; print the others."""
    command = [str(RUFF), "check", "--select", "E501", "--output-format", "json"]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout)
    for entry in sorted(found, key=lambda entry: -int(entry["location"]["row"])):
        path, row = Path(entry["filename"]), int(entry["location"]["row"])
        text = path.read_text()
        lines = text.splitlines()
        line = lines[row - 1]
        begin = re.match(r" *(?:# )?", line)
        assert begin is not None
        if "#" not in begin[0] and row not in rows_of_docstrings(text):
            print(f"{path.relative_to(ROOT)}:{row}: too long")
            continue
        cut = line.rindex(" ", 0, 120)
        lines[row - 1 : row] = [line[:cut].rstrip(), begin[0] + line[cut + 1 :]]
        path.write_text("\n".join(lines) + "\n")


def rows_of_docstrings(text: str) -> set[int]:
    """Return numbers of the lines in docstrings of a Python file."""
    rows: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            rows |= set(range(node.lineno, int(node.end_lineno or 0) + 1))
    return rows


def write_out_us(moves: list[Move], suite: Suite, wheel: str) -> None:
    """Import public names of `us` from their modules, where `understudy` is not installed."""
    if wheel not in ORDER[: ORDER.index("understudy")]:
        return
    stub = SOURCE / "__init__.pyi"
    homes = {}
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            homes |= {alias.name: str(node.module) for alias in node.names}
    for _, new in moves:
        if new.suffix != ".py":
            continue
        path = ROOT / new
        text = path.read_text()
        text = re.sub(r'("-m",\s*)"understudy"', rf'\1"{package("kit")}"', text) if wheel == "tools" else text
        if "import understudy as us\n" in text:
            names = sorted(set(re.findall(r"\bus\.(\w+)", text)))
            lines = "".join(f"from {homes[name]} import {name}\n" for name in names)
            text = text.replace("import understudy as us\n", lines)
            text = re.sub(r"\bus\.(\w+)", r"\1", text)
        path.write_text(text)


# ------------------------------------------------------------------------------ its papers

SUMMARIES = {
    "base": "Errors, whole files, progress and credentials, on the standard library alone.",
    "data": "Which sample is position p, and its bytes: LeRobot datasets, read near decode speed.",
    "kit": "Settings of commands, the frame of the program, and blocks of pages.",
    "client": "The robot's side of a policy: its contract, the client, and chunks of actions.",
    "tools": "Check, edit, import, view and publish LeRobot datasets, without torch.",
    "understudy": "Train robot policies from demonstrations.",
    "robot": "Serve a policy, play it in simulations, and look at what it did.",
    "zoo": "Policies of LeRobot, the world-action model, value functions, and foreign formats.",
}
WORDS = {
    "atomic": "files and folders replaced in one step",
    "booleans": "refusal of booleans in place of numbers",
    "checksums": "SHA-256 of the files of a folder, stored next to them",
    "order_file": "order files: the samples of consecutive positions as rows of parquet",
    "parts": "work in parts, by one process, by several, or by a Ray cluster",
    "prompt_metadata": "metadata of an episode as text of the prompt",
    "cores": "number of processor cores, and the share of one process",
    "credentials": "credentials in addresses: removed for display, remembered for opening files",
    "dataset_address": "addresses of datasets with a view, `PATH#NAME`",
    "optional_packages": "optional packages, and the error for one that is not installed",
    "progress": "progress of long work on stderr",
    "testing": "helpers of tests",
}
"""Entries of the maps, in place of the first line of a module."""
PYTHON = {"base": "3.10", "client": "3.10"}
NEEDS: dict[str, list[str]] = {
    "base": [],
    "data": ["numpy>=1.26", "pyarrow>=17", "av>=15", "fsspec>=2024.6", "pillow>=10.3"],
    "kit": ["pydantic>=2.9", "annotated-types>=0.6", "pyyaml>=6.0.1", "jinja2>=3.1.2"],
    "client": ["numpy>=1.26", "msgspec>=0.18", "msgpack>=1.0", "websockets>=15"],
    "tools": [],
    "understudy": ["torch>=2.7", "safetensors>=0.4.3", "tqdm>=4.66"],
    "robot": [],
    "zoo": [],
}
WITH = {
    "base": [],
    "data": ["base"],
    "kit": ["base"],
    "client": ["base"],
    "tools": ["base", "data", "kit", "client"],
    "understudy": ["base", "data", "kit", "client", "tools"],
    "robot": ["understudy"],
    "zoo": ["understudy"],
}
"""Distributions that pip brings along; those that these bring are not named again."""
EXTRAS: dict[str, dict[str, list[str]]] = {
    "data": {
        "torch": ["torch>=2.7"],
        "remote": ["requests>=2.32.2", "urllib3>=2.3"],
        "s3": ["understudy-data[remote]", "s3fs>=2024.6"],
        "hub": ["understudy-data[remote]", "huggingface_hub>=0.34"],
        "ray": ["ray>=2.40"],
        "torchcodec": ["torchcodec"],
    },
    "tools": {
        "import": ["rosbags>=0.11", "h5py>=3.11", "zarr>=3.1"],
        "rerun": ["rerun-sdk>=0.24"],
        "hub": ["understudy-data[hub]==VERSION"],
    },
}


def version() -> str:
    """Return the version of the project."""
    found = re.search(r'^version = "([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


EXAMPLES = {
    "base": """from understudy_base.errors import DatasetError

raise DatasetError("episode 3 has no rows", where="data/my_set", fix="record it again")""",
    "data": """from understudy_data.load.loader import Loader

loader = Loader("path or hub id", batch_size=32, seed=0)
batch = next(loader)
state = loader.state_dict()  # one integer, and the order""",
    "kit": """from understudy_kit.report.page import render  # blocks of plain data, one template""",
    "client": """from understudy_client.client import RemotePolicy

policy = RemotePolicy("ws://gpu-host:8000")
actions = policy.act(observation)""",
    "tools": """understudy check data/my_set
understudy edit data/my_set data/small --episodes 0-9
understudy view data/small""",
    "understudy": """import understudy as us

run = us.train({"data": {"root": "data/my_set"}, "steps": 1000})
policy = us.load_policy(run)""",
    "robot": """understudy serve runs/my_run
understudy rollout runs/my_run --env tabletop""",
    "zoo": """understudy train --policy.type lerobot-act --data.root data/my_set""",
}
"""First lines of code, or of a shell, of each README."""


def write_readme(wheel: str, place: Path) -> None:
    """Write the README of a distribution: its purpose, first lines, rooms, size and imports."""
    language = "python" if "import" in EXAMPLES[wheel] else "bash"
    sources = [path for path in (place / "src").rglob("*.py") if "testing" not in path.parts]
    tokens = sum(count_tokens(path) for path in sources)
    top = place / "src" / package(wheel) / "__init__.py"
    rooms = [f"| `{name}` | {line} |" for name, line in map_entries(top.read_text()).items()]
    arrows = ", ".join(f"`{folder(other).name}`" for other in sorted(ALLOWED[wheel])) or "nothing of ours"
    parts = [
        f"# {folder(wheel).name}",
        SUMMARIES[wheel],
        f"```{language}\n{EXAMPLES[wheel]}\n```",
        "\n".join(["| | |", "|---|---|", *rooms]) if rooms else "",
        f"It imports {arrows}. Its size is {len(sources)} files with {tokens / 1000:.0f},000 tokens.",
    ]
    (place / "README.md").write_text("\n\n".join(filter(None, parts)) + "\n")


def count_tokens(path: Path) -> int:
    """Return the number of tokens of a Python file, without comments and ends of lines."""
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    with path.open("rb") as file:
        return sum(token.type not in empty for token in tokenize.tokenize(file.readline))


def write_papers(wheel: str) -> None:
    """Write pyproject.toml, README.md and LICENSE of a distribution."""
    place = ROOT / folder(wheel)
    name = folder(wheel).name
    number = version()
    needs = [
        f"understudy-{other}=={number}" if other != "understudy" else f"understudy=={number}" for other in WITH[wheel]
    ]
    needs += NEEDS[wheel]
    lines = [
        "[build-system]",
        'requires = ["hatchling>=1.24"]',
        'build-backend = "hatchling.build"',
        "",
        "[project]",
        f'name = "{name}"',
        f'version = "{number}" # all distributions have one version',
        f'description = "{SUMMARIES[wheel]}"',
        'readme = "README.md"',
        'license = "Apache-2.0"',
        'license-files = ["LICENSE"]',
        f'requires-python = ">={PYTHON.get(wheel, "3.11")}"',
        'authors = [{ name = "The understudy authors" }]',
        'classifiers = ["Typing :: Typed"]',
        "dependencies = [" + ", ".join(f'"{need}"' for need in needs) + "]",
        "",
    ]
    if wheel in EXTRAS:
        lines.append("[project.optional-dependencies]")
        for extra, packages in EXTRAS[wheel].items():
            wanted = ", ".join(f'"{need.replace("VERSION", number)}"' for need in packages)
            lines.append(f"{extra} = [{wanted}]")
        lines.append("")
    if wheel == "kit":
        lines += ["[project.scripts]", 'understudy = "understudy_kit.cli.main:main"', ""]
    lines += [
        "[project.urls]",
        'Homepage = "https://github.com/understudy-robotics/understudy"',
        'Issues = "https://github.com/understudy-robotics/understudy/issues"',
        "",
        "[tool.hatch.build.targets.wheel]",
        f'packages = ["src/{package(wheel)}"]',
    ]
    if (place / "src" / package(wheel) / "testing").exists():
        lines.append('exclude = ["testing"] # helpers of tests, which need more packages')
    if wheel == "data":
        lines += ["", "[tool.hatch.build.hooks.custom] # hatch_build.py: compiles loops.c where there is a C compiler"]
    (place / "pyproject.toml").write_text("\n".join(lines) + "\n")
    shutil.copy(ROOT / "LICENSE", place / "LICENSE")
    (place / "src" / package(wheel) / "py.typed").touch()
    write_readme(wheel, place)
    subprocess.check_call(["git", "add", "--intent-to-add", str(place)], cwd=ROOT)


# ------------------------------------------------------------------------------ settings of tools


def patch(name: str, old: str, new: str, *, everywhere: bool = False) -> None:
    """Replace a text in a file; print it where the file lacks it."""
    path = ROOT / name
    text = path.read_text()
    if old not in text:
        print(f"{name}: not found, change it by hand: {old!r} -> {new!r}")
        return
    path.write_text(text.replace(old, new) if everywhere else text.replace(old, new, 1))


def patch_settings(wheel: str) -> None:
    """Change the settings of tools, once per distribution."""
    name = folder(wheel).name
    source = f"packages/{name}/src"
    patch("pyproject.toml", 'mypy_path = ["src", ', f'mypy_path = ["src", "{source}", ')
    patch("pyproject.toml", 'pythonpath = ["tests", ', f'pythonpath = ["tests", "{source}", ')
    patch("pyproject.toml", "dependencies = [\n", f'dependencies = [\n  "{name} @ {{root:uri}}/packages/{name}",\n')
    ends = '"packages/understudy-lerobot-service"]'
    patch("pyproject.toml", ends, f'"packages/{name}", {ends}')
    drop_from_table(wheel)
    {"base": patch_for_base, "data": patch_for_data, "kit": patch_for_kit}.get(wheel, lambda: None)()


def patch_for_base() -> None:
    """Change what changes once, with the first distribution."""
    subprocess.check_call(["git", "mv", "tests/conftest.py", "conftest.py"], cwd=ROOT)
    patch(
        "tests/test_optional_packages.py",
        'all("<" not in wanted and "==" not in wanted for wanted in declared["dependencies"])',
        """all(
        "<" not in wanted and "==" not in wanted
        for wanted in declared["dependencies"]
        if "understudy-" not in wanted
    )""",
    )
    patch(
        "pyproject.toml",
        "[tool.hatch.metadata.hooks.custom]",
        "[tool.hatch.metadata]\nallow-direct-references = true\n\n[tool.hatch.metadata.hooks.custom]",
    )
    patch("pyproject.toml", ', "/packages"] # the', "] # the")
    patch(
        "pyproject.toml",
        "[tool.ruff.lint.per-file-ignores]\n",
        '[tool.ruff.lint.per-file-ignores]\n"pyproject.toml" = ["RUF200"] # {root:uri}\n',
    )
    patch("Containerfile", "COPY src src\n", "COPY src src\nCOPY packages packages\n")
    patch(
        "pyproject.toml",
        '"{tests,benchmarks,exams,scripts,examples,packages/*/tests,packages/*/adapters}/**"',
        '"{tests,benchmarks,exams,scripts,examples,packages/*/tests,packages/*/adapters,packages/*/src/*/testing}/**"',
    )
    patch("pyproject.toml", '"hatch_*.py" = ["D"]', '"{**/hatch_*,conftest}.py" = ["D"]')
    patch("pyproject.toml", "strict = true\n", 'exclude = ["/testing/"]\nstrict = true\n')
    patch_setup()
    patch_scans()
    patch("tests/test_plain_values.py", 'startswith("understudy.")', 'startswith("understudy")')
    patch(
        "src/understudy/policies/own_code/sources.py",
        "    folders.add(str(Path(__file__).parents[2]))  # this package, wherever it lies\n",
        """    for name in [name for name in sys.modules if name.startswith("understudy") and "." not in name]:
        file = getattr(sys.modules[name], "__file__", None)  # these packages, wherever they lie
        if file and not name.startswith("understudy_policy_"):
            folders.add(str(Path(file).parents[1]))
""",
    )
    patch(
        "scripts/seams.py",
        '            wheel = top.name.removeprefix("understudy_")\n',
        """            if parts[0] == "testing":
                continue
            wheel = top.name.removeprefix("understudy_")
""",
    )
    patch(
        "tests/test_version.py",
        "    kit = tomllib",
        """    papers = [tomllib.loads(path.read_text()) for path in ROOT.glob("packages/*/pyproject.toml")]
    wheels = [paper["project"] for paper in papers]
    for wheel in wheels:
        siblings = [need for need in wheel["dependencies"] if re.match(r"understudy-[a-z]+[^a-z\\[-]", need)]
        assert all(need.endswith(f"=={wheel['version']}") for need in siblings)
    kit = tomllib""",
    )
    patch(
        "tests/test_version.py",
        'assert {project["version"], kit["version"], citation',
        'assert {project["version"], *(wheel["version"] for wheel in wheels), citation',
    )
    patch("scripts/check_wheels.py", "OTHERS = (", 'OTHERS = ("understudy_base", ')


def patch_for_kit() -> None:
    """Leave the program to this distribution."""
    patch("pyproject.toml", '[project.scripts]\nunderstudy = "understudy_kit.cli.main:main"\n\n', "")


def patch_setup() -> None:
    """Have scripts/setup install the distributions of this repository in editable mode."""
    patch(
        "scripts/setup",
        """[ "$extra" != dev ] || for package in packages/*/; do projects+=(-e "${package%/}"); done
""",
        """siblings=() # understudy refers to them, and pip refuses a package both by reference and in editable mode
for package in packages/*/; do
  case "$package" in
    *-conformance/ | *-lerobot-service/) [ "$extra" != dev ] || projects+=(-e "${package%/}") ;;
    *) siblings+=(-e "${package%/}") ;;
  esac
done
""",
    )
    patch(
        "scripts/setup",
        '-c constraints.txt "${projects[@]}"\n}',
        '-c constraints.txt "${projects[@]}" "${siblings[@]}"\n}',
    )
    for name in ("one", "two"):
        other = "conformance" if name == "one" else "lerobot-service"
        patch("tests/test_setup_script.py", f"packages/{name}", f"packages/a-{other}", everywhere=True)


def patch_scans() -> None:
    """Have tests of the whole project read the sources of all distributions."""
    both = '[*(ROOT / "src").rglob("*.py"), *ROOT.glob("packages/*/src/**/*.py")]'
    folders = '(ROOT, ROOT / "src/understudy", *ROOT.glob("packages/*/src/*"), *ROOT.glob("packages/*"))'
    patch("tests/docs/test_pages.py", '(ROOT, ROOT / "src/understudy")', folders)
    patch("tests/docs/test_pages.py", '(ROOT / "src/understudy").rglob("*.py")', both)
    patch("tests/docs/test_doc_pages.py", '(ROOT / "src").rglob("*.py")', both, everywhere=True)
    sources = (
        '*(path.relative_to(ROOT) for path in ROOT.glob("packages/*/src/understudy*") '
        'if "conformance" not in path.name)'
    )
    # The name is in two parts, since that test reads each script with the word.
    page = "tests/docs/test_env" + "ironment.py"
    patch(page, '("src", "scripts", "recipes", "examples")', f'("src", {sources}, "scripts", "recipes", "examples")')
    patch(
        "tests/docs/test_installation.py",
        'for requirement in requirements} - {"understudy"}',
        'for requirement in requirements\n        if not requirement.startswith("understudy")}',
    )
    patch(
        "tests/test_docstrings.py",
        'return len(ends) == 1 or Path(name) in files or Path("src/understudy") / name in files',
        """tops = {Path(*other.parts[: other.parts.index("src") + 2]) for other in files if "src" in other.parts[:-2]}
    return len(ends) == 1 or Path(name) in files or any(top / name in files for top in tops)""",
    )
    patch(
        "scripts/exams.py",
        'str(folder), str(ROOT / "src")]',
        'str(folder), *map(str, [ROOT / "src", *ROOT.glob("packages/*/src")])]',
    )
    sources = '*map(str, [ROOT / "src", *ROOT.glob("packages/*/src")])'
    patch("scripts/gpu-check", '[str(ROOT / "src"),', f"[{sources},")


def patch_for_data() -> None:
    """Change what builds the C loops, which are of this distribution."""
    home = "packages/understudy-data"
    subprocess.check_call(["git", "mv", "hatch_build.py", f"{home}/hatch_build.py"], cwd=ROOT)
    patch("Containerfile", " hatch_build.py", "")
    patch("tests/docs/test_installation.py", '{"hatch_build.py", "README.md"}', '{"README.md", "packages"}')
    hooks = "[tool.hatch.build.hooks.custom] # hatch_build.py: compiles loops.c where there is a C compiler\n\n"
    patch("pyproject.toml", hooks, "")
    loops = f"{home}/tests/video/native/test_loops.py"
    for name in (f"{home}/hatch_build.py", loops):
        patch(name, f"{home}/src/", "src/", everywhere=True)
    patch(f"{home}/hatch_build.py", "while understudy is installed", "while this package is installed")
    patch(loops, "ROOT = Path(__file__).parents[5]", "ROOT = Path(__file__).parents[3]")
    for name in (loops, f"{home}/hatch_build.py"):
        patch(name, "src/understudy/video/native", "src/understudy_data/video/native", everywhere=True)
    patch(f"{home}/tests/order/test_contract.py", '{"numpy", "understudy"}', '{"numpy", "understudy_data"}')
    patch(f"{home}/tests/order/test_contract.py", 'top != "understudy" or', 'top != "understudy_data" or')
    patch("Makefile", " hatch_build.py ", f" {home}/hatch_build.py ")
    rows = f"{home}/tests/datasets/read/test_row_tables.py"
    old = 'row_tables; from understudy_data.datasets.read.rows import Rows\\n"'
    patch(rows, old, 'row_tables\\n"\n        "from understudy_data.datasets.read.rows import Rows\\n"')
    patch("tests/test_house.py", '    "data": {"torch.nn"', '    "datasets": {"torch.nn"')
    for old, new in {
        'LOOPS = "understudy/': 'LOOPS = "understudy_data/',
        'glob("understudy-*.whl")': 'glob("understudy_data-*.whl")',
        '!= ("understudy", stated': '!= ("understudy_data", stated',
        'glob("understudy-*.tar.gz")': 'glob("understudy_data-*.tar.gz")',
        '"/src/understudy/" in name': '"/src/understudy_data/" in name',
        'startswith("understudy/")': 'startswith("understudy_data/")',
        "OTHERS = (": 'OTHERS = ("understudy", ',
        "a wheel of each of packages/": "a wheel of each other distribution",
    }.items():
        patch("scripts/check_wheels.py", old, new)
    for old, new in {
        'f"understudy-1.0-{': 'f"understudy_data-1.0-{',
        "understudy-1.0.dist-info": "understudy_data-1.0.dist-info",
        '"understudy-1.0.tar.gz"': '"understudy_data-1.0.tar.gz"',
        'f"understudy-1.0/src/{name}"': 'f"understudy_data-1.0/src/{name}"',
        '("understudy/__init__.py",': '("understudy_data/__init__.py",',
        '"understudy/new.py"': '"understudy_data/new.py"',
    }.items():
        patch("tests/test_wheels_script.py", old, new, everywhere=True)
    for old, new in {
        """"$build/python" -m hatchling build -t sdist
tar --extract --file dist/understudy-*.tar.gz""": """"$build/python" -m hatchling build
(cd packages/understudy-data && "$build/python" -m hatchling build -t sdist -d ../../dist)
tar --extract --file dist/understudy_data-*.tar.gz""",
        'cd "$work"/understudy-*': 'cd "$work"/understudy_data-*',
        "for package in packages/*/; do\n": "for package in packages/*/; do\n"
        '  [ "$package" != packages/understudy-data/ ] || continue\n',
        "understudy-V": "understudy_data-V",
        "dist/understudy-*": "dist/understudy_data-*",
        "import understudy\n": "import understudy_data\n",
        "understudy.__file__": "understudy_data.__file__",
        'print("  understudy", understudy.__version__,': 'print("  understudy_data",',
    }.items():
        patch("scripts/wheels", old, new, everywhere=True)


def patch_house(wheel: str, moves: list[Move]) -> None:
    """Divide the rooms of tests/test_house.py."""
    path = TESTS / "test_house.py"
    rooms = runpy.run_path(str(path))["ROOMS"]
    old_rooms = rooms["understudy"]
    origins: dict[str, set[str]] = defaultdict(set)
    for old, new in moves:
        if old.is_relative_to("src") and len(new.parts) > 5 and new.suffix == ".py":
            origins[new.parts[4]].add(old.parts[2])
    places = {room: {new for new, olds in origins.items() if room in olds} for room in old_rooms}
    new_rooms: dict[str, set[str]] = {}
    for room, allowed in old_rooms.items():
        for new in sorted(places[room] - new_rooms.keys()):
            found = {new} | set().union(*(places[other] for other in allowed), places[room])
            new_rooms[new] = (found - {new}) & new_rooms.keys()
    remaining = {room for room in old_rooms if list((SOURCE / room).glob("*.py"))}
    rooms["understudy"] = {room: old_rooms[room] & remaining for room in old_rooms if room in remaining}
    rooms |= {package(wheel): new_rooms} if new_rooms else {}
    lines = ["ROOMS: dict[str, dict[str, set[str]]] = {"]
    for name, table in rooms.items():
        lines.append(f'"{name}": {{')
        for room, allowed in table.items():
            words = ", ".join(f'"{other}"' for other in table if other in allowed)
            lines.append(f'"{room}": {f"{{{words}}}" if words else "set()"},')
        lines.append("},")
    text = path.read_text()
    begin, end = text.index("CELLAR = ") if "CELLAR = " in text else text.index("ROOMS: dict"), text.index("NEVER = ")
    path.write_text(text[:begin] + "\n".join([*lines, "}", ""]) + text[end:])


def patch_seams() -> None:
    """Write the names against the arrows anew."""
    listed = subprocess.check_output([sys.executable, "scripts/seams.py", "--against"], cwd=ROOT, text=True)
    path = TESTS / "test_seams.py"
    if 'NOT_YET = """\n' not in path.read_text():
        print(listed, end="")
        return
    head, mark, tail = path.read_text().partition('NOT_YET = """\n')
    path.write_text(head + mark + listed.strip("\n") + ("\n" if listed.strip() else "") + tail[tail.index('"""') :])


def drop_from_table(wheel: str) -> None:
    """Remove the row of a distribution from the table of scripts/seams.py."""
    path = ROOT / "scripts/seams.py"
    keep_packages(path)
    if wheel == "understudy":
        patch("scripts/seams.py", 'if wheel == "understudy":', "if top.parent.parent == root:")
    text = re.sub(rf'^    "{wheel}": """\n(?:        .*\n)+    """,\n', "", path.read_text(), flags=re.MULTILINE)
    path.write_text(text)


def keep_packages(path: Path) -> None:
    """Give packages that remain to the distribution of one of their modules."""
    for package_file in sorted(SOURCE.rglob("__init__.py")):
        parts = package_file.relative_to(SOURCE).with_suffix("").parts
        others = [other for other in package_file.parent.rglob("*.py") if other != package_file]
        if not others or SEAMS["find_wheel"](parts) not in MOVED or len(parts) == 1:
            continue
        heirs = {SEAMS["find_wheel"](other.relative_to(SOURCE).with_suffix("").parts) for other in others}
        heir = sorted(heirs - MOVED, key=lambda wheel: (wheel != "understudy", wheel))[0]
        text = path.read_text()
        entry = f'    "{heir}": """\n'
        path.write_text(text.replace(entry, f"{entry}        {'.'.join(parts)}\n", 1))


# ------------------------------------------------------------------------------ the program


def main(wheel: str) -> None:
    """Move a distribution."""
    MOVED.add(wheel)
    suite = Suite()
    names = moved_names(wheel)
    moves = plan(wheel, suite)
    for move in moves:
        if move.old.is_relative_to("tests/support") and move.new.suffix == ".py":
            names[f"support.{move.old.stem}"] = f"{package(wheel)}.testing.{move.old.stem}"
    rewriter = Rewriter(names, moves)
    write_out = [move for move in moves if move.old.parts[0] == "tests"]
    move_files(moves)
    rewrite_all(rewriter, moves)
    split_maps(wheel, moves)
    shift_parents(moves)
    point_at_helpers(moves)
    write_out_us(write_out, suite, wheel)
    remove_empty(ROOT / "src")
    remove_empty(TESTS)
    write_papers(wheel)
    patch_settings(wheel)
    patch_house(wheel, moves)
    patch_seams()
    look_for_fixtures()
    subprocess.check_call([RUFF, "check", "--quiet", "--select", "I", "--fix", "."], cwd=ROOT)
    subprocess.check_call([RUFF, "format", "--quiet", "."], cwd=ROOT)
    wrap_long_lines()
    counts: dict[str, int] = defaultdict(int)
    for move in moves:
        counts[move.old.parts[0]] += 1
    print(f"{wheel}: moved {dict(counts)}")


def show(wheel: str) -> None:
    """Print the places, and move nothing."""
    for move in plan(wheel, Suite()):
        print(f"{move.old} -> {move.new}")


if __name__ == "__main__":
    words: list[Any] = sys.argv[1:]
    if words[:1] == ["--show"]:
        show(words[1])
    else:
        main(words[0])
