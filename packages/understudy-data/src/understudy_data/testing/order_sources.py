"""Sources for tests of the order: lengths instead of recordings."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st


@dataclass(frozen=True)
class Source:
    """A source of an order (`understudy_data.order.Frames`)."""

    segments: np.ndarray
    name: str = "source"
    gop: int = 2
    reach: tuple[int, int] = (0, 0)
    frames: list[tuple[int, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows = np.asarray(self.segments).tolist() if len(self.segments) < 10_000 else []
        frames: list[tuple[int, int]] = []
        for episode, start, stop in rows:
            if stop - start < 1 << 20:
                frames += [(episode, frame) for frame in range(start, stop)]
        object.__setattr__(self, "frames", frames)


def episodes(
    *lengths: int, name: str = "source", gop: int = 2, reach: tuple[int, int] = (0, 0)
) -> Source:
    """Whole episodes 0, 1, 2, ... of these lengths."""
    rows = [[e, 0, length] for e, length in enumerate(lengths)]
    return Source(np.array(rows, np.int64).reshape(-1, 3), name, gop, reach)


@st.composite
def sources(draw: st.DrawFn, name: str = "source", most: int = 60) -> Source:
    """A source of a few short segments: some empty, some of the same episode, ids neither dense nor
    sorted.
    """
    rows = []
    used = {}
    for _ in range(draw(st.integers(1, 8))):
        episode = draw(st.integers(0, 9)) * 7
        start = used.get(episode, 0) + draw(st.integers(0, 5))
        stop = start + draw(st.integers(0, most))
        used[episode] = stop
        rows.append([episode, start, stop])
    if not any(stop > start for _, start, stop in rows):
        rows[-1][2] += 1
    return Source(
        np.array(rows, np.int64), name, draw(st.integers(1, 12)), (draw(st.integers(0, 8)), 0)
    )
