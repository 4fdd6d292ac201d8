"""Settings of closed-loop evaluations: those of `understudy rollout`, and those during a training
run. No torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from understudy.config.gymnasium_options import GymnasiumOptions
from understudy.config.intervals import Period
from understudy_kit import Interval, Positional


@dataclass(frozen=True)
class Play:
    """Environment and episodes of a closed-loop evaluation."""

    env: str = "tabletop"
    """Environment: the embedded `tabletop`, the embedded `recall`, solvable only by a policy that
    sees past frames (`policy.history`), `metaworld` (extra `sim`), `libero_spatial`, `_object`,
    `_goal`, `_10` or `_90` (extra `libero`), `gymnasium:ID` (extra `gymnasium`), or that of another
    package.
    """
    gymnasium: GymnasiumOptions = field(default_factory=GymnasiumOptions)
    tasks: tuple[str, ...] = ()
    """Tasks, by short name or sentence; the default is all of the environment's. Episodes cycle
    through them.
    """
    episodes: Annotated[int, Interval(ge=1, le=1 << 24)] | None = None
    """Number of episodes; the default is the environment's usual one (30; `gymnasium:ID`: 50;
    LIBERO: 50 per task).
    """
    seed: Annotated[int, Interval(ge=0, lt=1 << 32)] = 0
    """Seed of layouts and noise. Whatever the seed, layouts differ from all recorded ones."""
    action_steps: Annotated[int, Interval(ge=1, le=2**16)] = 4
    """Actions executed of each predicted chunk before the next prediction."""
    sampling_steps: Annotated[int, Interval(ge=1, le=10**4)] = 10
    """Euler steps per prediction."""
    image_size: Annotated[int, Interval(ge=8, le=2**12)] | None = None
    """Height and width of the images; the default is that of the run's data, or else the
    environment's (64; LIBERO: 256; `gymnasium:ID`: its own).
    """
    num_envs: Annotated[int, Interval(ge=1, le=2**12)] = 15
    """Environments that run side by side."""
    contract: Literal["warn", "strict", "off"] = "warn"
    """Reaction to contradictions between the contracts of policy and environment: a warning, an
    error, or nothing.
    """
    device: str = "cpu"
    """Device of the policy."""
    source: str = ""
    """Source of the run's data with the robot of this environment: its mapping of the policy's
    standard keys and its norm head are used. The default is the mapping common to all sources.
    """
    state: str = ""
    """Key of the policy's state in the environment; the default is the key in `source`."""
    prompt_metadata: dict[str, bool | float | str] = field(default_factory=dict)
    """Metadata in the prompts of all episodes, for a policy trained with `data.prompt_metadata`, as
    in `quality 5 advantage_is_positive true`. The default is none of it.
    """


@dataclass(frozen=True)
class RolloutConfig(Play):
    """Evaluate a run's policy in closed loop: success per task in a simulated environment."""

    run: Positional[str] = ""
    """Run directory; its policy/ is evaluated."""
    swap_text: bool = False
    """Instruct the policy with another task than the scene was set up for, to measure whether it
    follows the text.
    """
    films: Annotated[int, Interval(ge=0, le=2**16)] = 6
    """Number of episodes of which a strip of images is saved."""

    def problems(self) -> list[str]:
        """Return broken rules between fields, one line each."""
        return [] if self.run else ["run: required, the directory of a run: understudy rollout RUN"]


@dataclass(frozen=True)
class RolloutEvery(Play):
    """Closed-loop evaluations during training; off unless `rollout.every` is set.

    They run in a process of lower priority and do not affect training.
    """

    every: Period = 0
    """Steps between rollouts; 0 disables them. The weights of that step are saved and evaluated one
    after the other; the run waits at its end for those that remain.
    """

    def problems(self, chunk_size: int) -> Iterator[str]:
        """Yield broken rules between fields, one line each, if rollouts are enabled."""
        if self.every and self.action_steps > chunk_size:
            yield (
                f"action_steps: {self.action_steps}: the policy predicts {chunk_size} actions "
                "(data.chunk_size)"
            )
