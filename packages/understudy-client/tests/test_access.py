"""Tokens and names of the host."""

from pathlib import Path

import pytest

from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_client.access import VARIABLE, is_authorized, is_loopback, read_token


def test_the_token_of_a_file_counts_before_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("  s3cret\n")
    monkeypatch.delenv(VARIABLE, raising=False)
    assert read_token("") is None
    assert read_token(str(file)) == "s3cret"
    monkeypatch.setenv(VARIABLE, " other ")
    assert read_token("") == "other"
    assert read_token(str(file)) == "s3cret"
    monkeypatch.setenv(VARIABLE, " ")
    assert read_token("") is None


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"two words", b"\xff\xfe", "ä".encode(), b"a\x00b"]
)
def test_a_file_without_a_token_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with refused(str(file), kind=ConfigError):
        read_token(str(file))


def test_a_missing_file_and_a_bad_variable_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused("token_file", str(tmp_path / "absent"), kind=ConfigError):
        read_token(str(tmp_path / "absent"))
    monkeypatch.setenv(VARIABLE, "S3 CRET")
    with refused(VARIABLE, kind=ConfigError) as caught:
        read_token("")
    assert "S3 CRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Bearer s3cret", True),
        ("bearer  s3cret ", True),
        ("Api-Key s3cret", True),
        ("Basic s3cret", False),
        ("s3cret", False),
        ("Bearer s3cre", False),
        ("Bearer s3cret2", False),
        ("Bearer \ud800", False),
        ("Bearer", False),
        ("", False),
        (None, False),
    ],
)
def test_a_header_is_authorized_by_the_token_alone(header: str | None, expected: bool) -> None:
    assert is_authorized(header, "s3cret") == expected
    assert is_authorized(header, None)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LocalHost.", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("::1%lo", True),
        ("0.0.0.0", False),
        ("192.168.0.7", False),
        ("localhost.attacker.example", False),
        ("", False),
    ],
)
def test_names_of_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected
