"""`us.train(config)`: a run from Python, by settings of each form."""

from pathlib import Path

import pytest

import understudy as us
from understudy.testing.runs import final_tensors, tiny_config, tiny_dataset
from understudy_kit.config.schema import dump_yaml, plain


@pytest.mark.parametrize("form", ["config", "mapping", "file"])
def test_train_returns_the_run_directory(form: str, tmp_path: Path) -> None:
    config = tiny_config(tiny_dataset(tmp_path / "dataset"), tmp_path / "run", steps=2)
    if form == "file":
        (tmp_path / "settings.yaml").write_text(dump_yaml(config))
    given = {"config": config, "mapping": plain(config), "file": tmp_path / "settings.yaml"}[form]
    run = us.train(given)  # type: ignore[operator]
    assert run == tmp_path / "run"
    assert final_tensors(run)
    assert us.load_policy(run).config.chunk == config.data.chunk_size
