"""Requirements of readers: `factory(root, episodes=None, delta_timestamps=None)` returns samples.

A sample is a mapping under the dataset's keys. A reader with a length and `[i]` gives the frames in
storage order; any other is iterated.
"""

import json
import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from understudy_conformance.requirement import (
    Factory,
    NotApplicable,
    Violation,
    describe_error,
    list_places,
    require,
)
from understudy_conformance.samples import (
    COLUMNS,
    compare_columns,
    compare_images,
    compare_padding,
    compare_tasks,
    compare_windows,
    find_place,
    window_seconds,
)
from understudy_conformance.sets import DRIFT, V20, V21, V30, DemoSet, copy_of, root_of

SUBSET = (0, 2)
"""Chosen episodes: not the first ones, and one of the first video file is left out."""

Sample = Mapping[str, Any]


def is_indexed(reader: Any) -> bool:
    """Whether a reader gives samples by position."""
    return hasattr(reader, "__getitem__") and hasattr(reader, "__len__")


def read_samples(reader: Any, demo: DemoSet) -> list[Sample]:
    """Return all samples, at most twice the dataset's frames of an endless reader."""
    if is_indexed(reader):
        return [reader[i] for i in range(len(reader))]
    return list(islice(reader, 2 * len(demo.frames)))


def read_one(reader: Any) -> Sample:
    """Return the first sample."""
    return reader[0] if is_indexed(reader) else next(iter(reader))


def open_all(factory: Factory, **options: Any) -> tuple[list[Sample], DemoSet]:
    """Read the first set that the factory opens."""
    demo = factory.base(read_one)
    return read_samples(factory(root=root_of(demo), **options), demo), demo


def open_files(factory: Factory) -> tuple[list[Sample], DemoSet]:
    """Read a set of several video files, of the version that the factory opens."""
    demo = factory.base(read_one)
    demo = V30 if demo.version == V30.version else demo
    return read_samples(factory(root=root_of(demo)), demo), demo


def open_windows(factory: Factory, **options: Any) -> tuple[list[Sample], DemoSet]:
    """Read with windows of the action and of the first camera."""
    factory.need("delta_timestamps")
    demo = factory.base(read_one)
    seconds = window_seconds(demo, ("action", demo.cameras[0]))
    return open_all(factory, delta_timestamps=seconds, **options)


def check_places(
    samples: Iterable[Sample], demo: DemoSet, expected: list[tuple[int, int]], in_order: bool
) -> str:
    """Check that samples are the expected frames, each once, and by position also in storage
    order.
    """
    places = [find_place(sample, demo) for sample in samples]
    counts = Counter(places)
    missing = [place for place in expected if place not in counts]
    repeated = [place for place, count in counts.items() if count > 1]
    foreign = [place for place in counts if place not in expected]
    facts = [
        f"{len(wrong)} {word} ({list_places(wrong)})"
        for word, wrong in (
            ("missing", missing),
            ("more than once", repeated),
            ("not chosen", foreign),
        )
        if wrong
    ]
    if facts:
        raise Violation(f"of {len(expected)} frames {', '.join(facts)}")
    if in_order and places != expected:
        first = next(i for i, (a, b) in enumerate(zip(places, expected)) if a != b)
        raise Violation(
            f"sample {first} is {list_places([places[first]])}, not "
            f"{list_places([expected[first]])}"
        )
    return f"{len(expected)} frames, each once"


@require(
    "R-READ-01",
    "A reader has each frame of each episode once; by position, in storage order.",
    "A frame that is never read is never learned.",
    "LeRobot #4237",
)
def check_frames(factory: Factory) -> str:
    """Read the whole set."""
    samples, demo = open_all(factory)
    return (
        f"{demo.version}: "
        f"{check_places(samples, demo, demo.frames, is_indexed(factory(root=root_of(demo))))}"
    )


@require(
    "R-READ-02",
    "A position behind the last raises IndexError.",
    "Python ends `for sample in reader` with it; without it the loop is endless, or reads another "
    "sample.",
)
def check_end(factory: Factory) -> str:
    """Read behind the end."""
    reader = factory(root=root_of(factory.base(read_one)))
    if not is_indexed(reader):
        raise NotApplicable("it has no positions")
    try:
        reader[len(reader)]
    except IndexError:
        return f"[{len(reader)}] raises IndexError"
    except Exception as error:
        raise Violation(f"[{len(reader)}] raises {describe_error(error)}") from error
    raise Violation(f"[{len(reader)}] returns a sample, of {len(reader)}")


@require(
    "R-READ-03",
    "The columns of a sample are those of its row.",
    "A state beside another row's action trains another policy.",
)
def check_columns(factory: Factory) -> str:
    """Compare float32 columns."""
    samples, demo = open_all(factory)
    return compare_columns(samples, demo, COLUMNS).conclude("columns")


@require(
    "R-READ-04",
    "A float64 column keeps its values.",
    "In float32, seconds since 1970 are 128 seconds apart.",
    "LeRobot #4846",
)
def check_double(factory: Factory) -> str:
    """Compare a column of seconds since 1970."""
    samples, demo = open_all(factory)
    return compare_columns(samples, demo, ["observation.clock"]).conclude("float64 columns")


@require(
    "R-READ-05",
    "`task` is the text of the frame's task_index, also where an episode has two tasks.",
    "A policy learns the instruction that it is given.",
)
def check_task(factory: Factory) -> str:
    """Compare texts."""
    samples, demo = open_all(factory)
    return compare_tasks(samples, demo).conclude("tasks")


@require(
    "R-READ-06",
    "The image of a sample is that of its row and camera, where several files hold several "
    "episodes each.",
    "An image of another moment is no error: the policy only gets worse.",
    "LeRobot #4524",
    "LeRobot #3080",
    "starVLA #285",
)
def check_image(factory: Factory) -> str:
    """Identify each image."""
    samples, demo = open_files(factory)
    return compare_images(samples, demo).conclude("images")


@require(
    "R-READ-07",
    "Images are RGB, integers of 0 to 255 or floats of 0 to 1, within 12 levels of those recorded.",
    "Exchanged channels and limited range taken for full range train on other colors than the "
    "robot sees.",
)
def check_colors(factory: Factory) -> str:
    """Compare the blocks of images."""
    samples, demo = open_all(factory)
    return compare_images(samples, demo, levels=True).conclude("images")


@require(
    "R-READ-08",
    "Windows hold the rows and images at their times, inside the episode.",
    "A chunk of actions that is one step off moves the robot one step late.",
)
def check_window(factory: Factory) -> str:
    """Compare windows."""
    samples, demo = open_windows(factory)
    facts = [
        compare_windows(samples, demo, key).conclude(f"steps of {key}")
        for key in ("action", demo.cameras[0])
    ]
    return ", ".join(facts)


@require(
    "R-READ-09",
    "`<key>_is_pad` marks exactly the steps outside the episode.",
    "Unmarked steps behind the end train on another episode, or on repeated actions.",
    "LeRobot #2610",
)
def check_padding(factory: Factory) -> str:
    """Compare the marks."""
    samples, demo = open_windows(factory)
    return compare_padding(samples, demo, ("action", demo.cameras[0])).conclude("marks")


@require(
    "R-READ-10",
    "A reader of chosen episodes has exactly their frames.",
    "Validation episodes that are read anyway are trained on.",
    "LeRobot #4337",
)
def check_subset(factory: Factory) -> str:
    """Read two of the episodes."""
    factory.need("episodes")
    samples, demo = open_all(factory, episodes=list(SUBSET))
    return check_places(
        samples, demo, [place for place in demo.frames if place[0] in SUBSET], False
    )


@require(
    "R-READ-11",
    "Columns, images, windows and marks of chosen episodes are those of the whole dataset.",
    "An episode's place among the chosen ones is not its number.",
    "LeRobot #1783",
    "LeRobot #2610",
)
def check_subset_content(factory: Factory) -> str:
    """Compare samples of chosen episodes."""
    factory.need("episodes")
    samples, demo = open_all(factory, episodes=list(SUBSET))
    facts = [compare_columns(samples, demo, COLUMNS).conclude("columns")]
    facts.append(compare_images(samples, demo).conclude("images"))
    try:
        samples, demo = open_windows(factory, episodes=list(SUBSET))
    except NotApplicable:
        return ", ".join(facts)
    for key in ("action", demo.cameras[0]):
        facts.append(compare_windows(samples, demo, key).conclude(f"steps of {key}"))
    facts.append(compare_padding(samples, demo, ("action", demo.cameras[0])).conclude("marks"))
    return ", ".join(facts)


@require(
    "R-READ-12",
    "Timestamps that drift by up to 0.4 frames give the frame of their row, or an error.",
    "Clocks of recorders drift. Rounded down, they show the frame before.",
    "LeRobot #3513",
)
def check_drift(factory: Factory) -> str:
    """Read a set whose clock is late by 0.4 frames at the end of each episode."""
    if factory.base(read_one).version != DRIFT.version:
        raise NotApplicable(f"it opens no {DRIFT.version}")
    try:
        samples = read_samples(factory(root=root_of(DRIFT)), DRIFT)
    except Exception as error:  # of foreign code
        return f"refused: {describe_error(error)}"
    return compare_images(samples, DRIFT).conclude("images")


@require(
    "R-READ-13",
    "A dataset of a later format version is refused or warned of; one of a known version is not.",
    "An inverted comparison warns of old datasets and opens new ones in silence.",
    "LeRobot #4851",
)
def check_version(factory: Factory) -> str:
    """Open a set as it is, and with later versions in its info.json."""
    demo = factory.base(read_one)
    facts = []
    faults = []
    for version in (demo.version, "v3.9", "v9.0"):
        root = copy_of(demo, demo.name)
        info = json.loads((root / "meta/info.json").read_text())
        (root / "meta/info.json").write_text(json.dumps(info | {"codebase_version": version}))
        answer = open_with_warnings(factory, root)
        facts.append(f"{version}: {answer or 'opened in silence'}")
        if bool(answer) is (version == demo.version):
            faults.append(facts[-1])
    if faults:
        raise Violation("; ".join(faults))
    return "; ".join(facts)


def open_with_warnings(factory: Factory, root: Path) -> str:
    """Return the refusal, or the warnings and log records that name a version; "" if there are
    none.
    """
    records: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger()
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read_one(factory(root=root))
    except Exception as error:  # of foreign code
        return f"refused: {describe_error(error)}"
    finally:
        logger.removeHandler(handler)
    texts = [*records, *(str(warning.message) for warning in caught)]
    named = [" ".join(text.split()) for text in texts if "version" in text.lower()]
    return f"warned: {named[0][:120]}" if named else ""


def check_older(factory: Factory, demo: DemoSet) -> str:
    """Compare frames, columns, tasks and images of a set of an older version."""
    try:
        read_one(factory(root=root_of(demo)))
    except Exception as error:  # of foreign code
        if factory.base(read_one) is demo:
            raise
        raise NotApplicable(f"refused: {describe_error(error)}") from error
    reader = factory(root=root_of(demo))
    samples = read_samples(reader, demo)
    facts = [check_places(samples, demo, demo.frames, is_indexed(reader))]
    facts.append(compare_columns(samples, demo, COLUMNS).conclude("columns"))
    facts.append(compare_tasks(samples, demo).conclude("tasks"))
    facts.append(compare_images(samples, demo).conclude("images"))
    return ", ".join(facts)


@require(
    "R-READ-14",
    "A v2.1 dataset is read in full, or refused.",
    "Most recorded datasets have this version.",
)
def check_v21(factory: Factory) -> str:
    """Read the v2.1 set, one of whose cameras is a column of PNG files."""
    return check_older(factory, V21)


@require(
    "R-READ-15",
    "A v2.0 dataset is read in full, or refused.",
    "It has statistics of the whole dataset alone.",
)
def check_v20(factory: Factory) -> str:
    """Read the v2.0 set."""
    return check_older(factory, V20)


@require(
    "R-READ-16",
    "A missing video is an error; no sample of other content takes its place, and none is left "
    "out.",
    "Frames that are skipped in silence are never learned.",
    "LeRobot #4237",
)
def check_missing_video(factory: Factory) -> str:
    """Remove a video file, and read everything."""
    demo = factory.base(read_one)
    root = copy_of(demo, demo.name)
    videos = sorted(root.rglob("*.mp4"))
    videos[-1].unlink()
    try:
        samples = read_samples(factory(root=root), demo)
    except Exception as error:  # of foreign code
        return f"raises {describe_error(error)}"
    raise Violation(f"{len(samples)} of {len(demo.frames)} samples without an error")
