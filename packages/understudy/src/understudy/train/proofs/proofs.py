"""The proofs. Each runs a policy on changed batches, and compares losses, counts and gradients.

A proof names the largest difference, its place, the likely cause and the remedy. Where a policy has
no way to show a property, the proof is not asked, with the reason.
"""

import copy
import io
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from understudy.policies.policy import Policy, load
from understudy.train.proofs.subject import OwnSubject, Stranger, Subject, Watched, plain
from understudy_base import ACTION

ROUNDING = 1e-4
"""Largest difference of sums of another batch, relative to the largest value: products of other
shapes round differently."""
IS_PAD = "_is_pad"
ONLY = "policies of `understudy.policies.Policy` alone"


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

    def __str__(self) -> str:
        """Format the proof as a line."""
        found = " in ".join(filter(None, (self.value, self.place)))
        return f"{self.name}: {self.result}" + "".join(
            f"; {part}" for part in (found, self.cause, self.fix) if part
        )


Make = Callable[[Subject, Mapping[str, Any]], Proof]


def largest(
    one: Mapping[str, Any], two: Mapping[str, Any], tolerance: float = 0.0
) -> tuple[str, str]:
    """Return the largest relative difference of named tensors beyond `tolerance`, and its place;
    "" twice without one. A tolerance of 0 compares bits.
    """
    worst = (0.0, "", "")
    for name, first in one.items():
        second = two.get(name)
        if second is None or second.shape != first.shape:
            return "another shape", name
        if torch.equal(first, second):
            continue
        a = first.detach().double()
        b = second.detach().double()
        gap = (a - b).abs()
        scale = max(float(a.abs().nan_to_num(0, 0, 0).max()), 1e-30)
        size = float(gap.nan_to_num(math.inf).max()) / scale
        if size > max(worst[0], tolerance) or (not tolerance and not worst[1]):
            row = f", sample {int(gap.nan_to_num(math.inf).argmax())}" if gap.ndim == 1 else ""
            sample = row if not name.startswith("gradient") else ""
            shown = f"{size:.2g} of its largest value" if math.isfinite(size) else "not finite"
            worst = (size, shown, f"{name}{sample}")
    return worst[1], worst[2]


def changed_rows(batch: Mapping[str, Any], how: str) -> dict[str, Any]:
    """Replace the padded values of each key with a mask: "other" values, "large" ones, or "nan"."""
    changed = dict(batch)
    for key in [key for key in batch if key.endswith(IS_PAD)]:
        base = key.removesuffix(IS_PAD)
        mask = batch[key]
        if base.endswith("_dim"):
            base = base.removesuffix("_dim")
            mask = mask[:, None] if batch[base].ndim == 3 else mask
        value = batch.get(base)
        if not isinstance(value, Tensor) or not isinstance(mask, Tensor) or value.ndim < mask.ndim:
            continue
        if value.is_floating_point():
            other = {"other": 1.25 - 0.5 * value, "large": 1e4 + value}.get(how, value * math.nan)
        else:
            other = 255 - value
        changed[base] = torch.where(
            mask.view(*mask.shape, *[1] * (value.ndim - mask.ndim)), other, value
        )
    return changed


def prove_padding(subject: Subject, batch: Mapping[str, Any]) -> Proof:
    """Padded values change no loss, no count and no gradient."""
    if f"{ACTION}{IS_PAD}" not in batch:
        return Proof("padding", "not asked", cause=f"the batch has no {ACTION}{IS_PAD}")
    seen = Watched(batch)
    figures = subject.figures(seen)
    for how in ("other", "large"):
        value, place = largest(figures, subject.figures(changed_rows(batch, how)))
        if value:
            return Proof(
                "padding", "failed", value, place, *_why_padded(subject, batch, seen.asked)
            )
    return Proof("padding", "passed", "0")


def _why_padded(subject: Subject, batch: Mapping[str, Any], asked: set[str]) -> tuple[str, str]:
    key = f"{ACTION}{IS_PAD}"
    absent = [name for name in asked if name not in batch and "pad" in name]
    fix = f"set the error to 0 where batch[{key!r}] is true, and divide by the number of the others"
    if near := get_close_matches(key, absent, n=1, cutoff=0.5):
        return f"the policy reads {near[0]!r}, which no batch has", f"read {key!r}"
    if key not in asked:
        return f"the policy never reads {key!r}", fix
    return "padded steps take part in the loss or in the network's input", fix


def prove_nan(subject: Subject, batch: Mapping[str, Any]) -> Proof:
    """NaN in padded rows reaches nothing."""
    name = "padding of NaN"
    if f"{ACTION}{IS_PAD}" not in batch:
        return Proof(name, "not asked", cause=f"the batch has no {ACTION}{IS_PAD}")
    value, place = largest(subject.figures(batch), subject.figures(changed_rows(batch, "nan")))
    if not value:
        return Proof(name, "passed", "0")
    cause = "the mask is a factor, and 0 times NaN is NaN"
    return Proof(name, "failed", value, place, cause, "use torch.where before the arithmetic")


def prove_denominator(subject: Subject, batch: Mapping[str, Any]) -> Proof:
    """A loss is divided by the number of unpadded elements."""
    name = "denominator"
    key = f"{ACTION}{IS_PAD}"
    if key not in batch:
        return Proof(name, "not asked", cause=f"the batch has no {key}")
    whole = torch.zeros_like(batch[key])
    half = whole.clone()
    count, steps = half.shape
    if steps > 1:
        half[:, (steps + 1) // 2 :] = True
    else:
        half[: count // 2] = True
    one, late, early = (subject.losses({**batch, key: mask}) for mask in (whole, half, ~half))
    share = float((~half).double().mean())
    fix = f"divide by (~batch[{key!r}]).sum(), not by the size of the chunk"
    for term in one:
        sums = [float(part[term].sum.detach().sum()) for part in (one, late, early)]
        if sums[0] in sums[1:] or not math.isfinite(sum(sums)):
            continue
        if subject.is_per_sample:
            counts = [int(part[term].count.sum()) for part in (one, late)]
            if counts[0] == counts[1]:
                return Proof(
                    name,
                    "failed",
                    str(counts[1]),
                    f"count of {term}",
                    "padded steps are counted",
                    fix,
                )
            continue
        means = [float(subject.scalar({term: part[term]}).detach()) for part in (one, late, early)]
        if abs(means[1] + means[2] - means[0]) < 1e-3 * abs(means[0]):
            cause = "the mean is over padded steps, too, so a padded batch weighs less"
            return Proof(
                name,
                "failed",
                f"{means[1] / means[0]:.3g} of it with {1 - share:.0%} padded",
                f"loss {term}",
                cause,
                fix,
            )
        if abs(share * means[1] + (1 - share) * means[2] - means[0]) > 1e-3 * abs(means[0]):
            return Proof(
                name, "not asked", cause="the mask changes predictions, so means do not add up"
            )
        continue
    if all(torch.equal(loss.sum, late[term].sum) for term, loss in one.items()):
        return Proof(name, "not asked", cause="the mask changes no loss")
    return Proof(name, "passed")


def alike(batch: Mapping[str, Any], row: int = 0) -> dict[str, Any]:
    """Repeat one sample in every row."""
    count = len(batch[ACTION])
    same: dict[str, Any] = {}
    for key, value in plain(batch).items():
        same[key] = value
        if isinstance(value, Tensor) and value.ndim and len(value) == count:
            same[key] = value[row : row + 1].expand_as(value).clone()
        elif isinstance(value, list) and len(value) == count:
            same[key] = [value[row]] * count
    return same


def rows_of(batch: Mapping[str, Any], low: int, high: int) -> dict[str, Any]:
    """Take consecutive samples."""
    count = len(batch[ACTION])
    taken = {}
    for key, value in plain(batch).items():
        is_rows = (
            isinstance(value, Tensor | list) and getattr(value, "ndim", 1) and len(value) == count
        )
        taken[key] = value[low:high] if is_rows else value
    return taken


def _by_sample(subject: Subject, batch: Mapping[str, Any], **how: Any) -> Tensor | None:
    """A number for each sample that its noise decides: its loss, or the gradient for its actions."""
    if subject.is_per_sample:
        losses = subject.losses(batch, mode="dropless", **how).values()
        return torch.stack([loss.sum.detach().double() for loss in losses]).sum(dim=0)
    action = batch[ACTION].clone().requires_grad_()
    loss = subject.scalar(subject.losses({**batch, ACTION: action}, mode="dropless", **how))
    if not loss.requires_grad:
        return None
    (grad,) = torch.autograd.grad(loss, [action], allow_unused=True)
    return None if grad is None else grad.double().flatten(1)


def prove_noise(subject: Subject, batch: Mapping[str, Any]) -> Proof:
    """Each sample has noise of its own, and each step another one."""
    same = alike(batch)
    first = _by_sample(subject, same)
    if first is None:
        return Proof("noise", "not asked", cause="the loss has no gradient for the actions")
    other = _by_sample(subject, same, seed=1, draws_seed=1)
    assert other is not None
    scale = float(first.abs().max()) or 1.0
    varies = float((first - first[:1]).abs().max()) > 1e-6 * scale
    if torch.equal(first, other):
        if not varies:
            return Proof("noise", "passed", cause="the loss draws no random numbers")
        return Proof(
            "noise",
            "failed",
            "0",
            "losses of two steps",
            "every step has the same noise",
            "draw it from `draws`, or from torch's default generator",
        )
    if not varies:
        return Proof(
            "noise",
            "failed",
            "0",
            "losses of equal samples",
            "all samples share one noise",
            "draw noise of shape [B, ...], as random_spec does",
        )
    if subject.by_position and isinstance(subject, OwnSubject):
        swapped = [1, 0, *range(2, len(batch[ACTION]))]
        moved = _by_sample(subject, same, positions=swapped)
        assert moved is not None
        value, place = largest({"losses": first[swapped]}, {"losses": moved}, ROUNDING)
        if value:
            return Proof(
                "noise",
                "failed",
                value,
                place,
                "a sample uses the noise of another one",
                "use row b of `draws` for sample b",
            )
    return Proof("noise", "passed")


@contextmanager
def as_rank(rank: int, collective: bool) -> Iterator[None]:
    """Let the program look like a rank of two."""
    names = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    given = {"is_initialized": True, "get_rank": rank, "get_world_size": 2}
    with mock.patch.dict(os.environ, names):
        if not collective:
            yield
            return
        with mock.patch.multiple(
            dist, **{name: mock.Mock(return_value=v) for name, v in given.items()}
        ):
            yield


def prove_ranks(subject: Subject, batch: Mapping[str, Any]) -> Proof:
    """A sample's loss depends neither on the rank nor on the split of the batch."""
    name = "noise by position"

    def of_rank(rank: int) -> dict[str, Tensor]:
        try:
            with as_rank(rank, collective=True):
                return subject.figures(batch)
        except Exception:  # it exchanges something with the other ranks
            with as_rank(rank, collective=False):
                return subject.figures(batch)

    value, place = largest(of_rank(0), of_rank(1))
    if value:
        cause = "the rank decides the noise: the same sample gets another one elsewhere"
        return Proof(name, "failed", value, place, cause, "key noise by position: use `draws`")
    if not subject.is_per_sample:
        cause = "a mean of the batch does not show the samples' noise; rank and world size change nothing"
        return Proof(name, "not asked", cause=cause)
    assert isinstance(subject, OwnSubject)
    if not subject.by_position and not torch.equal(
        *(_total(subject, batch, seed) for seed in (0, 1))
    ):
        cause = "it draws by itself (no random_spec): other splits of a batch draw other numbers"
        return Proof(name, "not asked", cause=cause)
    count = len(batch[ACTION])
    whole = subject.losses(batch, mode="dropless")
    cut = max(1, count // 3)
    parts = [range(cut), range(cut, count)]
    split = [
        subject.losses(rows_of(batch, r[0], r[-1] + 1), mode="dropless", positions=r) for r in parts
    ]
    for term, loss in whole.items():
        joined = torch.cat([part[term].sum for part in split])
        value, place = largest({f"loss {term}": loss.sum}, {f"loss {term}": joined}, ROUNDING)
        if value:
            return Proof(
                name,
                "failed",
                value,
                place,
                "a sample's loss depends on the others of its batch",
                "compute each row by itself: no statistics over the batch, row b of `draws`",
            )
    return Proof(name, "passed", f"within {ROUNDING:g}")


def _total(subject: Subject, batch: Mapping[str, Any], seed: int) -> Tensor:
    return subject.scalar(subject.losses(batch, mode="dropless", seed=seed)).detach()


def prove_sums(subject: Subject, batch: Mapping[str, Any]) -> Proof:
    """Sums and counts per sample add up to the loss of the batch."""
    count = len(batch[ACTION])
    fix = "return the sum over a sample's valid elements, and their number"
    if subject.is_per_sample:
        losses = subject.losses(batch)
        counted = subject.losses(batch, counted=True)
        with_detail = subject.losses(batch, detail=True)
        for term, loss in losses.items():
            if not torch.equal(loss.count, counted[term].count.expand_as(loss.count)) and int(
                loss.count.sum()
            ) != int(counted[term].count.sum()):
                pair = f"{int(counted[term].count.sum())} of `counts`, {int(loss.count.sum())} of `losses`"
                return Proof(
                    "sums",
                    "failed",
                    pair,
                    f"count of {term}",
                    "`counts` and `losses` count other elements",
                    fix,
                )
            bad = (loss.count == 0) & (loss.sum.detach() != 0)
            if bool(bad.any()):
                return Proof(
                    "sums",
                    "failed",
                    "a sum without elements",
                    f"loss {term}, sample {int(bad.int().argmax())}",
                    "a sample without valid elements has a loss",
                    fix,
                )
            detail = with_detail[term].detail
            summed = loss.sum.detach() if detail is None else detail.sum.detach().flatten(1).sum(1)
            value, place = largest(
                {f"loss {term}": loss.sum}, {f"loss {term}": with_detail[term].sum}
            )
            value, place = (
                (value, place)
                if value
                else largest(
                    {f"detail of {term}": loss.sum}, {f"detail of {term}": summed}, ROUNDING
                )
            )
            if value:
                return Proof(
                    "sums",
                    "failed",
                    value,
                    place,
                    "`detail` changes the loss, or does not add up to it",
                    fix,
                )
        return Proof("sums", "passed")
    full = dict(batch)
    if f"{ACTION}{IS_PAD}" in full:
        full[f"{ACTION}{IS_PAD}"] = torch.zeros_like(full[f"{ACTION}{IS_PAD}"])
    if isinstance(subject, Stranger) and subject.reduces:
        each = subject.losses(full, reduction="none")["loss"].sum.detach()
        mean = subject.losses(full)["loss"].sum.detach()
        if each.shape == (count,):
            value, place = largest(
                {"mean of reduction='none'": each.mean()},
                {"mean of reduction='none'": mean},
                ROUNDING,
            )
            cause = "the losses of reduction='none' do not average to the loss"
            return (
                Proof("sums", "failed", value, place, cause, fix)
                if value
                else Proof("sums", "passed")
            )
    half = count // 2
    cuts = [(0, count), (0, half), (half, count)]
    how = [{"positions": range(low, high)} for low, high in cuts]
    mode = "dropless"
    whole, one, two = (
        subject.losses(rows_of(full, *cut), mode=mode, still=True, **own) if isinstance(subject, Stranger)
        else subject.losses(rows_of(full, *cut), mode=mode, **own)
        for cut, own in zip(cuts, how)
    )  # fmt: skip
    for term, loss in whole.items():
        if loss.sum.ndim == 0 or loss.sum.shape == (count,):
            if loss.sum.ndim:
                joined = torch.cat([one[term].sum, two[term].sum])
            else:
                joined = (half * one[term].sum + (count - half) * two[term].sum) / count
            value, place = largest(
                {f"loss {term}": loss.sum}, {f"loss {term}": joined.detach()}, 10 * ROUNDING
            )
            if value:
                return Proof(
                    "sums",
                    "failed",
                    value,
                    place,
                    "the losses of two halves do not average to that of the batch",
                    "take the mean over the valid elements of all samples; no sum, and no statistics over the batch",
                )
    return Proof("sums", "passed", "two halves average to the batch")


def prove_repeat(subject: Subject, batch: Mapping[str, Any]) -> Proof:
    """The same random numbers give the same bits."""
    name = "repeat"
    first = subject.figures(batch)
    if strange := [key for key, value in first.items() if not value.isfinite().all()]:
        return Proof(
            name,
            "failed",
            "not finite",
            strange[0],
            "the loss of a plain batch is not finite",
            "look for a division by 0",
        )
    value, place = largest(first, subject.figures(batch))
    if value:
        cause = "random numbers that no seed reaches, or a state that a call changes"
        return Proof(
            name,
            "failed",
            value,
            place,
            cause,
            "draw from `draws` or from torch's default generator",
        )
    if subject.by_position:
        pair = [subject.figures(batch, mode="eval", seed=seed) for seed in (0, 1)]
        value, place = largest(*pair)
        if value:
            cause = (
                "random numbers beside `draws`, from torch's default generator, in evaluation mode"
            )
            return Proof(name, "failed", value, place, cause, "name them in random_spec")
    return Proof(name, "passed", "0")


def prove_act(subject: Subject, batch: Mapping[str, Any]) -> Proof:
    """An observation gets the same actions alone and in a batch of others."""
    module: Any = subject.module
    is_own = isinstance(subject, OwnSubject)
    if is_own and not module.config.ACTS:
        return Proof("act", "not asked", cause="the policy predicts no actions")
    if not is_own and not hasattr(module, "select_action"):
        return Proof("act", "not asked", cause="the policy has no select_action")
    together = subject.act(batch)
    if len(together) != len(batch[ACTION]):
        return Proof(
            "act",
            "failed",
            str(tuple(together.shape)),
            "actions",
            f"not a row for each of {len(batch[ACTION])} observations",
            "return [B, ...]",
        )
    alone = []
    for row in range(len(together)):
        one = rows_of(batch, row, row + 1)
        alone.append(subject.act(one, [row]))
    value, place = largest({"actions": together}, {"actions": torch.cat(alone)}, ROUNDING)
    if not value and is_own and not torch.equal(subject.act(batch), together):
        value, place = "other bits", "actions of two calls"
    if value:
        cause = (
            "statistics over the batch (BatchNorm without running ones), or noise beside `draws`"
        )
        return Proof("act", "failed", value, place, cause, "normalize each sample by itself")
    return Proof("act", "passed", f"within {ROUNDING:g}")


def prove_save(subject: Subject, batch: Mapping[str, Any]) -> Proof:
    """A saved and loaded policy has the same outputs."""
    try:
        trained = copy.deepcopy(subject.module)
        pristine = copy.deepcopy(subject.module)
    except Exception as error:
        return Proof("save", "not asked", cause=f"the module cannot be copied ({error})")
    is_own = isinstance(subject, OwnSubject)
    used: Subject = type(subject)(trained)
    used.losses(batch, keeps=False)  # moves buffers, as training does
    loaded = _reload(used, subject.fresh, pristine)
    other = type(subject)(loaded)

    def outputs(of: Subject) -> dict[str, Tensor]:
        # a LeRobot policy may have no loss in evaluation mode
        found = {f"state {name}": value for name, value in of.module.state_dict().items()}
        found |= {
            f"loss {t}": loss.sum.detach() for t, loss in of.losses(batch, mode="eval").items()
        }
        acts = of.module.config.ACTS if is_own else hasattr(of.module, "select_action")
        return found | ({"actions": of.act(batch)} if acts else {})

    value, place = largest(outputs(used), outputs(other))
    if value:
        cause = "a buffer or attribute that training changes and state_dict lacks"
        return Proof("save", "failed", value, place, cause, "register it as a persistent buffer")
    return Proof("save", "passed", "0")


def _reload(used: Subject, fresh: Callable[[], nn.Module] | None, pristine: nn.Module) -> nn.Module:
    module: Any = used.module
    if isinstance(used, OwnSubject):
        with tempfile.TemporaryDirectory() as folder:
            module.save(folder)
            try:
                loaded = load(folder)
                if type(loaded) is type(module):
                    return loaded
            except ValueError:  # a type that has no name
                pass
        made: Policy = fresh() if fresh else type(module)(module.config, module.normalizer.arrays())  # type: ignore[assignment]
        made.load_weights({name: value.clone() for name, value in module.state_dict().items()})
        return made.to(used.device)
    stored = io.BytesIO()
    torch.save(module.state_dict(), stored)
    stored.seek(0)
    target = fresh().to(used.device) if fresh else pristine
    target.load_state_dict(torch.load(stored, weights_only=True))
    return target


SHORT: tuple[Make, ...] = (prove_padding, prove_nan, prove_denominator, prove_sums, prove_repeat)
"""Proofs at the start of a run."""
ALL: tuple[Make, ...] = (
    *(prove_padding, prove_nan, prove_denominator, prove_noise, prove_ranks),
    *(prove_sums, prove_repeat, prove_act, prove_save),
)
