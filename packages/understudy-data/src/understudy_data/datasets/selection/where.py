"""Conditions on the metadata of episodes: `success and quality >= 3`.

    names       metadata of the episodes; `episode` (id), `length` (frames), `seconds`, `task`
                (text), `tasks` (texts)
    constants   numbers, "texts", true, false, none, lists [1, 2]
    operators   and, or, not, ==, !=, <, <=, >, >=, in, not in
    brackets    meta["a name with spaces"]; a name may have dots

A missing value satisfies no comparison but `== none`, and counts as false. `"cup" in task` searches
a text. The text is parsed as Python's syntax and interpreted here; nothing of it is executed.
"""

import ast
import operator
from difflib import get_close_matches
from itertools import chain
from typing import Any

import numpy as np

from understudy_base import DatasetError, Record, page
from understudy_data.datasets.format.catalog import Catalog

_WORDS = {"true": True, "false": False, "none": None, "null": None}
_ORDERINGS = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}
_MOST = 2000  # characters; Python's parser takes memory for each level of brackets
_DEEPEST = 100  # levels of the syntax tree
_SYNTAX = "as in --where 'success and quality >= 3 and \"cup\" in task'"


class Where:
    """A parsed condition.

    Args:
        text: the condition.

    Attributes:
        names: names of metadata in it.

    Raises:
        DatasetError: the text is not a condition.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > _MOST:
            raise DatasetError(f"where has {len(text)} characters", fix=f"give {_MOST} at most")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
            raise DatasetError(f"where is {text!r}: {reason}", fix=_SYNTAX) from None
        if _depth(self._tree) > _DEEPEST:
            raise DatasetError(
                f"where is {text[:80]!r}...: nested too deeply",
                fix=f"nest {_DEEPEST} levels at most",
            )
        self.names: list[str] = []
        self._check(self._tree)

    def holds(self, values: Record, where: str) -> bool:
        """Return whether the condition holds for an episode.

        Args:
            values: its metadata; missing names are None.
            where: name of the episode, for messages.

        Raises:
            DatasetError: values are compared that have no order, or a text is used as true or
                false.
        """
        return self._truth(self._tree, values, where)

    def _refuse(self, problem: str, where: str | None = None) -> DatasetError:
        return DatasetError(f"where is {self.text!r}: {problem}", where=where, fix=_SYNTAX)

    def _name(self, node: ast.AST) -> str | None:
        """Name of a value; None for another node."""
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute) and (head := self._name(node.value)) is not None:
            return f"{head}.{node.attr}"
        if (
            isinstance(node, ast.Subscript)
            and ast.unparse(node.value) == "meta"
            and isinstance(node.slice, ast.Constant)
        ):
            return node.slice.value if isinstance(node.slice.value, str) else None
        return None

    def _check(self, node: ast.AST) -> None:
        """Refuse syntax that is not interpreted, and collect names."""
        if isinstance(node, ast.Constant):
            if node.value is not None and not isinstance(node.value, (bool, int, float, str)):
                raise self._refuse(f"{node.value!r} is not a number, text, true or false")
        elif isinstance(node, ast.Name) and node.id.lower() in _WORDS:
            pass
        elif (name := self._name(node)) is not None:
            self.names.append(name)
        elif isinstance(node, (ast.Compare, ast.BoolOp, ast.List, ast.Tuple)) or self._is_sign(
            node
        ):
            for child in ast.iter_child_nodes(node):
                if not isinstance(child, (ast.boolop, ast.unaryop, ast.cmpop, ast.expr_context)):
                    self._check(child)
        else:
            raise self._refuse(f"{ast.unparse(node)!r} is none of its operators")

    def _is_sign(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.UnaryOp):
            return False
        number = isinstance(node.operand, ast.Constant) and type(node.operand.value) in (int, float)
        return isinstance(node.op, ast.Not) or (isinstance(node.op, ast.USub) and number)

    def _value(self, node: ast.AST, values: Record, where: str) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id.lower() in _WORDS:
            return _WORDS[node.id.lower()]
        if (name := self._name(node)) is not None:
            return values.get(name)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(item, values, where) for item in node.elts]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._value(node.operand, values, where)
        return self._truth(node, values, where)

    def _truth(self, node: ast.AST, values: Record, where: str) -> bool:
        if isinstance(node, ast.BoolOp):
            parts = (self._truth(part, values, where) for part in node.values)
            return all(parts) if isinstance(node.op, ast.And) else any(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self._truth(node.operand, values, where)
        if isinstance(node, ast.Compare):
            sides = [self._value(side, values, where) for side in (node.left, *node.comparators)]
            return all(
                self._compare(op, a, b, where) for op, a, b in zip(node.ops, sides, sides[1:])
            )
        value = self._value(node, values, where)
        if value is None or isinstance(value, (bool, int, float)):
            return bool(value)
        raise self._refuse(
            f"{ast.unparse(node)} is {value!r}, which is neither true nor false", where
        )

    def _compare(self, op: ast.cmpop, a: Any, b: Any, where: str) -> bool:
        if isinstance(op, (ast.Eq, ast.Is)):
            return bool(a == b)
        if isinstance(op, (ast.NotEq, ast.IsNot)):
            return bool(a != b) and (a is not None or b is None)
        if a is None or b is None:
            return False
        try:
            if isinstance(op, (ast.In, ast.NotIn)):
                return bool(a in b) == isinstance(op, ast.In)
            return bool(_ORDERINGS[type(op)](a, b))
        except TypeError:
            raise self._refuse(f"{a!r} and {b!r} cannot be compared", where) from None


def _depth(tree: ast.AST) -> int:
    """Number of levels of a syntax tree."""
    depth = 0
    level = [tree]
    while level:
        depth = depth + 1
        level = list(chain.from_iterable(map(ast.iter_child_nodes, level)))
    return depth


def matching_rows(catalog: Catalog, text: str) -> np.ndarray:
    """Return the table rows of the episodes for which a condition holds, int64, ascending.

    Raises:
        DatasetError: the text is not a condition, names metadata that no episode has, or holds for
            no episode.
    """
    where = Where(text)
    table = catalog.episodes
    metadata = catalog.episode_metadata()
    valid_names = ["episode", "length", "seconds", "task", "tasks", *metadata]
    for name in where.names:
        if name not in valid_names:
            hint = f"there are {', '.join(valid_names)}; `edit --metadata` adds others"
            if name in catalog.features:
                hint = (
                    "it is a feature of frames: select them with frame_weights "
                    f"({page('frame_weights.md')})"
                )
            elif near := get_close_matches(name, valid_names, n=1):
                hint = f"did you mean {near[0]!r}?"
            raise DatasetError(
                f"where names {name!r}, which no episode has", where=catalog.root, fix=hint
            )
    rows = []
    for row, episode in enumerate(table.ids.tolist()):
        texts = [catalog.tasks[task] for task in table.tasks_of(row).tolist() if task >= 0]
        first_text = texts[0] if texts else None
        length = int(table.lengths[row])
        facts = {
            "episode": episode,
            "length": length,
            "seconds": length / float(catalog.fps),
            "task": first_text,
            "tasks": texts,
        }
        entries = {name: column[episode] for name, column in metadata.items() if episode in column}
        # NaN is missing, too
        values = {name: value for name, value in entries.items() if value == value} | facts
        if where.holds(values, f"{catalog.root} (episode {episode})"):
            rows.append(row)
    if not rows:
        fix = (
            "its columns of meta/episodes have the values; a missing value satisfies no comparison"
        )
        raise DatasetError(
            f"where is {text!r}, which holds for none of {len(table)} episodes",
            where=catalog.root,
            fix=fix,
        )
    return np.array(rows, np.int64)
