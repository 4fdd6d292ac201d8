"""Signals ask for a stop: one request may arrive more than once, a second request acts as it always did."""

import os
import signal

import pytest

from understudy.distributed import signals
from understudy.distributed.signals import SIGNALS, interrupted_by_sigterm, stop_signals


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_BLOCK, ())  # a moment for the handler


@pytest.mark.parametrize("number", SIGNALS)
def test_stop_signals_merge_repeated_requests(number: signal.Signals) -> None:
    """From the scheduler, and again from the launcher; SIGTERM and SIGUSR1 would end this process if they counted."""
    before = signal.getsignal(number)
    with stop_signals() as stop:
        assert not stop.asked
        send(number)
        assert stop.asked
        send(number)
        send(signal.SIGTERM)
    assert signal.getsignal(number) == before


def test_stop_signals_second_request_has_its_default_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "SAME_REQUEST", -1.0)

    def asked_twice() -> None:
        with stop_signals() as stop:
            send(signal.SIGINT)
            assert stop.asked
            send(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        asked_twice()


class Dropping:
    """Gets a signal in its `__del__`, where Python drops the exception of the handler."""

    def __del__(self) -> None:
        send(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_by_sigterm_raises_again_after_a_dropped_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal soon after the first does not interrupt the cleanup."""
    before, reached = signal.getsignal(signal.SIGTERM), []

    def works_on() -> None:
        with interrupted_by_sigterm():
            Dropping()
            send(signal.SIGTERM)
            reached.append("cleanup")
            monkeypatch.setattr(signals, "SAME_REQUEST", -1.0)
            send(signal.SIGTERM)
            reached.append("never")

    with pytest.raises(KeyboardInterrupt) as caught:
        works_on()
    assert caught.value.args == (signal.SIGTERM,)
    assert reached == ["cleanup"]
    assert signal.getsignal(signal.SIGTERM) == before
