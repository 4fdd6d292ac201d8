"""The short proofs at the start of a run: a warning, and no other difference."""

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from understudy.config.train import AugmentConfig
from understudy.policies.policy import Policy
from understudy.policies.registry import policy_type
from understudy.policies.settings import PolicySettings
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train import loop, run
from understudy.train.proofs import first_batch
from understudy.train.proofs.proofs import Proof

CODE = Path(__file__).with_name("test_check_policy.py")
SETTINGS: dict[str, Any] = {
    "steps": 3,
    "checkpoint": {"every": 0},
    "val": {"every": 3},
    "log": {"every": 1, "report": False},
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tiny_dataset(tmp_path / "data")


def trained(data: Path, out: Path, kind: str) -> dict[str, torch.Tensor]:
    config = tiny_config(data, out, **SETTINGS)
    if kind != "flow":
        name = PolicySettings.by_hand(f"{CODE}:{kind}")
        config = replace(
            config, policy=policy_type(name).settings(type=name), augment=AugmentConfig(shift=0)
        )
    assert run.train(config) == run.DONE
    return Policy.load(out / "policy").state_dict()


@pytest.mark.parametrize(
    ("kind", "name"), [("IGNORES", "padding"), ("GLOBAL", "repeat"), ("TOY", "")]
)
def test_a_run_warns_and_has_the_same_weights(
    kind: str,
    name: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with_proofs = trained(data, tmp_path / "with", kind)
    place = "understudy.train.proofs"
    warned = [r.getMessage() for r in caplog.records if r.name.startswith(place)]
    levels = {r.levelno for r in caplog.records if r.name.startswith(place)}
    assert levels <= {logging.WARNING}
    assert bool(warned) == bool(name)
    assert any(f"{name}: failed" in line and "check-policy" in line for line in warned) == bool(
        name
    )
    monkeypatch.setattr(loop, "check_first_batch", lambda policy, batch: [])
    without = trained(data, tmp_path / "without", kind)
    assert with_proofs.keys() == without.keys()
    assert all(torch.equal(with_proofs[key], value) for key, value in without.items())


def test_proofs_leave_a_policy_and_generators_alone(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, gradients, buffers, modes and generators, before and after, within a run."""
    seen: list[list[Proof]] = []

    def watched(policy: Policy, batch: Any) -> list[Proof]:
        for parameter in policy.parameters():
            parameter.grad = torch.ones_like(parameter)
        held = [
            (tensor, tensor.detach().clone())
            for tensor in [*policy.parameters(), *policy.buffers()]
        ]
        inputs = {k: v.clone() for k, v in batch.items() if isinstance(v, torch.Tensor)}
        state = torch.get_rng_state()
        modes = [module.training for module in policy.modules()]
        begun = time.perf_counter()
        seen.append(first_batch.check_first_batch(policy, batch))
        assert time.perf_counter() - begun < 10, "a second, on a machine that is not starved"
        assert all(torch.equal(tensor, value) for tensor, value in held)
        assert all(bool((p.grad == 1).all()) for p in policy.parameters() if p.grad is not None)
        assert all(torch.equal(batch[key], value) for key, value in inputs.items())
        assert torch.equal(state, torch.get_rng_state())
        assert modes == [module.training for module in policy.modules()]
        policy.zero_grad()
        return seen[-1]

    monkeypatch.setattr(loop, "check_first_batch", watched)
    trained(data, tmp_path / "run", "UNSAVED")
    assert len(seen) == 1, "once, with the first batch"


def test_our_policies_and_large_ones_are_not_asked(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def note(*given: Any) -> list[Proof]:
        made.append(given)
        return []

    monkeypatch.setattr(first_batch, "make_proofs", note)
    trained(data, tmp_path / "flow", "flow")
    assert made == []
    trained(data, tmp_path / "toy", "TOY")
    assert len(made) == 1
    for number, (name, limit) in enumerate({"SECONDS": 0.0, "MOST_PARAMETERS": 10}.items()):
        monkeypatch.setattr(first_batch, name, limit)
        trained(data, tmp_path / f"other {number}", "TOY")
    assert len(made) == 1


def test_an_error_of_the_proofs_never_stops_a_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> list[Proof]:
        raise RuntimeError("no proof")

    monkeypatch.setattr(first_batch, "make_proofs", broken)
    trained(data, tmp_path / "run", "TOY")
