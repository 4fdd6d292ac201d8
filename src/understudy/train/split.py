"""bfloat16 weights plus the 16 bits they dropped: float32 truth in the bytes of float32, and AdamW over it.

A float32 word is kept as `hi`, the nearest bfloat16 (ties away from zero), and `lo`, its low 16 bits as int16:

    hi = (bits + 0x8000) >> 16        lo = bits & 0xFFFF        bits = (hi << 16) + int16(lo)

Where lo >= 0x8000, hi was rounded up by one and int16(lo) is smaller by the same 2^16, so the sum is exact: a
bijection on all 2^32 words. With the usual rounding to even there is none: 65,537 words (two of them ties) round to
every even bfloat16, one more than 16 bits can tell apart. NaN becomes 0x7FC00000 first, or the carry would turn
0x7FFFFFFF into -0.0.

The model computes with `hi`; `lo` and the moments are ordinary optimizer state. 14 bytes per parameter with its
bfloat16 gradient, where float32 weights take 16. It saves nothing once weights are sharded (4 = 2 + 2), so it is
refused there. Not here: masters beside any optimizer (`master.py`), average of the weights.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from understudy.train.optim_state import (
    clip_factor,
    given_masters,
    grad_norm,
    in_order_of,
    named_parameters,
    refuse_sharded,
)


def split_(x: Tensor, hi: Tensor, lo: Tensor) -> None:
    """Write x, float32, into hi, bfloat16, and lo, int16, all of one shape."""
    bits = torch.where(torch.isnan(x), 0x7FC00000, x.view(torch.int32))
    lo.copy_(bits.to(torch.int16))  # conversion to a narrower integer keeps the low bits
    hi.copy_(((bits + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16))


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [...] -> hi bfloat16 [...], lo int16 [...]."""
    hi, lo = torch.empty_like(x, dtype=torch.bfloat16), torch.empty_like(x, dtype=torch.int16)
    split_(x, hi, lo)
    return hi, lo


def join(hi: Tensor, lo: Tensor) -> Tensor:
    """bfloat16 [...], int16 [...] -> the float32 [...] that was split."""
    return ((hi.view(torch.int16).to(torch.int32) << 16) + lo.to(torch.int32)).view(torch.float32)


def adamw_whole_(
    weight: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: float | Tensor,
    scale: Tensor,
    skip: Tensor,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """One AdamW step of a float32 weight, in place: torch's fused kernel, which does nothing where skip is 1."""
    torch._fused_adamw_(
        [weight],
        [grad.float() * scale],
        [exp_avg],
        [exp_avg_sq],
        [],
        [step],
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=False,
        maximize=False,
        found_inf=skip,
    )


def adamw_split_(
    hi: Tensor,
    lo: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: float | Tensor,
    scale: Tensor,
    skip: Tensor,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """One AdamW step in place, the specification: join, torch's own fused float32 kernel, split.

    Equal to float32 `torch.optim.AdamW(fused=True)` bit for bit, on any device, because it is that kernel. The joined
    weight and the float32 gradient live for the length of one call: 8 bytes times the largest parameter.

    Args:
        hi, lo: the weight, bfloat16 and int16; grad: any float; exp_avg, exp_avg_sq: float32; all of one shape.
        step: float32, 0-d, the number of this step, from 1.
        lr: a number, or a 0-d tensor. scale: float32, 0-d, multiplies the gradient first (clipping).
        skip: float32, 0-d; 1 leaves everything as it was, bit for bit, whatever the gradient. All 0-d tensors on the
            weight's device, so that nothing waits for the host.
    """
    weight = join(hi, lo)
    adamw_whole_(
        weight,
        grad,
        exp_avg,
        exp_avg_sq,
        step,
        lr,
        scale,
        skip,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        weight_decay=weight_decay,
    )
    split_(weight, hi, lo)


def adamw_split_pointwise_(
    hi: Tensor,
    lo: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    step: Tensor,
    lr: Tensor,
    scale: Tensor,
    skip: Tensor,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """The step of `adamw_split_` (arguments there; lr a 0-d float64 tensor), all pointwise, for `torch.compile`.

    AdamW as in Loshchilov & Hutter 2019, algorithm 2, with the bias corrections in float64. It rounds elsewhere than
    torch's kernel, so the two agree to rounding and not to the bit; each is exact about what it keeps.
    """
    weight = join(hi, lo)
    g = grad.float() * scale
    m = exp_avg + (g - exp_avg) * (1 - beta1)
    v = exp_avg_sq * beta2 + g * g * (1 - beta2)
    t = step.double()
    rate = (lr / (1 - beta1**t)).float()
    root = torch.sqrt(1 - beta2**t).float()
    decay = (1 - lr * weight_decay).float()
    stepped = weight * decay - rate * (m / (v.sqrt() / root + eps))
    stay = skip != 0
    exp_avg.copy_(torch.where(stay, exp_avg, m))
    exp_avg_sq.copy_(torch.where(stay, exp_avg_sq, v))
    split_(torch.where(stay, weight, stepped), hi, lo)


@functools.cache
def compiled_step() -> Callable[..., None]:
    """`adamw_split_pointwise_`, compiled once for weights of any size: give it one-dimensional tensors."""
    return torch.compile(adamw_split_pointwise_, fullgraph=True, dynamic=True)


class SplitAdamW(Optimizer):
    """AdamW whose bfloat16 weights are float32 underneath; parameters of other dtypes are stepped as float32.

        masters = {name: p.detach().clone() for name, p in model.named_parameters()}    # float32, before the cast
        model.to(torch.bfloat16)
        optimizer = SplitAdamW(model.named_parameters(), masters=masters)

    Without `masters` the 16 low bits start at zero: what the cast dropped is gone. Every state tensor exists from the
    start (a checkpoint can be loaded in place). Like torch's fused AdamW it reads `found_inf`, a 0-d float32 tensor set
    on the optimizer: 1 skips the step without asking the host.

    Under DistributedDataParallel the low bits must be equal on all ranks: build from the same masters everywhere.

    Args:
        params: as for any torch optimizer; named parameters make a checkpoint independent of their order.
        compiled: use the compiled pointwise step (for GPUs) for bfloat16 parameters instead of the specification.
        masters: float32 values by name, of each bfloat16 parameter.

    Raises:
        TypeError: a parameter is sharded (FSDP) or DeepSpeed's, or is neither bfloat16 nor float32.
        ValueError: a master is missing, or of another dtype or shape.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        compiled: bool = False,
        masters: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._compiled = compiled
        self._scale: Tensor | None = None
        # "fused" is what torch's loading reads to put step counts on the weight's device.
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "fused": True})
        if masters is not None:
            for parameter, master in given_masters(self.param_groups, masters).items():
                self.set_master(parameter, master)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; the state of the new parameters is made at once."""
        super().add_param_group(param_group)
        for name, p in named_parameters(self.param_groups[-1:]):
            refuse_sharded(name, p)
            if p.dtype not in (torch.bfloat16, torch.float32):
                raise TypeError(f"{name} is {p.dtype}: split AdamW takes bfloat16 and float32 weights")
            if self._compiled and not p.is_contiguous():
                raise TypeError(f"{name} is not contiguous, as the compiled step needs: use compiled=False")
            self.state[p] = {
                "step": torch.zeros((), dtype=torch.float32, device=p.device),
                "exp_avg": torch.zeros_like(p, dtype=torch.float32),
                "exp_avg_sq": torch.zeros_like(p, dtype=torch.float32),
            }
            if p.dtype == torch.bfloat16:
                self.state[p]["lo"] = torch.zeros_like(p, dtype=torch.int16)

    def master(self, parameter: Tensor) -> Tensor:
        """The float32 truth of a parameter: a new tensor for a bfloat16 one, the weight itself otherwise."""
        lo = self.state[parameter].get("lo")
        return parameter.detach() if lo is None else join(parameter.detach(), lo)

    @torch.no_grad()
    def set_master(self, parameter: Tensor, master: Tensor) -> None:
        """Set the truth; the live weight follows by the same split. float32, of the parameter's shape."""
        lo = self.state[parameter].get("lo")
        if lo is None:
            parameter.copy_(master)
        else:
            split_(master.to(parameter.device), parameter, lo)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Global norm of the gradients in float32, 0-d; the next step uses them scaled down to at most `max_norm`.

        The gradients themselves stay as they are: scaling bfloat16 in place would round it again.
        """
        norm = grad_norm([p for group in self.param_groups for p in group["params"]])
        self._scale = clip_factor(norm, max_norm)
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; forgets a clip that no step has used."""
        self._scale = None
        super().zero_grad(set_to_none=set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One AdamW step for every parameter that has a gradient; returns the closure's loss, if one is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        skip, scale = getattr(self, "found_inf", None), self._scale
        self._scale = None
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            rest = {"beta1": beta1, "beta2": beta2, "eps": group["eps"], "weight_decay": group["weight_decay"]}
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, device = self.state[p], p.device
                skip_here = torch.zeros((), device=device) if skip is None else skip.to(device)
                scale_here = torch.ones((), device=device) if scale is None else scale.to(device)
                state["step"] += 1 - skip_here
                # A detached alias: inside compiled code the version of a leaf that requires grad must not be touched.
                weight, moments = p.detach(), (state["exp_avg"], state["exp_avg_sq"])
                scalars = (state["step"], group["lr"], scale_here, skip_here)
                if "lo" not in state:
                    adamw_whole_(weight, p.grad, *moments, *scalars, **rest)
                elif self._compiled:
                    # A tensor, since a number would be compiled in and the schedule changes it every step.
                    lr = torch.as_tensor(group["lr"], dtype=torch.float64).to(device, non_blocking=True)
                    flat = [t.view(-1) for t in (weight, state["lo"], p.grad.contiguous(), *moments)]
                    compiled_step()(*flat, state["step"], lr, scale_here, skip_here, **rest)
                else:
                    adamw_split_(weight, state["lo"], p.grad, *moments, *scalars, **rest)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but by name where both sides have names, and state keeps its dtype.

        Torch's would cast moments and low bits to bfloat16. The live weights must be those saved with this state: the
        model is loaded beside it. The argument's name is the one by which torch's distributed checkpoints pass it.

        Raises:
            ValueError: other parameters, or no low bits for a bfloat16 weight, or moments that are not float32.
        """
        ordered = in_order_of(self.param_groups, state_dict)
        ids = [i for group in ordered["param_groups"] for i in group["params"]]
        kept: dict[Tensor, dict[str, Tensor]] = {}
        for (name, p), i in zip(named_parameters(self.param_groups), ids, strict=True):
            saved = ordered["state"].get(i, {})
            kept[p] = {}
            for kind, own in self.state[p].items():
                value = saved.get(kind)
                if not isinstance(value, Tensor) or value.dtype != own.dtype or value.shape != own.shape:
                    got = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else "nothing"
                    raise ValueError(f"{name}: the saved {kind} is {got}, and must be {own.dtype} {tuple(own.shape)}")
                kept[p][kind] = value.detach().to(own.device, copy=True)
        super().load_state_dict(ordered)
        for p, state in kept.items():
            self.state[p] = state

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_compiled": self._compiled, "_scale": None}
