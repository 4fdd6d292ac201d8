"""Observations before the present: the capability `SeesPast`."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Past:
    """What a policy sees, or trains on, from before the present."""

    images: tuple[float, ...] = ()
    """Times of the frames of each camera, in seconds from the present, ascending, 0 last.

    Empty: the present alone, and images have no dimension of time.
    """
    states: tuple[float, ...] = ()
    """Times of the states, as `images`."""
    steps: int = 0
    """Control steps before the present that are seen, in place of `images` and `states`."""
    actions: int = 0
    """Actions before the present that training reads: `action` of a batch is [B, actions + T,
    A].
    """

    @classmethod
    def of(cls, settings: object) -> "Past":
        """Return the past of a policy's settings; an empty one without the capability."""
        return settings.past() if isinstance(settings, SeesPast) else cls()

    def times(self, fps: float | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the times of the images and of the states; () where the present alone is seen.

        Args:
            fps: control steps per second; None: unknown. Times of `steps` are then in steps.
        """
        if not self.steps:
            return self.images, self.states
        times = (*(-step / (fps or 1) for step in range(self.steps, 0, -1)), 0.0)
        return times, times

    def step_rate(self, fps: float | None, time: float | None = None) -> float | None:
        """Return the `fps` of the policy's `ObservationHistory`: 1 for times in steps (`times`).

        Args:
            fps: control steps per second; None: unknown.
            time: time of an observation in seconds; None: it has none.

        Raises:
            ValueError: the observation has a `time`, and the times are in steps.
        """
        if fps is not None or not self.steps:
            return fps
        if time is not None:
            raise ValueError(
                f"time is {time}, and the policy names no frame rate; leave it out, and observe "
                "each step"
            )
        return 1.0


@runtime_checkable
class SeesPast(Protocol):
    """Settings of a policy that sees past images or states, or trains on past actions."""

    def past(self) -> Past:
        """Return the past that the policy sees."""
