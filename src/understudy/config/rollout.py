"""What a closed-loop evaluation can be told: by `understudy rollout`, and in a run's settings for rollouts on the way.

No torch here, as in `train.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from understudy.config.declare import Interval, Positional


@dataclass(frozen=True)
class Play:
    """What is played, and how."""

    world: Literal["tabletop", "metaworld"] = "tabletop"
    """Where: the embedded tabletop, or Meta-World (needs the extra `sim`)."""
    tasks: tuple[str, ...] = ()
    """Tasks, by short name or sentence; none is all of the world's. Episodes go through them in turn."""
    episodes: Annotated[int, Interval(ge=1, le=1 << 24)] = 30
    seed: Annotated[int, Interval(ge=0, lt=1 << 32)] = 0
    """Decides layouts and noise. No seed ever gives a layout that a recording has."""
    execute: Annotated[int, Interval(ge=1, le=2**16)] = 4
    """Actions executed of each predicted chunk before looking again."""
    steps: Annotated[int, Interval(ge=1, le=10**4)] = 10
    """Euler steps per prediction."""
    size: Annotated[int, Interval(ge=8, le=2**12)] = 64
    """Height and width of the pictures, as recorded."""
    parallel: Annotated[int, Interval(ge=1, le=2**12)] = 15
    """Worlds played side by side."""
    device: str = "cpu"
    """Where the policy computes."""
    source: str = ""
    """The source of the run's data whose robot this world has: it says what the policy's standard keys are called here,
    and which norm head acts. None named: what all sources have in common."""
    state: str = ""
    """The world's key of what the policy gets as its state; none: what `source` calls it."""


@dataclass(frozen=True)
class RolloutConfig(Play):
    """A closed-loop evaluation of a run's policy."""

    run: Positional[str] = ""
    """Run directory; its policy/ is played."""
    swap_text: bool = False
    """Name another task than the one the scene was set up with: does the policy listen?"""
    films: Annotated[int, Interval(ge=0, le=2**16)] = 6
    """Episodes of which a strip of pictures is kept."""

    def problems(self) -> list[str]:
        return [] if self.run else ["run: required, the directory of a run"]


@dataclass(frozen=True)
class RolloutEvery(Play):
    """Closed-loop evaluations on the way, played beside the training by a process of lower priority."""

    every: Annotated[int, Interval(ge=0, le=10**12)] = 0
    """Steps between them; 0: none. The weights of that step are set aside and played one after the other; at the end
    the run waits for those that are left. Training does not notice."""

    def problems(self, chunk: int) -> Iterator[str]:
        """What is wrong between fields, one line each, where anything is to be played."""
        if self.every and self.execute > chunk:
            yield f"execute: {self.execute}: the policy predicts {chunk} actions at once (data.chunk)"
