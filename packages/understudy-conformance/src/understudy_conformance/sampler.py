"""Requirements of samplers: `factory(lengths, seed, epoch, rank, world_size)` returns frame numbers
in storage order.

`lengths` has the frames of each episode. A rank's sampler gives its share of an epoch. An endless
one is read for as many numbers as an epoch has.
"""

from collections import Counter
from itertools import islice

import numpy as np

from understudy_conformance.requirement import Factory, Violation, require

LENGTHS = (31, 1, 18, 44, 2, 27, 9, 60, 13, 36, 22, 7, 50, 1, 30, 33)
"""384 frames: 12 batches of 32."""
BATCH = 32
WORST_CLUSTERING = 2.0
"""Largest accepted ratio of pairs of one episode in a batch to those of a perfect shuffle."""


def read_indices(
    factory: Factory, epoch: int = 0, rank: int = 0, world_size: int = 1, seed: int = 0
) -> list[int]:
    """Return the numbers of an epoch; two epochs' numbers at most."""
    sampler = factory(
        lengths=list(LENGTHS), seed=seed, epoch=epoch, rank=rank, world_size=world_size
    )
    return [int(number) for number in islice(sampler, 2 * sum(LENGTHS))]


def check_once(numbers: list[int]) -> str:
    """Check that numbers are an epoch; twice as many are a stream, whose two halves are epochs."""
    total = sum(LENGTHS)
    parts = [numbers[:total], numbers[total:]] if len(numbers) == 2 * total else [numbers]
    for part in parts:
        counts = Counter(part)
        missing = [number for number in range(total) if not counts[number]]
        repeated = [number for number, count in counts.items() if count > 1]
        foreign = [number for number in counts if not 0 <= number < total]
        facts = []
        for fault, wrong in (
            ("missing", missing),
            ("more than once", repeated),
            ("out of range", foreign),
        ):
            if wrong:
                listed = ", ".join(map(str, wrong[:3]))
                more = ", ..." if len(wrong) > 3 else ""
                facts.append(f"{len(wrong)} {fault} ({listed}{more})")
        if facts:
            raise Violation(f"of {total} frames {', '.join(facts)}")
    return f"{total} frames, each once"


@require(
    "R-SAMPLE-01",
    "An epoch of one rank has each frame once.",
    "Sampling with replacement leaves out 37 % of the frames of an epoch.",
    "starVLA #470",
)
def check_coverage(factory: Factory) -> str:
    """Read epoch 0."""
    return check_once(read_indices(factory))


@require(
    "R-SAMPLE-02",
    "An epoch of several ranks together has each frame once.",
    "Ranks that read the same frames do the work of one; frames of no rank are never learned.",
    "Accelerate #4203",
)
def check_ranks(factory: Factory) -> str:
    """Read epoch 0 of three ranks."""
    factory.need("rank", "world_size")
    shares = [read_indices(factory, rank=rank, world_size=3)[: sum(LENGTHS)] for rank in range(3)]
    if all(len(share) == sum(LENGTHS) for share in shares):  # endless, or each rank has everything
        shares = [share[: sum(LENGTHS) // 3] for share in shares]
    numbers: list[int] = []
    for share in shares:
        numbers += share
    return f"{check_once(numbers)}, {[len(share) for share in shares]}"


@require(
    "R-SAMPLE-03",
    "Two epochs have different sequences.",
    "The same sequence each epoch makes the same batches.",
    "openpi #1017",
)
def check_differ(factory: Factory) -> str:
    """Compare epochs 0 and 1."""
    factory.need("epoch")
    first = read_indices(factory)
    second = read_indices(factory, epoch=1)
    same = float(np.mean([a == b for a, b in zip(first, second)]))
    if first == second:
        raise Violation("epochs 0 and 1 are equal")
    return f"{same:.1%} of the places have the same frame"


@require(
    "R-SAMPLE-04",
    "The same seed, epoch and rank give the same sequence again.",
    "A run that cannot be repeated cannot be resumed.",
    "LeRobot #3769",
)
def check_repeat(factory: Factory) -> str:
    """Make the sampler of epoch 2 twice, the second time after epoch 0."""
    first = read_indices(factory, epoch=2)
    read_indices(factory)
    if read_indices(factory, epoch=2) != first:
        raise Violation("epoch 2 of a second sampler has another sequence")
    return f"{len(first)} frames in the same sequence"


@require(
    "R-SAMPLE-05",
    "Batches mix episodes nearly as a perfect shuffle does.",
    "Frames of one episode are alike: a batch of them has the gradient of one frame.",
)
def check_mixing(factory: Factory) -> str:
    """Count pairs of one episode in batches of 32."""
    numbers = np.array(read_indices(factory)[: sum(LENGTHS)])
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)[numbers]
    batches = episode[: len(episode) // BATCH * BATCH].reshape(-1, BATCH)
    if not len(batches):
        raise Violation(f"an epoch has {len(numbers)} frames")
    pairs = sum(int(np.square(np.bincount(batch)).sum()) - BATCH for batch in batches)
    lengths = np.array(LENGTHS)
    total = sum(LENGTHS)
    expected = (
        len(batches)
        * BATCH
        * (BATCH - 1)
        * float((lengths * (lengths - 1)).sum())
        / (total * (total - 1))
    )
    ratio = pairs / expected
    facts = (
        f"{ratio:.2f} times the pairs of one episode of a perfect shuffle, in batches of {BATCH}"
    )
    if ratio > WORST_CLUSTERING:
        raise Violation(facts)
    return facts
