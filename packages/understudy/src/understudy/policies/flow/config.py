"""Settings and config of the flow-matching policy. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from understudy.policies.common.facts import PolicyConfig
from understudy.policies.common.settings import EncoderSettings
from understudy.policies.registry import PolicyType


@dataclass(frozen=True, kw_only=True)
class FlowSettings(EncoderSettings):
    """The flow-matching policy: a small network of about a million parameters."""

    LIMITS: ClassVar[Mapping[str, int]] = {
        **EncoderSettings.LIMITS,
        "width": 2**20,
        "layers": 10**4,
        "noise_samples": 2**12,
    }
    TORCH_ATTENTION: ClassVar[bool] = False

    type: Literal["flow"] = "flow"
    """Type of the policy."""
    width: int = 192
    """Width of the condition and of the action network (a multiple of 8)."""
    layers: int = 3
    """Residual layers of the action network."""
    noise_samples: int = 4
    """Noises and flow times per sample and step; they share one pass over the images, which is most
    of the cost.
    """
    max_delay: int = 0
    """Largest number of leading actions that a training sample is given. Half of the samples get
    none, the others 1 to this number. The policy learns to continue a chunk that is still being
    executed (training-time real-time chunking). 0: none.
    """

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        problems = super().problems()
        if self.width % 8:
            problems.append(f"width: {self.width}: must be a multiple of 8")
        if self.max_delay < 0:
            problems.append(f"max_delay: {self.max_delay}: must be 0 or more")
        return problems


@dataclass(frozen=True)
class FlowPolicyConfig(FlowSettings, PolicyConfig):
    """Config of a `FlowPolicy`: the run's settings and the facts of its data."""

    @property
    def noise_dim(self) -> int:
        """Width of the noise of one slot: of the action, and with a future of the state behind
        it.
        """
        if not self.future:
            return self.action_dim
        return self.action_dim + self.state_dim

    def __post_init__(self) -> None:
        problems = [*self.fact_problems(), *self.problems()]
        if self.max_delay >= self.chunk:
            problems.append(
                f"max_delay: {self.max_delay}: must be below the chunk of {self.chunk} actions"
            )
        if self.max_delay and self.future:
            problems.append(f"max_delay: {self.max_delay}: must be 0 in modes that predict states")
        if problems:
            raise ValueError("; ".join(problems))


FLOW = PolicyType(
    FlowSettings, "understudy.policies.flow.model:FlowPolicy", config=FlowPolicyConfig
)
