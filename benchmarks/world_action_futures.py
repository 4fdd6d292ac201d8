"""Measurements of imagined futures for `benchmarks/world_action.py`: images, actions, planning in the simulation."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from understudy.config.train import TrainConfig
from understudy.data.dataset import EpisodeDataset
from understudy.envs.env import layout_seed
from understudy.envs.tabletop.tabletop_env import TabletopEnv
from understudy.policies.common.task_modes import INVERSE, POLICY
from understudy.policies.draws import generate_draws
from understudy.policies.world_action.policy import WorldActionPolicy
from understudy.train.data.run_data import open_data
from understudy.train.validation.imagined import moved, psnr

CAMERA, STATE = "observation.images.front", "observation.state"
SCORERS = ("imagined", "state", "random")
"""Choices among candidates: by the imagined image, by the image of the training frame with the nearest state to the
imagined one, and by chance."""
NAMES = ("model", "copy", "state", "oracle")
"""Kinds of predicted images."""
PLAN_STEPS = 1
"""Euler steps of a future that is one of many candidates: one step predicts the mean."""


def compare(policy: WorldActionPolicy, config: TrainConfig, chunks: int, limit: int) -> dict[str, Any]:
    """Compare imagined images and sampled actions with the recorded ones of the validation episodes."""
    data = open_data(config)
    training, validation = data.training[0], data.validation[0]
    assert validation is not None
    size, generator = policy.config.image_size, torch.Generator().manual_seed(0)
    frames = whole_chunks(validation, limit, config.data.actions_per_chunk)
    known = Known(training, size)
    parts: dict[str, list[Tensor]] = {name: [] for name in (*NAMES, "then", "inverse", "policy")}
    for at in range(0, len(frames), 64):
        batch = batch_of(validation, frames[at : at + 64])
        draws = generate_draws(policy.random_spec("act"), len(batch["task"]), generator)
        imagined = policy.imagine(batch, draws)
        assert imagined.images is not None
        parts["copy"].append(small(batch[CAMERA][:, 0], size))
        parts["then"].append(small(batch[CAMERA][:, -1], size))
        parts["model"].append(imagined.images[:, -1, 0])
        parts["state"].append(known.images_at(imagined.states[:, -1]))
        parts["oracle"].append(known.images_at(batch[STATE][:, -1]))
        target = policy.normalizer.actions(batch)
        for mode, name in ((INVERSE, "inverse"), (POLICY, "policy")):
            acted = policy.normalizer.actions({**batch, "action": policy.act(batch, draws, mode=mode)})
            parts[name].append((acted - target).square().mean(dim=(1, 2)))
    found = {name: torch.cat(values) for name, values in parts.items()}
    mask = moved(found["copy"], found["then"])
    return {
        **{f"psnr_{name}": psnr(found[name], found["then"]) for name in NAMES},
        "psnr_moved": {name: psnr(found[name], found["then"], mask) for name in NAMES},
        "moved": mask.double().mean().item(),
        "psnr_rollout": ahead(policy, validation, frames, chunks, generator),
        "inverse_mse": found["inverse"].mean().item(),
        "policy_mse": found["policy"].mean().item(),
        "chunks_compared": len(frames),
    }


class Known:
    """States and images of all training frames: a model of the world that knows states alone."""

    def __init__(self, data: EpisodeDataset, size: tuple[int, int]) -> None:
        states, images = [], []
        for at in range(0, len(data), 256):
            batch = batch_of(data, np.arange(at, min(at + 256, len(data))))
            states.append(batch[STATE][:, 0])
            images.append(small(batch[CAMERA][:, 0], size))
        self.states, self.images = torch.cat(states), torch.cat(images)

    def images_at(self, states: Tensor) -> Tensor:
        """Images uint8 [B, 3, H, W] of the frames with the nearest states to [B, S]."""
        return self.images[torch.cdist(states, self.states).argmin(dim=1)]


def small(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Average images uint8 [B, 3, H, W] over areas to `size`, as the network sees them."""
    return interpolate(images.float(), size=size, mode="area").round().to(torch.uint8)


def batch_of(data: EpisodeDataset, frames: np.ndarray) -> dict[str, Any]:
    """Read the samples of these frames."""
    return data.batch(*data.locate(frames))


def whole_chunks(data: EpisodeDataset, limit: int, chunk: int) -> np.ndarray:
    """Numbers of frames whose chunk lies inside its episode, at most `limit`, evenly spread."""
    lengths = data.catalog.episodes.lengths[data.segments[:, 0]]
    starts = np.concatenate([[0], np.cumsum(data.segments[:, 2] - data.segments[:, 1])[:-1]])
    frames = np.concatenate([start + np.arange(max(0, length - chunk)) for start, length in zip(starts, lengths)])
    return frames[np.unique(np.linspace(0, len(frames) - 1, min(limit, len(frames))).astype(int))]


def ahead(
    policy: WorldActionPolicy, data: EpisodeDataset, frames: np.ndarray, chunks: int, generator: torch.Generator
) -> dict[str, Any]:
    """PSNR after `chunks` chunks of recorded actions, each imagined from the last imagined image and state."""
    size, step = policy.config.image_size, policy.config.chunk
    rows = {int(frame): number for number, frame in enumerate(frames)}
    starts = [frame for frame in rows if all(frame + step * n in rows for n in range(chunks))][:256]
    if not starts:
        return {}
    batch = batch_of(data, np.array(starts))
    first = small(batch[CAMERA][:, 0], size)
    current = {CAMERA: first, STATE: batch[STATE][:, 0], "task": batch["task"]}
    for number in range(chunks):
        batch = batch_of(data, np.array(starts) + step * number)
        draws = generate_draws(policy.random_spec("act"), len(starts), generator)
        found = policy.imagine({**current, "action": batch["action"]}, draws)
        assert found.images is not None
        current |= {CAMERA: found.images[:, -1, 0], STATE: found.states[:, -1]}
    then = small(batch[CAMERA][:, -1], size)
    mask = moved(first, then)
    return {
        "model": psnr(current[CAMERA], then),
        "copy": psnr(first, then),
        "moved": {"model": psnr(current[CAMERA], then, mask), "copy": psnr(first, then, mask)},
        "chunks": chunks,
        "starts": len(starts),
    }


def follow(
    policy: WorldActionPolicy, config: TrainConfig, scenes: int, candidates: int, seed: int
) -> dict[str, dict[str, Any]]:
    """Follow a video of the expert by planning: no policy, and no action of the video, is used.

    Before each chunk the scorer chooses among recorded chunks of training episodes the one whose outcome is closest to
    the frame of the video one chunk ahead (mean squared error of pixels). The simulation executes it.

    Returns:
        For each of `SCORERS`: `distance`, the mean distance of the hand to the expert's after each chunk in metres,
        its standard error over the scenes, and `successes` of `scenes`.
    """
    data = open_data(config)
    known = Known(data.training[0], policy.config.image_size)
    chunks = whole_chunks(data.training[0], len(data.training[0]), policy.config.chunk)
    found = {}
    for scorer in SCORERS:
        generator = torch.Generator().manual_seed(seed)
        distances, successes = [], 0
        for scene in range(scenes):
            picked = torch.randperm(len(chunks), generator=generator)[:candidates].numpy()
            actions = batch_of(data.training[0], chunks[picked])["action"]
            task = TabletopEnv(64).tasks[scene % 3]
            off, success = follow_one(policy, known, actions, layout_seed(seed, scene, evaluation=True), task, scorer)
            distances.append(off)
            successes += success
        spread = float(np.std(distances, ddof=1) / len(distances) ** 0.5) if scenes > 1 else None
        found[scorer] = {
            "distance": float(np.mean(distances)),
            "standard_error": spread,
            "successes": successes,
            "scenes": scenes,
        }
    return found


def follow_one(
    policy: WorldActionPolicy, known: Known, actions: Tensor, layout: int, task: str, scorer: str
) -> tuple[float, bool]:
    """Follow the expert in one scene with candidates [N, T, A]: mean distance of the hands, and success."""
    video, hands = filmed(layout, task)
    env, size, chunk = TabletopEnv(64), policy.config.image_size, policy.config.chunk
    observation = env.reset(layout, task)
    generator = torch.Generator().manual_seed(layout % 2**31)
    off, step, done, taken = [], 0, False, None
    while not done and step < len(video) - 1:
        at = min(step + chunk, len(video) - 1)
        goal = small(torch.from_numpy(video[at]).permute(2, 0, 1)[None], size)
        number = int(torch.randint(len(actions), (1,), generator=generator))
        if scorer != "random":
            outcomes = futures(policy, observation, task, actions, generator, known if scorer == "state" else None)
            number = int((outcomes.double() - goal.double()).square().mean(dim=(1, 2, 3)).argmin())
        for action in actions[number].numpy():
            observation, outcome = env.step(action)
            step, done, taken = step + 1, outcome.done, outcome.completed_task
            if done:
                break
        off.append(float(np.linalg.norm(env.sim.hand - hands[min(step, len(hands) - 1)])))
    return float(np.mean(off)), taken == task


def futures(
    policy: WorldActionPolicy,
    observation: Mapping[str, np.ndarray],
    task: str,
    actions: Tensor,
    generator: torch.Generator,
    known: Known | None,
) -> Tensor:
    """Images uint8 [N, 3, H, W] after each candidate: imagined, or known for the imagined state."""
    count = len(actions)
    batch = {
        CAMERA: torch.from_numpy(observation[CAMERA]).permute(2, 0, 1)[None].expand(count, -1, -1, -1),
        STATE: torch.from_numpy(observation[STATE])[None].expand(count, -1),
        "task": [task] * count,
        "action": actions,
    }
    found = policy.imagine(batch, generate_draws(policy.random_spec("act"), count, generator), PLAN_STEPS)
    if known is not None:
        return known.images_at(found.states[:, -1])
    assert found.images is not None
    return found.images[:, -1, 0]


def filmed(layout: int, task: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Images and positions of the hand of the expert's episode, from its first frame to its last."""
    env = TabletopEnv(64)
    images, hands, done = [env.reset(layout, task)[CAMERA]], [env.sim.hand], False
    while not done:
        observation, outcome = env.step(env.expert())
        images.append(observation[CAMERA])
        hands.append(env.sim.hand)
        done = outcome.done
    return images, hands
