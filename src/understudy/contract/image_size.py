"""Sizes of a robot's images that are refused before any work: empty, huge, or of an absurd aspect ratio."""

_MOST_PIXELS = 1 << 23  # 4K has 8.3 million
_MOST_TIMES = 16  # of the recorded pixels, where that is more
_MOST_ASPECT = 8.0  # times the recorded aspect ratio


def size_error(height: int, width: int, recorded: tuple[int, int]) -> str:
    """Return the rule that the size of an image breaks, "" for a size that may be resized.

    Args:
        height: of the image.
        width: of the image.
        recorded: height and width of the images of training; zeros where they differ.
    """
    if not height or not width:
        return "it has no pixels"
    own_height, own_width = recorded
    if height * width > (most := max(_MOST_PIXELS, _MOST_TIMES * own_height * own_width)):
        return f"it has {height * width:,} pixels, more than {most:,}"
    if own_height and own_width:
        ratio = width * own_height / (height * own_width)
        if max(ratio, 1 / ratio) > _MOST_ASPECT:
            return f"its aspect ratio is {max(ratio, 1 / ratio):,.0f} times that of {own_width}x{own_height}"
    return ""
