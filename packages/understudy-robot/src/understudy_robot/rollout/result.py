"""Results of rollouts: episodes, success per task with its interval, as JSON or as a table."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from understudy_kit import wilson_interval

if TYPE_CHECKING:
    import numpy as np

PROMPT = "prompt metadata"
"""Name of the metadata in the prompts, in `RolloutResult.protocol`; left out where there is none.
"""


@dataclass(frozen=True)
class Episode:
    """One rollout."""

    episode: int
    seed: int
    """Layout seed of the scene."""
    scene: str
    """Task of the scene."""
    told: str
    """Instruction of the policy: `scene`, unless the text was swapped."""
    taken: str | None
    """Task that was completed first; None when the steps ran out."""
    steps: int
    error: str = ""
    """Reason of a failure that is not an action of the policy: a chunk that no robot can execute.
    """

    @property
    def success(self) -> bool:
        """Whether the instruction was completed."""
        return self.taken == self.told


@dataclass(frozen=True)
class RolloutResult:
    """All episodes of an evaluation, and its settings."""

    world: str
    seed: int
    protocol: "Mapping[str, str]"
    """Conditions that success depends on, of policy and environment (`evaluation_protocol`)."""
    swap_text: bool
    episodes: tuple[Episode, ...]
    films: "Mapping[int, np.ndarray]" = field(default_factory=dict, repr=False)
    """Frames of some episodes: episode -> uint8 (steps + 1, H, W, 3), the first camera. Not in the
    JSON.
    """
    fps: float = 10
    """Frames per second of the environment."""

    @property
    def successes(self) -> int:
        """Number of successful episodes."""
        return sum(episode.success for episode in self.episodes)

    @property
    def took_scene(self) -> int:
        """Number of episodes that completed the scene's own task; with swapped text they ignored
        the instruction.
        """
        return sum(episode.taken == episode.scene for episode in self.episodes)

    def per_task(self) -> dict[str, tuple[int, int]]:
        """Return instruction -> (successes, episodes), in order of first appearance."""
        table: dict[str, tuple[int, int]] = {}
        for episode in self.episodes:
            successes, count = table.get(episode.told, (0, 0))
            table[episode.told] = successes + episode.success, count + 1
        return table

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable dict: settings, `success`, `tasks` and `episodes`, with Wilson
        intervals.
        """

        def rate(successes: int, count: int) -> dict[str, Any]:
            low, high = wilson_interval(successes, count)
            return {"successes": successes, "episodes": count, "low": low, "high": high}

        return {
            "world": self.world,
            "seed": self.seed,
            "protocol": dict(self.protocol),
            "swap_text": self.swap_text,
            "fps": self.fps,
            "success": rate(self.successes, len(self.episodes)),
            "took_scene": rate(self.took_scene, len(self.episodes)),
            "tasks": {task: rate(*counts) for task, counts in self.per_task().items()},
            "episodes": [
                asdict(episode) | {"success": episode.success} for episode in self.episodes
            ],
        }

    def headline(self) -> str:
        """Format the line for machines: `success 27/30`, or `swapped-text success 26/30`."""
        name = "swapped-text success" if self.swap_text else "success"
        return f"{name} {self.successes}/{len(self.episodes)}"

    def table(self) -> str:
        """Format success per task with its 95 % interval; the headline is the last line."""
        rows = [("task", "success", "", "95 % interval")]
        total = (self.successes, len(self.episodes))
        for task, (successes, count) in [*self.per_task().items(), ("all", total)]:
            low, high = wilson_interval(successes, count)
            rate = f"{successes / count:.0%}" if count else "-"
            rows.append((task, f"{successes}/{count}", rate, f"{low:.0%} to {high:.0%}"))
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = [
            f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}"
            for a, b, c, d in rows
        ]
        if self.swap_text:
            lines.append(
                f"did the scene's own task instead: {self.took_scene}/{len(self.episodes)}"
            )
        if refused := [episode for episode in self.episodes if episode.error]:
            first = refused[0]
            place = f"episode {first.episode}, step {first.steps}"
            lines.append(f"failed by an error: {len(refused)}; {place}: {first.error}")
        return "\n".join([*lines, self.headline()])
