"""Plans of pi0.5: the state of a real run to the byte, and the figures of the released
dimensions.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from understudy.config.train import TrainConfig
from understudy.distributed.mesh import join_mesh
from understudy.policies.draws import make_draws
from understudy.policies.pi05.config import Pi05Settings
from understudy.policies.pi05.targets import EXTENTS, extents
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train.data.run_data import open_data
from understudy.train.data.run_normalization import choose_normalization
from understudy.train.profiling.live_bytes import LiveBytes
from understudy.train.profiling.plan import (
    one_sample,
    plan,
    resident_memory,
    resident_tensors,
    trace_batch,
    trace_step,
)
from understudy.train.state import init_train_state


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("plan") / "dataset")


def settings(data: Path, chunk: int, size: Any = "tiny", **changes: Any) -> TrainConfig:
    config = tiny_config(data, data.parent / "run", policy=Pi05Settings(size=size), **changes)
    return replace(config, data=replace(config.data, chunk_size=chunk)).resolved()


@pytest.mark.long
def test_plan_has_the_state_of_a_tiny_run_to_the_byte(data: Path) -> None:
    config = settings(data, 8, batch_size=2)
    predicted = plan(config, device="cpu")
    with join_mesh(config.mesh) as mesh:
        opened = open_data(config)
        state = init_train_state(config, opened, choose_normalization(config, opened), mesh)
        sample = one_sample(config, opened)
        batch = state.policy.largest_inputs(
            {
                k: v.repeat(2, *[1] * (v.ndim - 1)) if isinstance(v, torch.Tensor) else v * 2
                for k, v in sample.items()
            }
        )
        state.device_step(
            batch, make_draws(state.policy.random_spec("train"), 0, batch["position"])
        )
        measured = resident_memory(state)
    assert {name: predicted.memory[name] for name in measured} == measured
    assert predicted.parameters == sum(p.numel() for p in state.policy.parameters())
    sizes = state.policy.config.sizes
    assert predicted.tokens_per_sample == sizes.vision.tokens + 200 + 8
    assert (
        predicted.activations["full"]
        < predicted.activations["selective"]
        < predicted.activations["none"]
    )


@pytest.mark.long
def test_plan_of_the_released_dimensions(data: Path) -> None:
    """Parameters, 16 bytes each, and the operations of a sample with one camera and 200 tokens of
    text.
    """
    config = settings(data, 50, "base", batch_size=1, activation_checkpoint="full")
    opened = open_data(config)
    found = trace_step(
        config,
        opened,
        choose_normalization(config, opened),
        one_sample(config, opened),
        1,
        "cuda",
        1,
        flops=True,
    )
    assert found.parameters == found.trained == 3_353_433_872
    assert found.memory["parameters"] + found.memory["optimizer state"] == pytest.approx(
        12 * found.parameters, rel=1e-5
    )
    assert found.tokens == 256 + 200 + 50
    forward = 2 * (412e6 * 256 + 1.98e9 * 456 + 0.311e9 * 50) + 4 * 2048 * 18 * (456**2 + 50 * 506)
    # the last layer and the first gradients are left out
    assert found.flops == pytest.approx(3 * forward, rel=0.08)


@pytest.mark.long
def test_plan_of_a_packed_batch_without_some_cameras_is_that_of_its_step(data: Path) -> None:
    config = settings(data, 8, batch_size=3, max_num_tokens=1000)
    opened = open_data(config)
    normalization = choose_normalization(config, opened)
    sample = one_sample(config, opened)
    live = LiveBytes()
    with join_mesh(config.mesh) as mesh:
        state = init_train_state(config, opened, normalization, mesh)
        (camera,) = state.policy.config.cameras
        batch = {
            k: v.repeat(3, *[1] * (v.ndim - 1)) if isinstance(v, Tensor) else v * 3
            for k, v in sample.items()
        }
        batch |= {
            "position": torch.arange(3),
            f"{camera}_is_missing": torch.tensor([False, True, False]),
        }
        batch = state.policy.largest_inputs(batch)
        batch["prompt_is_pad"][0, 8:] = batch["prompt_is_pad"][1, 16:] = True
        batch[EXTENTS] = extents(batch, [camera])
        draws = make_draws(state.policy.random_spec("train"), 0, batch["position"])
        with live:
            live.watch(
                value for value in (*batch.values(), *draws.values()) if isinstance(value, Tensor)
            )
            live.watch(resident_tensors(state))
            state.device_step(batch, draws)
            live.reset()
            state.device_step(batch, draws, live)

    def predicted(**changes: Any) -> dict[str, int]:
        return trace_batch(replace(config, **changes), opened, normalization, batch, 1, "cpu")

    found = predicted()
    padded = predicted(max_num_tokens=None)
    assert found["activations"] == pytest.approx(live.activations, rel=0.05)
    assert found["peak"] == pytest.approx(live.peak, rel=0.05)
    assert padded["peak"] > 1.1 * live.peak, (
        "the control: with its padding the same batch takes more"
    )
