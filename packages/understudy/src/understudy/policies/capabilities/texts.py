"""Texts as tokens: the capability `ReadsTexts`."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class ReadsTexts(Protocol):
    """Settings of a policy that reads instructions by a tokenizer in a file."""

    tokenizer: str
    """File or folder of the tokenizer; "" for none."""
    learns_responses: bool
    """Whether the policy learns to answer with the texts under `response`."""

    def text_vocabulary(self) -> int:
        """Return the number of ids that a tokenizer of texts may have."""

    def tokenizer_texts(
        self, tasks: Sequence[str], responses: Sequence[str], state_dim: int
    ) -> list[str]:
        """Return all kinds of texts that the policy reads, to fit a tokenizer to.

        Args:
            tasks: instructions.
            responses: texts that the policy learns to answer with.
            state_dim: width of the state.
        """


def learns_responses(settings: object) -> bool:
    """Return whether the policy learns to answer with the texts under `response`."""
    return isinstance(settings, ReadsTexts) and settings.learns_responses
