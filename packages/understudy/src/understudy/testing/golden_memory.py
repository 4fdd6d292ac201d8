"""Golden files of the memory encoder and of training with noiseless leading actions, from the
formulas alone.

    python packages/understudy/src/understudy/testing/golden_memory.py
        --out tests/policies/pi05/golden

Each of the folders `pi05_memory` and `pi0_memory` of `--out` then has

    sizes.json              dimensions of the network; `mem` has the number of frames and the
                            temporal layers
    weights.safetensors     all parameters under their released names, random, fixed seed
    inputs.safetensors      those of `golden_pi05.py`, and `delay`, `video`, `video_mask`
    reference.safetensors   `loss_clean_prefix`, and `video_1` to `video_4`: features of the last 1
                            to 4 frames

No port of the package index has either part. The reference is
`packages/understudy/src/understudy/testing/naive_pi05.py`: float64, loops over frames, patches and
heads, no code of this package. `lab/benchmarks/parity.py --golden FOLDER` compares the network with
a folder.

Inputs are chosen so that mistakes show: every parameter is random, a layer without attention over
time lies behind two with it, frames are missing at the start and in the middle, and delays are
none, some and all but one of the actions.
"""

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from understudy.testing.naive_pi05 import NaivePi0, samples
from understudy.testing.released import released_shapes

TOWER = {"width": 16, "depth": 2, "mlp_dim": 24, "num_heads": 4, "num_kv_heads": 1, "head_dim": 8}
SIZES: dict[str, Any] = {
    "vision": {"width": 16, "depth": 5, "mlp": 24, "heads": 2, "patch": 4, "image": 8},
    "vlm": TOWER | {"width": 20},
    "expert": TOWER,
    "vocab": 48,
    "chunk": 5,
    "dim": 6,
    "mem": {"frames": 4, "every": 2},
}
SEEDS = {"pi05_memory": 7, "pi0_memory": 70}
DELAY = [0, 2, 4]
LENGTHS = [8, 5, 2]
TIMES = [0.1, 0.55, 0.97]
CAMERAS = [[True, True], [False, True], [True, False]]
FRAMES = [[True, True, True, True], [False, False, True, True], [True, False, True, True]]


def draw_weights(adaptive: bool, seed: int) -> dict[str, Tensor]:
    """Random float32 parameters by released names, of about the size that they have after
    training.
    """
    sizes = json.loads(
        json.dumps(SIZES | {"adaptive": adaptive}), object_hook=lambda each: SimpleNamespace(**each)
    )
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for key, shape in sorted(released_shapes(sizes).items()):
        value = torch.randn(shape, generator=draw)
        if len(shape) > 1:
            value *= value[0].numel() ** -0.5
        else:
            value *= 0.3
        is_layer_norm = "vision_tower" in key and "norm" in key and key.endswith("weight")
        found[key] = value + 1 if is_layer_norm else value
    return found


def draw_inputs(seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1000 + seed)
    batch = len(DELAY)
    side = SIZES["vision"]["image"]
    shape = (SIZES["chunk"], SIZES["dim"])

    def pixels(*leading: int) -> Tensor:
        return torch.rand(*leading, 3, side, side, generator=draw) * 2 - 1

    token_masks = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    tokens = torch.randint(1, SIZES["vocab"], token_masks.shape, generator=draw)
    masks = torch.tensor(CAMERAS)
    return {
        "images": torch.where(masks[:, :, None, None, None], pixels(batch, masks.shape[1]), -1.0),
        "image_masks": masks,
        "tokens": torch.where(token_masks, tokens, 0),
        "token_masks": token_masks,
        "state": torch.randn(batch, SIZES["dim"], generator=draw),
        "actions": torch.randn(batch, *shape, generator=draw),
        "noise": torch.randn(batch, *shape, generator=draw),
        "time": torch.tensor(TIMES),
        "delay": torch.tensor(DELAY),
        "video": pixels(batch, SIZES["mem"]["frames"]),
        "video_mask": torch.tensor(FRAMES),
    }


@torch.no_grad()
def evaluate(network: NaivePi0, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The reference, computed in float64 and stored in float32."""
    each = zip(samples(inputs), inputs["delay"].tolist())
    found = {
        "loss_clean_prefix": torch.stack(
            [network.flow_loss(sample, delay) for sample, delay in each]
        )
    }
    frames = SIZES["mem"]["frames"]
    every = SIZES["mem"]["every"]
    for count in range(1, frames + 1):
        rows = [
            network.video_features(list(video[-count:].double()), mask[-count:].tolist(), every)
            for video, mask in zip(inputs["video"], inputs["video_mask"])
        ]
        found[f"video_{count}"] = torch.stack(rows)
    return {name: value.float().contiguous() for name, value in found.items()}


def write(folder: Path, kind: type[NaivePi0] = NaivePi0) -> None:
    """Write a folder of golden files; `kind` computes the reference."""
    name = folder.name
    weights = draw_weights(name.startswith("pi05"), SEEDS[name])
    inputs = draw_inputs(SEEDS[name])
    network = kind({key: value.double() for key, value in weights.items()}, SIZES)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sizes.json").write_text(json.dumps(SIZES, indent=2) + "\n")
    save_file(weights, folder / "weights.safetensors")
    save_file(inputs, folder / "inputs.safetensors")
    save_file(evaluate(network, inputs), folder / "reference.safetensors")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the golden folders")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    for name in SEEDS:
        write(options.out / name)
        size = sum(path.stat().st_size for path in (options.out / name).iterdir())
        print(f"{options.out / name}: {size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
