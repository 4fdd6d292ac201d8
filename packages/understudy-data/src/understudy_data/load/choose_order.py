"""The order of a new run, chosen by its cost and its mixing among those that fit the memory of a
loader.

Candidates are the uniform shuffle, and lanes of clips in the numbers of
`order/defaults.lane_counts`. The shuffle costs no more than lanes where images stay decoded, in
memory or in a cache on disk. Each is planned (`memory_plan.py`) and has a cost relative to decoding
in a row.

The rule: of the orders that cost at most 1.25, the one whose samples are correlated least, over 8
batches together, then over 64; of equal ones, that with the fewest lanes. Where none costs so
little, the cheapest. Lanes that open slowly (`order/cost.opens_quickly`) are left out, and so are
lanes that all begin new clips at the same step. The choice depends on the arguments and the
datasets, not on the machine.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, gcd, isnan, nan

from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.load.images.clip_reader import DecodePolicy
from understudy_data.load.images.source_facts import (
    FactGroups,
    SourceFacts,
    group_facts,
    read_facts_of_all,
    resized,
)
from understudy_data.load.memory_plan import (
    Division,
    MemoryPlan,
    RankNeeds,
    describe_plan,
    divide_memory,
    needs_of_order,
    needs_of_rank,
)
from understudy_data.order import ClipOrder, Order, Spec
from understudy_data.order.cost import (
    BEARABLE,
    bearable,
    clips_cost,
    lane_correlation,
    opens_quickly,
    uniform_cost,
)
from understudy_data.order.defaults import held_frames, lane_counts, turn_together
from understudy_data.order.make_spec import (
    CheckedSource,
    OrderRequest,
    ResolvedSource,
    Settings,
    as_int,
    as_list,
    check_source,
    choose_settings,
    number_sources,
    resolve_weights,
)
from understudy_data.order.random import check_seed
from understudy_data.order.spec import Entry, SourceSpec

WINDOWS = (1, 8, 64)
"""Batches looked at together."""
# cost, and correlation over 8 batches, above which a loader says so
_NOTICED = 1.4
_CORRELATED = 3.0
_UNLIMITED = 1 << 62
_FEW = 100_000  # frames of a source that is shuffled one by one where each is decoded alone
_GIGABYTES = (2, 4, 8, 16, 32, 64, 128, 256)  # memory to advise
_MOST_ON_DISK = 10**12  # bytes of a decoded cache to advise
# pixels of the images of the advised edit, and CPU milliseconds of writing one
_SIDE = 224
_ENCODE_MS = 2.5
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
            kind = f"{source.lanes} lanes of {source.clip} frames"
            if source.clip == 1:
                kind = "uniform"
            if keep:
                kind += ", kept decoded"
            kinds.append(kind)
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
    datasets: EpisodeArrays | Sequence[EpisodeArrays],
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
        workers: processes of a rank that make its batches in turn and share its memory, as of an
            `EpisodeStream`; fewer where the memory holds no batch of each.
        image_size: (height, width) of its images; None keeps the recorded size.
        decoded_cache: whether it keeps decoded images on disk.
        frames_in_flight: the most frames of open clips; by default the memory alone limits them.
        weights: this and all further arguments: as for `Order.from_datasets`. With a mode other
            than "clips", or with `clip` or `lanes`, the order is the requested one.

    Raises:
        ValueError: as `Order.from_datasets` and `plan_memory`.
        DatasetError: a video cannot be opened.
    """
    datasets = as_list(datasets)
    if clip is not None:
        clip = as_int("clip", clip)
    if lanes is not None:
        lanes = as_int("lanes", lanes)
    in_flight = (
        _UNLIMITED if frames_in_flight is None else as_int("frames_in_flight", frames_in_flight)
    )
    request = OrderRequest(mode, as_int("batch_size", batch_size), in_flight, clip, lanes, inside)
    seed = check_seed(seed)
    shares = resolve_weights(datasets, weights, temperature)
    facts = read_facts_of_all(datasets, image_size, decoded_cache)
    sources = [check_source(data) for data in datasets]
    resources = {"memory": memory, "world_size": world_size, "num_threads": num_threads}
    while True:
        try:
            return choose_from_facts(
                facts, sources, shares, request, seed, workers=workers, **resources
            )
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
    grouped = group_facts(facts, number_sources(sources, weights, request))
    reader = _Reader(world_size * workers, workers, num_threads)
    given = _Offers(grouped, sources, weights, request, reader)
    offers = given.plan(memory)
    best = _choose(offers, request)

    def figures(changed: FactGroups, budget: int) -> tuple[float, float]:
        offer = best
        if changed != grouped or budget != memory:
            others = (
                given if changed is grouped else _Offers(changed, sources, weights, request, reader)
            )
            offer = _choose(others.plan(budget), request)
        return offer.cost, offer.arrangement.correlation[1]

    candidates = {offer: _candidate(offer, sources, request.batch_size, seed) for offer in offers}
    chosen = candidates[best]
    layouts = [source.layout for source in chosen.sources]
    reasons = [source.reasons for source in chosen.sources]
    order = ClipOrder(chosen.spec, layouts, reasons, weights)
    words = "" if _is_fixed(request) else advice(grouped, memory, figures)
    return OrderChoice(order, tuple(candidates.values()), chosen, words)


@dataclass(frozen=True)
class _Reader:
    """The processes that read an order."""

    count: int
    """Of all ranks."""
    workers: int
    """Of one rank: they make its batches in turn."""
    num_threads: int


class _Costs:
    """Costs of an order for the plans of one rank."""

    def __init__(self, needs: RankNeeds, spec_round: int, batch_size: int, world_size: int) -> None:
        period = spec_round if len(needs.number_of) > 1 else needs.sources[0].spec.lanes
        self._needs = needs
        self._shared_by = min(world_size, batch_size // gcd(period, batch_size))
        self._weights = [
            source.slots * (source.facts.decode_ms + _MS_PER_ROW) for source in needs.sources
        ]
        self._sum = sum(map(self._weights.__getitem__, needs.number_of))
        self._terms: dict[int, list[float]] = {}

    def __call__(self, division: Division) -> float:
        """Cost of a sample: `order_cost`."""
        terms = self._terms_at(division.level)
        numbers = self._needs.number_of
        if any(division.keeps_decoded):
            terms = [*terms, *self._weights]
            count = len(self._weights)
            numbers = tuple(
                number + count * keep for number, keep in zip(numbers, division.keeps_decoded)
            )
        return sum(map(terms.__getitem__, numbers)) / self._sum

    def _terms_at(self, level: int) -> list[float]:
        """Weighted cost of each source that does not stay decoded."""
        if level not in self._terms:
            self._terms[level] = [
                weight
                * _source_cost(
                    source.facts, source.spec, False, source.policy(level), self._shared_by
                )
                for weight, source in zip(self._weights, self._needs.sources)
            ]
        return self._terms[level]


class _Arrangement:
    """An order of a request, before memory is divided."""

    def __init__(
        self,
        settings: Settings,
        facts: FactGroups,
        sources: Sequence[CheckedSource],
        batch_size: int,
        reader: _Reader,
    ) -> None:
        self.settings = settings
        self._batch_size = batch_size
        self._slots = dict(zip(settings.part_of, settings.slots))
        self._reaches = dict(zip(settings.part_of, (source.reach for source in sources)))
        # W batches in turn, as one that W times the ranks share
        together = batch_size * reader.workers
        self.needs = needs_of_rank(
            facts, settings, together, rank=reader.count - 1, world_size=reader.count
        )
        self.cost = _Costs(self.needs, settings.round, together, reader.count)

    @cached_property
    def key(self) -> Hashable:
        """Equal for equal orders of the same sources."""
        parts = [
            (part.clip, part.lanes, part.shuffle, part.inside, part.cut)
            for part in self.settings.parts
        ]
        return (
            tuple(map(parts.__getitem__, self.settings.part_of)),
            self.settings.slots,
            self.settings.version,
        )

    @cached_property
    def correlation(self) -> tuple[float, ...]:
        """As in `Candidate`: the mean over the sources, by their samples."""
        return tuple(self._correlation(count * self._batch_size) for count in WINDOWS)

    def _correlation(self, samples: int) -> float:
        total = sum(self.settings.slots)
        terms = []
        for number, part in enumerate(self.settings.parts):
            share = self._slots[number] / total
            terms.append(
                share * lane_correlation(part.frames, part.clip, part.lanes, share * samples)
            )
        return sum(map(terms.__getitem__, self.settings.part_of))

    @cached_property
    def lanes(self) -> int:
        """Lanes of all sources."""
        return self._sum([part.lanes for part in self.settings.parts])

    @cached_property
    def held(self) -> int:
        """Frames in flight, with all of the sources that are shuffled one by one."""
        frames = []
        for number, part in enumerate(self.settings.parts):
            in_lanes = part.lanes * held_frames(part.clip, self._reaches[number])
            in_flight = in_lanes if part.clip > 1 else part.frames
            frames.append(in_flight)
        return self._sum(frames)

    @cached_property
    def turns_together(self) -> bool:
        """Whether all lanes of a source begin every new clip at the same step."""
        return any(
            turn_together(part.frames, part.clip, part.lanes) for part in self.settings.parts
        )

    def _sum(self, values: Sequence[int]) -> int:
        """Sum over all sources of a value of each part."""
        return sum(map(values.__getitem__, self.settings.part_of))


@dataclass(frozen=True, eq=False)
class _Offer:
    """An order, and how memory is divided for it."""

    arrangement: _Arrangement
    division: Division
    cost: float
    """As in `Candidate`."""


class _Offers:
    """The orders that a request leaves, over sources with certain facts."""

    def __init__(
        self,
        facts: FactGroups,
        sources: Sequence[CheckedSource],
        weights: Sequence[float],
        request: OrderRequest,
        reader: _Reader,
    ) -> None:
        self._sources: list[CheckedSource] = []
        for source, kind in zip(sources, facts.kind_of):
            gop = facts.kinds[kind].gop
            if source.gop != gop:
                source = replace(source, gop=gop)
            self._sources.append(source)
        self._facts = facts
        self._weights = weights
        self._request = request
        self._reader = reader
        self._arrangements: dict[OrderRequest, _Arrangement] = {}

    def plan(self, memory: int) -> list[_Offer]:
        """The requested order alone where it is fixed; otherwise the uniform shuffle, and lanes.

        Args:
            memory: bytes that the loader of a rank may hold.
        """
        request = self._request
        facts = self._facts
        if _is_fixed(request):
            return [self._offer(request, memory)]
        first = self._offer(replace(request, mode="uniform", inside="sequential"), memory)
        fits = [source.frames <= request.in_flight for source in facts.kinds]
        is_cheap = [_is_cheap(source) for source in facts.kinds]
        uniform = frozenset(
            number
            for number, (kind, keep) in enumerate(zip(facts.kind_of, first.division.keeps_decoded))
            if fits[kind] and (keep or is_cheap[kind])
        )
        laned = [
            facts.kinds[kind] for number, kind in enumerate(facts.kind_of) if number not in uniform
        ]
        if not laned and sum(source.frames for source in self._sources) <= request.in_flight:
            # others differ in the slots of a round alone, and `_choose` takes the first of equal
            # ones
            return [first]
        gop = max((source.gop for source in laned), default=1)
        frames = sum(source.frames for source in laned)
        together = request.batch_size * self._reader.workers
        quick = [
            lanes
            for lanes in lane_counts(request.batch_size)
            if opens_quickly(frames, gop, lanes, together)
        ]
        laned_offers = [
            self._offer(replace(request, spread=lanes, uniform=uniform), memory) for lanes in quick
        ]
        return list({offer.arrangement.key: offer for offer in [first, *laned_offers]}.values())

    def _offer(self, request: OrderRequest, memory: int) -> _Offer:
        arrangement = self._arrange(request)
        memory //= self._reader.workers
        division = divide_memory(
            arrangement.needs, num_threads=self._reader.num_threads, memory=memory
        )
        return _Offer(arrangement, division, arrangement.cost(division))

    def _arrange(self, request: OrderRequest) -> _Arrangement:
        """The order of a request, which no memory changes."""
        if request not in self._arrangements:
            settings = choose_settings(self._sources, self._weights, request, self._facts.kind_of)
            self._arrangements[request] = _Arrangement(
                settings, self._facts, self._sources, request.batch_size, self._reader
            )
        return self._arrangements[request]


def _candidate(
    offer: _Offer, sources: Sequence[CheckedSource], batch_size: int, seed: int
) -> Candidate:
    settings = offer.arrangement.settings
    resolved = settings.resolve(sources)
    specs = tuple(source.spec for source in resolved)
    schedule = (Entry(0, settings.slots),)
    spec = Spec(seed, batch_size, specs, schedule, settings.version)
    plan = describe_plan(offer.division, [source.name for source in sources])
    return Candidate(tuple(resolved), spec, plan, offer.cost, offer.arrangement.correlation)


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
    place = {"rank": rank, "world_size": world_size}
    grouped = group_facts(facts)
    needs = needs_of_order(grouped, order, **place)

    def figures(changed: FactGroups, memory: int) -> tuple[float, float]:
        read = needs if changed is grouped else needs_of_order(changed, order, **place)
        division = divide_memory(read, num_threads=num_threads, memory=memory)
        return _Costs(read, order.spec.round, order.batch_size, world_size)(division), nan

    return advice(grouped, memory, figures)


def order_cost(
    facts: Sequence[SourceFacts], spec: Spec, plan: MemoryPlan, world_size: int
) -> float:
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
        for source, part, keep, policy in zip(
            facts, spec.sources, plan.keeps_decoded, plan.policies
        )
    ]
    return sum(weight * cost for weight, cost in zip(weights, costs)) / sum(weights)


def _source_cost(
    facts: SourceFacts, spec: SourceSpec, keep: bool, policy: DecodePolicy, shared_by: int
) -> float:
    if keep or not facts.frame or not spec.shuffle:
        return 1.0
    if (
        spec.clip == 1
        or policy.run_length == 0
        or (policy.run_length == 1 and not policy.keep_decoder)
    ):
        starts = (
            _START_MS * len(facts.frame) / (facts.decode_ms + _MS_PER_ROW) if facts.gop > 1 else 0.0
        )
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
    cost_of_runs = _OWN_RUN_COST.get(policy.run_length, 1.0) if policy.keep_decoder else 1.0
    return clips * cost_of_runs


def _is_fixed(request: OrderRequest) -> bool:
    """Whether the settings leave nothing to choose."""
    return request.mode != "clips" or request.clip is not None or request.lanes is not None


def _is_cheap(facts: SourceFacts) -> bool:
    """Whether few frames are each decoded alone, or have no video."""
    return facts.gop == 1 and not facts.halo and facts.frames <= _FEW


def _choose(offers: Sequence[_Offer], request: OrderRequest) -> _Offer:
    """The order of the module's rule."""
    fitting = [offer for offer in offers if offer.arrangement.held <= request.in_flight] or offers[
        -1:
    ]
    bound = bearable(offer.cost for offer in fitting)
    cheap = [offer for offer in fitting if offer.cost <= bound]
    staggered = [offer for offer in cheap if not offer.arrangement.turns_together]

    def rank(offer: _Offer) -> tuple[float, float, int]:
        correlation = offer.arrangement.correlation
        return round(correlation[1], 2), round(correlation[2], 2), offer.arrangement.lanes

    return min(staggered or cheap, key=rank)


Figures = Callable[[FactGroups, int], tuple[float, float]]
"""Facts of datasets and bytes of memory -> (cost, correlation over 8 batches) of the order of a
loader that has them.

The correlation is nan for an order that is given: other settings do not change it.
"""


def advice(facts: FactGroups, memory: int, figures: Figures) -> str:
    """One line on an order that costs much or mixes badly, and on better settings; "" for any
    other.

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
        return pair[0] <= max(BEARABLE, 0.7 * cost) and (
            is_fixed or pair[1] <= max(_CORRELATED, 0.7 * correlation)
        )

    small = facts.change(lambda source: resized(source, _SIDE))
    edited = small.change(lambda source: replace(source, gop=min(source.gop, 2)))
    work = [
        source.frames * (source.decode_ms + _ENCODE_MS * len(source.frame))
        for source in facts.kinds
    ]
    minutes = sum(facts.each(work)) / 60_000
    disk = facts.sum(lambda source: source.disk_images)
    has_cache = any(source.on_disk for source in facts.kinds)
    cached = facts.change(lambda source: replace(source, on_disk=True))
    remedies = [
        (f"memory='{size}GB'", facts, size * 10**9) for size in _GIGABYTES if size * 10**9 > memory
    ]
    if 0 < disk <= _MOST_ON_DISK and not has_cache:
        remedies.append((f"decoded_cache=FOLDER, {disk / 1e9:.1f} GB on disk", cached, memory))
    edit = f"`understudy edit … --gop 2 --size {_SIDE}`, about {ceil(minutes)} min of CPU"
    remedies += [(f"image_size=({_SIDE}, {_SIDE})", small, memory), (edit, edited, memory)]
    helping: dict[str, str] = {}
    for name, changed, size in remedies:
        kind = name.split("=")[0]
        if kind not in helping and is_better(better := figures(changed, size)):
            variance = "" if is_fixed else f", {1 + better[1]:.1f}"
            helping[kind] = f"{name} ({better[0]:.1f} times{variance})"
    mixing = ""
    if not is_fixed:
        mixing = f"8 batches have {1 + correlation:.1f} times the variance of independent clips, "
    return (
        f"each sample costs {cost:.1f} times the CPU time of decoding in a row, {mixing}"
        f"in {memory / 1e9:.3g} GB of memory; "
        "better with "
        + ("; ".join(helping.values()) or "nothing known: more frames, or a shorter GOP")
    )
