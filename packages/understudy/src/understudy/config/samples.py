"""Parts of a run's settings that decide its samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from understudy.config.data import DataConfig
from understudy.policies.registry import PolicySettings

if TYPE_CHECKING:
    from understudy.config.train import AugmentConfig

Mode = Literal["policy", "forward_dynamics", "inverse_dynamics"]


@dataclass(frozen=True)
class TaskModes:
    """Task modes of a run."""

    mode: str | Mapping[Mode, float]
    """The setting `mode`."""

    def weights(self) -> dict[str, float]:
        """Return the weight of each mode, in the sequence of `TaskMode.ALL`; they sum to 1."""
        if isinstance(self.mode, Mapping):
            named = {str(mode): weight for mode, weight in self.mode.items()}
        elif self.mode == "joint":
            named = dict.fromkeys(get_args(Mode), 1.0)
        else:
            named = {self.mode: 1.0}
        total = sum(named.values())
        if not total:
            return dict.fromkeys(get_args(Mode), 0.0)
        return {mode: named.get(mode, 0.0) / total for mode in get_args(Mode)}

    def learn_dynamics(self) -> bool:
        """Return whether any sample is trained in another mode than `policy`, so that the policy
        gets future states.
        """
        return any(weight for mode, weight in self.weights().items() if mode != "policy")

    def val_mode(self) -> str:
        """Return the mode of validations: `policy` if it is trained, else the mode with the largest
        weight.
        """
        weights = self.weights()
        return "policy" if weights["policy"] else max(weights, key=lambda mode: weights[mode])

    def val_modes(self) -> tuple[str, ...]:
        """Return the modes that validations evaluate: `val_mode`, then the others that are
        trained.
        """
        others = (
            mode for mode, weight in self.weights().items() if weight and mode != self.val_mode()
        )
        return (self.val_mode(), *others)


@dataclass(frozen=True)
class SampleSettings:
    """Settings that decide the samples of a run and their windows."""

    data: DataConfig
    augment: "AugmentConfig"
    modes: TaskModes
    policy: PolicySettings
