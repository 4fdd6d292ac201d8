"""Compilation of blocks (`distributed/compile.py`)."""

from typing import Any

import pytest
import torch
from torch import nn

from understudy.distributed.compile import compile_blocks, missing_compiler


class Block(nn.Module):
    """One compiled variant for each value of `variant`."""

    def forward(self, x: torch.Tensor, variant: str) -> torch.Tensor:
        return x + len(variant)


@pytest.mark.long
def test_a_block_with_many_variants_stays_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    if problem := missing_compiler(torch.device("cpu")):
        pytest.skip(problem)
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def compiled_variants(block: Block) -> int:
        torch._dynamo.reset()
        graphs.clear()
        assert [block(torch.zeros(1), "v" * count).item() for count in range(20)] == list(range(20))
        return len(graphs)

    compile_module = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self: compile_module(self, backend=backend))
    plain, block = Block(), Block()
    with torch._dynamo.config.patch(recompile_limit=8):  # pytest's monkeypatch would hide the setting afterwards
        plain.compile()
        assert compiled_variants(plain) < 20  # torch's limit: it runs the others uncompiled
        compile_blocks([block], torch.device("cpu"))
        assert compiled_variants(block) == 20
        assert torch._dynamo.config.recompile_limit == 8  # other code of the process keeps its limit
        assert compiled_variants(plain) < 20
