"""Settings for remote reading."""

import pytest

from understudy_data.storage.remote_options import RemoteOptions


@pytest.mark.parametrize("bad", [{"cache_bytes": -1}, {"cache_bytes": True}, {"num_threads": 0}])
def test_remote_options_refuse_values_out_of_range(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        RemoteOptions(**bad)  # type: ignore[arg-type]
