"""Which weights are trained, in which groups, and their moving average.

A pattern is a shell's (`eyes.*`, `*.bias`) and is compared with parameter names as `policy.named_parameters()` has
them. One that fits nothing is an error: a misspelt one would go unnoticed for a whole run.
"""

import copy
import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from understudy.errors import ConfigError
from understudy.optim.adamw import Float32AdamW
from understudy.optim.state import local

Policy = TypeVar("Policy", bound=nn.Module)


class OptimSettings(Protocol):
    """Settings of the optimizer that are read here; `OptimConfig` of a run has them."""

    @property
    def weight_decay(self) -> float: ...
    @property
    def lr_scale(self) -> Mapping[str, float]: ...
    @property
    def weight_decay_of(self) -> Mapping[str, float]: ...
    @property
    def freeze(self) -> tuple[str, ...]: ...
    @property
    def loss_weights(self) -> Mapping[str, float]: ...


class EmaSettings(Protocol):
    """Settings of the moving average; `EmaConfig` of a run has them."""

    @property
    def decay(self) -> float: ...
    @property
    def kind(self) -> str: ...
    @property
    def power(self) -> float: ...


def freeze(policy: nn.Module, config: OptimSettings) -> None:
    """Stop training what `config.freeze` names, in place: before anything is sharded and an optimizer is made.

    Raises:
        ConfigError: a pattern fits no parameter, or nothing is left to train.
    """
    names = [name for name, _ in policy.named_parameters()]
    for setting in ("freeze", "lr_scale", "weight_decay_of"):
        _check_patterns(f"optim.{setting}", getattr(config, setting), names)
    for name, parameter in policy.named_parameters():
        if _first(dict.fromkeys(config.freeze, True), name, False):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in policy.parameters()):
        raise ConfigError(f"optim.freeze: {', '.join(config.freeze)} is everything: nothing is left to train")


def parameter_groups(named: Iterable[tuple[str, nn.Parameter]], config: OptimSettings) -> list[dict[str, Any]]:
    """Groups for a torch optimizer, in order of first appearance: one per weight decay and factor on the learning rate.

    Matrices decay and vectors (biases, gains) do not, where no pattern says otherwise.

    Args:
        named: names and parameters that are trained.
    Returns:
        {"params": [(name, parameter), ...], "weight_decay": ..., "lr_scale": ...} each.
    """
    groups: dict[tuple[float, float], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in named:
        decay = _first(config.weight_decay_of, name, config.weight_decay if parameter.ndim >= 2 else 0.0)
        groups.setdefault((decay, _first(config.lr_scale, name, 1.0)), []).append((name, parameter))
    return [{"params": members, "weight_decay": d, "lr_scale": scale} for (d, scale), members in groups.items()]


def loss_weights(terms: Iterable[str], config: OptimSettings) -> dict[str, float]:
    """Weight by name of each loss term that is to be computed, of those that a policy has.

    Raises:
        ConfigError: a weight for a term that the policy does not have, or no term with a weight.
    """
    terms = list(terms)
    if strangers := sorted(set(config.loss_weights) - set(terms)):
        raise ConfigError(f"optim.loss_weights: the policy has no term {strangers[0]!r}, it has {', '.join(terms)}")
    weights = {term: config.loss_weights.get(term, 1.0) for term in terms}
    if not any(weights.values()):
        raise ConfigError("optim.loss_weights: every term weighs 0: there is nothing to learn")
    return {term: weight for term, weight in weights.items() if weight}


def make_average(policy: Policy) -> Policy:
    """A second policy that holds the moving average of the weights, in float32; it starts as a copy."""
    return copy.deepcopy(policy).requires_grad_(False).eval()


def ema_decay(step: int, config: EmaSettings) -> float:
    """Share of the average that optimizer step `step` (1, 2, ...) leaves as it is; depends on the step alone.

    `constant` comes with a ramp (as in TensorFlow's ExponentialMovingAverage with `num_updates`), `power` is one all
    the way (as in diffusers' EMAModel, which robot policies took over): the first weights are to be forgotten.
    """
    ramp = (1 + step) / (10 + step) if config.kind == "constant" else 1 - (1 + step) ** -config.power
    return min(config.decay, ramp)


@torch.no_grad()
def update_average(average: nn.Module, policy: nn.Module, optimizer: Float32AdamW, decay: float) -> None:
    """average += (1 - decay) * (truth - average), on each rank's part, where the truth are the float32 weights.

    A skipped optimizer step counts like one that did not move the weights.
    """
    pairs = [(a, p) for a, p in zip(average.parameters(), policy.parameters(), strict=True) if p.requires_grad]
    for low in range(0, len(pairs), 64):  # the truth of bfloat16 weights is made anew, so not of all at once
        some = pairs[low : low + 64]
        averages, truths = [local(a) for a, _ in some], [optimizer.local_master(p) for _, p in some]
        torch._foreach_lerp_(averages, truths, 1 - decay)


def _first(patterns: Mapping[str, Any], name: str, default: Any) -> Any:
    return next((value for pattern, value in patterns.items() if fnmatchcase(name, pattern)), default)


def _check_patterns(setting: str, patterns: Iterable[str], names: list[str]) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.0)
            raise ConfigError(f"{setting}: {pattern!r} fits no parameter; there are {', '.join(near)}, …")
