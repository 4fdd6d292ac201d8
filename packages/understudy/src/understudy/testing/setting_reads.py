"""Settings that code reads, by the syntax of the package: attribute reads whose owner is a settings
class.

The owner of `x.name` follows from the annotation of `x`, from the group that `x` is
(`config.checkpoint`), or from its assignment. Checks of a class on its own values, and copies with
defaults filled in, are no reads.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

CHECKS = re.compile(r"__post_init__|(.*_)?problems|resolved|with_policy_defaults|started")
"""Methods that check or complete values."""


def groups(root: type) -> dict[str, set[type]]:
    """Names under which the settings of a class and of its parts are kept -> their classes."""
    found: dict[str, set[type]] = {}
    for field, hint in get_type_hints(root).items():
        for part in _classes(hint):
            if field in {own.name for own in fields(root)}:
                found.setdefault(field, set()).add(part)
                for name, classes in groups(part).items():
                    found.setdefault(name, set()).update(classes)
    return found


def _classes(hint: Any) -> Iterator[type]:
    if get_origin(hint) is None:
        if is_dataclass(hint) and isinstance(hint, type):
            yield hint
        return
    for part in get_args(hint):
        yield from _classes(part)


def unread(
    wanted: Mapping[type, str], names: Mapping[str, set[type]], sources: Mapping[str, str]
) -> list[str]:
    """Fields of settings that no code reads, as `Class.field`.

    Args:
        wanted: Class -> pattern of the paths of files whose `config` and `settings` are of it.
        names: names of variables and attributes -> classes, see `groups`.
        sources: Path -> text of each file.
    """
    trees = {path: ast.parse(text) for path, text in sources.items()}
    named = {owner.__name__: {owner} for owner in wanted} | _protocols(trees.values(), wanted)
    files = [_File(path, tree, wanted, names, named) for path, tree in trees.items()]
    called: set[str] = set()
    for file in files:
        called |= file.attributes
    read = set()
    for file in files:
        for owner, name, method in file.reads:
            if not method or method in called:
                read.add((owner, name))
    found = []
    for owner in wanted:
        for field in fields(owner):
            related = [
                other for other in wanted if issubclass(other, owner) or issubclass(owner, other)
            ]
            if (
                not any((other, field.name) in read for other in related)
                and field.name in owner.__annotations__
            ):
                found.append(f"{owner.__name__}.{field.name}")
    return sorted(found)


def _protocols(trees: Iterable[ast.Module], wanted: Iterable[type]) -> dict[str, set[type]]:
    """Names of protocols -> settings classes that have all of their members; rooms below `config`
    take those.
    """
    found = {}
    for tree in trees:
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            if "Protocol" not in {ast.unparse(base) for base in node.bases}:
                continue
            members = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            fitting = set()
            for owner in wanted:
                own = {*dir(owner), *(field.name for field in fields(owner))}
                if members and members <= own:
                    fitting.add(owner)
            if fitting:
                found[node.name] = fitting
    return found


class _File(ast.NodeVisitor):
    """Reads of one file: (class, field, method of the class that reads it or "")."""

    def __init__(
        self,
        path: str,
        tree: ast.Module,
        wanted: Mapping[type, str],
        names: Mapping[str, set[type]],
        named: Mapping[str, set[type]],
    ) -> None:
        self.reads: set[tuple[type, str, str]] = set()
        self.attributes: set[str] = set()
        self._by_name = named
        self._wanted = {owner.__name__: owner for owner in wanted}
        self._names = {name: set(classes) for name, classes in names.items()}
        owners = {owner for owner, pattern in wanted.items() if re.search(pattern, path)}
        self._names |= {"config": owners, "settings": set(owners)}
        self._method: tuple[type, str] | None = None
        self._class: type | None = None
        self._scope: list[dict[str, set[type]]] = [{}]
        self.visit(tree)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        before = self._class
        self._class = self._wanted.get(node.name)
        self.generic_visit(node)
        self._class = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        scope = {each.arg: self._annotated(each.annotation) for each in arguments}
        before = self._method
        if self._class is not None:
            self._method = (self._class, node.name)
            scope["self"] = {self._class}
        self._scope.append({name: classes for name, classes in scope.items() if classes})
        self.generic_visit(node)
        self._scope.pop()
        self._method = before

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts))
            for one, value in pairs:
                if isinstance(one, ast.Name) and (classes := self._owners(value)):
                    self._scope[-1][one.id] = classes

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name) and (classes := self._annotated(node.annotation)):
            self._scope[-1][node.target.id] = classes

    def visit_For(self, node: ast.For) -> None:
        self._bind(node.target, node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._bind(node.target, node.iter)
        self.generic_visit(node)

    def _comprehension(self, node: Any) -> None:
        for generator in node.generators:  # before the element, which comes first in the tree
            self._bind(generator.target, generator.iter)
        self.generic_visit(node)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return
        own = (
            self._method is not None
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        )
        if not own:
            self.attributes.add(node.attr)
        for owner in self._owners(node.value):
            method = self._method[1] if own and self._method else ""
            if not (
                self._method and owner is self._method[0] and CHECKS.fullmatch(self._method[1])
            ):
                self.reads.add((owner, node.attr, method))

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        """Give the classes of an iterable to the variable, also within zip and enumerate."""
        found: set[type] = set()
        for part in ast.walk(value):
            found |= self._owners(part) if isinstance(part, ast.Attribute | ast.Name) else set()
            if isinstance(part, ast.Attribute) and part.attr in ("mixed", "sources"):
                found |= self._names.get("sources", set())
        for name in ast.walk(target):
            if isinstance(name, ast.Name) and found:
                self._scope[-1].setdefault(name.id, found)

    def _annotated(self, node: ast.expr | None) -> set[type]:
        if node is None:
            return set()
        words = re.findall(r"\w+", ast.unparse(node))
        owners: set[type] = set()
        for word in words:
            owners.update(self._by_name.get(word, ()))
        return owners

    def _owners(self, node: ast.expr) -> set[type]:
        if isinstance(node, ast.Name):
            for scope in reversed(self._scope):
                if node.id in scope:
                    return scope[node.id]
            return self._names.get(node.id, set())
        if isinstance(node, ast.Attribute):
            return self._names.get(node.attr.lstrip("_"), set())
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "replace" and node.args:
                return self._owners(node.args[0])
            if isinstance(node.func, ast.Attribute):
                if node.func.attr == "mixed":
                    return self._names.get("sources", set())
                if node.func.attr in ("resolved", "with_policy_defaults", "settings"):
                    return self._owners(node.func.value) or self._names.get("config", set())
        return set()
