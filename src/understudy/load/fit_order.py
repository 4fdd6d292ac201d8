"""A new order whose clips the loaders of a run can read in runs of frames, within their memory."""

from collections.abc import Mapping, Sequence
from functools import partial

from understudy.data.dataset import EpisodeDataset
from understudy.deprecation import renamed_arguments
from understudy.load.memory_plan import make_plan, megabytes
from understudy.order import Order
from understudy.order.audit.audit import WINDOWS, as_read, audit
from understudy.order.defaults import default_in_flight
from understudy.order.make_spec import as_list


@renamed_arguments(batch="batch_size", world="world_size", threads="num_threads", size="image_size")
def fit_order(
    datasets: EpisodeDataset | Sequence[EpisodeDataset],
    *,
    memory: int,
    world_size: int = 1,
    num_threads: int = 2,
    image_size: tuple[int, int] | None = None,
    frames_in_flight: int | None = None,
    weights: Sequence[float] | Mapping[str, float] | None = None,
    temperature: float | None = None,
    batch_size: int,
    seed: int = 0,
    mode: str = "clips",
    clip: int | None = None,
    lanes: int | None = None,
    inside: str = "sequential",
) -> tuple[Order, tuple[str, ...]]:
    """Make a new order that each rank can read in runs of frames in `memory` bytes.

    Frames in flight are halved until that is so.

    Args:
        datasets: one, or several.
        memory: bytes that a rank's loader may hold.
        world_size: number of ranks.
        num_threads: threads of a rank's loader.
        image_size: (height, width) of its images; None keeps the recorded size.
        frames_in_flight: the most; by default as in `Order.from_datasets`.
        weights: this and all further arguments: as for `Order.from_datasets`.

    Returns:
        The order, and notes: none where the requested order fits. Otherwise the reduced number of frames in flight and
        its design effect (`order/audit/design_effect.py`), or that fewer frames would not help; the order is then the
        requested one.

    Raises:
        ValueError: as `Order.from_datasets` and `make_plan`.
    """
    datasets = as_list(datasets)
    make_order = partial(
        Order.from_datasets,
        datasets,
        weights=weights,
        temperature=temperature,
        batch_size=batch_size,
        seed=seed,
        mode=mode,
        clip=clip,
        lanes=lanes,
        inside=inside,
    )
    requested = make_order(frames_in_flight=frames_in_flight)
    most = default_in_flight(requested.batch_size) if frames_in_flight is None else frames_in_flight
    order, frames = requested, most

    def fits(one: Order) -> bool:  # on the last rank, whose share is never smaller than another's
        plan = make_plan(
            datasets,
            one,
            rank=world_size - 1,
            world_size=world_size,
            num_threads=num_threads,
            memory=memory,
            image_size=image_size,
        )
        sources = zip(plan.policies, plan.keeps_decoded, one.spec.sources)
        return all(policy.run_length > 1 or keep or source.clip == 1 for policy, keep, source in sources)

    fitting = fits(order)
    while not fitting and frames > order.batch_size:
        frames //= 2
        order = make_order(frames_in_flight=frames)
        fitting = fits(order)
    if not fitting:
        lanes = sum(source.lanes for source in requested.spec.sources)
        note = f"{lanes} lanes cannot be read in runs of frames in {megabytes(memory)}, nor with fewer frames in flight"
        return requested, (f"{note}: give more memory, fewer lanes, or fewer samples in a batch",)
    if order.spec == requested.spec:
        return requested, ()
    before, after = _design_effects(requested), _design_effects(order)
    spans = ", ".join(f"{b:.2f} -> {a:.2f} over {w}" for w, b, a in zip(WINDOWS, before, after))
    return order, (
        f"{frames} frames in flight instead of {most}: twice as many do not fit {megabytes(memory)}",
        f"design effect of the batches, by batches looked at together: {spans}",
    )


def _design_effects(order: Order) -> tuple[float, ...]:
    read, lengths = as_read(order)
    span = max(4 * WINDOWS[-1] * order.batch_size, 2**14)
    return audit(read, lengths, order.batch_size, world_size=1, span=span).deff
