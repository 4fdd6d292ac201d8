"""A world-action model on the simulated table: the quality of its imagined images, and its cost to the policy.

    python benchmarks/world_action.py [--json] [--out runs/world-action]

Two trainings have the same recordings, seeds and number of steps. `policy` predicts actions alone. `joint` draws one of
the modes policy, forward dynamics and inverse dynamics for each position, and also predicts states and images.

On episodes that were not trained on, `joint` imagines the image behind each chunk of recorded actions:
    psnr_model     of the imagined image
    psnr_copy      of the present image: nothing changes
    psnr_state     of the training image with the nearest state to the true future one: a model that knows states alone
    psnr_moved     the same three over the half of the chunks in which most pixels change
    psnr_rollout   of images imagined from imagined images, `--chunks` chunks ahead, beside the copy
`inverse_mse` and `policy_mse` are errors of normalized actions, sampled given the future and without it. `success` are
[successes, episodes] of both policies in scenes without recordings. `--out` keeps finished parts.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from understudy.config.schema import load as load_settings
from understudy.config.train import TrainConfig
from understudy.data.dataset import EpisodeDataset
from understudy.envs.tabletop.tabletop_env import TabletopEnv
from understudy.policies.common.task_modes import INVERSE, POLICY
from understudy.policies.draws import generate_draws
from understudy.policies.policy import load
from understudy.policies.world_action.policy import WorldActionPolicy
from understudy.rollout.play import rollout
from understudy.train.data.run_data import open_data

MODES = {"policy": "policy", "joint": "joint"}
"""Name of a training -> its setting `mode`."""
SCENES = 15
"""Scenes that are played side by side."""
CAMERA = "observation.images.front"


def once(file: Path, make: Callable[[], Any]) -> Any:
    """Return the result in `file`, which `make` computes the first time."""
    if not file.exists():
        found = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found))
    return json.loads(file.read_text())


def command(*arguments: Any) -> None:
    """Run an `understudy` command."""
    words = [sys.executable, "-m", "understudy", *map(str, arguments)]
    print(" ".join(words[1:]), file=sys.stderr)
    subprocess.run(words, check=True, stdout=sys.stderr)


def psnr(predicted: Tensor, real: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of images uint8 [B, 3, H, W], float64 [B]."""
    error = (predicted.double() - real.double()).square().mean(dim=(1, 2, 3)).clamp(min=1e-4)
    return 10 * (255.0**2 / error).log10()


def small(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Average images uint8 [B, 3, H, W] over areas to `size`, as the network sees them."""
    return interpolate(images.float(), size=size, mode="area").round().to(torch.uint8)


def seen(policy: WorldActionPolicy, config: TrainConfig, chunks: int, limit: int) -> dict[str, Any]:
    """Compare imagined images with the recorded ones of the validation episodes."""
    data = open_data(config)
    training, validation = data.training[0], data.validation[0]
    assert validation is not None
    size, generator = policy.config.image_size, torch.Generator().manual_seed(0)
    frames = whole_chunks(validation, limit, config.data.actions_per_chunk)
    memory_states, memory_images = remembered(training, size)
    found: dict[str, list[Tensor]] = {"model": [], "copy": [], "state": [], "change": []}
    inverse, own = [], []
    for at in range(0, len(frames), 64):
        batch = batch_of(validation, frames[at : at + 64])
        draws = generate_draws(policy.random_spec("act"), len(batch["task"]), generator)
        imagined = policy.imagine(batch, draws)
        assert imagined.images is not None
        now, then = (small(batch[CAMERA][:, which], size) for which in (0, -1))
        nearest = torch.cdist(batch["observation.state"][:, -1], memory_states).argmin(dim=1)
        for name, images in (("model", imagined.images[:, -1, 0]), ("copy", now), ("state", memory_images[nearest])):
            found[name].append(psnr(images, then))
        found["change"].append((then.float() - now.float()).abs().mean(dim=(1, 2, 3)))
        target = policy.normalizer.actions(batch)
        for mode, errors in ((INVERSE, inverse), (POLICY, own)):
            acted = policy.act(batch, draws, mode=mode)
            errors.append((policy.normalizer.actions({**batch, "action": acted}) - target).square().mean(dim=(1, 2)))
    values = {name: torch.cat(parts) for name, parts in found.items()}
    moved = values["change"] >= values["change"].median()
    return {
        **{f"psnr_{name}": values[name].mean().item() for name in ("model", "copy", "state")},
        "psnr_moved": {name: values[name][moved].mean().item() for name in ("model", "copy", "state")},
        "psnr_rollout": ahead(policy, validation, frames, chunks, generator),
        "inverse_mse": torch.cat(inverse).mean().item(),
        "policy_mse": torch.cat(own).mean().item(),
        "chunks_compared": len(frames),
    }


def batch_of(data: EpisodeDataset, frames: np.ndarray) -> dict[str, Any]:
    """Read the samples of these frames."""
    return data.batch(*data.locate(frames))


def whole_chunks(data: EpisodeDataset, limit: int, chunk: int) -> np.ndarray:
    """Numbers of frames whose chunk lies inside its episode, at most `limit`, evenly spread."""
    lengths = data.catalog.episodes.lengths[data.segments[:, 0]]
    starts = np.concatenate([[0], np.cumsum(data.segments[:, 2] - data.segments[:, 1])[:-1]])
    frames = np.concatenate([start + np.arange(max(0, length - chunk)) for start, length in zip(starts, lengths)])
    return frames[np.unique(np.linspace(0, len(frames) - 1, limit).astype(int))]


def remembered(data: EpisodeDataset, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """States and images of all training frames."""
    states, images = [], []
    for at in range(0, len(data), 256):
        batch = batch_of(data, np.arange(at, min(at + 256, len(data))))
        states.append(batch["observation.state"][:, 0])
        images.append(small(batch[CAMERA][:, 0], size))
    return torch.cat(states), torch.cat(images)


def ahead(
    policy: WorldActionPolicy, data: EpisodeDataset, frames: np.ndarray, chunks: int, generator: torch.Generator
) -> dict[str, float]:
    """PSNR after `chunks` chunks of recorded actions, each imagined from the last imagined image and state."""
    size, step = policy.config.image_size, policy.config.chunk
    rows = {int(frame): number for number, frame in enumerate(frames)}
    starts = [frame for frame in rows if all(frame + step * n in rows for n in range(chunks))][:256]
    if not starts:
        return {}
    batch = batch_of(data, np.array(starts))
    first = small(batch[CAMERA][:, 0], size)
    current = {CAMERA: first, "observation.state": batch["observation.state"][:, 0], "task": batch["task"]}
    for number in range(chunks):
        batch = batch_of(data, np.array(starts) + step * number)
        draws = generate_draws(policy.random_spec("act"), len(starts), generator)
        found = policy.imagine({**current, "action": batch["action"]}, draws)
        assert found.images is not None
        current |= {CAMERA: found.images[:, -1, 0], "observation.state": found.states[:, -1]}
    then = small(batch[CAMERA][:, -1], size)
    return {
        "model": psnr(current[CAMERA], then).mean().item(),
        "copy": psnr(first, then).mean().item(),
        "chunks": chunks,
        "starts": len(starts),
    }


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, default=Path("runs/world-action"))
    parser.add_argument("--episodes", type=int, default=200, help="to record")
    parser.add_argument("--steps", type=int, default=1500, help="of each training")
    parser.add_argument("--rollouts", type=int, default=30, help="per policy")
    parser.add_argument("--frames", type=int, default=512, help="chunks to imagine")
    parser.add_argument("--chunks", type=int, default=2, help="chunks to imagine in sequence")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    data = args.out / "dataset"
    with redirect_stdout(sys.stderr):
        once(
            args.out / "record.json",
            lambda: command("record", "--output-dir", data, "--episodes", args.episodes, "--seed", args.seed),
        )
        success = {}
        for name, mode in MODES.items():
            run = args.out / name
            flags: list[Any] = ["--data.root", data, "--output-dir", run, "--policy.type", "world_action"]
            flags += ["--mode", mode, "--steps", args.steps, "--batch-size", 32, "--seed", args.seed]
            flags += ["--data.robot-type", "tabletop", "--data.control-mode", "ee_delta", "--val.every", args.steps]
            once(args.out / f"{name}.json", lambda flags=flags: command("train", *flags))  # type: ignore[misc]

            def play(run: Path = run) -> list[int]:
                policy = load(run / "policy").eval()
                worlds = [TabletopEnv(64) for _ in range(min(SCENES, args.rollouts))]
                return [rollout(policy, worlds, args.rollouts, args.seed).successes, args.rollouts]

            success[name] = once(args.out / f"{name}-rollouts.json", play)
        policy = load(args.out / "joint/policy").eval()
        assert isinstance(policy, WorldActionPolicy)
        config = load_settings(TrainConfig, args.out / "joint/config.yaml")
        result: dict[str, Any] = seen(policy, config, args.chunks, args.frames)
    result["success"] = success
    result["conditions"] = {key: str(value) for key, value in vars(args).items()} | {
        "parameters": sum(parameter.numel() for parameter in policy.parameters()),
        "device": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    print(json.dumps(result) if args.json else table(result))


def table(result: dict[str, Any]) -> str:
    """Format the results for a terminal."""
    lines = [f"{'PSNR in dB':<34}{'imagined':>9}{'copy':>9}{'state':>9}"]
    rows = {
        "all chunks": [result[f"psnr_{name}"] for name in ("model", "copy", "state")],
        "chunks with the most movement": [result["psnr_moved"][name] for name in ("model", "copy", "state")],
    }
    if result["psnr_rollout"]:
        rows[f"{result['psnr_rollout']['chunks']} chunks ahead"] = [
            result["psnr_rollout"][n] for n in ("model", "copy")
        ]
    lines += [f"{name:<34}" + "".join(f"{value:>9.2f}" for value in row) for name, row in rows.items()]
    lines.append(f"error of actions: {result['inverse_mse']:.4f} given the future, {result['policy_mse']:.4f} without")
    for name, (successes, episodes) in result["success"].items():
        lines.append(f"success in mode {name}: {successes}/{episodes}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
