"""Pages in tests: blocks as HTML, and the charts of a page."""

import json
from collections.abc import Iterator
from typing import Any

from understudy_kit import Block, Blocks, render_page


def html_of(*blocks: Block | None) -> str:
    """Return a page of blocks, from its first section on; "" without any."""
    return render_page("", "", [Block.section("blocks", *blocks)]).partition("<h2")[2]


def charts_of(page: str) -> list[dict[str, Any]]:
    """Return the charts in the data of a page."""
    data = page.partition('<script type="application/json" id="charts">')[2].partition("</script>")[
        0
    ]
    return json.loads(data) if data else []


def blocks_of(kind: str, blocks: Blocks) -> Iterator[Block]:
    """Return all blocks of a kind, also the inner ones."""
    for block in filter(None, blocks):
        if block["kind"] == kind:
            yield block
        yield from blocks_of(kind, block.get("blocks", []))
