"""A request for batches with all that its threads need: planned memory, open datasets, buffers."""

from dataclasses import dataclass, replace
from typing import Any

from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.bad_frames import Substitutes
from understudy_data.load.batch_request import BatchRequest
from understudy_data.load.choose_order import advise_on
from understudy_data.load.images.buffer_pool import BufferPool
from understudy_data.load.images.decoded_cache import keep_decoded
from understudy_data.load.images.disk_cache import DiskCache
from understudy_data.load.images.source_facts import SourceFacts, in_memory, read_facts
from understudy_data.load.memory_plan import MemoryPlan, plan_memory
from understudy_data.load.mixed_batches import image_shapes


@dataclass(frozen=True)
class Prepared:
    """A request that can be loaded."""

    request: BatchRequest
    """With its datasets as they are read: decoded images of some of them stay."""
    plan: MemoryPlan
    """Memory that is held, item by item, and how it is decoded."""
    substitutes: Substitutes | None
    """Substitutes of samples that cannot be read; None: such a sample is an error."""
    buffers: BufferPool
    """Buffers of the images of all batches that are planned."""
    advice: tuple[str, ...]
    """What costs much, and a remedy: a line each."""


def prepare(request: BatchRequest, num_threads: int, pin: bool, advises: bool) -> Prepared:
    """Plan the memory for a request, and give each dataset its part.

    Args:
        request: the request, with its datasets as they were opened.
        num_threads: threads that make batches.
        pin: batches in page-locked memory.
        advises: whether to look at the cost of the order.

    Raises:
        ValueError: images of several sizes, or memory for less than one batch.
        DatasetError: no video of a camera can be opened.
    """
    # refuses several sizes
    cameras = len(image_shapes(request.datasets, request.image_size)[0])
    cache = request.disk_cache
    facts, advice = _read_facts(request, cache is not None)
    resources: dict[str, Any] = {
        "rank": request.rank,
        "world_size": request.world_size,
        "num_threads": num_threads,
        "memory": request.memory_bytes,
    }
    plan = plan_memory(facts, request.order, **resources)
    if advises and (costs := advise_on(request.order, facts, **resources)):
        advice.append(costs)
    datasets = []
    for number, data in enumerate(request.datasets):
        datasets.append(_with_memory(request, plan, number, cache))
        is_unused = cache is not None and not plan.keeps_decoded[number]
        if is_unused and data.video_keys:
            advice.append(
                f"decoded_cache: not used for {data.name}, whose decoders need more than "
                f"{plan.memory} bytes; give more memory"
            )
    substitutes = None
    if request.on_bad_frame == "substitute":
        substitutes = Substitutes(request.order, request.journal, request.bad_frame_cap)
    return Prepared(
        replace(request, datasets=tuple(datasets)),
        plan,
        substitutes,
        BufferPool((plan.batches_ahead + 2) * cameras, pin),  # as planned
        tuple(advice),
    )


def _read_facts(request: BatchRequest, has_cache: bool) -> tuple[list[SourceFacts], list[str]]:
    """Facts of each dataset for the plan, and lines on those whose columns cannot be mapped."""
    facts = []
    advice = []
    for data in request.datasets:
        of_source = read_facts(data, request.image_size, has_cache)
        if of_source.mapped and not data.row_tables.is_available:
            of_source = in_memory(of_source)
            advice.append(
                f"{data.name}: no local folder for its columns, which each process decodes for "
                "itself, again and again where they exceed a quarter of memory; set "
                "XDG_CACHE_HOME to a folder on a local disk"
            )
        facts.append(of_source)
    return facts, advice


def _with_memory(
    request: BatchRequest, plan: MemoryPlan, number: int, cache: DiskCache | None
) -> EpisodeDataset:
    """A dataset with its part of the memory; decoded images stay where the plan has room."""
    data = request.datasets[number]
    data.video_frames.keep_open(plan.indexes[number])
    data.keep_rows(plan.rows[number], plan.stored_images, plan.readers, plan.row_parts)
    if not plan.keeps_decoded[number]:
        return data
    files = None if cache is None else cache.open(data, request.image_size)
    return keep_decoded(data, request.image_size, files)
