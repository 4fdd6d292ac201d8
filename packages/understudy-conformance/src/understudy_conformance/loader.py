"""Requirements of loaders:
`factory(root, rank, world_size, num_workers, seed, batch_size, delta_timestamps=None)`.

It returns an iterable of batches of one rank, which is iterated once per epoch, after `set_epoch`
if it has that. An endless loader continues. A batch is a mapping of columns or a list of samples;
`batch_size` is that of a rank.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from understudy_conformance.passes import (
    GLOBAL_BATCH,
    Ranks,
    Step,
    count_samples,
    list_batches,
    list_samples,
)
from understudy_conformance.requirement import (
    Factory,
    Violation,
    describe_error,
    list_places,
    require,
)
from understudy_conformance.samples import (
    COLUMNS,
    Place,
    compare_columns,
    compare_images,
    compare_padding,
    compare_windows,
    split_batch,
    window_seconds,
)
from understudy_conformance.sets import V30, DemoSet, copy_of, root_of

WORKERS = 2


def read_first(loader: Any) -> None:
    """Read the first batch of a loader."""
    split_batch(next(iter(loader)))
    getattr(loader, "close", lambda: None)()


def find_base(factory: Factory) -> DemoSet:
    """Return the first set that the factory's loaders open."""
    return factory.base(
        read_first, rank=0, world_size=1, num_workers=0, seed=0, batch_size=GLOBAL_BATCH
    )


@contextmanager
def open_ranks(factory: Factory, world_size: int = 1, **arguments: Any) -> Iterator[Ranks]:
    """Make loaders of all ranks, and close them."""
    demo = find_base(factory)
    ranks = Ranks(factory, demo, world_size, **({"root": root_of(demo)} | arguments))
    try:
        yield ranks
    finally:
        ranks.close()


def read_epochs(factory: Factory, count: int, **arguments: Any) -> tuple[list[list[Step]], Ranks]:
    """Read epochs 0, 1, ... of new loaders."""
    with open_ranks(factory, **arguments) as ranks:
        return [ranks.read_epoch() for _ in range(count)], ranks


def check_epochs(factory: Factory, **arguments: Any) -> str:
    """Check that each of two epochs has each frame once.

    Either each pass of the loader is an epoch, or the passes are one stream, which the number of
    frames cuts into epochs: the last batch of a pass then holds the first frames of the next epoch.
    """
    passes, ranks = read_epochs(factory, 2, **arguments)
    total = len(ranks.demo.frames)
    stream: list[Place] = []
    for steps in passes:
        stream += list_samples(steps)
    if len(stream) >= 2 * total and all(
        is_epoch(stream[i * total : (i + 1) * total], ranks.demo) for i in range(2)
    ):
        return f"{total} frames, each once, in 2 epochs"
    parts = [stream[:total]] if ranks.endless else [list_samples(steps) for steps in passes]
    for number, part in enumerate(parts):
        if number == 0 or part:  # a loader for one epoch
            describe_coverage(part, ranks.demo, f"epoch {number}: ")
    return f"{total} frames, each once, in {len(parts)} epochs"


def is_epoch(places: list[Place], demo: DemoSet) -> bool:
    """Whether places are all frames, each once."""
    return sorted(places) == demo.frames


def describe_coverage(places: list[Place], demo: DemoSet, begin: str = "") -> None:
    """Raise Violation unless places are all frames, each once."""
    counts = Counter(places)
    frames = demo.frames
    missing = [place for place in frames if not counts[place]]
    repeated = [place for place, count in counts.items() if count > 1]
    foreign = [place for place in counts if place not in frames]
    facts = [
        f"{len(wrong)} {word} ({list_places(wrong)})"
        for word, wrong in (
            ("missing", missing),
            ("more than once", repeated),
            ("of no row", foreign),
        )
        if wrong
    ]
    if facts:
        raise Violation(f"{begin}of {len(frames)} frames {', '.join(facts)}")


@require(
    "R-LOAD-01",
    "One process without workers gives each frame once per epoch.",
    "A frame that is dropped with the last batch of each epoch is seldom learned.",
    "LeRobot #4237",
)
def check_coverage(factory: Factory) -> str:
    """Read two epochs."""
    return check_epochs(factory)


@require(
    "R-LOAD-02",
    "Several workers together give each frame once per epoch.",
    "Workers that do not share out a stream give each frame once per worker.",
)
def check_workers(factory: Factory) -> str:
    """Read two epochs with two workers."""
    factory.need("num_workers")
    return check_epochs(factory, num_workers=WORKERS)


@require(
    "R-LOAD-03",
    "Several ranks together give each frame once per epoch.",
    "Ranks that read the same frames do the work of one.",
    "LeRobot #4692",
)
def check_ranks(factory: Factory) -> str:
    """Read two epochs of two ranks."""
    factory.need("rank", "world_size")
    return check_epochs(factory, world_size=2)


@require(
    "R-LOAD-04",
    "Each rank gives as many batches as the others.",
    "A rank with fewer leaves the others waiting in the next all-reduce.",
)
def check_even(factory: Factory) -> str:
    """Count the batches of two ranks."""
    factory.need("rank", "world_size")
    (epoch,), _ = read_epochs(factory, 1, world_size=2)
    first_count = sum(step[0] is not None for step in epoch)
    second_count = sum(step[1] is not None for step in epoch)
    if first_count != second_count:
        raise Violation(f"batches of the ranks: {first_count}, {second_count}")
    return f"{first_count} batches each"


def check_differ(factory: Factory, **arguments: Any) -> str:
    """Check that two epochs of one loader have different sequences."""
    epochs, ranks = read_epochs(factory, 2, **arguments)
    if not count_samples(epochs[1]):
        raise Violation("the second epoch is empty")
    total = len(ranks.demo.frames)
    first = list_samples(epochs[0])
    second = list_samples(epochs[1])
    if ranks.endless:
        stream = first + second
        first = stream[:total]
        second = stream[total : 2 * total]
    if first == second:
        raise Violation(f"epochs 0 and 1 have the same {len(first)} frames in the same sequence")
    same = sum(a == b for a, b in zip(first, second))
    return f"{same} of {total} places have the same frame"


@require(
    "R-LOAD-05",
    "Two epochs of one loader have different sequences.",
    "The same sequence each epoch makes the same batches.",
    "openpi #1017",
)
def check_differ_alone(factory: Factory) -> str:
    """Compare epochs 0 and 1."""
    return check_differ(factory)


@require(
    "R-LOAD-06",
    "So do two epochs of one loader with workers, which may persist.",
    "Persistent workers hold a copy of the dataset, in which it is always epoch 0.",
    "starVLA #470",
    "datasets #6673",
)
def check_differ_workers(factory: Factory) -> str:
    """Compare epochs 0 and 1 with two workers."""
    factory.need("num_workers")
    return check_differ(factory, num_workers=WORKERS)


def check_equal(first: list[Step], second: list[Step], words: str) -> str:
    """Check that two lists of steps have the same batches, samples and content."""
    a = list_batches(first)
    b = list_batches(second)
    if len(a) != len(b):
        raise Violation(f"{words}: {len(b)} batches, not {len(a)}")
    other = [i for i, (x, y) in enumerate(zip(a, b)) if x.places != y.places]
    if other:
        raise Violation(
            f"{words}: {len(other)} of {len(a)} batches hold other frames, the first is number "
            f"{other[0]}"
        )
    other = [i for i, (x, y) in enumerate(zip(a, b)) if x.content != y.content]
    if other:
        raise Violation(
            f"{words}: the same frames, but other values in {len(other)} of {len(a)} batches"
        )
    return f"{len(a)} batches, equal to the bit"


@require(
    "R-LOAD-07",
    "Another loader with the same arguments gives the same batches, in epochs 0 and 1.",
    "A run that cannot be repeated cannot be resumed.",
    "LeRobot #3769",
)
def check_repeat(factory: Factory) -> str:
    """Read two epochs twice."""
    first, _ = read_epochs(factory, 2)
    second, _ = read_epochs(factory, 2)
    return check_equal([*first[0], *first[1]], [*second[0], *second[1]], "a second loader")


@require(
    "R-LOAD-08",
    "Another number of workers gives the same batches.",
    "Otherwise a run on a smaller machine is another run.",
)
def check_same_workers(factory: Factory) -> str:
    """Read an epoch without and with two workers."""
    factory.need("num_workers")
    (alone,), _ = read_epochs(factory, 1)
    (shared,), _ = read_epochs(factory, 1, num_workers=WORKERS)
    return check_equal(alone, shared, f"{WORKERS} workers")


def read_content(factory: Factory, **arguments: Any) -> tuple[list[Any], DemoSet]:
    """Return the samples of an epoch, read with workers if the factory takes them."""
    (epoch,), ranks = read_epochs(factory, 1, num_workers=WORKERS, **arguments)
    samples: list[Any] = []
    for batch in list_batches(epoch):
        samples += batch.samples
    return samples, ranks.demo


def find_files(factory: Factory) -> DemoSet:
    """Return a set of several video files, of the version that the factory's loaders open."""
    demo = find_base(factory)
    return V30 if demo.version == V30.version else demo


@require(
    "R-LOAD-09",
    "Each sample of a batch has the columns and images of its row.",
    "Columns that are gathered apart can be of other rows.",
    "LeRobot #4524",
)
def check_content(factory: Factory) -> str:
    """Compare an epoch of a set with several video files."""
    samples, demo = read_content(factory, root=root_of(find_files(factory)))
    facts = [compare_columns(samples, demo, COLUMNS).conclude("columns")]
    return ", ".join([*facts, compare_images(samples, demo).conclude("images")])


@require(
    "R-LOAD-10",
    "Windows and their marks of padding are those of the row, up to the ends of the episode.",
    "A window over an end holds another episode.",
    "LeRobot #2610",
)
def check_windows(factory: Factory) -> str:
    """Compare windows of the action and of a camera."""
    factory.need("delta_timestamps")
    demo = find_base(factory)
    keys = ("action", demo.cameras[0])
    samples, _ = read_content(factory, delta_timestamps=window_seconds(demo, keys))
    facts = [compare_windows(samples, demo, key).conclude(f"steps of {key}") for key in keys]
    return ", ".join([*facts, compare_padding(samples, demo, keys).conclude("marks")])


@require(
    "R-LOAD-11",
    "Frames that follow each other in an episode are seldom neighbors in the sequence.",
    "Frames of one moment are alike: a batch of them has the gradient of one frame.",
)
def check_shuffled(factory: Factory) -> str:
    """Count neighbors."""
    (epoch,), _ = read_epochs(factory, 1)
    places = list_samples(epoch)
    near = sum(a[0] == b[0] and abs(a[1] - b[1]) == 1 for a, b in pairwise(places))
    facts = f"{near} of {len(places) - 1} neighbors are consecutive frames"
    if 2 * near > len(places) - 1:
        raise Violation(facts)
    return facts


@require(
    "R-LOAD-12",
    "A missing video ends the epoch with an error: the loader neither hangs nor leaves frames out.",
    "A failed read that counts as the end of a shard drops its rest in silence.",
    "LeRobot #4237",
)
def check_missing_video(factory: Factory) -> str:
    """Remove a video file, and read an epoch with workers."""
    demo = find_base(factory)
    root = copy_of(demo, demo.name)
    sorted(root.rglob("*.mp4"))[-1].unlink()
    try:
        (epoch,), _ = read_epochs(factory, 1, root=root, num_workers=WORKERS)
    except Violation:
        raise
    except Exception as error:  # of foreign code
        return f"raises {describe_error(error)}"
    raise Violation(f"{count_samples(epoch)} of {len(demo.frames)} samples without an error")
