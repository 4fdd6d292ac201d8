"""Value functions: images, state and text in, the distribution of the return out.

The return is a histogram over bins, trained by cross-entropy (Bellemare et al. 2017, "A
Distributional Perspective on Reinforcement Learning"). Its target is a Gaussian around the return:
HL-Gauss of Farebrother et al. 2024, "Stop Regressing: Training Value Functions via Classification
for Scalable Deep RL", equations 3.2 and 3.3.
"""

from collections.abc import Collection
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy import Draws, Linear, Loss, ObservingPolicy, Pi05Policy, Policy, RandomSpec, Use
from understudy_base import RETURN, RETURN_IS_PAD, Batch, Record
from understudy_zoo.value.config import SUCCESS, TIME, Pi05ValueConfig, ValueConfig

VALUE = "value"
ERROR = "l1"
ACCURACY = "accuracy"


def bin_centers(config: ValueConfig) -> Tensor:
    """Return the center of each bin, float32 [bins]: the first one is the lowest return, the last
    one the highest.
    """
    return torch.linspace(*config.bounds, config.bins)


def histogram(returns: Tensor, centers: Tensor, smoothing: float) -> Tensor:
    """Return the Gaussian around each return as shares of the bins, float32 [B, bins].

    With the edges e of the bins, p_i = (Phi((e_i+1 - y) / s) - Phi((e_i - y) / s)) / the sum of
    all.

    Args:
        returns: float32 [B], within the centers.
        centers: float32 [bins], evenly spaced.
        smoothing: s in widths of a bin.
    """
    width = (centers[-1] - centers[0]) / (len(centers) - 1)
    edges = torch.cat([centers - width / 2, centers[-1:] + width / 2])
    below = torch.special.ndtr((edges - returns[:, None]) / (smoothing * width))
    return below.diff(dim=1) / (below[:, -1:] - below[:, :1])


class ReturnHead(nn.Module):
    """Map a vector of an observation to the logits of the bins; fresh ones are 0."""

    def __init__(self, width: int, bins: int) -> None:
        """Build the layers."""
        super().__init__()
        self.hidden = Linear(width, width)
        self.out = Linear(width, bins).zeroed()

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, width] to float32 [B, bins]."""
        hidden = F.gelu(self.hidden(x))
        normal = F.layer_norm(hidden.float(), hidden.shape[-1:])  # without learned scale
        logits: Tensor = self.out(normal.to(hidden.dtype))
        return logits.float()


class ReturnPolicy(Policy):
    """Base class of value functions. For training, a batch has `return` float32 [B] and
    `return_is_pad` bool [B].
    """

    forward_methods: ClassVar[tuple[str, ...]] = ("losses", "values")
    validation_draws = 1

    def logits(self, batch: Batch) -> Tensor:
        """Predict the distribution of the return, float32 [B, bins]."""
        raise NotImplementedError

    def random_spec(self, use: Use) -> dict[str, RandomSpec]:
        """No random numbers."""
        return {}

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """Name of the loss term: the cross-entropy, in nats."""
        return (VALUE,)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Figures of a validation.

        `l1` is the distance of the mean from the return, in its units. `accuracy` is the share of
        frames whose most likely bin is the lowest one, that of failures, where the return's is, and
        another one elsewhere.
        """
        return (ERROR, ACCURACY) if self.config.returns in (SUCCESS, TIME) else (ERROR,)

    def counts(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """1 for each sample with a known return, int64 [B]."""
        counts = (~self.value_of(batch, RETURN_IS_PAD)).long()
        return dict.fromkeys((*self.loss_terms, *self.metrics), counts)

    def losses(
        self, batch: Batch, draws: Draws, terms: Collection[str] | None = None, detail: bool = False
    ) -> dict[str, Loss]:
        """Cross-entropy per sample, and the `metrics` that `terms` names; 0 where the return is not
        known.
        """
        returns = self.value_of(batch, RETURN)
        counts = self.counts(batch, draws)
        logits = self.logits(batch)
        self.check_shape(RETURN, returns, (len(logits),))
        centers = bin_centers(self.config).to(logits.device)
        # before any arithmetic: 0 * NaN is NaN
        returns = torch.where(counts[VALUE] > 0, returns, centers[0])
        target = histogram(returns, centers, self.config.smoothing)
        in_lowest = target.argmax(dim=1) == 0
        figures = {
            VALUE: -(target * F.log_softmax(logits, dim=1)).sum(dim=1),
            ERROR: (logits.softmax(dim=1) @ centers - returns).abs(),
            ACCURACY: ((logits.argmax(dim=1) == 0) == in_lowest).float(),
        }
        wanted = self.loss_terms if terms is None else terms
        chosen = [term for term in figures if term in wanted]
        return {
            term: Loss(torch.where(counts[term] > 0, figures[term], 0.0), counts[term])
            for term in chosen
        }

    def values(self, batch: Batch) -> Tensor:
        """Return the mean of the predicted distribution, float32 [B], in units of the return."""
        logits = self.logits(batch)
        return logits.softmax(dim=1) @ bin_centers(self.config).to(logits.device)

    def act(self, batch: Batch, draws: Draws, steps: int = 10, mode: str = "policy") -> Tensor:
        """Refuse: raises ValueError, as the policy predicts no actions."""
        raise ValueError(
            f"a policy of type {self.config.type} predicts returns, not actions; see `understudy "
            "score`"
        )


class ValuePolicy(ReturnPolicy, ObservingPolicy):
    """Value function on the encoders of the flow policy."""

    config: ValueConfig

    def __init__(self, config: ValueConfig, normalization: Record) -> None:
        """Build the network; for the arguments and errors see `FlowPolicy`."""
        super().__init__(config, normalization)
        self.value_head = ReturnHead(config.width, config.bins)

    def blocks(self) -> list[nn.Module]:
        """Modules to recompute, compile and shard one by one."""
        return [*self.vision.blocks] if self.vision is not None else []

    def logits(self, batch: Batch) -> Tensor:
        """Predict the distribution of the return, float32 [B, bins]."""
        logits: Tensor = self.value_head(self.observe(batch))
        return logits


class Pi05ValuePolicy(ReturnPolicy, Pi05Policy):
    """Value function on the vision encoder and the language tower of pi0.5: it reads the mean of
    the last tokens.
    """

    has_expert = False
    config: Pi05ValueConfig

    @staticmethod
    def read_folder(*_: Any) -> None:
        """Return None: no other tool writes such folders."""

    def __init__(self, config: Pi05ValueConfig, normalization: Record) -> None:
        """Build the network; see `Pi05Policy`."""
        super().__init__(config, normalization)
        self.value_head = ReturnHead(self.sizes.vlm.width, config.bins)

    @property
    def suffix_tokens(self) -> int:
        """No tokens: there is no expert."""
        return 0

    def float32_modules(self) -> list[nn.Module]:
        """Those of pi0.5, and the head."""
        return [*super().float32_modules(), self.value_head]

    def describe_losses(self, terms: Collection[str]) -> list[str]:
        """Describe the history; the loss reaches every part."""
        return self.config.describe_history()

    def logits(self, batch: Batch) -> Tensor:
        """Predict the distribution of the return, float32 [B, bins]."""
        observed, sizes = self._observed(batch)
        packing = self.packing(sizes, False)
        _, tokens = self.run(observed, None, hidden=True, packing=packing)
        assert tokens is not None
        counted = observed.valid[..., None]
        mean = torch.where(counted, tokens.float(), 0.0).sum(dim=1) / counted.sum(dim=1)
        logits: Tensor = self.value_head(mean)
        return logits
