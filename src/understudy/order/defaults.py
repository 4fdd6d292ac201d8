"""Defaults: clip length S, lanes V and cut of each source, chosen from its figures and explained in words.

The rules, in this order:

1. A source of few frames that are cheap to reach, or of too few for clips: the uniform shuffle, everything resident.
2. A clip costs the frames that its windows reach beyond it, and the decoding from the last key frame to its start. So S
   is at least 64 and 4 times the window's reach. Where the GOP is not small against S, clips are cut at key frames and
   S is a multiple of the GOP.
3. V is a multiple of the batch size B: a batch then has B different clips, and a lane one rank. V*S stays within
   `frames_in_flight` and a tenth of the frames where it can; beyond a tenth, lanes cut too many clips. Where B clips
   are too many even so, S is shortened, but not below 16 or the reach. Frames in flight are those of all ranks
   together. By default they grow with the batch, and so does the number of ranks, so each rank's part stays the same.
   They do not depend on the number of ranks itself, and neither does the order of a new run.
4. Windows that reach back then lengthen the clips to 8 times the reach, and leave V as it is: fewer frames are decoded
   twice. A lane holds the frames that its windows share, and not its clip. So longer clips take no memory, and the
   number of lanes decides how well the samples mix.
5. Lanes must not all begin a new clip at the same step: S and the lane length should share no factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from understudy.order.mixture.shares import share_slots

_IN_FLIGHT = 100_000
_IN_FLIGHT_EACH = 192  # per sample of the batch: three clips; more than the above for batches of over 520
_CLIP = 64
_SHORTEST = 16
_CHEAP = 4.0  # frames decoded for one random sample that are not worth avoiding
_WORTH_BACK = 8  # frames of a clip for each one that is decoded again, where windows reach back
_CLIPS_IN_LANE = 5  # least number of lengthened clips in a lane: its two ends cut a clip
_MOST_SLOTS = 1 << 20


@dataclass(frozen=True)
class ClipChoice:
    """S, V and the cut ("plain" or "keyframe") of one source, with the reasons, one sentence each."""

    clip: int
    lanes: int
    cut: str
    reasons: tuple[str, ...]


def default_in_flight(batch_size: int) -> int:
    """Default frames in flight, over all ranks: 100,000, or 192 per sample of a larger batch."""
    return max(_IN_FLIGHT, _IN_FLIGHT_EACH * batch_size)


def choose_clips(
    frames: int, gop: int, reach: tuple[int, int], *, batch_size: int, in_flight: int, lanes: int | None = None
) -> ClipChoice:
    """Choose clips and lanes of one source.

    Args:
        frames: selected frames of the source.
        gop: frames from key frame to key frame.
        reach: frames that its windows reach back and ahead.
        batch_size: its samples in a global batch, at least 1.
        in_flight: frames that it may hold open.
        lanes: number of lanes, where it is fixed already.
    """
    halo = sum(reach)
    clip, cut, reasons = _preferred_clip(gop, halo)
    least = lanes or batch_size
    random_cost = 1 + halo + (gop - 1) / 2
    if frames <= in_flight and (random_cost <= _CHEAP or 4 * least * clip > frames):
        reason = f"uniform shuffle: its {frames} frames fit the {in_flight} in flight"
        if random_cost > _CHEAP:
            reason += f", and {least} open clips of {clip} would hold over a quarter of them anyway"
        return ClipChoice(1, 1, "plain", (reason,))
    limit = min(in_flight, frames // 10)
    preferred, reason = clip, ""
    if least * clip > limit:
        clip = _shorten(clip, cut, gop, halo, limit // least)
        bound = f"{in_flight} may be in flight" if in_flight <= limit else f"a tenth of the {frames} frames is {limit}"
        reason = f"{least} open clips of {preferred} would be {least * preferred} frames, and {bound}"
    if cut == "plain" and 4 * least * clip > frames:
        clip = max(1, frames // (4 * least))
        reason = f"{frames} frames are few for {least} open clips"
    counts = [lanes] if lanes else _lane_counts(batch_size, max(1, limit // (clip * batch_size)))
    unit = gop if cut == "keyframe" else 1
    counted = shortest = clip
    if reach[0]:
        shortest = _lengthen(clip, unit, halo, frames // (_CLIPS_IN_LANE * counts[0]))
        limit = limit * shortest // counted
    clip, lanes = _without_resonance(frames, shortest, gop if cut == "keyframe" else 0, counts, limit)
    if shortest > counted:
        reasons.append(f"clips lengthened to {clip}: lanes hold the {halo} frames that windows share, not their clip")
    if clip < preferred:
        first = f" (the first from {shortest} on whose lanes do not turn together)" if clip > shortest else ""
        reasons.append(f"clips shortened to {clip}{first}: {reason}")
    held, how = lanes * clip, ""
    if shortest > counted:
        held, how = lanes * counted, f", counted with clips of {counted}"
    reasons.append(f"{lanes} lanes{how}: {held} frames in flight of {frames}, {in_flight} allowed")
    if held > in_flight * 1.1:
        reasons.append(f"that is more than allowed, but {lanes} lanes of such frames need as many")
    return ClipChoice(clip, min(lanes, frames), cut, tuple(reasons))


def _lane_counts(batch_size: int, many: int) -> list[int]:
    """Multiples of the batch size worth trying, the largest first."""
    return [batch_size * count for count in range(many, max(1, many * 3 // 4) - 1, -1)][:64]


def _preferred_clip(gop: int, halo: int) -> tuple[int, str, list[str]]:
    clip = max(_CLIP, 4 * halo)
    reasons = [f"clips of {clip} or more"]
    if 4 * halo > _CLIP:
        reasons = [f"clips of {clip} or more: windows reach {halo} frames beyond a clip, decoded once more for each"]
    if 8 * gop <= clip:
        return clip, "plain", reasons
    clip = -(-clip // gop) * gop
    reasons.append(
        f"clips of {clip}, cut at key frames: they are {gop} apart, a start between them wastes half of that"
    )
    return clip, "keyframe", reasons


def _shorten(clip: int, cut: str, gop: int, halo: int, fitting: int) -> int:
    """Shorten a clip to the fitting length, but not below 16 or the halo."""
    floor = max(_SHORTEST, halo)
    if cut == "keyframe":
        return min(clip, max(fitting // gop, -(-floor // gop), 1) * gop)
    return min(clip, max(fitting, floor))


def _lengthen(clip: int, unit: int, halo: int, most: int) -> int:
    """Lengthen a clip to `_WORTH_BACK` times the halo, and at most to `most`, in multiples of `unit`."""
    return max(clip, min(_WORTH_BACK * halo, most) // unit * unit)


def _without_resonance(frames: int, clip: int, gop: int, counts: Sequence[int], limit: int) -> tuple[int, int]:
    """(S, V) with S near `clip` and V one of `counts`, such that lane lengths and S share the smallest factor.

    For a plain clip (`gop` 0) S is the first from `clip` on that shares none. A clip cut at key frames stays a multiple
    of `gop`. With an even gop one of two neighbouring lane lengths then always shares a factor 2. So V is varied as
    well, and S within `limit` frames in flight.
    """
    if not gop:
        while clip > 1 and shared_factor(frames, clip, counts[0]) > 1:
            clip += 1
        return clip, counts[0]
    pairs = [(size, lanes) for lanes in counts for size in range(clip, clip + 4 * gop, gop)]
    fitting = [(size, lanes) for size, lanes in pairs if size == clip or size * lanes <= limit]
    return min(fitting, key=lambda pair: shared_factor(frames, *pair))


def shared_factor(frames: int, clip: int, lanes: int) -> int:
    """Factor by which more lanes than necessary begin a new clip at the same step (1: as few as possible)."""
    length, longer = divmod(frames, lanes)
    factor = gcd(clip, length) if length else 1
    return max(factor, gcd(clip, length + 1)) if longer else factor


def choose_slots(weights: Sequence[float], batch_size: int, wanted: int) -> tuple[int, ...]:
    """Choose the slots of each source, at least one, in a mixture period of about `wanted` slots.

    The period is a multiple of the batch size, from three quarters of `wanted` up to it: the one whose shares are
    relatively nearest to the weights.

    Raises:
        ValueError: a weight so small that over a million slots would be needed.
    """
    total = sum(weights)
    smallest = min(weights) / total
    least = 1 / smallest
    if least > _MOST_SLOTS:
        raise ValueError(f"weight {min(weights)} is {smallest:.1e} of the mixture: need at least one in {_MOST_SLOTS}")
    top = max(-(-wanted // batch_size), -(-int(least + 1) // batch_size), 1)
    counts = sorted({top - top * step // 64 for step in range(17)}, reverse=True)
    best, best_error = None, float("inf")
    for slots in (batch_size * count for count in counts):
        shares = share_slots(weights, slots)
        error = max(abs(s * total / (w * slots) - 1) for s, w in zip(shares, weights))
        if min(shares) > 0 and error < best_error:
            best, best_error = shares, error
    assert best is not None  # the largest period gives the smallest weight a quota of at least 1
    return best
