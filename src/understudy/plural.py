"""Counts in messages: "1 episode", "1,200 episodes"."""


def plural(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun, singular or plural.

    Args:
        count: the number.
        one: words after a count of 1, "episode has no frames".
        many: words after any other count; "" appends an s to `one`.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"
