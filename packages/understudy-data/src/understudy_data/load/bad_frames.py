"""Substitution of unreadable samples: by a neighbour, the same one in every run, and never
silently.

The substitute is the first readable frame among `Order.neighbors`: later frames of the same clip,
earlier ones, then the clips behind it. All are of the same selection, so validation episodes never
enter. Whether a frame is readable depends on the files alone. So the substitute depends on the
position alone, not on ranks, threads or memory. Each substitution is counted and written to the
journal, one JSON object per line. More bad frames than the cap are an error.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from understudy_base import ConfigError, DatasetError, write_text
from understudy_data.order import Order

_ALWAYS_ALLOWED = 16  # bad frames
_TRIES = 4096
_JOURNALS = "substitutions-*.jsonl"
_FIX = "repair the dataset, or leave these episodes out"


@dataclass(frozen=True)
class Substitution:
    """One line of the journal: the sample at `position`, the reason, and its substitute."""

    position: int
    source: str
    """Name of the dataset."""
    episode: int
    frame: int
    reason: str
    instead_episode: int
    instead_frame: int

    @classmethod
    def read_journal(cls, path: Path) -> list["Substitution"]:
        """Read a journal, without a last line torn by a kill.

        Raises:
            ConfigError: another line is no substitution.
        """
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        try:
            return [cls(**json.loads(line)) for line in lines]
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{path}: a line is no substitution: {error}; restore the file"
            ) from error

    @classmethod
    def read_journals(cls, folder: Path) -> list["Substitution"]:
        """Read the journals of all ranks of a run, `substitutions-*.jsonl`, as `read_journal`
        does.
        """
        journals = [cls.read_journal(path) for path in folder.glob(_JOURNALS)]
        return list(chain.from_iterable(journals))

    @classmethod
    def truncate_journals(cls, folder: Path, position: int) -> None:
        """Remove the substitutes from `position` on from the journals of a run that resumes
        there.
        """
        for path in folder.glob(_JOURNALS):
            kept = [entry for entry in cls.read_journal(path) if entry.position < position]
            write_text(path, "".join(json.dumps(asdict(entry)) + "\n" for entry in kept))


class Substitutes:
    """Bad frames that a loader has met, and their substitutes. Thread-safe.

    Args:
        journal: file to append to, or None.
        cap: share of a source's frames that may be bad, beyond the first 16.
    """

    def __init__(self, order: Order, journal: str | Path | None, cap: float) -> None:
        self._order = order
        self._journal = journal
        self._cap = cap
        self._bad: dict[tuple[int, int, int], str] = {}  # (source, episode, frame) -> reason
        self._journaled: set[int] = set()  # positions
        self._lock = threading.Lock()
        self.made: list[Substitution] = []
        """All substitutions so far, in the sequence in which they were made."""

    def find(
        self,
        position: int,
        source: int,
        episode: int,
        frame: int,
        reason: str,
        error_of: Callable[[int, int], str | None],
    ) -> tuple[int, int]:
        """Find the substitute (episode, frame) of a bad frame.

        Args:
            error_of: reads a frame, and returns None or why it cannot be read.

        Raises:
            DatasetError: more bad frames than the cap allows, or no readable neighbour.
        """
        name = self._order.spec.sources[source].name
        frames = self._order.spec.sources[source].frames
        self._add(source, episode, frame, reason)
        for other, near in zip(*(a.tolist() for a in self._order.neighbors(position, _TRIES))):
            if (source, other, near) in self._bad:
                continue
            error = error_of(other, near)
            if error is None:
                self._write(Substitution(position, name, episode, frame, reason, other, near))
                return other, near
            self._add(source, other, near, error)
        tried = min(frames, _TRIES)
        problem = (
            f"no frame near frame {frame} of episode {episode} can be read, of {tried} "
            f"tried: {reason}"
        )
        raise DatasetError(problem, where=name, fix=_FIX)

    def _add(self, source: int, episode: int, frame: int, reason: str) -> None:
        spec = self._order.spec.sources[source]
        with self._lock:
            self._bad[source, episode, frame] = reason
            count = sum(key[0] == source for key in self._bad)
        allowed = max(_ALWAYS_ALLOWED, int(self._cap * spec.frames))
        if count > allowed:
            problem = f"{count} frames cannot be read, {allowed} are allowed; the last: {reason}"
            raise DatasetError(problem, where=spec.name, fix=_FIX)

    def _write(self, substitution: Substitution) -> None:
        with self._lock:
            # made ahead, dropped when the loader closed, and made again
            if substitution.position in self._journaled:
                return
            self._journaled.add(substitution.position)
            self.made.append(substitution)
            if self._journal is not None:
                with open(self._journal, "a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(substitution)) + "\n")
