"""Imagined futures of validation frames and the recorded ones: errors over the horizon, and strips
of images.

A policy that imagines (`Policy.imagines`) gets the recorded observation and the recorded actions of
some validation frames, and predicts the states and images that follow (forward dynamics). The
reference is a copy of the present: nothing changes. All ranks compute the same frames in the same
parts, so the figures do not depend on the ranks.
"""

import io
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.distributed.mesh import Mesh
from understudy.policies.batch import batch_to_device
from understudy.policies.capabilities.future import images_ahead
from understudy.policies.capabilities.images import resize_of
from understudy.policies.common.normalizer import of_head
from understudy.policies.policy import Policy, evaluating
from understudy.train.augment_batch import draw_on_device
from understudy_base import STATE, TASK, Batch, write_bytes
from understudy_data import ValidationData

logger = logging.getLogger(__name__)

FRAMES = 64
PART = 16
"""Largest number of frames, and frames of a forward pass."""
STRIPS = 6
"""Frames whose images are kept."""
MOVED = 25
"""Levels of 255 by which a color of a pixel changes where something moves."""
TEXT = "understudy"
"""Key of the JSON text in the PNG file."""


@dataclass(frozen=True)
class Futures:
    """Figures of imagined futures, and strips of images."""

    figures: dict[str, Any]
    """`frames`: their number. `states`: {"model", "copy": mean squared error after each action of
    the chunk}, in units of the normalization's spread, over the dimensions that move; None where no
    state was recorded. `images`, where the policy has them: {"ahead": frames ahead, "psnr",
    "psnr_moved": {"model", "copy": dB for each}}, `psnr_moved` over the pixels that change.
    """
    strips: list[np.ndarray]
    """Rows of images, uint8 [1 + 2 K, H, cameras * W, 3]: the present, then recorded and imagined
    in turn.
    """
    captions: list[str]
    """Description of each row."""
    ahead: tuple[int, ...]
    """Frames ahead of the K images."""

    def write(self, path: Path) -> None:
        """Write the strips as one PNG, with the texts of rows and columns as JSON in a text chunk;
        none: no file.

        A failure is only logged: the checkpoint of this step is still to be saved, and needs no
        images.
        """
        from PIL import Image
        from PIL.PngImagePlugin import PngInfo

        if not self.strips:
            return
        rows = [np.concatenate(list(strip), axis=1) for strip in self.strips]
        columns = ["now"]
        for ahead in self.ahead:
            columns += [f"recorded, {ahead} ahead", f"imagined, {ahead} ahead"]
        info = PngInfo()
        buffer = io.BytesIO()
        info.add_itxt(TEXT, json.dumps({"rows": self.captions, "columns": columns}))
        Image.fromarray(np.concatenate(rows, axis=0)).save(buffer, "PNG", pnginfo=info)
        try:
            write_bytes(path, buffer.getvalue())
        except OSError as error:
            logger.warning("%s: imagined images cannot be written: %s", path, error)


@torch.no_grad()
def imagine_frames(policy: Policy, held: ValidationData, seed: int, mesh: Mesh) -> Futures:
    """Imagine the future of up to `FRAMES` validation frames, evenly spread; all ranks call this
    together.

    Args:
        policy: its weights do not change; `policy.imagines`.
        held: the validation frames.
        seed: seed of the noise, which belongs to the sample.
        mesh: the ranks.
    """
    chosen = np.zeros(len(held), bool)
    chosen[np.unique(np.linspace(0, len(held) - 1, FRAMES).round().astype(int))] = True
    frames = held.select(chosen)
    cameras = policy.config.cameras
    parts = []
    captions = []
    with evaluating(policy):
        for start in range(0, len(frames), PART):
            part = slice(start, min(start + PART, len(frames)))
            with mesh.together():
                batch = policy.preprocess(frames.read(part))
            unreadable = batch.pop(ValidationData.UNREADABLE)
            inputs = batch_to_device(batch, mesh.device)
            draws = draw_on_device(
                policy.random_spec("act"), seed, frames.identity(part), mesh.device, "imagined"
            )
            rows = [row for row in range(len(batch[TASK])) if row not in unreadable]
            compared = _compare(policy, inputs, draws)
            parts.append({name: value.cpu()[rows] for name, value in compared.items()})
            numbers = [part.start + row for row in rows]
            captions += [
                f"{batch[TASK][row]} · episode {frames.episode[number]}, frame "
                f"{frames.frame[number]}"
                for row, number in zip(rows, numbers)
            ]
    whole: dict[str, Tensor] = {}
    if parts:
        for name in parts[0]:
            whole[name] = torch.cat([part[name] for part in parts])
    ahead = images_ahead(policy.config, policy.config.chunk) if "imagined" in whole else ()
    strips, of_rows = _strips(whole, len(cameras)) if ahead else ([], [])
    return Futures(
        _figures(whole, ahead, len(captions)), strips, [captions[row] for row in of_rows], ahead
    )


def psnr(predicted: Tensor, real: Tensor, mask: Tensor | None = None) -> float | None:
    """Compute the peak signal-to-noise ratio of images in dB, from the mean squared error over all
    of them.

    Args:
        predicted: uint8 [..., 3, H, W].
        real: uint8 of the same shape.
        mask: bool [..., 1, H, W], pixels that count; None: all.

    Returns:
        10 log10(255^2 / error), 100 for an error of 0; None without a pixel.
    """
    squares = (predicted.double() - real.double()).square()
    if mask is not None:
        squares = squares[mask.expand_as(squares)]
    if not squares.numel():
        return None
    return float(10 * torch.log10(255.0**2 / squares.mean().clamp(min=255.0**2 * 1e-10)))


def moved(now: Tensor, then: Tensor) -> Tensor:
    """Mark the pixels that change between images uint8 [..., 3, H, W]: bool [..., 1, H, W]."""
    return ((then.int() - now.int()).abs() >= MOVED).any(dim=-3, keepdim=True)


def _compare(policy: Policy, batch: Batch, draws: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Imagine a batch: squared errors of states [B, T, S], images [B, K, cameras, 3, H, W], and
    marks of both.
    """
    imagined = policy.imagine(batch, draws)
    normalizer = policy.normalizer
    head = policy.normalizer.head(batch)
    assert normalizer.state is not None
    real = normalizer.states(batch, batch[STATE])  # [B, 1 + T, S]
    absent = batch[f"{STATE}_is_pad"][:, 1:, None]
    moving = (of_head(normalizer.state.spread, head) != 0)[:, None]
    if (padded := normalizer.dim_is_pad(STATE, batch)) is not None:
        moving = moving & ~padded[:, None]
    counted = ~absent & moving.expand(len(real), -1, -1)
    errors = {"states": normalizer.states(batch, imagined.states), "copied": real[:, :1]}
    figures = {
        name: torch.where(counted, values - real[:, 1:], 0.0).double().square()
        for name, values in errors.items()
    }
    figures["counted"] = counted
    if imagined.images is None:
        return figures
    size = imagined.images.shape[-2:]
    cameras = policy.config.cameras
    resize = resize_of(policy.config)
    frames = torch.stack(
        [_resized(batch[camera], size, resize) for camera in cameras], dim=2
    )  # [B, 1 + K, cameras, 3, H, W]
    lacking = [batch[f"{camera}_is_pad"][:, 1:] for camera in cameras]
    for number, camera in enumerate(cameras):
        if (lacks := batch.get(f"{camera}_is_missing")) is not None:
            lacking[number] = lacking[number] | lacks[:, None]
    return figures | {
        "now": frames[:, :1],
        "recorded": frames[:, 1:],
        "imagined": imagined.images,
        "shown": ~torch.stack(lacking, dim=2),  # [B, K, cameras]
    }


def _resized(images: Tensor, size: torch.Size, resize: Callable[[Any, Any], None] | None) -> Tensor:
    """Resize images uint8 [B, T, 3, H, W] to `size` as the network does: by `resize`, or over
    areas.
    """
    if images.shape[-2:] == size:
        return images
    if resize is not None:
        frames = images.flatten(0, 1).cpu().numpy()
        out = np.empty((*frames.shape[:2], *size), np.uint8)
        for frame, resized_frame in zip(frames, out, strict=True):
            resize(frame, resized_frame)
        return torch.from_numpy(out).to(images.device).unflatten(0, images.shape[:2])
    resized = (
        F.interpolate(images.flatten(0, 1).float(), size=tuple(size), mode="area")
        .round()
        .to(torch.uint8)
    )
    return resized.unflatten(0, images.shape[:2])


def _figures(whole: Mapping[str, Tensor], ahead: tuple[int, ...], count: int) -> dict[str, Any]:
    """Return the figures of `Futures`."""
    figures: dict[str, Any] = {"frames": count, "states": None}
    if count and (elements := whole["counted"].sum(dim=(0, 2))).any():
        figures["states"] = {
            "model": _means_per_step(whole["states"], elements),
            "copy": _means_per_step(whole["copied"], elements),
        }
    if ahead:
        table: dict[str, Any] = {"ahead": list(ahead), "psnr": {}, "psnr_moved": {}}
        now = whole["now"].expand_as(whole["recorded"])
        for name, images in (("model", whole["imagined"]), ("copy", now)):
            table["psnr"][name] = []
            table["psnr_moved"][name] = []
            for number in range(len(ahead)):
                shown = whole["shown"][:, number]  # [N, cameras]
                real = whole["recorded"][:, number][shown]
                mask = moved(now[:, number][shown], real)
                table["psnr"][name].append(psnr(images[:, number][shown], real))
                table["psnr_moved"][name].append(psnr(images[:, number][shown], real, mask))
        figures["images"] = table
    return figures


def _means_per_step(errors: Tensor, elements: Tensor) -> list[float | None]:
    """Mean error of each step ahead; None where no element of it was recorded."""
    means = []
    for total, count in zip(errors.sum(dim=(0, 2)).tolist(), elements.tolist()):
        mean = total / count if count else None
        means.append(mean)
    return means


def _strips(whole: Mapping[str, Tensor], cameras: int) -> tuple[list[np.ndarray], list[int]]:
    """Return rows of images of up to `STRIPS` frames whose whole future was recorded, and the
    numbers of the frames.
    """
    complete = whole["shown"].all(dim=(1, 2)).nonzero()[:, 0].tolist()
    chosen = []
    if complete:
        chosen = sorted({complete[round(i)] for i in np.linspace(0, len(complete) - 1, STRIPS)})
    rows = []
    for number in chosen:
        pairs = torch.stack([whole["recorded"][number], whole["imagined"][number]], dim=1).flatten(
            0, 1
        )
        images = torch.cat([whole["now"][number], pairs])  # [1 + 2 K, cameras, 3, H, W]
        rows.append(np.ascontiguousarray(images.permute(0, 3, 1, 4, 2).flatten(2, 3).numpy()))
    return rows, chosen
