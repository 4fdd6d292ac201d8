"""`understudy order explain`: which samples come when, how well they are mixed, and what that asks of disk and memory.

It reads lengths, never a frame (and one video's index per camera, for the distance of its key frames): of the datasets
named, or of a synthetic table like DROID's. The choice is printed at once; then our order and five others are counted
over a stretch of bounded length and stand side by side, holding about as many frames; the picture shows the same.
"""

from understudy.report.order.comparison import MOST, WIDEST, ExplainConfig, compare, order_of, read_tables

__all__ = ["ExplainConfig", "explain"]


def explain(config: ExplainConfig) -> int:
    """Print the choice and the table, draw the picture if one is asked for. Returns the exit code."""
    from understudy.extras import require
    from understudy.report.order.text import described, render

    if config.picture:
        require("report")
    tables = read_tables(config)
    order = order_of(tables, config)
    print("\n".join([*map(described, tables), "", order.explain(), ""]), flush=True)
    if config.batch * WIDEST > MOST:
        print(f"not compared with other orders: {WIDEST} batches of {config.batch} are more than {MOST:,} positions")
        return 0
    comparison = compare(tables, config, order)
    print(render(tables, comparison, config))
    if config.picture:
        from understudy.report.order.figure import draw

        draw(comparison, config.picture)
        print(f"\npicture: {config.picture}")
    return 0
