"""Images, texts and noisy actions of a batch in the network's form, their losses, and responses
that it predicts.

Cameras and numbers of tokens of a sample are on the host, so that shapes do not wait for a GPU.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.batch import (
    STATES_IS_PAD,
    check_image,
    check_shape,
    host_values,
    to_device,
    value_of,
)
from understudy.policies.common.flow_matching import given_actions, noisy_actions, velocity
from understudy.policies.common.images import blank, letterbox
from understudy.policies.common.layers import token_cross_entropy
from understudy.policies.common.normalizer import Normalizer
from understudy.policies.common.towers import Cache, Packing, Plan, rotary
from understudy.policies.draws import Draws
from understudy.policies.losses import Loss, masked_squared_error
from understudy.policies.pi05.config import Pi05PolicyConfig
from understudy.policies.pi05.network import Frames, Observation, Pi0Network, Tail
from understudy_base import ACTION, Batch

TEXT = "text"
FAST = "fast"
"""Loss terms of predicted tokens."""
TOKENS = {
    TEXT: ("response_tokens", "response_is_pad"),
    FAST: ("action_tokens", "action_tokens_is_pad"),
}
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
    """Whether the sample has the state of each time, of a policy that sees past states; else empty.
    """

    def tokens(self, term: str) -> int:
        """Return the number of tokens that a loss term predicts."""
        return self.text if term == TEXT else self.fast

    def total(self, image: int) -> int:
        """Return the tokens of the language tower, of which each camera has `image`."""
        return sum(self.cameras) * image + sum(self.states) + self.prompt + self.text + self.fast


def enclosing(sizes: Sequence[Extent]) -> Extent:
    """Return the extent to which a batch is padded: each camera of any sample, the states, and the
    longest texts.
    """
    cameras, prompts, texts, fasts, states = zip(*sizes, strict=True)
    shown = tuple(map(any, zip(*cameras, strict=True)))
    return Extent(shown, max(prompts), max(texts), max(fasts), (True,) * len(states[0]))


def extents(batch: Batch, cameras: Sequence[str]) -> list[Extent]:
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
    has = []
    for mask in missing:
        of_camera = [True] * count if mask is None else (~mask).tolist()
        has.append(of_camera)
    cameras_of_samples = zip(*has, strict=True) if has else [()] * count
    states = (~batch[STATES_IS_PAD]).tolist() if STATES_IS_PAD in batch else [()] * count
    rows = zip(cameras_of_samples, *lengths, map(tuple, states), strict=True)
    return [Extent(*row) for row in rows]


class Images(NamedTuple):
    """Images of a batch, without the cameras that no sample has."""

    pixels: Tensor
    """float32 [B, cameras, 3, side, side] in -1..1; with past frames [B, cameras, T, 3, side,
    side].
    """
    has: Tensor | None
    """bool [B, cameras], False where a sample lacks the camera, on the host; None: all have all."""
    frames: Frames | None
    """Times and marks [B, cameras, T] of the frames; None: the present alone."""


def images_of(
    batch: Batch,
    cameras: Sequence[str],
    sizes: Sequence[Extent],
    side: int,
    times: Sequence[float],
    device: torch.device,
) -> Images:
    """Read the images of a batch.

    Args:
        batch: each camera uint8 [B, 3, H, W]; with `times` [B, T, 3, H, W] and `<camera>_is_pad`
            bool [B, T].
        cameras: their keys.
        sizes: extent of each sample.
        side: side of the network's images.
        times: times of the frames; empty: the present alone.
        device: device of the result.

    Raises:
        ValueError: a missing key, a wrong shape or dtype, by name.
    """
    count = len(sizes)
    steps = (len(times),) if times else ()
    shown = []
    images = []
    valid = []
    for number, camera in enumerate(cameras):
        image = value_of(batch, camera)
        check_image(camera, image, (count, *steps, 3, None, None))
        if times:
            check_shape(f"{camera}_is_pad", value_of(batch, f"{camera}_is_pad"), (count, *steps))
        if any(extent.cameras[number] for extent in sizes):
            shown.append(number)
            images.append(letterbox(image.flatten(0, -4), side).view(count, *steps, 3, side, side))
            if times:
                valid.append(~batch[f"{camera}_is_pad"])
    if cameras and not shown:  # the encoder runs in each step, on each rank
        shown = [0]
        images = [
            blank(count * max(1, len(times)), side, device).view(count, *steps, 3, side, side)
        ]
        valid = [torch.ones(count, *steps, dtype=torch.bool, device=device)]
    if images:
        pixels = torch.stack(images, dim=1)
    else:
        pixels = torch.empty(count, 0, *steps, 3, side, side, device=device)
    marks = _marks_of_cameras(sizes, shown)
    has = None
    with host_values():
        if not all(map(all, marks)):
            has = torch.tensor(marks, dtype=torch.bool).view(count, len(shown))
    frames = None
    if times:
        valid_frames = torch.stack(valid, dim=1) if images else None
        frames = Frames(times, valid_frames)
    return Images(pixels, has, frames)


def _marks_of_cameras(sizes: Sequence[Extent], numbers: Sequence[int]) -> list[list[bool]]:
    """Whether each sample has the images of some cameras."""
    marks = []
    for extent in sizes:
        marks.append([extent.cameras[number] for number in numbers])
    return marks


def known_extents(batch: Batch, cameras: Sequence[str]) -> list[Extent]:
    """Return the extents of a batch; those of a prepared one are not read from the device."""
    return batch[EXTENTS] if EXTENTS in batch else extents(batch, cameras)


def padded_tokens(
    sizes: Sequence[Extent], image: int, multiple: int = 1, most: Sequence[int] = (0, 0, 0)
) -> int:
    """Return the number of tokens by which a batch is padded.

    Args:
        sizes: sizes of each sample.
        image: tokens of a camera.
        multiple: see `padded_length`.
        most: the same, of prompt, response and FAST actions.
    """
    longest_sample = enclosing(sizes)
    texts = zip(
        (longest_sample.prompt, longest_sample.text, longest_sample.fast), most, strict=True
    )
    prompt, text, fast = (padded_length(length, multiple, limit) for length, limit in texts)
    longest_sample = longest_sample._replace(prompt=prompt, text=text, fast=fast)
    return len(sizes) * longest_sample.total(image) - sum(extent.total(image) for extent in sizes)


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
    has = torch.tensor(_marks_of_cameras(sizes, shown), dtype=torch.bool)
    states = torch.tensor([extent.states for extent in sizes], dtype=torch.bool).view(
        len(sizes), len(most.states)
    )
    segments = [has.view(len(sizes), len(shown)).repeat_interleave(image, dim=1), states]
    for length, lengths in zip(
        most[1:4], zip(*(extent[1:4] for extent in sizes), strict=True), strict=True
    ):
        segments.append(torch.arange(length) < torch.tensor(lengths)[:, None])
    present = segments if tail else segments[:3]
    marks = torch.cat(present, dim=1)
    if bool(marks.all()):
        return None
    images, past, prompt, response, fast = (
        lengths.sum(dim=1) * (number < 3 or tail) for number, lengths in enumerate(segments)
    )
    return Packing(
        marks.flatten().nonzero()[:, 0], images + past + prompt, response, response + fast
    )


def longest(batch: Batch, cameras: Sequence[str], *lengths: int) -> dict[str, Any]:
    """Add tokens without meaning to a batch, of these lengths of prompt, response and FAST actions;
    0: none.

    Past states count as present, too.
    """
    padded = dict(batch)
    if STATES_IS_PAD in padded:
        padded[STATES_IS_PAD] = torch.zeros_like(padded[STATES_IS_PAD])
    for (tokens, is_pad), length in zip((PROMPT, TOKENS[TEXT], TOKENS[FAST]), lengths, strict=True):
        if length:
            padded[tokens] = torch.zeros(len(value_of(batch, ACTION)), length, dtype=torch.int64)
            padded[is_pad] = torch.zeros(len(value_of(batch, ACTION)), length, dtype=torch.bool)
    return {**padded, EXTENTS: extents(padded, cameras)}


def padded_length(length: int, multiple: int, most: int) -> int:
    """Round a length up to a multiple, but not beyond `most`, the longest text of the policy."""
    return max(length, min(most, -(-length // multiple) * multiple))


def cut(
    tokens: Tensor, lengths: list[int], multiple: int = 1, most: int = 0
) -> tuple[Tensor, Tensor | None]:
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


def widened(x: Tensor, dim: int) -> Tensor:
    """Pad the last dimension with zeros to the network's."""
    return nn.functional.pad(x, (0, dim - x.shape[-1]))


def unlearnt_actions(batch: Batch, draws: Draws, chunk: int) -> Tensor:
    """Mark the actions without a loss, bool [B, T]: padded ones and given ones."""
    is_pad: Tensor = value_of(batch, f"{ACTION}_is_pad")
    check_shape(f"{ACTION}_is_pad", is_pad, (None, chunk))
    is_given = _given_actions(draws, chunk)
    return is_pad if is_given is None else is_pad | is_given


def _given_actions(draws: Draws, chunk: int) -> Tensor | None:
    """Actions that the sample is given without noise, bool [B, T]; None: none."""
    return given_actions(draws["flow delay"], chunk) if "flow delay" in draws else None


def noisy_chunks(
    batch: Batch, draws: Draws, config: Pi05PolicyConfig, normalizer: Normalizer, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return noisy actions [B, D, T, dim], their times [B, D] or [B, D, T], and the clean actions
    [B, T, dim].

    Padded actions are replaced by 0 before any arithmetic: such a slot carries noise only.

    Args:
        batch: of training.
        draws: draws of the batch.
        config: config of the policy.
        normalizer: normalizer of the policy.
        dim: width of the network's actions.

    Raises:
        ValueError: a missing key or a wrong shape, by name.
    """
    noise = draws["flow noise"]
    time = draws["flow time"]
    check_shape(ACTION, value_of(batch, ACTION), (None, config.chunk, config.action_dim))
    actions = normalizer.actions(batch)
    is_pad: Tensor = value_of(batch, f"{ACTION}_is_pad")
    check_shape(f"{ACTION}_is_pad", is_pad, tuple(actions.shape[:2]))
    clean = widened(torch.where(is_pad[..., None], torch.zeros_like(actions), actions), dim)
    check_shape("noise", noise, (len(clean), None, config.chunk, dim))
    check_shape("time", time, tuple(noise.shape[:2]))
    is_given = _given_actions(draws, config.chunk)
    every = clean[:, None].expand_as(noise)
    if is_given is None:
        return noisy_actions(every, noise, time), time, clean
    times = torch.where(is_given[:, None], 0.0, time[..., None].expand(*noise.shape[:3]))
    return noisy_actions(every.unsqueeze(3), noise.unsqueeze(3), times).squeeze(3), times, clean


def flow_loss(
    batch: Batch, draws: Draws, moves: Tensor, clean: Tensor, normalizer: Normalizer, detail: bool
) -> Loss:
    """Compute the squared error of the velocity per sample, over the robot's own dimensions.

    Args:
        batch: of training.
        draws: draws of the batch.
        moves: predicted velocity [B, D, T, dim].
        clean: actions [B, T, dim] of `noisy_chunks`.
        normalizer: normalizer of the policy.
        detail: whether to return the errors of each draw too.
    """
    noise = draws["flow noise"]
    width = value_of(batch, ACTION).shape[-1]
    target = velocity(clean[:, None].expand_as(noise), noise)
    dims = normalizer.dim_is_pad(ACTION, batch)
    unlearnt = unlearnt_actions(batch, draws, clean.shape[1])
    loss = masked_squared_error(moves[..., :width], target[..., :width], unlearnt, dims, detail)
    # the d-th earliest of a sample's times lies in the d-th interval
    if detail and loss.detail is not None:
        loss = loss._replace(detail=loss.detail._replace(order=draws["flow time"].argsort(dim=1)))
    return loss


def tail_of(
    batch: Batch, sizes: Sequence[Extent], multiple: int = 1, most: Sequence[int] = (0, 0, 0)
) -> Tail:
    """Read the tokens to predict; without any, a tail of no tokens, so that every rank uses the
    same weights.

    Args:
        batch: with tokens.
        sizes: extent of each sample.
        multiple: see `padded_length`.
        most: the same, of prompt, response and FAST actions.
    """
    like = value_of(batch, PROMPT[0])
    parts = []
    masks = []
    for term, limit in zip((TEXT, FAST), most[1:], strict=True):
        lengths = [extent.tokens(term) for extent in sizes]
        tokens, mask = cut(batch.get(TOKENS[term][0], like[:, :0]), lengths, multiple, limit)
        if mask is None:
            mask = torch.ones_like(tokens, dtype=torch.bool)
        parts.append(tokens)
        masks.append(mask)
    return Tail(torch.cat(parts, dim=1), torch.cat(masks, dim=1), parts[0].shape[1])


def token_losses(
    network: Pi0Network,
    observed: Observation,
    hidden: Tensor,
    tail: Tail,
    sizes: Sequence[Extent],
    terms: Sequence[str],
) -> dict[str, Loss]:
    """Compute the cross-entropy of the tail per sample; the last valid token before each predicts
    it.

    Args:
        network: its embedding is the table of logits, too.
        observed: prefix and tail.
        hidden: [B, P + L, width], the tower's result for `observed`.
        tail: the targets.
        sizes: numbers of valid tokens.
        terms: of `TOKENS`.
    """
    prefix = observed.prefix
    count, length = tail.tokens.shape
    order = torch.arange(prefix + length, device=hidden.device)
    # [B, P + L], last valid token up to each
    latest = torch.where(observed.valid, order, 0).cummax(dim=1).values
    previous = latest[:, prefix - 1 : prefix - 1 + length]  # [B, L]
    losses = {}
    for term in terms:
        low = 0 if term == TEXT else tail.response
        lengths = torch.tensor([extent.tokens(term) for extent in sizes])
        places: list[int] = []
        for row, sample in enumerate(sizes):
            first = row * length + low
            places += range(first, first + sample.tokens(term))
        where = to_device(torch.tensor(places, dtype=torch.int64), hidden.device)
        rows = where // max(1, length)
        states = hidden[rows, previous.flatten()[where]]  # [N, width]
        entropies = token_cross_entropy(
            states, network.embedding.weight, tail.tokens.flatten()[where]
        )
        sums = (
            entropies.new_zeros(count * length)
            .index_copy(0, where, entropies)
            .view(count, length)
            .sum(dim=1)
        )
        losses[term] = Loss(sums, to_device(lengths, hidden.device))
    return losses


@torch.no_grad()
def respond(
    network: Pi0Network,
    observed: Observation,
    length: int,
    end: int,
    temperature: float = 0.0,
    uniform: Tensor | None = None,
) -> Tail:
    """Predict the next token until each sample has ended: the most likely one, or one drawn.

    The prefix takes one pass of the language tower, and each further token another one, over the
    keys and values of those before it.

    Args:
        network: the network.
        observed: embedded prefix of B samples, without a tail.
        length: most tokens of a response.
        end: token behind which a response has no more.
        temperature: divisor of the logits; 0: the most likely token.
        uniform: with a temperature, numbers from 0 to 1 that draw the tokens, [B, length].

    Returns:
        The response with its `end`, which the expert sees.
    """
    count = len(observed.valid)
    device = observed.valid.device
    tokens = torch.zeros(count, 0, dtype=torch.int64, device=device)
    masks = torch.zeros(count, 0, dtype=torch.bool, device=device)
    ended = torch.zeros(count, dtype=torch.bool, device=device)
    if not length:
        return Tail(tokens, masks, 0)
    order = torch.arange(observed.prefix, device=device)
    hidden, caches = _continue(network, observed.embeddings, observed.valid, None)
    # [B, width]
    last = hidden[
        torch.arange(count, device=device), torch.where(observed.valid, order, 0).amax(dim=1)
    ]
    table = network.embedding.weight.to(last.dtype)
    while True:
        logits = F.linear(last, table).float()
        if temperature and uniform is not None:
            best = _draw(logits, temperature, uniform[:, tokens.shape[1]])
        else:
            best = logits.argmax(dim=1)
        running = ~ended[:, None]
        tokens = torch.cat([tokens, best[:, None]], dim=1)
        masks = torch.cat([masks, running], dim=1)
        ended = ended | (best == end)
        if tokens.shape[1] == length or ended.all():
            return Tail(tokens, masks, tokens.shape[1])
        seen = network.with_tail(observed, Tail(best[:, None], running, 1)).embeddings[
            :, observed.prefix :
        ]
        hidden, caches = _continue(network, seen, torch.cat([observed.valid, masks], dim=1), caches)
        last = torch.where(running, hidden[:, 0], last)


def _draw(logits: Tensor, temperature: float, uniform: Tensor) -> Tensor:
    """Draw a token of each row by the inverse of its distribution, int64 [B].

    Args:
        logits: float32 [B, V].
        temperature: divisor of the logits.
        uniform: numbers from 0 to 1, [B].
    """
    scaled = (logits - logits.amax(dim=1, keepdim=True)).double() / temperature
    shares = scaled.exp().cumsum(dim=1)
    wanted = uniform.double()[:, None] * shares[:, -1:]
    return torch.searchsorted(shares, wanted, right=True)[:, 0].clamp(max=logits.shape[1] - 1)


def _continue(
    network: Pi0Network, x: Tensor, valid: Tensor, caches: Sequence[Cache] | None
) -> tuple[Tensor, list[Cache]]:
    """Run the language tower over the prefix, or over one token behind it.

    Args:
        network: the network.
        x: [B, P, width], the embedded prefix; with `caches` [B, 1, width], the token.
        valid: bool [B, P + n], of all tokens so far.
        caches: of all layers, for the tokens before `x`.

    Returns:
        The tower's tokens in the shape of `x`, and the caches with them.
    """
    rotation = rotary((valid.cumsum(dim=1) - 1)[:, -x.shape[1] :], network.sizes.vlm.head_dim)
    mask = valid[:, None, None]
    prefix = x.shape[1] if caches is None else 0
    tail_mask = None if prefix else mask
    plan = Plan(rotation, mask, tail_mask, None, None, prefix, prefix, 1, insulate=False)
    tokens: Tensor | None = x
    continued: list[Cache] = []
    for number, layer in enumerate(network.layers):
        past = None if caches is None else caches[number]
        tokens, _, cache = layer(tokens, None, plan, cache=past)
        continued.append(cache)
    assert tokens is not None
    return network.vlm_norm(tokens)[0], continued
