"""docs/normalization.md: its settings load, its numbers are those of the code."""

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

from understudy.config.schema import complete, load
from understudy.config.train import TrainConfig
from understudy.data.stats import stats_files, summary
from understudy.data.stats.summary import Mode

PAGE = (Path(__file__).parents[1] / "docs" / "normalization.md").read_text()
SETTINGS = re.search(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)


def test_settings_load(tmp_path: Path) -> None:
    assert SETTINGS is not None
    (tmp_path / "c.yaml").write_text(SETTINGS[1])
    config = complete(replace(load(TrainConfig, tmp_path / "c.yaml"), output_dir="run"))
    sources = config.data.sources
    assert [source.delta_action_dims[-1:] for source in sources] == [(5,), (5,), ()]


def test_numbers_are_those_of_the_code() -> None:
    assert f"{summary.ROWS:,} rows" in PAGE
    assert [mode for mode in get_args(Mode) if f"| `{mode}` |" in PAGE] == list(get_args(Mode))
    assert callable(stats_files.to_openpi)
