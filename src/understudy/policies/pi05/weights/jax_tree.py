"""Weights in openpi's JAX format (orbax, OCDBT), read array by array with tensorstore: neither JAX nor orbax is needed.

    FOLDER/params/manifest.ocdbt    the arrays; FOLDER/params itself may be given, too
    FOLDER/assets/ID/norm_stats.json

A layer of a stacked array is read at a time. If the file has several layers in one chunk, a read decodes the chunk; a
cache of `CACHE` bytes keeps the latest chunks.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy.optional_packages import require
from understudy.policies.pi05.weights.jax_names import SAME, find_places, plain_name
from understudy.policies.weight_files import FILE, INDEX, TensorReader, WeightFiles, digest_files

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
            found = self._values(key, (*place.at, slice(start, self._stop(key, stop))))
        else:
            if self._latest is None or self._latest[0] != key:
                self._latest = key, self._values(key, place.at)
            found = self._latest[1][start:stop].clone() if self.shapes[key] else self._latest[1]
        if found.numel() and not all(map(torch.isfinite, torch.aminmax(found))):
            raise ValueError(f"{self.path}: {key} has values that are not finite: restore the folder")
        return found

    def digest(self) -> str:
        """Return the SHA-256 of the names and SHA-256 of all files, in hexadecimal digits.

        Raises:
            OSError: a file cannot be read. ValueError: the tree changed since it was opened.
        """
        files = sorted(path for path in self._root.rglob("*") if path.is_file())
        found = digest_files({path.relative_to(self._root).as_posix(): path for path in files})
        self._check_version()
        return found

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
        except Exception as error:  # tensorstore has no class of errors of its own
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
        found = {}
        try:
            keys = tensorstore.KvStore.open(store, context=context).result().list().result()
            for key in sorted(each.decode() for each in keys):
                for end, driver in METADATA.items():
                    if key.endswith(end):
                        name = key.removesuffix(end)
                        spec = {"driver": driver, "kvstore": {**store, "path": f"{name}/"}}
                        opened = tensorstore.open(spec, context=context, read=True, open=True)
                        found[plain_name(name)] = opened.result()
        except Exception as error:  # tensorstore has no class of errors of its own
            raise ValueError(f"{root} cannot be read: {_line(error)}") from error
        if not found:
            raise ValueError(f"{root} has no arrays")
        return found

    def _stat(self) -> tuple[int, int, int]:
        found = os.stat(self._manifest)
        return found.st_ino, found.st_mtime_ns, found.st_size


def find_tree(path: str | Path) -> Path | None:
    """Return the folder of a JAX tree at `path` or in its folder `params`; None: there is none."""
    return next((each for each in (Path(path), Path(path) / "params") if (each / MANIFEST).is_file()), None)


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
