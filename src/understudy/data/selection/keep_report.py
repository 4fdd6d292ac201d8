"""Report on keep-ranges: matched and unmatched keys, and the remaining frames.

`select.py` creates it for given ranges. The start of a run, `inspect` and `ranges` print it.
"""

from dataclasses import dataclass

FEW = 3
"""Keys and episodes to show of each kind."""


@dataclass(frozen=True)
class KeepReport:
    """Counts with a few examples: keys and episodes of the whole dataset, frames of the requested episodes."""

    where: str
    """The file, or "keep_ranges" for ranges given as an object."""
    keys: int
    """All keys of the ranges."""
    matched: int
    """Keys that match an episode."""
    unmatched: tuple[str, ...]
    """The first keys without an episode."""
    empty: int
    """Keys that match an episode and have an empty list of ranges."""
    first_empty: tuple[str, ...]
    episodes: int
    """Episodes with frames."""
    unnamed: int
    """Episodes with frames and without a key; all their frames are left out."""
    first_unnamed: tuple[str, ...]
    """Spelt as keys."""
    cut: int
    """Ranges that end after their episode, among the requested episodes."""
    frames: int
    """Frames of the requested episodes."""
    in_ranges: int
    """Frames of these inside ranges."""
    samples: int
    """Frames of these that remain after `keep_rule` and dropped frames."""

    def lines(self) -> list[str]:
        """Format the report; a count of 0 gives no line."""
        named = self.episodes - self.unnamed
        share = self.in_ranges / max(1, self.frames)
        lines = [
            f"{self.where}: {self.matched:,} of {self.keys:,} keys match an episode of this dataset, {named:,} of its "
            f"{self.episodes:,} episodes have a key",
            f"{self.where}: {self.in_ranges:,} of {self.frames:,} requested frames are in ranges ({share:.1%}), "
            f"{self.samples:,} of them are samples",
        ]
        if missed := self.keys - self.matched:
            lines.append(
                f"{self.where}: {missed:,} keys match no episode of this dataset: {_few(self.unmatched, missed)}"
            )
        if self.unnamed:
            shown = _few(self.first_unnamed, self.unnamed)
            lines.append(f"{self.where}: {self.unnamed:,} episodes have no key and are left out: {shown}")
        if self.empty:
            lines.append(f"{self.where}: {self.empty:,} keys have no range: {_few(self.first_empty, self.empty)}")
        if self.cut:
            lines.append(f"{self.where}: {self.cut:,} ranges end after their episode and were cut there")
        return lines


def _few(shown: tuple[str, ...], count: int) -> str:
    return ", ".join(map(repr, shown)) + (", ..." if count > len(shown) else "")
