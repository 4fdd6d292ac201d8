"""The words that docs/STYLE.md asks to avoid, counted per folder. A count may only fall.

    python tests/test_style.py             list every place
    python tests/test_style.py --update    lower the budgets of tests/style_budget.json to today's counts

Prose is docstrings, comments and strings of several words in Python files, and Markdown without its code.
"""

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUDGET = Path(__file__).with_name("style_budget.json")
SOURCE = ROOT / "src" / "understudy"
WORDS = {
    r"what": "name the thing",
    r"who(?:ever|soever)": "name the caller, the process or the user",
    r"(?:any|some|no)body": "name the caller, the process or the user",
    r"told|tells?|said": "printed, logged, raised, passed, documented",
    r"hangs? on": "depends on",
    r"as ever|so[- ]many(?:[- ]th)?|all the same": "as before, every N-th, anyway",
    r"stands?|stood": "is, lies, fits",
    r"go(?:es)? on|come(?:s)? to (?:its|an) end": "continue, end",
    r"(?:is|are|was|were) (?:looked|asked whether|believed)": "an active verb with its subject",
    r"pictures?": "image, frame or figure",
    r"verbs?": "command",
    r"held[- ]out|judge[ds]?": "validation, evaluated",
    r"rematerialis\w+|rematerializ\w+": "recompute, activation checkpointing",
}
PATTERN = re.compile("|".join(rf"(\b(?:{words})\b)" for words in WORDS), re.IGNORECASE)
CODE = re.compile(r"```.*?```|`[^`]*`|https?://\S+|\]\([^)]*\)", re.DOTALL)


def _python(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of docstrings, comments and messages."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value
    if any(PATTERN.search(line.partition("#")[2]) for line in text.splitlines()):  # tokenizing is slow
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def _places(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line, word, advice) of each word to avoid."""
    text = path.read_text()
    for line, prose in _python(text) if path.suffix == ".py" else [(1, text)]:
        prose = CODE.sub(lambda code: "\n" * code[0].count("\n"), prose)
        for found in PATTERN.finditer(prose):
            at = line + prose.count("\n", 0, found.start())
            yield at, found[0], list(WORDS.values())[(found.lastindex or 1) - 1]


def _files() -> Iterator[tuple[str, Path]]:
    """(folder as in the budget, file)."""
    for path in sorted(SOURCE.rglob("*.py")):
        inner = path.relative_to(SOURCE).parts
        yield f"src/{inner[0]}" if len(inner) > 1 else "src", path
    for path in sorted((ROOT / "tests").rglob("*.py")):
        inner = path.relative_to(ROOT / "tests").parts
        if path != Path(__file__):  # it quotes them
            yield f"tests/{inner[0]}" if len(inner) > 1 else "tests", path
    for folder in ("benchmarks", "examples", "exams", "packages", "scripts"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield folder, path
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]:
        if path.name != "STYLE.md":  # it quotes them
            yield str(path.relative_to(ROOT)), path


FILES: dict[str, list[Path]] = {}
for _folder, _path in _files():
    FILES.setdefault(_folder, []).append(_path)


def _found(folder: str) -> list[str]:
    places = ((path.relative_to(ROOT), place) for path in FILES[folder] for place in _places(path))
    return [f"{path}:{at}: {word!r}: {advice}" for path, (at, word, advice) in places]


@pytest.mark.parametrize("folder", FILES)
def test_style_words_stay_within_the_budget(folder: str) -> None:
    budget = json.loads(BUDGET.read_text()).get(folder, 0)
    found = _found(folder)
    assert len(found) <= budget, "see docs/STYLE.md:\n" + "\n".join(found)


def test_style_finds_docstrings_comments_messages_and_no_code() -> None:
    text = '"""What it is."""\n\n# nobody\ntold = f"{told} was told"\nkey = "picture"  # `picture`\n'
    assert Counter(line for line, _ in _python(text)) == {1: 1, 3: 1, 4: 1, 5: 1}
    words = [found[0] for _, prose in _python(text) for found in PATTERN.finditer(CODE.sub("", prose))]
    assert words == ["What", "told", "nobody"]


if __name__ == "__main__":
    if "--update" in sys.argv:
        old = json.loads(BUDGET.read_text())
        lowered = {name: min(old.get(name, 0), len(_found(name))) for name in FILES}
        BUDGET.write_text(json.dumps({name: count for name, count in lowered.items() if count}, indent=1) + "\n")
    else:
        print("\n".join(line for name in FILES for line in _found(name)))
