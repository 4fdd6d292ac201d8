"""Cost and mixing of an order, from its numbers alone: frames decoded for a sample, and correlation
of its batches.

Costs are relative to decoding in a row, with a key frame counted as `_KEY` other frames. For frames
at random places they give 2.0 times the cost with GOP 2, and 92 times with GOP 250. 1.8 to 2.3
times were measured for AV1 of 480 lines with GOP 2, and 92 for H.264 with GOP 250. The 0.2 ms in
Python of each start are not in these figures.
"""

import math
from collections.abc import Iterable
from functools import lru_cache

from understudy_data.order.design_effect import Correlation

BEARABLE = 1.25
"""Cost, relative to decoding in a row, that a default order does not exceed where any order is
within it.
"""
_NEAR = 1.05  # factor within which costs count as equal

_KEY = 6.0  # cost of a key frame, in other frames
_START = 0.5  # a decoder that starts over, in other frames
_PASSED = 0.7  # a frame on the way to another, which is not converted
_AHEAD = 4.0  # frames that a lane decodes ahead when it opens: half a run
# the most batches' cost of opening all lanes; of a large source
_OPENING = 32.0
_LARGE_OPENING = 1024.0
# frames of a large source; and the share of its epoch that the opening may cost
_LARGE = 100_000
_SHARE = 0.04
_MANY = 8  # lanes per sample up to which a large source may open slowly: more mix hardly better


def bearable(costs: Iterable[float]) -> float:
    """The cost that a choice from several orders may have: 1.25, or about the lowest where all are
    above it.
    """
    return max(BEARABLE, _NEAR * min(costs))


def start_cost(gop: int) -> float:
    """Frames decoded in vain before a start at a random place, with key frames `gop` frames
    apart.
    """
    before = ((gop - 1) * _KEY + _PASSED * (gop - 1) * (gop - 2) / 2) / gop
    return (before + _START) / _in_row(gop)


def uniform_cost(gop: int, halo: int) -> float:
    """Cost of a sample at a random place, whose windows extend `halo` frames."""
    cost_of_start = start_cost(gop) if gop > 1 else 0.0
    return 1.0 + halo + cost_of_start


@lru_cache(maxsize=1024)
def clips_cost(
    frames: int,
    gop: int,
    reach: tuple[int, int],
    *,
    clip: int,
    lanes: int,
    cut: str,
    is_permuted: bool = False,
    shared_by: float = 1.0,
) -> float:
    """Cost of a sample in clips, the mean over an epoch.

    A piece of a clip is decoded for each lane that holds a part of it. A piece starts at a key
    frame if its clip is cut there, the piece is its first, and no window extends back from it. A
    piece of a permuted clip has samples from all over the clip, and nearly all of the clip is
    decoded for it.

    Args:
        frames: of an epoch.
        gop: frames from key frame to key frame.
        reach: frames that windows extend back and ahead.
        clip: frames of a clip.
        lanes: number of lanes.
        cut: "plain" or "keyframe".
        is_permuted: whether the order inside a clip is random.
        shared_by: ranks that read a lane, each of which decodes all of it.
    """
    clips = -(-frames // clip)
    pieces = clips + lanes if lanes > 1 else clips
    if cut == "plain" or reach[0]:
        starts = pieces
    else:
        starts = 0 if is_permuted else pieces - clips
    again = (pieces - clips) * clip if is_permuted else 0
    halo = min(sum(reach), 8 * clip)
    return shared_by * (1.0 + (starts * start_cost(gop) + again + pieces * halo) / frames)


@lru_cache(maxsize=1024)
def lane_correlation(frames: int, clip: int, lanes: int, samples: float) -> float:
    """Sum of the correlations of a sample with the others of its clip, in a stretch of `samples`
    positions.

    The design effect of the stretch is about this more than that of independent clips. Lanes that
    hold parts of the same clip count as well.
    """
    model = Correlation()
    if clip <= 1:
        return 0.0
    visits = samples / lanes
    steps = max(1, math.ceil(visits))
    correlation = [
        model.episode + model.near * math.exp(-d / model.frames) for d in range(min(steps, clip))
    ]
    inside = sum(
        2 * max(0.0, 1 - d / visits) * (1 - d / clip) * correlation[d]
        for d in range(1, len(correlation))
    )
    length = frames / lanes
    across = 0.0
    # neighboring lanes in one clip
    for step in range(1, math.ceil(min(clip / length, lanes, samples, 64))):
        near = model.episode + model.near * math.exp(-step * length / model.frames)
        across += 2 * (1 - step * length / clip) * near * max(1.0, visits)
    return inside + across


def opens_quickly(frames: int, gop: int, lanes: int, batch_size: int) -> bool:
    """Whether lanes open without long waiting: those beyond three per sample cost no more than 32
    batches.

    All lanes begin inside a clip at the start of a run and after every resume, and half a run of
    frames is decoded ahead for each. In a large source up to eight lanes per sample may cost 4 % of
    an epoch, at most 1,024 batches.
    """
    most = _OPENING
    if frames > _LARGE and lanes <= _MANY * batch_size:
        most = max(most, min(_SHARE * frames / batch_size, _LARGE_OPENING))
    return (lanes - 3 * batch_size) * (start_cost(gop) + _AHEAD) <= most * batch_size


def _in_row(gop: int) -> float:
    """Mean cost of a frame in a row, in frames that are no key frames."""
    return (_KEY + gop - 1) / gop
