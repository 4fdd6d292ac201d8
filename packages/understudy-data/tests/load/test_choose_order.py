"""The order that a loader chooses: its cost, its mixing, its memory, and the same on every
machine.
"""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from order_audit import as_read, audit
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused, warned
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.choose_order import OrderChoice, choose_from_facts, order_cost
from understudy_data.load.dataloader.episode_stream import EpisodeStream
from understudy_data.load.images.source_facts import FactGroups, SourceFacts, read_facts, resized
from understudy_data.load.loader import Loader
from understudy_data.load.memory_plan import (
    describe_plan,
    divide_memory,
    needs_of_order,
    plan_memory,
)
from understudy_data.order import ClipOrder, Order
from understudy_data.order.cost import lane_correlation
from understudy_data.order.defaults import turn_together
from understudy_data.order.make_spec import (
    CheckedSource,
    OrderRequest,
    choose_settings,
    number_sources,
)
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.order_sources import episodes

GIGABYTE = 10**9
H264_480 = (463_200, 2_800_000)
AV1_480 = (737_280, 2_900_000)
"""Bytes of a decoded frame of 640 x 480 and of a live decoder."""


def facts(
    frames: int, gop: int, cameras: int = 1, *, of: tuple[int, int] = H264_480, **changes: Any
) -> SourceFacts:
    """A dataset of 640 x 480 pixels."""
    frame, decoder = of
    known = SourceFacts(
        name="data",
        frames=frames,
        gop=gop,
        reach=(0, 0),
        window=1,
        frame=(frame,) * cameras,
        decoder=(decoder,) * cameras,
        resized=False,
        sample=cameras * 640 * 480 * 3,
        all_images=frames * cameras * frame,
        columns=(frames * 200,),
        is_remote=False,
        decode_ms=0.6 * cameras,
        pixels=640 * 480,
    )
    return replace(known, **changes)


def choose(
    *sources: SourceFacts,
    memory: int,
    batch_size: int = 32,
    world_size: int = 1,
    workers: int = 1,
    **given: Any,
) -> OrderChoice:
    lengths = [np.full(source.frames // 267 + 1, 267) for source in sources]
    for source, counts in zip(sources, lengths):
        counts[-1] = source.frames - counts[:-1].sum()
    rows = [np.stack([np.arange(len(counts)), 0 * counts, counts], axis=1) for counts in lengths]
    checked = [
        CheckedSource(f"{number}", table, source.frames, f"{number}", source.gop, source.reach)
        for number, (source, table) in enumerate(zip(sources, rows))
    ]
    request = OrderRequest("clips", batch_size, given.pop("in_flight", 1 << 62), **given)
    weights = [float(source.frames) for source in sources]
    resources: dict[str, Any] = {
        "memory": memory,
        "world_size": world_size,
        "workers": workers,
        "num_threads": 8,
    }
    return choose_from_facts(sources, checked, weights, request, 0, **resources)


@pytest.mark.parametrize("memory", [1, 4, 16])
@pytest.mark.parametrize("cameras", [1, 3])
@pytest.mark.parametrize("gop", [2, 30, 250])
@pytest.mark.parametrize("frames", [2_138, 8_552, 42_760, 400_000])
def test_a_default_costs_at_most_a_quarter_more_than_decoding_in_a_row(
    frames: int, gop: int, cameras: int, memory: int
) -> None:
    choice = choose(facts(frames, gop, cameras), memory=memory * GIGABYTE)
    assert choice.chosen.cost <= 1.25
    assert choice.chosen.plan.bytes <= memory * GIGABYTE
    within = [candidate for candidate in choice.candidates if candidate.cost <= 1.25]
    staggered = [
        c
        for c in within
        if not turn_together(frames, c.spec.sources[0].clip, c.spec.sources[0].lanes)
    ]
    assert choice.chosen in (staggered or within)
    assert choice.chosen.correlation[1] <= min(c.correlation[1] for c in staggered or within) + 0.01


def test_images_that_fit_stay_decoded_and_are_shuffled_one_by_one() -> None:
    choice = choose(facts(8_552, 250), memory=8 * GIGABYTE)
    assert choice.order.spec.sources[0].clip == 1
    assert choice.chosen.plan.keeps_decoded == (True,)
    assert choice.chosen.cost == 1.0
    small = choose(facts(8_552, 250), memory=4 * GIGABYTE)
    assert small.order.spec.sources[0].clip == 250
    assert small.chosen.plan.keeps_decoded == (False,)


def test_images_that_a_reader_cannot_keep_are_not_chosen_as_kept() -> None:
    """A quarter of the memory holds no set that all of it holds."""
    data = facts(400_000, 250)
    assert choose(data, memory=200 * GIGABYTE).chosen.plan.keeps_decoded == (True,)
    choice = choose(data, memory=200 * GIGABYTE, workers=4)
    assert choice.chosen.plan.keeps_decoded == (False,)
    assert choice.order.spec.sources[0].clip > 1
    assert choice.chosen.cost <= 1.25


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_share_no_lane(workers: int) -> None:
    """Two workers that read a lane would both decode it."""
    for gop in (2, 250):
        spec = choose(facts(400_000, gop), memory=4 * GIGABYTE, workers=4).order.spec
        assert spec.sources[0].lanes % (workers * spec.batch) == 0


def test_memory_buys_mixing_up_to_the_bound_of_the_cost() -> None:
    data = facts(42_760, 2, of=AV1_480)
    lanes = [
        choose(data, memory=m * GIGABYTE // 10).order.spec.sources[0].lanes for m in (2, 4, 10, 40)
    ]
    assert lanes == sorted(lanes)
    assert lanes[0] < lanes[-1]


def test_a_decoded_cache_is_shuffled_one_by_one_in_any_memory_and_is_offered_where_it_helps() -> (
    None
):
    data = facts(42_760, 250, 3, disk_images=9_000_000_000)
    assert "decoded_cache=FOLDER, 9.0 GB on disk" in choose(data, memory=GIGABYTE).advice
    assert "decoded_cache" not in choose(replace(data, disk_images=10**13), memory=GIGABYTE).advice
    choice = choose(replace(data, on_disk=True), memory=GIGABYTE)
    assert choice.order.spec.sources[0].clip == 1
    assert choice.chosen.cost == 1.0
    assert choice.chosen.plan.keeps_decoded == (True,)
    assert choice.chosen.plan.bytes <= GIGABYTE
    assert not choice.advice


def test_frames_in_flight_limit_the_lanes() -> None:
    data = facts(400_000, 2)
    limited = choose(data, memory=16 * GIGABYTE, in_flight=4_000).order.spec.sources[0]
    assert limited.lanes * limited.clip <= 4_400
    assert choose(data, memory=16 * GIGABYTE).order.spec.sources[0].lanes > limited.lanes


def test_lanes_that_ranks_share_cost_as_often() -> None:
    """Fewer lanes than samples: two ranks would read each of them."""
    alone = choose(facts(8_552, 250), memory=GIGABYTE)
    pair = choose(facts(8_552, 250), memory=GIGABYTE, world_size=2)
    assert alone.order.spec.sources[0].lanes < 32
    half = next(one for one in pair.candidates if one.spec == alone.order.spec)
    assert half.cost == pytest.approx(2 * alone.chosen.cost)


def test_a_mixture_keeps_what_fits_and_reads_the_rest_in_lanes() -> None:
    choice = choose(facts(2_000, 250), facts(100_000, 30), memory=4 * GIGABYTE)
    small, large = choice.order.spec.sources
    assert choice.chosen.plan.keeps_decoded == (True, False)
    assert (small.clip, small.lanes) == (1, 1)
    assert large.clip > 1
    assert large.lanes >= 32
    assert choice.chosen.cost <= 1.25


def test_a_bad_order_is_told_with_settings_that_are_better() -> None:
    assert choose(facts(42_760, 250), memory=4 * GIGABYTE).advice == ""
    advice = choose(facts(8_552, 250), memory=GIGABYTE).advice
    assert "memory='8GB'" in advice
    assert "--gop 2" in advice
    assert "\n" not in advice
    dear = facts(8_552, 250, reach=(150, 0), window=6)
    assert choose(dear, memory=90_000_000, batch_size=4).advice != ""


@pytest.mark.parametrize(
    ("clip", "lanes", "mode"), [(64, 32, "clips"), (None, 32, "clips"), (None, None, "uniform")]
)
def test_requested_orders_are_not_chosen(clip: int | None, lanes: int | None, mode: str) -> None:
    request = OrderRequest(mode, 32, 1 << 62, clip, lanes)
    source = facts(42_760, 250)
    checked = [CheckedSource("0", np.array([[0, 0, 42_760]]), 42_760, "0", 250, (0, 0))]
    choice = choose_from_facts(
        [source], checked, [1.0], request, 0, memory=GIGABYTE, world_size=1, num_threads=2
    )
    assert len(choice.candidates) == 1
    assert choice.order.spec.sources[0].lanes == (lanes or 1)
    assert clip in (None, choice.order.spec.sources[0].clip)


def test_correlation_is_that_of_the_audit() -> None:
    source = episodes(*[270] * 158, gop=250)

    def deff(**given: Any) -> tuple[float, ...]:
        read, lengths = as_read(Order.from_datasets(source, batch_size=32, **given))
        return audit(read, lengths, 32, world_size=1, span=2**14).deff

    uniform = deff(mode="uniform")
    for clip, lanes in ((250, 32), (250, 96), (65, 256)):
        measured = [one - other for one, other in zip(deff(clip=clip, lanes=lanes), uniform)]
        estimated = [lane_correlation(158 * 270, clip, lanes, 32 * count) for count in (1, 8, 64)]
        assert estimated == pytest.approx(measured, rel=0.6, abs=0.4)


@pytest.fixture
def data(tmp_path: Path) -> EpisodeDataset:
    write_dataset(tmp_path / "data", Spec(lengths=(60,) * 24))
    return EpisodeDataset(tmp_path / "data", frame_cache_bytes=0)


def test_facts_of_a_dataset_are_those_of_its_images(data: EpisodeDataset) -> None:
    whole = read_facts(data)
    small = read_facts(data, (16, 16))
    assert whole.frames == small.frames == len(data)
    cameras = len(whole.frame)
    assert small.sample == cameras * 16 * 16 * 3
    assert small.all_images == small.sample * len(data)
    assert whole.all_images <= whole.sample * len(data)
    assert resized(whole, 10**4) == whole
    assert resized(whole, 16).all_images < whole.all_images


def test_a_loader_continues_the_order_of_a_state_in_other_memory(data: EpisodeDataset) -> None:
    with Loader(data, batch_size=4, seed=1) as roomy:
        expected = [next(roomy) for _ in range(6)]
        roomy.load_state_dict(roomy.state_dict() | {"position": 8})
        state = roomy.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tight = Loader(data, batch_size=4, seed=1, memory=roomy.plan.bytes // 2)
        stream = EpisodeStream(data, batch_size=4, seed=1, memory=roomy.plan.bytes // 2)
        assert tight.order.spec != roomy.order.spec
        with tight:
            next(tight)
            tight.load_state_dict(state)
            assert tight.order.spec == roomy.order.spec
            assert tight.plan.keeps_decoded == (False,)
            for batch in expected[2:]:
                assert (next(tight)["index"] == batch["index"]).all()
            permuted = Order.from_datasets(
                data, batch_size=4, seed=1, clip=5, lanes=4, inside="permuted"
            )
            tight.load_state_dict({"position": 0, "order": permuted.to_json()})
            assert tight.order.spec == permuted.spec
        stream.load_state_dict(state)
        assert stream.order.spec == roomy.order.spec
        assert (next(iter(stream))["index"] == expected[2]["index"]).all()
        given = Loader(data, order=Order.from_datasets(data, batch_size=4, seed=1, clip=5, lanes=4))
        with given, refused("order", kind=ConfigError):
            given.load_state_dict(state)


def test_a_stream_has_an_order_that_its_workers_can_read(data: EpisodeDataset) -> None:
    data.__dict__["gop"] = 60
    kept = Loader(data, batch_size=4)
    assert kept.order.spec.sources[0].clip == 1
    memory = kept.plan.bytes + kept.plan.bytes // 4
    options: dict[str, Any] = {"batch_size": 4, "memory": memory}
    assert Loader(data, **options).order.spec.sources[0].clip == 1
    assert EpisodeStream(data, **options).order.spec.sources[0].clip > 1


def test_a_given_order_that_costs_much_is_told(data: EpisodeDataset) -> None:
    uniform = Order.from_datasets(data, batch_size=4, mode="uniform")
    with Loader(data, batch_size=4, seed=1) as roomy:
        needed = roomy.plan.bytes
    data.__dict__["gop"] = 60
    with warned() as caught:
        Loader(data, order=uniform, memory=needed // 2).close()
    assert len(caught) == 1
    # no other setting changes the mixing of a given order
    assert "variance" not in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Loader(data, order=uniform).close()


@pytest.mark.parametrize("seed", range(12))
def test_sources_that_are_alike_are_planned_as_each_alone(seed: int) -> None:
    """Grouped sources have the settings, the plan, the cost and the lanes that each has by
    itself.
    """
    draw = np.random.default_rng(seed)
    count = int(draw.integers(2, 40))
    kinds = [facts(int(10 ** draw.uniform(1, 4)), int(draw.integers(1, 60))) for _ in range(3)]
    sources = [replace(kinds[draw.integers(3)], name=f"{number}") for number in range(count)]
    memory = 200_000_000 + int(
        sum(source.all_images for source in sources) * draw.uniform(0.01, 0.3)
    )
    world_size = int(draw.integers(1, 4))
    choice = choose(*sources, memory=memory, world_size=world_size)
    alone = FactGroups(
        tuple(source.name for source in sources), tuple(sources), tuple(range(count))
    )
    rank: dict[str, Any] = {"rank": world_size - 1, "world_size": world_size}
    for candidate in choice.candidates:
        order = ClipOrder(candidate.spec, ())
        plan = plan_memory(sources, order, num_threads=8, memory=memory, **rank)
        needs = needs_of_order(alone, order, **rank)
        division = divide_memory(needs, num_threads=8, memory=memory)
        assert (
            plan == candidate.plan == describe_plan(division, [source.name for source in sources])
        )
        assert candidate.cost == order_cost(sources, candidate.spec, plan, world_size)
        checked = [part.source for part in candidate.sources]
        weights = [float(source.frames) for source in sources]
        request = OrderRequest("clips", 32, 1 << 62, spread=64)
        settings = choose_settings(
            checked, weights, request, number_sources(checked, weights, request)
        )
        each = choose_settings(checked, weights, request, range(count))
        assert settings.resolve(checked) == each.resolve(checked)
        assert settings.slots == each.slots
