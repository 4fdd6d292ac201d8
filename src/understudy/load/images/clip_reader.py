"""Chains: one camera of the samples of one clip that this process makes; each picture decoded once and forward only.

    the samples of the clip      s0        s1        s2        s3 ...              in the order they come
    pictures they need           7 10      8 11      9 12      10 13               windows, clamped to the episode
    each once, in file order     7 8 9 10 11 12 13 ...                             what is decoded, and no other

A sample is complete when all pictures up to its last one are out: then it waits for its turn, with its pictures. One is
held for as long as a sample to come needs it. So a sparse history decodes what it sees and not what lies between (the
decoder skips to a key frame where that is less), and the halo of a window is decoded once for all that share it.
Between two samples there are

- decoded pictures, in the decoder's own form (4:2:0, half the bytes of RGB): up to `ahead` of them, decoded in one go,
  because a decoder that goes on is quicker than one that is woken for each picture; and
- where `keep` is set, its decoder. Without it, decoders are shared: each run of pictures starts at a key frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from time import perf_counter

import numpy as np

from understudy.data.dataset import EpisodeDataset
from understudy.errors import DatasetError
from understudy.load.images.cursors import Cursor, Cursors, Picture, Pictures, write
from understudy.video.color import Converter

_PIECE = 40  # bits of a picture number; above them the place of its file among those of the chain


@dataclass
class Spent:
    """Seconds of one thread, by what they went into."""

    decode: float = 0.0
    convert: float = 0.0
    assemble: float = 0.0
    """Rows, and copies of pictures that stay decoded."""
    wait: float = 0.0
    """For room: the consumer is slower."""
    fetch: float = 0.0
    """For bytes of videos, from disk or from afar. Of fragmented mp4 and mkv they are counted as decoding."""
    pictures: int = 0
    """Pictures that came out of decoders."""


def sum_of(parts: Sequence[Spent]) -> Spent:
    """What several threads spent together."""
    return Spent(*(sum(getattr(part, f.name) for part in parts) for f in fields(Spent)))


@dataclass(frozen=True)
class Holding:
    """What the chains of a source hold between two samples: see the head of this file."""

    ahead: int
    """Pictures decoded in one go, at least; 1: none in advance; 0: nor is any kept for the next sample."""
    keep: bool
    """Whether each has its own decoder, which goes on where it stood."""
    whole: bool = False
    """Whether these are whole groups of pictures, from key frame to key frame."""
    converted: bool = False
    """Whether pictures are resized before they are held, where that makes them smaller."""


class Chain:
    """One camera's pictures of the samples of one clip, in the order of the samples.

    Args:
        positions: of the samples, n of them, as they come up.
        rows: int64 (n,), table rows of the samples.
        frames: int64 (n,) or (n, T), the frames of their windows, clamped to the episode.
        runs: pictures of the first runs, before those of `holding.ahead` (`making.first_runs` says what for); 0: what
            the sample needs and nothing ahead of it.
    """

    def __init__(
        self,
        dataset: EpisodeDataset,
        camera: str,
        positions: Sequence[int],
        rows: np.ndarray,
        frames: np.ndarray,
        holding: Holding,
        runs: Sequence[int],
        cursors: Cursors,
        converter: Converter,
    ) -> None:
        self._dataset, self._camera, self._cursors = dataset, camera, cursors
        self._converter, self._converted = converter, holding.converted
        videos = dataset.catalog.videos(camera)
        file = videos.file[rows]
        number = dataset.pictures.first(camera, rows)[:, None] + frames.reshape(len(rows), -1)
        if (file == file[0]).all():
            self._rows = [int(rows[0])]  # a row of each file
        else:
            _, first, inverse = np.unique(file, return_index=True, return_inverse=True)
            order = np.argsort(first)
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            number = number + (place[inverse.reshape(-1)].astype(np.int64) << _PIECE)[:, None]
            self._rows = rows[first[order]].tolist()
        self._positions, self._next = positions, 0  # samples that are complete come before `next`
        self._todo, inverse = np.unique(number, return_inverse=True)
        which = inverse.reshape(number.shape)  # (n, T), into todo
        self._which, self._each = which.reshape(-1).tolist(), which.shape[1]
        self._until = np.maximum.accumulate(which.max(1) + 1).tolist()
        last = np.empty(len(self._todo), np.int64)
        last[which.reshape(-1)] = np.repeat(np.arange(len(which)), which.shape[1])  # the last of equal ones stays
        by_last = np.argsort(last, kind="stable")
        cuts = np.searchsorted(last[by_last], np.arange(len(which) + 1))
        self._drop, self._cuts = by_last.tolist(), cuts.tolist()
        self._ahead, self._keep, self._runs = holding.ahead, holding.keep, list(runs)[::-1]
        self._decoded = 0  # how far into todo
        self._held: dict[int, Picture] = {}
        self._cursor: Cursor | None = None

    @property
    def due(self) -> int | None:
        """The position of the first sample whose pictures are not complete; None once all are."""
        return self._positions[self._next] if self._next < len(self._positions) else None

    def go_on(self, ready: dict[int, Pictures], spent: Spent) -> None:
        """Decode what the sample at `due` needs, and a run ahead. The pictures of each sample that is complete then, of
        this one and mostly of those that follow, go into `ready`, by position.

        Colours are left to the caller (`write_all`), who converts those of many samples on end: what takes turns on a
        core for each picture finds its code and its tables gone from the cache.

        Raises:
            DatasetError: a picture of the sample at `due` cannot be read; nothing was made ready.
        """
        begin, fetched = perf_counter(), spent.fetch
        self._decode(self._until[self._next], spent)
        at, count, held = self._next, len(self._positions), self._held
        until, decoded, drop, cuts = self._until, self._decoded, self._drop, self._cuts
        which, each = self._which, self._each
        while at < count and until[at] <= decoded:
            first = at * each
            wanted = held[which[first]] if each == 1 else [held[k] for k in which[first : first + each]]
            ready[self._positions[at]] = wanted
            for k in drop[cuts[at] : cuts[at + 1]]:
                del held[k]
            at += 1
        self._next = at
        spent.decode += perf_counter() - begin - (spent.fetch - fetched)

    def _decode(self, until: int, spent: Spent) -> None:
        """Decode on to `until` (an index into todo) at least, and as far as a run goes."""
        if self._decoded >= until:
            return
        stop = self._stop(until)
        begin = self._decoded
        while begin < stop:
            piece = int(self._todo[begin]) >> _PIECE
            end = stop
            if len(self._rows) > 1:
                end = min(stop, int(np.searchsorted(self._todo, (piece + 1) << _PIECE)))
            numbers = self._todo[begin:end] - (piece << _PIECE)
            cursor = self._cursors.take(self._dataset, self._camera, self._rows[piece], int(numbers[0]), self._cursor)
            self._cursor = None
            before = cursor.waited
            try:
                # Full-size pictures that are made smaller at once are not held by the run.
                for run in cursor.runs(numbers, 1 if self._converted else max(1, self._ahead)):
                    kept = map(self._smaller, run) if self._converted else run
                    self._held.update(zip(range(self._decoded, self._decoded + len(run)), kept))
                    self._decoded += len(run)
            except DatasetError:
                self._cursors.give(cursor)
                if self._decoded < until:
                    raise
                return  # nobody needs that picture yet; whoever does meets the error
            finally:
                spent.pictures += self._decoded - begin
                spent.fetch += cursor.waited - before
            begin = end
            if self._keep and end < len(self._todo):
                self._cursor = cursor
            else:
                self._cursors.give(cursor)

    def _smaller(self, picture: Picture) -> np.ndarray:
        out = np.empty((3, *(self._converter.size or ())), np.uint8)
        write(picture, self._converter, out)
        return out.transpose(1, 2, 0)

    def _stop(self, until: int) -> int:
        """Where the run ends that decodes up to `until`: after `ahead` pictures, and with shared decoders at a key
        frame, where the next run can begin for nothing."""
        count = len(self._todo)
        run = self._runs.pop() if self._runs else self._ahead
        stop = max(until, min(self._decoded + run, count))
        if self._keep or self._ahead <= 1 or stop == count or run == 0:
            return stop
        piece = int(self._todo[stop]) >> _PIECE
        keys = self._cursors.reader(self._dataset, self._camera, self._rows[piece]).key_frames
        return to_key_frame(self._todo, stop, self._ahead, keys, piece << _PIECE)

    def close(self) -> None:
        """Give back the decoder."""
        self._held.clear()
        if self._cursor is not None:
            self._cursors.give(self._cursor)
            self._cursor = None


def to_key_frame(todo: np.ndarray, stop: int, most: int, keys: np.ndarray, base: int) -> int:
    """Where a run of a shared decoder ends that should end at `stop`: at the key frame behind it, so that the next run
    begins for nothing, unless that is `most` pictures away or more.

    Args:
        todo: int64 (n,), increasing, what is decoded, numbered as the file's pictures plus `base`; stop: a place in it.
        keys: int64 (k,), the file's key frames.
    """
    number = int(todo[stop]) - base
    following = int(np.searchsorted(keys, number))
    key = int(keys[following]) if following < len(keys) else number
    aligned = int(np.searchsorted(todo, key + base))
    return aligned if aligned - stop < most else stop
