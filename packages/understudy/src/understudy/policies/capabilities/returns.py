"""Returns in place of actions: the capability `PredictsReturns` of a value function."""

from typing import Any, Protocol, runtime_checkable

from understudy_base import Record


@runtime_checkable
class PredictsReturns(Protocol):
    """Settings of a policy that predicts the return of an observation, and no actions.

    Nothing plays, serves or compares it; its batches have `return`.
    """

    def return_target(self) -> Record:
        """Return the fields of `ReturnTarget` (`datasets/read/returns.py`)."""


def predicts_actions(settings: object) -> bool:
    """Return whether the policy predicts actions."""
    return not isinstance(settings, PredictsReturns)


def check_acts(config: Any, folder: object) -> None:
    """Raise ValueError where the policy that a folder holds predicts no actions."""
    if isinstance(config, PredictsReturns):
        fix = "`understudy score RUN DATA OUT` writes its figures into a dataset"
        raise ValueError(
            f"{folder} holds a policy of type {config.type}, which predicts no actions; {fix}"  # type: ignore[attr-defined]
        )
