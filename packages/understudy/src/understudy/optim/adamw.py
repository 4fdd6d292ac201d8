"""AdamW in float32 for both storages of the weights: the one optimizer of a run.

Torch's fused kernel updates a float32 weight, whole or this rank's shard of it: AdamW is
elementwise. A bfloat16 weight is the upper half of a float32 one whose lower half, `lo`, is in the
optimizer's state (`bf16_split.py`). `master` returns the float32 value of either, so averages,
checkpoints and exports get one kind of weight.

The constructor makes the state, not the first step: a checkpoint loads in place, in a fresh run as
in a resumed one.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from understudy.optim.bf16_split import (
    adamw_split_,
    adamw_whole_,
    as_tensor,
    compiled_step_,
    join,
    split_,
)
from understudy.optim.state import (
    check_master,
    given_masters,
    in_order_of,
    local,
    named_parameters,
    refuse_foreign,
)
from understudy_base import Record


class Float32AdamW(Optimizer):
    """AdamW whose weights are float32 underneath: float32 parameters as they are, bfloat16 ones
    with their low bits.

        # float32, before the cast
        masters = {name: p.detach().clone() for name, p in model.named_parameters()}
        model.to(torch.bfloat16)
        optimizer = Float32AdamW(model.named_parameters(), masters=masters)

    Without `masters` the 16 low bits start at zero: the bits that the cast dropped are lost.
    DistributedDataParallel broadcasts weights and not their low bits, so build from the same
    masters on every rank.

    A write to a bfloat16 weight from outside (`model.load_state_dict`, a broadcast) leaves its low
    bits behind: the next step raises, until `set_master` or `load_state_dict` gives both. A write
    through `.data` is not detected.

    Args:
        params: parameters as for any torch optimizer; named ones make its state independent of
            their order.
        compiled: step bfloat16 parameters by the compiled pointwise kernel (for GPUs), not by the
            specification.
        masters: float32 values by name, of each bfloat16 parameter.

    Raises:
        TypeError: a parameter is neither bfloat16 nor float32; a bfloat16 one is sharded; FSDP1's
            or DeepSpeed's.
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
        # of each bfloat16 weight when it last belonged to its low bits
        self._versions: dict[Tensor, int] = {}
        # torch reads "fused" on loading, to put step counts on the weight's device.
        super().__init__(
            params,
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "fused": True},
        )
        if masters is not None:
            for parameter, master in given_masters(self.param_groups, masters).items():
                self.set_master(parameter, master)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; the state of the new parameters is made at once."""
        super().add_param_group(param_group)
        for name, p in named_parameters(self.param_groups[-1:]):
            refuse_foreign(name, p)
            if p.dtype not in (torch.bfloat16, torch.float32):
                raise TypeError(
                    f"{name} is {p.dtype}: weights are kept in float32, or in bfloat16 with their "
                    "low bits"
                )
            if p.dtype == torch.bfloat16 and local(p).shape != p.shape:
                raise TypeError(
                    f"{name} is bfloat16 and sharded: keep float32 weights there; low bits save "
                    "nothing (a float32 shard is its own master, 4 bytes = 2 + 2), and bfloat16 "
                    "computation does not need them"
                )
            if self._compiled and p.dtype == torch.bfloat16 and not local(p).is_contiguous():
                raise TypeError(
                    f"{name} is not contiguous, as the compiled step needs: use compiled=False"
                )
            self.state[p] = {
                "step": torch.zeros((), dtype=torch.float32, device=p.device),
                "exp_avg": torch.zeros_like(p, dtype=torch.float32),
                "exp_avg_sq": torch.zeros_like(p, dtype=torch.float32),
            }
            if p.dtype == torch.bfloat16:
                self.state[p]["lo"] = torch.zeros_like(p, dtype=torch.int16)
                self._versions[p] = local(p)._version

    @torch.no_grad()
    def master(self, parameter: Tensor) -> Tensor:
        """Return the float32 value of a parameter: a new tensor for a bfloat16 one, the weight
        itself otherwise.

        It is a DTensor of the same layout where the parameter is one. A frozen parameter is its own
        master.
        """
        lo = self.state.get(parameter, {}).get("lo")
        return (
            parameter.detach()
            if lo is None
            else _like(parameter, join(local(parameter), local(lo)))
        )

    @torch.no_grad()
    def local_master(self, parameter: Tensor) -> Tensor:
        """Return this rank's shard of `master` as a plain tensor."""
        lo = self.state.get(parameter, {}).get("lo")
        return local(parameter) if lo is None else join(local(parameter), local(lo))

    @torch.no_grad()
    def set_master(self, parameter: Tensor, master: Tensor) -> None:
        """Set the float32 value of a parameter; the live weight follows by the same split.

        Raises:
            ValueError: `master` is not float32 of the parameter's shape.
        """
        check_master("the parameter", parameter, master)
        lo = self.state.get(parameter, {}).get("lo")
        if lo is None:
            parameter.copy_(master)
        else:
            split_(local(master).to(parameter.device), local(parameter), local(lo))
            self._versions[parameter] = local(parameter)._version

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        scale: Tensor | None = None,
        skip: Tensor | None = None,
    ) -> Any:
        """Update every parameter that has a gradient; returns the closure's loss, if one is given.

        Args:
            closure: computes the loss, called once before the update.
            scale: float32, 0-d, on the weights' device, multiplies the gradients (clipping):
                float32 ones in place, bfloat16 ones only inside the step, since scaling those in
                place would round them again.
            skip: float32, 0-d, there too: 1 leaves weights, moments and step counts unchanged, bit
                for bit, for any gradients. Both are read on the device, so nothing waits for the
                host.

        Raises:
            RuntimeError: a bfloat16 weight was written from outside.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_weights()
        for group in self.param_groups:
            stepped = [p for p in group["params"] if p.grad is not None]
            if not stepped:
                continue
            device = stepped[0].device
            no = torch.zeros((), device=device) if skip is None else skip
            # A list, since torch asks a single tensor for its value where it has no kernel for it.
            torch._foreach_add_([self.state[p]["step"] for p in stepped], [1 - no] * len(stepped))
            self._step_whole([p for p in stepped if "lo" not in self.state[p]], group, scale, no)
            times = torch.ones((), device=device) if scale is None else scale
            self._step_split([p for p in stepped if "lo" in self.state[p]], group, times, no)
        return loss

    def _check_weights(self) -> None:
        for name, p in named_parameters(self.param_groups):
            if self._versions.get(p, local(p)._version) != local(p)._version:
                raise RuntimeError(
                    f"{name} was written since the last step, and its low bits were not: give its "
                    "float32 value to set_master, or load the optimizer's state after the model's"
                )

    def _step_whole(
        self, params: list[Tensor], group: dict[str, Any], scale: Tensor | None, skip: Tensor
    ) -> None:
        """Update all float32 parameters of a group in one call of torch's fused kernel."""
        if not params:
            return
        states = [self.state[p] for p in params]
        gradients = [local(p.grad) for p in params if p.grad is not None]
        if scale is not None:
            torch._foreach_mul_(gradients, scale)
        adamw_whole_(
            [local(p).detach() for p in params],
            gradients,
            [local(s["exp_avg"]) for s in states],
            [local(s["exp_avg_sq"]) for s in states],
            [s["step"] for s in states],
            group["lr"],
            skip,
            **_hyper(group),
        )

    def _step_split(
        self, params: list[Tensor], group: dict[str, Any], scale: Tensor, skip: Tensor
    ) -> None:
        """Update bfloat16 parameters one by one, so that the temporary memory is one float32
        parameter.
        """
        if not params:
            return
        if self._compiled:
            hyper = as_tensor(group["lr"], **_hyper(group), device=params[0].device)
        for p in params:
            assert p.grad is not None
            state = self.state[p]
            hi = local(p).detach()
            lo = local(state["lo"])
            grad = local(p.grad)
            m = local(state["exp_avg"])
            v = local(state["exp_avg_sq"])
            count = state["step"]
            if self._compiled:
                compiled_step_(hi, lo, grad.contiguous(), m, v, count, scale, skip, hyper)
                torch.autograd.graph.increment_version(p)
            else:
                adamw_split_(hi, lo, grad, m, v, count, group["lr"], scale, skip, **_hyper(group))
            self._versions[p] = local(p)._version

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but by name where both sides have names, and state keeps its dtype.

        Torch's would cast moments and low bits to bfloat16. The live weights must be those saved
        with this state: the model is loaded as well. The argument's name is the one by which
        torch's distributed checkpoints pass it.

        Raises:
            ValueError: other parameters, or no low bits for a bfloat16 weight, or moments that are
                not float32.
        """
        ordered = in_order_of(self.param_groups, state_dict)
        ids: list[int] = []
        for group in ordered["param_groups"]:
            ids += group["params"]
        loaded: dict[Tensor, dict[str, Tensor]] = {}
        for (name, p), i in zip(named_parameters(self.param_groups), ids, strict=True):
            saved = ordered["state"].get(i, {})
            loaded[p] = {}
            for kind, tensor in self.state[p].items():
                value = saved.get(kind)
                dtype = torch.int16 if kind == "lo" else torch.float32
                if (
                    not isinstance(value, Tensor)
                    or value.dtype != dtype
                    or value.shape != tensor.shape
                ):
                    got = (
                        f"{value.dtype} {tuple(value.shape)}"
                        if isinstance(value, Tensor)
                        else "nothing"
                    )
                    raise ValueError(
                        f"{name}: the saved {kind} is {got}, and must be {dtype} "
                        f"{tuple(tensor.shape)}"
                    )
                loaded[p][kind] = value.detach().to(tensor.device, copy=True)
        super().load_state_dict(ordered)
        for p, state in loaded.items():
            self.state[p] = state
            if "lo" in state:
                self._versions[p] = local(p)._version

    def __getstate__(self) -> dict[str, Any]:
        # a copy's weights are its own
        return {**super().__getstate__(), "_compiled": self._compiled, "_versions": {}}


def _hyper(group: Record) -> dict[str, float]:
    beta1, beta2 = group["betas"]
    return {
        "beta1": beta1,
        "beta2": beta2,
        "eps": group["eps"],
        "weight_decay": group["weight_decay"],
    }


def _like(tensor: Tensor, part: Tensor) -> Tensor:
    """`part` in the layout of `tensor`, whose part on this rank has its shape."""
    if not hasattr(tensor, "placements"):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        tensor.device_mesh,  # type: ignore[attr-defined]
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
