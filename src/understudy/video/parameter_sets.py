"""What coded pictures bring along besides themselves: parameter sets inside packets, which a decoder keeps.

A file's parameter sets (sizes, colours, how bits are read) belong into its index, where a decoder gets them first.
Packets may carry some as well. A decoder believes the latest and keeps them when it is emptied, so the pictures of its
next video, or of an earlier place in this one, would depend on what was decoded before. `InBand.plain` finds the
packets that carry parameter sets other than those of the index; `decoder.py` uses no decoder again that was fed one.

Encoders that repeat the sets of the index in front of key frames are common, and change nothing.
"""

from __future__ import annotations

from understudy.video.native.loops import Coded, plain_packets

_STARTS = b"\0\0\1"
_FORGETFUL = ("av1", "vp8", "vp9", "png")
"""Codecs whose decoders keep nothing when they are emptied, or meet all of it again in each key frame."""
_SETS = {"h264": (7, 8, 13, 15), "hevc": (32, 33, 34)}
_VISUAL_OBJECT = 0xB6  # of MPEG-4: a picture; 0xB3 is the header of a group of them, the others are settings
_GROUP = 0xB3


class InBand:
    """What is known of one video's parameter sets, from its index.

    Attributes:
        always: the codec is none whose packets are understood, so each may change its decoder.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._codec, self._known = codec, extradata
        self._prefix = 0  # bytes of the length in front of each unit; 0: start codes
        if extradata[:1] == b"\1" and codec == "h264" and len(extradata) > 4:
            self._prefix = (extradata[4] & 3) + 1
        elif extradata[:1] == b"\1" and codec == "hevc" and len(extradata) > 21:
            self._prefix = (extradata[21] & 3) + 1
        self.always = codec not in (*_FORGETFUL, "h264", "hevc", "mpeg4")

    def plain(self, coded: Coded) -> int:
        """How many packets from the first on bring no parameter sets of their own, and hold a picture where that can
        be seen; all of them, as nearly always."""
        count = coded.stop - coded.first
        if self._codec in _FORGETFUL:
            return count
        view, at = memoryview(coded.data).cast("B"), 0
        offset, size = coded.listed.offset, coded.listed.size
        while at < count:
            if self._prefix:  # quickly over those that are nothing but pictures
                at += plain_packets(coded, at, self._prefix, self._codec == "hevc")
            if at < count:
                begin = int(offset[coded.first + at]) - coded.base
                packet = bytes(view[begin : begin + int(size[coded.first + at])])
                if self.changes(packet) or self.is_empty(packet):
                    break
                at += 1
        return at

    def changes(self, packet: bytes) -> bool:
        """Whether this packet brings parameter sets other than the index's, or cannot be told."""
        if self._codec in _FORGETFUL:
            return False
        if self.always:
            return True
        units = self._units(packet)
        return units is None or any(self._is_setting(unit) and unit not in self._known for unit in units)

    def is_empty(self, packet: bytes) -> bool:
        """Whether a packet of HEVC holds no picture. FFmpeg 7 still decodes what refers to it, to other pictures."""
        units = self._units(packet) if self._codec == "hevc" else None
        return units is not None and not any(unit[0] >> 1 & 63 < 32 for unit in units)

    def _is_setting(self, unit: bytes) -> bool:
        if self._codec == "mpeg4":
            return unit[3] not in (_VISUAL_OBJECT, _GROUP)
        return (unit[0] & 31 if self._codec == "h264" else unit[0] >> 1 & 63) in _SETS[self._codec]

    def _units(self, packet: bytes) -> list[bytes] | None:
        """The packet's units, of MPEG-4 with their start codes; None where they do not fill it."""
        if not self._prefix:
            places = []
            at = packet.find(_STARTS)
            while at >= 0:
                places.append(at)
                at = packet.find(_STARTS, at + 3)
            skip = 0 if self._codec == "mpeg4" else 3
            units = [packet[begin + skip : end] for begin, end in zip(places, [*places[1:], len(packet)])]
            return [unit for unit in (unit.rstrip(b"\0") for unit in units) if len(unit) > 3 - skip]
        units, at, prefix = [], 0, self._prefix
        while at + prefix <= len(packet):
            length = int.from_bytes(packet[at : at + prefix], "big")
            at += prefix + length
            if at > len(packet):
                return None
            if length:
                units.append(packet[at - length : at])
        return units if not any(packet[at:]) else None
