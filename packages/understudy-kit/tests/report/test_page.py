"""Blocks of a page."""

import re

from understudy_kit.report.curves import Curve
from understudy_kit.report.page import STATIC, Block


def test_no_constructor_hides_a_value() -> None:
    """Jinja2 reads `block.text` as an attribute first, and as an item of the dictionary then."""
    read = set(re.findall(r"\.(\w+)", (STATIC / "page.html").read_text(encoding="utf-8")))
    assert {"kind", "style", "text", "blocks"} <= read
    assert read & set(vars(Block)) == set()


def test_the_ninth_curve_has_the_color_of_the_first() -> None:
    curve = Curve.from_edges("one", [0.0, 1.0], [2.0])
    assert curve.relabel("nine", 8)["color"] == curve.relabel("one", 0)["color"]
    assert Block.swatch("nine", 8)["color"] == Block.swatch("one", 0)["color"]
