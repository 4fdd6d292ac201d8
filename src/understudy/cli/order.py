"""`understudy order explain`: the order of samples, how well it mixes, and its cost in disk reads and memory.

The command reads episode lengths and one video index per camera (for the distance of key frames), but no frame. Without
datasets it uses a synthetic table of lengths like DROID's. The chosen order is printed at once, and for datasets the
candidates that it was chosen from. Then our order and five others, holding about as many frames, are audited over a
bounded number of positions, as a table and a figure.
"""

from understudy.report.order import MOST, WIDEST, ExplainConfig, choose, compare, order_of, read_tables

__all__ = ["ExplainConfig", "explain"]


def explain(config: ExplainConfig) -> int:
    """Print the order and the table; draw the figure if requested. Returns the exit code."""
    from understudy.atomic import refuse_existing
    from understudy.optional_packages import require
    from understudy.report.order import describe, draw_orders, render, render_choice

    if config.figure:
        refuse_existing(config.figure, "figure", config.overwrite)
        require("report")
    tables = read_tables(config)
    choice = choose(tables, config)
    order = choice.order if choice else order_of(tables, config)
    print("\n".join([*map(describe, tables), "", order.explain(), ""]), flush=True)
    if choice:
        print(render_choice(choice, tables, config), flush=True)
    if config.batch_size * WIDEST > MOST:
        print(f"no comparison with other orders: {WIDEST} batches of {config.batch_size} exceed {MOST:,} positions")
        return 0
    comparison = compare(tables, config, order)
    print(render(tables, comparison, config))
    if config.figure:
        draw_orders(comparison, config.figure)
        print(f"\nfigure: {config.figure}")
    return 0
