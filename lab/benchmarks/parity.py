"""Parity of the pi0.5 and pi0 network with golden files of another implementation.

    python lab/benchmarks/parity.py --golden tests/policies/pi05/golden/pi05 [--json] [--strict]

FOLDER has `sizes.json`, `weights.safetensors` under released names, `inputs.safetensors` and
`reference.safetensors`; `tests/support/golden_pi05.py` lists their content and makes such folders
with LeRobot's port. Each figure is the largest difference over the largest value of the reference,
in float32 on a CPU:

    loss            squared error of the velocity [B, chunk, dim]
    actions         after ten Euler steps [B, chunk, dim]
    image_features  of the cameras that are there
    prefix          embeddings of images and text, valid tokens
    gradients       of the mean loss: the worst parameter's |difference| / |reference|, both 2-norms
    clean_prefix    the loss with `delay` noiseless leading actions, of the others
    memory          features of videos of 1 to T frames: the worst

`video` [B, T, 3, H, W] has the oldest frame first, one second apart; `video_mask` [B, T] is False
where a frame is missing. `video_k` of the reference has the features of the last k frames: those of
the language tower [B, n, width], or of the encoder alone. `mem.every` of `sizes.json` is the
distance of the temporal layers.

A figure is null where the reference does not have it. Two kinds of gradient have another
denominator. The bias of the vision encoder's keys has a zero gradient in exact arithmetic, since a
softmax does not see it. Its difference counts against the norm of the same projection's weight
gradient. A zero gradient of the reference counts against the largest norm of all. Where the
reference never trains row 0 of the embedding (the padding token), that row is left out. `missing`
and `extra` are parameters without a key and keys without a parameter; with missing ones nothing is
compared.

Exit code: 0 within the bounds, 1 outside or with missing or extra keys, 2 if the folder cannot be
read. The bounds of `--strict` are those of another torch implementation; without it they only
separate equal networks from different ones.
"""

import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from safetensors.torch import load_file
from torch import Tensor

from parsers import make_parser
from understudy.policies.common.settings import TowerSizes
from understudy.policies.pi05.config import MEMORY, Sizes, VisionSizes
from understudy.policies.pi05.network import Frames, Pi0Network
from understudy.policies.pi05.released_keys import (
    WeightsError,
    canonical,
    is_adaptive,
    match,
    own_name,
    released_key,
)

STRICT = {
    "loss": 1e-6,
    "actions": 1e-6,
    "image_features": 2e-6,
    "prefix": 2e-6,
    "gradients": 1e-5,
    "clean_prefix": 1e-6,
    "memory": 1e-6,
}
"""Bounds for a torch implementation with float64 time features."""
LOOSE = dict.fromkeys(STRICT, 1e-3)
"""Bounds for any float32 implementation."""
STEPS = 10
VIDEO = re.compile(r"video_(\d+)")
ZERO_IN_THEORY = "vision.layers.{}.self_attn.k_proj.bias"


@dataclass
class Golden:
    """A folder of golden files, and our network with its weights."""

    network: Pi0Network
    inputs: dict[str, Tensor]
    reference: dict[str, Tensor]
    missing: list[str]
    extra: list[str]
    notes: list[str]


def load(folder: Path) -> Golden:
    """Read golden files and build the network.

    Raises:
        OSError: a file is not there. ValueError: its content is not as documented.
    """
    weights = load_file(folder / "weights.safetensors")
    sizes = read_sizes(json.loads((folder / "sizes.json").read_text()), is_adaptive(weights))
    network = Pi0Network(sizes).eval()
    golden = Golden(
        network,
        read_inputs(load_file(folder / "inputs.safetensors"), sizes),
        load_file(folder / "reference.safetensors"),
        missing=[],
        extra=[],
        notes=[],
    )
    own = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    shapes = {key: tuple(value.shape) for key, value in weights.items()}
    try:
        keys = match(shapes, own, folder).keys
    except WeightsError as error:
        golden.missing, golden.extra = sorted(error.missing), sorted(error.extra)
        if error.missing:
            return golden
        if error.shapes:
            raise
        keys = match(
            {key: shape for key, shape in shapes.items() if key not in error.extra}, own, folder
        ).keys
    network.load_state_dict({name: weights[key].float() for name, key in keys.items()})
    return golden


def read_sizes(stored: Mapping[str, Any], adaptive: bool) -> Sizes:
    """Read `sizes.json`, without the fields that describe other networks."""

    def known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
        names = {field.name for field in fields(kind)}
        return {key: value for key, value in values.items() if key in names}

    values = known(Sizes, stored) | {MEMORY: stored.get(MEMORY)}
    for name, kind in (("vision", VisionSizes), ("vlm", TowerSizes), ("expert", TowerSizes)):
        if isinstance(values.get(name), Mapping):
            values[name] = known(kind, values[name])
    return Sizes.from_mapping(values | {"adaptive": adaptive})


def read_inputs(stored: Mapping[str, Tensor], sizes: Sizes) -> dict[str, Tensor]:
    """Check the inputs and bring them to one dtype and shape each."""
    needed = {"images", "image_masks", "tokens", "token_masks", "actions", "noise", "time"}
    needed |= set() if sizes.adaptive else {"state"}
    if absent := sorted(needed - set(stored)):
        raise ValueError(f"inputs.safetensors has no {', '.join(absent)}")
    images = stored["images"].float()
    if images.ndim != 5:
        raise ValueError(f"images {list(images.shape)} must be [B, cameras, 3, H, W]")
    if images.shape[2] != 3 and images.shape[-1] == 3:  # channels last
        images = images.movedim(-1, 2)
    batch = images.shape[0]
    inputs = {
        "images": images,
        "image_masks": stored["image_masks"].bool().reshape(batch, images.shape[1]),
        "tokens": stored["tokens"].long(),
        "token_masks": stored["token_masks"].bool(),
        "state": stored["state"].float() if "state" in stored else torch.zeros(batch, sizes.dim),
        "time": stored["time"].float().reshape(batch),
    }
    for name in ("actions", "noise"):
        inputs[name] = stored[name].float().reshape(batch, sizes.chunk, sizes.dim)
    if "video" in stored:
        video = stored["video"].float()
        inputs["video"] = (
            video.movedim(-1, 2) if video.shape[2] != 3 and video.shape[-1] == 3 else video
        )
        inputs["video_mask"] = (
            stored.get("video_mask", torch.ones(video.shape[:2])).bool().reshape(video.shape[:2])
        )
    if "delay" in stored:
        inputs["delay"] = stored["delay"].long().reshape(batch)
    return inputs


def compare(golden: Golden) -> dict[str, Any]:
    """Compute all figures; those that the reference lacks are None."""
    figures: dict[str, Any] = dict.fromkeys(STRICT)
    figures |= {"missing": golden.missing, "extra": golden.extra}
    if golden.missing:
        return figures
    network = golden.network
    given = golden.inputs
    reference = golden.reference
    images, masks, tokens, token_masks = (
        given[k] for k in ("images", "image_masks", "tokens", "token_masks")
    )
    flow = (
        images,
        masks,
        tokens,
        token_masks,
        given["state"],
        given["actions"],
        given["noise"],
        given["time"],
    )
    network.zero_grad()
    loss = network.flow_loss(*flow)
    if "loss" in reference:
        figures["loss"] = distance(loss, like(loss, reference["loss"], "loss"))
    if any(key.startswith("grad/") for key in reference):
        loss.mean().backward()
        figures["gradients"] = max(distance for _, distance in gradient_distances(golden))
    with torch.no_grad():
        if "actions" in reference:
            found = network.sample(
                images, masks, tokens, token_masks, given["state"], given["noise"], steps=STEPS
            )
            figures["actions"] = distance(found, like(found, reference["actions"], "actions"))
        if "image_features" in reference:
            found = network.image_features(images)
            wanted = like(found, reference["image_features"], "image_features")
            figures["image_features"] = distance(found[masks], wanted[masks])
        if "prefix" in reference:
            found, valid = network.prefix(images, masks, tokens, token_masks)
            wanted = like(found, reference["prefix"], "prefix")
            if "prefix_valid" in reference and not torch.equal(
                valid, reference["prefix_valid"].bool()
            ):
                raise ValueError("prefix_valid: the reference marks other tokens as valid")
            figures["prefix"] = distance(found[valid], wanted[valid])
        if "loss_clean_prefix" in reference:
            if "delay" not in given:
                raise ValueError(
                    "inputs.safetensors has no delay, but the reference has loss_clean_prefix"
                )
            found = network.flow_loss(*flow, delay=given["delay"])
            wanted = like(found, reference["loss_clean_prefix"], "loss_clean_prefix")
            noisy = torch.arange(found.shape[1]) >= given["delay"][:, None]
            figures["clean_prefix"] = distance(found[noisy], wanted[noisy])
        if any(VIDEO.fullmatch(key) for key in reference):
            figures["memory"] = memory_distance(golden)
    return figures


def memory_distance(golden: Golden) -> float:
    """Distance of the features of videos of k frames, the last ones of `video`."""
    if "video" not in golden.inputs:
        raise ValueError("inputs.safetensors has no video, but the reference has its features")
    video = golden.inputs["video"]
    mask = golden.inputs["video_mask"]
    worst = 0.0
    for key, wanted in golden.reference.items():
        if found := VIDEO.fullmatch(key):
            count = int(found[1])
            if not 1 <= count <= video.shape[1]:
                raise ValueError(f"{key}: video has {video.shape[1]} frames")
            features = video_features(
                golden.network, video[:, -count:], mask[:, -count:], wanted.shape[-1]
            )
            worst = max(worst, distance(features, like(features, wanted, key)))
    return worst


def video_features(network: Pi0Network, video: Tensor, mask: Tensor, width: int) -> Tensor:
    """Features [B, n, width] of a video [B, T, 3, H, W]: behind the projector, or before it where
    that is as wide.
    """
    frames = Frames(range(1 - video.shape[1], 1), mask)
    if width == network.sizes.vlm.width:
        return network.image_features(video[:, None], frames._replace(valid=mask[:, None]))[:, 0]
    return network.vision(video, network.dtype, frames)


def like(found: Tensor, reference: Tensor, name: str) -> Tensor:
    """Bring a reference to the shape of ours: its leading dimensions may be merged or split."""
    if reference.shape == found.shape:
        return reference
    if (
        reference.numel() == found.numel()
        and reference.ndim
        and reference.shape[-1] == found.shape[-1]
    ):
        return reference.reshape(found.shape)
    raise ValueError(
        f"{name}: the reference has shape {list(reference.shape)}, ours is {list(found.shape)}"
    )


def distance(found: Tensor, reference: Tensor) -> float:
    """Largest difference over the largest value; inf where a value is not finite."""
    found = found.detach().double()
    reference = reference.double()
    if not found.numel():
        return 0.0
    return finite(float((found - reference).abs().max() / reference.abs().max().clamp_min(1e-300)))


def finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def gradient_distances(golden: Golden) -> Iterator[tuple[str, float]]:
    """(parameter, distance) of each gradient of the reference."""
    own = {name: parameter.grad for name, parameter in golden.network.named_parameters()}
    wanted = reference_gradients(golden)
    norms = {name: float(value.norm()) for name, value in wanted.items()}
    largest = max(norms.values(), default=0.0) or 1.0
    biases = {ZERO_IN_THEORY.format(layer) for layer in range(golden.network.sizes.vision.depth)}
    for name, reference in wanted.items():
        gradient = own[name]
        found = torch.zeros_like(reference) if gradient is None else gradient.double()
        if found.shape != reference.shape:
            raise ValueError(
                f"grad/{released_key(name)}: shape {list(reference.shape)}, ours is "
                f"{list(found.shape)}"
            )
        if name == "embedding.weight" and not reference[0].any() and found[0].any():
            golden.notes.append(
                "row 0 of the embedding has a gradient in this network only: left out"
            )
            found = found[1:]
            reference = reference[1:]
        scale = norms[name]
        if name in biases:
            scale = norms.get(name.replace("bias", "weight"), 0.0)
        yield name, finite(float((found - reference).norm()) / (scale or largest))


def reference_gradients(golden: Golden) -> dict[str, Tensor]:
    """Gradients of the reference by our names, float64."""
    wanted: dict[str, Tensor] = {}
    stored = {
        key.removeprefix("grad/"): value
        for key, value in golden.reference.items()
        if key.startswith("grad/")
    }
    names = {name for name, _ in golden.network.named_parameters()}
    for key, value in sorted(
        stored.items(), key=lambda item: canonical(item[0]).endswith("lm_head.weight")
    ):
        name = own_name(key)
        if name in wanted:  # the text head, behind the embedding that it may be tied to
            if value.any() and not torch.equal(value.double(), wanted[name]):
                golden.notes.append(f"{key}: a second gradient of {name}: not compared")
        elif name in names:
            wanted[name] = value.double()
        elif value.any():
            golden.notes.append(f"grad/{key}: no parameter of this network: not compared")
    reached = {
        name for name, parameter in golden.network.named_parameters() if parameter.grad is not None
    }
    if absent := sorted(reached - set(wanted)):
        golden.notes.append(
            f"{len(absent)} parameters have no gradient in the reference, such as {absent[0]}"
        )
    return wanted


def table(figures: Mapping[str, Any], bounds: Mapping[str, float]) -> str:
    lines = [f"{'':16}{'difference':>12}{'bound':>10}"]
    for name, bound in bounds.items():
        value = figures[name]
        shown = "-" if value is None else f"{value:.1e}"
        outside = "" if value is None or value <= bound else "  outside"
        lines.append(f"{name:16}{shown:>12}{bound:>10.0e}{outside}")
    for name in ("missing", "extra"):
        lines += [f"{name}: {key}" for key in figures[name]] or [f"{name}: none"]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = make_parser(__doc__, whole=True)
    parser.add_argument(
        "--golden", type=Path, required=True, metavar="FOLDER", help="folder of golden files"
    )
    parser.add_argument(
        "--strict", action="store_true", help="bounds of another torch implementation"
    )
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    try:
        golden = load(options.golden)
        figures = compare(golden)
    except (OSError, ValueError) as error:
        print(f"{options.golden}: {error}", file=sys.stderr)
        return 2
    for note in golden.notes:
        print(f"note: {note}", file=sys.stderr)
    bounds = STRICT if options.strict else LOOSE
    print(json.dumps(figures) if options.json else table(figures, bounds))
    outside = [
        name
        for name, bound in bounds.items()
        if figures[name] is not None and not figures[name] <= bound
    ]
    return 1 if outside or figures["missing"] or figures["extra"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
