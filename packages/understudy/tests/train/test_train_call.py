"""`us.train(config)`: a run from Python, by settings of each form."""

import gc
from pathlib import Path

import pytest

import understudy as us
from understudy.testing.runs import final_tensors, tiny_config, tiny_dataset
from understudy_base import DatasetError
from understudy_kit import dump_yaml, plain


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


def test_train_leaves_the_garbage_collector_as_it_was(tmp_path: Path) -> None:
    usual = gc.get_threshold()
    frozen = gc.get_freeze_count()
    us.train(tiny_config(tiny_dataset(tmp_path / "dataset"), tmp_path / "run", steps=1))
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count() <= frozen
    with pytest.raises(DatasetError):
        us.train(tiny_config(tmp_path / "absent", tmp_path / "other", steps=1))
    assert gc.get_threshold() == usual
