"""Settings and configs of the value function. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from understudy import EncoderSettings, Pi05PolicyConfig, Pi05Settings, PolicyConfig, PolicyType
from understudy_base import Record

SUCCESS = "success"
TIME = "time"
FINEST = 2.0**-16
"""Least width of a bin as a share of the largest return: 128 neighbours of float32."""


@dataclass(frozen=True, kw_only=True)
class ReturnSettings:
    """Settings of a policy that predicts the return of an observation, beside those of its
    encoder.
    """

    bins: int = 101
    """Bins of the return, evenly spaced from the lowest to the highest."""
    smoothing: float = 0.75
    """Deviation of the target's histogram, in widths of a bin."""
    returns: str = SUCCESS
    """Return of a frame. `success`: 1 at the end of a successful episode. `time`: minus the seconds
    to success, and minus `horizon` for a failure. Otherwise the key of a feature with a reward per
    frame, whose sum over the rest of the episode is the return. Episodes that were cut train
    nothing (docs/other_policies.md).
    """
    discount: float = 1.0
    """Factor per frame on later rewards. With 0 the return is the feature's value itself."""
    horizon: float = 0.0
    """Longest time to success in seconds, with `returns` `time`; required there."""
    value_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest return, with the key of a feature in `returns`."""
    success: str = "success"
    """Metadata of episodes that is true for successes, or a feature of which the last frame's value
    counts.
    """
    truncated: str = "truncated"
    """As `success`: true where an episode was cut before its end, by a time limit for example."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest return."""
        return {SUCCESS: (0.0, 1.0), TIME: (-self.horizon, 0.0)}.get(self.returns, self.value_range)

    def return_target(self) -> Record:
        """Return the fields of `ReturnTarget`."""
        low, high = self.bounds
        marks = {"success": self.success, "truncated": self.truncated}
        return {
            "returns": self.returns,
            "discount": self.discount,
            "low": low,
            "high": high,
            **marks,
        }

    def return_problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        problems = list[str]()
        with_outcome = self.returns in (SUCCESS, TIME)
        if not 2 <= self.bins <= 2**16:
            problems.append(f"bins: {self.bins}: must be from 2 to {2**16}")
        if not 0.1 <= self.smoothing <= 100:
            problems.append(f"smoothing: {self.smoothing}: must be from 0.1 to 100")
        if not 0 <= self.discount <= 1 or (with_outcome and not self.discount):
            rule = "above 0, and at most 1" if with_outcome else "from 0 to 1"
            problems.append(f"discount: {self.discount}: must be {rule}")
        if self.returns == TIME and not 0 < self.horizon < 1e9:
            problems.append(
                f"horizon: {self.horizon}: must be the longest time to success in seconds"
            )
        if not -1e9 < self.value_range[0] < self.value_range[1] < 1e9:
            problems.append(
                f"value_range: {self.value_range}: must be two finite numbers, the lower one first"
            )
        low, high = self.bounds
        finest = max(FINEST * max(abs(low), abs(high)), FINEST**6)
        if not problems and (high - low) / (self.bins - 1) < finest:
            rule = f"float32 resolves {finest:.3g} there; give fewer bins, or a wider value_range"
            problems.append(
                f"bins: {self.bins}: bins of {(high - low) / (self.bins - 1):.3g} at {high:g}: "
                f"{rule}"
            )
        return problems


@dataclass(frozen=True, kw_only=True)
class ValueSettings(ReturnSettings, EncoderSettings):
    """The value function: it predicts the return of an observation, and no actions.

    `understudy score` writes its values and advantages into a dataset.
    """

    LIMITS: ClassVar[Mapping[str, int]] = {**EncoderSettings.LIMITS, "width": 2**20}
    TORCH_ATTENTION: ClassVar[bool] = False

    type: Literal["value"] = "value"
    """Type of the policy."""
    width: int = 192
    """Width of the network (a multiple of 8)."""

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        odd = [f"width: {self.width}: must be a multiple of 8"] if self.width % 8 else []
        return [*super().problems(), *odd, *self.return_problems()]


@dataclass(frozen=True)
class ValueConfig(ValueSettings, PolicyConfig):
    """Config of a `ValuePolicy`: the run's settings and the facts of its data."""

    def __post_init__(self) -> None:
        if problems := [*self.fact_problems(), *self.problems(), *future_problems(self)]:
            raise ValueError("; ".join(problems))


def future_problems(config: PolicyConfig) -> list[str]:
    """List the line about a future, where a run has one."""
    return ["future: True: a value function predicts no states; set mode to policy"] * config.future


EXPERT_SETTINGS = (
    "response_tokens",
    "fast",
    "action_tokens",
    "noise_samples",
    "flow_time",
    "max_delay",
    "insulation",
)
"""Settings of pi0.5 that a value function has at their defaults alone."""


@dataclass(frozen=True, kw_only=True)
class Pi05ValueSettings(ReturnSettings, Pi05Settings):
    """The value function on the vision encoder and the language tower of pi0.5, without its action
    expert.
    """

    PARTS: ClassVar[Mapping[str, str]] = {"value_head.*": "value_head", **Pi05Settings.PARTS}
    LORA_TARGETS: ClassVar[tuple[str, ...]] = ("layers.*_proj", "value_head.*")

    type: Literal["value_pi05"] = "value_pi05"  # type: ignore[assignment]  # another constant
    """Type of the policy."""

    def lora_targets(self) -> tuple[str, ...]:
        """Return all of `LORA_TARGETS`: the head reads every layer of the language tower."""
        return self.LORA_TARGETS

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        unused = [
            f"{name}: {getattr(self, name)}: a value function predicts no actions and no texts; "
            "leave it out"
            for name in EXPERT_SETTINGS
            if getattr(self, name) != getattr(Pi05Settings, name)
        ]
        return [*super().problems(), *unused, *self.return_problems()]


@dataclass(frozen=True)
class Pi05ValueConfig(Pi05ValueSettings, Pi05PolicyConfig):
    """Config of a `Pi05ValuePolicy`: the run's settings and the facts of its data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if problems := future_problems(self):
            raise ValueError(problems[0])


VALUE = PolicyType(ValueSettings, "understudy_zoo.value.model:ValuePolicy", config=ValueConfig)
VALUE_PI05 = PolicyType(
    Pi05ValueSettings, "understudy_zoo.value.model:Pi05ValuePolicy", config=Pi05ValueConfig
)
