"""From display positions to decoded frames: which packets to feed, and which output to trust.

The rules, all in integers:
- A frame is identified by its tag, the display position that its packet carried in. Frames must
  come out without a gap, in display order, from the key frame on which the decoder was started. A
  gap means damage: nothing after it is delivered, because it may have been predicted from a missing
  frame. Decoders are set to fail on damage, not to conceal it. Only an H.264 decoder started inside
  a stream of open GOPs must forgive references to the group before. Damage that the codec itself
  cannot notice (AV1 and CABAC have no checksums) cannot be noticed here either.
- `Gops` says where decoding starts. Groups that hold no wanted frame are not decoded.
- A decoder stays alive between calls, and continues while that feeds no more packets than a restart
  would. `park` returns its codec context to the pool for the next video of the same kind in this
  thread (`codec_pool.py`).

One frame costs a few microseconds of Python on top of the codec; everything heavier runs without
the GIL.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import chain

import av
import numpy as np

from understudy_base import DataAccessError, DatasetError
from understudy_data.storage.cancel import Cancelled, is_cancelled
from understudy_data.video.codec_pool import (
    CodecKey,
    PooledContext,
    borrow,
    decoder_bytes,
    frame_bytes,
    give_back,
)
from understudy_data.video.native.loops import decode_packets, load_loops
from understudy_data.video.orientation import turn_frame
from understudy_data.video.packets import Packets
from understudy_data.video.parameter_sets import InBand

# frames of a small read that are kept, so that sliding windows do not restart at a key frame
_RECENT = 8
# packets fed at once on the way to the first wanted frame: as many frames are held, and dropped
_APPROACH = 8
_SLACK = 32  # packets fed beyond the reordering depth before a frame counts as missing


def _turned(frames: list[av.VideoFrame], turns: int) -> list[av.VideoFrame]:
    return [turn_frame(frame, turns) for frame in frames] if turns else frames


class FrameDecoder:
    """A `VideoCursor` over one video, with at most one live decoder. For one thread at a time.

    Many decoders may read one video, from as many threads, where each has its own `Packets`.

    Args:
        packets: packets of the video.
        where: name of the video in errors.
        keep_recent: whether the frames of a small read are kept for the next one: for windows that
            slide.
        pixel_format: the only format, by FFmpeg's name, that frames may have; "": any.
    """

    def __init__(
        self, packets: Packets, where: str, keep_recent: bool = False, pixel_format: str = ""
    ) -> None:
        load_loops()  # its warning or error comes before the first frame
        index = packets.index
        self._packets = packets
        self._index = index
        self._gops = index.gops
        self._where = where
        self._keep_recent = keep_recent
        self._only = pixel_format
        # Single numbers are read from these. A memoryview returns them three times faster than an
        # array.
        self._display = index.display.data
        self._decode_position = index.decode_position.data
        self._reorder = index.reorder
        self.position = -1
        self._key = CodecKey.from_index(index)
        self._context: av.VideoCodecContext | None = None
        self._context_bytes = 0  # size of the context when it was borrowed
        self._pixel_format = ""  # of the frames that the context has output
        # largest number of frames that were out at once; the context keeps their memory
        self._most_frames = 0
        self._in_band = InBand(index.codec, index.extradata)
        # packets bring parameter sets: groups are kept apart
        self._sets_change = self._in_band.always
        self._next = 0  # decode position of the next packet to feed
        self._start = 0  # decode position of the key frame on which the decoder was started
        self._first = 0  # its display position
        self._expected = 0  # display position of the next frame to come out
        self._ahead: dict[int, av.VideoFrame] = {}  # frames that came out and are not delivered yet
        self._recent: dict[int, av.VideoFrame] = {}  # frames of the last small read

    @property
    def wait_seconds(self) -> float:
        """See `VideoCursor.wait_seconds`."""
        return self._packets.wait_seconds

    @cached_property
    def decoder_bytes(self) -> int:
        """Memory of this decoder while it is live, as `codec_pool.decoder_bytes` estimates it."""
        return decoder_bytes(self._index)

    def frames(
        self, positions: np.ndarray, run_length: int = 1
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """Decode like `runs`, and yield (position, frame) one by one."""
        return zip(positions.tolist(), chain.from_iterable(self.runs(positions, run_length)))

    def runs(self, positions: np.ndarray, run_length: int = 1) -> Iterator[list[av.VideoFrame]]:
        """See `VideoCursor.runs`. A frame holds 1.5 bytes a pixel, and is turned as it is shown.

        Raises:
            DatasetError: a frame cannot be decoded, or has another size than the file declares, or
                another format.
            Stopped: this thread's work was cancelled.
        """
        numbers = positions.tolist()
        recent = self._recent
        self._recent = {}
        if numbers:
            self.position = numbers[-1] + 1
        limits = self._gops.packet_limits(positions) if numbers else []
        height = self._index.height
        width = self._index.width
        turns = self._index.shown.turns
        keep = self._keep_recent and len(numbers) <= _RECENT
        done = 0
        while done < len(numbers):
            position = numbers[done]
            read_limit = limits[done]
            run = [recent[position]] if position in recent else []
            if not run and not self._sets_change and (run_length > 1 or position == self._expected):
                run = self._decode_run(numbers[done : done + run_length], read_limit, run_length)
            if not run:
                run = [self._decode_to(position, read_limit)]
            for number, frame in enumerate(run):
                if frame.height != height or frame.width != width:
                    if number:
                        yield _turned(run[:number], turns)
                    size = f"{frame.width}x{frame.height}"
                    problem = (
                        f"frame {position + number} is {size}, the file declares {width}x{height}"
                    )
                    raise DatasetError(
                        problem, where=self._where, fix="split the file where the size changes"
                    )
            if self._only and (
                odd := next((f.format.name for f in run if f.format.name != self._only), None)
            ):
                problem = f"frames are {odd}, and depth like this is read from {self._only}"
                raise DatasetError(
                    problem, where=self._where, fix="record it again, or leave the camera out"
                )
            if keep:
                self._recent.update(zip(numbers[done:], run))
            done += len(run)
            yield _turned(run, turns)

    def park(self) -> None:
        """See `VideoCursor.park`."""
        self.position = -1
        if self._context is not None:
            self._return_context()
        self._context = None
        self._ahead.clear()
        self._recent = {}

    def _return_context(self) -> None:
        # first: after a Ctrl-C it must not be here and in the pool
        context = self._context
        self._context = None
        assert context is not None
        if self._sets_change:
            return
        estimate = self.decoder_bytes + self._most_frames * frame_bytes(self._index)
        give_back(
            self._key,
            PooledContext(context, max(self._context_bytes, estimate), self._pixel_format),
        )
        self._most_frames = 0

    def _decode_run(
        self, positions: list[int], read_limit: int, run_length: int
    ) -> list[av.VideoFrame]:
        """Decode those of `positions` that come out with the next packets, from the first on
        without a gap.

        The work on each frame is done outside the interpreter (`video/native/loops.py`). After an
        error the run is shorter, or empty: `_decode_to` then meets the same packet again and
        raises.
        """
        position = positions[0]
        ahead = self._ahead
        packets = self._packets
        count = len(positions)
        if positions[-1] - position >= count:  # with gaps
            count = next(i for i in range(count) if positions[i] != position + i)
        if position not in ahead:
            if not self._can_continue(position):
                self._restart(self._gops.start(position))
            ahead.clear()
        context = self._context
        reason = ""
        stop = min(positions[count - 1] + self._reorder, read_limit) + 1
        while (
            context is not None
            and not reason
            and self._expected < position + count
            and self._next < stop
        ):
            # checked here because the way to a frame in a long group takes seconds
            if is_cancelled():
                raise Cancelled
            first = self._next
            most = run_length if self._expected >= position else min(run_length, _APPROACH)
            try:
                run = packets.run(first, min(first + most, stop), read_limit)
            except DataAccessError:
                if position in ahead:
                    break  # a later call that needs these bytes meets the error again
                raise
            plain = self._in_band.count_plain(run)
            if not plain:
                break  # `_decode_to` handles that packet
            run = run._replace(stop=run.first + plain)
            # Set before decoding: a Ctrl-C meanwhile leaves a gap, and no packet is fed twice.
            self._next = first + run.stop - run.first
            frames, fed, failed = decode_packets(context, run, self._pixel_format)
            if failed:
                self._pixel_format = ""
            elif frames:
                self._pixel_format = frames[-1].format.name
            reason = self._accept(frames, position)
            self._most_frames = max(self._most_frames, len(frames), len(ahead))
            # those on the way are free before the next are decoded, or the context would get more
            # memory
            del frames
            if failed and not reason:
                fed = min(fed, run.stop - run.first - 1)
                self._next = first + fed + 1
                # A leading frame of the open GOP at the start is not wanted, and cannot be decoded.
                reason = "damaged" if self._display[first + fed] >= self._first else ""
        decoded = [ahead.pop(p) for p in positions[:count] if p in ahead]
        if reason:
            self._fail(reason)
        return decoded

    def _can_continue(self, position: int) -> bool:
        """Whether a live decoder reaches `position` with no more packets than a new one."""
        if self._context is None or position < self._expected:
            return False
        # this group's parameter sets stay in the decoder, so the next group gets another one
        if self._sets_change:
            return self._gops.start(position) == self._start
        return position == self._expected or self._gops.start(position) <= self._next

    def _decode_to(self, position: int, read_limit: int) -> av.VideoFrame:
        """Decode on until `position` comes out. If it does not, restart at earlier key frames."""
        frame = self._ahead.pop(position, None)
        if frame is not None:
            return frame
        reason = ""
        if self._can_continue(position):
            frame, reason = self._advance(position, read_limit)
            if frame is not None:
                return frame
        for start in self._gops.restarts(position):
            self._restart(start)
            frame, reason = self._advance(position, read_limit, fresh=True)
            if frame is not None:
                return frame
        problem = (
            f"frame {position} cannot be decoded: {reason or 'the decoder does not output it'}"
        )
        raise DatasetError(
            problem, where=self._where, fix="the file is damaged: copy or record it again"
        )

    def _restart(self, start: int) -> None:
        strict = self._index.codec != "h264" or not self._gops.has_leading(start)
        # Taken out first: after a Ctrl-C there is no context, and not one that lost its frames.
        context = self._context
        self._context = None
        if context is None or strict != self._key.strict or self._sets_change:
            self._key = self._key._replace(strict=strict)
            context, self._context_bytes, self._pixel_format = borrow(self._key, self._where)
        else:
            context.flush_buffers()
        self._ahead.clear()
        self._next = self._start = start
        self._first = self._expected = max(self._display[start], 0)
        self._context = context

    def _advance(
        self, position: int, read_limit: int, fresh: bool = False
    ) -> tuple[av.VideoFrame | None, str]:
        """Feed packets until `position` is out; (None, reason) where it will not come, with the
        decoder dropped.

        Args:
            position: display position of the wanted frame.
            read_limit: bytes are read up to this decode position.
            fresh: whether the decoder was just started for this frame.
        """
        assert self._context is not None
        ahead = self._ahead
        reason = ""
        packet = self._packets.packet
        decode = self._context.decode
        last = min(self._decode_position[position] + self._reorder + _SLACK, len(self._display) - 1)
        while position not in ahead and not reason:
            if self._expected > position:
                return self._fail("it comes before the first key frame")
            following = self._next
            # checked here because the way to a frame in a long group takes seconds
            if is_cancelled():
                raise Cancelled
            if following > last:
                reason = self._drain(position) or "the decoder does not output it"
                break
            limit = read_limit if read_limit > following else following
            fed = packet(following, limit)
            self._next = following + 1
            data = bytes(fed)
            if not self._sets_change and self._in_band.changes(data):
                self._sets_change = True
                if not fresh:
                    # the group is decoded anew, as if it came first
                    return self._fail("its parameter sets change")
            if self._in_band.is_empty(data):
                reason = (
                    f"the packet of frame {self._display[following]} is damaged (it holds no "
                    "coded frame)"
                )
                break
            try:
                frames = decode(fed)
            except av.FFmpegError as error:
                tag = self._display[following]
                if tag < self._first:
                    # a leading frame of the open GOP at the start: not wanted, not decodable
                    continue
                # frames decoded before the damage are sound and may be wanted
                self._drain(position, following)
                reason = f"the packet of frame {tag} is damaged ({error.strerror})"
                break
            if (
                len(frames) == 1
                and frames[0].pts == position == self._expected
                and not frames[0].is_corrupt
            ):
                self._expected = position + 1  # one packet in, one frame out: the usual case
                return frames[0], ""
            reason = self._accept(frames, position)
        frame = ahead.pop(position, None)
        if frame is None:
            return self._fail(reason)
        if ahead:
            for passed in [p for p in ahead if p < position]:
                del ahead[passed]
        return frame, ""

    def _accept(self, frames: list[av.VideoFrame], floor: int) -> str:
        """Store frames by position, from `floor` on; returns an error text, or nothing."""
        for frame in frames:
            tag = frame.pts
            if tag is None or tag < self._first:
                continue  # leading frames of an open GOP, and packets that are never shown
            if tag != self._expected or frame.is_corrupt:
                return f"frame {self._expected} is missing or damaged"
            if tag >= floor:
                self._ahead[tag] = frame
            self._expected = tag + 1
        return ""

    def _drain(self, floor: int, before: int | None = None) -> str:
        """Accept the frames that the decoder still holds; it then needs a restart. Returns an error
        text, or nothing.

        Args:
            floor: display position of the first frame to store.
            before: decode position; only frames of earlier packets are accepted.
        """
        assert self._context is not None
        try:
            frames = self._context.decode(None)
            if before is not None:
                frames = [
                    f
                    for f in frames
                    if f.pts is not None and f.pts >= 0 and self._decode_position[f.pts] < before
                ]
            reason = self._accept(frames, floor)
        except av.FFmpegError as error:
            reason = f"the decoder failed at the end of the file ({error.strerror})"
        if before is None and not reason:
            self._return_context()
        self._context = None
        return reason

    def _fail(self, reason: str) -> tuple[None, str]:
        self._context = None
        self._ahead.clear()
        return None, reason
