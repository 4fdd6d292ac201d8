"""The order of a new run, chosen by its cost and its mixing among those that fit the memory of a loader.

Candidates are the uniform shuffle, and lanes of clips in the numbers of `order/defaults.lane_counts`. The shuffle costs
no more than lanes where images stay decoded, in memory or in a cache on disk. Each is planned
(`memory_plan.py`) and has a cost relative to decoding in a row.

The rule: of the orders that cost at most 1.25, the one whose samples are correlated least, over 8 batches together,
then over 64; of equal ones, that with the fewest lanes. Where none costs so little, the cheapest. Lanes that open
slowly (`order/cost.opens_quickly`) are left out, and so are lanes that all begin new clips at the same step. The choice
depends on the arguments and the datasets, not on the machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd, isnan, nan

from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.images.clip_reader import DecodePolicy
from understudy_data.load.memory_plan import MemoryPlan, SourceFacts, plan_memory, read_facts, resized
from understudy_data.order import Order, Spec
from understudy_data.order.cost import BEARABLE, bearable, clips_cost, lane_correlation, opens_quickly, uniform_cost
from understudy_data.order.defaults import held_frames, lane_counts, turn_together
from understudy_data.order.make_spec import (
    CheckedSource,
    OrderRequest,
    ResolvedSource,
    as_int,
    as_list,
    check_source,
    resolve_order,
    resolve_weights,
)
from understudy_data.order.random import check_seed
from understudy_data.order.spec import Entry, SourceSpec

WINDOWS = (1, 8, 64)
"""Batches looked at together."""
_NOTICED, _CORRELATED = 1.4, 3.0  # cost, and correlation over 8 batches, above which a loader says so
_UNLIMITED = 1 << 62
_FEW = 100_000  # frames of a source that is shuffled one by one where each is decoded alone
_GIGABYTES = (2, 4, 8, 16, 32, 64, 128, 256)  # memory to advise
_MOST_ON_DISK = 10**12  # bytes of a decoded cache to advise
_SIDE, _ENCODE_MS = 224, 2.5  # pixels of the images of the advised edit, and CPU milliseconds of writing one
_MS_PER_ROW = 0.05  # CPU milliseconds of a sample without images
_START_MS = 0.2  # CPU milliseconds of a start at a random place, besides decoding
_OWN_RUN_COST = {1: 1.2, 2: 1.1, 4: 1.05}  # of lanes with decoders of their own, by run length


@dataclass(frozen=True)
class Candidate:
    """One order that a loader could read."""

    sources: tuple[ResolvedSource, ...]
    spec: Spec
    plan: MemoryPlan
    """Of the last rank, or of its last worker."""
    cost: float
    """CPU time of a sample, relative to decoding each image once and in a row."""
    correlation: tuple[float, ...]
    """Per count of `WINDOWS`: the design effect above that of the uniform shuffle, estimated."""

    @property
    def lanes(self) -> int:
        """Lanes of all sources."""
        return sum(source.lanes for source in self.spec.sources)

    def __str__(self) -> str:
        kinds = []
        for source, keep in zip(self.spec.sources, self.plan.keeps_decoded):
            clips = f"{source.lanes} lanes of {source.clip} frames"
            kinds.append(("uniform" if source.clip == 1 else clips) + (", kept decoded" if keep else ""))
        return kinds[0] if len(set(kinds)) == 1 else f"{self.lanes} lanes in {len(kinds)} datasets"


@dataclass(frozen=True)
class OrderChoice:
    """A new order, and the candidates that it was chosen from, the most lanes first."""

    order: Order
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    advice: str
    """See `advice`."""


def choose_order(
    datasets: EpisodeDataset | Sequence[EpisodeDataset],
    *,
    memory: int,
    world_size: int = 1,
    num_threads: int = 2,
    workers: int = 1,
    image_size: tuple[int, int] | None = None,
    decoded_cache: bool = False,
    frames_in_flight: int | None = None,
    weights: Sequence[float] | Mapping[str, float] | None = None,
    temperature: float | None = None,
    batch_size: int,
    seed: int = 0,
    mode: str = "clips",
    clip: int | None = None,
    lanes: int | None = None,
    inside: str = "sequential",
) -> OrderChoice:
    """Choose the order of a new run.

    Args:
        datasets: one, or several.
        memory: bytes that the loader of each rank may hold.
        world_size: number of ranks.
        num_threads: threads of a rank's loader.
        workers: processes of a rank that make its batches in turn and share its memory, as of an `EpisodeStream`;
            fewer where the memory holds no batch of each.
        image_size: (height, width) of its images; None keeps the recorded size.
        decoded_cache: whether it keeps decoded images on disk.
        frames_in_flight: the most frames of open clips; by default the memory alone limits them.
        weights: this and all further arguments: as for `Order.from_datasets`. With a mode other than "clips", or with
            `clip` or `lanes`, the order is the requested one.

    Raises:
        ValueError: as `Order.from_datasets` and `plan_memory`.
        DatasetError: a video cannot be opened.
    """
    datasets = as_list(datasets)
    clip, lanes = (None if n is None else as_int(name, n) for name, n in (("clip", clip), ("lanes", lanes)))
    in_flight = _UNLIMITED if frames_in_flight is None else as_int("frames_in_flight", frames_in_flight)
    request = OrderRequest(mode, as_int("batch_size", batch_size), in_flight, clip, lanes, inside)
    seed, shares = check_seed(seed), resolve_weights(datasets, weights, temperature)
    facts = [read_facts(data, image_size, decoded_cache) for data in datasets]
    sources = [check_source(data) for data in datasets]
    resources = {"memory": memory, "world_size": world_size, "num_threads": num_threads}
    while True:
        try:
            return choose_from_facts(facts, sources, shares, request, seed, workers=workers, **resources)
        except ValueError:  # no batch fits the memory of one worker
            if workers == 1:
                raise
            workers //= 2


def choose_from_facts(
    facts: Sequence[SourceFacts],
    sources: Sequence[CheckedSource],
    weights: Sequence[float],
    request: OrderRequest,
    seed: int,
    *,
    memory: int,
    world_size: int,
    num_threads: int,
    workers: int = 1,
) -> OrderChoice:
    """Choose an order by facts about the datasets; otherwise as `choose_order`."""
    readers = world_size * workers

    def choose(facts: Sequence[SourceFacts], memory: int) -> tuple[list[Candidate], Candidate]:
        changed = [replace(source, gop=fact.gop) for source, fact in zip(sources, facts)]

        def candidate(request: OrderRequest) -> Candidate:
            resolved, slots, version = resolve_order(changed, weights, request)
            spec = Spec(
                seed, request.batch_size, tuple(source.spec for source in resolved), (Entry(0, slots),), version
            )
            read = replace(spec, batch=spec.batch * workers)  # W batches in turn, as one that W times the ranks share
            plan = plan_memory(
                facts,
                Order(read, ()),
                rank=readers - 1,
                world_size=readers,
                num_threads=num_threads,
                memory=memory // workers,
            )
            cost = order_cost(facts, read, plan, readers)
            return Candidate(tuple(resolved), spec, plan, cost, tuple(_correlation(spec, n) for n in WINDOWS))

        candidates = _candidates(facts, request, workers, candidate)
        return candidates, _choose(candidates, request)

    candidates, chosen = choose(facts, memory)

    def figures(others: Sequence[SourceFacts], budget: int) -> tuple[float, float]:
        is_chosen = others is facts and budget == memory
        candidate = chosen if is_chosen else choose(others, budget)[1]
        return candidate.cost, candidate.correlation[1]

    layouts, reasons = [source.layout for source in chosen.sources], [source.reasons for source in chosen.sources]
    order = Order(chosen.spec, layouts, reasons, weights)
    return OrderChoice(order, tuple(candidates), chosen, "" if _is_fixed(request) else advice(facts, memory, figures))


def _candidates(
    facts: Sequence[SourceFacts], request: OrderRequest, workers: int, candidate: Callable[[OrderRequest], Candidate]
) -> list[Candidate]:
    """The requested order alone where it is fixed; otherwise the uniform shuffle, and lanes."""
    if _is_fixed(request):
        return [candidate(request)]
    first = candidate(replace(request, mode="uniform", inside="sequential"))
    uniform = frozenset(
        number
        for number, (source, keep) in enumerate(zip(facts, first.plan.keeps_decoded))
        if source.frames <= request.in_flight and (keep or _is_cheap(source))
    )
    laned = [source for number, source in enumerate(facts) if number not in uniform]
    if not laned and sum(source.spec.frames for source in first.sources) <= request.in_flight:
        return [first]  # others differ in the slots of a round alone, and `_choose` takes the first of equal ones
    gop, frames = max((source.gop for source in laned), default=1), sum(source.frames for source in laned)
    together = request.batch_size * workers
    quick = [lanes for lanes in lane_counts(request.batch_size) if opens_quickly(frames, gop, lanes, together)]
    orders = [first, *(candidate(replace(request, spread=lanes, uniform=uniform)) for lanes in quick)]
    return list({candidate.spec: candidate for candidate in orders}.values())


def advise_on(
    order: Order,
    facts: Sequence[SourceFacts],
    *,
    memory: int,
    rank: int,
    world_size: int,
    num_threads: int,
) -> str:
    """One line on a given order that costs much to read in this memory; "" for any other."""

    def figures(facts: Sequence[SourceFacts], memory: int) -> tuple[float, float]:
        plan = plan_memory(
            facts,
            order,
            rank=rank,
            world_size=world_size,
            num_threads=num_threads,
            memory=memory,
        )
        return order_cost(facts, order.spec, plan, world_size), nan

    return advice(facts, memory, figures)


def order_cost(facts: Sequence[SourceFacts], spec: Spec, plan: MemoryPlan, world_size: int) -> float:
    """Cost of a sample of an order, the mean over an epoch in which nothing is decoded yet.

    Args:
        facts: of the order's datasets.
        plan: of one rank.
        world_size: number of ranks.
    """
    slots = spec.schedule[-1].slots
    weights = [count * (source.decode_ms + _MS_PER_ROW) for count, source in zip(slots, facts)]
    period = spec.round if len(facts) > 1 else spec.sources[0].lanes
    shared_by = min(world_size, spec.batch // gcd(period, spec.batch))
    costs = [
        _source_cost(source, part, keep, policy, shared_by)
        for source, part, keep, policy in zip(facts, spec.sources, plan.keeps_decoded, plan.policies)
    ]
    return sum(weight * cost for weight, cost in zip(weights, costs)) / sum(weights)


def _source_cost(facts: SourceFacts, spec: SourceSpec, keep: bool, policy: DecodePolicy, shared_by: int) -> float:
    if keep or not facts.frame or not spec.shuffle:
        return 1.0
    if spec.clip == 1 or policy.run_length == 0 or (policy.run_length == 1 and not policy.keep_decoder):
        starts = _START_MS * len(facts.frame) / (facts.decode_ms + _MS_PER_ROW) if facts.gop > 1 else 0.0
        return uniform_cost(facts.gop, facts.halo) + starts
    clips = clips_cost(
        facts.frames,
        facts.gop,
        facts.reach,
        clip=spec.clip,
        lanes=spec.lanes,
        cut=spec.cut,
        is_permuted=spec.inside == "permuted",
        shared_by=shared_by,
    )
    return clips * (_OWN_RUN_COST.get(policy.run_length, 1.0) if policy.keep_decoder else 1.0)


def _is_fixed(request: OrderRequest) -> bool:
    """Whether the settings leave nothing to choose."""
    return request.mode != "clips" or request.clip is not None or request.lanes is not None


def _is_cheap(facts: SourceFacts) -> bool:
    """Whether few frames are each decoded alone, or have no video."""
    return facts.gop == 1 and not facts.halo and facts.frames <= _FEW


def _correlation(spec: Spec, batches: int) -> float:
    """Mean over the sources, by their samples."""
    slots = spec.schedule[-1].slots
    total = sum(slots)
    shares = [count / total for count in slots]
    values = [
        lane_correlation(source.frames, source.clip, source.lanes, share * batches * spec.batch)
        for source, share in zip(spec.sources, shares)
    ]
    return sum(share * value for share, value in zip(shares, values))


def _choose(candidates: Sequence[Candidate], request: OrderRequest) -> Candidate:
    """The candidate of the module's rule."""

    def held(candidate: Candidate) -> int:
        return sum(
            source.spec.lanes * held_frames(source.spec.clip, source.source.reach)
            if source.spec.clip > 1
            else source.spec.frames
            for source in candidate.sources
        )

    def turns_together(candidate: Candidate) -> bool:
        return any(turn_together(part.frames, part.clip, part.lanes) for part in candidate.spec.sources)

    fitting = [candidate for candidate in candidates if held(candidate) <= request.in_flight] or candidates[-1:]
    bound = bearable(candidate.cost for candidate in fitting)
    cheap = [candidate for candidate in fitting if candidate.cost <= bound]
    staggered = [candidate for candidate in cheap if not turns_together(candidate)]
    return min(staggered or cheap, key=lambda c: (round(c.correlation[1], 2), round(c.correlation[2], 2), c.lanes))


Figures = Callable[[Sequence[SourceFacts], int], tuple[float, float]]
"""Datasets and bytes of memory -> (cost, correlation over 8 batches) of the order of a loader that has them.

The correlation is nan for an order that is given: other settings do not change it.
"""


def advice(facts: Sequence[SourceFacts], memory: int, figures: Figures) -> str:
    """One line on an order that costs much or mixes badly, and on better settings; "" for any other.

    Args:
        facts: of the datasets.
        memory: bytes that the loader of a rank may hold.
        figures: of the order.
    """
    cost, correlation = figures(facts, memory)
    is_fixed = isnan(correlation)
    if cost <= _NOTICED and (is_fixed or correlation <= _CORRELATED):
        return ""

    def is_better(pair: tuple[float, float]) -> bool:
        return pair[0] <= max(BEARABLE, 0.7 * cost) and (is_fixed or pair[1] <= max(_CORRELATED, 0.7 * correlation))

    small = [resized(source, _SIDE) for source in facts]
    edited = [replace(source, gop=min(source.gop, 2)) for source in small]
    minutes = sum(s.frames * (s.decode_ms + _ENCODE_MS * len(s.frame)) for s in facts) / 60_000
    disk = sum(source.disk_images for source in facts)
    cached = [replace(source, on_disk=True) for source in facts]
    on_disk = [(f"decoded_cache=FOLDER, {disk / 1e9:.1f} GB on disk", cached, memory)]
    larger = [(f"memory='{size}GB'", facts, size * 10**9) for size in _GIGABYTES if size * 10**9 > memory]
    remedies = [
        *larger,
        *(on_disk if 0 < disk <= _MOST_ON_DISK and not any(source.on_disk for source in facts) else []),
        (f"image_size=({_SIDE}, {_SIDE})", small, memory),
        (f"`understudy edit … --gop 2 --size {_SIDE}`, about {ceil(minutes)} min of CPU", edited, memory),
    ]
    helping: dict[str, str] = {}
    for name, changed, size in remedies:
        kind = name.split("=")[0]
        if kind not in helping and is_better(better := figures(changed, size)):
            helping[kind] = f"{name} ({better[0]:.1f} times" + ("" if is_fixed else f", {1 + better[1]:.1f}") + ")"
    mixing = "" if is_fixed else f"8 batches have {1 + correlation:.1f} times the variance of independent clips, "
    return (
        f"each sample costs {cost:.1f} times the CPU time of decoding in a row, {mixing}"
        f"in {memory / 1e9:.3g} GB of memory; "
        "better with " + ("; ".join(helping.values()) or "nothing known: more frames, or a shorter GOP")
    )
