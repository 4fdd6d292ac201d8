"""Facts of a run that a policy is built from, beside its settings. No torch."""

from dataclasses import dataclass
from typing import Literal

from understudy_base import ACTION, STATE


@dataclass(frozen=True)
class PolicyConfig:
    """Facts of a run that every policy is built from; they follow from the data and from the run's
    settings.
    """

    action_dim: int
    """Width of an action; of several robots the widest."""
    state_dim: int = 0
    """Width of `observation.state`; 0: the policy has no state."""
    cameras: tuple[str, ...] = ()
    """Keys of the images, in the order of the network; empty: the policy has no images."""
    chunk: int = 8
    """Actions predicted at once (T)."""
    compute: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network's arithmetic; normalization and loss are always float32."""
    future: bool = False
    """Whether the run also trains on the states that follow each action of the chunk (task modes).
    """
    acts: bool = True
    """Whether the run trains mode `policy`, alone or next to others."""

    @property
    def widths(self) -> dict[str, int]:
        """Width of each vector that the policy normalizes, by key."""
        widths = {ACTION: self.action_dim}
        if self.state_dim:
            widths[STATE] = self.state_dim
        return widths

    def fact_problems(self) -> list[str]:
        """List the rules that these facts break, one line each."""
        problems = [
            f"{n}: {getattr(self, n)}: must be at least 1"
            for n in ("action_dim", "chunk")
            if getattr(self, n) < 1
        ]
        if self.state_dim < 0:
            problems.append(f"state_dim: {self.state_dim}: must be 0 (no state) or more")
        if self.future and not self.state_dim:
            problems.append("future: True: needs a state, and state_dim is 0")
        return problems
