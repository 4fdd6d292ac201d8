"""Clip lanes: the order of one source, as a bijection in closed form.

    the line of N frames               | clip 0 | clip 1 | clip 2 | ... | short | S frames each
      (frame_numbering.py)
    the clips in a random order        | clip 7 | clip 2 | short | clip 9 | ...   keyed by epoch
    turned by a random shift, then cut |    lane 0    |    lane 1    | ... | lane V-1 |
    and read across the lanes          position p of the epoch = frame p div V of lane p mod V

Each step is a bijection, so an epoch holds every frame exactly once. V consecutive positions touch
V lanes, so at most V clips are open. With V >= the batch size the samples of a batch lie in
different clips (except for the two sides of a lane cut). The shift makes every position equally
likely to hold every frame. Sequential, uniform and episode order are settings: no shuffling; S = V
= 1; S as long as an episode.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from understudy_data.order.random import (
    Feistel,
    Sorted,
    Words,
    make_key,
    permutation,
    permute_each,
    unpermute_each,
)

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Lanes:
    """Order of one source: `frames` = N, `clip` = S, `lanes` = V, all at least 1.

    `source` is its number in the run, part of its keys. `shuffle` False is storage order. `inside`
    is the order inside a clip: "sequential" or "permuted".
    """

    seed: int
    source: int
    frames: int
    clip: int
    lanes: int
    shuffle: bool
    inside: str

    def line(self, index: Words) -> Words:
        """Line numbers uint64 (n,) below N of stream indices uint64 (n,): 0, 1, 2, ... over all
        epochs.
        """
        epoch, p = self.split(index)
        return self._by_epoch(epoch, p, self._forward) if self.shuffle else p

    def split(self, index: Words) -> tuple[Words, Words]:
        """Epoch, and index inside the epoch, of stream indices uint64 (n,)."""
        epoch = index // np.uint64(self.frames)
        return epoch, index - epoch * np.uint64(self.frames)

    def index(self, line: int, epoch: int) -> int:
        """Stream index of line number `line` in `epoch`."""
        p = self._backward(epoch, np.array([line], np.uint64))[0] if self.shuffle else line
        return epoch * self.frames + int(p)

    def lane(self, index: Words) -> Words:
        """Lane 0..V-1 of stream indices uint64 (n,)."""
        return self.split(index)[1] % np.uint64(self.lanes)

    def rest_of_clip(self, index: int, most: int) -> tuple[Words, Words]:
        """Stream indices from `index` on in its epoch, lane and clip, and their line numbers:
        uint64 (k,) each.

        They are in their sequence. An unshuffled line is one clip. k is at most `most`.
        """
        epoch, p = divmod(index, self.frames)
        first: int | None = p
        if not self.shuffle:
            count = self.frames - p
        elif self.clip == 1:
            count = 1
            first = None
        else:
            i, lane = divmod(p, self.lanes)
            length, longer = divmod(self.frames, self.lanes)
            of = _epoch(self, epoch)
            q = (lane * length + min(lane, longer) + i + of.shift) % self.frames
            behind = of.missing if q >= of.edge else 0
            rank, offset = divmod(q + behind, self.clip)
            end = (rank + 1) * self.clip - behind
            end = min(end, of.edge) if of.missing and not behind else end
            count = min(end - q, length + (lane < longer) - i)
            clip = int(of.clips.forward(np.array([rank], np.uint64))[0])
            first = clip * self.clip + offset if self.inside == "sequential" else None
        steps = np.arange(min(count, most), dtype=np.uint64)
        step = self.lanes if self.shuffle else 1
        indices = np.uint64(index) + steps * np.uint64(step)
        if first is None:
            return indices, self.line(indices)
        return indices, np.uint64(first) + steps

    def _by_epoch(self, epoch: Words, p: Words, step: Callable[[int, Words], Words]) -> Words:
        """Apply `step(epoch, p)` to the elements of each epoch; nearly every call has one or two
        epochs.
        """
        if not len(p) or (epoch[0] == epoch[-1] and epoch.min() == epoch.max()):
            return step(int(epoch[0]), p) if len(p) else p
        out = np.empty_like(p)
        by_epoch = np.argsort(epoch, kind="stable")
        for group in np.split(by_epoch, np.flatnonzero(np.diff(epoch[by_epoch])) + 1):
            out[group] = step(int(epoch[group[0]]), p[group])
        return out

    def _forward(self, epoch: int, p: Words) -> Words:
        n = np.uint64(self.frames)
        s = np.uint64(self.clip)
        of = _epoch(self, epoch)
        q = p
        if self.lanes > 1:
            length, longer = divmod(self.frames, self.lanes)
            q = p // np.uint64(self.lanes)
            lane = p - q * np.uint64(self.lanes)
            q += lane * np.uint64(length)
            q += np.minimum(lane, np.uint64(longer))
        q = q + np.uint64(of.shift)
        np.minimum(q, q - n, out=q)  # modulo n: below n, q - n wraps to a huge number
        if self.clip == 1:
            return of.clips.forward(q)
        if of.missing:
            q += (q >= np.uint64(of.edge)) * np.uint64(of.missing)
        rank = q // s
        offset = q - rank * s
        clip = of.clips.forward(rank)
        if self.inside == "permuted":
            offset = permute_each(offset, self._sizes(clip), self._clip_keys(epoch, clip))
        clip *= s
        clip += offset
        return clip

    def _backward(self, epoch: int, line: Words) -> Words:
        n = np.uint64(self.frames)
        s = np.uint64(self.clip)
        of = _epoch(self, epoch)
        clip = line // s
        offset = line - clip * s
        if self.inside == "permuted" and self.clip > 1:
            offset = unpermute_each(offset, self._sizes(clip), self._clip_keys(epoch, clip))
        q = of.clips.inverse(clip) * s + offset
        if of.missing:
            q -= (q >= np.uint64(of.edge)) * np.uint64(of.missing)
        q = q - np.uint64(of.shift)
        np.minimum(q, q + n, out=q)
        if self.lanes == 1:
            return q
        length, longer = (np.uint64(x) for x in divmod(self.frames, self.lanes))
        # frames in the first `longer` lanes, which hold one more each
        in_longer = longer * (length + np.uint64(1))
        tail = np.maximum(q, in_longer) - in_longer
        lane = np.where(
            q < in_longer, q // (length + np.uint64(1)), longer + tail // max(length, np.uint64(1))
        )
        start = lane * length + np.minimum(lane, longer)
        return (q - start) * np.uint64(self.lanes) + lane

    def _sizes(self, clip: Words) -> Words:
        last = -(-self.frames // self.clip) - 1
        return np.where(
            clip == np.uint64(last), np.uint64(self.frames - last * self.clip), np.uint64(self.clip)
        )

    def _clip_keys(self, epoch: int, clip: Words) -> Words:
        """64-bit key of each clip in an epoch: the SplitMix64 stream of the epoch's key, at the
        clip's number.
        """
        z = (clip + np.uint64(1)) * _GAMMA
        z += np.uint64(make_key(self.seed, "inside", self.source, epoch))
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        return z


@dataclass(frozen=True)
class _Epoch:
    """Shift and clip permutation of an epoch, and the hole behind its short clip.

    If all clips were full, those read after the short one would start at `edge`, `missing` later
    than they do.
    """

    shift: int
    clips: Sorted | Feistel
    edge: int
    missing: int


@lru_cache(maxsize=64)
def _epoch(lanes: Lanes, epoch: int) -> _Epoch:
    clips = -(-lanes.frames // lanes.clip)
    shift = make_key(lanes.seed, "shift", lanes.source, epoch) % lanes.frames
    order = permutation(clips, make_key(lanes.seed, "clip", lanes.source, epoch))
    short = lanes.frames - (clips - 1) * lanes.clip
    if short == lanes.clip:
        return _Epoch(shift, order, 0, 0)
    rank = int(order.inverse(np.array([clips - 1], np.uint64))[0])
    return _Epoch(shift, order, rank * lanes.clip + short, lanes.clip - short)
