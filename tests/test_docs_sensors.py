"""docs/sensors.md: its examples are read as it says."""

import json
import re
from pathlib import Path

import pytest

from support.datasets import Spec, write_dataset
from understudy.data.format.features import parse_features

PAGE = (Path(__file__).parents[1] / "docs/sensors.md").read_text()


def test_page_example_runs_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "data/table", Spec(lengths=(8, 5), cameras=(), foreign=False))
    [block] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(block, "docs/sensors.md", "exec"), {})
    assert capsys.readouterr().out.strip() == block.strip().rpartition("# ")[2]


def test_page_declares_depth_that_is_read() -> None:
    [block] = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)[:1]
    feature = parse_features({"depth": json.loads(block)}, "the page")["depth"]
    assert (feature.unreadable, feature.pixels.dtype, feature.pixels.channels) == ("", "float32", 1)
