"""Several instructions in one task text, such as DROID's, and the one that a sample gets."""

from collections.abc import Sequence
from typing import Any

from understudy_data.order import sample_uniform


def split_task(text: str, separator: str) -> list[str]:
    """Return the instructions of a task text, without blanks around them; without a separator the
    text itself.
    """
    parts = [part.strip() for part in text.split(separator)] if separator else []
    return [part for part in parts if part] or [text]


def draw_instructions(texts: Sequence[str], separator: str, seed: int, positions: Any) -> list[str]:
    """Draw one of the instructions of each text, each as likely as the others.

    Args:
        texts: task texts of B samples.
        separator: text between the instructions; "" keeps the texts.
        seed: of the run.
        positions: int64 [B], the number that keys the draw of each sample.
    """
    if not separator:
        return list(texts)
    choices = [split_task(text, separator) for text in texts]
    draws = sample_uniform(seed, "instruction", positions).tolist()
    return [tasks[int(draw * len(tasks))] for tasks, draw in zip(choices, draws, strict=True)]
