"""Dimensions of a network from the shapes of its stored tensors, checked against those that a config states. No torch.

The tensors decide all dimensions but the chunk and the number of attention heads. The heads of a tower follow from one
head of keys and values, as in every released file, unless the config states them. Those of the vision encoder have no
such rule: a network of another width than the released one has to state `vision.heads`.
"""

from collections.abc import Iterator, Mapping
from math import isqrt
from typing import Any

from understudy.policies.pi05.sizes import Sizes
from understudy.policies.pi05.weights.released_keys import EMBEDDING, HEAD, Shapes, canonical, is_adaptive, own_name

PARTS = ("vision", "vlm", "expert")


def complete_dimensions(shapes: Shapes, stated: Mapping[str, Any], where: object = "weights") -> dict[str, Any]:
    """Return the dimensions that `stated` has, and for the others those of the tensors.

    Args:
        shapes: of the tensors of a file, by key of any dialect.
        stated: a part of a `Sizes` object; unknown fields are kept.
        where: the file, for errors.

    Raises:
        ValueError: a stated dimension contradicts a tensor; lists all, each with its key.
    """
    found: dict[str, Any] = {name: value for name, value in stated.items() if name not in PARTS}
    for part in PARTS:
        value = stated.get(part, {})
        if not isinstance(value, Mapping):
            raise ValueError(f"dimensions.{part}: {value!r}: must be an object")
        found[part] = dict(value)
    wrong = []
    for part, name, value, key in _measured(_own_shapes(shapes)):
        own = found[part] if part else found
        label = f"dimensions.{part}.{name}" if part else f"dimensions.{name}"
        if own.setdefault(name, value) != value:
            wrong.append(f"  {label} is {own[name]}, and {key} {list(shapes[key])} has {value}")
    wrong += _complete_heads(found, shapes)
    if wrong:
        raise ValueError("\n".join([f"{where}: the config states other dimensions than the tensors have", *wrong]))
    adaptive = is_adaptive(shapes)
    if found.setdefault("adaptive", adaptive) is not adaptive:
        raise ValueError(
            f"{where}: dimensions.adaptive is {found['adaptive']}, and the tensors are of the other family"
        )
    return found


def _own_shapes(shapes: Shapes) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return key and shape of each parameter by its name; of embedding and head the embedding."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    tied = any(canonical(key) == EMBEDDING for key in shapes)
    for key, shape in shapes.items():
        name = own_name(key)
        if name is not None and not (tied and canonical(key) == HEAD):
            found.setdefault(name, (key, tuple(shape)))
    return found


def _measured(own: Mapping[str, tuple[str, tuple[int, ...]]]) -> Iterator[tuple[str, str, int, str]]:
    """Yield (part, dimension, value, key) of each dimension that a tensor has."""

    def of(name: str, axis: int, rank: int) -> Iterator[tuple[int, str]]:
        if name in own and len(own[name][1]) == rank:
            yield own[name][1][axis], own[name][0]

    for part, first in (("vision", "vision.layers."), ("vlm", "layers."), ("expert", "layers.")):
        layers = {}
        for name, (key, _) in own.items():
            number, _, rest = name.removeprefix(first).partition(".")
            if name.startswith(first) and number.isdigit() and (part == "vision" or rest.startswith(f"{part}.")):
                layers[number] = key
        if layers:
            yield part, "depth", len(layers), max(layers.values(), key=len)
    tables = (
        ("vision", "width", "vision.patch.weight", 0, 4),
        ("vision", "patch", "vision.patch.weight", 2, 4),
        ("vision", "mlp", "vision.layers.0.mlp.fc1.weight", 0, 2),
        ("vlm", "width", "embedding.weight", 1, 2),
        ("vlm", "mlp_dim", "layers.0.vlm.mlp.gate_proj.weight", 0, 2),
        ("expert", "width", "action_in_proj.weight", 0, 2),
        ("expert", "mlp_dim", "layers.0.expert.mlp.gate_proj.weight", 0, 2),
        ("", "vocab", "embedding.weight", 0, 2),
        ("", "dim", "action_in_proj.weight", 1, 2),
    )
    for part, dimension, name, axis, rank in tables:
        for value, key in of(name, axis, rank):
            yield part, dimension, value, key
    for patch, _ in of("vision.patch.weight", 2, 4):
        for tokens, key in of("vision.position.weight", 0, 2):
            if isqrt(tokens) ** 2 == tokens:
                yield "vision", "image", isqrt(tokens) * patch, key


def _complete_heads(found: dict[str, Any], shapes: Shapes) -> list[str]:
    """Add the attention heads that are not stated, in place; return the contradictions."""
    own, wrong = _own_shapes(shapes), []
    vision = found["vision"]
    if "heads" not in vision:
        if vision.get("width") != Sizes.BASE.vision.width:
            raise ValueError(
                f"dimensions.vision.heads: required: no tensor has the number of attention heads, and a vision encoder "
                f"of width {vision.get('width')} is not the released one; state it in config.json"
            )
        vision["heads"] = Sizes.BASE.vision.heads
    for part in PARTS[1:]:
        tower, rows, keys = found[part], {}, {}
        for name in ("q_proj", "k_proj"):
            key, shape = own.get(f"layers.0.{part}.self_attn.{name}.weight", ("", ()))
            if len(shape) == 2:
                rows[name], keys[name] = shape[0], key
        if len(rows) < 2:
            continue
        heads, shared = _whole(tower.get("num_heads")), _whole(tower.get("num_kv_heads"))
        size = _whole(tower.get("head_dim")) or (rows["q_proj"] // heads if heads else rows["k_proj"] // (shared or 1))
        if not size:
            continue
        for name, label in (("q_proj", "num_heads"), ("k_proj", "num_kv_heads")):
            count = tower.setdefault(label, rows[name] // size)
            if count * size != rows[name]:
                wrong.append(
                    f"  dimensions.{part}.{label} is {count} of head_dim {size}, and {keys[name]} has {rows[name]} rows"
                )
        tower.setdefault("head_dim", size)
    return wrong


def _whole(value: Any) -> int:
    """Return a stated number; 0 where there is none or it is no whole number above 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
