"""Settings of Gymnasium environments. Imports no simulator."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class GymnasiumOptions:
    """Settings of an environment `gymnasium:ID`; the defaults suit gym-pusht and gym-aloha."""

    args: dict[str, int | float | bool | str] = field(default_factory=dict)
    """Arguments of `gymnasium.make`; a text that is JSON counts as its value. By default
    `render_mode` is `rgb_array` where the environment has it, and `obs_type` is `pixels_agent_pos`
    where it is an argument.
    """
    keys: dict[str, str] = field(default_factory=dict)
    """Observation -> key of the dataset; nested observations have dots (`pixels.top`), an empty key
    leaves one out. Vectors with one key are joined. `render` is the image of `render()`. They
    replace defaults: see docs/robots.md.
    """
    success: Literal["any", "end"] = "any"
    """Whether a success at any step ends the episode and counts, or that of the last step alone."""
    success_key: str = ""
    """Entry of `info` that is the success; the default is `is_success` or `success`."""
    success_reward: float | None = None
    """Least reward of a step that is a success, in place of `info`."""
    max_steps: int | None = None
    """Steps after which an episode is truncated; the default is that of the registered environment.
    """
    fps: int | None = None
    """Steps per second; the default is the environment's `render_fps`."""
    action_bounds: Literal["off", "clamp", "error"] = "off"
    """Actions outside the action space: executed as they are, moved to the bound, or the episode
    fails.
    """
