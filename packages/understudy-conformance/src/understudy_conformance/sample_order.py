"""Coverage, equality and shuffle quality of sequences of sample numbers."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from understudy.order.design_effect import design_effect, expected_uniform
from understudy_conformance.batch_values import SampleNumbers
from understudy_conformance.reading import Stretch
from understudy_conformance.results import LoaderCheck

WORST_DESIGN_EFFECT = 2.0
"""Largest accepted ratio of the design effect to that of a perfect shuffle."""


def check_coverage(name: str, numbers: SampleNumbers, epochs: Sequence[Stretch]) -> LoaderCheck:
    """Check that each epoch has each sample once, or as often as its frame weight.

    Either each pass of the loader is an epoch, or the passes are one stream in which every N samples are an epoch: the
    last batch of a pass is then filled with the first samples of the next.
    """
    for epoch in epochs:
        if epoch.end == "error":
            return LoaderCheck(name, "failed", f"the loader failed: {epoch.error}", {"error": epoch.error})
    total, first = len(numbers), epochs[0].numbers
    if epochs[0].end == "cut":
        return _check_cut(name, numbers, first)
    stream = np.concatenate([epoch.numbers for epoch in epochs])
    parts = [stream[start : start + total] for start in range(0, len(stream) - total + 1, total)]
    as_stream = bool(parts) and all(is_epoch(part, numbers.counts) for part in parts)
    if as_stream or all(is_epoch(epoch.numbers, numbers.counts) for epoch in epochs if epoch.end == "end"):
        if epochs[0].end == "limit" and not as_stream:
            return describe_samples(name, numbers, first[:total])
        words = "each once" if numbers.data.frame_weights is None else "each as often as its weight"
        return LoaderCheck(name, "passed", f"{total:,} samples, {words}", {"missing": 0, "doubled": 0, "foreign": 0})
    wrong = next(
        (e.numbers for e in epochs if e.end == "end" and not is_epoch(e.numbers, numbers.counts)), first[:total]
    )
    return describe_samples(name, numbers, wrong)


def is_epoch(samples: np.ndarray, counts: np.ndarray) -> bool:
    """Whether `samples` have the number i `counts[i]` times, for each i, and no other."""
    inside = samples.min(initial=0) >= 0
    return bool(inside) and np.array_equal(np.bincount(samples, minlength=len(counts)), counts)


def describe_samples(name: str, numbers: SampleNumbers, samples: np.ndarray) -> LoaderCheck:
    """Failed check with the missing, doubled and foreign samples of an epoch."""
    known_samples = samples[samples >= 0]
    more = np.bincount(known_samples, minlength=len(numbers.counts)) - numbers.counts
    missing, doubled = np.flatnonzero(more < 0), np.flatnonzero(more > 0)
    often = "more than once" if numbers.data.frame_weights is None else "too often"
    foreign = len(samples) - len(known_samples)
    parts = [
        f"{len(places):,} {word} ({_list_places(numbers, places)})"
        for word, places in (("missing", missing), (often, doubled))
        if len(places)
    ]
    parts += [f"{foreign:,} outside the selection"] if foreign else []
    measured = {"missing": int(-more[missing].sum()), "doubled": int(more[doubled].sum()), "foreign": foreign}
    return LoaderCheck(name, "failed", f"of {len(numbers):,} samples {', '.join(parts)}", measured)


def _list_places(numbers: SampleNumbers, samples: np.ndarray) -> str:
    return ", ".join(map(numbers.place, samples[:3].tolist())) + (", ..." if len(samples) > 3 else "")


def _check_cut(name: str, numbers: SampleNumbers, samples: np.ndarray) -> LoaderCheck:
    known_samples = samples[samples >= 0]
    doubled = int((np.bincount(known_samples, minlength=len(numbers.counts)) > numbers.counts).sum())
    if (doubled or len(known_samples) < len(samples)) and len(samples) <= len(numbers):
        return describe_samples(name, numbers, samples)
    detail = f"max_batches ended the epoch after {len(samples):,} of {len(numbers):,} samples, none of them too often"
    return LoaderCheck(name, "not checked", detail)


def check_even(ranks: Stretch, world_size: int) -> LoaderCheck:
    """Check that all ranks gave equally many batches of the same sizes."""
    sizes: dict[int, list[int]] = {rank: [] for rank in range(world_size)}
    for rank, samples in zip(ranks.ranks, ranks.samples):
        sizes[rank].append(len(samples))
    counts = [len(lengths) for lengths in sizes.values()]
    detail = f"batches per rank: {', '.join(map(str, counts))}"
    even = all(lengths == sizes[0] for lengths in sizes.values())
    if not even and len(set(counts)) == 1:
        detail += f"; last batches of {', '.join(str(lengths[-1]) for lengths in sizes.values())} samples"
    return LoaderCheck("ranks.even", "passed" if even else "failed", detail, {"batches": counts})


def check_equal(name: str, first: Stretch, other: Stretch, words: str) -> LoaderCheck:
    """Check that two stretches have the same batches, samples and content."""
    for stretch in (first, other):
        if stretch.end == "error":
            return LoaderCheck(name, "failed", f"the loader failed: {stretch.error}", {"error": stretch.error})
    if len(first.samples) != len(other.samples):
        counts = [len(first.samples), len(other.samples)]
        detail = f"{words}: {counts[1]} batches, not {counts[0]}"
        return LoaderCheck(name, "failed", detail, {"batches": counts})
    pairs = list(zip(first.samples, other.samples))
    order = [i for i, (a, b) in enumerate(pairs) if not np.array_equal(a, b)]
    content = [i for i, (a, b) in enumerate(zip(first.digests, other.digests)) if a != b]
    measured = {"batches": len(pairs), "other_samples": len(order), "other_content": len(content)}
    if order:
        a, b = (Counter(stretch.numbers.tolist()) for stretch in (first, other))
        common = sum((a & b).values())
        detail = f"{words}: {len(order)} of {len(pairs)} batches hold other samples, the first is number {order[0]}"
        detail += f"; {common:,} of {len(first.numbers):,} samples are common to both"
        return LoaderCheck(name, "failed", detail, measured)
    if content:
        detail = f"{words}: the same samples, but {len(content)} of {len(pairs)} batches have other values"
        return LoaderCheck(name, "failed", f"{detail}, the first is number {content[0]}", measured)
    return LoaderCheck(name, "passed", f"{len(pairs)} batches equal to the bit", measured)


def check_differ(first: np.ndarray, second: np.ndarray) -> LoaderCheck:
    """Check that two epochs have different sequences."""
    length = min(len(first), len(second))
    if length < 2:
        return LoaderCheck("epochs.differ", "not checked", f"an epoch of {length} samples has one sequence")
    same = float((first[:length] == second[:length]).mean())
    detail = f"{same:.1%} of the places hold the same sample"
    return LoaderCheck("epochs.differ", "failed" if same == 1.0 else "passed", detail, {"same": same})


def check_shuffling(numbers: SampleNumbers, epoch: Stretch) -> LoaderCheck:
    """Compare the design effect of batches with that of a perfect shuffle (`order/design_effect.py`)."""
    samples, size = epoch.numbers[: len(numbers)], max(map(len, epoch.samples), default=0)
    samples = samples[samples >= 0]
    segments = numbers.data.epoch_segments
    lengths = np.bincount(np.unique(segments[:, 0], return_inverse=True)[1], segments[:, 2] - segments[:, 1])
    episode, frame = numbers.data.locate(samples)
    effects: dict[str, list[float]] = {}
    for batches in (1, 8):
        window = batches * size
        windows = len(samples) // window if window else 0
        if window < 2 or not windows:
            continue
        positions = np.arange(windows * window).reshape(windows, window)
        measured = float(design_effect(episode[positions], frame[positions]).mean())
        effects[str(batches)] = [round(measured, 3), round(expected_uniform(lengths, window), 3)]
    if not effects:
        return LoaderCheck("shuffling", "not checked", f"{len(samples)} samples are too few")
    good = all(measured <= WORST_DESIGN_EFFECT * ideal for measured, ideal in effects.values())
    detail = "; ".join(
        f"design effect of {count} batch{'es' if count != '1' else ''} of {size}: {measured}, perfect shuffle {ideal}"
        for count, (measured, ideal) in effects.items()
    )
    return LoaderCheck("shuffling", "passed" if good else "failed", detail, {"design_effect": effects})
