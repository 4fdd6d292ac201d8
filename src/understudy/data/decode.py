"""From display positions to decoded pictures: which packets to feed, what comes out, and what may be believed.

The rules, all in integers:
- A picture is found by its tag (the display position its packet carried in), and pictures must come out without a gap,
  in display order, from the key frame the decoder was started on. A gap means damage: nothing behind it is delivered,
  because it may have been predicted from what is missing. Decoders are told to fail on damage, not to conceal it; only
  an H.264 decoder started inside a stream of open GOPs must forgive what refers to the group before.
  Damage that the codec itself cannot notice (AV1 and CABAC have no checksums) cannot be noticed here either.
- Decoding starts at the last key frame that precedes the picture in decode order *and* in display order: a leading
  picture of an open GOP needs the group before its key frame.
- A decoder stays alive between calls and is continued while that feeds no more packets than a restart would.

Not here: where packets come from (`packets.py`), colour conversion and arrays (`video.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import av
import numpy as np

from understudy.data.errors import DatasetError
from understudy.data.packets import Packets

_DECODERS = {"av1": "libdav1d"}  # FFmpeg's own "av1" decoder only drives hardware
_RECENT = 8  # pictures of a small read that are kept, so that sliding windows do not start over at a key frame
_SLACK = 32  # packets fed beyond the reordering depth before a picture is given up as missing


class PictureDecoder:
    """One live decoder over one video. Not thread-safe; the decoding itself releases the GIL."""

    def __init__(self, packets: Packets, where: str) -> None:
        index = packets.index
        self._packets, self._index, self._where = packets, index, where
        shown = np.flatnonzero(index.display >= 0)
        self.count = len(shown)
        self._sample = np.empty(self.count, np.int32)  # decode position of each display position
        self._sample[index.display[shown]] = shown
        # A frame that no later frame precedes in display waits for (decode - display) pictures; that is the maximum.
        self._reorder = int((shown - index.display[shown]).max(initial=0))
        self._context: av.VideoCodecContext | None = None
        self._strict = True
        self._next = 0  # decode position of the next packet to feed
        self._from = 0  # display position of the key frame the decoder was started on
        self._expected = 0  # display position that must come out next
        self._floor = 0  # pictures before this one are decoded but not kept
        self._ahead: dict[int, av.VideoFrame] = {}  # came out, not asked for yet
        self._recent: dict[int, av.VideoFrame] = {}  # the pictures of the last small read

    def pictures(self, wanted: np.ndarray) -> Iterator[tuple[int, av.VideoFrame]]:
        """(position, picture) for each of `wanted` (int64, increasing, without repeats, inside the video)."""
        recent, last = self._recent, int(wanted[-1]) if len(wanted) else 0
        self._recent = {}
        for position in wanted.tolist():
            frame = recent.get(position) or self._reach(position, last)
            if len(wanted) <= _RECENT:
                self._recent[position] = frame
            yield position, frame

    def _reach(self, position: int, last: int) -> av.VideoFrame:
        """Decode on until `position` comes out; start over at an earlier key frame if it is not there by then."""
        key = self._key_before(position)
        keys = self._index.keys
        if position in self._ahead or (
            self._context is not None and position >= self._expected and int(keys[key]) <= self._next
        ):
            frame, why = self._advance(position, last)
            if frame is not None:
                return frame
        # Where key frames are no clean starts (gradual refresh), what is not recovered yet is dropped: go back further.
        for start in keys[max(key - 2, 0) : key + 1][::-1].tolist():
            self._restart(start)
            frame, why = self._advance(position, last)
            if frame is not None:
                return frame
        what = f"picture {position} cannot be decoded: {why or 'the decoder does not give it out'}"
        raise DatasetError(what, where=self._where, fix="the file is damaged: copy or record it again")

    def _key_before(self, position: int) -> int:
        """Index into `keys` of the key frame to start on for this picture."""
        keys, display = self._index.keys, self._index.display
        key = int(np.searchsorted(keys, self._sample[position], side="right")) - 1
        while key > 0 and display[keys[key]] > position:
            key -= 1
        return max(key, 0)

    def _restart(self, sample: int) -> None:
        strict = self._index.codec != "h264" or not self._has_leading(sample)
        if self._context is None or strict != self._strict:
            self._context, self._strict = self._create(strict), strict
        else:
            self._context.flush_buffers()
        self._ahead.clear()
        self._next = sample
        self._from = self._expected = max(int(self._index.display[sample]), 0)

    def _has_leading(self, key: int) -> bool:
        """Whether pictures are shown before the key frame at this decode position although they come behind it."""
        after = int(np.searchsorted(self._index.keys, key, side="right"))
        end = int(self._index.keys[after]) if after < len(self._index.keys) else len(self._index.display)
        display = self._index.display[key:end]
        return bool((display[display >= 0] < display[0]).any())

    def _create(self, strict: bool) -> av.VideoCodecContext:
        name = _DECODERS.get(self._index.codec, self._index.codec)
        try:
            context = av.CodecContext.create(name, "r")
        except (ValueError, av.FFmpegError):
            what = f"is coded as {self._index.codec}, for which this PyAV has no decoder"
            raise DatasetError(what, where=self._where, fix="install PyAV's own wheel or convert the video") from None
        assert isinstance(context, av.VideoCodecContext)
        context.extradata = self._index.extradata or None
        context.thread_count = 1
        # Without has_b_frames, H.264 decoders guess the reordering depth and may drop the first pictures.
        context.options = {"has_b_frames": str(min(self._reorder, 16))} | ({"err_detect": "explode"} if strict else {})
        return context

    def _advance(self, position: int, last: int) -> tuple[av.VideoFrame | None, str]:
        """Feed packets until `position` is out; (None, why) when it will not come, with the decoder given up."""
        self._floor = position
        while position not in self._ahead:
            if self._expected > position:
                return self._give_up("it comes before the first key frame")
            if self._next >= len(self._index.display) or self._next > self._sample[position] + self._reorder + _SLACK:
                why = self._drain()
                frame = self._ahead.pop(position, None)
                if frame is None:
                    return self._give_up(why)
                return frame, ""
            why = self._feed(self._next, last)
            if why:
                frame = self._ahead.pop(position, None)
                return (frame, "") if frame is not None else self._give_up(why)
        frame = self._ahead.pop(position)
        for passed in [p for p in self._ahead if p < position]:
            del self._ahead[passed]
        return frame, ""

    def _feed(self, sample: int, last: int) -> str:
        """Give the decoder one packet and take what comes out; says what is wrong, or nothing."""
        assert self._context is not None
        until = max(sample, min(int(self._sample[last]) + self._reorder, len(self._index.display) - 1))
        packet = self._packets.packet(sample, until)
        tag = int(self._index.display[sample])
        self._next = sample + 1
        try:
            frames = self._context.decode(packet)
        except av.FFmpegError as error:
            if tag < self._from:
                return ""  # a leading picture of the open GOP we started on: not asked for, not decodable
            self._drain(sample)  # what was decoded before the damage is sound and may be what is wanted
            return f"the packet of picture {tag} is damaged ({error.strerror})"
        return self._take(frames)

    def _drain(self, before: int | None = None) -> str:
        """Take what the decoder still holds (of packets `before` this one, if given); it then needs a restart."""
        assert self._context is not None
        try:
            frames = self._context.decode(None)
            if before is not None:
                frames = [f for f in frames if f.pts is not None and f.pts >= 0 and self._sample[f.pts] < before]
            why = self._take(frames)
        except av.FFmpegError as error:
            why = f"the decoder failed at the end of the file ({error.strerror})"
        self._context = None
        return why

    def _take(self, frames: list[av.VideoFrame]) -> str:
        for frame in frames:
            tag = -1 if frame.pts is None else frame.pts
            if tag < self._from:
                continue  # leading pictures of an open GOP, and samples that are never shown
            if tag != self._expected or frame.is_corrupt:
                return f"picture {self._expected} is missing or damaged"
            if tag >= self._floor:
                self._ahead[tag] = frame
            self._expected += 1
        return ""

    def _give_up(self, why: str) -> tuple[None, str]:
        self._context = None
        self._ahead.clear()
        return None, why
