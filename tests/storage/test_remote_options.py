"""Settings for remote reading, under their names and their old ones."""

import pytest

import understudy as us
from understudy.storage.remote_options import RemoteOptions


def test_remote_options_accept_old_names_for_one_release() -> None:
    with pytest.warns(DeprecationWarning, match="RemoteOptions"):
        old = us.Remote
    assert old is us.RemoteOptions is RemoteOptions
    with pytest.warns(DeprecationWarning, match="num_threads"):
        assert RemoteOptions(threads=3).num_threads == 3  # type: ignore[call-arg]


@pytest.mark.parametrize("bad", [{"cache_bytes": -1}, {"cache_bytes": True}, {"num_threads": 0}])
def test_remote_options_refuse_values_out_of_range(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        RemoteOptions(**bad)  # type: ignore[arg-type]
