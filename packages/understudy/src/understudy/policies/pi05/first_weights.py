"""First weights of a pi0.5 or pi0 network: of a released file, and fresh ones where the settings
ask for them.

Both come row by row (`ReadRows`), by the network's own names, so a network on the meta device is
filled without a second copy of the weights, and each rank of a sharded one reads only its rows.

A fresh weight is a function of seed, name and shape: normal with the deviation 1 / sqrt(inputs)
(LeCun et al. 1998), which keeps the size of activations; biases, gains stored minus 1 and the
projections of adaptive norms start at 0. So a fresh expert is the identity in each of its
residuals, as in openpi's JAX code.
"""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from understudy.policies.pi05.released_keys import NEW, Match, Shapes, match
from understudy.policies.weight_files import open_weights, stored_dtypes, stored_shapes
from understudy_data import KeyedDraws

logger = logging.getLogger(__name__)

ZEROS = (
    ".bias",
    ".dense.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "vlm_norm.weight",
    "expert_norm.weight",
    "out_proj.dynamics.weight",
    "out_proj.images.weight",
    "value_head.out.weight",
)
"""Last parts of the names of parameters that start at 0."""
ONES = ("layer_norm1.weight", "layer_norm2.weight", "vision.norm.weight")
"""Last parts of the names of parameters that start at 1."""


class FirstWeights:
    """Rows of the first weights of a network; `FirstWeights(...)(name, start, stop)`.

    Attributes:
        match: which tensor of the file serves which parameter; None without a file.
        files: the tensors of the file; None without a file.
        dtypes: by parameter, those of the file.
    """

    def __init__(
        self,
        needed: Shapes,
        path: str | Path = "",
        seed: int = 0,
        unread: Collection[str] = (),
    ) -> None:
        """Match the parameters of a network with a file.

        Args:
            needed: shape of each parameter by name.
            path: released weights, safetensors or a JAX tree (`open_weights`); "": all weights are
                fresh.
            seed: seed of the fresh weights.
            unread: see `match`; a line of the log has the numbers of these tensors.

        Raises:
            WeightsError: the file is not one of this network; names each missing, unexpected and
                misshapen tensor.
            FileNotFoundError: there is no such file. ValueError: it is damaged.
        """
        self._shapes = {name: tuple(shape) for name, shape in needed.items()}
        self._seed = seed
        self._drawn: tuple[str, Tensor] | None = None
        self.files = open_weights(path) if path else None
        self.match: Match | None = None
        self.dtypes: dict[str, torch.dtype] = {}
        if self.files is not None:
            self.match = match(self.files.shapes, needed, path, NEW, unread)
            if unread:
                counts = Counter(
                    pattern for pattern in self.match.ignored.values() if pattern in unread
                )
                names = ", ".join(f"{pattern} ({count})" for pattern, count in counts.items())
                logger.info(
                    "%s: tensors of the action expert are not read: %s",
                    path,
                    names or "there are none",
                )
            self.dtypes = {name: self.files.dtypes[key] for name, key in self.match.keys.items()}

    def __call__(self, name: str, start: int, stop: int) -> Tensor:
        """Return the rows [start, stop) of a parameter: float32 if fresh, else in the dtype of the
        file.
        """
        if self.files is not None and self.match is not None and name in self.match.keys:
            return self.files.read(self.match.keys[name], start, stop)
        if self._drawn is None or self._drawn[0] != name:
            self._drawn = (name, fresh_weight(name, self._shapes[name], self._seed))
        return self._drawn[1][start:stop]


def stored_keys(network: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the name in `weights` of each parameter, under own names or those of a released file.

    Raises:
        ValueError: a tensor is missing, unexpected, of another shape or of integers; names each.
    """
    if whole := [
        key for key, dtype in stored_dtypes(weights).items() if not dtype.is_floating_point
    ]:
        raise ValueError(f"{', '.join(whole)}: holds integers, weights are floating-point")
    needed = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    return dict(match(stored_shapes(weights), needed).keys)


def fresh_weight(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """Draw the fresh value of a parameter, float32 [shape]; torch's global generator does not
    change.
    """
    if name.endswith(ZEROS):
        return torch.zeros(*shape)
    if name.endswith(ONES):
        return torch.ones(*shape)
    generator = torch.Generator().manual_seed(KeyedDraws(seed).key(f"weights {name}"))
    return torch.randn(*shape, generator=generator) * prod(shape[1:]) ** -0.5
