"""bfloat16 weights plus the 16 bits they dropped: float32 truth in the bytes of float32, and
AdamW's step over it.

A float32 word is kept as `hi`, the nearest bfloat16 (ties away from zero), and `lo`, its low 16
bits as int16:

    hi = (bits + 0x8000) >> 16        lo = bits & 0xFFFF        bits = (hi << 16) + int16(lo)

Where lo >= 0x8000, hi was rounded up by one and int16(lo) is smaller by the same 2^16, so the sum
is exact: a bijection on all 2^32 words. With the usual rounding to even there is none: 65,537 words
(two of them ties) round to every even bfloat16, one more than 16 bits can distinguish. NaN becomes
0x7FC00000 first, or the carry would turn 0x7FFFFFFF into -0.0.

The model computes with `hi`; `lo` and the moments are ordinary optimizer state. 14 bytes per
parameter with its bfloat16 gradient, where float32 weights take 16. It saves nothing once weights
are sharded (4 = 2 + 2), so it is refused there.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain

import torch
from torch import Tensor

LINE = 64
"""Elements of a full line: a multiple of any CPU's vector width."""


def split_(x: Tensor, hi: Tensor, lo: Tensor) -> None:
    """Write x, float32, into hi, bfloat16, and lo, int16, all of one shape."""
    bits = torch.where(torch.isnan(x), 0x7FC00000, x.view(torch.int32))
    lo.copy_(bits.to(torch.int16))  # conversion to a narrower integer keeps the low bits
    hi.copy_(((bits + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16))


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [...] -> hi bfloat16 [...], lo int16 [...]."""
    hi = torch.empty_like(x, dtype=torch.bfloat16)
    lo = torch.empty_like(x, dtype=torch.int16)
    split_(x, hi, lo)
    return hi, lo


def join(hi: Tensor, lo: Tensor) -> Tensor:
    """bfloat16 [...], int16 [...] -> the float32 [...] that was split."""
    return ((hi.view(torch.int16).to(torch.int32) << 16) + lo.to(torch.int32)).view(torch.float32)


def adamw_whole_(
    weights: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
    lr: float,
    skip: Tensor,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """One AdamW step of float32 weights in place: torch's fused kernel, which does nothing where
    skip is 1.

    On a CPU in full lines, so that a tensor and its parts on several ranks become the same bits.
    """
    groups = [weights, grads, exp_avgs, exp_avg_sqs]
    even = skip.device.type == "cpu" and all(t.is_contiguous() for t in chain(*groups))
    layout = _in_full_lines(groups, steps) if even else nullcontext((groups, steps))
    with layout as (tensors, counts):
        torch._fused_adamw_(
            tensors[0],
            tensors[1],
            tensors[2],
            tensors[3],
            [],
            counts,
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=weight_decay,
            eps=eps,
            amsgrad=False,
            maximize=False,
            found_inf=skip,
        )


@contextmanager
def _in_full_lines(
    groups: list[list[Tensor]], steps: list[Tensor]
) -> Iterator[tuple[list[list[Tensor]], list[Tensor]]]:
    """Yield the elements of `groups` in tensors whose sizes are multiples of LINE, and write
    changes back to `groups`.

    On a CPU torch's fused kernel computes the elements that do not fill a vector register by other
    instructions, which round differently. Their positions depend on the cuts of a tensor; in full
    lines there are none.

    Args:
        groups: weights, gradients, first and second moments.
        steps: one per weight.
    """
    rest = [t.numel() % LINE for t in groups[0]]
    ragged = [i for i, size in enumerate(rest) if size]
    lines = torch.zeros(len(groups), len(ragged), LINE)
    ends: list[Tensor] = []
    copies: list[Tensor] = []
    full: list[list[Tensor]] = []
    for tensors, of_kind in zip(groups, lines):
        flat = [t.view(-1) for t in tensors]
        ends += [flat[i][-rest[i] :] for i in ragged]
        copies += [of_kind[row, : rest[i]] for row, i in enumerate(ragged)]
        full.append([*(t[: t.numel() - size] for t, size in zip(flat, rest)), *of_kind])
    if ragged:
        torch._foreach_copy_(copies, ends)
    yield full, [*steps, *(steps[i] for i in ragged)]
    if ragged:
        torch._foreach_copy_(ends, copies)


def adamw_split_(
    hi: Tensor,
    lo: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: float,
    scale: Tensor,
    skip: Tensor,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """One AdamW step in place, the specification: join, torch's own fused float32 kernel, split.

    Equal to the float32 step of `adamw_whole_` bit for bit, on any device, because it is that one.
    The joined weight and the float32 gradient live for the length of one call: 8 bytes times the
    largest parameter.

    Args:
        hi, lo: the weight, bfloat16 and int16; grad: any float; exp_avg, exp_avg_sq: float32; all
            of one shape.
        step: float32, 0-d, the number of this step, from 1.
        scale: float32, 0-d, multiplies the gradient first (clipping).
        skip: float32, 0-d; 1 leaves everything as it was, bit for bit, whatever the gradient. All
            0-d tensors on the weight's device, so that nothing waits for the host.
    """
    weight = join(hi, lo)
    adamw_whole_(
        [weight],
        [grad.float() * scale],
        [exp_avg],
        [exp_avg_sq],
        [step],
        lr,
        skip,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        weight_decay=weight_decay,
    )
    split_(weight, hi, lo)


def adamw_pointwise(
    weight: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    scale: Tensor,
    hyper: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the float32 weight and moments after a step; pointwise arithmetic only.

    Arguments as of `adamw_split_`, but `hyper` of `as_tensor`. AdamW as in Loshchilov & Hutter
    2019, algorithm 2, with the bias corrections in float64. It rounds elsewhere than torch's
    kernel, so the two agree to rounding and not to the bit.
    """
    lr, beta1, beta2, eps, weight_decay = hyper.unbind()
    g = grad.float() * scale
    m = exp_avg + (g - exp_avg) * (1 - beta1)
    v = exp_avg_sq * beta2 + g * g * (1 - beta2)
    t = step.double()
    rate = (lr / (1 - beta1**t)).float()
    root = torch.sqrt(1 - beta2**t).float()
    decay = (1 - lr * weight_decay).float()
    return weight * decay - rate * (m / (v.sqrt() / root + eps)), m, v


def adamw_split_pointwise_(
    hi: Tensor,
    lo: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    scale: Tensor,
    skip: Tensor,
    hyper: Tensor,
) -> None:
    """The step of `adamw_split_` as one pointwise expression, for `torch.compile`: join,
    `adamw_pointwise`, split.

    The split is exact: the same arithmetic on a float32 weight gives the same bits.
    """
    weight = join(hi, lo)
    stepped, m, v = adamw_pointwise(weight, grad, exp_avg, exp_avg_sq, step, scale, hyper)
    stay = skip != 0
    exp_avg.copy_(torch.where(stay, exp_avg, m))
    exp_avg_sq.copy_(torch.where(stay, exp_avg_sq, v))
    split_(torch.where(stay, weight, stepped), hi, lo)


def as_tensor(
    lr: float, *, beta1: float, beta2: float, eps: float, weight_decay: float, device: torch.device
) -> Tensor:
    """The numbers of a step as one float64 tensor [5], in the order of these arguments.

    Compiled code must not take them as numbers: torch's cache on disk serves code of one process to
    the next, with the numbers of the first (torch 2.11 and 2.13).
    """
    values = (lr, beta1, beta2, eps, weight_decay)
    # Written by the device: a copy from the host may wait for it.
    return torch.stack(
        [torch.full((), value, dtype=torch.float64, device=device) for value in values]
    )


def compiled_step_(*tensors: Tensor) -> None:
    """Run `adamw_split_pointwise_`, compiled once for weights of any shape; the first five tensors
    are contiguous.
    """
    # One-dimensional tensors that are no views: a view is compiled again for each shape of its
    # base.
    flat = [tensor.view(-1).data for tensor in tensors[:5]]
    compiled_pointwise()(*flat, *tensors[5:])


@functools.cache
def compiled_pointwise() -> Callable[..., None]:
    """`adamw_split_pointwise_`, compiled."""
    return torch.compile(adamw_split_pointwise_, fullgraph=True, dynamic=True)
