"""Float32 masters of bfloat16 weights, for any torch optimizer in any training loop.

`MasterWeights(optimizer)` is itself an optimizer and shares the parameter groups of the wrapped
one, so schedulers, hooks, Accelerate and DistributedDataParallel work unchanged. The wrapped
optimizer gets the masters in place of the live weights only while it steps, loads or saves. Its
moments are therefore float32, and its own loading casts nothing.

The storage of the weights never changes its dtype: that would drop the gradient hooks of
DistributedDataParallel, and ranks would silently diverge.
"""

import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter as Argument
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from understudy.optim.state import (
    check_master,
    check_moments,
    clip_factor,
    given_masters,
    grad_norm,
    in_order_of,
    named_parameters,
    refuse_sharded,
)


class MasterWeights(Optimizer):
    """Step float32 masters and round them to the live bfloat16 weights after every step.

        optimizer = MasterWeights(torch.optim.AdamW(model.named_parameters(), lr=1e-4))

    After `model.to(torch.bfloat16)` the pretrained float32 bits are gone from the weights. To keep
    them, take the masters before the cast:

        masters = {name: p.detach().clone() for name, p in model.named_parameters()}
        model.to(torch.bfloat16)
        adamw = torch.optim.AdamW(model.named_parameters(), lr=1e-4)
        optimizer = MasterWeights(adamw, masters=masters)

    Differences from an ordinary optimizer:

    - Call `step`, `state_dict` and `load_state_dict` on the wrapper; the wrapped optimizer's `step`
      refuses.
    - Clip with `optimizer.clip_grad_norm_(max_norm)`. `torch.nn.utils.clip_grad_norm_` (and
      Accelerate's) works in bfloat16: the norm has 8 bits and the gradients are rounded again. The
      first step warns of it. Under Accelerate call it on this object: the AcceleratedOptimizer that
      `accelerator.prepare(optimizer)` returns does not forward it.
    - Wrap in this order: model to its device, DistributedDataParallel, optimizer, MasterWeights.
      Masters follow a later move to another device, but a broadcast of other weights is refused
      (next point).
    - Weights written from outside (`model.load_state_dict`, a broadcast) differ from their masters.
      The next step raises instead of undoing the write, until `set_master` or `reset_masters`
      settles the value. A write through `.data` is not detected.
    - A closure is called once, before the step.
    - Parameters of other dtypes are updated directly.

    16 bytes per bfloat16 parameter with AdamW (weight 2, gradient 2, master 4, moments 8), and 4
    more during a step for its float32 gradient.

    Args:
        optimizer: built over the live weights. Its existing moments become float32.
        masters: float32 values by name for every bfloat16 parameter; the live weights become these,
            rounded.
        skip_nonfinite: leave masters, moments and weights unchanged, bit for bit, when the float32
            norm of the gradient is not finite, and count it in `skipped`. Costs a wait for the
            device in each step. Ranks of DistributedDataParallel agree without asking, since they
            hold the same reduced gradient.

    Raises:
        TypeError: weights that are sharded (FSDP, DTensor), DeepSpeed's, or float16; an optimizer
            that must call its closure itself (LBFGS).
        ValueError: a master is missing, or of another dtype or shape.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        masters: Mapping[str, Tensor] | None = None,
        *,
        skip_nonfinite: bool = False,
    ) -> None:
        if isinstance(optimizer, MasterWeights):
            raise TypeError("the optimizer is a MasterWeights already")
        if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
            raise TypeError(
                f"{type(optimizer).__name__} is a wrapper itself: wrap the optimizer in "
                "MasterWeights first, and give that to Accelerate's prepare or whatever else wraps"
            )
        closure = signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is Argument.empty:
            raise TypeError(
                f"{type(optimizer).__name__} calls its closure many times in a step: use float32 "
                "weights"
            )
        self.optimizer = optimizer
        self.skip_nonfinite = skip_nonfinite
        self.skipped = 0
        # live weight -> master, or itself where it needs none
        self._masters: dict[Tensor, Tensor] = {}
        # of each live weight when it last agreed with its master
        self._versions: dict[Tensor, int] = {}
        self._scale: Tensor | None = None  # clipping, until the next step
        self._inside = False
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.param_groups = optimizer.param_groups
        self.state = optimizer.state
        self._own(self.param_groups)
        optimizer.register_step_pre_hook(self._only_from_inside)
        self._watch = ClipWatch(self._masters)
        weakref.finalize(self, self._watch.close)
        if masters is not None:
            for parameter, master in given_masters(self.param_groups, masters).items():
                self.set_master(parameter, master)

    def _own(self, groups: list[dict[str, Any]]) -> None:
        """Make masters for the weights of these groups, and their state float32."""
        for name, p in named_parameters(groups):
            refuse_sharded(name, p)
            if p.dtype == torch.float16:
                raise TypeError(
                    f"{name} is float16, whose range needs a scaled loss: use bfloat16 weights"
                )
            low = p.dtype == torch.bfloat16
            self._masters[p] = (
                Parameter(p.detach().float(), requires_grad=p.requires_grad) if low else p
            )
            self._versions[p] = p._version
            for kind, value in self.state.get(p, {}).items():
                if low and isinstance(value, Tensor) and value.dtype == torch.bfloat16:
                    self.state[p][kind] = value.float()

    def _only_from_inside(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._inside:
            raise RuntimeError(
                "this optimizer is wrapped in MasterWeights: call step() of the wrapper"
            )

    @contextmanager
    def _on_masters(self) -> Iterator[Optimizer]:
        """Put the masters in place of the live weights in the wrapped optimizer, within this
        context.
        """
        inner = self.optimizer
        live = [group["params"] for group in self.param_groups]
        weights = {master: p for p, master in self._masters.items()}
        self._inside = True
        for group in self.param_groups:
            group["params"] = [self._masters[p] for p in group["params"]]
        _rename_keys(inner.state, self._masters)
        try:
            yield inner
        finally:
            self._inside = False
            # Loading puts new groups and a new state there.
            self.param_groups = inner.param_groups
            self.state = inner.state
            for group, params in zip(self.param_groups, live, strict=True):
                group["params"] = params
            _rename_keys(inner.state, weights)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; masters of new bfloat16 parameters start from the parameters."""
        # torch's constructor, before the groups are shared
        if self.param_groups is not self.optimizer.param_groups:
            super().add_param_group(param_group)
            return
        self.optimizer.add_param_group(param_group)
        self._own(self.param_groups[-1:])

    def master(self, parameter: Tensor) -> Tensor:
        """Return the float32 master of a parameter, not a copy; the parameter itself where it is
        not bfloat16.
        """
        return self._masters[parameter].detach()

    @torch.no_grad()
    def set_master(self, parameter: Tensor, master: Tensor) -> None:
        """Set the master of a parameter, float32 and of its shape; the live weight follows,
        rounded.
        """
        own_master = self._masters[parameter]
        if own_master is not parameter:
            check_master("the parameter", parameter, master)
        own_master.copy_(master)
        self._round(parameter)

    def reset_masters(self) -> None:
        """Set the masters that differ from their live weights to these weights."""
        for p, master in self._masters.items():
            if not self._agrees(p):
                master.data.copy_(p.detach())
                self._versions[p] = p._version

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Return the global norm of the gradients, float32, 0-d; the next step scales them down to
        at most `max_norm`.

        The step scales in float32; the live gradients stay unchanged until then.
        """
        norm = grad_norm(list(self._masters))
        self._scale = clip_factor(norm, max_norm)
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; also drops a clip that no step has used."""
        self._scale = None
        super().zero_grad(set_to_none=set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the wrapped optimizer on the masters; returns the closure's loss, if one is
        given.

        Raises:
            RuntimeError: weights that left this optimizer, or differ from their masters.
            ValueError: the wrapped optimizer made moments of fewer than 32 bits.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_weights()
        scale = self._scale
        self._scale = None
        if scale is None:
            self._watch.warn()
        self._watch.close()
        if self.skip_nonfinite and not torch.isfinite(grad_norm(list(self._masters))):
            self.skipped += 1
            return loss
        for p, master in self._masters.items():
            if p.grad is None:
                master.grad = None
                continue
            if scale is not None:
                factor = scale.to(p.device)
                master.grad = p.grad.mul_(factor) if master is p else p.grad.float() * factor
            else:
                master.grad = p.grad.float()
        try:
            with self._on_masters() as inner:
                inner.step()
            self._check_steps()
        finally:
            for p, master in self._masters.items():
                if master is not p:
                    master.grad = None
        for p in self._masters:
            self._round(p)
        check_moments(self)
        return loss

    def _round(self, parameter: Tensor) -> None:
        if self._masters[parameter] is not parameter:
            parameter.copy_(self._masters[parameter])
        self._versions[parameter] = parameter._version

    def _agrees(self, parameter: Tensor) -> bool:
        master = self._masters[parameter]
        return master is parameter or torch.equal(master.detach().to(parameter), parameter.detach())

    def _check_weights(self) -> None:
        """Check the weights before a step; move masters to the device of their weights."""
        moved = False
        for name, p in named_parameters(self.param_groups):
            master = self._masters.get(p)
            if master is None:
                refuse_sharded(name, p)
                raise RuntimeError(
                    f"{name} was added to the groups from outside. DeepSpeed does so, and keeps "
                    "masters itself: give it the bare optimizer. New parameters come through "
                    "add_param_group"
                )
            if master is p and p.dtype == torch.bfloat16:
                raise RuntimeError(
                    f"{name} became bfloat16 after it was wrapped: cast first, then MasterWeights"
                )
            if master.device != p.device:
                master.data = master.data.to(p.device)
                moved = True
            if p._version != self._versions.get(p):
                if not self._agrees(p):
                    raise RuntimeError(
                        f"{name} was written since the last step and its master was not: call "
                        "reset_masters() if the weights are right, set_master(parameter, float32) "
                        "if you have their float32 values"
                    )
                self._versions[p] = p._version
        if moved:
            with self._on_masters() as inner:
                inner.load_state_dict(inner.state_dict())

    def _check_steps(self) -> None:
        """Raise for an optimizer that keeps other weights than its groups (as
        ZeroRedundancyOptimizer does).
        """
        for name, p in named_parameters(self.param_groups):
            if self._masters[p] is not p and p._version != self._versions[p]:
                raise RuntimeError(
                    f"{type(self.optimizer).__name__} stepped {name} itself and not its master: it "
                    "does not go by its param_groups, so masters cannot be put under it; use "
                    "float32 weights with it"
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state, with the master of each bfloat16 parameter under
        "master".
        """
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        with self._on_masters() as inner:
            packed = inner.state_dict()
        state = dict(packed["state"])
        for key, value in packed["state"].items():
            if isinstance(value, dict):
                state[key] = dict(value)
        for i, p in _numbered(packed["param_groups"], self.param_groups):
            if self._masters[p] is not p:
                state.setdefault(i, {})["master"] = self._masters[p].detach()
        result = {**packed, "state": state}
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            result = post_hook(self, result) or result
        return result

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load masters, moments and groups; live weights become the masters, rounded.

        By name where both sides have names, whatever the order; else by order, as torch does.
        Nothing is cast below float32. The argument's name is the one by which torch's distributed
        checkpoints pass it.

        Raises:
            ValueError: other parameters, or no master for a bfloat16 weight (the file is a plain
                optimizer's: load it into the wrapped one before wrapping).
        """
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = pre_hook(self, state_dict) or state_dict
        packed = in_order_of(self.param_groups, state_dict)
        state = dict(packed["state"])
        for key, value in packed["state"].items():
            if isinstance(value, dict):
                state[key] = dict(value)
        names = {p: name for name, p in named_parameters(self.param_groups)}
        masters = {}
        for i, p in _numbered(packed["param_groups"], self.param_groups):
            master = state.get(i, {}).pop("master", None)
            if self._masters[p] is p:
                continue
            if master is None:
                raise ValueError(
                    f"no float32 master of {names[p]} in this state: a plain optimizer saved it "
                    "(or torch flattened it and left the masters behind: "
                    "flatten_optimizer_state_dict=False keeps them). Load it into that optimizer "
                    "first and wrap it then; its masters start from the bfloat16 weights"
                )
            check_master(names[p], p, master)
            masters[p] = master
            if not state[i]:
                del state[i]  # was not stepped yet, and the wrapped optimizer has no empty states
        with self._on_masters() as inner:
            inner.load_state_dict({**packed, "state": state})
        for p, master in masters.items():
            self.set_master(p, master)
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def __getstate__(self) -> dict[str, Any]:
        ours = {
            name: getattr(self, name)
            for name in ("optimizer", "skip_nonfinite", "skipped", "_masters")
        }
        return {**super().__getstate__(), **ours}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._versions = {}  # so that the next step compares the weights
        self._scale = None
        self._inside = False
        self._watch = ClipWatch(())
        self.optimizer.register_step_pre_hook(self._only_from_inside)


def _rename_keys(state: defaultdict[Any, Any], names: Mapping[Any, Any]) -> None:
    items = [(names.get(key, key), value) for key, value in state.items()]
    state.clear()
    state.update(items)


def _numbered(
    packed: list[dict[str, Any]], groups: list[dict[str, Any]]
) -> Iterator[tuple[int, Tensor]]:
    """(number in the state dict, parameter), in group order."""
    for saved, group in zip(packed, groups, strict=True):
        yield from zip(saved["params"], group["params"], strict=True)


class ClipWatch:
    """Gradients of bfloat16 parameters, watched from a backward pass to the first step.

    `clip_grad_norm_` of torch and of Accelerate changes each gradient once, in place, between the
    two.

    Args:
        parameters: watched until `close`.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._low = [p for p in parameters if p.requires_grad and p.dtype == torch.bfloat16]
        self._hooks = [p.register_post_accumulate_grad_hook(self._wait_for_end) for p in self._low]
        self._versions: dict[Tensor, int] = {}
        self._waiting = False

    def _wait_for_end(self, _: Tensor) -> None:
        if not self._waiting:
            self._waiting = True
            # Queued twice: DistributedDataParallel reduces the gradients in a callback, which comes
            # before the second.
            queue: Any = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(self._note_versions))

    def _note_versions(self) -> None:
        self._waiting = False
        self._versions = {p: p.grad._version for p in self._low if p.grad is not None}

    def warn(self) -> None:
        """Warn where every gradient was changed once, in place, since its backward pass."""
        changes = {
            p.grad._version - before for p, before in self._versions.items() if p.grad is not None
        }
        if changes == {1}:
            warnings.warn(
                "the bfloat16 gradients were changed after backward, as clip_grad_norm_ of torch "
                "and Accelerate does: the norm has 8 bits, and the gradients are rounded again; "
                "clip with clip_grad_norm_ of MasterWeights",
                stacklevel=4,
            )

    def close(self) -> None:
        """Remove the hooks; nothing is watched any more."""
        for hook in self._hooks:
            hook.remove()
        self._low = []
        self._hooks = []
        self._versions = {}
