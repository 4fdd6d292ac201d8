"""Lengths of the first runs of clip readers, chosen so that the lanes of a source decode in turns."""

from understudy.load.images.clip_reader import DecodePolicy
from understudy.order import Order

_GOLDEN = 0.618034  # its multiples spread evenly, for any number of them


def first_round(order: Order, source: int) -> int:
    """Positions in which each lane of a source comes up once (or, in a shared slot, may)."""
    if order.lane_slots(source) is not None:
        return order.spec.round
    slots = order.spec.schedule[-1].slots
    return -(-order.spec.sources[source].lanes * sum(slots) // max(1, slots[source]))


def first_runs(order: Order, source: int, policy: DecodePolicy, position: int, start: int, gop: int) -> list[int]:
    """Lengths of the first runs of a clip reader that opens at `position`, in a loader that began at `start`.

    The runs behind them have `policy.run_length` frames. Runs end at their lane's turn: once every `run_length` rounds,
    at a phase of its own that never changes. Otherwise lanes whose clips begin together (as all do at the start and at
    the turn of an epoch) would decode in the same batch, and hold the most frames at the same time, from there on.
    Runs of whole GOPs are staggered by where their clips begin: the first run extends to the next key frame.
    A reader of the first batch, which the consumer waits for, first decodes only the frames of its first sample.

    While the lanes open, the consumer would also wait for the frames ahead of all of them. So a reader with a decoder
    of its own begins as in the first batch. One with shared decoders takes one GOP at a time (a run of 1 extends to its
    end) until its first turn. Hardly anything is decoded twice, because it starts at key frames anyway.

    Args:
        gop: frames from key frame to key frame.
    """
    if policy.run_length <= 1:
        return []
    first = position < start + order.batch_size
    if policy.whole_gops:
        return [0, 1] if first else [1]
    lane, turns = order.lane(position), first_round(order, source)
    length = policy.run_length
    run = length - (position // turns + int(length * (lane * _GOLDEN % 1))) % length
    opens = position < start + turns
    alone = first or (opens and policy.keep_decoder)
    rest = run - alone
    by_gop = opens and not policy.keep_decoder and gop <= length
    behind = [1] * -(-rest // gop) if by_gop else [rest] if rest else []
    return [0, *behind] if alone else behind
