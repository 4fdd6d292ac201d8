"""Compiled blocks of pi0.5 compute the loss and the gradients of uncompiled ones."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from understudy.compile import compile_blocks
from understudy.distributed.activation_checkpoint import (
    CheckpointMode,
    apply_activation_checkpointing,
)
from understudy.policies.draws import make_draws
from understudy.policies.losses import scalar
from understudy.policies.pi05.policy import Pi05Policy
from understudy.testing.pi05_policy import batch, policy
from understudy.testing.sentences import write_model


def loss_and_gradients(made: Pi05Policy) -> tuple[Tensor, dict[str, Tensor]]:
    given = made.preprocess(batch(response=True))
    draws = make_draws(made.random_spec("train"), 3, torch.arange(4))
    loss = scalar(made.losses(given, draws))
    loss.backward()
    return loss.detach(), {
        name: p.grad for name, p in made.named_parameters() if p.grad is not None
    }


@pytest.mark.long
@pytest.mark.parametrize(("recomputed", "insulation"), [("none", True), ("full", False)])
def test_compiled_blocks_agree_with_uncompiled_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recomputed: CheckpointMode, insulation: bool
) -> None:
    """Graphs of forward and backward are captured, and run by torch's own kernels: no compiler is
    needed.
    """
    write_model(tmp_path)
    given = {"response_tokens": 24, "insulation": insulation}
    loss, gradients = loss_and_gradients(policy(tmp_path, **given))
    compiled = policy(tmp_path, **given)
    graphs = list[torch.fx.GraphModule]()

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compile_module = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self: compile_module(self, backend=backend))
    monkeypatch.setenv("CXX", sys.executable)  # of which only the presence is checked
    apply_activation_checkpointing(compiled.blocks(), recomputed)
    compile_blocks(compiled.blocks(), torch.device("cpu"))
    try:
        other, others = loss_and_gradients(compiled)
    finally:
        torch._dynamo.reset()
    assert graphs
    torch.testing.assert_close(other, loss, rtol=1e-5, atol=0)
    assert others.keys() == gradients.keys()
    for name, gradient in gradients.items():
        error = (others[name] - gradient).norm() / gradient.norm()
        assert not error > 1e-5, (name, error)
    zero = [name for name, gradient in gradients.items() if not gradient.any()]
    assert len(zero) < len(gradients) / 10
