"""From display positions to decoded pictures: which packets to feed, what comes out, and what may be believed.

The rules, all in integers:
- A picture is found by its tag (the display position its packet carried in), and pictures must come out without a gap,
  in display order, from the key frame the decoder was started on. A gap means damage: nothing behind it is delivered,
  because it may have been predicted from what is missing. Decoders are told to fail on damage, not to conceal it; only
  an H.264 decoder started inside a stream of open GOPs must forgive what refers to the group before.
  Damage that the codec itself cannot notice (AV1 and CABAC have no checksums) cannot be noticed here either.
- Decoding starts at the last key frame that precedes the picture in decode order *and* in display order: a leading
  picture of an open GOP needs the group before its key frame. Groups that hold nothing wanted are not decoded.
- A decoder stays alive between calls and is continued while that feeds no more packets than a restart would. `park`
  hands its codec context to the next one that decodes the same kind of video in this thread (`codec_pool.py`).

One picture costs a few microseconds of Python beside the codec; everything heavier runs without the GIL.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import chain

import av
import numpy as np

from understudy.cancel import Stopped, is_gone
from understudy.errors import DatasetError
from understudy.video.codec_pool import Kind, borrow, give_back, live_bytes, picture_bytes
from understudy.video.native.loops import compiled, decode
from understudy.video.packets import Packets
from understudy.video.parameter_sets import InBand

_RECENT = 8  # pictures of a small read that are kept, so that sliding windows do not start over at a key frame
_APPROACH = 8  # packets fed at once on the way to what is wanted: so many pictures are there, and dropped
_SLACK = 32  # packets fed beyond the reordering depth before a picture is given up as missing


class PictureDecoder:
    """A forward cursor over one video, with at most one live decoder. Not thread-safe.

    Many decoders may read one video, from as many threads, where each has `Packets` of its own or is the only one that
    uses them at a time.
    """

    def __init__(self, packets: Packets, where: str) -> None:
        compiled()  # what is said or refused about it comes before the first picture
        index = packets.index
        self._packets, self._index, self._where = packets, index, where
        self.count = index.count
        # Single numbers are read from these; a memoryview gives them three times faster than an array.
        self._display, self._keys = index.display.data, index.keys.data
        self._sample, self._reorder = index.sample.data, index.reorder
        self._context: av.VideoCodecContext | None = None
        self._kind = Kind(index.codec, index.extradata, min(self._reorder, 16), True, index.height * index.width)
        self._next = 0  # decode position of the next packet to feed
        self._from = 0  # display position of the key frame the decoder was started on
        self._expected = 0  # display position that must come out next
        self._ahead: dict[int, av.VideoFrame] = {}  # came out, not asked for yet
        self._recent: dict[int, av.VideoFrame] = {}  # the pictures of the last small read
        self._form = ""  # pixel format of what the context has given out
        self._in_band = InBand(index.codec, index.extradata)
        self._changes = self._in_band.always  # packets bring parameter sets of their own, so groups are kept apart
        self._start = 0  # decode position of the key frame the decoder was started on
        self._held, self._most = 0, 0  # bytes the context came with, and pictures that were out at once: it keeps both

    @cached_property
    def live_bytes(self) -> int:
        """What a decoder of this video takes while it is live, as `contexts.live_bytes` estimates it."""
        return live_bytes(self._index)

    def pictures(self, wanted: np.ndarray, at_once: int = 1) -> Iterator[tuple[int, av.VideoFrame]]:
        """(position, picture) for each of `wanted`, as `runs` gives them and with what it raises."""
        return zip(wanted.tolist(), chain.from_iterable(self.runs(wanted, at_once)))

    def runs(self, wanted: np.ndarray, at_once: int = 1) -> Iterator[list[av.VideoFrame]]:
        """The pictures at `wanted` (int64, increasing, without repeats, inside the video), in lists of those that came
        out together.

        A picture may be kept as long as one likes, in any thread: it holds its own memory, 1.5 bytes a pixel. Up to
        `at_once` of them are decoded before the first is handed on, which is quicker and takes memory for so many.

        Raises:
            DatasetError: a picture cannot be decoded, or has another size than the file says; names it.
            Stopped: the one this thread works for has gone (`cancel.give_up_when`); asked before each run of packets.
        """
        positions = wanted.tolist()
        recent, self._recent = self._recent, {}
        untils = self._untils(wanted) if positions else []
        height, width, few = self._index.height, self._index.width, len(positions) <= _RECENT
        at = 0
        while at < len(positions):
            position, until = positions[at], untils[at]
            made = [recent[position]] if position in recent else []
            if not made and not self._changes and (at_once > 1 or position == self._expected):
                made = self._run(positions[at : at + at_once], until, at_once)
            if not made:
                made = [self._reach(position, until)]
            for number, frame in enumerate(made):
                if frame.height != height or frame.width != width:
                    if number:
                        yield made[:number]
                    size = f"{frame.width}x{frame.height}"
                    what = f"picture {position + number} is {size}, the file says {width}x{height}"
                    raise DatasetError(what, where=self._where, fix="split the file where the size changes")
            if few:
                self._recent.update(zip(positions[at:], made))
            at += len(made)
            yield made

    def _untils(self, wanted: np.ndarray) -> list[int]:
        """Of each of `wanted`, how far in decode order its reader will surely go on: bytes are read that far at once.
        To the last one, or to where the next lies in another group, behind pictures that nobody wants. A decoder that
        holds back `reorder` pictures gives one out when so many more than are shown before it were fed."""
        last = len(self._display) - 1
        if int(wanted[-1] - wanted[0]) < len(wanted):  # no gap, as nearly always
            return [min(int(wanted[-1]) + self._reorder, last)] * len(wanted)
        decoded = self._index.sample[wanted]
        group = np.searchsorted(self._index.keys, decoded, side="right")
        ends = np.append(np.flatnonzero((np.diff(group) != 0) & (np.diff(wanted) > 1)), len(wanted) - 1)
        end = ends[np.searchsorted(ends, np.arange(len(wanted)))]
        return np.minimum(wanted[end] + self._reorder, last).tolist()

    def forget(self) -> None:
        """Let go of the pictures of the last read, which are kept for sliding windows."""
        self._recent = {}

    def park(self) -> None:
        """Let go of decoder and pictures; the next call begins anew at a key frame."""
        if self._context is not None:
            self._hand_on()
        self._context = None
        self._ahead.clear()
        self._recent = {}

    def _hand_on(self) -> None:
        context, self._context = self._context, None  # first: a Ctrl-C must not leave it to two
        assert context is not None
        if self._changes:
            return
        taken = self.live_bytes + self._most * picture_bytes(self._index)
        give_back(self._kind, context, max(self._held, taken), self._form)
        self._most = 0

    def _run(self, positions: list[int], until: int, at_once: int) -> list[av.VideoFrame]:
        """Those of `positions` that come out with the next packets, from the first on without a gap.
        What has to be done for each picture is done outside the interpreter (`video/native/loops.py`).

        Where something is wrong, there are fewer, or none: `_reach` then comes here again, and says what it is.
        """
        position, ahead, packets = positions[0], self._ahead, self._packets
        count = len(positions)
        if positions[-1] - position >= count:  # with gaps
            count = next(i for i in range(count) if positions[i] != position + i)
        if position not in ahead:
            if not self._goes_on(position):
                self._restart(self._keys[self._key_before(position)])
            ahead.clear()
        context, why = self._context, ""
        stop = min(positions[count - 1] + self._reorder, until) + 1
        while context is not None and not why and self._expected < position + count and self._next < stop:
            if is_gone():  # the way to a picture in a long group takes seconds
                raise Stopped
            first = self._next
            most = at_once if self._expected >= position else min(at_once, _APPROACH)
            try:
                coded = packets.several(first, min(first + most, stop), until)
            except DatasetError:
                if position in ahead:
                    break  # whoever needs more meets it again
                raise
            plain = self._in_band.plain(coded)
            if not plain:
                break  # `_reach` comes to that packet
            coded = coded._replace(stop=coded.first + plain)
            # At once: a Ctrl-C on the way leaves a gap, and none is fed twice.
            self._next = first + coded.stop - coded.first
            frames, fed, failed = decode(context, coded, self._form)
            self._form = "" if failed else frames[-1].format.name if frames else self._form
            why = self._take(frames, position)
            self._most = max(self._most, len(frames), len(ahead))
            if failed and not why:
                fed = min(fed, coded.stop - coded.first - 1)
                self._next = first + fed + 1
                # A leading picture of the open GOP we started on is not asked for, and cannot be decoded.
                why = "damaged" if self._display[first + fed] >= self._from else ""
        made = [ahead.pop(p) for p in positions[:count] if p in ahead]
        if why:
            self._give_up(why)
        return made

    def _goes_on(self, position: int) -> bool:
        """Whether the live decoder, if there is one, comes to `position` with no more packets than a new one."""
        if self._context is None or position < self._expected:
            return False
        if self._changes:  # what this group brought stays in the decoder: the next one gets another
            return self._keys[self._key_before(position)] == self._start
        return position == self._expected or self._keys[self._key_before(position)] <= self._next

    def _reach(self, position: int, until: int) -> av.VideoFrame:
        """Decode on until `position` comes out; start over at an earlier key frame if it is not there by then."""
        frame = self._ahead.pop(position, None)
        if frame is not None:
            return frame
        why = ""
        if self._goes_on(position):
            frame, why = self._advance(position, until)
            if frame is not None:
                return frame
        key = self._key_before(position)
        # Where key frames are no clean starts (gradual refresh), what is not recovered yet is dropped: go back further.
        for earlier in range(key, max(key - 3, -1), -1):
            self._restart(self._keys[earlier])
            frame, why = self._advance(position, until, begun=True)
            if frame is not None:
                return frame
        what = f"picture {position} cannot be decoded: {why or 'the decoder does not give it out'}"
        raise DatasetError(what, where=self._where, fix="the file is damaged: copy or record it again")

    def _key_before(self, position: int) -> int:
        """Index into the key frames of the one to start on for this picture."""
        keys, display = self._keys, self._display
        key = bisect_right(keys, self._sample[position]) - 1
        while key > 0 and display[keys[key]] > position:
            key -= 1
        return max(key, 0)

    def _restart(self, sample: int) -> None:
        strict = self._index.codec != "h264" or not self._has_leading(sample)
        # A Ctrl-C on the way leaves none, and not one that has forgotten its pictures.
        context, self._context = self._context, None
        if context is None or strict != self._kind.strict or self._changes:
            self._kind = self._kind._replace(strict=strict)
            context, self._held, self._form = borrow(self._kind, self._where)
        else:
            context.flush_buffers()
        self._ahead.clear()
        self._next = self._start = sample
        self._from = self._expected = max(self._display[sample], 0)
        self._context = context

    def _has_leading(self, key: int) -> bool:
        """Whether pictures are shown before the key frame at this decode position although they come behind it."""
        if self._reorder == 0:
            return False
        after = bisect_right(self._keys, key)
        end = self._keys[after] if after < len(self._keys) else len(self._display)
        display = self._index.display[key:end]
        return bool((display[display >= 0] < display[0]).any())

    def _advance(self, position: int, until: int, begun: bool = False) -> tuple[av.VideoFrame | None, str]:
        """Feed packets until `position` is out; (None, why) when it will not come, with the decoder given up.

        until: how far the caller will surely go on, in decode order; bytes are read that far. begun: at a key frame,
        just now, for this picture.
        """
        assert self._context is not None
        ahead, why = self._ahead, ""
        packet, decode = self._packets.packet, self._context.decode
        last = min(self._sample[position] + self._reorder + _SLACK, len(self._display) - 1)
        while position not in ahead and not why:
            if self._expected > position:
                return self._give_up("it comes before the first key frame")
            sample = self._next
            if is_gone():  # the way to a picture in a long group takes seconds
                raise Stopped
            if sample > last:
                why = self._drain(position) or "the decoder does not give it out"
                break
            fed = packet(sample, until if until > sample else sample)
            self._next = sample + 1
            coded = bytes(fed)
            if not self._changes and self._in_band.changes(coded):
                self._changes = True
                if not begun:
                    return self._give_up("its parameter sets change")  # the group is begun anew, as if it came first
            if self._in_band.is_empty(coded):
                why = f"the packet of picture {self._display[sample]} is damaged (it holds no picture)"
                break
            try:
                frames = decode(fed)
            except av.FFmpegError as error:
                tag = self._display[sample]
                if tag < self._from:
                    continue  # a leading picture of the open GOP we started on: not asked for, not decodable
                self._drain(position, sample)  # what was decoded before the damage is sound and may be what is wanted
                why = f"the packet of picture {tag} is damaged ({error.strerror})"
                break
            if len(frames) == 1 and frames[0].pts == position == self._expected and not frames[0].is_corrupt:
                self._expected = position + 1  # one in, one out, as nearly always
                return frames[0], ""
            why = self._take(frames, position)
        frame = ahead.pop(position, None)
        if frame is None:
            return self._give_up(why)
        if ahead:
            for passed in [p for p in ahead if p < position]:
                del ahead[passed]
        return frame, ""

    def _take(self, frames: list[av.VideoFrame], floor: int) -> str:
        """Keep what came out in its place, from position `floor` on; says what is wrong, or nothing."""
        for frame in frames:
            tag = frame.pts
            if tag is None or tag < self._from:
                continue  # leading pictures of an open GOP, and samples that are never shown
            if tag != self._expected or frame.is_corrupt:
                return f"picture {self._expected} is missing or damaged"
            if tag >= floor:
                self._ahead[tag] = frame
            self._expected = tag + 1
        return ""

    def _drain(self, floor: int, before: int | None = None) -> str:
        """Take what the decoder still holds (of packets `before` this one, if given); it then needs a restart."""
        assert self._context is not None
        try:
            frames = self._context.decode(None)
            if before is not None:
                frames = [f for f in frames if f.pts is not None and f.pts >= 0 and self._sample[f.pts] < before]
            why = self._take(frames, floor)
        except av.FFmpegError as error:
            why = f"the decoder failed at the end of the file ({error.strerror})"
        if before is None and not why:
            self._hand_on()
        self._context = None
        return why

    def _give_up(self, why: str) -> tuple[None, str]:
        self._context = None
        self._ahead.clear()
        return None, why
