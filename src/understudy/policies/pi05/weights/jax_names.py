"""Places of the parameters in openpi's JAX tree of weights. No torch.

The tree has one array for all layers, the layers first; heads are dimensions of their own, and matrices are [in, out].
The names are those of big_vision's SigLIP and Gemma, with `_1` behind the names of the action expert.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

Shape = Sequence[int]


class Form(NamedTuple):
    """Conversion of an array, without its layers, to a parameter."""

    dimensions: int
    """Of the array; 0: any."""
    shape: Callable[[Shape], tuple[int, ...]]
    """Shape of the array -> of the parameter."""
    convert: Callable[[np.ndarray], np.ndarray]


SAME = Form(0, tuple, lambda x: x)
FLAT = Form(0, lambda s: (prod(s),), lambda x: x.reshape(-1))
MATRIX = Form(2, lambda s: (s[1], s[0]), lambda x: x.T)
PATCH = Form(4, lambda s: (s[3], s[2], s[0], s[1]), lambda x: x.transpose(3, 2, 0, 1))
TO_HEADS = Form(3, lambda s: (s[1] * s[2], s[0]), lambda x: x.reshape(x.shape[0], -1).T)
"""[in, heads, head_dim]."""
FROM_HEADS = Form(3, lambda s: (s[2], s[0] * s[1]), lambda x: x.reshape(-1, x.shape[2]).T)
"""[heads, head_dim, out]."""
OF_HEADS = Form(3, lambda s: (s[0] * s[2], s[1]), lambda x: x.transpose(0, 2, 1).reshape(-1, x.shape[1]))
"""[heads, in, head_dim]."""


class Place(NamedTuple):
    """Place of a parameter: `form` of `array[at]`."""

    array: str
    """Names from the root of the tree, with dots between them."""
    at: tuple[int, ...]
    form: Form


def _table() -> dict[str, list[tuple[str, tuple[int, ...], Form]]]:
    """Array -> (parameter, index behind the layer, form) of each parameter in it; `*` is the number of a layer."""
    img, own = "PaliGemma.img.", "vision."
    block, layer = f"{img}Transformer.encoderblock.", f"{own}layers.*."
    found: dict[str, list[tuple[str, tuple[int, ...], Form]]] = {
        f"{img}embedding.kernel": [(f"{own}patch.weight", (), PATCH)],
        f"{img}embedding.bias": [(f"{own}patch.bias", (), SAME)],
        f"{img}pos_embedding": [(f"{own}position.weight", (0,), SAME)],
        f"{img}Transformer.encoder_norm.scale": [(f"{own}norm.weight", (), SAME)],
        f"{img}Transformer.encoder_norm.bias": [(f"{own}norm.bias", (), SAME)],
        f"{img}head.kernel": [("projector.weight", (), MATRIX)],
        f"{img}head.bias": [("projector.bias", (), SAME)],
        "PaliGemma.llm.embedder.input_embedding": [("embedding.weight", (), SAME)],
    }
    for number in (0, 1):
        found[f"{block}LayerNorm_{number}.scale"] = [(f"{layer}layer_norm{number + 1}.weight", (), SAME)]
        found[f"{block}LayerNorm_{number}.bias"] = [(f"{layer}layer_norm{number + 1}.bias", (), SAME)]
        found[f"{block}MlpBlock_0.Dense_{number}.kernel"] = [(f"{layer}mlp.fc{number + 1}.weight", (), MATRIX)]
        found[f"{block}MlpBlock_0.Dense_{number}.bias"] = [(f"{layer}mlp.fc{number + 1}.bias", (), SAME)]
    for theirs, ours in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "out")):
        name, out = f"{block}MultiHeadDotProductAttention_0.{theirs}", ours == "out"
        found[f"{name}.kernel"] = [(f"{layer}self_attn.{ours}_proj.weight", (), FROM_HEADS if out else TO_HEADS)]
        found[f"{name}.bias"] = [(f"{layer}self_attn.{ours}_proj.bias", (), SAME if out else FLAT)]
    for end, tower in (("", "vlm"), ("_1", "expert")):
        llm, layer = "PaliGemma.llm.layers.", f"layers.*.{tower}."
        attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
        found |= {
            f"{llm}attn.q_einsum{end}.w": [(f"{attention}q_proj.weight", (), OF_HEADS)],
            f"{llm}attn.kv_einsum{end}.w": [
                (f"{attention}k_proj.weight", (0,), OF_HEADS),
                (f"{attention}v_proj.weight", (1,), OF_HEADS),
            ],
            f"{llm}attn.attn_vec_einsum{end}.w": [(f"{attention}o_proj.weight", (), FROM_HEADS)],
            f"{llm}mlp{end}.gating_einsum": [
                (f"{mlp}gate_proj.weight", (0,), MATRIX),
                (f"{mlp}up_proj.weight", (1,), MATRIX),
            ],
            f"{llm}mlp{end}.linear": [(f"{mlp}down_proj.weight", (), MATRIX)],
        }
        norms = [(f"{llm}pre_attention_norm{end}", f"{layer}input_layernorm")]
        norms += [(f"{llm}pre_ffw_norm{end}", f"{layer}post_attention_layernorm")]
        norms += [(f"PaliGemma.llm.final_norm{end}", f"{tower}_norm")]
        for theirs, ours in norms:
            found[f"{theirs}.scale"] = [(f"{ours}.weight", (), SAME)]
            found[f"{theirs}.Dense_0.kernel"] = [(f"{ours}.dense.weight", (), MATRIX)]
            found[f"{theirs}.Dense_0.bias"] = [(f"{ours}.dense.bias", (), SAME)]
    for name in ("action_in_proj", "action_out_proj", "time_mlp_in", "time_mlp_out", "state_proj"):
        found |= {f"{name}.kernel": [(f"{name}.weight", (), MATRIX)], f"{name}.bias": [(f"{name}.bias", (), SAME)]}
    for name in ("action_time_mlp_in", "action_time_mlp_out"):
        found |= {f"{name}.kernel": [(f"{name}.weight", (), MATRIX)], f"{name}.bias": [(f"{name}.bias", (), SAME)]}
    return found


TABLE = _table()


def plain_name(array: str) -> str:
    """Return the name of an array without `params` in front and `value` behind, which some versions write."""
    return re.sub(r"^params\.|\.value$", "", array)


def find_places(arrays: Mapping[str, Shape]) -> dict[str, tuple[Place, tuple[int, ...]]]:
    """Return place and shape of each parameter.

    Args:
        arrays: shapes by name, as `plain_name` returns them. An unknown one, or one with other dimensions than
            openpi's, is a parameter of its own name, so that a comparison with a network names it.
    """
    found: dict[str, tuple[Place, tuple[int, ...]]] = {}
    for array, shape in arrays.items():
        for name, index, form in TABLE.get(array, [(array, (), SAME)]):
            stacked = "*" in name
            rest = shape[stacked + len(index) :]
            if form.dimensions not in (0, len(rest)) or len(shape) < stacked + len(index):
                found[array] = Place(array, (), SAME), tuple(shape)
                continue
            for layer in range(shape[0]) if stacked else (0,):
                at = (layer, *index) if stacked else index
                found[name.replace("*", str(layer), 1)] = Place(array, at, form), form.shape(rest)
    return found
