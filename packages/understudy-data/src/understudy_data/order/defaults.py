"""Defaults: clip length S, lanes V and cut of each source, chosen from its figures and explained in
words.

The rules, in this order:

1. A source of few frames that are cheap to reach: the uniform shuffle, everything resident.
2. A clip costs the frames that its windows extend beyond it, and the decoding from the last key
   frame to its start. So S is at least 64 and 8 times the window's extent. Where the GOP is not
   small against S, clips are cut at key frames and S is a multiple of the GOP, of 4 of them at
   least where windows extend back. Clips are not longer than a lane.
3. V is a multiple of the batch size B: a batch then has B different clips, and a lane one rank. As
   many lanes are taken as cost at most 1.25 times decoding in a row (`cost.py`), open quickly, and
   have at most `frames_in_flight` in their clips. Where B lanes cost more than that, V is a half, a
   quarter or an eighth of B. Frames in flight are those of all ranks together. The default grows
   with the batch, and so does the number of ranks, so each rank's part stays the same. It does not
   depend on the number of ranks itself, and neither does the order of a new run.
4. Lanes must not all begin a new clip at the same step: S and the lane length should share no
  factor.

A loader, which knows its memory and the images, makes more of it: `load/choose_order.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from understudy_data.order.cost import (
    bearable,
    clips_cost,
    lane_correlation,
    opens_quickly,
    uniform_cost,
)
from understudy_data.order.shares import share_slots

_IN_FLIGHT = 100_000
# per sample of the batch: three clips; more than the above for batches of over 520
_IN_FLIGHT_EACH = 192
_CLIP = 64
_SHORTEST = 16
# cost of a random sample, relative to one in a row, that a source of few frames may have
_CHEAP = 4.0
_MOST_SLOTS = 1 << 20
# of lanes; more than 64 mix no 64 batches better
_BATCHES = (64, 48, 32, 24, 16, 12, 8, 7, 6, 5, 4, 3, 2, 1)


@dataclass(frozen=True)
class ClipChoice:
    """S, V and the cut ("plain" or "keyframe") of one source, with the reasons, one sentence
    each.
    """

    clip: int
    lanes: int
    cut: str
    reasons: tuple[str, ...]


def default_in_flight(batch_size: int) -> int:
    """Default frames in flight, over all ranks: 100,000, or 192 per sample of a larger batch."""
    return max(_IN_FLIGHT, _IN_FLIGHT_EACH * batch_size)


def lane_counts(batch_size: int) -> list[int]:
    """Numbers of lanes to choose from, the largest first: multiples of the batch size, and an
    eighth of it at least.
    """
    return [batch_size * count for count in _BATCHES] + [
        batch_size // n for n in (2, 4, 8) if batch_size % n == 0
    ]


@lru_cache(maxsize=1024)  # of thousands of small sources most are alike
def choose_clips(
    frames: int,
    gop: int,
    reach: tuple[int, int],
    *,
    batch_size: int,
    in_flight: int,
    lanes: int | None = None,
) -> ClipChoice:
    """Choose clips and lanes of one source.

    Args:
        frames: selected frames of the source.
        gop: frames from key frame to key frame.
        reach: frames that its windows extend back and ahead.
        batch_size: its samples in a global batch, at least 1.
        in_flight: frames that it may hold open.
        lanes: number of lanes, where it is fixed already.
    """
    if lanes:
        most = in_flight // lanes if lanes < 2 * batch_size else None
        return choose_clip(frames, gop, reach, lanes, most)
    if frames <= in_flight and uniform_cost(gop, sum(reach)) <= _CHEAP:
        return ClipChoice(
            1, 1, "plain", (f"uniform shuffle: its {frames} frames fit the {in_flight} in flight",)
        )
    counts = [count for count in lane_counts(batch_size) if count <= frames] or [frames]
    choices = []
    for count in counts:
        most = in_flight // count if count <= batch_size else None
        choices.append(choose_clip(frames, gop, reach, count, most))

    def cost(choice: ClipChoice) -> float:
        return clips_cost(frames, gop, reach, clip=choice.clip, lanes=choice.lanes, cut=choice.cut)

    held = [
        choice for choice in choices if choice.lanes * held_frames(choice.clip, reach) <= in_flight
    ]
    held = held or [choice for choice in choices if choice.lanes <= batch_size][:1] or choices[-1:]
    quick = [
        choice for choice in held if opens_quickly(frames, gop, choice.lanes, batch_size)
    ] or held[-1:]
    bound = bearable(map(cost, quick))
    cheap = [choice for choice in quick if cost(choice) <= bound]
    staggered = [choice for choice in cheap if not turn_together(frames, choice.clip, choice.lanes)]
    best = min(
        staggered or cheap,
        key=lambda c: [lane_correlation(frames, c.clip, c.lanes, n * batch_size) for n in (8, 64)],
    )
    number = best.lanes * held_frames(best.clip, reach)
    reason = f"{best.lanes} lanes: {number} frames in flight of {frames}, {in_flight} allowed"
    if number > 1.1 * in_flight:
        reason += "; these lanes need more"
    return ClipChoice(best.clip, best.lanes, best.cut, (*best.reasons, reason))


def choose_clip(
    frames: int, gop: int, reach: tuple[int, int], lanes: int, most: int | None = None
) -> ClipChoice:
    """Choose the clips of a source for a number of lanes, with at most `most` frames where they can
    be so short.
    """
    lanes = min(lanes, frames)
    halo = sum(reach)
    length = frames // lanes
    wish = max(_CLIP, 8 * halo)
    reasons = [f"clips of {wish} or more"]
    if wish > _CLIP:
        reasons = [
            f"clips of {wish} or more: windows extend {halo} frames beyond a clip, decoded once "
            "more for each"
        ]
    cut = "plain" if 8 * gop <= wish else "keyframe"
    unit = gop if cut == "keyframe" else 1
    fewest_units = 4 if reach[0] and cut == "keyframe" else 1
    clip = max(-(-wish // unit), fewest_units) * unit
    if cut == "keyframe":
        reasons.append(
            f"clips of {clip}, cut at key frames: they are {gop} apart, a start between them "
            "wastes half of that"
        )
    room = length if most is None else min(length, max(most, _SHORTEST, halo))
    if clip > length or held_frames(clip, reach) > room:
        shorter = max(room // unit, 1) * unit
        if shorter < clip:
            why = f"may have {room} frames in flight each"
            if room == length:
                why = f"have {length} frames each"
            reasons.append(f"clips shortened to {shorter}: {lanes} lanes {why}")
        clip = min(clip, shorter)
    elif cut == "plain":
        while clip > 1 and shared_factor(frames, clip, lanes) > 1:
            clip += 1
    else:
        sizes = [size for size in range(clip, clip + 4 * gop, gop) if size <= max(clip, length)]
        clip = min(sizes, key=lambda size: shared_factor(frames, size, lanes))
    return ClipChoice(clip, lanes, cut, tuple(reasons))


def held_frames(clip: int, reach: tuple[int, int]) -> int:
    """Frames of a clip that count as in flight: lanes hold frames that windows share, not a clip
    that is longer.
    """
    return min(clip, max(_CLIP, sum(reach)))


def shared_factor(frames: int, clip: int, lanes: int) -> int:
    """Factor by which more lanes than necessary begin a new clip at the same step (1: as few as
    possible).
    """
    length, longer = divmod(frames, lanes)
    factor = gcd(clip, length) if length else 1
    return max(factor, gcd(clip, length + 1)) if longer else factor


def turn_together(frames: int, clip: int, lanes: int) -> bool:
    """Whether all lanes begin every new clip at the same step."""
    return 1 < clip < frames // lanes and shared_factor(frames, clip, lanes) == clip


def choose_slots(
    weights: Sequence[float], batch_size: int, about: int, names: Sequence[str] = ()
) -> tuple[int, ...]:
    """Choose the slots of each source, at least one, in a mixture period of about `wanted` slots.

    The period is a multiple of the batch size, from three quarters of `wanted` up to it: the one
    whose shares are relatively nearest to the weights.

    Raises:
        ValueError: a weight so small that over a million slots would be needed; with `names`, names
            its source.
    """
    total = sum(weights)
    least_weight = min(weights)
    smallest = least_weight / total
    least = 1 / smallest
    if least > _MOST_SLOTS:
        of_source = f" of source {names[list(weights).index(least_weight)]!r}" if names else ""
        share = f"{smallest:.1e} of the mixture: need at least one in {_MOST_SLOTS}"
        raise ValueError(f"weight {least_weight}{of_source} is {share}")
    top = max(-(-about // batch_size), -(-int(least + 1) // batch_size), 1)
    return _choose_slots(tuple(weights), batch_size, top)


@lru_cache(maxsize=64)  # candidates of a choice, and its advice, ask for the same ones
def _choose_slots(weights: tuple[float, ...], batch_size: int, top: int) -> tuple[int, ...]:
    """Slots of the best period of at most `top` batches."""
    total = sum(weights)
    counts = sorted({top - top * step // 64 for step in range(17)}, reverse=True)
    best = None
    best_error = float("inf")
    for slots in (batch_size * count for count in counts):
        shares = share_slots(weights, slots)
        error = max(abs(s * total / (w * slots) - 1) for s, w in set(zip(shares, weights)))
        if min(shares) > 0 and error < best_error:
            best = shares
            best_error = error
    assert best is not None  # the largest period gives the smallest weight a quota of at least 1
    return best
