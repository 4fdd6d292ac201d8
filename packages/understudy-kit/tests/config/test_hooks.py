"""The settings engine with classes of its own: it asks them for types, short forms and hints."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pytest

from understudy_base import ConfigError, Record
from understudy_base.testing.refusals import refused
from understudy_kit.config.declare import ByHand
from understudy_kit.config.flags import chosen_type, list_settings, read_flags
from understudy_kit.config.help import groups
from understudy_kit.config.hooks import is_union, union_of
from understudy_kit.config.schema import validate, validate_new

GIVEN: list[str] = []
"""Values that flags have given by hand."""


@dataclass(frozen=True)
class Shape:
    """A shape."""

    type: str = "circle"
    """Kind of shape."""

    @classmethod
    def select(cls, values: Record) -> "type[Shape]":
        kinds: dict[str, type[Shape]] = {"circle": Circle, "box": Box}
        kind = values.get("type", "circle")
        if kind not in kinds:
            raise ValueError(f"no shape {kind!r}")
        return kinds[kind]

    @classmethod
    def by_hand(cls, word: str) -> str:
        GIVEN.append(word)
        return word.lower()

    @classmethod
    def is_same(cls, kind: str, stored: str) -> bool:
        return kind == stored

    @classmethod
    def types(cls) -> list[str]:
        return ["box", "circle"]

    @classmethod
    def types_with(cls, setting: str) -> list[str]:
        return [kind for kind in cls.types() if hasattr(cls.select({"type": kind}), setting)]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        if cls is not Shape:
            return handler(source)
        from pydantic import TypeAdapter
        from pydantic_core import core_schema

        def check(value: Any) -> Any:
            kind: Any = cls.select(value)
            return TypeAdapter(kind).validate_python(value)

        return core_schema.no_info_plain_validator_function(check)


@dataclass(frozen=True)
class Circle(Shape):
    """A circle."""

    radius: int = 1
    """Its radius."""


@dataclass(frozen=True)
class Box(Shape):
    """A box."""

    type: Literal["box"] = "box"  # type: ignore[assignment]
    width: int = 2
    """Its width."""


class Hints:
    def names(self) -> list[str]:
        return ["size-of-it", "shape.diameter"]

    def equivalent(self, name: str) -> str | None:
        return {"size-of-it": "--shape.radius", "shape.diameter": "--shape.radius"}.get(
            name.replace("_", "-")
        )

    def misplaced(self, word: str) -> str | None:
        return f"{word}: give a COLOUR" if word == "red" else None


@dataclass(frozen=True)
class Point:
    x: int = 0
    y: int = 0

    @staticmethod
    def from_words(words: Sequence[str], *, new: bool) -> list[str]:
        if not words:
            raise ValueError("give points as X,Y")
        return list(words)


@dataclass(frozen=True)
class Line:
    width: int = 1


@dataclass(frozen=True)
class DrawConfig:
    """Draw."""

    OTHER_NAMES: ClassVar[Hints] = Hints()
    shape: Shape = field(default_factory=Circle)
    points: tuple[Point, ...] = ()
    lines: tuple[Line, ...] = ()
    pen: Annotated[str, ByHand(GIVEN.append)] = ""
    """Pen."""

    @staticmethod
    def expanded(content: Record, where: object = None) -> Record:
        points = content.get("points", ())
        written = [dict(zip("xy", p.split(","))) if isinstance(p, str) else p for p in points]
        return {**content, "points": written}


@dataclass(frozen=True)
class NoHooks:
    pen: str = ""


def read(*words: str, content: Record | None = None, new: bool = True) -> DrawConfig:
    config: DrawConfig = read_flags(DrawConfig, words, content or {}, new=new)
    return config


def test_a_group_has_the_class_that_its_values_name() -> None:
    assert (is_union(Shape), is_union(DrawConfig)) == (True, False)
    assert union_of(DrawConfig) == ("shape", Shape)
    assert union_of(NoHooks) is None
    assert [setting.path for setting in list_settings(DrawConfig)][:2] == [
        "shape.type",
        "shape.radius",
    ]
    assert read().shape == Circle()
    assert read("--shape.radius", "3").shape == Circle(radius=3)
    assert read("--shape.type", "box", "--shape.width", "5").shape == Box(width=5)
    assert read("--shape.width", "4", content={"shape": {"type": "box", "width": 3}}).shape == Box(
        width=4
    )


def test_another_type_than_that_of_the_file_starts_anew() -> None:
    content = {"shape": {"type": "circle", "radius": 9}}
    assert read("--shape.type", "circle", content=content).shape == Circle(radius=9)
    assert read("--shape.type", "box", content=content).shape == Box()
    assert chosen_type(DrawConfig, ["--shape.type", "a", "--shape.type=box"]) == "box"
    assert chosen_type(NoHooks, ["--shape.type", "box"]) == ""


def test_help_lists_the_types() -> None:
    shown = {own.path: own for group in groups(DrawConfig) for own in group.settings}
    assert shown["shape.type"].flag() == "--shape.type {box,circle}"
    assert "--shape.type NAME --help" in shown["shape.type"].text


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--shape.width", "3"], ["--shape.width", "box", "--shape.type box"]),
        (["--shape.type", "cube", "--shape.depth", "3"], ["--shape.type", "'cube'"]),
        (["--size_of_it", "3"], ["--size_of_it", "--shape.radius"]),
        (["--size-of-if", "3"], ["--size-of-if", "--size-of-it", "--shape.radius"]),
        (["--shape.type", "cube", "--shape.diameter", "3"], ["'cube'", "--shape.radius"]),
        (["--pen", "ink", "red"], ["red", "COLOUR"]),
        (["--pen", "ink", "blue"], ["blue"]),
        (["--points"], ["--points", "X,Y"]),
        (["--points", "1,2", "--points", "3,4"], ["--points", "twice"]),
        (["--lines", "1"], ["--lines", "file"]),
    ],
)
def test_a_refusal_has_the_hints_of_the_class(words: list[str], named: list[str]) -> None:
    with refused(*named, kind=ConfigError):
        read(*words)


def test_short_forms_are_written_out_in_a_new_file_alone() -> None:
    assert read("--points", "1,2", "3,4").points == (Point(1, 2), Point(3, 4))
    assert validate_new(DrawConfig, {"points": ["1,2", {"x": 5}]}).points == (
        Point(1, 2),
        Point(5, 0),
    )
    with refused("points.0", kind=ConfigError):
        validate(DrawConfig, {"points": ["1,2"]})


def test_a_file_has_the_hints_of_its_class_alone() -> None:
    with refused("size_of_it", "--shape.radius", kind=ConfigError):
        validate(DrawConfig, {"size_of_it": 3})
    with refused("size_of_it", "pen", kind=ConfigError):
        validate(NoHooks, {"size_of_it": 3})


def test_values_of_flags_are_by_hand_and_those_of_files_are_not() -> None:
    GIVEN.clear()
    read(content={"pen": "quill", "shape": {"type": "box"}})
    assert GIVEN == [""]  # no type is named
    read("--pen", "ink", "--shape.type", "box")
    assert GIVEN == ["", "box", "ink"]
