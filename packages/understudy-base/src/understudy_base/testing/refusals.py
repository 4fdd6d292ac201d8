"""Expected errors and warnings by type, fields and values, not by sentences."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from understudy_base.errors import DataAccessError, DatasetError


@contextmanager
def refused(
    *values: object,
    where: str | None = None,
    fix: str | None = "",
    kind: type[BaseException] = DatasetError,
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect a `kind` in the block, and no subclass of it.

    Args:
        values: names, settings and numbers, each as a whole word of the message; of an error of
            data, of `what`.
        where: the end of `where` of an error of data, "" for any; None: the error has no place.
        fix: a name that `fix` of an error of data contains, "" for any; None: the error has no
            remedy.
        kind: type of the error.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert type(error) is kind, repr(error)
    if isinstance(error, DataAccessError):
        assert (fix is None) == (not error.fix), f"remedy {error.fix!r}: {error}"
        assert (fix or "") in error.fix, error
        assert (error.where is None) == (where is None), error
        assert str(error.where).endswith(where or ""), error
    else:
        assert (where, fix or "") == (None, ""), f"{kind} has no such fields"
    message = error.what if isinstance(error, DataAccessError) else str(error)
    missing = absent(message, *values)
    assert not missing, f"{missing} not in: {error!r}"


@contextmanager
def warned(*values: object, kind: type[Warning] = UserWarning) -> Iterator[pytest.WarningsRecorder]:
    """Expect a warning of `kind`, and no subclass of it, that has each of `values` as a whole
    word.
    """
    with pytest.warns(kind) as seen:
        yield seen
    texts = [str(warning.message) for warning in seen if warning.category is kind]
    assert any(not absent(text, *values) for text in texts), f"{values} not in: {texts}"


def absent(text: str, *values: object) -> list[object]:
    """Return those of `values` that are no whole word of `text`: 1 is no word of 10 or 0.1."""
    return [
        value
        for value in values
        if not re.search(rf"(?<!\w)(?<!\d\.){re.escape(str(value))}(?!\w|\.\d)", text)
    ]
