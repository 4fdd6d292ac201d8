"""docs/sensors.md: its examples are read as it says."""

import json
import re
from pathlib import Path

from understudy.data.format.features import parse_features

PAGE = (Path(__file__).parents[1] / "docs/sensors.md").read_text()


def test_page_declares_depth_that_is_read() -> None:
    [block] = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)[:1]
    feature = parse_features({"depth": json.loads(block)}, "the page")["depth"]
    assert (feature.unreadable, feature.pixels.dtype, feature.pixels.channels) == ("", "float32", 1)
