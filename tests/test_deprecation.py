"""Old public names work, warn at each use and name the new one."""

import pytest

from understudy.deprecation import renamed_arguments


class Loader:
    @renamed_arguments(threads="num_threads")
    def __init__(self, data: str, *, num_threads: int = 1) -> None:
        self.made = (data, num_threads)


def test_renamed_arguments_accepts_the_old_name_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match="num_threads") as caught:
        assert Loader("d", threads=3).made == ("d", 3)  # type: ignore[call-arg]
    assert [warning.filename for warning in caught] == [__file__]


def test_renamed_arguments_is_silent_about_the_new_name(recwarn: pytest.WarningsRecorder) -> None:
    assert Loader("d", num_threads=3).made == ("d", 3)
    assert not list(recwarn)


def test_renamed_arguments_refuses_both() -> None:
    with pytest.raises(TypeError, match="num_threads"):
        Loader("d", threads=3, num_threads=3)  # type: ignore[call-arg]
