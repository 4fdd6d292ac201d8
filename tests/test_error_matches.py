"""No test matches an error by a sentence.

A test matches the type of an error, its fields, and names and values as whole words
(`understudy_base.testing.refusals`). Two English words in a row are a sentence: it breaks when a
message is reworded, and no user depends on it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SENTENCE = re.compile(r"(?<!\w)[a-z]{2,} (a )?[a-z]{2,}(?!\w)")
ALLOWED = {"git lfs pull", "mcap recover", "understudy contract"}  # commands that a remedy names
SETTING = re.compile(r"--[\w.-]+( \S+)+|[a-z]+\.[a-z_.]+ \S+")  # a setting with its value, to paste
TOOLS = {"refused", "warned"}
ERROR = re.compile(r"\b(caught|raised|error)(\[\d\])?\.(value|what|fix|where|message)\b")
# a test without it matches no error
TRACE = re.compile(rf"match=|{'|'.join(TOOLS)}|{ERROR.pattern}")


def is_sentence(words: str) -> bool:
    return (
        SENTENCE.search(words) is not None and words not in ALLOWED and not SETTING.fullmatch(words)
    )


def _strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.lineno, part.value


def _parameters(function: ast.AST) -> dict[str, list[ast.AST]]:
    """Values of each parametrized argument and loop variable of a test."""
    found: dict[str, list[ast.AST]] = {}
    for part in ast.walk(function):
        if isinstance(part, ast.For):
            names = ast.unparse(part.target).strip("()")
            cases = part.iter
        elif (
            isinstance(part, ast.Call)
            and ast.unparse(part.func).endswith("parametrize")
            and len(part.args) > 1
        ):
            names = ",".join(text for _, text in _strings(part.args[0]))
            cases = part.args[1]
        else:
            continue
        several = [name.strip() for name in names.split(",") if name.strip()]
        for case in getattr(cases, "elts", []):
            values = getattr(case, "args" if isinstance(case, ast.Call) else "elts", [case])
            for name, value in zip(several, values if len(several) > 1 else [case], strict=False):
                found.setdefault(name, []).append(value)
    return found


def _matched(node: ast.AST) -> Iterator[ast.AST]:
    """Expressions that a message is compared with: match=, arguments of TOOLS,
    `"words" in str(error.value)`.
    """
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in {"raises", "warns"}:
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "match")
        if name in TOOLS:
            yield from node.args
            yield from (
                keyword.value for keyword in node.keywords if keyword.arg in {"where", "fix"}
            )
        if name in {"startswith", "endswith"} and ERROR.search(ast.unparse(node.func)):
            yield from node.args
    if isinstance(node, ast.Compare) and ERROR.search(ast.unparse(node.comparators[0])):
        yield node.left


def sentences(text: str) -> dict[int, str]:
    """Line and text of each sentence that a test matches."""
    found: dict[int, str] = {}
    lines = text.splitlines()
    for test in ast.parse(text).body:
        if not TRACE.search("\n".join(lines[test.lineno - 1 : test.end_lineno])):
            continue
        parameters = _parameters(test)
        for node in (each for part in ast.walk(test) for each in _matched(part)):
            names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
            for place in [node, *(value for name in names for value in parameters.get(name, []))]:
                found.update({line: words for line, words in _strings(place) if is_sentence(words)})
    return found


ROOT = TESTS.parent
FOLDERS = [TESTS, *sorted(ROOT.glob("packages/*/tests"))]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_no_error_is_matched_by_a_sentence(folder: Path) -> None:
    found = []
    for path in sorted(folder.rglob("*.py")):
        if path == Path(__file__):  # it quotes them
            continue
        text = path.read_text()
        matched = sentences(text) if TRACE.search(text) else {}
        for line, words in sorted(matched.items()):
            found.append(f"{path.relative_to(ROOT)}:{line}: {words!r}")
    assert found == [], "match types, fields and values instead"


def test_error_matches_finds_each_kind_of_sentence() -> None:
    text = """
@pytest.mark.parametrize("value, words", [(0, "is too small"), pytest.param(9, "seed")])
def test(value, words):
    with pytest.raises(ValueError, match=rf"seed.*{words}"): pass
    with pytest.raises(ValueError, match="batch_size 0 .*" + r"give one"): pass
    with refused("seed", 2, "x is 3", fix="see the docs"): pass
    assert "no such file" in str(caught.value)
    assert str(caught.value).startswith("no such file")
    assert "an ordinary value" in text
    for change, words in (({}, "not a file"), ({"a": 1}, "a")):
        with pytest.raises(ValueError, match=words): pass
"""
    assert set(sentences(text)) == {2, 5, 6, 7, 8, 10}
