"""Bad data: a sample that cannot be read is replaced by its neighbour, the same one in every run, and never silently.

The substitute is the first frame that can be read among `Order.neighbours`: later ones of the same clip, earlier ones,
then the clips behind it, all of the same selection, so never one of the held-out episodes. Whether a frame can be read
depends on the files alone, so the substitute depends on the position alone, not on ranks, threads or memory. Each is
written to the journal, one JSON object per line, and counted; more bad frames than the cap are an error after all.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from understudy.errors import DatasetError
from understudy.order import Order

_FEW = 16  # bad frames that are always allowed
_TRIES = 4096


@dataclass(frozen=True)
class Substitution:
    """One line of the journal: at `position`, `frame` of `episode` of the dataset `source` was replaced, and why."""

    position: int
    source: str
    episode: int
    frame: int
    reason: str
    instead_episode: int
    instead_frame: int


class Substitutes:
    """The bad frames that a loader has met, and what it delivered instead. For any thread.

    Args:
        journal: a file to append to, or None.
        cap: the share of a source's frames that may be bad, beyond the first few.
    """

    def __init__(self, order: Order, journal: str | Path | None, cap: float) -> None:
        self._order, self._journal, self._cap = order, journal, cap
        self._bad: dict[tuple[int, int, int], str] = {}  # (source, episode, frame) -> why
        self._written: set[int] = set()  # positions
        self._lock = threading.Lock()
        self.made: list[Substitution] = []
        """Every substitution so far, in the order in which they were made."""

    def find(
        self,
        position: int,
        source: int,
        episode: int,
        frame: int,
        reason: str,
        readable: Callable[[int, int], str | None],
    ) -> tuple[int, int]:
        """(episode, frame) that stands in for a bad frame.

        readable: reads a frame: None, or what is wrong with it.

        Raises:
            DatasetError: more bad frames than the cap allows, or no neighbour that can be read.
        """
        name, frames = self._order.spec.sources[source].name, self._order.spec.sources[source].frames
        self._add(source, episode, frame, reason)
        for other, near in zip(*(a.tolist() for a in self._order.neighbours(position, _TRIES))):
            if (source, other, near) in self._bad:
                continue
            wrong = readable(other, near)
            if wrong is None:
                self._write(Substitution(position, name, episode, frame, reason, other, near))
                return other, near
            self._add(source, other, near, wrong)
        what = f"no frame near frame {frame} of episode {episode} can be read, of {min(frames, _TRIES)} tried: {reason}"
        raise DatasetError(what, where=name, fix="repair the dataset, or leave these episodes out")

    def _add(self, source: int, episode: int, frame: int, reason: str) -> None:
        spec = self._order.spec.sources[source]
        with self._lock:
            self._bad[source, episode, frame] = reason
            count = sum(key[0] == source for key in self._bad)
        allowed = max(_FEW, int(self._cap * spec.frames))
        if count > allowed:
            what = f"{count} frames cannot be read, {allowed} are allowed; the last: {reason}"
            raise DatasetError(what, where=spec.name, fix="repair the dataset, or leave these episodes out")

    def _write(self, one: Substitution) -> None:
        with self._lock:
            if one.position in self._written:  # made ahead, given up when the loader was closed, and made again
                return
            self._written.add(one.position)
            self.made.append(one)
            if self._journal is not None:
                with open(self._journal, "a") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
