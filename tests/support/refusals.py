"""Expected errors by type and fields, not by sentences."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from understudy.errors import DatasetError


@contextmanager
def refused(
    *values: object, where: str | None = None, fix: str = "", kind: type[DatasetError] = DatasetError
) -> Iterator[pytest.ExceptionInfo[DatasetError]]:
    """Expect a `kind` in the block, and no subclass of it.

    Args:
        values: names, settings and numbers that `what` contains, each as a whole word.
        where: the end of `where`; None: the error has no place.
        fix: a name that `fix` contains.
        kind: type of the error.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert type(error) is kind
    assert error.fix, f"there is no remedy: {error}"
    assert fix in error.fix, error
    assert (error.where is None) == (where is None), error
    assert str(error.where).endswith(where or ""), error
    for value in values:
        assert re.search(rf"(?<!\w){re.escape(str(value))}(?!\w)", error.what), f"{value} is not in: {error}"
