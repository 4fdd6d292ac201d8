"""Several instructions in one task text, such as DROID's, and the one that a sample gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from understudy_data.order import KeyedDraws


@dataclass(frozen=True)
class Instructions:
    """Task texts that hold several instructions."""

    separator: str = ""
    """Text between the instructions; "": each text is one."""

    def split(self, text: str) -> list[str]:
        """Return the instructions of a task text, without blanks around them; without a separator
        the text itself.
        """
        parts = [part.strip() for part in text.split(self.separator)] if self.separator else []
        return [part for part in parts if part] or [text]

    def draw(self, texts: Sequence[str], seed: int, positions: Any) -> list[str]:
        """Draw one of the instructions of each text, each as likely as the others.

        Args:
            texts: task texts of B samples.
            seed: of the run.
            positions: int64 [B], the number that keys the draw of each sample.
        """
        if not self.separator:
            return list(texts)
        choices = [self.split(text) for text in texts]
        draws = KeyedDraws(seed).uniform("instruction", positions).tolist()
        return [tasks[int(draw * len(tasks))] for tasks, draw in zip(choices, draws, strict=True)]
