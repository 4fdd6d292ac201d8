"""Bytes of a decoded pixel, read from the decoder configuration of a video before anything is decoded."""

_PLANES = {0: 1.0, 1: 1.5, 2: 2.0, 3: 3.0}  # samples of a pixel, by chroma_format_idc: none, 4:2:0, 4:2:2, 4:4:4
_EXTENDED = {100, 110, 122, 144, 244}  # H.264 profiles whose configuration may name the format of its pixels
_PROFILES = {110: 3.0, 122: 4.0, 144: 6.0, 244: 6.0}  # the most of the others that lack it


def pixel_bytes(codec: str, extradata: bytes) -> float | None:
    """Bytes of a pixel in frames of the decoder; None where the configuration does not name them.

    Args:
        codec: FFmpeg's name.
        extradata: the box avcC, hvcC (14496-15, 5.3.3 and 8.3.3) or av1C.
    """
    try:
        if codec == "h264" and extradata[0] == 1:
            return _of_h264(extradata)
        if codec == "hevc" and extradata[0] == 1:
            return _bytes(extradata[16] & 3, extradata[17] & 7)
        if codec == "av1" and extradata[0] == 0x81:
            high, gray, wide, tall = (extradata[2] >> bit & 1 for bit in (6, 4, 3, 2))
            return _bytes(0 if gray else 3 - wide - (wide and tall), high)
    except IndexError:
        return None
    return 1.5 if codec == "mpeg4" else None


def _of_h264(extradata: bytes) -> float:
    profile, at = extradata[1], 5
    if profile not in _EXTENDED:
        return 1.5
    for mask in (31, 255):  # SPS, then PPS
        count, at = extradata[at] & mask, at + 1
        for _ in range(count):
            at += 2 + int.from_bytes(extradata[at : at + 2], "big")
    if at + 1 < len(extradata):
        return _bytes(extradata[at] & 3, extradata[at + 1] & 7)
    return _PROFILES.get(profile, 1.5)


def _bytes(chroma: int, more_bits: int) -> float:
    return _PLANES[chroma] * (2 if more_bits else 1)
