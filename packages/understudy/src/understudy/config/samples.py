"""Parts of a run's settings that decide its samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from understudy.config.data import DataConfig
from understudy.config.intervals import Share
from understudy.policies.settings import PolicySettings
from understudy_kit import Interval

Mode = Literal["policy", "forward_dynamics", "inverse_dynamics"]


@dataclass(frozen=True)
class AugmentConfig:
    """Augmentation of training samples. It depends only on the seed and the sample's position in
    the order.
    """

    shift: Annotated[int, Interval(ge=0, le=2**13)] = 4
    """Largest random shift of images in pixels, in each direction, with repeated edges; 0 disables
    it.
    """
    text_dropout: Share = 0.0
    """Share of samples whose instruction is replaced by the empty text."""
    task_separator: str = ""
    """Text between several instructions of an episode, such as DROID's ` | `: each sample gets one
    of them, drawn for its position, and each validation frame one drawn for the frame. Empty: the
    task text as it is.
    """


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
    augment: AugmentConfig
    modes: TaskModes
    policy: PolicySettings
