"""The losses of pi0.5 and pi0 read no value of a tensor on the device, so that the host never waits
for a GPU.

On the meta device there are no values: reading one raises.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sentencepiece", reason="needs the extra pi05")
pytest.importorskip("tokenizers", reason="needs the extra pi05")

from understudy.policies.common.fast_tokenizer import FastTokenizer
from understudy.policies.draws import make_draws
from understudy.policies.losses import scalar
from understudy.policies.pi05.targets import EXTENTS
from understudy.testing.pi05_policy import batch, policy
from understudy.testing.sentences import write_model


def moved(values: dict[str, Any], device: str) -> dict[str, Any]:
    return {
        key: value.to(device) if isinstance(value, torch.Tensor) else value
        for key, value in values.items()
    }


@pytest.mark.long
@pytest.mark.parametrize("adaptive", [True, False], ids=["pi05", "pi0"])
@pytest.mark.parametrize("tokens", [False, True], ids=["flow", "text and fast"])
def test_losses_read_no_value_of_the_device(tmp_path: Path, adaptive: bool, tokens: bool) -> None:
    more: dict[str, Any] = {}
    if tokens:
        chunks = [
            np.sin(np.linspace(0, 1, 4)[:, None] * rate + np.arange(3))
            for rate in np.linspace(0, 3, 200)
        ]
        FastTokenizer.fit(chunks, vocab_size=60).save(tmp_path / "fast")
        more = {"response_tokens": 24, "fast": str(tmp_path / "fast"), "action_tokens": 40}
    made = policy(write_model(tmp_path), adaptive, max_delay=2, **more)
    ready = made.preprocess(batch(response=tokens))  # with padding and a missing camera
    draws = moved(make_draws(made.random_spec("train"), 0, range(4)), "meta")
    made.to("meta")
    given = moved(ready, "meta")
    assert set(made.counts(given, draws)) == set(made.loss_terms)
    scalar(made.losses(given, draws)).backward()
    assert made.action_out_proj.weight.grad is not None
    given.pop(EXTENTS)  # then lengths are read from the device
    with pytest.raises((NotImplementedError, RuntimeError)):
        made.losses(given, draws)


@pytest.mark.gpu
def test_losses_do_not_wait_for_a_gpu(tmp_path: Path) -> None:
    made = policy(write_model(tmp_path)).to("cuda")
    ready = made.preprocess(batch())
    given, draws = (
        moved(values, "cuda")
        for values in (ready, make_draws(made.random_spec("train"), 0, range(4)))
    )
    scalar(made.losses(given, draws)).backward()  # the first call initializes libraries
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        scalar(made.losses(given, draws)).backward()
        with pytest.raises(RuntimeError):  # the control
            given["action"].sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
