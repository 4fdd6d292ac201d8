"""Sizes of images that may be resized to that of training."""

ASPECT_TOLERANCE = 0.03
"""Share by which the aspect ratio of images may differ from that of the recordings."""
_MOST_PIXELS = 1 << 23  # 4K has 8.3 million
_MOST_TIMES = 16  # of the recorded pixels, where that is more
_MOST_ASPECT = 8.0  # times the recorded aspect ratio


def size_error(height: int, width: int, recorded: tuple[int, int]) -> str:
    """Return the rule that the size of an image breaks, "" for a size that may be resized.

    Args:
        height: height of the image.
        width: width of the image.
        recorded: height and width of the images of training; zeros where they differ.
    """
    if not height or not width:
        return "it has no pixels"
    recorded_height, recorded_width = recorded
    if height * width > (most := max(_MOST_PIXELS, _MOST_TIMES * recorded_height * recorded_width)):
        return f"it has {height * width:,} pixels, more than {most:,}"
    if recorded_height and recorded_width:
        ratio = width * recorded_height / (height * recorded_width)
        if max(ratio, 1 / ratio) > _MOST_ASPECT:
            return (
                f"its aspect ratio is {max(ratio, 1 / ratio):,.0f} times that of "
                f"{recorded_width}x{recorded_height}"
            )
    return ""
