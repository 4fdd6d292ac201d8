"""The form of contract.json, and the first place where plain values have another one.

contract.schema.json is made of these classes by scripts/contract_schema.py. A fact that was neither
stated nor measured is "unknown".
"""

from collections.abc import Iterator
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from understudy_client.contract.mismatch import REMEDIES

NAMELESS = '""'
"""Norm head without a name, in a place."""
Unknown = Literal["unknown"]
Text = Annotated[str, Meta(min_length=1)]
Digest = Annotated[str, Meta(pattern="^([0-9a-f]{64}|unknown)$")]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
Count = Annotated[int, Meta(ge=1, le=10**9)] | Unknown
Texts = list[Text] | Unknown
Figures = list[Number | Unknown]
Size = Annotated[list[Count], Meta(min_length=2, max_length=2)]
Ends = Annotated[list[Number], Meta(min_length=2, max_length=2)]
Level = Annotated[float, Meta(ge=0, le=255)]
Levels = Annotated[list[Level], Meta(min_length=3, max_length=3)]
Cells = Annotated[list[Levels], Meta(min_length=16, max_length=16)]
Grid = Annotated[list[Cells], Meta(min_length=16, max_length=16)]
Misfit = Annotated[float, Meta(ge=0, le=1000)]
Kind = Literal["policy", "dataset", "robot", "environment"]
"""Whose contract it is; a server has that of its policy."""
if TYPE_CHECKING:
    MismatchKind = str
else:
    MismatchKind = Literal[tuple(REMEDIES)]


class Form(Struct, forbid_unknown_fields=True):
    """Base of the objects of the file."""


class Normalization(Form):
    """How the numbers of a vector reach the network.

    source: figures in a file beside the weights, in the weights, from a dataset at each start, or
    numbers as they are. mode: mean_std, quantile, min_max, identity, or the tool's own name.
    digest: SHA-256 of the figures.
    """

    source: Literal["external", "baked", "computed", "none", "unknown"]
    mode: Text
    digest: Digest


class VectorFigures(Form):
    """Figures over the training frames, one per dimension."""

    mean: Figures
    std: Figures
    min: Figures
    max: Figures
    q01: Figures
    q99: Figures


class Vector(Form):
    """A vector of numbers.

    key: key in the recordings. names: names of the dimensions in their order. roles: joint,
    gripper, position, rotation. references: zero of each dimension of an action: absolute, state,
    previous. learned: zero of each dimension of an action in the network. frame: frame of Cartesian
    dimensions: base, tool. gripper: dimension -> the numbers that close and open it.
    """

    key: Text
    names: Texts
    figures: VectorFigures
    units: Texts
    roles: Texts
    references: Texts
    learned: Texts
    frame: Text
    gripper: dict[str, Ends] | Unknown
    normalization: Normalization


class Look(Form):
    """Mean and deviation of a grid of 16 x 16 colors over images of training: rows of cells of red,
    green, blue.
    """

    mean: Grid
    deviation: Grid
    usual: Misfit
    most: Misfit


class Camera(Form):
    """A camera.

    key: key in the recordings. size: height and width of the recorded images. role: place of the
    camera: front, wrist. dtype: uint8 of 0..255, or float32 of 0..1. resize: how the policy resizes
    images to network_size, height and width in the network.
    """

    key: Text
    size: Size
    look: Look | Unknown
    role: Text
    orientation: Literal["upright", "rotated 180", "upside down", "mirrored", "unknown"]
    color: Literal["RGB", "BGR", "unknown"]
    layout: Literal["HWC", "CHW", "WHC", "unknown"]
    dtype: Literal["uint8", "float32", "unknown"]
    resize: Text
    network_size: Size


class Robot(Form):
    """Inputs and outputs of one norm head.

    fps: control steps per second. chunk: horizon: actions of each prediction. control_mode: meaning
    of the actions: joint, ee_delta. state: null: the policy has none. cameras: by the policy's key.
    tasks: instructions of training. episodes: training episodes. replan: actions that are executed
    before the next prediction. prompt: format of the prompts. tokenizer: SHA-256 of the tokenizer's
    file.
    """

    fps: Annotated[float, Meta(gt=0, le=10**6)] | Unknown
    chunk: Count
    robot_type: Text
    control_mode: Text
    state: Vector | None
    action: Vector
    cameras: dict[str, Camera]
    tasks: list[str]
    tasks_left_out: Annotated[int, Meta(ge=0)]
    episodes: Count
    replan: Count
    prompt: Text
    tokenizer: Digest


class Fault(Form):
    """A contradiction inside the folder that was read."""

    kind: MismatchKind
    key: str
    trained: str
    came: str
    fix: str


class Contract(Form):
    """Contract of a policy, dataset, robot or environment; a fact that was neither stated nor
    measured is "unknown".

    weights: SHA-256 of the weights. robots: by norm head; one head "" where there are none.
    provenance: datasets, fingerprint, run, step, versions; free of secrets.
    """

    version: Literal[2]
    kind: Kind
    weights: Digest
    robots: dict[str, Robot]
    faults: list[Fault]
    provenance: dict[str, Any]


def check_form(value: Any, kind: Any = Contract, place: str = "the contract") -> None:
    """Check plain values.

    Args:
        value: the values.
        kind: their form: a class of this module, or the type of one of its fields.
        place: of the values, for the message.

    Raises:
        ValueError: the first place with another value, the value and the rule.
    """
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeError) as error:
        members = get_args(kind) if get_origin(kind) in (Annotated, Union, UnionType) else ()
        whole = next((member for member in members if _is_whole(member, value)), kind)
        for name, part, part_kind in _parts(value, whole):
            check_form(part, part_kind, f"{place}{name}".removeprefix("the contract."))
        if isinstance(value, dict) and _is_form(whole):
            raise ValueError(
                f"{place}: {error}; its keys are {', '.join(whole.__struct_fields__)}"
            ) from None
        rule = str(error)
        if rule.startswith("Invalid enum value"):  # which does not say the right ones
            rule = f"the rule is {msgspec.json.schema(kind)!s:.200}"
        raise ValueError(f"{place} is {value!r:.60}: {rule}") from None


def _is_whole(kind: Any, value: Any) -> bool:
    """Return whether a member of a union, or of an annotated type, is that of an object or a
    list.
    """
    if isinstance(value, dict):
        return _is_form(kind) or get_origin(kind) is dict
    return isinstance(value, list) and get_origin(kind) is list


def _is_form(kind: Any) -> bool:
    """Return whether a type is a class of this module."""
    return isinstance(kind, type) and issubclass(kind, Form)


def _parts(value: Any, kind: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each part of a value, as its name in a place, the part and its type."""
    if isinstance(value, dict) and _is_form(kind):
        for field in msgspec.structs.fields(kind):
            if field.name in value:
                yield f".{field.name}", value[field.name], field.type
    elif isinstance(value, dict) and get_origin(kind) is dict:
        for key, part in value.items():
            yield f".{key or NAMELESS}", part, get_args(kind)[1]
    elif isinstance(value, list) and get_origin(kind) is list:
        for number, part in enumerate(value):
            yield f"[{number}]", part, get_args(kind)[0]
