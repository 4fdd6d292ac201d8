"""Messages of absurd sizes are refused early, and take no memory."""

import gc
import time
import tracemalloc

import msgpack
import numpy as np
import pytest

from understudy_base.testing.refusals import refused
from understudy_client.protocol import MessageError, decode


def lists(count: int, item: bytes = b"\x90") -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + item * count


@pytest.mark.parametrize(
    "data",
    [
        lists(1_000_000),
        lists(1_000_000, b"\xc0"),
        lists(4000, lists(100)),
        lists(4000, lists(100, b"\x80")),
        b"\xdf" + (1_000_000).to_bytes(4, "big") + b"\x90\xc0" * 1_000_000,
        lists(4000, b"\xde\x0f\xff" + b"\xa0\xc0" * 4095),  # one key again and again
    ],
)
def test_a_message_of_many_objects_is_refused_early(data: bytes) -> None:
    gc.disable()  # it would search the objects of other tests, too
    try:
        started = time.process_time()
        with refused(kind=MessageError):
            decode(data)
        assert time.process_time() - started < 1
    finally:
        gc.enable()


@pytest.mark.parametrize("head", [b"\xdd", b"\xdf"])
def test_long_lists_and_dicts_take_no_memory(head: bytes) -> None:
    """A list of 60 MB of nil would take 480."""
    data = head + (4_000_000).to_bytes(4, "big") + b"\xa0\xc0" * 4_000_000
    tracemalloc.start()
    try:
        with refused(kind=MessageError):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_lists_of_numbers_are_still_read() -> None:
    assert np.asarray(
        decode(msgpack.packb({"image": [[[1, 2, 3]] * 128] * 96}))["image"]
    ).shape == (96, 128, 3)
