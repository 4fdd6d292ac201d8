"""Images of a batch, and cameras and numbers of tokens of each sample.

The numbers are on the host, so that shapes do not wait for a GPU.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from understudy.batch_keys import ACTION
from understudy.policies.batch import check_shape, host_values, to_device, value_of
from understudy.policies.common.history import STATES_IS_PAD
from understudy.policies.common.letterbox import blank, letterbox
from understudy.policies.common.towers.attention import Packing
from understudy.policies.pi05.siglip import Frames

TEXT, FAST = "text", "fast"
"""Loss terms of predicted tokens."""
TOKENS = {TEXT: ("response_tokens", "response_is_pad"), FAST: ("action_tokens", "action_tokens_is_pad")}
"""Keys of a batch with the tokens that each term predicts, and with their padding."""
PROMPT = ("prompt_tokens", "prompt_is_pad")
"""The same of the prompt."""
EXTENTS = "extents"
"""Key of a batch with an `Extent` per sample."""


class Extent(NamedTuple):
    """Cameras and numbers of tokens of a sample."""

    cameras: tuple[bool, ...]
    """Whether the sample has each camera."""
    prompt: int
    text: int = 0
    fast: int = 0
    states: tuple[bool, ...] = ()
    """Whether the sample has the state of each time, of a policy that sees past states; else empty."""

    def tokens(self, term: str) -> int:
        """Return the number of tokens that a loss term predicts."""
        return self.text if term == TEXT else self.fast

    def total(self, image: int) -> int:
        """Return the tokens of the language tower, of which each camera has `image`."""
        return sum(self.cameras) * image + sum(self.states) + self.prompt + self.text + self.fast


def enclosing(sizes: Sequence[Extent]) -> Extent:
    """Return the extent to which a batch is padded: each camera of any sample, the states, and the longest texts."""
    cameras, prompts, texts, fasts, states = zip(*sizes, strict=True)
    shown = tuple(map(any, zip(*cameras, strict=True)))
    return Extent(shown, max(prompts), max(texts), max(fasts), (True,) * len(states[0]))


def extents(batch: Mapping[str, Any], cameras: Sequence[str]) -> list[Extent]:
    """Read the extent of each sample from a batch.

    Raises:
        ValueError: padding is not behind the tokens of each sample.
    """
    lengths: list[list[int]] = []
    for tokens, is_pad in (PROMPT, *(TOKENS[term] for term in (TEXT, FAST))):
        if tokens not in batch:
            lengths.append([0] * len(value_of(batch, PROMPT[0])))
            continue
        marks = value_of(batch, is_pad)
        check_shape(is_pad, marks, tuple(batch[tokens].shape))
        if (marks[:, :-1] & ~marks[:, 1:]).any():
            raise ValueError(f"{is_pad}: padding must be behind the tokens of each sample")
        lengths.append((~marks).sum(dim=1).tolist())
    missing = [batch.get(f"{camera}_is_missing") for camera in cameras]
    count = len(lengths[0])
    has = [[True] * count if each is None else (~each).tolist() for each in missing]
    states = (~batch[STATES_IS_PAD]).tolist() if STATES_IS_PAD in batch else [()] * count
    rows = zip(zip(*has, strict=True) if has else [()] * count, *lengths, map(tuple, states), strict=True)
    return [Extent(*row) for row in rows]


class Images(NamedTuple):
    """Images of a batch, without the cameras that no sample has."""

    pixels: Tensor
    """float32 [B, cameras, 3, side, side] in -1..1; with past frames [B, cameras, T, 3, side, side]."""
    has: Tensor | None
    """bool [B, cameras], False where a sample lacks the camera, on the host; None: all have all."""
    frames: Frames | None
    """Times and marks [B, cameras, T] of the frames; None: the present alone."""


def images_of(
    batch: Mapping[str, Any],
    cameras: Sequence[str],
    sizes: Sequence[Extent],
    side: int,
    times: Sequence[float],
    device: torch.device,
) -> Images:
    """Read the images of a batch.

    Args:
        batch: each camera uint8 [B, 3, H, W]; with `times` [B, T, 3, H, W] and `<camera>_is_pad` bool [B, T].
        cameras: their keys.
        sizes: extent of each sample.
        side: of the network's images.
        times: of the frames; empty: the present alone.
        device: of the result.

    Raises:
        ValueError: a missing key, a wrong shape or dtype, by name.
    """
    count, steps = len(sizes), (len(times),) if times else ()
    shown, images, valid = [], [], []
    for number, camera in enumerate(cameras):
        image = value_of(batch, camera)
        check_shape(camera, image, (count, *steps, 3, None, None))
        if image.dtype != torch.uint8:
            raise ValueError(f"{camera} is {image.dtype}, images are uint8")
        if times:
            check_shape(f"{camera}_is_pad", value_of(batch, f"{camera}_is_pad"), (count, *steps))
        if any(extent.cameras[number] for extent in sizes):
            shown.append(number)
            images.append(letterbox(image.flatten(0, -4), side).view(count, *steps, 3, side, side))
            valid += [~batch[f"{camera}_is_pad"]] if times else []
    if cameras and not shown:  # the encoder runs in each step, on each rank
        shown, images = [0], [blank(count * max(1, len(times)), side, device).view(count, *steps, 3, side, side)]
        valid = [torch.ones(count, *steps, dtype=torch.bool, device=device)]
    pixels = torch.stack(images, dim=1) if images else torch.empty(count, 0, *steps, 3, side, side, device=device)
    marks = [[extent.cameras[number] for number in shown] for extent in sizes]
    with host_values():
        has = None if all(map(all, marks)) else torch.tensor(marks, dtype=torch.bool).view(count, len(shown))
    frames = Frames(times, torch.stack(valid, dim=1) if images else None) if times else None
    return Images(pixels, has, frames)


def known_extents(batch: Mapping[str, Any], cameras: Sequence[str]) -> list[Extent]:
    """Return the extents of a batch; those of a prepared one are not read from the device."""
    return batch[EXTENTS] if EXTENTS in batch else extents(batch, cameras)


def padded_tokens(sizes: Sequence[Extent], image: int, multiple: int = 1, most: Sequence[int] = (0, 0, 0)) -> int:
    """Return the number of tokens by which a batch is padded.

    Args:
        sizes: of each sample.
        image: tokens of a camera.
        multiple: see `padded_length`.
        most: the same, of prompt, response and FAST actions.
    """
    own = enclosing(sizes)
    texts = zip((own.prompt, own.text, own.fast), most, strict=True)
    prompt, text, fast = (padded_length(length, multiple, limit) for length, limit in texts)
    own = own._replace(prompt=prompt, text=text, fast=fast)
    return len(sizes) * own.total(image) - sum(each.total(image) for each in sizes)


@host_values()
def packing_of(sizes: Sequence[Extent], image: int, tail: bool) -> Packing | None:
    """Return the tokens that count, of a batch padded to the longest.

    Args:
        sizes: extent of each sample.
        image: tokens of a camera.
        tail: whether the batch has text to predict.

    Returns:
        None where all tokens count.
    """
    most = enclosing(sizes)
    shown = [number for number, seen in enumerate(most.cameras) if seen] or [0][: len(most.cameras)]
    has = torch.tensor([[each.cameras[number] for number in shown] for each in sizes], dtype=torch.bool)
    states = torch.tensor([each.states for each in sizes], dtype=torch.bool).view(len(sizes), len(most.states))
    kept = [has.view(len(sizes), len(shown)).repeat_interleave(image, dim=1), states]
    for length, own in zip(most[1:4], zip(*(each[1:4] for each in sizes), strict=True), strict=True):
        kept.append(torch.arange(length) < torch.tensor(own)[:, None])
    marks = torch.cat(kept if tail else kept[:3], dim=1)
    if bool(marks.all()):
        return None
    images, past, prompt, response, fast = (own.sum(dim=1) * (number < 3 or tail) for number, own in enumerate(kept))
    return Packing(marks.flatten().nonzero()[:, 0], images + past + prompt, response, response + fast)


def longest(batch: Mapping[str, Any], cameras: Sequence[str], *lengths: int) -> dict[str, Any]:
    """Add tokens without meaning to a batch, of these lengths of prompt, response and FAST actions; 0: none.

    Past states count as present, too.
    """
    found = dict(batch)
    if STATES_IS_PAD in found:
        found[STATES_IS_PAD] = torch.zeros_like(found[STATES_IS_PAD])
    for (tokens, is_pad), length in zip((PROMPT, TOKENS[TEXT], TOKENS[FAST]), lengths, strict=True):
        if length:
            found[tokens] = torch.zeros(len(value_of(batch, ACTION)), length, dtype=torch.int64)
            found[is_pad] = torch.zeros(len(value_of(batch, ACTION)), length, dtype=torch.bool)
    return {**found, EXTENTS: extents(found, cameras)}


def padded_length(length: int, multiple: int, most: int) -> int:
    """Round a length up to a multiple, but not beyond `most`, the longest text of the policy."""
    return max(length, min(most, -(-length // multiple) * multiple))


def cut(tokens: Tensor, lengths: list[int], multiple: int = 1, most: int = 0) -> tuple[Tensor, Tensor | None]:
    """Cut or pad tokens to the `padded_length` of the longest, and mark them.

    Args:
        tokens: int64 [B, L].
        lengths: valid tokens of each sample.
        multiple: see `padded_length`; compiled code then meets few lengths.
        most: see `padded_length`.

    Returns:
        Tokens [B, N], and marks bool [B, N]; None where all are valid.
    """
    longest = padded_length(max(lengths, default=0), multiple, most)
    tokens = nn.functional.pad(tokens[:, :longest], (0, max(0, longest - tokens.shape[1])))
    if min(lengths, default=0) == longest:
        return tokens, None
    marks = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return tokens, to_device(marks, tokens.device)
