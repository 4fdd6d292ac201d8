"""What keep-ranges did to a dataset: which of their keys mean an episode, which do not, and how many frames are left.

Made by `select.py` whenever ranges are given; for the start of a run, `inspect` and `ranges` to print.
"""

from dataclasses import dataclass

FEW = 3
"""Keys and episodes that are shown of each kind."""


@dataclass(frozen=True)
class KeepReport:
    """Counts, and the first few of what is counted: of keys and episodes over the whole dataset, of frames over the
    episodes that are asked for."""

    where: str
    """The file, or "keep" for ranges that were given as an object."""
    keys: int
    """All keys of the ranges."""
    matched: int
    """Keys that mean an episode of the dataset."""
    unmatched: tuple[str, ...]
    """The first keys that mean none."""
    empty: int
    """Keys that mean an episode and whose list of ranges is empty."""
    first_empty: tuple[str, ...]
    episodes: int
    """Episodes of the dataset that have frames."""
    unnamed: int
    """Those of them that no key means; all their frames are left out."""
    first_unnamed: tuple[str, ...]
    """As keys of this dataset would be spelt."""
    cut: int
    """Ranges that end behind their episode, of the episodes asked for."""
    frames: int
    """Of the episodes asked for."""
    in_ranges: int
    """Of them, frames inside ranges."""
    samples: int
    """Of them, what the rule for windows and dropped frames leave."""

    def lines(self) -> list[str]:
        """The report in words, one line each; what there is none of is not told."""
        named = self.episodes - self.unnamed
        share = self.in_ranges / max(1, self.frames)
        told = [
            f"{self.where}: {self.matched:,} of {self.keys:,} keys are episodes of this dataset, {named:,} of its "
            f"{self.episodes:,} episodes have one",
            f"{self.where}: {self.in_ranges:,} of {self.frames:,} frames used lie in ranges ({share:.1%}), "
            f"{self.samples:,} of them are samples",
        ]
        if missed := self.keys - self.matched:
            told.append(f"{self.where}: {missed:,} keys are no episode of this dataset: {_few(self.unmatched, missed)}")
        if self.unnamed:
            shown = _few(self.first_unnamed, self.unnamed)
            told.append(f"{self.where}: {self.unnamed:,} episodes have no key and are left out: {shown}")
        if self.empty:
            told.append(f"{self.where}: {self.empty:,} keys have no range: {_few(self.first_empty, self.empty)}")
        if self.cut:
            told.append(f"{self.where}: {self.cut:,} ranges end after their episode and were cut there")
        return told


def _few(shown: tuple[str, ...], count: int) -> str:
    return ", ".join(map(repr, shown)) + (", ..." if count > len(shown) else "")
