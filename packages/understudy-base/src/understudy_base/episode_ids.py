"""Ids of episodes as a user writes them: `0-7`, `12`, `3,5,9`. All commands and settings files read
them here.
"""

import re
from collections.abc import Iterable, Sequence

MOST_IDS = 10_000_000
"""Bound of the ids."""
_DIGITS = 12  # of an id that are read; it is too large then
_RANGE = re.compile(r"([0-9]+)(?:\s*-\s*([0-9]+))?")


def parse_ids(words: Iterable[object]) -> list[int]:
    """Return the ids in words such as "0-7", "12" and "3,5,9", in their sequence.

    Raises:
        ValueError: a word is no id and no range; the message names it, and the form.
    """
    ids: list[int] = []
    for text in words:
        for part in str(text).split(","):
            ids += _parse_range(part.strip())
    return ids


def _parse_range(word: str) -> range:
    match = _RANGE.fullmatch(word)
    if match is None:
        raise ValueError(
            f"{word!r} is no number from 0 and no range of them: give them as in 0-7 12"
        )
    first = int(match[1][:_DIGITS])
    last = int((match[2] or match[1])[:_DIGITS])
    if last < first:
        raise ValueError(f"the range {word!r} ends before it begins: give the lower one first")
    if last >= MOST_IDS:
        raise ValueError(f"{word!r} is too large: give numbers below {MOST_IDS:,}")
    return range(first, last + 1)


def repeated(ids: Sequence[int]) -> list[int]:
    """Return the numbers that come more than once, each once, in their sequence."""
    seen = set[int]()
    twice = dict[int, None]()
    for number in ids:
        if number in seen:
            twice[number] = None
        seen.add(number)
    return list(twice)
