"""Defaults: clip length, lanes and cut of each source, chosen from what is known about it and explained in words.

What is weighed, in this order:

1. Few frames and cheap to reach (or too few for clips): the uniform shuffle, everything resident.
2. A clip pays for the pictures its windows reach beyond it and for the way from the last key frame to its start. So S
   is at least 64 and 4 times the window's reach, and where a key-frame distance matters against S, clips are cut at key
   frames and S is a multiple of it.
3. V is a multiple of the batch B (a batch then has B different clips, and a lane one rank), and V*S stays within
   `frames_in_flight` and a tenth of the frames (beyond which clips are cut by lanes too often) where it can. Where
   B clips are too many even so, S is shortened, but not below 16 or the reach. Frames in flight are those of all ranks
   together. Unless they are given, they grow with the batch, and so does the number of ranks: each rank's part then
   stays as large. They do not depend on the number of ranks itself, so the order of a new run does not either.
4. Lanes must not all turn to a new clip at the same step: S and the lane length should share no factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from understudy.order.mixture.mixture import share_slots

_IN_FLIGHT = 100_000
_IN_FLIGHT_EACH = 192  # per sample of the batch: three clips; more than the above for batches of over 520
_CLIP = 64
_SHORTEST = 16
_CHEAP = 4.0  # pictures decoded for one random sample that are not worth avoiding
_MOST_SLOTS = 1 << 20


@dataclass(frozen=True)
class Choice:
    """S, V and the cut ("plain" or "keyframe") for one source, with the reasons, one sentence each."""

    clip: int
    lanes: int
    cut: str
    why: tuple[str, ...]


def default_in_flight(batch: int) -> int:
    """Frames in flight, over all ranks, where nobody says how many: 100,000, or 192 per sample of a larger batch."""
    return max(_IN_FLIGHT, _IN_FLIGHT_EACH * batch)


def choose(
    frames: int, gop: int, reach: tuple[int, int], *, batch: int, in_flight: int, lanes: int | None = None
) -> Choice:
    """Choose for a source of `frames` frames, key frames every `gop`, windows `reach` pictures back and ahead.

    `batch` is the number of its samples in a global batch (at least 1), `in_flight` the frames it may hold open,
    `lanes` the number of lanes where that is settled already.
    """
    halo = sum(reach)
    clip, cut, why = _wish(gop, halo)
    least = lanes or batch
    random_cost = 1 + halo + (gop - 1) / 2
    if frames <= in_flight and (random_cost <= _CHEAP or 4 * least * clip > frames):
        reason = f"uniform shuffle: its {frames} frames fit the {in_flight} in flight"
        if random_cost > _CHEAP:
            reason += f", and {least} open clips of {clip} would hold over a quarter of them anyway"
        return Choice(1, 1, "plain", (reason,))
    limit = min(in_flight, frames // 10)
    wished, reason = clip, ""
    if least * clip > limit:
        clip = _shorten(clip, cut, gop, halo, limit // least)
        bound = f"{in_flight} may be in flight" if in_flight <= limit else f"a tenth of the {frames} frames is {limit}"
        reason = f"{least} open clips of {wished} would be {least * wished} frames, and {bound}"
    if cut == "plain" and 4 * least * clip > frames:
        clip = max(1, frames // (4 * least))
        reason = f"{frames} frames are few for {least} open clips"
    counts = [lanes] if lanes else _lane_counts(batch, max(1, limit // (clip * batch)))
    shortest = clip
    clip, lanes = _without_resonance(frames, clip, gop if cut == "keyframe" else 0, counts, limit)
    if clip < wished:
        least_clip = f" (from {shortest} on, the first whose lanes do not turn together)" if clip > shortest else ""
        why.append(f"clips shortened to {clip}{least_clip}: {reason}")
    why.append(f"{lanes} lanes: {lanes * clip} frames in flight of {frames}, {in_flight} allowed")
    if lanes * clip > in_flight * 1.1:
        why.append(f"that is more than allowed, but {lanes} lanes of such frames cannot do with less")
    return Choice(clip, min(lanes, frames), cut, tuple(why))


def _lane_counts(batch: int, many: int) -> list[int]:
    """Multiples of the batch worth trying, the most lanes first."""
    return [batch * count for count in range(many, max(1, many * 3 // 4) - 1, -1)][:64]


def _wish(gop: int, halo: int) -> tuple[int, str, list[str]]:
    clip = max(_CLIP, 4 * halo)
    why = [f"clips of {clip} or more"]
    if 4 * halo > _CLIP:
        why = [f"clips of {clip} or more: windows reach {halo} pictures beyond a clip, decoded once more for each"]
    if 8 * gop <= clip:
        return clip, "plain", why
    clip = -(-clip // gop) * gop
    why.append(f"clips of {clip}, cut at key frames: these are {gop} apart, a start between them wastes half of that")
    return clip, "keyframe", why


def _shorten(clip: int, cut: str, gop: int, halo: int, fitting: int) -> int:
    """Fewer frames per clip, down to what fits, but not below the floor."""
    floor = max(_SHORTEST, halo)
    if cut == "keyframe":
        return min(clip, max(fitting // gop, -(-floor // gop), 1) * gop)
    return min(clip, max(fitting, floor))


def _without_resonance(frames: int, clip: int, gop: int, counts: Sequence[int], limit: int) -> tuple[int, int]:
    """(S, V) with S near `clip` and V one of `counts`, such that lane lengths and S share the smallest factor.

    A plain clip (`gop` 0) takes the first S from `clip` on that shares none. One cut at key frames stays a multiple of
    `gop`, where with an even gop one of two neighbouring lane lengths always shares a factor 2; so V is varied as
    well, and S as long as `limit` frames in flight allow.
    """
    if not gop:
        while clip > 1 and shared_factor(frames, clip, counts[0]) > 1:
            clip += 1
        return clip, counts[0]
    pairs = [(size, lanes) for lanes in counts for size in range(clip, clip + 4 * gop, gop)]
    fitting = [(size, lanes) for size, lanes in pairs if size == clip or size * lanes <= limit]
    return min(fitting, key=lambda pair: shared_factor(frames, *pair))


def shared_factor(frames: int, clip: int, lanes: int) -> int:
    """How many times more lanes than need be turn to a new clip at the same step (1: as few as can be)."""
    length, longer = divmod(frames, lanes)
    factor = gcd(clip, length) if length else 1
    return max(factor, gcd(clip, length + 1)) if longer else factor


def choose_slots(weights: Sequence[float], batch: int, wish: int) -> tuple[int, ...]:
    """Slots per source for a mixture period near `wish`, a multiple of the batch, that gives every source at least one.

    Among the multiples of the batch from three quarters of the wish up to it, the one whose shares are relatively
    nearest to the weights. Raises ValueError where a weight is so small that over a million slots were needed.
    """
    total = sum(weights)
    smallest = min(weights) / total
    least = 1 / smallest
    if least > _MOST_SLOTS:
        raise ValueError(f"weight {min(weights)} is {smallest:.1e} of the mixture: need at least one in {_MOST_SLOTS}")
    top = max(-(-wish // batch), -(-int(least + 1) // batch), 1)
    counts = sorted({top - top * step // 64 for step in range(17)}, reverse=True)
    best, best_error = None, float("inf")
    for slots in (batch * count for count in counts):
        shares = share_slots(weights, slots)
        error = max(abs(s * total / (w * slots) - 1) for s, w in zip(shares, weights))
        if min(shares) > 0 and error < best_error:
            best, best_error = shares, error
    assert best is not None  # the largest period gives the smallest weight a quota of at least 1
    return best
