"""Batches without padding: the numbers of each sample alone, on both back-ends of attention."""

import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("sentencepiece", reason="needs the extra pi05")
pytest.importorskip("tokenizers", reason="needs the extra pi05")

from understudy.policies.common import towers as segments
from understudy.policies.common.fast_tokenizer import FastTokenizer
from understudy.policies.common.towers import attend_segments, make_segments
from understudy.policies.draws import make_draws
from understudy.policies.losses import scalar
from understudy.policies.pi05.policy import Pi05Policy
from understudy.testing.pi05_policy import batch, policy
from understudy.testing.sentences import write_model
from understudy_base import STATE

COUNT = 6
KINDS = {
    "pi05": (True, {"max_delay": 2, "noise_samples": 2}),
    "pi0": (False, {}),
    "tokens": (True, {"response_tokens": 24, "action_tokens": 40, "insulation": True}),
    "states": (True, {"history": (0.1, 0.2), "state_history": True}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("packed")
    write_model(found)
    chunks = [
        np.sin(np.linspace(0, 1, 4)[:, None] * rate + np.arange(3))
        for rate in np.linspace(0, 3, 200)
    ]
    FastTokenizer.fit(chunks, vocab_size=60).save(found / "fast")
    return found


def made(folder: Path, kind: str) -> Pi05Policy:
    adaptive, changes = KINDS[kind]
    fast: dict[str, Any] = {"fast": str(folder / "fast")} if kind == "tokens" else {}
    return policy(folder, adaptive, **changes, **fast)


def inputs(
    network: Pi05Policy, kind: str, rows: list[int] | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Some samples of one batch in which cameras and lengths of texts differ, prepared, and their
    draws.
    """
    found = batch(COUNT, response=kind == "tokens")
    whole = network.preprocess(with_past(network, found) if kind == "states" else found)
    chosen = list(range(COUNT)) if rows is None else rows
    part = {
        k: v[chosen] if isinstance(v, Tensor) else [v[row] for row in chosen]
        for k, v in whole.items()
    }
    return part, {
        name: v[chosen]
        for name, v in make_draws(network.random_spec("train"), 0, range(COUNT)).items()
    }


def with_past(network: Pi05Policy, given: dict[str, Any]) -> dict[str, Any]:
    """The batch with frames and states of two times more, of which the samples have none, one or
    both.
    """
    draw = torch.Generator().manual_seed(5)
    found = dict(given)
    is_pad = torch.arange(3) < torch.tensor([2, 0, 1, 2, 0, 1])[:, None]
    for key in (*network.config.cameras, STATE):
        found[key] = torch.stack([given[key].roll(number, dims=0) for number in (1, 2, 0)], dim=1)
        found[f"{key}_is_pad"] = is_pad
    found[STATE] = torch.where(
        is_pad[..., None], torch.rand(found[STATE].shape, generator=draw), found[STATE]
    )
    return found


Result = tuple[dict[str, Tensor], dict[str, Tensor]]


def result(
    network: Pi05Policy, given: dict[str, Any], draws: dict[str, Tensor], packs: bool
) -> Result:
    """Losses per sample, by term, and the gradients of their mean."""
    network.packs = packs
    network.zero_grad()
    losses = network.losses(given, draws)
    scalar(losses).backward()
    grads = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    return {term: loss.sum.detach() for term, loss in losses.items()}, grads


def close(one: Result, two: Result) -> None:
    assert one[0].keys() == two[0].keys()
    for term, expected in two[0].items():
        torch.testing.assert_close(one[0][term], expected, rtol=2e-6, atol=2e-6)
    assert one[1].keys() == two[1].keys()
    error, norm = (
        sum(float(x.double().square().sum()) for x in values) ** 0.5
        for values in ([one[1][name] - two[1][name] for name in two[1]], two[1].values())
    )
    assert error <= 1e-6 * norm


@pytest.mark.parametrize("kind", KINDS)
def test_packed_is_the_padded_batch_and_each_sample_alone(folder: Path, kind: str) -> None:
    network = made(folder, kind)
    given, draws = inputs(network, kind)
    packed = result(network, given, draws, packs=True)
    assert network.processed_tokens(given) == sum(network.tokens(given))
    close(packed, result(network, given, draws, packs=False))
    assert network.processed_tokens(given) > sum(network.tokens(given))
    for row in range(COUNT):
        alone = result(network, *inputs(network, kind, [row]), packs=True)[0]
        for term, loss in alone.items():
            torch.testing.assert_close(packed[0][term][row], loss[0], rtol=2e-6, atol=2e-6)
    moved = [3, 0, 5, 1, 4, 2]
    again = result(network, *inputs(network, kind, moved), packs=True)
    close(({term: loss[np.argsort(moved)] for term, loss in again[0].items()}, again[1]), packed)


@pytest.mark.parametrize(("adaptive", "expert"), [(True, 4), (False, 5)])
def test_tokens_of_a_sample_have_every_noisy_chunk(
    folder: Path, adaptive: bool, expert: int
) -> None:
    """The action expert computes `noise_samples` chunks of 4 actions; pi0 puts the state in front
    of each.
    """
    one, three = (policy(folder, adaptive, noise_samples=count) for count in (1, 3))
    given = one.preprocess(batch(COUNT))
    assert [more - less for less, more in zip(one.tokens(given), three.tokens(given))] == [
        2 * expert
    ] * COUNT
    assert three.processed_tokens(given) - one.processed_tokens(given) == 2 * expert * COUNT


def test_a_neighbour_does_not_leak_into_a_packed_sample(folder: Path) -> None:
    """A token of sample 4 alone whose embedding is not a number."""
    network = made(folder, "pi05")
    given, draws = inputs(network, "pi05")
    given["prompt_tokens"][4, 0] = 255
    assert int((given["prompt_tokens"] == 255).sum()) == 1
    clean = result(network, given, draws, packs=True)[0]["flow"]
    with torch.no_grad():
        network.embedding.weight[255] = torch.nan
    spoilt = network.losses(given, draws)["flow"].sum
    assert spoilt.isnan().tolist() == [row == 4 for row in range(COUNT)]
    kept = torch.arange(COUNT) != 4
    assert torch.equal(spoilt[kept], clean[kept])


def test_a_batch_without_padding_keeps_its_bits(folder: Path) -> None:
    network = made(folder, "pi05")
    given, draws = inputs(network, "pi05", [0, 0])
    one, two = (result(network, given, draws, packs) for packs in (True, False))
    assert torch.equal(one[0]["flow"], two[0]["flow"])
    assert all(torch.equal(one[1][name], two[1][name]) for name in two[1])


@pytest.mark.parametrize("kind", KINDS)
def test_packed_losses_read_no_value_of_the_device(folder: Path, kind: str) -> None:
    network = made(folder, kind)
    given, draws = (
        {k: v.to("meta") if isinstance(v, Tensor) else v for k, v in each.items()}
        for each in inputs(network, kind)
    )
    network.to("meta").packs = True
    scalar(network.losses(given, draws)).backward()
    assert network.action_out_proj.weight.grad is not None


# -- back-ends -------------------------------------------------------------------------------------


def loop(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    window_size: Any,
    enable_gqa: Any,
) -> Tensor:
    """The contract of `torch.nn.attention.varlen.varlen_attn`, one segment and one head at a
    time.
    """
    assert enable_gqa
    assert (cu_q.dtype, cu_k.dtype) == (torch.int32, torch.int32)
    assert (max_q, max_k) == (int(cu_q.diff().max()), int(cu_k.diff().max()))
    found = torch.full_like(q, torch.nan)
    for (low, high), (first, last) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist())):
        for head in range(q.shape[1]):
            own = head // (q.shape[1] // k.shape[1])
            scores = q[low:high, head] @ k[first:last, own].T / q.shape[2] ** 0.5
            if window_size == (-1, 0):
                row = torch.arange(high - low)[:, None]
                column = torch.arange(last - first)
                scores = scores.masked_fill(
                    column > row + (last - first) - (high - low), -torch.inf
                )
            found[low:high, head] = scores.softmax(dim=1) @ v[first:last, own]
    return found


@pytest.fixture
def varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The back-end of GPUs, computed by `loop`."""
    module = ModuleType("torch.nn.attention.varlen")
    module.varlen_attn = loop  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", module)
    monkeypatch.setattr("understudy.policies.common.towers.takes_varlen", lambda *_: True)


@pytest.mark.parametrize("kind", KINDS)
def test_varlen_calls_compute_the_same_losses(folder: Path, kind: str, varlen: None) -> None:
    network = made(folder, kind)
    given, draws = inputs(network, kind)
    close(result(network, given, draws, packs=True), result(network, given, draws, packs=False))


LENGTHS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=6)


@given(LENGTHS.filter(lambda pairs: any(q for q, _ in pairs)), st.booleans())
def test_segments_are_independent_calls(pairs: list[tuple[int, int]], causal: bool) -> None:
    """Any number of queries up to that of the keys, drawn from a longer row in any sequence."""
    pairs = [(min(q, k), k) for q, k in pairs]
    asks, keys = (torch.tensor(each) for each in zip(*pairs))
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(40, heads, 4, generator=generator, dtype=torch.float64) for heads in (4, 2, 2)
    )
    rows = [torch.randperm(40, generator=generator)[: int(each.sum())] for each in (asks, keys)]
    at = make_segments(rows[0], asks, rows[1], keys, torch.device("cpu"), causal)
    ends = [torch.nn.functional.pad(each.cumsum(0), (1, 0)).int() for each in (asks, keys)]
    window = (-1, 0) if causal else (-1, -1)
    taken = q[rows[0]], k[rows[1]], v[rows[1]]
    expected = loop(*taken, *ends, int(asks.max()), int(keys.max()), window, True)
    torch.testing.assert_close(attend_segments(q, k, v, at), expected.flatten(1))


def test_varlen_needs_a_gpu_and_half_precision() -> None:
    assert not segments.takes_varlen(torch.device("cpu"), torch.bfloat16)
    assert not segments.takes_varlen(torch.device("cuda"), torch.float32)


@pytest.mark.gpu
def test_varlen_on_a_gpu_equals_the_dense_back_end() -> None:
    if not segments.takes_varlen(torch.device("cuda"), torch.bfloat16):
        pytest.skip("this torch has no varlen_attn")
    lengths = torch.tensor([5, 300, 17])
    rows = torch.arange(int(lengths.sum()))
    made = [
        make_segments(
            rows, lengths, rows, lengths, torch.device("cuda"), causal=True, varlen=varlen
        )
        for varlen in (True, False)
    ]
    q, k, v = (
        torch.randn(len(rows), heads, 64, device="cuda", dtype=torch.bfloat16)
        for heads in (8, 1, 1)
    )
    one, two = (attend_segments(q, k, v, at) for at in made)
    torch.testing.assert_close(one, two, rtol=2e-2, atol=2e-2)
