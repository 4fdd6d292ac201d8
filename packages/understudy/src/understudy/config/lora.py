"""Settings of low-rank adapters."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from understudy_kit import Interval, Scale


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (LoRA): train two small matrices per linear layer, and freeze the weights
    themselves.
    """

    rank: Annotated[int, Interval(ge=0, le=2**14)] = 0
    """Rank of the adapters. 0 trains the weights themselves; the other settings of this group then
    have no effect.
    """
    alpha: Scale | None = None
    """The adapters' product is scaled by alpha / rank; the default is the rank, so a scale of 1."""
    targets: tuple[str, ...] = ()
    """Patterns of module names whose linear layers get an adapter, `*.q_proj` for `pi05`; the
    default is the policy's choice. A layer whose weight `optim.freeze` or `lora.also_train` names
    gets none, nor one that `optim.train` leaves out.
    """
    base: Literal["stored", "float32", "bfloat16"] = "stored"
    """Dtype of the frozen matrices, in memory and in checkpoints. `stored`: bfloat16 if the weights
    file is, else float32. `bfloat16` halves the memory of `float32`, and rounds the matrices of a
    float32 file once. Adapters, biases and norms are float32.
    """
    also_train: tuple[str, ...] = ()
    """Patterns of parameter names that are trained in full next to the adapters (`action_*`). So
    are those that the file of the first weights lacks. All others are frozen.
    """

    @property
    def scale(self) -> float:
        """Factor of the adapters' product; 0 without adapters."""
        return (self.alpha or self.rank) / self.rank if self.rank else 0.0

    def resolved(self, targets: tuple[str, ...]) -> "LoraConfig":
        """Fill in the defaults: alpha, and the `targets` of the policy."""
        if not self.rank:
            return self
        return replace(self, alpha=self.alpha or float(self.rank), targets=self.targets or targets)
