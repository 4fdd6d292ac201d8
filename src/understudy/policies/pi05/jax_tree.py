"""Weights in openpi's JAX format (orbax, OCDBT), read array by array with tensorstore: neither JAX nor orbax is needed.

    FOLDER/params/manifest.ocdbt    the arrays; FOLDER/params itself may be given, too
    FOLDER/assets/ID/norm_stats.json

A layer of a stacked array is read at a time. If the file has several layers in one chunk, a read decodes the chunk; a
cache of `CACHE` bytes keeps the latest chunks.
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

from understudy.optional_packages import require
from understudy.policies.weight_files import FILE, INDEX, TensorReader, WeightFiles, digest_files

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
    img, ours_first = "PaliGemma.img.", "vision."
    block, layer = f"{img}Transformer.encoderblock.", f"{ours_first}layers.*."
    table: dict[str, list[tuple[str, tuple[int, ...], Form]]] = {
        f"{img}embedding.kernel": [(f"{ours_first}patch.weight", (), PATCH)],
        f"{img}embedding.bias": [(f"{ours_first}patch.bias", (), SAME)],
        f"{img}pos_embedding": [(f"{ours_first}position.weight", (0,), SAME)],
        f"{img}Transformer.encoder_norm.scale": [(f"{ours_first}norm.weight", (), SAME)],
        f"{img}Transformer.encoder_norm.bias": [(f"{ours_first}norm.bias", (), SAME)],
        f"{img}head.kernel": [("projector.weight", (), MATRIX)],
        f"{img}head.bias": [("projector.bias", (), SAME)],
        "PaliGemma.llm.embedder.input_embedding": [("embedding.weight", (), SAME)],
    }
    for number in (0, 1):
        table[f"{block}LayerNorm_{number}.scale"] = [(f"{layer}layer_norm{number + 1}.weight", (), SAME)]
        table[f"{block}LayerNorm_{number}.bias"] = [(f"{layer}layer_norm{number + 1}.bias", (), SAME)]
        table[f"{block}MlpBlock_0.Dense_{number}.kernel"] = [(f"{layer}mlp.fc{number + 1}.weight", (), MATRIX)]
        table[f"{block}MlpBlock_0.Dense_{number}.bias"] = [(f"{layer}mlp.fc{number + 1}.bias", (), SAME)]
    for theirs, ours in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "out")):
        name, out = f"{block}MultiHeadDotProductAttention_0.{theirs}", ours == "out"
        table[f"{name}.kernel"] = [(f"{layer}self_attn.{ours}_proj.weight", (), FROM_HEADS if out else TO_HEADS)]
        table[f"{name}.bias"] = [(f"{layer}self_attn.{ours}_proj.bias", (), SAME if out else FLAT)]
    for end, tower in (("", "vlm"), ("_1", "expert")):
        llm, layer = "PaliGemma.llm.layers.", f"layers.*.{tower}."
        attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
        table |= {
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
            table[f"{theirs}.scale"] = [(f"{ours}.weight", (), SAME)]
            table[f"{theirs}.Dense_0.kernel"] = [(f"{ours}.dense.weight", (), MATRIX)]
            table[f"{theirs}.Dense_0.bias"] = [(f"{ours}.dense.bias", (), SAME)]
    for name in ("action_in_proj", "action_out_proj", "time_mlp_in", "time_mlp_out", "state_proj"):
        table |= {f"{name}.kernel": [(f"{name}.weight", (), MATRIX)], f"{name}.bias": [(f"{name}.bias", (), SAME)]}
    for name in ("action_time_mlp_in", "action_time_mlp_out"):
        table |= {f"{name}.kernel": [(f"{name}.weight", (), MATRIX)], f"{name}.bias": [(f"{name}.bias", (), SAME)]}
    return table


TABLE = _table()


def plain_name(array: str) -> str:
    """Return the name of an array without `params` in front and `value` behind, which some versions write."""
    return re.sub(r"^params\.|\.value$", "", array)


def find_places(arrays: Mapping[str, Shape]) -> dict[str, tuple[Place, tuple[int, ...]]]:
    """Return place and shape of each parameter.

    Args:
        arrays: shapes by name, as `plain_name` returns them. An unknown one, or one with other dimensions than
            openpi's, is a parameter of that name, so that a comparison with a network names it.
    """
    places: dict[str, tuple[Place, tuple[int, ...]]] = {}
    for array, shape in arrays.items():
        for name, index, form in TABLE.get(array, [(array, (), SAME)]):
            stacked = "*" in name
            rest = shape[stacked + len(index) :]
            if form.dimensions not in (0, len(rest)) or len(shape) < stacked + len(index):
                places[array] = Place(array, (), SAME), tuple(shape)
                continue
            for layer in range(shape[0]) if stacked else (0,):
                place_index = (layer, *index) if stacked else index
                places[name.replace("*", str(layer), 1)] = Place(array, place_index, form), form.shape(rest)
    return places


MANIFEST = "manifest.ocdbt"
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
            FileNotFoundError: the folder has no tree. MissingExtraError: tensorstore is not installed.
            ValueError: the tree is damaged, or an array is not of floats.
        """
        require("jax-weights")
        self.path = Path(path)
        root = find_tree(path)
        if root is None:
            raise FileNotFoundError(f"{path} has no {MANIFEST}, nor has its folder params")
        self._root = root
        self._manifest = root / MANIFEST
        self._version = self._stat()
        self._arrays = self._open(root)
        places = find_places({name: tuple(array.shape) for name, array in self._arrays.items()})
        self._places = {name: place for name, (place, _) in places.items()}
        self.shapes = {name: shape for name, (_, shape) in places.items()}
        self.dtypes: dict[str, torch.dtype] = {}
        for name, place in self._places.items():
            kind = self._arrays[place.array].dtype.name
            if kind not in DTYPES:
                raise ValueError(f"{path}: {place.array} is {kind}; weights are {', '.join(DTYPES)}")
            self.dtypes[name] = DTYPES[kind]
        self._latest: tuple[str, Tensor] | None = None

    def read(self, key: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Read the rows [start, stop) of a parameter in the dtype of the tree; None: to its end.

        Raises:
            KeyError: there is no such parameter.
            ValueError: a value is not finite, or the tree is damaged or changed since it was opened.
        """
        place = self._places[key]
        if place.form is SAME and self.shapes[key]:
            rows = self._values(key, (*place.at, slice(start, self._stop(key, stop))))
        else:
            if self._latest is None or self._latest[0] != key:
                self._latest = key, self._values(key, place.at)
            rows = self._latest[1][start:stop].clone() if self.shapes[key] else self._latest[1]
        if rows.numel() and not all(map(torch.isfinite, torch.aminmax(rows))):
            raise ValueError(f"{self.path}: {key} has values that are not finite: restore the folder")
        return rows

    def digest(self) -> str:
        """Return the SHA-256 of the names and SHA-256 of all files, in hexadecimal digits.

        Raises:
            OSError: a file cannot be read. ValueError: the tree changed since it was opened.
        """
        files = sorted(path for path in self._root.rglob("*") if path.is_file())
        digest = digest_files({path.relative_to(self._root).as_posix(): path for path in files})
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
            values = place.form.convert(np.asarray((array[index] if index else array).read().result()))
        except Exception as error:  # tensorstore has no class of errors
            raise ValueError(f"{self.path}: {place.array} cannot be read: {_line(error)}") from error
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


def find_tree(path: str | Path) -> Path | None:
    """Return the folder of a JAX tree at `path` or in its folder `params`; None: there is none."""
    return next((folder for folder in (Path(path), Path(path) / "params") if (folder / MANIFEST).is_file()), None)


def open_tree(path: str | Path) -> JaxTree | None:
    """Open a JAX tree; None: there is none, or there are safetensors files, too.

    Raises:
        ValueError: the tree is damaged. MissingExtraError: see `JaxTree`.
    """
    if find_tree(path) is None or any((Path(path) / name).is_file() for name in (FILE, INDEX)):
        return None
    return JaxTree(path)


def open_weights(path: str | Path) -> TensorReader:
    """Open released weights: safetensors files, or a JAX tree where there are none.

    Raises:
        FileNotFoundError: there are neither. ValueError: the files are damaged. MissingExtraError: see `JaxTree`.
    """
    return open_tree(path) or WeightFiles(path)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
