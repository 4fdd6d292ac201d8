"""Requirements of resume: a loader (see `loader`) with `state_dict()` and `load_state_dict(state)`.

`load_state_dict` is called on a fresh loader before it is iterated, and may return another loader
in its place.
"""

import pickle
from itertools import islice
from typing import Any

from understudy_conformance.loader import (
    WORKERS,
    check_equal,
    describe_coverage,
    find_base,
    is_epoch,
    open_ranks,
)
from understudy_conformance.passes import Ranks, Step, list_samples
from understudy_conformance.requirement import (
    Factory,
    NotApplicable,
    Violation,
    describe_error,
    require,
)
from understudy_conformance.samples import Place


def store(states: list[Any]) -> list[Any]:
    """Return states as a checkpoint brings them back."""
    return pickle.loads(pickle.dumps(states))


def read_with_states(ranks: Ranks, count: int | None) -> tuple[list[Step], list[list[Any]]]:
    """Read an epoch, or `count` steps of a stream, and return its steps and the states after
    each.
    """
    steps: list[Step] = []
    states: list[list[Any]] = []
    for step in islice(ranks.steps(), count):
        steps.append(step)
        states.append(store(ranks.save()))
    return steps, states


def probe(factory: Factory, epoch: int, **arguments: Any) -> tuple[list[Step], int | None]:
    """Return the steps of an epoch, read without saving, and their number if the loader is
    endless.
    """
    with open_ranks(factory, **arguments) as ranks:
        for loader in ranks.loaders:
            if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
                raise Violation(f"{type(loader).__name__} has no state_dict and load_state_dict")
        steps = ranks.read_epoch()
        for _ in range(epoch):
            steps = ranks.read_epoch()
        count = len(steps) if ranks.endless else None
        return steps, count


def check_positions(factory: Factory, epoch: int, **arguments: Any) -> str:
    """Resume after each step of an epoch but the last, and compare the rest."""
    truth, count = probe(factory, epoch, **arguments)
    with open_ranks(factory, **arguments) as ranks:
        for _ in range(epoch):
            list(islice(ranks.steps(), count))
        ranks.epoch = epoch
        read, states = read_with_states(ranks, count)
    check_equal(truth, read, "a loader whose state is saved after each batch")
    wrong = []
    first = ""
    for position, state in enumerate(states[:-1], 1):
        with open_ranks(factory, **arguments) as ranks:
            ranks.load(state)
            remaining = None if count is None else count - position
            resumed = list(islice(ranks.steps(), remaining))
        try:
            check_equal(
                truth[position:], resumed, f"resumed after {position} of {len(truth)} batches"
            )
        except Violation as violation:
            wrong.append(position)
            first = first or str(violation)
    if wrong:
        raise Violation(
            f"{len(wrong)} of {len(states) - 1} positions of epoch {epoch} differ; {first}"
        )
    return f"{len(states) - 1} positions of epoch {epoch}"


@require(
    "R-RESUME-01",
    "Resumed after any batch of the first epoch, a loader gives the batches that were left.",
    "A run that was stopped sees frames twice, and others not at all.",
    "LeRobot #3769",
    "starVLA #351",
)
def check_first_epoch(factory: Factory) -> str:
    """Resume at every position of epoch 0."""
    return check_positions(factory, 0)


@require(
    "R-RESUME-02",
    "So it does in the second epoch.",
    "A restored sampler that is set back to epoch 0 gives that epoch's order.",
    "LeRobot #4692",
)
def check_second_epoch(factory: Factory) -> str:
    """Resume at every position of epoch 1."""
    return check_positions(factory, 1)


@require(
    "R-RESUME-03",
    "So it does with workers, which have read ahead.",
    "Batches that wait in a queue are not yet trained on.",
)
def check_workers(factory: Factory) -> str:
    """Resume at every position of epoch 0 with two workers."""
    factory.need("num_workers")
    return check_positions(factory, 0, num_workers=WORKERS)


@require(
    "R-RESUME-04",
    "So do several ranks, each from its own state.",
    "A last batch that is filled up from the samples left is another one after a resume.",
    "LeRobot #4692",
)
def check_ranks(factory: Factory) -> str:
    """Resume two ranks at every position of epoch 0."""
    factory.need("rank", "world_size")
    return check_positions(factory, 0, world_size=2)


@require(
    "R-RESUME-05",
    "At the end of an epoch, it continues with the next one.",
    "A position behind the last batch gives an empty epoch, or the last one again.",
    "Accelerate #4233",
)
def check_end(factory: Factory) -> str:
    """Save after the last batch of epoch 0, and compare the next batches with those of epoch 1."""
    second, count = probe(factory, 1)
    with open_ranks(factory) as ranks:
        _, states = read_with_states(ranks, count)
    with open_ranks(factory) as ranks:
        ranks.load(states[-1])
        resumed = list(islice(ranks.steps(), count)) or list(islice(ranks.steps(), count))
    return check_equal(second, resumed, "resumed after the last batch")


@require(
    "R-RESUME-06",
    "Resumed with another number of ranks, and again with the first, the epoch still has each "
    "frame once; or the state is refused.",
    "A position counted in steps means another place when the global batch changes.",
    "LeRobot #3769",
)
def check_worlds(factory: Factory) -> str:
    """Read two steps on two ranks, two on one, and the rest on two.

    The last batch may hold the first frames of the next epoch, which the next pass then continues.
    """
    factory.need("rank", "world_size")
    demo = find_base(factory)
    places: list[Place] = []
    stream: list[Place] = []
    state = None
    total = len(demo.frames)
    for stage, world_size in enumerate((2, 1, 2)):
        with open_ranks(factory, world_size=world_size) as ranks:
            if state is not None:
                try:
                    ranks.load([state] * world_size)
                except Exception as error:  # of foreign code
                    raise NotApplicable(
                        f"a state of other ranks is refused: {describe_error(error)}"
                    ) from error
            elif not hasattr(ranks.loaders[0], "state_dict"):
                raise Violation(
                    f"{type(ranks.loaders[0]).__name__} has no state_dict and load_state_dict"
                )
            most_steps = 2 if stage < 2 else total
            places += list_samples(list(islice(ranks.steps(), most_steps)))
            state = store(ranks.save())[0]
            if stage == 2 and len(places) < 2 * total:
                stream = places + list_samples(list(islice(ranks.steps(), total)))
    stream = stream or places
    if not (is_epoch(stream[:total], demo) and is_epoch(stream[total : 2 * total], demo)):
        epoch = places[:total] if len(places) >= 2 * total else places
        describe_coverage(epoch, demo)
    return f"{len(demo.frames)} frames, each once, on 2, 1 and 2 ranks"


@require(
    "R-RESUME-07",
    "An empty state is refused.",
    "A failed load that returns a fresh loader begins again in silence.",
    "LeRobot #4577",
)
def check_empty(factory: Factory) -> str:
    """Load {}."""
    with open_ranks(factory) as ranks:
        try:
            ranks.load([{}])
        except Exception as error:  # of foreign code
            return f"{{}} raises {describe_error(error)}"
    raise Violation("load_state_dict({}) returns")
