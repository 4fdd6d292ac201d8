"""Names by which a server on loopback is reached."""

import pytest

from understudy_robot.serve.server import is_own_host


@pytest.mark.parametrize(
    ("header", "host", "expected"),
    [
        ("127.0.0.1:8000", "127.0.0.1", True),
        ("localhost:8000", "127.0.0.1", True),
        ("[::1]:8000", "::1", True),
        ("attacker.example:8000", "127.0.0.1", False),
        ("attacker.example", "::1", False),
        ("", "127.0.0.1", False),
        (None, "localhost", False),
        ("attacker.example", "0.0.0.0", True),  # it cannot know its names
    ],
)
def test_a_server_on_loopback_has_names_of_this_machine_alone(
    header: str | None, host: str, expected: bool
) -> None:
    assert is_own_host(header, host) == expected
