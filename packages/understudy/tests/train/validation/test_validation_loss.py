"""Validation losses: one number per group, the same for the same weights however it is computed."""

import math
import threading
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.config.train import ParallelConfig
from understudy.distributed import mesh as parallel
from understudy.distributed.mesh import Mesh
from understudy.policies.draws import make_draws
from understudy.policies.flow.model import FlowPolicy
from understudy.policies.losses import Detail, Loss
from understudy.policies.registry import policy_type
from understudy.report.run.tables import format_validation
from understudy.testing.mixtures import WRIST, mixed, tiny_sources
from understudy.testing.ranks import in_ranks
from understudy.testing.validated import evaluate_all
from understudy.train.data.run_data import RunData, open_data
from understudy.train.track.metrics_file import finite
from understudy.train.validation import validation_loss
from understudy.train.validation.losses import Losses
from understudy.train.validation.metrics import TermSums, best_metrics, group_losses
from understudy.train.validation.observer import Chunk, Evaluation
from understudy.train.validation.open_loop import EpisodeActions
from understudy.train.validation.validation_loss import Reading, evaluate
from understudy_base import TASK
from understudy_data.datasets.format.features import Feature
from understudy_data.load.images.decoded_cache import DecodedImages, decoded_bytes
from understudy_data.load.validation_data import (
    ValidationData,
    prefetch_chunks,
    sample_identity,
    source_key,
)
from understudy_kit import SourceConfig

FLOW = {"flow": 1.0}
DRAWS = FlowPolicy.validation_draws
SEED = 7


WIDE = {"wide": 4, "small": 4, "two": 2}  # joints
HEADS = {"wide": "arm::joint", "small": "arm::joint", "two": "hand::joint"}
SHARES = {"arm::joint": 3.0 + 1.0, "hand::joint": 5.0}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[SourceConfig, ...]:
    """Of "small" one frame is for validation."""
    wide, two, small = tiny_sources(tmp_path_factory.mktemp("mixture"), small_pictures=False)
    return wide, replace(two, weight=5), replace(small, val_episodes=(0,), drop_n_first_frames=6)


def opened(sources: tuple[SourceConfig, ...]) -> tuple[RunData, ValidationData]:
    data = open_data(mixed(sources, Path("out"), device="cpu"))
    held = ValidationData.from_sources(data, mixed=True)
    assert held is not None
    return data, held


def spread_of(head: int) -> list[float]:
    """Of each joint in the normalization; the fourth never moves."""
    return [1.0 + head, 2.0 + head, 0.5, 0.0]


def untrained(sources: tuple[SourceConfig, ...], data: RunData) -> FlowPolicy:
    """A policy all of whose parameters matter (the last layers start at zero, which would hide
    much).
    """
    config = data.policy_config(mixed(sources, Path("out")))
    count = len(data.heads)
    offset = [0.1, 0.0, -0.2, 0.0][: config.action_dim]
    maps = {
        "offset": [offset] * count,
        "spread": [spread_of(head)[: config.action_dim] for head in range(count)],
    }
    state = {
        "offset": [[0.0] * config.state_dim] * count,
        "spread": [[1.0] * config.state_dim] * count,
    }
    own = {head: (WIDE[name], 5 if WIDE[name] == 4 else 2) for name, head in HEADS.items()}
    dims = {
        "action": [own[head][0] for head in data.heads],
        "observation.state": [own[head][1] for head in data.heads],
    }
    normalization = {
        "heads": list(data.heads),
        "action": maps,
        "observation.state": state,
        "dims": dims,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = FlowPolicy(config, normalization)
        for parameter in policy.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    return policy


@pytest.fixture(scope="module")
def whole(sources: tuple[SourceConfig, ...], mesh: Mesh) -> dict[str, Any]:
    data, held = opened(sources)
    return evaluate_all(untrained(sources, data), held, SEED, mesh, every=2, per_dim=True)


# -- the figures


def test_it_is_what_a_slow_obvious_computation_finds(
    sources: tuple[SourceConfig, ...], whole: dict[str, Any]
) -> None:
    """One sample at a time, one source at a time, nothing shared with the code under test but the
    policy itself.
    """
    data, _ = opened(sources)
    policy = untrained(sources, data)
    found: list[dict[str, Any]] = []
    for number, name in enumerate(data.names):
        part = data.validation[number]
        place = 0
        assert part is not None
        for episode, start, stop in part.segments.tolist():
            for frame in range(start, stop):
                one = part.sample(episode, frame)
                width = one["action"].shape[1]
                felt = one["observation.state"]
                action = torch.zeros(1, 3, 4)
                state = torch.zeros(1, 5)
                action[0, :, :width], state[0, : len(felt)] = one["action"], felt
                batch = {
                    key: value[None]
                    for key, value in one.items()
                    if isinstance(value, torch.Tensor)
                }
                batch |= {"task": [one["task"]], "action": action, "observation.state": state}
                batch |= {"head": torch.tensor([data.head_of_source[number]])}
                if name == "two":
                    batch[f"{WRIST}_is_missing"] = torch.tensor([False])
                at = sample_identity(np.array([episode]), np.array([frame]), source_key(name))
                with torch.no_grad():
                    loss = policy.losses(
                        batch, make_draws(policy.random_spec("validation"), SEED, at), detail=True
                    )["flow"]
                assert loss.detail is not None
                row = {
                    "source": name,
                    "head": data.heads[data.head_of_source[number]],
                    "task": one["task"],
                }
                row |= {
                    "episode": (name, episode),
                    "sum": float(loss.sum),
                    "count": int(loss.count),
                }
                row |= {
                    "draws": loss.detail.sum[0].sum(1).tolist(),
                    "dims": loss.detail.sum[0].sum(0).tolist()[:width],
                }
                valid = 3 - int(one["action_is_pad"].sum())
                row["slots"] = valid * DRAWS
                assert row["count"] == valid * DRAWS * width
                if place % 2 == 0:
                    noise = torch.from_numpy(validate_noise(at))
                    proposed = policy.act(batch, {"noise": noise}, EpisodeActions.STEPS)[
                        0, :valid, :width
                    ]
                    row["error"] = (proposed - one["action"][:valid]).numpy().astype(float)
                found.append(row)
                place += 1

    def check(entry: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        mean = sum(r["sum"] for r in rows) / (count := sum(r["count"] for r in rows))
        assert entry["loss"] == pytest.approx(mean, rel=1e-5)
        assert (entry["samples"], entry["elements"]) == (len(rows), count)
        of_episode = defaultdict(float)
        for r in rows:
            of_episode[r["episode"]] += (r["sum"] - mean * r["count"]) / count
        m = len(of_episode)
        assert entry["episodes"] == m
        if m == 1:
            assert entry["se"] is None
        else:
            assert entry["se"] == pytest.approx(
                math.sqrt(m / (m - 1) * sum(u * u for u in of_episode.values())), rel=1e-3
            )

    check(whole, found)
    for kind in ("head", "source", "task"):
        names = sorted({row[kind] for row in found})
        assert list(whole[f"{kind}s"]) == names
        for name in names:
            check(whole[f"{kind}s"][name], [row for row in found if row[kind] == name])
        losses = [entry["loss"] for entry in whole[f"{kind}s"].values()]
        assert whole["macros"][f"{kind}s"] == pytest.approx(sum(losses) / len(losses))
    groups = {(g["head"], g["source"], g["task"]): g for g in whole["groups"]}
    assert set(groups) == {(r["head"], r["source"], r["task"]) for r in found}
    assert len(groups) == len(whole["groups"])
    for which, entry in groups.items():
        check(entry, [r for r in found if (r["head"], r["source"], r["task"]) == which])
    assert whole["macro"] == whole["macros"]["tasks"]
    weighted = sum(SHARES[name] * entry["loss"] for name, entry in whole["heads"].items()) / sum(
        SHARES.values()
    )
    assert whole["weighted"] == pytest.approx(weighted)
    draws = np.array([r["draws"] for r in found]).sum(0) * DRAWS / sum(r["count"] for r in found)
    assert [bin["loss"] for bin in whole["time"]] == pytest.approx(draws.tolist(), rel=1e-5)
    assert np.mean([bin["loss"] for bin in whole["time"]]) == pytest.approx(whole["loss"])
    assert (whole["time"][0]["from"], whole["time"][-1]["to"]) == (0.0, 1.0)
    for name in data.names:
        rows = [r for r in found if r["source"] == name]
        dims = np.array([r["dims"] for r in rows]).sum(0) / sum(r["slots"] for r in rows)
        entry = whole["sources"][name]["dims"]
        assert list(entry) == [str(i) for i in range(len(dims))]
        assert list(entry.values()) == pytest.approx(dims.tolist(), rel=1e-5)
        errors = np.concatenate([r["error"] for r in rows if "error" in r])
        told = whole["open_loop"]["sources"][name]
        assert told["samples"] == sum("error" in r for r in rows)
        assert list(told["mse"].values()) == pytest.approx((errors**2).mean(0).tolist(), rel=1e-4)
        assert list(told["mae"].values()) == pytest.approx(abs(errors).mean(0).tolist(), rel=1e-4)
        head = data.heads.index(rows[0]["head"])
        moving = errors[:, :3] / np.array(spread_of(head)[: min(3, errors.shape[1])])
        assert told["normalised"] == pytest.approx((moving**2).mean(), rel=1e-4)


def validate_noise(at: torch.Tensor) -> np.ndarray:
    from understudy_data.order import sample_normal

    return sample_normal(SEED, "open loop", at.numpy(), (3, 4))


def test_a_group_without_an_element_is_absent_and_one_of_no_weight_does_not_poison(
    sources: tuple[SourceConfig, ...],
) -> None:
    """0 * NaN is NaN, so samples of weight 0 must be left out, not multiplied."""
    _, held = opened(sources)
    nothing = held.source == held.names.index("small")
    broken = held.source == held.names.index("two")
    sums = np.where(broken, np.nan, np.where(nothing, 0.0, 3.0))
    counts = np.where(nothing, 0.0, 2.0)
    found = {"flow": TermSums(sums, counts, np.stack([sums, sums]) / 2)}
    tasks = ["rare" if empty else "often" for empty in nothing]
    result = group_losses(found, FLOW, held, tasks)
    assert list(result["tasks"]) == ["often"]
    assert list(result["sources"]) == ["two", "wide"]
    assert result["sources"]["wide"]["loss"] == 1.5
    assert math.isnan(result["sources"]["two"]["loss"])
    assert math.isnan(result["weighted"])
    weights = tuple(0.0 if head == "hand::joint" else 1.0 for head in held.heads)
    assert group_losses(found, FLOW, replace(held, head_weights=weights), tasks)["weighted"] == 1.5
    assert "weighted" not in group_losses(
        found, FLOW, replace(held, head_weights=(0.0, 0.0)), tasks
    )


def test_where_nothing_counts_there_is_no_loss_that_could_be_the_best(
    sources: tuple[SourceConfig, ...],
) -> None:
    _, held = opened(sources)
    none = np.zeros(len(held))
    result = group_losses(
        {"flow": TermSums(none, none, np.zeros((2, len(held))))}, FLOW, held, ["x"] * len(held)
    )
    assert math.isnan(result["loss"])
    assert all(math.isnan(mean) for mean in (result["macro"], *result["macros"].values()))
    assert "weighted" not in result
    assert "all samples        not finite" in format_validation({"step": 1, **finite(result)})


@pytest.mark.filterwarnings("error")
def test_a_loss_beyond_all_numbers_is_told_and_no_more(sources: tuple[SourceConfig, ...]) -> None:
    _, held = opened(sources)
    sums = np.full(len(held), 3.0)
    counts = np.full(len(held), 2.0)
    sums[0], sums[-1], counts[-1] = np.inf, 0.0, 0.0
    result = group_losses(
        {"flow": TermSums(sums, counts, np.stack([sums, sums]) / 2)}, FLOW, held, ["x"] * len(held)
    )
    assert result["loss"] == result["macro"] == math.inf
    assert math.isnan(result["se"])
    assert [entry["loss"] for entry in result["sources"].values()] == [math.inf, 1.5, 1.5]


def test_terms_are_pooled_apart_and_weighted(sources: tuple[SourceConfig, ...]) -> None:
    _, held = opened(sources)
    rng = np.random.default_rng(0)

    def term(count: int) -> TermSums:
        draws = rng.random((2, len(held)))
        return TermSums(draws.sum(0), np.full(len(held), float(count)), draws, (0.0, 0.5, 1.0))

    one = term(4)
    two = term(6)
    result = group_losses(
        {"flow": one, "dynamics": two}, {"flow": 1.0, "dynamics": 0.5}, held, ["x"] * len(held)
    )
    means = one.sums.sum() / one.counts.sum(), two.sums.sum() / two.counts.sum()
    assert result["loss"] == pytest.approx(means[0] + 0.5 * means[1])
    assert result["terms"]["dynamics"] == {
        "loss": pytest.approx(means[1]),
        "elements": 6 * len(held),
    }
    assert np.mean([bin["loss"] for bin in result["time"]]) == pytest.approx(result["loss"])
    assert [set(bin) for bin in result["time"]] == [{"from", "to", "loss"}] * 2


def test_means_of_groups_average_each_term_over_the_groups_that_have_it(
    sources: tuple[SourceConfig, ...],
) -> None:
    """A source without texts has loss 1, the others have 1 + 10. Control: a mean of the losses is
    another number.
    """
    _, held = opened(sources)
    silent = held.source == held.names.index("two")
    flow = TermSums(ones := np.ones(len(held)), ones, ones[None])
    text = TermSums(10.0 * ~silent, 1.0 * ~silent, 10.0 * ~silent[None])
    found = {"flow": flow, "text": text}
    weights = {"flow": 1.0, "text": 1.0}
    result = group_losses(found, weights, held, ["x" if no else "y" for no in silent])
    assert [set(result["sources"][name]["terms"]) for name in ("two", "wide")] == [
        {"flow"},
        {"flow", "text"},
    ]
    assert np.mean([entry["loss"] for entry in result["sources"].values()]) < 11
    assert {*result["macros"].values(), result["macro"], result["weighted"]} == {11.0}
    notes = [
        part for part in format_validation({"step": 1, **result}).split("\n\n") if "terms" in part
    ]
    assert len(notes) == 1
    assert (
        format_validation(
            {"step": 1, **group_losses({"flow": flow}, FLOW, held, ["x"] * len(held))}
        ).count("terms")
        == 0
    )


def test_terms_with_their_own_flow_times_have_their_own_intervals(
    sources: tuple[SourceConfig, ...],
) -> None:
    """Terms without a flow time are in the first ones, and terms without an element in none."""
    _, held = opened(sources)
    rng = np.random.default_rng(0)

    def term(edges: tuple[float, ...], count: float = 3.0) -> TermSums:
        draws = rng.random((2, len(held))) if edges else np.ones((2, len(held)))
        return TermSums(draws.sum(0), np.full(len(held), count), draws, edges)

    found = {
        "text": term(()),
        "flow": term((0.0, 0.5, 1.0)),
        "images": term((0.1, 0.9, 1.0)),
        "none": term((), 0.0),
    }
    weights = {"text": 2.0, "flow": 1.0, "images": 0.5, "none": 1.0}
    result = group_losses(found, weights, held, ["x"] * len(held))
    size = 3.0 * len(held)
    flow, images = (found[name].draws.sum(1) * 2 / size for name in ("flow", "images"))
    assert result["time"] == [
        {
            "from": 0.0,
            "to": 0.5,
            "loss": pytest.approx(flow[0] + 2 * 2 / 3),
            "terms": ["flow", "text"],
        },
        {
            "from": 0.5,
            "to": 1.0,
            "loss": pytest.approx(flow[1] + 2 * 2 / 3),
            "terms": ["flow", "text"],
        },
        {"from": 0.1, "to": 0.9, "loss": pytest.approx(0.5 * images[0]), "terms": ["images"]},
        {"from": 0.9, "to": 1.0, "loss": pytest.approx(0.5 * images[1]), "terms": ["images"]},
    ]
    assert sum(bin["loss"] for bin in result["time"]) / 2 == pytest.approx(result["loss"])
    assert group_losses({"text": term(())}, {"text": 1.0}, held, ["x"] * len(held))["time"] == []


@pytest.mark.parametrize("name", ["flow", "world_action", "pi05", "pi0"])
def test_intervals_of_flow_time_hold_the_draws(name: str) -> None:
    """Those of images in a world-action model are shifted, those of released weights begin above
    0.
    """
    facts: dict[str, Any] = {
        "action_dim": 2,
        "state_dim": 2,
        "cameras": ("observation.images.a",),
        "chunk": 4,
    }
    sizes: dict[str, Any] = {"size": "tiny", "flow_time": "released", "future": True}
    if name == "flow":
        sizes = {"future": True, "width": 16, "layers": 1}
    scales = {
        key: {"offset": [0.0, 0.0], "spread": [1.0, 1.0]} for key in ("action", "observation.state")
    }
    kind = policy_type(name)
    policy = kind.build(kind.config(**facts | sizes), scales)
    spec = policy.random_spec("validation")
    made = make_draws(spec, 0, np.arange(200))
    first = {}
    for term in policy.loss_terms:
        times = made[f"{term} time" if f"{term} time" in spec else "flow time"].double().numpy()
        edges = np.array(policy.time_edges(term))
        assert len(edges) == times.shape[1] + 1
        assert (edges[:-1] <= times.min(0) + 1e-6).all()
        assert (times.max(0) <= edges[1:] + 1e-6).all()
        width = np.diff(edges)
        # no interval is wider than its draws
        assert (times.min(0) < edges[:-1] + 0.25 * width).all()
        assert (times.max(0) > edges[1:] - 0.25 * width).all()
        first[term] = edges[1]
    assert len(set(first.values())) == (3 if name == "world_action" else 1)


def test_sums_are_rounded_once_whatever_the_sequence_of_the_samples(
    sources: tuple[SourceConfig, ...],
) -> None:
    """Sums that cancel: added one by one, each of these sequences gives a sum of its own."""
    _, held = opened(sources)
    rng = np.random.default_rng(0)
    count = len(held)
    assert count >= 6
    sums = np.zeros(count)
    counts = np.full(count, 3.0)
    large = rng.permutation(count)[: count // 2 * 2].reshape(2, -1)
    sums[large[0]] = 10.0 ** rng.uniform(14, 16, large.shape[1])
    sums[large[1]] = -sums[large[0]]
    sums += rng.random(count)
    counts += rng.random(count) * 10.0 ** rng.uniform(-16, 0, count)
    exact = [float(sum(map(Fraction, column.tolist()))) for column in (sums, counts)]
    plain = set()
    for sequence in (
        np.arange(count),
        np.arange(count)[::-1],
        *(rng.permutation(count) for _ in range(4)),
    ):
        turned = replace(held, source=held.source[sequence], episode=held.episode[sequence])
        found = {
            "flow": TermSums(
                sums[sequence], counts[sequence], np.stack([sums[sequence]] * 2), (0.0, 0.5, 1.0)
            )
        }
        result = group_losses(found, FLOW, turned, ["x"] * count)
        assert result["loss"] == result["tasks"]["x"]["loss"] == exact[0] / exact[1]
        assert [bin["loss"] for bin in result["time"]] == [exact[0] * 2 / exact[1]] * 2
        plain |= {float(np.add.accumulate(column[sequence])[-1]) for column in (sums, counts)}
    assert len(plain) > 4  # the control


def test_each_stream_of_a_policy_has_its_losses_by_its_own_flow_time(mesh: Mesh) -> None:
    """The times of the states lie in a drawn sequence beside those of the actions; both are
    reported by time.
    """
    rng = np.random.default_rng(0)
    time = torch.from_numpy(
        np.stack([np.sort(rng.random((5, DRAWS)), 1), rng.random((5, DRAWS))], axis=2)
    )
    losses = {}
    for stream, term in enumerate(("flow", "dynamics")):
        detail = Detail(
            time[:, :, stream, None].float().expand(-1, -1, 2), torch.ones(5, 2, dtype=torch.int64)
        )
        detail = detail._replace(order=time[:, :, stream].argsort(dim=1))
        losses[term] = Loss(detail.sum.sum((1, 2)), torch.full((5,), 2 * DRAWS), detail)
    policy: Any = SimpleNamespace(validation_draws=DRAWS, time_edges=lambda term: ())
    held: Any = range(7)
    observer = Losses(Evaluation(policy, held, SEED, mesh, dict.fromkeys(losses, 1.0)))
    observer.add(Chunk(slice(1, 6), {TASK: [""] * 5}, losses, counts=True))
    observer.add(Chunk(slice(0, 5), {TASK: [""] * 5}, losses, counts=False))
    sums = observer.term_sums(np.ones(7, bool))
    # here the loss of a draw is twice its time
    for stream, term in enumerate(("flow", "dynamics")):
        expected = 2 * time[:, :, stream].sort(dim=1).values.T
        draws = torch.from_numpy(sums[term].draws)
        torch.testing.assert_close(draws[:, 1:6], expected, rtol=1e-6, atol=0)
        assert not draws[:, [0, 6]].any()


def test_an_open_loop_error_of_joints_that_never_move_is_none_and_not_the_best(
    sources: tuple[SourceConfig, ...], mesh: Mesh
) -> None:
    data, held = opened(sources[1:2])
    policy = untrained(sources[1:2], data)
    policy.normalizer.action.spread.zero_()
    result = evaluate_all(policy, held, SEED, mesh, every=1)
    assert (
        result["open_loop"]["normalised"]
        is result["open_loop"]["sources"]["two"]["normalised"]
        is None
    )
    assert result["open_loop"]["sources"]["two"]["mse"]["0"] > 0
    assert "open_loop" not in best_metrics(result)


class Largest:
    """Observes the largest loss of a sample, over all and by source."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._figures = evaluation.zeros(len(evaluation.held))

    def add(self, chunk: Chunk) -> None:
        if chunk.counts:
            self._figures[chunk.part] = chunk.losses["flow"].sum.double()

    def result(self, readable: np.ndarray) -> dict[str, Any]:
        held = self._evaluation.held
        losses = self._evaluation.gather(self._figures)
        sources = {"no such source": {"largest": 1.0}}
        for number, name in enumerate(held.names):
            sources[name] = {"largest": losses[readable & (held.source == number)].max()}
        return {"largest": losses[readable].max(), "sources": sources}


def test_an_observer_extends_the_figures_of_the_losses(
    sources: tuple[SourceConfig, ...], mesh: Mesh
) -> None:
    data, held = opened(sources)
    evaluation = Evaluation(untrained(sources, data), held, SEED, mesh, FLOW)
    plain = evaluate(evaluation, [Losses(evaluation)])
    result = evaluate(evaluation, [Losses(evaluation), Largest(evaluation)])
    largest = {name: entry.pop("largest") for name, entry in result["sources"].items()}
    assert list(largest) == list(plain["sources"])
    assert result.pop("largest") == max(largest.values()) > min(largest.values()) > 0
    assert result == plain


# -- however it is computed


def several(sources: tuple[SourceConfig, ...], shards: int, sizes: list[int]) -> list[Any]:
    """In one rank of some: the tables for each size of chunks, with weights in `shards` shards, and
    some threads.
    """
    config = mixed(
        sources, Path("out"), device="cpu", parallel=ParallelConfig(dp_shard=shards, timeout=300)
    )
    out = []
    data, held = opened(sources)
    with parallel.join_mesh(config.mesh) as mesh:
        for size in sizes:
            policy = untrained(sources, data)
            parallel.shard(
                policy,
                mesh,
                config.precision,
                policy.blocks(),
                policy.float32_modules(),
                policy.forward_methods,
            )
            validation_loss.BATCH = size
            every = 9 if size == 4 else 2  # 9: chunks of which no frame is acted on
            out.append(
                evaluate_all(
                    policy, held, SEED, mesh, every, per_dim=True, reading=Reading(1 + mesh.rank)
                )
            )
    return out


def test_one_rank_two_and_three_find_the_same_bits(
    sources: tuple[SourceConfig, ...], whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that come out even, that do not, and fewer chunks than ranks; whole weights and
    sharded ones.
    """
    _, held = opened(sources)
    sizes = [4, 7, len(held)]
    monkeypatch.setattr(validation_loss, "BATCH", validation_loss.BATCH)  # `several` changes it
    alone = several(sources, 1, sizes)
    assert alone[-1] == whole
    for world, shards in ((2, 2), (3, 1)):
        assert in_ranks(world, several, sources, shards, sizes) == [alone] * world


def test_the_mean_of_means_is_another_number(
    sources: tuple[SourceConfig, ...], mesh: Mesh, whole: dict[str, Any]
) -> None:
    """The negative control: the average of figures per rank, or per batch, depends on how samples
    are dealt.
    """
    data, held = opened(sources)
    policy = untrained(sources, data)

    def mean_of_parts(size: int) -> float:
        means = []
        for low in range(0, len(held), size):
            part = slice(low, min(low + size, len(held)))
            with torch.no_grad():
                loss = policy.losses(
                    held.batch(part),
                    make_draws(policy.random_spec("validation"), SEED, held.identity(part)),
                )["flow"]
            means.append(float(loss.sum.sum() / loss.count.sum()))
        return float(np.mean(means))

    per_rank = {mean_of_parts(-(-len(held) // world)) for world in (2, 3)}
    per_batch = {mean_of_parts(size) for size in (4, 7)}
    assert all(abs(other - whole["loss"]) > 1e-3 * whole["loss"] for other in per_rank | per_batch)
    assert len(per_rank) == len(per_batch) == 2


def test_the_sequence_of_the_sources_changes_nothing(
    sources: tuple[SourceConfig, ...], mesh: Mesh, whole: dict[str, Any]
) -> None:
    data, held = opened(sources[::-1])
    assert data.names == ("small", "two", "wide")
    reading = Reading(threads=3, memory=0)
    again = evaluate_all(untrained(sources, data), held, SEED, mesh, 2, True, reading)
    assert again == whole


def test_a_source_that_is_added_changes_no_draws(sources: tuple[SourceConfig, ...]) -> None:
    one = opened(sources[1:2])[1]
    all_three = opened(sources)[1]
    of_one = all_three.source == all_three.names.index("two")
    everything = all_three.identity(slice(0, len(all_three)))
    assert torch.equal(one.identity(slice(0, len(one))), everything[torch.from_numpy(of_one)])
    # though episodes and frames have the same numbers
    assert len(set(everything.tolist())) == len(everything)
    assert everything.min() >= 0
    assert np.array_equal(one.place, all_three.place[of_one])  # so the same frames are acted on


def test_the_only_dataset_of_a_run_is_known_without_its_name(
    sources: tuple[SourceConfig, ...],
) -> None:
    config = mixed(sources, Path("out"))
    flat = replace(config.data, sources=(), root=sources[0].root)
    held = ValidationData.from_sources(open_data(replace(config, data=flat)), mixed=False)
    assert held is not None
    assert torch.equal(
        held.identity(slice(0, 5)), sample_identity(held.episode[:5], held.frame[:5])
    )


def test_it_repeats_to_the_bit_and_leaves_no_trace(
    sources: tuple[SourceConfig, ...], mesh: Mesh
) -> None:
    data, held = opened(sources[1:2])
    policy = untrained(sources, data)
    drawn = SEED
    policy.train()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = evaluate_all(policy, held, drawn, mesh, every=1)
    torch.manual_seed(6)
    resident = held.keep_decoded(1 << 30)
    assert evaluate_all(policy, resident, drawn, mesh, every=1) == first
    # from frames that stayed decoded
    assert evaluate_all(policy, resident, drawn, mesh, every=1) == first
    torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), state)
    assert policy.training
    assert all(p.grad is None for p in policy.parameters())
    assert evaluate_all(policy, held, 8, mesh, every=1) != first


def test_dropout_is_off_and_on_again(
    sources: tuple[SourceConfig, ...],
    mesh: Mesh,
    whole: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, held = opened(sources)
    policy = untrained(sources, data)
    drop = torch.nn.Dropout(0.5)
    policy.add_module("drop", drop)
    policy.layers[0].register_forward_hook(lambda module, arguments, result: drop(result))

    def found() -> dict[str, Any]:
        return evaluate_all(policy, held, SEED, mesh, every=2, per_dim=True)

    for training in (True, False):
        policy.train(training)
        assert found() == whole
        assert (policy.training, drop.training) == (training, training)
    policy.train()
    monkeypatch.setattr(policy, "eval", lambda: policy)
    assert found() != whole, "the dropout does nothing: this test shows nothing"


def test_pictures_that_are_resized_as_they_are_read_are_those_that_stay_decoded(
    mesh: Mesh, tmp_path: Path
) -> None:
    sources = tiny_sources(tmp_path)
    data, held = opened(sources)
    assert held.size is not None
    policy = untrained(sources, data)
    part = slice(0, len(held))
    given = held.batch(part)
    kept = held.keep_decoded(1 << 30).batch(part)
    assert tuple(given[WRIST].shape) == (len(held), 3, *held.size)
    assert {
        k
        for k, v in given.items()
        if not (torch.equal(v, kept[k]) if torch.is_tensor(v) else v == kept[k])
    } == set()
    needed = sum(decoded_bytes(dataset, held.size) for dataset in held.datasets)
    partly = [
        isinstance(d.video_frames, DecodedImages) for d in held.keep_decoded(needed - 1).datasets
    ]
    assert partly.count(False) == 1  # all of them would fit alone
    first = evaluate_all(policy, held, SEED, mesh)
    decoded = held.keep_decoded(1 << 30)
    assert evaluate_all(policy, decoded, SEED, mesh, reading=Reading(2)) == first


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["shoulder", "grip"], ["shoulder", "grip"]),
        ({"motors": ["shoulder", "grip"]}, ["shoulder", "grip"]),
        ({"axes": {"motors": ["shoulder", "grip"]}}, ["shoulder", "grip"]),
        (None, ["0", "1"]),
        (["grip", "grip"], ["0", "1"]),
        (["only one"], ["0", "1"]),
        ({"shoulder": 0, "grip": 1}, ["shoulder", "grip"]),
        ({"grip": 1, "shoulder": 0}, ["shoulder", "grip"]),
        ({"grip": 1, "shoulder": 1}, ["0", "1"]),
        ([["shoulder", "grip"]], ["shoulder", "grip"]),
        ({"left": ["shoulder"], "right": ["grip"]}, ["shoulder", "grip"]),
        ([["shoulder", "grip"], "wrist"], ["0", "1"]),
    ],
)
def test_joints_bear_the_names_that_the_dataset_gives(
    sources: tuple[SourceConfig, ...], names: Any, told: list[str]
) -> None:
    _, held = opened(sources)
    catalog = SimpleNamespace(features={"action": Feature("action", "float32", (2,), names)})
    fake: Any = SimpleNamespace(catalog=catalog)
    assert replace(held, datasets=(fake,)).action_names(0) == told


# -- reading ahead


@given(st.integers(0, 40), st.integers(1, 7))
def test_chunks_are_dealt_once_and_evenly(chunks: int, world: int) -> None:
    shares = [ValidationData.share_chunks(chunks, rank, world) for rank in range(world)]
    assert sorted(number for own, _ in shares for number in own) == list(range(chunks))
    assert {turns for _, turns in shares} == {max(len(own) for own, _ in shares)}
    assert max(len(own) for own, _ in shares) - min(len(own) for own, _ in shares) <= 1
    assert all(own == list(range(own[0], own[-1] + 1)) for own, _ in shares if own)


@given(st.integers(0, 20), st.integers(1, 5), st.integers(0, 5))
def test_chunks_are_read_once_each_thread_its_neighbors_within_the_memory(
    count: int, threads: int, room: int
) -> None:
    running = 0
    most = 0
    by_thread = defaultdict(list)
    lock = threading.Lock()

    def read(number: int) -> dict[str, Any]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            by_thread[threading.get_ident()].append(number)
        made = {"x": torch.full((8,), number, dtype=torch.uint8), "task": ["?"] * 8}
        with lock:
            running -= 1
        return made

    numbers = list(range(100, 100 + count))
    got = [
        (number, int(batch["x"][0]))
        for number, batch in prefetch_chunks(read, numbers, threads, room * 8)
    ]
    assert sorted(got) == [(number, number) for number in numbers]
    assert most <= max(1, min(threads, room))


def test_what_cannot_be_read_is_raised() -> None:
    def read(number: int) -> dict[str, Any]:
        if number == 3:
            raise ValueError("chunk 3")
        return {"x": torch.zeros(1)}

    with pytest.raises(ValueError, match="chunk 3"):
        list(prefetch_chunks(read, range(6), 2, 1 << 20))
    assert not [t for t in threading.enumerate() if t.name.startswith("understudy-held-out")]
