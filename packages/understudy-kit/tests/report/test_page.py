"""Blocks of a page."""

import re

from understudy_kit.report.page import STATIC, Block


def test_no_constructor_hides_a_value() -> None:
    """Jinja2 reads `block.text` as an attribute first, and as an item of the dictionary then."""
    read = set(re.findall(r"\.(\w+)", (STATIC / "page.html").read_text(encoding="utf-8")))
    assert {"kind", "style", "text", "blocks"} <= read
    assert read & set(vars(Block)) == set()
