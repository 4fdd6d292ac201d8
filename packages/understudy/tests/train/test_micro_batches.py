"""Cuts of a batch by samples and by tokens: the same loss and gradients, on any mesh."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from understudy.config.mesh import Batching
from understudy.config.train import ParallelConfig, TrainConfig
from understudy.distributed import mesh as parallel
from understudy.policies.draws import make_draws
from understudy.policies.flow.model import FlowPolicy
from understudy.policies.policy import Policy
from understudy.policies.registry import policy_type
from understudy.report.run.page import write_report
from understudy.testing.policies import NORMALIZATION, batch, policy
from understudy.testing.policies import config as flow_config
from understudy.testing.ranks import in_ranks
from understudy.testing.runs import series, tiny_config
from understudy.train import run
from understudy.train.data.run_data import open_data
from understudy.train.data.run_normalization import choose_normalization
from understudy.train.micro_batches import (
    IdleMicroBatch,
    PartCounts,
    check_budget,
    cut_batch,
    fill_spans,
    spread_spans,
)
from understudy.train.optimizer_step import optimizer_step
from understudy.train.precision import make_optimizer
from understudy.train.profiling.plan import plan
from understudy.train.profiling.profile import RankProfile, combine, profile
from understudy.train.state import build_on_meta
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.order.rank_positions import rank_slice
from understudy_kit import OnResume

LIMITS = st.one_of(st.none(), st.integers(1, 40))

# -- the cut ---------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=30),
    st.one_of(st.none(), st.integers(20, 90)),
    LIMITS,
)
def test_spans_are_the_longest_within_both_limits(
    tokens: list[int], budget: int | None, most: int | None
) -> None:
    spans = fill_spans(len(tokens), tokens, budget, most)
    assert [number for low, high in spans for number in range(low, high)] == list(
        range(len(tokens))
    )
    for low, high in spans:
        assert high > low
        assert budget is None or sum(tokens[low:high]) <= budget
        assert most is None or high - low <= most
        if high < len(tokens):  # the next sample exceeds a limit
            assert high - low == most or (
                budget is not None and sum(tokens[low : high + 1]) > budget
            )


def test_a_sample_beyond_the_budget_is_named() -> None:
    with refused("max_num_tokens", 8, 41, 9, kind=ConfigError):
        fill_spans(3, [1, 9, 1], 8, positions=torch.tensor([40, 41, 42]))
    with pytest.raises(ConfigError, match="max_num_tokens"):
        fill_spans(3, None, 8)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 6))
def test_any_number_of_parts_holds_every_sample_once(samples: int, most: int, more: int) -> None:
    own = fill_spans(samples, None, None, most)
    spans = spread_spans(own, len(own) + more)
    assert len(spans) == len(own) + more
    assert [number for low, high in spans for number in range(low, high)] == list(range(samples))
    assert all(high > low for low, high in spans) == (len(spans) <= samples)
    assert spans[0][1] > 0


# -- steps on meshes -------------------------------------------------------------------------------


class Worded(FlowPolicy):
    """The flow policy with a token for each letter of the instruction."""

    def tokens(self, batch: Any) -> list[int]:
        return [len(text) for text in batch["task"]]


def worded() -> Worded:
    made = Worded(flow_config(), NORMALIZATION)
    made.load_state_dict(policy().state_dict())
    return made


def flow_batch(count: int) -> dict[str, Any]:
    """Short texts first: the last rank has more parts."""
    texts = [
        "go",
        "hi",
        "red",
        "push it",
        "pick up the block",
        "pick up the red",
        "put it back",
        "on the left",
    ]
    return batch(count) | {
        "task": [texts[number % 8] for number in range(count)],
        "position": torch.arange(count),
    }


Outcome = tuple[float, dict[str, Tensor], PartCounts, int]


def step_of(made: Policy, given: dict[str, Any], shards: int, **limits: Any) -> Outcome:
    """Loss, gradients, counts and idle parts of one step of this rank on its share of a batch."""
    count = len(given["task"])
    config = TrainConfig(
        device="cpu",
        batch_size=count,
        parallel=ParallelConfig(timeout=300, dp_shard=shards),
        **limits,
    )
    with parallel.join_mesh(config.mesh) as mesh:
        low, high = rank_slice(count, mesh.rank, mesh.world_size)
        draws = make_draws(made.random_spec("train"), 3, given["position"][low:high])
        parallel.shard(
            made,
            mesh,
            config.precision,
            made.blocks(),
            made.float32_modules(),
            made.forward_methods,
        )
        optimizer = make_optimizer(
            made, config.optim, {}, accumulates=config.batching.accumulates()
        )
        parts, counts = cut_batch(
            made, config.batching, mesh, {k: v[low:high] for k, v in given.items()}, draws
        )
        weights = dict.fromkeys(made.loss_terms, 1.0)
        result = optimizer_step(
            made, optimizer, parts, mesh, lr=0.0, clip=1e9, weights=weights, check=True
        )
        grads = {n: p.grad for n, p in made.named_parameters() if p.grad is not None}
        whole = {
            n: (g.full_tensor() if hasattr(g, "full_tensor") else g).clone()
            for n, g in grads.items()
        }
        return (
            float(result.loss),
            whole,
            counts,
            sum(isinstance(part, IdleMicroBatch) for part in parts),
        )


def flow_step(count: int, shards: int, limits: dict[str, Any]) -> Outcome:
    return step_of(worded(), flow_batch(count), shards, **limits)


def close(one: Outcome, two: Outcome) -> None:
    assert one[0] == pytest.approx(two[0], rel=1e-6)
    assert one[1].keys() == two[1].keys()
    error = sum(
        float((one[1][name] - expected).square().sum()) for name, expected in two[1].items()
    )
    # 1e-6 on most CPUs; the float32 kernels of some sum batches of other sizes differently.
    assert (
        error**0.5
        <= 2e-6 * sum(float(expected.square().sum()) for expected in two[1].values()) ** 0.5
    )


@pytest.fixture(scope="module")
def whole() -> Outcome:
    return flow_step(8, 1, {})


@pytest.mark.parametrize(
    ("limits", "parts"),
    [({"max_num_tokens": 10**6}, 1), ({"max_num_tokens": 30}, 4), ({"max_samples": 3}, 3)],
)
def test_limits_change_rounding_alone(whole: Outcome, limits: dict[str, Any], parts: int) -> None:
    found = flow_step(8, 1, limits)
    assert found[2].parts == parts
    close(found, whole)
    if parts == 1:  # the same cut has the same bits
        assert all(torch.equal(found[1][name], whole[1][name]) for name in whole[1])


def test_an_equal_cut_has_equal_bits() -> None:
    one = flow_step(8, 1, {"max_samples": 2})
    two = flow_step(8, 1, {"micro_batch_size": 2})
    assert one[0] == two[0]
    assert all(torch.equal(one[1][name], two[1][name]) for name in two[1])
    assert one[2] == two[2]


@pytest.mark.short("2-2-7-limits2-1")
@pytest.mark.parametrize(
    ("world", "shards", "count", "limits", "idle"),
    [
        (2, 1, 8, {"max_num_tokens": 20}, 0),
        (2, 2, 8, {"max_num_tokens": 20}, 0),
        (2, 2, 7, {"max_samples": 1}, 1),
        (4, 2, 7, {"max_num_tokens": 17}, 1),
    ],
)
def test_ranks_run_equally_many_parts(
    world: int, shards: int, count: int, limits: dict[str, Any], idle: int
) -> None:
    expected = flow_step(count, 1, {})
    everywhere = in_ranks(world, flow_step, count, shards, limits)
    assert len({found[2].parts for found in everywhere}) == 1
    assert sum(found[2].samples for found in everywhere) == count
    assert sum(found[3] for found in everywhere) == idle
    for found in everywhere:
        close(found, expected)


def packed_step(tokenizer: Path, shards: int, limits: dict[str, Any]) -> Outcome:
    """A step of pi0.5 on six samples that differ in cameras and texts."""
    from understudy.testing.pi05_policy import batch as pi05_batch
    from understudy.testing.pi05_policy import policy as pi05_policy

    made = pi05_policy(tokenizer)
    made.packs = "max_num_tokens" in limits
    return step_of(
        made, made.preprocess(pi05_batch(6) | {"position": torch.arange(6)}), shards, **limits
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("world", "shards", "budget", "parts"),
    [
        (1, 1, 10**6, 1),
        (1, 1, 200, 2),
        (1, 1, 100, 3),
        (2, 1, 100, 2),
        (2, 2, 100, 2),
        (4, 2, 60, 2),
    ],
)
def test_packed_parts_of_each_budget_and_mesh(
    tokenizer: Path, world: int, shards: int, budget: int, parts: int
) -> None:
    """No limit, and two budgets that cut the share of a rank."""
    expected = packed_step(tokenizer, 1, {})
    limits = {"max_num_tokens": budget}
    everywhere = [packed_step(tokenizer, 1, limits)]
    if world > 1:
        everywhere = in_ranks(world, packed_step, tokenizer, shards, limits)
    assert expected[2].processed > expected[2].tokens
    for found in everywhere:
        assert found[2].parts == parts
        if found[2].samples >= parts:  # a rank with fewer repeats a sample at weight 0
            assert found[2].processed == found[2].tokens
        close(found, expected)


# -- runs ------------------------------------------------------------------------------------------


def pi05_run(data: Path, out: Path, tokenizer: Path, **changes: Any) -> TrainConfig:
    from understudy.policies.pi05.config import Pi05Settings

    network = Pi05Settings(size="tiny", tokenizer=str(tokenizer), prompt_tokens=64)
    return tiny_config(
        data,
        out,
        policy=network,
        **{"steps": 4, "val": {"every": 0}, "log": {"every": 2}} | changes,
    )


@pytest.mark.long
def test_runs_with_a_budget_are_the_same_up_to_rounding(
    data: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Two parts a step; `test_resume.py` resumes such a run."""
    assert run.train(pi05_run(data, tmp_path / "plain", tokenizer)) == run.DONE
    config = pi05_run(data, tmp_path / "cut", tokenizer, max_num_tokens=160, max_samples=3)
    assert run.train(config) == run.DONE
    losses = [[record["loss"] for record in series(tmp_path / name)] for name in ("plain", "cut")]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    for name in ("plain", "cut"):
        for record in series(tmp_path / name, "speed"):
            assert record["tokens_per_s"] > 0
            assert 0 < record["valid_share"] <= 1
            assert (record["samples_per_part"] == 4) == (name == "plain")
        page = write_report(tmp_path / name).read_text(encoding="utf-8")
        shown = {
            label: value for value, label in re.findall(r"<b>([^<]*)</b><span>([^<]*)</span>", page)
        }
        tokens = shown["tokens per second, median"]
        samples = shown["samples per micro-batch"]
        logged = series(tmp_path / name, "speed")
        assert tokens == f"{np.median([record['tokens_per_s'] for record in logged]):,.0f}"
        assert samples == f"{np.median([record['samples_per_part'] for record in logged]):.1f}"
        assert (samples == "4.0") == (name == "plain")
    assert (
        OnResume.find_marker(config, "max_num_tokens")
        == OnResume.find_marker(config, "max_samples")
        == OnResume.ROUNDING
    )


def test_a_budget_below_the_largest_sample_ends_before_the_run(
    data: Path, tokenizer: Path, tmp_path: Path
) -> None:
    config = pi05_run(data, tmp_path / "r", tokenizer, max_num_tokens=80)
    with refused("max_num_tokens", 80, kind=ConfigError) as caught:
        run.train(config)
    assert not (tmp_path / "r/config.yaml").exists()
    facts: dict[str, Any] = {
        "action_dim": 2,
        "state_dim": 2,
        "cameras": ("observation.images.front",),
        "chunk": 3,
    }
    images = policy_type("pi05").make_config(config.policy, **facts).sizes.vision.tokens
    assert str(images + 64 + 3) in str(caught.value)
    with pytest.raises(ConfigError, match="max_num_tokens"):
        plan(config, device="cpu")


def test_a_budget_counts_past_states(data: Path, tokenizer: Path, tmp_path: Path) -> None:
    """The largest sample has all of them; one token less is an error before the run."""
    plain = pi05_run(data, tmp_path / "r", tokenizer, max_num_tokens=1)
    past = replace(plain.policy, history=(0.1, 0.2), state_history=True)
    named = []
    for config in (plain, replace(plain, policy=past)):
        with pytest.raises(ConfigError, match=r"max_num_tokens: 1: ") as caught:
            run.train(config)
        named.append(int(str(caught.value).partition("may have ")[2].split()[0]))
    assert named[1] == named[0] + 3
    enough = replace(plain, policy=past, max_num_tokens=named[1]).resolved()
    opened = open_data(enough)
    scales = choose_normalization(enough, opened)
    check_budget(
        build_on_meta(enough, opened.policy_config(enough), scales),
        enough.batching,
        enough.samples,
        opened,
    )


def test_a_policy_without_tokens_takes_samples_alone(data: Path, tmp_path: Path) -> None:
    with refused("max_num_tokens", "flow", "max_samples", kind=ConfigError):
        run.train(tiny_config(data, tmp_path / "r", max_num_tokens=80))
    found = profile(tiny_config(data, tmp_path / "r", max_samples=3), warmup=1, steps=1)
    assert found is not None
    assert (found.samples_per_part, found.conditions["micro_batches"], found.tokens_per_s) == (
        2,
        2,
        None,
    )


def test_profile_counts_valid_and_computed_tokens() -> None:
    """Two steps of 2 s on two ranks."""
    ranks = [
        RankProfile(2.0, 0.0, 2.0, {}, 0, 0.0, {}, 1, {}, PartCounts(16, 4, valid, 400))
        for valid in (100, 300)
    ]
    found = combine(ranks, 16, None, {"steps": 2})
    assert (found.samples_per_part, found.tokens_per_s, found.valid_share) == (4, 100, 0.5)


def test_largest_part_is_within_the_limits() -> None:
    base = Batching(batch_size=16)
    assert [replace(base, max_samples=most).largest_part(2, None) for most in (None, 3, 99)] == [
        8,
        3,
        8,
    ]
    assert [
        replace(base, max_num_tokens=most).largest_part(2, 100) for most in (100, 399, 10**6)
    ] == [1, 3, 8]
    assert replace(base, micro_batch_size=4).largest_part(2, 100) == 4


def test_equal_parts_and_limits_exclude_each_other(data: Path, tmp_path: Path) -> None:
    for limit in ({"max_num_tokens": 100}, {"max_samples": 2}):
        problems = tiny_config(data, tmp_path, micro_batch_size=2, **limit).problems()
        assert [line.partition(":")[0] for line in problems] == ["micro_batch_size"]
