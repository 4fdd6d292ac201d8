"""Errors as values: what the server describes, the client raises again."""

import pickle

import pytest

from understudy_base import UnderstudyError
from understudy_client.contract.mismatch import REMEDIES, ContractError, Mismatch, printable
from understudy_client.protocol import (
    DeadlineError,
    MessageError,
    RemoteError,
    decode,
    describe_error,
    encode,
    read_mismatches,
    rebuild_error,
)

FAULTS = [
    Mismatch("rate", "", "30 steps per second", "15", "set the rate"),
    Mismatch("color order", "cam_front", "RGB", "BGR"),
]


@pytest.mark.parametrize(
    ("error", "kind", "fault"),
    [
        (ContractError(FAULTS), ContractError, None),
        (ValueError("3 numbers"), ValueError, None),
        (MessageError("no message"), MessageError, None),
        (RemoteError("full", "busy"), RemoteError, "busy"),
        (RemoteError("it ends", "closing"), RemoteError, "closing"),
        (DeadlineError("late", "deadline"), DeadlineError, "deadline"),
        (KeyError("joints"), RemoteError, "server"),
        (RuntimeError(), RemoteError, "server"),
    ],
)
def test_an_error_crosses_the_wire(
    error: Exception, kind: type[Exception], fault: str | None
) -> None:
    rebuilt = rebuild_error(decode(encode(describe_error(error))))
    assert type(rebuilt) is kind
    assert str(rebuilt) == (str(error) or type(error).__name__)
    assert getattr(rebuilt, "fault", None) == fault
    assert getattr(rebuilt, "mismatches", None) == getattr(error, "mismatches", None)


def test_an_error_of_a_later_release_is_one_of_the_server() -> None:
    rebuilt = rebuild_error({"fault": "tired", "message": "m", "more": 1})
    assert type(rebuilt) is RemoteError
    assert (rebuilt.fault, str(rebuilt)) == ("tired", "m")
    assert type(rebuild_error({})) is RemoteError


def test_errors_have_the_types_that_callers_catch() -> None:
    assert issubclass(MessageError, ValueError)
    assert issubclass(ContractError, ValueError)
    assert issubclass(RemoteError, OSError)
    assert issubclass(DeadlineError, TimeoutError)
    assert all(
        issubclass(kind, UnderstudyError) for kind in (MessageError, ContractError, RemoteError)
    )


def test_differences_cross_the_wire_and_processes() -> None:
    assert read_mismatches(decode(encode([fault.to_json() for fault in FAULTS]))) == FAULTS
    assert read_mismatches(None) == []
    error = pickle.loads(pickle.dumps(ContractError(FAULTS)))
    assert error.mismatches == tuple(FAULTS)
    assert len(str(error).splitlines()) == len(FAULTS)


@pytest.mark.parametrize("kind", REMEDIES)
def test_each_kind_has_its_remedy(kind: str) -> None:
    assert Mismatch(kind, "joints", "a", "b").remedy == REMEDIES[kind]


def test_a_difference_is_one_short_line() -> None:
    fault = Mismatch("extra key", "k\n" * 1000, "a\x1b[2J", "b" * 1000, "fix")
    assert str(fault).isprintable()
    assert len(str(fault)) < 3000
    assert str(FAULTS[1]).startswith("cam_front: color order: ")
    assert printable("a\tb", 2) == "a\\t… (3 letters)"
