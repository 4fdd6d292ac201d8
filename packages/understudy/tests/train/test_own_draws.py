"""Numbers that a policy draws for itself: the same layout repeats them, and no global generator
moves.
"""

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from understudy.policies.draws import keyed_generators
from understudy.policies.flow.model import FlowPolicy
from understudy.testing.runs import final_tensors, same_run, series, tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.run import evaluate_checkpoint

CPU = torch.device("cpu")
DRAWS: dict[str, Callable[[Tensor, bool], Tensor]] = {
    "dropout": lambda x, training: torch.dropout(x, 0.5, training),
    "torch.rand": lambda x, training: x * torch.rand(()),
    "numpy": lambda x, training: x * np.random.rand(),  # noqa: NPY002
    "random": lambda x, training: x * random.random(),
}


def drawing(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Make flow policies draw in `losses`, and in `act`."""
    condition = FlowPolicy._condition

    def drawn(self: FlowPolicy, *args: Any, **options: Any) -> Tensor:
        return DRAWS[kind](condition(self, *args, **options), self.training)

    monkeypatch.setattr(FlowPolicy, "_condition", drawn)


def global_states() -> tuple[Any, ...]:
    state = np.random.get_state()  # noqa: NPY002
    of_numpy = state[1].tolist(), state[2:]  # type: ignore[index]
    return torch.get_rng_state().tolist(), *of_numpy, random.getstate()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("own") / "dataset")


@pytest.mark.short("dropout")
@pytest.mark.parametrize("kind", DRAWS)
def test_own_draws_repeat_and_move_no_global_generator(
    kind: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    drawing(monkeypatch, kind)
    for number, name in enumerate(("a", "b")):
        torch.manual_seed(number)
        random.seed(number)
        np.random.seed(number)  # noqa: NPY002
        before = global_states()
        assert run.train(tiny_config(data, tmp_path / name, micro_batch_size=2)) == run.DONE
        assert global_states() == before
    same_run(tmp_path / "a", tmp_path / "b")
    said = capfd.readouterr().err
    assert said.count("draws numbers of its own") == 2
    shutil.rmtree(tmp_path / "a/checkpoints/step-00000012")
    assert run.resume(tiny_config(data, tmp_path / "a", micro_batch_size=2).resolved()) == run.DONE
    same_run(tmp_path / "a", tmp_path / "b")


@pytest.mark.long
def test_validation_that_draws_repeats(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing(monkeypatch, "torch.rand")
    assert run.train(tiny_config(data, tmp_path / "a")) == run.DONE
    before = global_states()
    found = [evaluate_checkpoint(tmp_path / "a")["loss"] for _ in range(2)]
    assert found[0] == found[1] == series(tmp_path / "a", "val")[-1]["loss"]
    assert global_states() == before


def test_recomputed_blocks_repeat_their_dropout(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from understudy.policies.common.layers import Linear

    forward = Linear.forward
    monkeypatch.setattr(
        Linear, "forward", lambda self, x: torch.dropout(forward(self, x), 0.1, self.training)
    )
    for mode in ("none", "full", "selective"):
        assert (
            run.train(tiny_config(data, tmp_path / mode, steps=3, activation_checkpoint=mode))
            == run.DONE
        )
        assert series(tmp_path / mode) == series(tmp_path / "none")
        whole = final_tensors(tmp_path / "none")
        assert all(
            torch.equal(value, whole[name])
            for name, value in final_tensors(tmp_path / mode).items()
        )


def test_a_policy_without_draws_is_not_reported(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run.train(tiny_config(data, tmp_path / "a", steps=2)) == run.DONE
    assert "draws numbers of its own" not in capfd.readouterr().err


def test_keyed_generators_restore_after_an_error() -> None:
    before = global_states()
    with suppress(ZeroDivisionError), keyed_generators(2**64 - 1, CPU) as moved:
        assert moved() == []
        torch.rand(2)
        random.random()
        assert moved() == ["torch", "random"]
        raise ZeroDivisionError
    assert global_states() == before
    drawn = []
    for key in (5, 5, 6):
        with keyed_generators(key, CPU):
            drawn.append((float(torch.rand(())), np.random.rand(), random.random()))  # noqa: NPY002
    assert drawn[0] == drawn[1]
    assert not set(drawn[0]) & set(drawn[2])
