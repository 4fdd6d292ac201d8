"""The proofs. Each runs a policy on changed batches, and compares losses, counts and gradients.

A proof names the largest difference, its place, the likely cause and the remedy. Where a policy has
no way to show a property, the proof is not asked, with the reason.
"""

import copy
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from understudy.train.proofs.batches import late
from understudy.train.proofs.subject import Stranger, Subject, Watched, plain
from understudy_base import ACTION, Batch, summarize

ROUNDING = 1e-4
"""Largest difference of sums of another batch, relative to the largest value: products of other
shapes round differently."""
SLACK = 1e-3
"""Largest relative difference of means that should add up."""
IS_PAD = "_is_pad"
PAD = f"{ACTION}{IS_PAD}"


@dataclass(frozen=True)
class Proof:
    """Result of one proof."""

    name: str
    result: Literal["passed", "failed", "not asked"]
    value: str = ""
    """The difference that was found, or the largest one that is allowed."""
    place: str = ""
    """The loss, count, gradient, sample or tensor with that difference."""
    cause: str = ""
    """The likely cause; where the proof is not asked, the reason."""
    fix: str = ""
    """The remedy."""

    def __str__(self) -> str:
        """Format the proof as a line."""
        found = " in ".join(filter(None, (self.value, self.place)))
        parts = [f"{self.name}: {self.result}", found, self.cause, self.fix]
        return "; ".join(filter(None, parts))


class Gap(NamedTuple):
    """A difference of two results; empty where they agree."""

    value: str = ""
    place: str = ""


Make = Callable[[Subject, Batch], Proof]


def passed(name: str, value: str = "0", cause: str = "") -> Proof:
    """Return a proof that holds."""
    return Proof(name, "passed", value, cause=cause)


def failed(name: str, gap: Gap, cause: str, fix: str) -> Proof:
    """Return a proof that does not."""
    return Proof(name, "failed", gap.value, gap.place, cause, fix)


def not_asked(name: str, cause: str) -> Proof:
    """Return a proof that the policy cannot be asked."""
    return Proof(name, "not asked", cause=cause)


def find_gap(one: Mapping[str, Tensor], two: Mapping[str, Tensor], tolerance: float = 0.0) -> Gap:
    """Return the largest relative difference of named tensors beyond `tolerance`; 0 compares
    bits.
    """
    worst = Gap()
    size = tolerance
    for name, first in one.items():
        second = two.get(name)
        if second is None or second.shape != first.shape:
            return Gap("another shape", name)
        if torch.equal(first, second):
            continue
        wide = first.detach().double()
        gaps = (wide - second.detach().double()).abs().nan_to_num(math.inf)
        scale = max(float(wide.abs().nan_to_num(0, 0, 0).max()), 1e-30)
        found = float(gaps.max()) / scale
        if found > size or (not tolerance and not worst.value):
            size = found
            shown = f"{found:.2g} of its largest value" if math.isfinite(found) else "NaN or inf"
            is_by_sample = gaps.ndim == 1 and not name.startswith("gradient")
            sample = f", sample {int(gaps.argmax())}" if is_by_sample else ""
            worst = Gap(shown, name + sample)
    return worst


def change_padding(batch: Batch, key: str, how: str) -> dict[str, Any]:
    """Replace the padded values of a mask's key: "other" values, "large" ones, or "nan".

    Of whole numbers those of images alone: others may be indexes.
    """
    base = key.removesuffix(IS_PAD).removesuffix("_dim")
    value = batch.get(base)
    mask = batch[key]
    if not isinstance(value, Tensor) or not isinstance(mask, Tensor) or value.ndim < mask.ndim:
        return dict(batch)
    if key.endswith(f"_dim{IS_PAD}") and value.ndim == 3:
        mask = mask[:, None]
    if value.is_floating_point():
        other = {"other": 1.25 - 0.5 * value, "large": 1e4 + value}.get(how, value * math.nan)
    elif value.dtype == torch.uint8 and how != "nan":
        other = 255 - value
    else:
        return dict(batch)
    wide = mask.view(*mask.shape, *[1] * (value.ndim - mask.ndim))
    return {**batch, base: torch.where(wide, other, value)}


def prove_padding(subject: Subject, batch: Batch) -> Proof:
    """Padded values change no loss, no count and no gradient."""
    if PAD not in batch:
        return not_asked("padding", f"the batch has no {PAD}")
    seen = Watched(batch)
    figures = subject.figures(seen)
    for key in [key for key in batch if key.endswith(IS_PAD)]:
        for how in ("other", "large"):
            gap = find_gap(figures, subject.figures(change_padding(batch, key, how)))
            if gap.value:
                return failed("padding", gap, *_why_padded(key, batch, seen.asked))
    return passed("padding")


def _why_padded(key: str, batch: Batch, asked: set[str]) -> tuple[str, str]:
    """Likely cause and remedy of a mask without effect, from the keys that were asked for."""
    absent = [
        name
        for name in asked
        if name not in batch and "pad" in name and not name.endswith("_dim_is_pad")
    ]  # a normalizer asks for `_dim_is_pad`, which only mixtures of robots have
    fix = f"set the error to 0 where batch[{key!r}] is true, and divide by the number of the others"
    if near := get_close_matches(key, absent, n=1, cutoff=0.5):
        return f"the policy reads {near[0]!r}, which no batch has", f"read {key!r}"
    if key not in asked:
        return f"the policy never reads {key!r}", fix
    return f"steps that {key!r} marks take part in the loss, or in the network's input", fix


def prove_nan(subject: Subject, batch: Batch) -> Proof:
    """NaN in padded rows reaches nothing."""
    name = "padding of NaN"
    if PAD not in batch:
        return not_asked(name, f"the batch has no {PAD}")
    strange = dict(batch)
    for key in [key for key in batch if key.endswith(IS_PAD)]:
        strange = change_padding(strange, key, "nan")
    gap = find_gap(subject.figures(batch), subject.figures(strange))
    if not gap.value:
        return passed(name)
    cause = "the mask comes after the arithmetic, and 0 times NaN is NaN, in gradients, too"
    return failed(name, gap, cause, "replace padded values by torch.where before the arithmetic")


def prove_denominator(subject: Subject, batch: Batch) -> Proof:
    """A loss is divided by the number of unpadded elements.

    A mean over the unpadded elements of two halves of a chunk averages to that of the whole. With
    a constant divisor the two add up to it instead.
    """
    name = "denominator"
    if PAD not in batch:
        return not_asked(name, f"the batch has no {PAD}")
    none = torch.zeros_like(batch[PAD])
    half = none.clone()
    count, steps = half.shape
    half[:, (steps + 1) // 2 :] = True
    if steps == 1:
        half[: count // 2] = True
    masked = [subject.losses({**batch, PAD: mask}) for mask in (none, half, ~half)]
    term = subject.terms[0]
    whole, early, late_ones = (float(losses[term].sum.detach().sum()) for losses in masked)
    if whole == early or not math.isfinite(whole + early + late_ones):
        return not_asked(name, "the mask changes no loss")
    fix = f"divide by (~batch[{PAD!r}]).sum(), not by the size of the chunk"
    if subject.is_per_sample:
        counts = [int(losses[term].count.sum()) for losses in masked]
        if counts[0] == counts[1] and early + late_ones > 1.5 * whole:
            return not_asked(name, "padded steps have a loss of their own, and count")
        if counts[0] == counts[1]:
            gap = Gap(str(counts[0]), f"count of {term}")
            return failed(name, gap, "padded steps are counted", fix)
        return passed(name, "")
    whole, early, late_ones = (
        float(subject.scalar({term: losses[term]}).detach()) for losses in masked
    )
    share = float((~half).double().mean())
    if abs(early + late_ones - whole) < SLACK * abs(whole):
        gap = Gap(f"{early / whole:.3g} of it where {1 - share:.0%} is padded", f"loss {term}")
        cause = "the mean is over padded steps, too, so a padded batch weighs less"
        return failed(name, gap, cause, fix)
    if abs(share * early + (1 - share) * late_ones - whole) > SLACK * abs(whole):
        return not_asked(name, "the mask changes predictions, or the loss is no mean")
    return passed(name, f"within {SLACK:g}")


def repeat_sample(batch: Batch) -> dict[str, Any]:
    """Put the first sample into every row."""
    count = len(batch[ACTION])
    same = plain(batch)
    for key, value in same.items():
        if isinstance(value, Tensor) and value.ndim and len(value) == count:
            same[key] = value[:1].expand_as(value).clone()
        elif isinstance(value, list) and len(value) == count:
            same[key] = value[:1] * count
    return same


def rows_of(batch: Batch, low: int, high: int) -> dict[str, Any]:
    """Take consecutive samples."""
    count = len(batch[ACTION])
    taken = plain(batch)
    for key, value in taken.items():
        is_rows = isinstance(value, list) or (isinstance(value, Tensor) and value.ndim > 0)
        if is_rows and len(value) == count:
            taken[key] = value[low:high]
    return taken


def _by_sample(subject: Subject, batch: Batch, **how: Any) -> Tensor | None:
    """Numbers of each sample that its noise decides: its loss, or the gradient for its actions."""
    if subject.is_per_sample:
        losses = subject.losses(batch, mode="dropless", **how).values()
        return torch.stack([loss.sum.detach().double() for loss in losses]).sum(dim=0)
    action = batch[ACTION].clone().requires_grad_()
    loss = subject.scalar(subject.losses({**batch, ACTION: action}, mode="dropless", **how))
    if not loss.requires_grad:
        return None
    (grad,) = torch.autograd.grad(loss, [action], allow_unused=True)
    return None if grad is None else grad.double().flatten(1)


def prove_noise(subject: Subject, batch: Batch) -> Proof:
    """Each sample has noise of its own, and each step another one: rows of one sample differ."""
    name = "noise"
    same = repeat_sample(batch)
    first = _by_sample(subject, same)
    other = _by_sample(subject, same, seed=1, draws_seed=1)
    if first is None or other is None:
        return not_asked(name, "the loss has no gradient for the actions")
    scale = float(first.abs().max()) or 1.0
    varies = float((first - first[:1]).abs().max()) > 1e-6 * scale
    if torch.equal(first, other) and not varies:
        return passed(name, "", "the loss draws no random numbers")
    if torch.equal(first, other):
        cause = "every step has the same noise"
        fix = "draw it from `draws`, or from torch's default generator"
        return failed(name, Gap("0", "losses of two steps"), cause, fix)
    if not varies:
        fix = "draw noise of shape [B, ...], as random_spec does"
        return failed(name, Gap("0", "losses of equal samples"), "all samples share one noise", fix)
    if subject.by_position:
        swapped = [1, 0, *range(2, len(batch[ACTION]))]
        moved = _by_sample(subject, same, positions=swapped)
        assert moved is not None
        gap = find_gap({"losses": first[swapped]}, {"losses": moved}, ROUNDING)
        if gap.value:
            cause = "a sample uses the noise of another one, or some that is not in `draws`"
            return failed(name, gap, cause, "use row b of `draws` for sample b")
    return passed(name, "")


@contextmanager
def as_rank(rank: int, collective: bool) -> Iterator[None]:
    """Let the program look like a rank of two; `collective`: to torch.distributed, too."""
    from unittest import mock  # which takes longer to import than a short form

    given = {"is_initialized": True, "get_rank": rank, "get_world_size": 2}
    mocks = {name: mock.Mock(return_value=value) for name, value in given.items()}
    names = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    with mock.patch.dict(os.environ, names), ExitStack() as patches:
        if collective:
            patches.enter_context(mock.patch.multiple(dist, **mocks))
        yield


def prove_ranks(subject: Subject, batch: Batch) -> Proof:
    """A sample's loss depends neither on the rank nor on the split of the batch."""
    name = "noise by position"

    def of_rank(rank: int) -> dict[str, Tensor]:
        try:
            with as_rank(rank, collective=True):
                return subject.figures(batch)
        except Exception:  # it exchanges something with the other ranks
            with as_rank(rank, collective=False):
                return subject.figures(batch)

    gap = find_gap(of_rank(0), of_rank(1))
    if gap.value:
        cause = "the rank decides the noise: the same sample gets another one elsewhere"
        return failed(name, gap, cause, "key noise by position: use `draws`")
    if not subject.is_per_sample:
        cause = "a mean of the batch does not show its samples; the rank changes nothing"
        return not_asked(name, cause)
    whole = subject.losses(batch, mode="dropless")
    other = subject.losses(batch, mode="dropless", seed=1)
    if not subject.by_position and any(
        not torch.equal(loss.sum, other[term].sum) for term, loss in whole.items()
    ):
        cause = "it draws by itself (no random_spec): other splits of a batch draw other numbers"
        return not_asked(name, cause)
    count = len(batch[ACTION])
    cut = max(1, count // 3)
    parts = []
    for part in (range(cut), range(cut, count)):
        rows = rows_of(batch, part.start, part.stop)
        parts.append(subject.losses(rows, mode="dropless", positions=part))
    for term, loss in whole.items():
        joined = torch.cat([losses[term].sum for losses in parts])
        gap = find_gap({f"loss {term}": loss.sum}, {f"loss {term}": joined}, ROUNDING)
        if gap.value:
            fix = "compute each row by itself, without statistics over the batch"
            return failed(name, gap, "a sample's loss depends on the others of its batch", fix)
    return passed(name, f"within {ROUNDING:g}")


def prove_sums(subject: Subject, batch: Batch) -> Proof:
    """Sums and counts per sample add up to the loss of the batch."""
    if not subject.is_per_sample:
        return _prove_mean(subject, batch)
    fix = "return the sum over a sample's valid elements, and their number"
    losses = subject.losses(batch)
    counted = subject.losses(batch, counted=True)
    with_detail = subject.losses(batch, detail=True)
    for term, loss in losses.items():
        counts = [int(found[term].count.sum()) for found in (losses, counted)]
        if counts[0] != counts[1]:
            gap = Gap(f"{counts[0]} of `losses`, {counts[1]} of `counts`", f"count of {term}")
            return failed("sums", gap, "`counts` and `losses` count other elements", fix)
        empty = (loss.count == 0) & (loss.sum.detach() != 0)
        if bool(empty.any()):
            gap = Gap("count 0", f"loss {term}, sample {int(empty.int().argmax())}")
            return failed("sums", gap, "a sample without valid elements has a loss", fix)
        one = {f"loss {term}": loss.sum}
        gap = find_gap(one, {f"loss {term}": with_detail[term].sum})
        detail = with_detail[term].detail
        if detail is not None and not gap.value:
            parts = detail.sum.detach().flatten(1).sum(1)
            gap = find_gap(one, {f"loss {term}": parts}, ROUNDING)
        if gap.value:
            return failed("sums", gap, "`detail` changes the loss, or does not add up to it", fix)
    return passed("sums", "")


def _prove_mean(subject: Subject, batch: Batch) -> Proof:
    """The losses of two halves average to that of a batch without padding."""
    count = len(batch[ACTION])
    full = dict(batch)
    if PAD in full:
        full[PAD] = torch.zeros_like(full[PAD])
    if isinstance(subject, Stranger) and subject.reduces:
        mean = subject.losses(full)["loss"].sum
        each = subject.losses(full, reduction="none")["loss"].sum
        gap = find_gap({"loss": mean}, {"loss": each.mean()}, ROUNDING)
        if each.shape == (count,) and gap.value:
            cause = "the losses of reduction='none' do not average to the loss"
            return failed("sums", gap, cause, "take the mean of the same elements in both")
    half = count // 2
    spans = [range(count), range(half), range(half, count)]
    whole, one, two = (
        subject.losses(
            rows_of(full, span.start, span.stop), mode="dropless", positions=span, still=True
        )
        for span in spans
    )
    for term, loss in whole.items():
        if loss.sum.ndim:
            total = loss.sum.sum()
            joined = one[term].sum.sum() + two[term].sum.sum()
        else:
            total = loss.sum
            joined = (half * one[term].sum + (count - half) * two[term].sum) / count
        gap = find_gap({f"loss {term}": total}, {f"loss {term}": joined}, SLACK)
        if gap.value:
            cause = "the losses of two halves do not average to that of the batch"
            fix = "take the mean over all valid elements; no sum, no statistics over the batch"
            return failed("sums", gap, cause, fix)
    return passed("sums", f"within {SLACK:g}", "two halves average to the batch")


def prove_repeat(subject: Subject, batch: Batch) -> Proof:
    """The same random numbers give the same bits."""
    name = "repeat"
    first = subject.figures(batch)
    strange = [key for key, value in first.items() if not value.isfinite().all()]
    if strange:
        cause = "the loss of a plain batch is not finite"
        return failed(name, Gap("NaN or inf", strange[0]), cause, "look for a division by 0")
    gap = find_gap(first, subject.figures(batch))
    if gap.value:
        cause = "random numbers that no seed reaches, or a state that a call changes"
        fix = "draw from `draws` or from torch's default generator"
        return failed(name, gap, cause, fix)
    if subject.by_position:
        one, other = (subject.figures(batch, mode="eval", seed=seed) for seed in (0, 1))
        gap = find_gap(one, other)
        if gap.value:
            cause = "random numbers of torch's default generator beside `draws`, in evaluation"
            return failed(name, gap, cause, "name them in random_spec")
    return passed(name)


def prove_act(subject: Subject, batch: Batch) -> Proof:
    """An observation gets the same actions alone and in a batch of others."""
    if reason := subject.no_actions:
        return not_asked("act", reason)
    count = len(batch[ACTION])
    together = subject.act(batch)
    if len(together) != count:
        gap = Gap(str(tuple(together.shape)), "actions")
        return failed("act", gap, f"no row for each of {count} observations", "return [B, ...]")
    alone = [subject.act(rows_of(batch, row, row + 1), [row]) for row in range(count)]
    gap = find_gap({"actions": together}, {"actions": torch.cat(alone)}, ROUNDING)
    if not gap.value:
        gap = find_gap({"actions": together}, {"actions": subject.act(batch)})
    if gap.value:
        cause = "statistics over the batch, as of BatchNorm, or noise beside `draws`"
        return failed("act", gap, cause, "normalize each sample by itself")
    return passed("act", f"within {ROUNDING:g}")


def prove_save(subject: Subject, batch: Batch) -> Proof:
    """A policy that is saved after a step, and loaded, has the same outputs."""
    try:
        used = type(subject)(copy.deepcopy(subject.module), subject.fresh)
        pristine = copy.deepcopy(subject.module)
    except Exception as error:
        return not_asked("save", f"the module cannot be copied: {summarize(error)}")
    used.losses(batch, keeps=False)  # moves buffers, as training does
    loaded = type(subject)(used.reload(pristine))

    def outputs(of: Subject) -> dict[str, Tensor]:
        found = {f"state {name}": value for name, value in of.module.state_dict().items()}
        losses = of.losses(batch, mode="eval")
        found |= {f"loss {term}": loss.sum.detach() for term, loss in losses.items()}
        return found if of.no_actions else {**found, "actions": of.act(batch)}

    gap = find_gap(outputs(used), outputs(loaded))
    if gap.value:
        cause = "a buffer or an attribute that training changes is not in state_dict"
        return failed("save", gap, cause, "register it as a persistent buffer")
    return passed("save")


SHORT: Mapping[str, Make] = {
    "padding": prove_padding,
    "padding of NaN": prove_nan,
    "denominator": prove_denominator,
    "sums": prove_sums,
    "repeat": prove_repeat,
}
"""Proofs at the start of a run."""
ALL: Mapping[str, Make] = {
    **dict(list(SHORT.items())[:3]),
    "noise": prove_noise,
    "noise by position": prove_ranks,
    **dict(list(SHORT.items())[3:]),
    "act": prove_act,
    "save": prove_save,
}


def make_proofs(
    makes: Mapping[str, Make], subject: Subject, batch: Batch, seconds: float = math.inf
) -> list[Proof]:
    """Make proofs one after the other; none begins after some seconds."""
    proofs = []
    begun = time.monotonic()
    for name, make in makes.items():
        if time.monotonic() - begun > seconds:
            proofs.append(not_asked(name, "the policy takes too long"))
            continue
        try:
            proofs.append(make(subject, batch))
        except Exception as error:
            raised = f"it raises {type(error).__name__}: {summarize(error)}"
            proofs.append(failed(name, Gap(), raised, "see the message"))
    return proofs


def with_padding(is_pad: Tensor) -> Tensor:
    """Mark the ends of chunks in place of a mask, or whole samples where chunks have one step."""
    count, steps = is_pad.shape
    marked = late(count, steps) if steps > 1 else torch.arange(count)[:, None] % 2 == 1
    return marked.to(is_pad.device)
