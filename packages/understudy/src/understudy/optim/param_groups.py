"""Frozen parameters, groups of parameters, and weights of loss terms.

Patterns are written as in a shell (`vision.*`, `*.bias`), compared with the names of
`policy.named_parameters()`. A pattern that fits no parameter is an error.
"""

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from understudy_base import ConfigError

if TYPE_CHECKING:
    from understudy.config.train import OptimConfig

Value = TypeVar("Value")
NO_RENAMES: Mapping[str, str] = {}
ADAPTERS = ("lora_a", "lora_b")
"""Names of an adapter's parameters in its layer (`lora.py`)."""


def freeze(
    policy: nn.Module,
    config: "OptimConfig",
    parts: Mapping[str, str] = NO_RENAMES,
) -> None:
    """Freeze the parameters that `config.freeze` names, and with `config.train` all that it does
    not name, in place: before sharding and before the optimizer is made.

    Args:
        policy: the network, with its adapters.
        config: its patterns are checked, those of `lr_scale` and `weight_decay_of` too.
        parts: patterns of names -> parts of the policy; patterns may write PART.NAME.

    Raises:
        ConfigError: a pattern fits no parameter, or nothing is left to train.
    """
    names: list[str] = []
    for name, _ in policy.named_parameters():
        names += spellings(name, parts)
    for setting in ("freeze", "train", "lr_scale", "weight_decay_of"):
        check_patterns(f"optim.{setting}", getattr(config, setting), names)
    for name, parameter in policy.named_parameters():
        is_named = matches(config.freeze, spellings(name, parts))
        if is_named or is_left_out(name, config, parts):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in policy.parameters()):
        chosen = {"freeze": config.freeze, "train": config.train}
        settings = [f"optim.{name}: {', '.join(own)}" for name, own in chosen.items() if own]
        raise ConfigError(
            f"{'; '.join(settings)}: every parameter is frozen: nothing is left to train; name "
            "fewer in optim.freeze, or more in optim.train"
        )


def is_left_out(name: str, config: "OptimConfig", parts: Mapping[str, str] = NO_RENAMES) -> bool:
    """Return whether `config.train` names parameters, and not this one.

    An adapter is named where a pattern fits it or the weight of its layer.
    """
    names = spellings(name, parts)
    layer, _, kind = name.rpartition(".")
    if kind in ADAPTERS:
        names = [*names, *spellings(f"{layer}.weight", parts)]
    return bool(config.train) and not matches(config.train, names)


def parameter_groups(
    named: Iterable[tuple[str, nn.Parameter]],
    config: "OptimConfig",
    parts: Mapping[str, str] = NO_RENAMES,
) -> list[dict[str, Any]]:
    """Groups for a torch optimizer, in order of first appearance: one per weight decay and factor
    on the learning rate.

    With `weight_decay_on` "matrices" vectors (biases, gains) do not decay, unless a pattern names
    them.

    Args:
        named: names and parameters to train.
        config: the patterns.
        parts: see `freeze`.

    Returns:
        {"params": [(name, parameter), ...], "weight_decay": ..., "lr_scale": ...} each.
    """
    groups: dict[tuple[float, float], list[tuple[str, nn.Parameter]]] = {}
    least = 2 if config.weight_decay_on == "matrices" else 0
    for name, parameter in named:
        names = spellings(name, parts)
        usual_decay = config.weight_decay if parameter.ndim >= least else 0.0
        decay = _first(config.weight_decay_of, names, usual_decay)
        scale = _first(config.lr_scale, names, 1.0)
        groups.setdefault((decay, scale), []).append((name, parameter))
    return [
        {"params": members, "weight_decay": decay, "lr_scale": scale}
        for (decay, scale), members in groups.items()
    ]


def spellings(name: str, parts: Mapping[str, str]) -> list[str]:
    """Return the names that a pattern may fit: a parameter's own, and PART.NAME."""
    part = part_of(name, parts)
    return [name] if part == name.partition(".")[0] else [name, f"{part}.{name}"]


def part_of(name: str, parts: Mapping[str, str]) -> str:
    """Return the part of the policy that a parameter belongs to: of the first pattern that fits,
    else of its name.
    """
    return _first(parts, [name], name.partition(".")[0])


def matches(patterns: Iterable[str], names: Iterable[str]) -> bool:
    """Return whether a pattern fits one of `names`."""
    return any(fnmatchcase(name, pattern) for pattern, name in product(patterns, names))


def _first(patterns: Mapping[str, Value], names: list[str], default: Value) -> Value:
    """Value of the first pattern that fits one of `names`."""
    for pattern, value in patterns.items():
        if any(fnmatchcase(name, pattern) for name in names):
            return value
    return default


def check_patterns(
    setting: str, patterns: Iterable[str], names: list[str], kind: str = "parameter"
) -> None:
    """Raise ConfigError where a pattern of `setting` fits none of `names`; it has the most similar
    ones.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.0)
            raise ConfigError(
                f"{setting}: {pattern!r} fits no {kind}; there are {', '.join(near)}, …"
            )


def loss_weights(terms: Iterable[str], chosen: Mapping[str, float]) -> dict[str, float]:
    """Return the weight of each loss term to compute; terms without a setting weigh 1, terms that
    weigh 0 are left out.

    Args:
        terms: names of the policy's loss terms.
        chosen: loss term -> weight, from the settings.

    Raises:
        ConfigError: a weight for a term that the policy does not have, or no term with a weight.
    """
    terms = list(terms)
    if strangers := sorted(set(chosen) - set(terms)):
        raise ConfigError(
            f"optim.loss_weights: the policy has no term {strangers[0]!r}, it has "
            f"{', '.join(terms)}"
        )
    weights = {term: chosen.get(term, 1.0) for term in terms}
    if not any(weights.values()):
        raise ConfigError("optim.loss_weights: every term weighs 0: there is nothing to learn")
    return {term: weight for term, weight in weights.items() if weight}
