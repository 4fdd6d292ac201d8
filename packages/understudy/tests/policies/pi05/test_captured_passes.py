"""Captured passes of pi0.5 and pi0: histories, missing cameras, prompts of several lengths."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from understudy.policies.acting import Prepared, predict
from understudy.policies.common.images import letterbox
from understudy.policies.draws import make_draws
from understudy.policies.graphs import CudaRecorder
from understudy.policies.inference import RobotPolicy
from understudy.policies.pi05.network import time_encoding
from understudy.testing.graphs import Tape, Uncaptured, recorder
from understudy.testing.pi05_policy import CAMERAS, TASKS, policy
from understudy.testing.sentences import write_model

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
RECORDERS: dict[str, Any] = {"cpu": Tape, "cuda": CudaRecorder}
REST = np.full((3, 3), 0.1, np.float32)
CONTINUED: dict[str, dict[str, Any]] = {
    "free": {},
    "given": {"previous": REST, "delay": 1},
    "guided": {"previous": REST, "delay": 1, "horizon": 2},
}
MEMORY: dict[str, Any] = {"history": (0.2, 0.5), "state_history": True}
METADATA = {"heads": {"": {"fps": 10}}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tokenizer"))


def observation(seed: int, task: str, lacks: str = "") -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    images = {key: rng.integers(0, 256, (12, 10, 3), np.uint8) for key in CAMERAS}
    images.pop(lacks, None)
    return images | {"observation.state": rng.random(2, np.float32), "task": task}


def prepare(robot: RobotPolicy, seed: int, steps: int = 3, **options: Any) -> Prepared:
    """An observation after two earlier ones, with the noise of the seed."""
    robot.reset()
    for number in range(2):
        robot.observe(observation(10 * seed + number, "push"))
    draws = make_draws(robot.policy.random_spec("act"), 5, np.array([seed]), "rollout")
    seen = observation(seed, TASKS[seed])
    return robot.prepare(seen, draws=draws, steps=steps, **options)


def capture(robot: RobotPolicy, make: Callable[..., Any], rows: int = 1) -> None:
    with recorder(make, next(robot.policy.parameters()).device.type):
        robot.capture(rows)


@pytest.mark.short("cpu-memory", "cpu-pi0")
@pytest.mark.parametrize(
    ("adaptive", "changes"),
    [(True, MEMORY), (False, {}), (True, {"compute": "bfloat16"})],
    ids=["memory", "pi0", "bf16"],
)
@pytest.mark.parametrize("device", DEVICES)
def test_a_replay_has_the_bits_of_the_same_functions_uncaptured(
    tokenizer: Path,
    device: str,
    adaptive: bool,
    changes: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two robots with prompts of two lengths, of which the shorter one is padded."""
    network = policy(tokenizer, adaptive, max_delay=2, **changes).eval()
    robot = RobotPolicy(network.to(device), METADATA)
    passes = []
    for options in CONTINUED.values():
        passes += [[prepare(robot, seed, **options) for seed in pair] for pair in ((0, 1), (1,))]
    plain = [predict(network, each) for each in passes]
    found = []
    with caplog.at_level(logging.WARNING, "understudy.policies"):
        for make in (Uncaptured, RECORDERS[device]):
            capture(robot, make, 2)
            found.append([predict(network, each) for each in passes])
    assert caplog.records == []
    tolerance = 1e-4 if network.config.compute == "float32" else 0.05
    for direct, replayed, eager in zip(*found, plain, strict=True):
        assert np.array_equal(direct, replayed)
        assert np.allclose(replayed, eager, atol=tolerance)


def test_a_robot_may_lack_a_camera(tokenizer: Path) -> None:
    """One that it never has is not computed; one that is missing now and then is masked."""
    network = policy(tokenizer).eval()
    never = RobotPolicy(network, {"heads": {"": {"fps": 10, "cameras": [CAMERAS[0]]}}})
    ready = never.prepare(observation(0, "push", CAMERAS[1]), generator=torch.Generator())
    plain = predict(network, [ready])
    capture(never, Tape)
    (first, _) = network.graphs.buckets
    assert first.cameras == CAMERAS[:1]
    assert np.allclose(predict(network, [ready]), plain, atol=1e-4)
    network.graphs = None
    capture(RobotPolicy(network, METADATA), Tape)
    assert next(iter(network.graphs.buckets)).cameras == CAMERAS
    assert np.allclose(predict(network, [ready]), plain, atol=1e-4)


def test_the_shortest_bucket_that_holds_a_prompt_is_taken(
    tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    robot = RobotPolicy(policy(tokenizer).eval(), METADATA)
    robot.reset()
    capture(robot, Tape)
    assert [bucket.tokens for bucket in robot.policy.graphs.buckets] == [80, 40]
    long = observation(0, "push the red block " * 30)  # cut to the policy's longest prompt
    for seen in (observation(0, "push"), long):
        ready = robot.prepare(seen, generator=torch.Generator().manual_seed(0))
        replayed = predict(robot.policy, [ready])
        graphs = robot.policy.graphs
        robot.policy.graphs = None
        assert np.allclose(predict(robot.policy, [ready]), replayed, atol=1e-4)
        robot.policy.graphs = graphs
    assert caplog.records == []


def test_a_bucket_shorter_than_the_shortest_prompt_is_captured(tokenizer: Path) -> None:
    """The state is part of each prompt, and longer than half of the longest one."""
    robot = RobotPolicy(policy(tokenizer, prompt_tokens=12).eval(), METADATA)
    robot.reset()
    ready = robot.prepare(observation(0, "push"), generator=torch.Generator().manual_seed(0))
    plain = predict(robot.policy, [ready])
    capture(robot, Tape)
    assert [bucket.tokens for bucket in robot.policy.graphs.buckets] == [12, 6]
    assert np.allclose(predict(robot.policy, [ready]), plain, atol=1e-4)


def test_a_policy_with_responses_says_why_it_is_not_captured(
    tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    robot = RobotPolicy(policy(tokenizer, response_tokens=8).eval(), METADATA)
    capture(robot, Tape)
    assert robot.policy.graphs is None
    assert "response_tokens" in caplog.text


def test_times_of_frames_need_no_copy_from_the_host(tokenizer: Path) -> None:
    """A captured copy would read memory of the host that is free by then."""
    network = policy(tokenizer, **MEMORY).eval()
    robot = RobotPolicy(network, METADATA)
    ready = prepare(robot, 0)
    batch = network.preprocess(dict(ready.batch))
    bucket = network.graph_bucket(batch)._replace(tokens=80)
    inputs = network.graph_inputs(batch, ready.draws["noise"], bucket)
    times = network.past.images
    assert torch.equal(inputs["encoding"][0], time_encoding(times, network.sizes.vision.width))
    assert inputs["frames"].shape == (1, len(CAMERAS), len(times))


@pytest.mark.gpu
def test_images_that_a_gpu_resizes_are_within_one_level() -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 480, 640), np.uint8))
    levels = (letterbox(images.cuda(), 224).cpu() - letterbox(images, 224)) * 127.5
    assert levels.abs().max() <= 1 + 1e-3


def test_resized_images_are_within_one_level_of_exact_ones() -> None:
    """The tolerance between devices: they round the same exact value, a level is 2 / 255."""
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 48, 64), np.uint8))
    exact = torch.nn.functional.interpolate(
        image.double(), size=(18, 24), mode="bilinear", antialias=True
    )
    found = (letterbox(image, 24)[:, :, 3:21] + 1) * 127.5
    assert (found.double() - exact).abs().max() <= 0.5 + 1e-3
