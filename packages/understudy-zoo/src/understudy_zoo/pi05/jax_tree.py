"""Weights in openpi's JAX format (orbax, OCDBT), read array by array with tensorstore: neither JAX
nor orbax is needed.

    FOLDER/params/manifest.ocdbt    the arrays; FOLDER/params itself may be given, too
    FOLDER/assets/ID/norm_stats.json

A layer of a stacked array is read at a time. If the file has several layers in one chunk, a read
decodes the chunk; a cache of `CACHE` bytes keeps the latest chunks.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from understudy import TensorReader
from understudy_base import require

Shape = Sequence[int]


class Form(NamedTuple):
    """Conversion of an array, without its layers, to a parameter."""

    dimensions: int
    """Of the array; 0: any."""
    shape: Callable[[Shape], tuple[int, ...]]
    """Shape of the array -> of the parameter."""
    convert: Callable[[np.ndarray], np.ndarray]


FORMS = {
    "same": Form(0, tuple, lambda x: x),
    "flat": Form(0, lambda s: (prod(s),), lambda x: x.reshape(-1)),
    "matrix": Form(2, lambda s: (s[1], s[0]), lambda x: x.T),
    "patch": Form(4, lambda s: (s[3], s[2], s[0], s[1]), lambda x: x.transpose(3, 2, 0, 1)),
    # [in, heads, head_dim], [heads, head_dim, out] and [heads, in, head_dim]
    "to_heads": Form(3, lambda s: (s[1] * s[2], s[0]), lambda x: x.reshape(x.shape[0], -1).T),
    "from_heads": Form(3, lambda s: (s[2], s[0] * s[1]), lambda x: x.reshape(-1, x.shape[2]).T),
    "of_heads": Form(
        3, lambda s: (s[0] * s[2], s[1]), lambda x: x.transpose(0, 2, 1).reshape(-1, x.shape[1])
    ),
}
SAME = FORMS["same"]


class Place(NamedTuple):
    """Place of a parameter: `form` of `array[at]`."""

    array: str
    """Names from the root of the tree, with dots between them."""
    at: tuple[int, ...]
    form: Form


ARRAYS = """
PaliGemma.img.embedding.kernel          vision.patch.weight                        patch
PaliGemma.img.embedding.bias            vision.patch.bias                          same
PaliGemma.img.pos_embedding[0]          vision.position.weight                     same
{block}.LayerNorm_0                     vision.layers.*.layer_norm1                norm
{block}.LayerNorm_1                     vision.layers.*.layer_norm2                norm
{block}.MlpBlock_0.Dense_0              vision.layers.*.mlp.fc1                    linear
{block}.MlpBlock_0.Dense_1              vision.layers.*.mlp.fc2                    linear
{attention}.query.kernel                vision.layers.*.self_attn.q_proj.weight    to_heads
{attention}.query.bias                  vision.layers.*.self_attn.q_proj.bias      flat
{attention}.key.kernel                  vision.layers.*.self_attn.k_proj.weight    to_heads
{attention}.key.bias                    vision.layers.*.self_attn.k_proj.bias      flat
{attention}.value.kernel                vision.layers.*.self_attn.v_proj.weight    to_heads
{attention}.value.bias                  vision.layers.*.self_attn.v_proj.bias      flat
{attention}.out.kernel                  vision.layers.*.self_attn.out_proj.weight  from_heads
{attention}.out.bias                    vision.layers.*.self_attn.out_proj.bias    same
PaliGemma.img.Transformer.encoder_norm  vision.norm                                norm
PaliGemma.img.head                      projector                                  linear
PaliGemma.llm.embedder.input_embedding  embedding.weight                           same
{llm}.attn.q_einsum{end}.w              {tower}.self_attn.q_proj.weight            of_heads
{llm}.attn.kv_einsum{end}.w[0]          {tower}.self_attn.k_proj.weight            of_heads
{llm}.attn.kv_einsum{end}.w[1]          {tower}.self_attn.v_proj.weight            of_heads
{llm}.attn.attn_vec_einsum{end}.w       {tower}.self_attn.o_proj.weight            from_heads
{llm}.mlp{end}.gating_einsum[0]         {tower}.mlp.gate_proj.weight               matrix
{llm}.mlp{end}.gating_einsum[1]         {tower}.mlp.up_proj.weight                 matrix
{llm}.mlp{end}.linear                   {tower}.mlp.down_proj.weight               matrix
{llm}.pre_attention_norm{end}.scale     {tower}.input_layernorm.weight             same
{llm}.pre_attention_norm{end}.Dense_0   {tower}.input_layernorm.dense              linear
{llm}.pre_ffw_norm{end}.scale           {tower}.post_attention_layernorm.weight    same
{llm}.pre_ffw_norm{end}.Dense_0         {tower}.post_attention_layernorm.dense     linear
PaliGemma.llm.final_norm{end}.scale     {name}_norm.weight                         same
PaliGemma.llm.final_norm{end}.Dense_0   {name}_norm.dense                          linear
action_in_proj                          action_in_proj                             linear
action_out_proj                         action_out_proj                            linear
time_mlp_in                             time_mlp_in                                linear
time_mlp_out                            time_mlp_out                               linear
state_proj                              state_proj                                 linear
action_time_mlp_in                      action_time_mlp_in                         linear
action_time_mlp_out                     action_time_mlp_out                        linear
"""
"""Array, parameter and form: one of `FORMS`, or that of a module. `*` is the number of a layer, the
first dimension of its array; [0] and [1] are places in the next one.
"""
MODULES = {
    "linear": ((".kernel", ".weight", "matrix"), (".bias", ".bias", "same")),
    "norm": ((".scale", ".weight", "same"), (".bias", ".bias", "same")),
}
"""Form of a module -> end of the array, end of the parameter and form of each of its arrays."""


def _table() -> dict[str, dict[str, tuple[tuple[int, ...], Form]]]:
    """Read `ARRAYS`: array -> parameter -> index behind the layer, and form."""
    table: dict[str, dict[str, tuple[tuple[int, ...], Form]]] = {}
    block = "PaliGemma.img.Transformer.encoderblock"
    attention = f"{block}.MultiHeadDotProductAttention_0"
    llm = "PaliGemma.llm.layers"
    for end, name in (("", "vlm"), ("_1", "expert")):
        lines = ARRAYS.format(
            block=block, attention=attention, llm=llm, end=end, name=name, tower=f"layers.*.{name}"
        ).split("\n")
        for place, parameter, kind in (line.split() for line in lines if line):
            array, _, number = place.rstrip("]").partition("[")
            index = (int(number),) if number else ()
            for array_end, end_of_name, form in MODULES.get(kind, [("", "", kind)]):
                entry = index, FORMS[form]
                table.setdefault(array + array_end, {})[parameter + end_of_name] = entry
    return table


TABLE = _table()


def plain_name(array: str) -> str:
    """Return the name of an array without `params` in front and `value` behind, which some versions
    write.
    """
    return re.sub(r"^params\.|\.value$", "", array)


def find_places(arrays: Mapping[str, Shape]) -> dict[str, tuple[Place, tuple[int, ...]]]:
    """Return place and shape of each parameter.

    Args:
        arrays: shapes by name, as `plain_name` returns them. An unknown one, or one with other
            dimensions than openpi's, is a parameter of that name, so that a comparison with a
            network names it.
    """
    places: dict[str, tuple[Place, tuple[int, ...]]] = {}
    for array, shape in arrays.items():
        for name, (index, form) in TABLE.get(array, {array: ((), SAME)}).items():
            stacked = "*" in name
            inner_shape = shape[stacked + len(index) :]
            if form.dimensions not in (0, len(inner_shape)) or len(shape) < stacked + len(index):
                places[array] = Place(array, (), SAME), tuple(shape)
                continue
            layers = range(shape[0]) if stacked else range(1)
            for layer in layers:
                place_index = (layer, *index) if stacked else index
                places[name.replace("*", str(layer), 1)] = (
                    Place(array, place_index, form),
                    form.shape(inner_shape),
                )
    return places


CACHE = 1 << 30
METADATA = {"/.zarray": "zarr", "/zarr.json": "zarr3"}
"""End of the key of an array's metadata -> driver."""
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


class JaxTree(TensorReader):
    """The parameters of a JAX tree, by the network's own names. It reads as `WeightFiles` does.

    Attributes:
        path: the folder.
        shapes: by parameter.
        dtypes: by parameter.
    """

    def __init__(self, path: str | Path) -> None:
        """Read names, shapes and dtypes.

        Raises:
            FileNotFoundError: the folder has no tree. MissingExtraError: tensorstore is not
                installed.
            ValueError: the tree is damaged, or an array is not of floats.
        """
        require("jax-weights")
        self.path = Path(path)
        manifest = self.find_jax_manifest(path)
        if manifest is None:
            raise FileNotFoundError(f"{path} has no arrays of JAX, nor has its folder params")
        root = manifest.parent
        self._root = root
        self._manifest = manifest
        self._version = self._stat()
        self._arrays = self._open(root)
        places = find_places({name: tuple(array.shape) for name, array in self._arrays.items()})
        self._places = {name: place for name, (place, _) in places.items()}
        self.shapes = {name: shape for name, (_, shape) in places.items()}
        self.dtypes: dict[str, torch.dtype] = {}
        for name, place in self._places.items():
            kind = self._arrays[place.array].dtype.name
            if kind not in DTYPES:
                raise ValueError(
                    f"{path}: {place.array} is {kind}; weights are {', '.join(DTYPES)}"
                )
            self.dtypes[name] = DTYPES[kind]
        self._latest: tuple[str, Tensor] | None = None

    def read(self, key: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Read the rows [start, stop) of a parameter in the dtype of the tree; None: to its end.

        Raises:
            KeyError: there is no such parameter.
            ValueError: a value is not finite, or the tree is damaged or changed since it was
                opened.
        """
        place = self._places[key]
        if place.form is SAME and self.shapes[key]:
            rows = self._values(key, (*place.at, slice(start, self._stop(key, stop))))
        else:
            if self._latest is None or self._latest[0] != key:
                self._latest = key, self._values(key, place.at)
            rows = self._latest[1][start:stop].clone() if self.shapes[key] else self._latest[1]
        if rows.numel() and not all(map(torch.isfinite, torch.aminmax(rows))):
            raise ValueError(
                f"{self.path}: {key} has values that are not finite: restore the folder"
            )
        return rows

    def digest(self) -> str:
        """Return the SHA-256 of the names and SHA-256 of all files, in hexadecimal digits.

        Raises:
            OSError: a file cannot be read. ValueError: the tree changed since it was opened.
        """
        files = sorted(path for path in self._root.rglob("*") if path.is_file())
        digest = self.digest_files(
            {path.relative_to(self._root).as_posix(): path for path in files}
        )
        self._check_version()
        return digest

    def _check_version(self) -> None:
        if self._stat() != self._version:
            raise ValueError(f"{self.path} changed while its arrays were read: load it again")

    def _stop(self, key: str, stop: int | None) -> int:
        rows = self.shapes[key][0]
        return rows if stop is None else min(stop, rows)

    def _values(self, key: str, index: tuple[Any, ...]) -> Tensor:
        place = self._places[key]
        try:
            array = self._arrays[place.array]
            chosen = array[index] if index else array
            values = place.form.convert(np.asarray(chosen.read().result()))
        except Exception as error:  # tensorstore has no class of errors
            raise ValueError(
                f"{self.path}: {place.array} cannot be read: {_line(error)}"
            ) from error
        self._check_version()
        plain = np.array(values, order="C")
        if plain.dtype.name == "bfloat16":  # a type of ml_dtypes, which torch does not know
            return torch.from_numpy(plain.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(plain)

    def _open(self, root: Path) -> dict[str, Any]:
        """Open all arrays of a tree, by their plain names."""
        tensorstore: Any = import_module("tensorstore")
        store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{root.absolute()}/"}}
        context = tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHE}})
        arrays = {}
        try:
            keys = tensorstore.KvStore.open(store, context=context).result().list().result()
            for key in sorted(raw.decode() for raw in keys):
                for end, driver in METADATA.items():
                    if key.endswith(end):
                        name = key.removesuffix(end)
                        spec = {"driver": driver, "kvstore": {**store, "path": f"{name}/"}}
                        opened = tensorstore.open(spec, context=context, read=True, open=True)
                        arrays[plain_name(name)] = opened.result()
        except Exception as error:  # tensorstore has no class of errors
            raise ValueError(f"{root} cannot be read: {_line(error)}") from error
        if not arrays:
            raise ValueError(f"{root} has no arrays")
        return arrays

    def _stat(self) -> tuple[int, int, int]:
        stat = os.stat(self._manifest)
        return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
