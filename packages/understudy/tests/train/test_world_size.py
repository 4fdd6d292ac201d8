"""However many processes train, and however the weights are spread over them: the same run, bit for
bit.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from understudy.compile import compile_blocks, missing_compiler
from understudy.config.train import OptimConfig, ParallelConfig, TrainConfig
from understudy.distributed import mesh as parallel
from understudy.distributed.activation_checkpoint import apply_activation_checkpointing
from understudy.distributed.mesh import Mesh
from understudy.optim.adamw import Float32AdamW
from understudy.optim.param_groups import freeze
from understudy.policies.flow.model import FlowPolicy
from understudy.testing import policies
from understudy.testing.ranks import in_ranks, outcomes_in_ranks
from understudy.testing.runs import same_run, series, tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.micro_batches import MicroBatch
from understudy.train.optimizer_step import StepResult, optimizer_step
from understudy.train.precision import make_optimizer, named_tensors
from understudy.train.state import TrainState
from understudy.train.validation import validation_loss
from understudy_base import Batch
from understudy_kit import override

STEPS = 20
SHORT = 10
WIDE = 3

# -- whole runs ------------------------------------------------------------------------------------


def trained(
    data: Path, out: Path, steps: int, shards: int = 1, batch: int = 8, micro_batch: int | None = 2
) -> None:
    """A run of `steps` of `STEPS` steps on 1 to 16 processes; the amount computed at a time is the
    same on all.

    Each process writes the samples of its steps to OUT-RANK.json: lists of [position, episode,
    frame].
    """
    base = tiny_config(
        data,
        out,
        device="cpu",
        batch_size=batch,
        steps=steps,
        micro_batch_size=micro_batch,
        log={"every": 50},
    )
    config = override(
        base,
        checkpoint={"every": steps},
        val={"every": steps // 2},  # twice: weights gathered for one must not be used for the other
        schedule=replace(base.schedule, decay_steps=STEPS),
        parallel=ParallelConfig(timeout=300, dp_shard=shards),
    )
    seen = []
    take_step = TrainState.train_step

    def record(state: TrainState, batch: Batch, *others: Any) -> StepResult:
        seen.append(
            torch.stack(
                [batch[key] for key in ("position", "episode_index", "frame_index")], 1
            ).tolist()
        )
        return take_step(state, batch, *others)

    with pytest.MonkeyPatch.context() as patch:
        # several batches, and not the same number for each rank
        patch.setattr(validation_loss, "BATCH", 8)
        patch.setattr(TrainState, "train_step", record)
        assert run.train(config) == run.DONE
    Path(f"{out}-{os.environ.get('RANK', 0)}.json").write_text(json.dumps(seen))


MESHES = {  # processes, steps, shards, samples of a step, and those computed at a time
    "one": (1, STEPS, 1, 8, 2),
    "two": (2, STEPS, 1, 8, 2),
    "four": (4, STEPS, 1, 8, 2),
    "short": (1, SHORT, 1, 8, 2),
    "at once": (1, SHORT, 1, 8, None),
    "fsdp2": (2, SHORT, 2, 8, 2),
    "fsdp4": (4, SHORT, 4, 8, 2),
    "hsdp4": (4, SHORT, 2, 8, 2),
    "wide": (1, WIDE, 1, 16, 1),
    "hsdp16": (16, WIDE, 4, 16, 1),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory of the run on a mesh of `MESHES`: trained when a test first asks for it."""
    root = tmp_path_factory.mktemp("worlds")
    data = tiny_dataset(root / "dataset")

    @cache
    def run_dir(name: str) -> Path:
        world, *others = MESHES[name]
        if world == 1:
            trained(data, root / name, *others)
        else:
            in_ranks(world, trained, data, root / name, *others)
        return root / name

    return run_dir


def samples_of(root: Path, world: int) -> list[list[list[tuple[int, ...]]]]:
    """Samples of each step of each process of a run: (position, episode, frame)."""
    ranks = [json.loads(Path(f"{root}-{rank}.json").read_text()) for rank in range(world)]
    return [[[tuple(sample) for sample in step] for step in steps] for steps in ranks]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("other", ["two", pytest.param("four", marks=pytest.mark.long)])
def test_the_number_of_processes_changes_no_bit(runs: Callable[[str], Path], other: str) -> None:
    """One process (and 4 micro-batches), 2 (and 2), 4 (and 1): losses, validation losses, every
    tensor, the policy.
    """
    assert len(series(runs("one"))) == STEPS
    same_run(runs("one"), runs(other))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "other", ["fsdp2", *(pytest.param(name, marks=pytest.mark.long) for name in ("fsdp4", "hsdp4"))]
)
def test_replicas_and_shards_are_the_same_to_the_bit(
    runs: Callable[[str], Path], other: str
) -> None:
    same_run(runs("short"), runs(other))
    assert series(runs(other)) == series(runs("one"))[:SHORT]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_four_replicas_of_four_shards_are_one_process_to_the_bit(
    runs: Callable[[str], Path],
) -> None:
    """Without a tolerance: gradients are summed in float64 and rounded once, so their sequence does
    not matter.

    The samples of a step are those of one process, each on one rank.
    """
    same_run(runs("wide"), runs("hsdp16"))
    [alone], ranks = samples_of(runs("wide"), 1), samples_of(runs("hsdp16"), 16)
    assert len(alone) == WIDE
    for number, samples in enumerate(alone):
        steps = [rank[number] for rank in ranks]
        assert [len(step) for step in steps] == [1] * 16
        assert sorted(sample for step in steps for sample in step) == sorted(samples)
        assert [position for position, *_ in sorted(samples)] == list(
            range(16 * number, 16 * (number + 1))
        )
    frames = [frame for samples in alone for _, *frame in samples]
    assert len({tuple(frame) for frame in frames}) == 16 * WIDE, "all of one epoch"


@pytest.mark.timeout(900)
def test_what_is_computed_at_a_time_does_change_bits(runs: Callable[[str], Path]) -> None:
    """The control: the same batch at once is rounded differently, close at first; training lets it
    grow from there.
    """
    one, other = (series(runs(name)) for name in ("short", "at once"))
    assert one != other
    assert [r["loss"] for r in one[:5]] == pytest.approx([r["loss"] for r in other[:5]], rel=1e-5)


def otherwise(data: Path, out: Path) -> None:
    mine = int(os.environ.get("RANK", 0))
    run.train(tiny_config(data, out, device="cpu", seed=7 + mine))


@pytest.mark.long
def test_settings_that_differ_between_ranks_end_all_of_them(tmp_path: Path) -> None:
    data = tiny_dataset(tmp_path / "dataset")
    for kind, said in outcomes_in_ranks(2, otherwise, data, tmp_path / "r"):
        assert kind == "raised"
        assert "ConfigError: seed: rank 0 was started with 7, rank 1 with 8" in said
    assert not (tmp_path / "r/config.yaml").exists()


# -- single steps ----------------------------------------------------------------------------------


def spread(mesh: Mesh, config: TrainConfig, policy: FlowPolicy) -> Float32AdamW:
    parallel.shard(
        policy,
        mesh,
        config.precision,
        policy.blocks(),
        policy.float32_modules(),
        policy.forward_methods,
    )
    return make_optimizer(policy, config.optim, {}, accumulates=config.batching.accumulates())


def uneven(count: int = 8) -> dict[str, Any]:
    """A batch whose second half is mostly padding."""
    batch = policies.batch(count)
    batch["action_is_pad"] = (
        torch.arange(4) >= torch.tensor([4] * (count // 2) + [1] * (count // 2))[:, None]
    )
    return batch


def share(mesh: Mesh, batch: Mapping[str, Any], count: int) -> list[MicroBatch]:
    """This rank's micro-batches of a global batch that is cut into `count` in all."""
    each = count // mesh.world_size
    return policies.micro_batches(
        batch, policies.as_draws(*policies.draws(len(batch["task"]))), count
    )[mesh.rank * each : (mesh.rank + 1) * each]


def take(
    mesh: Mesh, policy: FlowPolicy, optimizer: Float32AdamW, parts: list[MicroBatch], **other: Any
) -> StepResult:
    return optimizer_step(
        policy, optimizer, parts, mesh, lr=1e-2, clip=1.0, weights={"flow": 1.0}, **other
    )


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        n: (t.full_tensor() if hasattr(t, "full_tensor") else t).clone() for n, t in tensors.items()
    }


def gradients(policy: nn.Module) -> dict[str, Tensor]:
    return whole({name: p.grad for name, p in policy.named_parameters() if p.grad is not None})


def stepped(shards: int) -> dict[str, Any]:
    """Results on one rank of single steps of `policies.policy()` on its mesh."""
    config = TrainConfig(
        device="cpu", micro_batch_size=4, parallel=ParallelConfig(timeout=300, dp_shard=shards)
    )
    with parallel.join_mesh(config.mesh) as mesh:
        told: dict[str, Any] = {}
        policy = policies.policy()
        optimizer = spread(mesh, config, policy)
        result = take(mesh, policy, optimizer, share(mesh, uneven(), 2), check=True)
        told["uneven"] = [float(value) for value in result[:3]], gradients(policy)

        batch = uneven()
        batch["action"][batch["action_is_pad"]] = math.nan
        clean = policies.policy()
        take(mesh, clean, spread(mesh, config, clean), share(mesh, batch, 2))
        told["padded"] = gradients(clean)

        before = whole(named_tensors(policy, optimizer, None))
        spoilt = uneven()
        spoilt["observation.state"][-1, 0] = math.inf  # of the last rank's last sample
        told["skipped"] = float(take(mesh, policy, optimizer, share(mesh, spoilt, 2)).skipped)
        after = whole(named_tensors(policy, optimizer, None))
        told["moved by it"] = [
            name for name in before if not torch.equal(before[name], after[name])
        ]

        half = policies.policy()
        freeze(half, OptimConfig(freeze=("text.*", "*.bias")))
        began = {name: p.detach().clone() for name, p in half.named_parameters()}
        take(mesh, half, spread(mesh, config, half), share(mesh, uneven(), 2), check=True)
        ended = whole({name: p.detach() for name, p in half.named_parameters()})
        told["still"] = [name for name in began if torch.equal(began[name], ended[name])]
        return told


@pytest.fixture(scope="module")
def single() -> dict[str, Any]:
    return stepped(1)


@pytest.fixture(scope="module", params=[1, 2], ids=["ddp", "fsdp2"])
def double(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return in_ranks(2, stepped, request.param)


def same(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.long
def test_uneven_masks_weigh_every_element_alike(
    single: dict[str, Any], double: list[dict[str, Any]]
) -> None:
    """Two ranks and one micro-batch, one rank and two: the gradient of the global mean, wherever
    the padding is.
    """
    for told in double:
        assert told["uneven"][0] == single["uneven"][0]
        assert same(told["uneven"][1], single["uneven"][1])
    policy = policies.policy()
    optimizer = make_optimizer(policy, TrainConfig().optim, {}, accumulates=False)
    halves = policies.micro_batches(uneven(), policies.as_draws(*policies.draws(8)), 2)
    means = [policy.losses(*half)["flow"] for half in halves]
    # the control
    torch.stack([loss.sum.sum() / loss.count.sum() for loss in means]).mean().backward()
    name = "out_proj.weight"
    scale = min(1.0, 1.0 / single["uneven"][0][1])
    control = policy.get_parameter(name).grad
    assert control is not None
    assert not torch.allclose(single["uneven"][1][name], control * scale, rtol=0.05)
    optimizer.zero_grad()
    losses = [policy.losses(*half)["flow"] for half in halves]
    (sum(loss.sum.sum() for loss in losses) / sum(loss.count.sum() for loss in losses)).backward()
    expected = policy.get_parameter(name).grad
    assert expected is not None
    torch.testing.assert_close(single["uneven"][1][name], expected * scale, rtol=1e-4, atol=1e-6)


def test_what_stands_in_padding_reaches_no_gradient(
    single: dict[str, Any], double: list[dict[str, Any]]
) -> None:
    for told in (single, *double):
        assert same(told["padded"], single["uneven"][1])


def test_all_ranks_skip_what_one_cannot_use(
    single: dict[str, Any], double: list[dict[str, Any]]
) -> None:
    for told in (single, *double):
        assert told["skipped"] == 1.0
        assert told["moved by it"] == []


def test_frozen_weights_keep_every_bit_on_every_mesh(
    single: dict[str, Any], double: list[dict[str, Any]]
) -> None:
    frozen = [
        n
        for n, _ in policies.policy().named_parameters()
        if n.startswith("text.") or n.endswith(".bias")
    ]
    for told in (single, *double):
        assert told["still"] == frozen


# -- parameters that a loss does not reach ---------------------------------------------------------


class Unheard(nn.Module):
    """A layer whose weights a loss does not reach, although it is computed."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return x + (self.layer(x, condition) - x).detach()


class Forgetful(FlowPolicy):
    """Does not learn its last layer, which is a block, and the first layer of its text, which is
    none, if `forgets`.
    """

    forgets = False

    def losses(self, batch: Mapping[str, Any], *others: Any, **options: Any) -> Any:
        if not self.forgets:
            return super().losses(batch, *others, **options)
        layers = self.layers
        embed = self.text.embed.forward
        self.layers = nn.ModuleList([*layers[:-1], Unheard(layers[-1])])
        self.text.embed.forward = lambda tokens: embed(tokens).detach()
        try:
            return super().losses(batch, *others, **options)
        finally:
            self.layers = layers
            del self.text.embed.forward


UNUSED = {
    "text.embed.weight",
    *(
        f"layers.1.{name}.{kind}"
        for name in ("modulate", "grow", "shrink")
        for kind in ("weight", "bias")
    ),
}


def left_out(by: tuple[int, ...], mesh: Mesh, config: TrainConfig) -> tuple[float, set[str], str]:
    """The loss of one step, the parameters that it left as they were, and its output."""
    policy = Forgetful(policies.config(), policies.NORMALIZATION)
    policy.load_state_dict(policies.policy().state_dict())
    policy.forgets = mesh.rank in by
    began = {name: p.detach().clone() for name, p in policy.named_parameters()}
    apply_activation_checkpointing(policy.blocks(), config.activation_checkpoint)
    if config.compile:
        compile_blocks(policy.blocks(), mesh.device)
    optimizer = spread(mesh, config, policy)
    parts = share(mesh, uneven(), 4 if config.micro_batch_size else mesh.world_size)
    with redirect_stderr(StringIO()) as said:
        loss = float(take(mesh, policy, optimizer, parts, check=True).loss)
    ended = whole({name: p.detach() for name, p in policy.named_parameters()})
    return loss, {name for name in began if torch.equal(began[name], ended[name])}, said.getvalue()


def left_out_by(
    several: list[tuple[int, ...]], shards: int, **options: Any
) -> list[tuple[float, set[str], str]]:
    config = TrainConfig(
        device="cpu", parallel=ParallelConfig(timeout=300, dp_shard=shards), **options
    )
    with parallel.join_mesh(config.mesh) as mesh:
        return [left_out(by, mesh, config) for by in several]


def left_out_by_none_and_all(
    world: int, shards: int, options: dict[str, Any]
) -> list[tuple[float, set[str], str]]:
    return left_out_by([(), tuple(range(world))], shards, **options)


PARTS = {"micro_batch_size": 2, "activation_checkpoint": "full"}
COMPILED = pytest.mark.skipif(
    missing_compiler(torch.device("cpu")) is not None, reason="no compiler here"
)


@pytest.mark.short("one")
@pytest.mark.parametrize(
    ("world", "shards", "options"),
    [
        pytest.param(1, 1, {}, id="one"),
        pytest.param(2, 1, {}, id="ddp", marks=pytest.mark.long),
        pytest.param(2, 2, {}, id="fsdp2"),
        pytest.param(4, 2, {}, id="hsdp", marks=pytest.mark.long),
        pytest.param(2, 2, PARTS, id="fsdp2 in parts", marks=pytest.mark.long),
        pytest.param(
            2, 2, {"compile": True}, id="fsdp2 compiled", marks=[COMPILED, pytest.mark.long]
        ),
    ],
)
def test_parameters_that_no_loss_reaches_are_named(
    world: int, shards: int, options: dict[str, Any]
) -> None:
    """Those that a step leaves as they are and no others, on any mesh, by one rank."""
    everywhere = in_ranks(world, left_out_by_none_and_all, world, shards, options)
    for rank, (none, every) in enumerate(everywhere):
        assert none[1] == set()
        # others may warn: torch of Python 3.13.0, of a missing GPU
        assert "optim.freeze" not in none[2]
        _, still, said = every
        assert still == UNUSED
        assert {name for name in UNUSED if name in said} == (UNUSED if rank == 0 else set())
        assert said.count(".weight") + said.count(".bias") == (len(UNUSED) if rank == 0 else 0)
    assert len({every[0] for _, every in everywhere}) == 1


@pytest.mark.long
@pytest.mark.parametrize("shards", [1, 2])
def test_ranks_that_leave_out_different_parameters_are_told_instead_of_waiting(shards: int) -> None:
    for kind, said in outcomes_in_ranks(2, left_out_by, [(1,)], shards):
        assert kind == "raised"
        assert "ConfigError: the loss of rank 1 does not reach " in said
        assert all(name in said for name in UNUSED)


class Skipping(FlowPolicy):
    """Enters its last layer, a block, in some of its forward passes only."""

    entered: tuple[int, ...] = ()
    calls = 0

    def losses(self, *args: Any, **options: Any) -> Any:
        layers = self.layers
        if self.calls not in self.entered:
            self.layers = nn.ModuleList(layers[:-1])
        self.calls += 1
        try:
            return super().losses(*args, **options)
        finally:
            self.layers = layers


def skipped_blocks(
    shards: int, frozen: tuple[str, ...] = ()
) -> list[tuple[float, dict[str, Tensor]]]:
    """Loss and gradients of a step of two micro-batches, where none, the first, or the second
    enters a block.
    """
    config = TrainConfig(
        device="cpu", micro_batch_size=2, parallel=ParallelConfig(timeout=300, dp_shard=shards)
    )
    results = []
    with parallel.join_mesh(config.mesh) as mesh:
        for number in (None, 0, 1):
            policy = Skipping(policies.config(), policies.NORMALIZATION)
            policy.load_state_dict(policies.policy().state_dict())
            parts = share(mesh, uneven(), 4)
            half = len(parts) // 2
            policy.entered = (
                () if number is None else tuple(range(number * half, (number + 1) * half))
            )
            freeze(policy, OptimConfig(freeze=frozen))
            result = take(mesh, policy, spread(mesh, config, policy), parts)
            results.append((float(result.loss), gradients(policy)))
    return results


@pytest.mark.long
@pytest.mark.parametrize(
    "frozen", [(), ("layers.1.*",), ("layers.1.grow.*",)], ids=["trained", "frozen", "partly"]
)
def test_a_block_that_no_micro_batch_enters_is_accumulated(frozen: tuple[str, ...]) -> None:
    alone = skipped_blocks(1, frozen)
    for shards in (1, 2):
        for of_rank in in_ranks(2, skipped_blocks, shards, frozen):
            loss, found = of_rank[0]
            assert loss == pytest.approx(alone[0][0], rel=1e-6)
            assert same(found, alone[0][1])
            assert all(math.isfinite(loss) for loss, _ in of_rank)


class Choosing(FlowPolicy):
    """Enters its second layer, a block, where `enters` says so."""

    enters = True

    def losses(self, *args: Any, **options: Any) -> Any:
        layers = self.layers
        if not self.enters:
            self.layers = nn.ModuleList(
                [layer for number, layer in enumerate(layers) if number != 1]
            )
        try:
            return super().losses(*args, **options)
        finally:
            self.layers = layers


def steps_that_enter(
    steps: list[tuple[bool, ...]], shards: int
) -> list[tuple[float, dict[str, Tensor]]]:
    """Loss and gradients of steps in which the ranks enter a block or leave it out; the last value
    holds for others.
    """
    config = TrainConfig(
        device="cpu", micro_batch_size=2, parallel=ParallelConfig(timeout=300, dp_shard=shards)
    )
    results = []
    with parallel.join_mesh(config.mesh) as mesh:
        policy = Choosing(policies.config(layers=3), policies.NORMALIZATION)
        policy.load_state_dict(policies.policy(layers=3).state_dict())
        optimizer = spread(mesh, config, policy)
        for number, enters in enumerate(steps):
            policy.enters = enters[min(mesh.rank, len(enters) - 1)]
            result = take(mesh, policy, optimizer, share(mesh, uneven(), 4), check=number == 0)
            results.append((float(result.loss), gradients(policy)))
    return results


ALL = (True,)
NONE = (False,)


@pytest.mark.short("at the first step-2")
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    "steps",
    [
        [ALL, (True, False)],
        [NONE, (True, False)],
        [NONE, ALL, NONE, (False, True)],
        [(True, False)],
    ],
    ids=["left out later", "entered first", "left out once", "at the first step"],
)
def test_a_block_that_some_ranks_enter_is_named_in_place_of_waiting(
    steps: list[tuple[bool, ...]], shards: int
) -> None:
    for kind, said in outcomes_in_ranks(2, steps_that_enter, steps, shards):
        assert kind == "raised"
        assert "ConfigError: rank " in said
        assert "layers.1" in said


@pytest.mark.long
@pytest.mark.parametrize("shards", [1, 2])
def test_all_ranks_may_enter_and_leave_out_a_block_alike(shards: int) -> None:
    steps = [ALL, NONE, ALL, ALL, NONE, ALL]
    alone = steps_that_enter(steps, 1)
    for of_rank in in_ranks(2, steps_that_enter, steps, shards):
        for (loss, found), (loss_alone, found_alone) in zip(of_rank, alone, strict=True):
            assert loss == pytest.approx(loss_alone, rel=1e-6)
            assert same(found, found_alone)


def sampled(shards: int) -> dict[str, Tensor]:
    """Samples of a fresh policy with a future on one rank's mesh, by method, before any other
    pass.
    """
    config = TrainConfig(device="cpu", parallel=ParallelConfig(timeout=300, dp_shard=shards))
    noise = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
    found = {}
    with parallel.join_mesh(config.mesh) as mesh:
        for method in ("act", "imagine"):
            policy = policies.policy(future=True)
            parallel.shard(
                policy,
                mesh,
                config.precision,
                policy.blocks(),
                policy.float32_modules(),
                policy.forward_methods,
            )
            sample = getattr(policy, method)(policies.batch(2), {"noise": noise})
            found[method] = sample.states if method == "imagine" else sample
    return found


@pytest.mark.long
def test_a_sharded_policy_samples_as_a_whole_one() -> None:
    alone = sampled(1)
    assert all(same(alone, found) for found in in_ranks(2, sampled, 2))
