"""`us.train(config)`: a run from Python, by settings of each form."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

import understudy as us
from understudy.testing.runs import final_tensors, tiny_config, tiny_dataset
from understudy.train import session
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


def test_a_collector_that_is_off_stays_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    run_steps = session.run_steps

    def noting(*arguments: Any) -> bool:
        seen.append(gc.get_threshold()[0])
        return run_steps(*arguments)

    monkeypatch.setattr(session, "run_steps", noting)
    data = tiny_dataset(tmp_path / "dataset")
    usual = gc.get_threshold()
    us.train(tiny_config(data, tmp_path / "usual", steps=1))
    gc.set_threshold(0)
    try:
        us.train(tiny_config(data, tmp_path / "off", steps=1))
        assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*usual)
    assert seen == [usual[0], 0]


def test_the_model_of_an_earlier_training_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies: list[weakref.ref[Any]] = []
    alive = []
    run_steps = session.run_steps

    def noting(state: Any, *arguments: Any) -> bool:
        alive.append([policy() is not None for policy in policies])
        policies.append(weakref.ref(state.policy))
        return run_steps(state, *arguments)

    monkeypatch.setattr(session, "run_steps", noting)
    data = tiny_dataset(tmp_path / "dataset")
    for name in ("one", "two", "three"):
        us.train(tiny_config(data, tmp_path / name, steps=1))
    assert alive == [[], [False], [False, False]]
