"""`understudy_base.testing.refusals` fails for every difference that it promises to notice."""

import warnings
from typing import Any

import pytest

from understudy_base import DatasetError, MissingFileError
from understudy_base.testing.refusals import absent, refused, warned

ERROR = DatasetError("frame 3 of 'top' is 0.5", where="/d/a.mp4", fix="give batch_size")


@pytest.mark.parametrize(
    ("values", "fields", "error"),
    [
        ([4], {"where": "a.mp4"}, ERROR),  # another value
        (["fram"], {"where": "a.mp4"}, ERROR),  # no whole word
        (["batch_size"], {"where": "a.mp4"}, ERROR),  # in the remedy, not in the rule
        ([], {}, ERROR),  # a place, and none is expected
        ([], {"where": "b.mp4"}, ERROR),
        ([], {"where": "a.mp4", "fix": "num_threads"}, ERROR),
        ([], {"where": "a.mp4", "fix": None}, ERROR),
        ([], {}, DatasetError("no remedy")),
        ([], {}, MissingFileError("of a subclass", fix="restore it")),
        ([3], {"kind": ValueError}, ValueError("step 30")),
        ([], {"kind": ValueError, "where": ""}, ValueError("has no place")),
    ],
)
def test_refused_notices_other_errors(
    values: list[Any], fields: dict[str, Any], error: Exception
) -> None:
    with pytest.raises(AssertionError), refused(*values, **fields):
        raise error


def test_refused_accepts_the_error() -> None:
    with refused("frame", 3, "'top'", 0.5, where="a.mp4", fix="batch_size") as caught:
        raise ERROR
    assert caught.value is ERROR
    with refused("step", -1, kind=ValueError):
        raise ValueError("step -1: steps start at 0")


def test_warned_needs_the_kind_and_all_words() -> None:
    with warned("top", 3):
        warnings.warn("top: 3 rows", stacklevel=1)

    def warn_twice(kind: type[Warning]) -> None:
        warnings.warn("top: 3 rows", kind, stacklevel=1)
        warnings.warn("another", UserWarning, stacklevel=1)

    for values, kind in (
        ((4,), UserWarning),
        (("top", 4), UserWarning),
        ((3,), DeprecationWarning),
    ):
        with pytest.raises(AssertionError), warned(*values):
            warn_twice(kind)


@pytest.mark.parametrize("text", ["10", "0.1", "1.5", "a1", "1_000"])
def test_absent_finds_no_number_inside_another(text: str) -> None:
    assert absent(text, 1) == [1]
    assert not absent(f"({text}), 1.", 1, text)
