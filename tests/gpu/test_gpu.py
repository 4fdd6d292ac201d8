"""A run on a GPU. Each test also runs on the CPU, to test the test; `scripts/gpu-check` runs the
others.

On a GPU two runs may differ in bits, because sums of a backward pass have no fixed sequence there.
So bits are compared only without sums: batches, the optimizer's step, checkpoints.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from understudy import EpisodeDataset, Loader, MasterWeights, Order
from understudy.compile import missing_compiler
from understudy.config.train import TrainConfig
from understudy.distributed import mesh as parallel
from understudy.distributed.torch_release import has_grad_dtype, has_gradient_sum
from understudy.optim.adamw import Float32AdamW
from understudy.optim.moving_average import update_average
from understudy.policies.flow.model import FlowPolicy
from understudy.testing.runs import series, tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.data.run_data import open_data
from understudy.train.data.run_normalization import compute_normalization
from understudy.train.precision import restore
from understudy.train.state import TrainState, init_train_state
from understudy_data.testing.batches import all_same

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PRECISIONS = ["fp32", "bf16", "bf16-split"]
TOP = "observation.images.top"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("gpu") / "dataset")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def started(
    config: TrainConfig, mesh: parallel.Mesh
) -> tuple[TrainState, Iterator[dict[str, Any]]]:
    """A training state at step 0 and its batches. The data is opened once."""
    data = open_data(config)
    with Loader(data.training, order=data.order(config), num_threads=1) as loader:
        batches = [next(loader) for _ in range(6)]
    return init_train_state(config, data, compute_normalization(data, "mean_std"), mesh), iter(
        batches
    )


# -- batches


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [{}, {"pin": True}, {"image_size": (32, 32)}], ids=["plain", "pinned", "resized"]
)
def test_batches_are_the_same_on_the_device(
    root: Path, device: str, options: dict[str, Any]
) -> None:
    """Also while the device works on the batch before."""
    data = EpisodeDataset(root, delta_timestamps={"action": [0, 0.1, 0.2]})
    order = Order.from_datasets([data], batch_size=8, seed=1)
    options = {key: value for key, value in options.items() if device == "cuda" or key != "pin"}
    with Loader([data], order=order) as loader:
        expected = [next(loader) for _ in range(40)]
    with Loader([data], order=order, device=device, **options) as loader:
        found = []
        busy = torch.ones(2000, 2000, device=device) if device == "cuda" else None
        for _ in range(40):
            batch = next(loader)
            assert {value.device.type for value in batch.values() if isinstance(value, Tensor)} == {
                device
            }
            if busy is not None:
                busy = torch.tanh(busy @ busy)
            found.append({k: v.clone() if isinstance(v, Tensor) else v for k, v in batch.items()})
    back = [
        {k: v.cpu() if isinstance(v, Tensor) else v for k, v in batch.items()} for batch in found
    ]
    if "image_size" in options:
        with Loader([data], order=order, image_size=options["image_size"]) as loader:
            expected = [next(loader) for _ in range(40)]
    assert all_same(expected, back)


# -- the optimizer


def gradients(shape: torch.Size, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(shape, generator=generator) * 10 ** (k % 7 - 4)).bfloat16().to(device)
        for k in range(30)
    ]


@pytest.mark.long
def test_split_weights_step_to_the_bits_of_float32_adamw(device: str) -> None:
    start = torch.randn(320, 16, generator=torch.Generator().manual_seed(0)).to(device) * 0.02
    live = nn.Parameter(start.bfloat16())
    truth = nn.Parameter(start.clone())
    ours = Float32AdamW([("w", live)], lr=1e-3, masters={"w": start})
    plain = torch.optim.AdamW([truth], lr=1e-3, fused=True)
    for grad in gradients(start.shape, device):
        live.grad, truth.grad = grad, grad.float()
        ours.step()
        plain.step()
    assert torch.equal(ours.master(live).view(torch.int32), truth.detach().view(torch.int32))
    for kind in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(ours.state[live][kind], plain.state[truth][kind])


def test_float32_weights_step_to_the_bits_of_fused_adamw(device: str) -> None:
    start = torch.randn(320, 16, generator=torch.Generator().manual_seed(0)).to(device) * 0.02
    mine = nn.Parameter(start.clone())
    truth = nn.Parameter(start.clone())
    ours = Float32AdamW([("w", mine)], lr=1e-3)
    plain = torch.optim.AdamW([truth], lr=1e-3, fused=True)
    for grad in gradients(start.shape, device):
        mine.grad, truth.grad = grad.float(), grad.float()
        ours.step()
        plain.step()
    assert torch.equal(mine.view(torch.int32), truth.view(torch.int32))


@pytest.mark.long
def test_the_compiled_split_step_agrees_with_the_specification(device: str) -> None:
    """Equal to rounding: the two round in other places. Skipped steps change no bit, and one graph
    serves all sizes.
    """
    if problem := missing_compiler(torch.device(device)):
        pytest.skip(problem)
    start = torch.randn(320, 16, generator=torch.Generator().manual_seed(0)).to(device) * 0.02
    live = [nn.Parameter(start.bfloat16()) for _ in range(2)]
    steps = [
        Float32AdamW([("w", p)], 1e-3, masters={"w": start}, compiled=c)
        for p, c in zip(live, (False, True))
    ]
    for grad in gradients(start.shape, device):
        for p, optimizer in zip(live, steps):
            p.grad = grad.clone()
            optimizer.step(
                scale=torch.full((), 0.5, device=device), skip=torch.zeros((), device=device)
            )
    first, second = (optimizer.master(p) for p, optimizer in zip(live, steps))
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-7)
    live[1].grad = torch.full_like(live[1], float("nan"))
    steps[1].step(skip=torch.ones((), device=device))
    assert torch.equal(steps[1].master(live[1]).view(torch.int32), second.view(torch.int32))


def test_masters_beside_somebody_elses_optimizer(device: str) -> None:
    start = torch.randn(64, 9, generator=torch.Generator().manual_seed(0)).to(device) * 0.02
    live = nn.Parameter(start.bfloat16())
    truth = nn.Parameter(start.clone())
    ours = MasterWeights(
        torch.optim.AdamW([("w", live)], lr=1e-3, fused=True), masters={"w": start}
    )
    plain = torch.optim.AdamW([truth], lr=1e-3, fused=True)
    for grad in gradients(start.shape, device):
        live.grad, truth.grad = grad.clone(), grad.float()
        ours.step()
        plain.step()
    assert torch.equal(ours.master(live).view(torch.int32), truth.detach().view(torch.int32))


# -- training


@pytest.mark.long
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_training_learns_and_its_average_follows(root: Path, device: str, precision: Any) -> None:
    config = tiny_config(root, root, device=device, batch_size=8, precision=precision, steps=60)
    with parallel.join_mesh(config.mesh) as mesh:
        training, batches = started(config, mesh)
        batch = next(batches)
        results = [training.train_step(batch) for _ in range(40)]
        losses = torch.stack([result.loss for result in results])
        assert losses.device.type == device
        assert bool(losses.isfinite().all())
        assert losses[-8:].mean() < 0.9 * losses[:8].mean()
        assert not any(result.skipped.item() for result in results)
        assert training.average is not None
        assert {p.dtype for p in training.average.parameters()} == {torch.float32}
        expected = copy.deepcopy(training.average).double()
        truths = [training.optimizer.local_master(p).double() for p in training.policy.parameters()]
        for mean, truth in zip(expected.parameters(), truths, strict=True):
            mean.lerp_(truth, 0.25)
        update_average(training.average, training.policy, training.optimizer, 0.75)
        for mean, wanted in zip(training.average.parameters(), expected.parameters(), strict=True):
            assert mean.device.type == device
            torch.testing.assert_close(mean.double(), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("precision", PRECISIONS)
def test_micro_batches_give_the_gradient_of_the_whole(
    root: Path, device: str, precision: Any
) -> None:
    if precision == "bf16-split" and not has_grad_dtype():
        pytest.skip("torch < 2.10: no gradients of another dtype")
    norms = []
    for micro in (None, 2):
        config = tiny_config(
            root, root, device=device, batch_size=8, precision=precision, micro_batch_size=micro
        )
        with parallel.join_mesh(config.mesh) as mesh:
            training, batches = started(config, mesh)
            norms.append(training.train_step(next(batches)).grad_norm.item())
    assert norms[0] == pytest.approx(norms[1], rel=1e-4 if precision == "fp32" else 0.05)


@pytest.mark.long
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_checkpoint_brings_every_bit_back(
    root: Path, tmp_path: Path, device: str, precision: Any
) -> None:
    config = tiny_config(root, root, device=device, batch_size=8, precision=precision)
    with parallel.join_mesh(config.mesh) as mesh:
        training, batches = started(config, mesh)
        for _ in range(3):
            training.train_step(next(batches))
        saved = {name: tensor.detach().cpu().clone() for name, tensor in training.tensors().items()}
        checkpoint.save(tmp_path, 3, training.tensors(), {"position": 24})
        other, _ = started(config, mesh)
        tensors = other.tensors()
        checkpoint.load(tmp_path / "step-00000003", tensors)
        restore(other.policy, other.optimizer, tensors)
        found = other.tensors()
        assert found.keys() == saved.keys()
        assert [
            name for name in found if not torch.equal(found[name].detach().cpu(), saved[name])
        ] == []
        batch = next(batches)
        losses = [each.train_step(batch).loss.item() for each in (training, replace(other, step=3))]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_mesh_of_one_device_steps_as_no_mesh_does(
    root: Path, device: str, precision: Any
) -> None:
    """FSDP2, hybrid mesh (1, 1), through NCCL on a GPU: a `Mesh` of size 2 uses the code of several
    processes.
    """
    if not has_gradient_sum():
        pytest.skip("torch < 2.8: FSDP2 cannot sum gradients")
    config = tiny_config(root, root, device=device, batch_size=8, precision=precision)
    results = []
    with parallel.join_mesh(config.mesh) as mesh:
        for world in (1, 2):
            training, batches = started(config, replace(mesh, world_size=world))
            # absent ranks cannot report the parameters that the loss reaches
            training.checked = True
            assert any(hasattr(p, "placements") for p in training.policy.parameters()) == (
                world == 2
            )
            results.append(
                [(r.loss.item(), r.grad_norm.item()) for r in map(training.train_step, batches)]
            )
    flat = [[number for pair in pairs for number in pair] for pairs in results]
    assert flat[0] == pytest.approx(flat[1], rel=1e-4 if precision == "fp32" else 0.05)


@pytest.mark.long
def test_compiled_blocks_agree_with_plain_ones(root: Path, device: str) -> None:
    if problem := missing_compiler(torch.device(device)):
        pytest.skip(problem)
    losses = []
    for compiles in (False, True):
        config = tiny_config(root, root, device=device, batch_size=8, compile=compiles)
        with parallel.join_mesh(config.mesh) as mesh:
            training, batches = started(config, mesh)
            losses.append(
                [training.train_step(batch).loss.item() for _, batch in zip(range(2), batches)]
            )
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.gpu
def test_a_run_ends_resumes_is_judged_and_its_policy_acts(root: Path, tmp_path: Path) -> None:
    config = tiny_config(root, tmp_path / "run", device="cuda", precision="bf16", steps=8)
    assert run.train(config) == run.DONE
    assert run.resume(replace(config, steps=12)) == run.DONE
    assert [record["step"] for record in series(tmp_path / "run")] == list(range(1, 13))
    assert len(series(tmp_path / "run", "val")) >= 2
    policy = FlowPolicy.load(tmp_path / "run" / "policy").to("cuda")
    assert {p.device.type for p in policy.parameters()} == {"cuda"}
