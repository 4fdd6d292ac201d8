"""Parameter sets inside packets, which a decoder remembers.

A file's parameter sets (sizes, colors, how bits are read) belong into its index, from where a
decoder gets them first. Packets may carry some as well. A decoder uses the latest and keeps them
through a flush. The frames of its next video, or of an earlier position in this one, would then
depend on the packets decoded before. `InBand.count_plain` finds the packets whose parameter sets
differ from those of the index; `decoder.py` never reuses a decoder that was fed one.

Many encoders repeat the sets of the index in front of key frames, which changes nothing.
"""

from understudy_data.video.index import PacketRun
from understudy_data.video.native.loops import count_plain_packets

_START_CODE = b"\0\0\1"
# Codecs whose decoders keep nothing through a flush, or receive all of it again with each key
# frame.
_STATELESS = ("av1", "vp8", "vp9", "png")
_SETS = {"h264": (7, 8, 13, 15), "hevc": (32, 33, 34)}
_RESTARTS = {"h264": (5,), "hevc": (16, 17, 18, 19, 20)}  # IDR; BLA and IDR
_VISUAL_OBJECT = 0xB6  # of MPEG-4: a coded frame
_GROUP = 0xB3  # of MPEG-4: the header of a group; all other units are settings


class InBand:
    """Detector of parameter sets in the packets of one video.

    Attributes:
        always: whether each packet may change its decoder, because packets of this codec are not
            parsed.
    """

    def __init__(self, codec: str, extradata: bytes) -> None:
        self._codec = codec
        self._known = extradata
        self._prefix = 0  # bytes of the length in front of each unit; 0: start codes
        if extradata[:1] == b"\1" and codec == "h264" and len(extradata) > 4:
            self._prefix = (extradata[4] & 3) + 1
        elif extradata[:1] == b"\1" and codec == "hevc" and len(extradata) > 21:
            self._prefix = (extradata[21] & 3) + 1
        self.always = codec not in (*_STATELESS, "h264", "hevc", "mpeg4")

    def count_plain(self, run: PacketRun) -> int:
        """Count the packets, from the first on, without own parameter sets and with a coded frame.

        Coded frames are checked where the codec shows them. The usual result is all packets.
        """
        count = run.stop - run.first
        if self._codec in _STATELESS:
            return count
        view = memoryview(run.data).cast("B")
        checked = 0
        offset = run.table.offset
        size = run.table.size
        while checked < count:
            if self._prefix:  # skip quickly the packets that are nothing but coded frames
                checked += count_plain_packets(run, checked, self._prefix, self._codec == "hevc")
            if checked < count:
                begin = int(offset[run.first + checked]) - run.base
                packet = bytes(view[begin : begin + int(size[run.first + checked])])
                if self.changes(packet) or self.is_empty(packet):
                    break
                checked += 1
        return checked

    def changes(self, packet: bytes) -> bool:
        """Whether this packet carries parameter sets that differ from the index, or cannot be
        parsed.
        """
        if self._codec in _STATELESS:
            return False
        if self.always:
            return True
        units = self._units(packet)
        return units is None or any(
            self._is_setting(unit) and unit not in self._known for unit in units
        )

    def is_empty(self, packet: bytes) -> bool:
        """Whether a packet of HEVC holds no coded frame. FFmpeg 7 decodes references to it, but to
        wrong frames.
        """
        units = self._units(packet) if self._codec == "hevc" else None
        return units is not None and not any(unit[0] >> 1 & 63 < 32 for unit in units)

    def is_restart(self, packet: bytes) -> bool:
        """Whether a key frame's packet resets the decoder: H.264 and HEVC also have key frames of
        open GOPs.

        Frames after such a key frame count on from frames before it, so it cannot follow other
        frames.
        """
        if self._codec not in _RESTARTS:
            return True
        units = self._units(packet)
        types = [self._type_of(unit) for unit in units or ()]
        return any(kind in _RESTARTS[self._codec] for kind in types)

    def _is_setting(self, unit: bytes) -> bool:
        if self._codec == "mpeg4":
            return unit[3] not in (_VISUAL_OBJECT, _GROUP)
        return self._type_of(unit) in _SETS[self._codec]

    def _type_of(self, unit: bytes) -> int:
        """Type of a unit of H.264 or HEVC."""
        return unit[0] & 31 if self._codec == "h264" else unit[0] >> 1 & 63

    def _units(self, packet: bytes) -> list[bytes] | None:
        """Split a packet into its units, of MPEG-4 with their start codes; None where their lengths
        do not fill it.
        """
        if not self._prefix:
            places = []
            place = packet.find(_START_CODE)
            while place >= 0:
                places.append(place)
                place = packet.find(_START_CODE, place + 3)
            skip = 0 if self._codec == "mpeg4" else 3
            units = [
                packet[begin + skip : end] for begin, end in zip(places, [*places[1:], len(packet)])
            ]
            without_zeros = [unit.rstrip(b"\0") for unit in units]
            return [unit for unit in without_zeros if len(unit) > 3 - skip]
        units = []
        place = 0
        prefix = self._prefix
        while place + prefix <= len(packet):
            length = int.from_bytes(packet[place : place + prefix], "big")
            place += prefix + length
            if place > len(packet):
                return None
            if length:
                units.append(packet[place - length : place])
        return units if not any(packet[place:]) else None
