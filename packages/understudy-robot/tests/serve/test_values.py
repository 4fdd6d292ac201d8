"""Values of messages that are described for an error."""

from typing import Any

import msgpack
import pytest

from understudy_robot.serve.values import describe


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"buffer": b"", "dims": [4]}, "a map with the keys buffer, dims"),
        (
            {f"key{number}": 0 for number in range(9)},
            "a map with the keys key0, key1, key2, key3, key4, key5, ...",
        ),
        ({b"k": 1}, "a map with the keys b'k'"),
        ({}, "an empty map"),
        (b"\xff\xd8\xff\xe0 jfif", "9 bytes, which begin as a JPEG image"),
        (b"\x89PNG" + bytes(2000), "2,004 bytes, which begin as a PNG image"),
        (b"\x93NUMPY", "6 bytes, which begin as a file of numpy"),
        (b"\x80\x04.", "3 bytes, which begin as a pickle"),
        (b"plain", "5 bytes"),
        (msgpack.ExtType(78, b"1234"), "the extension type 78 of msgpack, with 4 bytes"),
        (
            [[1, 2], 3],
            "a list of 2, the first of them a list of 2, the first of them a whole number",
        ),
        ([], "an empty list"),
        ("12.5", "a text"),
        (True, "a truth value"),
        (1.5, "a number"),
        (None, "nil"),
        ({1}, "a set"),
    ],
)
def test_a_value_is_described_by_its_form(value: Any, words: str) -> None:
    assert describe(value) == words
