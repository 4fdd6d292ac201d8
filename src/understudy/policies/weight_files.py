"""Tensors in safetensors files, read row by row: one file, or several with an index as `transformers` writes them.

A read maps the file for the length of the call, so the memory beside the result is that of the rows read: a file of
14 GB fills a model of 14 GB, or a rank's shard of it, with no second copy.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Dtypes of weights, by their names in a file."""

ReadRows = Callable[[str, int, int], Tensor]
"""(name, first row, row after the last) -> these rows of a tensor; a tensor without dimensions has one row."""


class WeightFiles:
    """The tensors of a file or folder. Making it reads names and shapes alone.

    Attributes:
        path: the file or folder.
        shapes: by key.
        dtypes: by key.
    """

    def __init__(self, path: str | Path) -> None:
        """Open a safetensors file, or the folder of one (`model.safetensors`) or several (with an index).

        Raises:
            FileNotFoundError: there is none, or one that the index names is missing.
            ValueError: a file is damaged, a tensor is in no file or in another than the index says.
        """
        self.path = Path(path)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self._files: dict[str, Path] = {}
        indexed = _index(self.path)
        for file in sorted(set(indexed.values())) if indexed is not None else [_single(self.path)]:
            for key, shape, dtype in _contents(file):
                if key in self._files or (indexed is not None and indexed.get(key) != file):
                    raise ValueError(f"{file}: {key} belongs to {self._files.get(key, INDEX)}: the folder is mixed up")
                self._files[key], self.shapes[key], self.dtypes[key] = file, shape, dtype
        if lost := sorted(set(indexed or ()) - set(self._files)):
            raise ValueError(f"{self.path / INDEX} names {lost[0]}, which is in no file: load the folder again")

    def read(self, key: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Read the rows [start, stop) of a tensor in the dtype of the file; None: to its end.

        Raises:
            KeyError: there is no such tensor. OSError: the file cannot be read.
        """
        with safe_open(self._files[key], framework="pt") as opened:
            if not self.shapes[key]:
                tensor: Tensor = opened.get_tensor(key).clone()
                return tensor
            # A slice is a view of the mapped file; the copy lets the mapping end with this call.
            return torch.clone(opened.get_slice(key)[start:stop])


def _index(path: Path) -> dict[str, Path] | None:
    """File of each tensor by the index of a folder; None: there is no index."""
    file = path / INDEX if path.is_dir() else path
    if file.name != INDEX or not file.is_file():
        return None
    try:
        names = json.loads(file.read_text())["weight_map"]
        found = {str(key): file.parent / str(name) for key, name in names.items()}
    except (json.JSONDecodeError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{file} is no index of safetensors files: {error!r}") from error
    for name in set(found.values()):
        if name.parent != file.parent or not name.is_file():
            raise FileNotFoundError(f"{file} names {name.name}, which is missing beside it: load the folder again")
    return found


def _single(path: Path) -> Path:
    file = path / FILE if path.is_dir() else path
    if file.is_file() and file.suffix == ".safetensors":
        return file
    there = sorted(entry.name for entry in path.iterdir())[:5] if path.is_dir() else []
    holds = f"; it holds {', '.join(there)}" if there else ""
    raise FileNotFoundError(f"{path} has no weights ({FILE}, or {INDEX} and its files){holds}")


def _contents(file: Path) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Key, shape and dtype of each tensor of a file."""
    found = []
    try:
        with safe_open(file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118  # no mapping
                part = opened.get_slice(key)
                kind = part.get_dtype()
                if kind not in FLOATS:
                    raise ValueError(f"{file}: {key} is {kind}; weights are {', '.join(FLOATS)}")
                found.append((key, tuple(part.get_shape()), FLOATS[kind]))
    except SafetensorError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    return found
