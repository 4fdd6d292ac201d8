"""Low-rank adapters (LoRA) on the linear layers of any network, and their merge into its weights.

    y = W x + b + alpha / rank * B (A x)        A [rank, in], B [out, rank]

(Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models".) W and b are frozen, A and B
are trained. B starts at 0, so a network with fresh adapters computes the same numbers as without.
An adapter is two parameters of its layer, `lora_a` and `lora_b`: all other names stay those of the
network, and nothing else treats it specially. It comes before storage, activation checkpointing,
compilation and sharding.
"""

import functools
import math
from collections.abc import Callable, Collection, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.optim.param_groups import (
    ADAPTERS,
    NO_RENAMES,
    check_patterns,
    is_left_out,
    matches,
    spellings,
)
from understudy_base import ConfigError

if TYPE_CHECKING:
    from understudy.config.lora import LoraConfig
    from understudy.config.train import OptimConfig

A, B = ADAPTERS


class _Adapted(nn.Module):
    """Mixin in front of the class of a linear layer."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora_scale: float

    def forward(self, input: Tensor) -> Tensor:
        """Map [..., in] to [..., out]; the adapter computes in the dtype of its input."""
        # One gradient of the layer for its input: autograd would add the two of an input that
        # several layers share in another sequence in a sharded block, which rounds differently.
        input = input.view_as(input)
        base: Tensor = super().forward(input)
        low = F.linear(F.linear(input, self.lora_a.to(input.dtype)), self.lora_b.to(input.dtype))
        return torch.add(base, low.to(base.dtype), alpha=self.lora_scale)


@functools.cache
def _adapted(plain: type[nn.Module]) -> type[nn.Module]:
    """One class for all layers of a class; with several, each would be compiled separately."""
    return type(f"Adapted{plain.__name__}", (_Adapted, plain), {})


def add_adapters(
    policy: nn.Module,
    config: "LoraConfig",
    optim: "OptimConfig",
    seed_of: Callable[[str], int],
    parts: Mapping[str, str] = NO_RENAMES,
    full: Collection[str] = (),
) -> list[str]:
    """Freeze a network and add adapters to its linear layers, in place; a rank of 0 changes
    nothing.

    A has Kaiming's uniform distribution, between -1/sqrt(in) and 1/sqrt(in) (as in peft), B is 0.
    Both are float32 on the device of the weight, or on the default device where the weight is on
    the meta device.

    Args:
        policy: the network, in float32.
        config: rank, scale and patterns.
        optim: its patterns `freeze` and `train` name the parameters to be frozen; their layers get
            no adapter, since an adapter would change them.
        seed_of: seed of a layer's A by the layer's name, so that A does not depend on the other
            layers.
        parts: patterns of parameters -> parts of the policy; patterns may write PART.NAME.
        full: names of parameters that are trained in full, as those of `config.also_train` are.

    Returns:
        Names of the layers with an adapter.

    Raises:
        ConfigError: a pattern fits nothing, no layer is left, or the weight of a layer belongs to
            two modules.
    """
    if not config.rank:
        return []
    names = {name: spellings(name, parts) for name, _ in policy.named_parameters()}
    check_patterns("lora.also_train", config.also_train, list(chain(*names.values())))
    linear = {
        name: module for name, module in policy.named_modules() if isinstance(module, nn.Linear)
    }
    of_layer: dict[str, list[str]] = {}
    for name in linear:
        of_weight = spellings(f"{name}.weight", parts)
        of_layer[name] = [spelling.removesuffix(".weight") for spelling in of_weight]
    check_patterns("lora.targets", config.targets, list(chain(*of_layer.values())), "layer")
    whole = {
        name
        for name, spelled in names.items()
        if name in full or matches(config.also_train, spelled)
    }
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_(name in whole)
    chosen: dict[str, nn.Linear] = {}
    for name, layer in linear.items():
        weight = f"{name}.weight"
        is_adapted = weight not in whole and not matches(optim.freeze, names.get(weight, []))
        # `train` names the weight, or its adapters
        is_adapted = is_adapted and not is_left_out(f"{name}.{B}", optim, parts)
        if is_adapted and matches(config.targets, of_layer[name]):
            chosen[name] = layer
    if not chosen:
        raise ConfigError(
            f"lora.targets: {', '.join(config.targets) or 'none'}: no linear layer is left for an "
            "adapter: name some, fewer in optim.freeze and lora.also_train, or more in optim.train"
        )
    _check_untied(policy, chosen)
    for name, layer in chosen.items():
        _add(layer, config, seed_of(name))
    return list(chosen)


def _check_untied(policy: nn.Module, layers: Mapping[str, nn.Linear]) -> None:
    """Raise ConfigError where a layer shares its weight: merged, its adapter would change the other
    module, too.
    """
    owners: dict[Tensor, list[str]] = {}
    for name, parameter in policy.named_parameters(remove_duplicate=False):
        owners.setdefault(parameter, []).append(name)
    for name, layer in layers.items():
        if len(several := owners[layer.weight]) > 1:
            raise ConfigError(
                f"lora.targets: {name} shares its weight ({', '.join(several)}), so its adapter "
                "cannot be merged; name other layers"
            )


def _add(layer: nn.Linear, config: "LoraConfig", seed: int) -> None:
    a = torch.empty(config.rank, layer.in_features)
    b = torch.zeros(layer.out_features, config.rank)
    if not a.is_meta:
        bound = 1 / math.sqrt(layer.in_features)
        a.uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
    for name, value in ((A, a), (B, b)):
        device = value.device if layer.weight.is_meta else layer.weight.device
        layer.register_parameter(name, nn.Parameter(value.to(device)))
    adapted = cast(Any, layer)
    adapted.lora_scale = config.scale
    # Another class, instead of a wrapper, keeps the names, and a copy of the layer computes with
    # the copy's weights.
    layer.__class__ = _adapted(type(layer))  # type: ignore[arg-type,assignment]


def adapted_layers(policy: nn.Module) -> dict[str, nn.Linear]:
    """Layers with an adapter, by name."""
    return {
        name: cast(nn.Linear, module)
        for name, module in policy.named_modules()
        if isinstance(module, _Adapted)
    }


@torch.no_grad()
def merge_adapters(weights: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Merge adapters into the weights of their layers: W + scale * B A, computed in float32.

    Args:
        weights: state dict, whole and float32; one without adapters is returned unchanged.
        scale: alpha / rank.

    Returns:
        A state dict with the keys of the network without adapters; tensors without an adapter are
        the given ones.
    """
    merged = {
        name: tensor for name, tensor in weights.items() if name.rpartition(".")[2] not in (A, B)
    }
    for name, a in weights.items():
        layer, _, kind = name.rpartition(".")
        if kind == A:
            key = f"{layer}.weight"
            merged[key] = torch.addmm(
                merged[key].float(), weights[f"{layer}.{B}"].float(), a.float(), alpha=scale
            )
    return merged
