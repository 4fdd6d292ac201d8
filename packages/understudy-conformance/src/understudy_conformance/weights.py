"""Requirements of weights: `factory()` returns a model that saves and loads a folder.

It has `state_dict()` (name -> array), `save(folder, state)`, which writes these arrays as a
checkpoint, and `load(folder)`, which returns the `state_dict()` of the model that was loaded.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from understudy_conformance.requirement import Factory, Violation, describe_error, require
from understudy_conformance.samples import to_array
from understudy_conformance.sets import temporary_folder

State = dict[str, Any]


def make_state(model: Any) -> State:
    """Return random float32 arrays of the names and shapes of a model."""
    generator = np.random.default_rng(5)
    return {
        name: generator.standard_normal(to_array(value).shape).astype(np.float32)
        for name, value in sorted(model.state_dict().items())
    }


def save_state(factory: Factory, change: Callable[[State], State]) -> tuple[Any, Path, State]:
    """Return a fresh model, and a folder with changed random weights."""
    model = factory()
    state = make_state(model)
    folder = Path(tempfile.mkdtemp(dir=temporary_folder()))
    model.save(folder, change(dict(state)))
    return factory(), folder, state


def expect_error(model: Any, folder: Path, fault: str) -> str:
    """Load a checkpoint with a fault."""
    try:
        loaded = model.load(folder)
    except Exception as error:  # of foreign code
        return f"{fault}: {describe_error(error)}"
    raise Violation(f"{fault}: load returns a model with {len(loaded)} tensors, and no error")


def find_weights(model: Any, folder: Path, state: State) -> Path:
    """Return the largest file of a checkpoint that another save with other weights makes
    different.
    """
    other = Path(tempfile.mkdtemp(dir=temporary_folder()))
    model.save(other, {name: value + 1 for name, value in state.items()})
    paths = [path for path in folder.rglob("*") if path.is_file()]
    changed = [
        path
        for path in paths
        if path.read_bytes() != (other / path.relative_to(folder)).read_bytes()
    ]
    return max(changed, key=lambda path: path.stat().st_size)


@require(
    "R-WEIGHTS-01",
    "A loaded model has the saved weights.",
    "A model that only looks loaded is untrained.",
    "LeRobot #4577",
)
def check_round_trip(factory: Factory) -> str:
    """Save random weights, and load them."""
    model, folder, state = save_state(factory, lambda state: state)
    loaded = model.load(folder)
    wrong = [
        name
        for name, value in state.items()
        if name not in loaded
        or not np.array_equal(to_array(loaded[name]).astype(np.float32), value)
    ]
    if wrong:
        raise Violation(f"{len(wrong)} of {len(state)} tensors differ: {', '.join(wrong[:3])}")
    return f"{len(state)} tensors"


@require(
    "R-WEIGHTS-02",
    "A checkpoint without a file of weights is an error.",
    "A wrong path returns an untrained model.",
    "LeRobot #4577",
)
def check_missing_file(factory: Factory) -> str:
    """Delete the file of weights."""
    model, folder, state = save_state(factory, lambda state: state)
    find_weights(model, folder, state).unlink()
    return expect_error(model, folder, "no weights")


@require(
    "R-WEIGHTS-03",
    "A checkpoint that lacks a tensor is an error.",
    "The tensor keeps its random values.",
    "LeRobot #4577",
)
def check_missing_tensor(factory: Factory) -> str:
    """Leave out the first tensor."""
    model, folder, _ = save_state(factory, lambda state: dict(list(state.items())[1:]))
    return expect_error(model, folder, "a tensor less")


@require(
    "R-WEIGHTS-04",
    "A checkpoint with tensors of other names is an error.",
    "Weights of another model leave this one untrained.",
    "LeRobot #4577",
)
def check_other_names(factory: Factory) -> str:
    """Rename all tensors."""
    model, folder, _ = save_state(
        factory, lambda state: {f"other.{name}": value for name, value in state.items()}
    )
    return expect_error(model, folder, "other names")


@require(
    "R-WEIGHTS-05",
    "A tensor of another shape is an error.",
    "A policy of another robot has other sizes.",
    "LeRobot #4577",
)
def check_other_shape(factory: Factory) -> str:
    """Add a row to the first tensor that has rows."""

    def widen(state: State) -> State:
        name = next(name for name, value in state.items() if value.ndim)
        return state | {name: np.concatenate([state[name], state[name][:1]])}

    model, folder, _ = save_state(factory, widen)
    return expect_error(model, folder, "another shape")


@require(
    "R-WEIGHTS-06",
    "A file that is cut off is an error.",
    "Downloads break.",
    "LeRobot #4577",
)
def check_cut(factory: Factory) -> str:
    """Cut the file of weights to a half."""
    model, folder, state = save_state(factory, lambda state: state)
    file = find_weights(model, folder, state)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return expect_error(model, folder, "half a file")
