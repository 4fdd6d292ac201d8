"""Counts in messages: "1 episode", "1,200 episodes"."""


def plural(count: int, singular: str, many: str = "") -> str:
    """Return a count with its noun, singular or plural.

    Args:
        count: the number.
        singular: words after a count of 1, "episode has no frames".
        many: words after any other count; "" appends an s to `singular`.
    """
    if count == 1:
        return f"1 {singular}"
    return f"{count:,} {many or f'{singular}s'}"
