"""Tensors in safetensors files, read row by row: one file, or several with an index as
`transformers` writes them.

A read maps the file for the length of the call, so it takes memory for the rows read alone: a file
of 14 GB fills a model of 14 GB, or a rank's shard of it, with no second copy.
"""

import hashlib
import json
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from understudy_base import load_entry_point
from understudy_data import Checksums

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Dtypes of weights, by their names in a file."""
OTHERS = {
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Dtypes of buffers that count or mark."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""Suffixes of files that hold pickles."""

PART = 1 << 25
"""Bytes of a tensor that are read at once."""

ReadRows = Callable[[str, int, int], Tensor]
"""(name, first row, row after the last) -> these rows of a tensor; a tensor without dimensions has
one row.
"""


class TensorReader(Mapping[str, Tensor]):
    """Named tensors on a disk, of which rows are read; as a mapping it reads a tensor when it is
    asked for.

    Attributes:
        path: the file or folder.
        shapes: by key.
        dtypes: by key.
    """

    path: Path
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, torch.dtype]

    @abstractmethod
    def read(self, key: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Read the rows [start, stop) of a tensor in the dtype of the file; None: to its end.

        Raises:
            KeyError: there is no such tensor. OSError: the file cannot be read.
            ValueError: a value is not finite, or the file changed since it was opened first.
        """

    @abstractmethod
    def digest(self) -> str:
        """Return the SHA-256 of the file, or of the names and SHA-256 of several, in hexadecimal
        digits.

        Raises:
            OSError: a file cannot be read. ValueError: it changed since it was opened first.
        """

    @staticmethod
    def find_jax_manifest(path: str | Path) -> Path | None:
        """Return the file of a tree of arrays in JAX's format, in a folder or in its folder
        `params`; None: there is none.
        """
        for folder in (Path(path), Path(path) / "params"):
            manifest = folder / "manifest.ocdbt"
            if manifest.is_file():
                return manifest
        return None

    @staticmethod
    def digest_files(files: Mapping[str, Path]) -> str:
        """Return the SHA-256 of a file, or of the names and SHA-256 of several, in hexadecimal
        digits.

        Args:
            files: name -> path.

        Raises:
            OSError: a file cannot be read.
        """
        digests = {name: Checksums.sha256_of(path) for name, path in files.items()}
        if len(digests) == 1:
            return next(iter(digests.values()))
        return hashlib.sha256(
            "".join(f"{digest} {name}\n" for name, digest in digests.items()).encode()
        ).hexdigest()

    def __getitem__(self, key: str) -> Tensor:
        return self.read(key)

    def __contains__(self, key: object) -> bool:
        return key in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def check_values(self) -> None:
        """Read all tensors, `PART` bytes at a time; raises as `read` does."""
        for key, shape in self.shapes.items():
            step = rows_of_part(shape)
            rows = shape[0] if shape else 1
            for low in range(0, rows, step):
                self.read(key, low, low + step)

    def copy_into(self, key: str, target: Tensor) -> None:
        """Fill a tensor of the same shape, `PART` bytes at a time; raises as `read` does."""
        if not target.ndim:
            target.copy_(self.read(key))
            return
        step = rows_of_part(target.shape)
        for low in range(0, len(target), step):
            target[low : low + step].copy_(self.read(key, low, low + step))


class WeightFiles(TensorReader):
    """The tensors of a file or folder. Making it reads names and shapes alone.

    Each read opens the file again. A file that was replaced or changed in between is an error, so
    the tensors never mix two checkpoints.

    Attributes:
        path: the file or folder.
        shapes: by key.
        dtypes: by key.
    """

    def __init__(self, path: str | Path, floats_only: bool = True) -> None:
        """Open a safetensors file, or the folder of one (`model.safetensors`) or several (with an
        index).

        Args:
            path: the file, the index, or their folder.
            floats_only: whether a tensor of integers is an error.

        Raises:
            FileNotFoundError: there is none, or one that the index names is missing.
            ValueError: a file is damaged, a tensor is in no file or in another than the index says,
                or the folder has both a single file and an index.
        """
        self.path = Path(path)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self._files: dict[str, Path] = {}
        indexed = _index(self.path)
        files = sorted(set(indexed.values())) if indexed is not None else [_single(self.path)]
        # Taken before the first look inside: a file replaced in between fails each read, and is
        # never believed.
        self._versions = {file: _version(file) for file in files}
        dtypes = FLOATS if floats_only else FLOATS | OTHERS
        for file in files:
            for key, shape, dtype in _contents(file, dtypes):
                if key in self._files or (indexed is not None and indexed.get(key) != file):
                    raise ValueError(
                        f"{file}: {key} belongs to {self._files.get(key, INDEX)}: the folder is "
                        "mixed up"
                    )
                self._files[key] = file
                self.shapes[key] = shape
                self.dtypes[key] = dtype
        if lost := sorted(set(indexed or ()) - set(self._files)):
            raise ValueError(
                f"{self.path / INDEX} names {lost[0]}, which is in no file: load the folder again"
            )

    def read(self, key: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Read the rows [start, stop) of a tensor in the dtype of the file; None: to its end.

        Raises:
            KeyError: there is no such tensor. OSError: the file cannot be read.
            ValueError: a value is not finite, or the file changed since it was opened first.
        """
        file = self._files[key]
        try:
            with safe_open(file, framework="pt") as opened:
                # A slice is a view of the mapped file; the copy lets the mapping end with this
                # call.
                if self.shapes[key]:
                    part = opened.get_slice(key)[start:stop]
                else:
                    part = opened.get_tensor(key)
                rows: Tensor = part.clone()
        except SafetensorError as error:
            self._check_version(file)
            raise ValueError(f"{file} cannot be read: {error}") from error
        self._check_version(file)
        if (
            rows.numel()
            and rows.is_floating_point()
            and not all(map(torch.isfinite, torch.aminmax(rows)))
        ):
            raise ValueError(f"{file}: {key} has values that are not finite: restore the file")
        return rows

    def digest(self) -> str:
        """Return the SHA-256 of the file, or of the names and SHA-256 of several, in hexadecimal
        digits.

        Raises:
            OSError: a file cannot be read. ValueError: it changed since it was opened first.
        """
        digest = self.digest_files({path.name: path for path in self._versions})
        for path in self._versions:
            self._check_version(path)
        return digest

    def _check_version(self, file: Path) -> None:
        if _version(file) != self._versions[file]:
            raise ValueError(f"{file} changed while its tensors were read: load it again")


WEIGHT_FORMATS = "understudy.weights"
"""Group of entry points: other formats of weights -> class of a `TensorReader`, made from a path.
"""


def open_tree(path: str | Path) -> TensorReader | None:
    """Open a JAX tree; None: there is none, or there are safetensors files, too.

    Raises:
        ValueError: the tree is damaged.
        MissingExtraError: its reader is not installed.
    """
    if TensorReader.find_jax_manifest(path) is None or any(
        (Path(path) / name).is_file() for name in (FILE, INDEX)
    ):
        return None
    tree: TensorReader = load_entry_point(
        WEIGHT_FORMATS, "jax", f"{path}: the reader of JAX's format", "zoo"
    )(path)
    return tree


def open_weights(path: str | Path) -> TensorReader:
    """Open released weights: safetensors files, or a JAX tree where there are none.

    Raises:
        FileNotFoundError: there are neither.
        ValueError: the files are damaged.
        MissingExtraError: see `open_tree`.
    """
    tree = open_tree(path)
    return WeightFiles(path) if tree is None else tree


def rows_of_part(shape: Sequence[int]) -> int:
    """Return the number of rows of a tensor that take `PART` bytes in float32; at least 1."""
    return max(1, PART // max(1, prod(shape[1:]) * 4))


class StoredRows:
    """Rows of parameters from files (`ReadRows`).

    Attributes:
        dtypes: by parameter, those of the files.
    """

    def __init__(self, files: TensorReader, keys: Mapping[str, str]) -> None:
        """Read from `files`; keys: parameter -> its key there."""
        self.dtypes = {name: files.dtypes[key] for name, key in keys.items()}
        self._files = files
        self._keys = keys

    def __call__(self, name: str, start: int, stop: int) -> Tensor:
        """Read the rows [start, stop) of a parameter; raises as `WeightFiles.read` does."""
        return self._files.read(self._keys[name], start, stop)


def stored_shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensors by name; those of files are not read."""
    if isinstance(tensors, TensorReader):
        return dict(tensors.shapes)
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def stored_dtypes(tensors: Mapping[str, Tensor]) -> dict[str, torch.dtype]:
    """Return the dtypes of tensors by name; those of files are not read."""
    if isinstance(tensors, TensorReader):
        return dict(tensors.dtypes)
    return {name: tensor.dtype for name, tensor in tensors.items()}


@torch.no_grad()
def fill_parameters(
    module: nn.Module, tensors: Mapping[str, Tensor], keys: Mapping[str, str]
) -> None:
    """Copy tensors into the parameters of a module, each in its dtype; one on the meta device gets
    memory on the CPU.

    Args:
        module: the module.
        tensors: tensors of the parameters' shapes; those of files are read part by part.
        keys: parameter -> name in `tensors`.
    """
    for name, key in keys.items():
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        parameter: nn.Parameter = getattr(owner, leaf)
        if parameter.is_meta:
            parameter = nn.Parameter(
                torch.empty_like(parameter, device="cpu"), parameter.requires_grad
            )
            setattr(owner, leaf, parameter)
        _copy(tensors, key, parameter)


@torch.no_grad()
def fill_state(
    state: Mapping[str, Tensor], tensors: Mapping[str, Tensor], keys: Mapping[str, str]
) -> None:
    """Copy tensors into all those of a state dict, each in its dtype.

    Args:
        state: the tensors to fill, by name.
        tensors: the tensors that they take; those of files are read part by part.
        keys: name -> name in `tensors`, where they differ.

    Raises:
        ValueError: see `check_state`. A value of a file may not be finite: some tensors are then
            filled.
    """
    check_state(state, tensors, keys)
    for name, target in state.items():
        _copy(tensors, keys.get(name, name), target)


def check_state(
    state: Mapping[str, Tensor], tensors: Mapping[str, Tensor], keys: Mapping[str, str]
) -> None:
    """Raise ValueError unless tensors fill a state dict, see `fill_state`: each, of its shape, and
    no others.
    """
    shapes = stored_shapes(tensors)
    dtypes = stored_dtypes(tensors)
    used = {keys.get(name, name) for name in state}
    for name, target in state.items():
        key = keys.get(name, name)
        if shapes.get(key) != tuple(target.shape):
            raise ValueError(
                f"the weights are not those of this config: {key} is missing or has another shape"
            )
        if target.is_floating_point() and not dtypes[key].is_floating_point:
            raise ValueError(f"{key} is {dtypes[key]}; weights are floating-point")
    if unknown := sorted(shapes.keys() - used):
        raise ValueError(
            f"the weights are not those of this config: {unknown[0]} is not in the network"
        )


def _copy(tensors: Mapping[str, Tensor], key: str, target: Tensor) -> None:
    if isinstance(tensors, TensorReader):
        tensors.copy_into(key, target)
    else:
        target.copy_(tensors[key])


def _version(file: Path) -> tuple[int, int, int, int]:
    """Device, inode, time of change in ns, and size of a file: another one in its place differs in
    some.
    """
    stat = os.stat(file)
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size


def _index(path: Path) -> dict[str, Path] | None:
    """File of each tensor by the index of a folder; None: there is no index."""
    file = path / INDEX if path.is_dir() else path
    if file.name != INDEX or not file.is_file():
        return None
    if path.is_dir() and (path / FILE).is_file():
        raise ValueError(
            f"{path} has both {FILE} and {INDEX}: name the file that counts, or move the other away"
        )
    try:
        names = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        files = {str(key): file.parent / str(name) for key, name in names.items()}
    except (ValueError, RecursionError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{file} is not an index of safetensors files: {error!r}") from error
    for name in sorted(set(files.values())):
        if name.parent != file.parent or not name.is_file():
            raise FileNotFoundError(
                f"{file} names {name.name}, which is missing next to it: load the folder again"
            )
        if name.suffix != ".safetensors":
            raise ValueError(
                f"{file} names {name.name}, which is not a safetensors file: convert it"
            )
    return files


def _single(path: Path) -> Path:
    file = path / FILE if path.is_dir() else path
    if file.is_file() and file.suffix == ".safetensors":
        return file
    there = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else [path.name]
    holds = f"; it holds {', '.join(there[:5])}" if path.is_dir() and there else ""
    if pickles := [name for name in there if name.endswith(PICKLES)]:
        holds = f"; {pickles[0]} may execute code and is never read: convert it to safetensors"
    if {"checkpoints", "config.yaml"} <= set(there):
        holds = (
            f": it is a run that did not end; `understudy export {path}` writes the policy of "
            "its last checkpoint"
        )
    raise FileNotFoundError(f"{path} has no weights ({FILE}, or {INDEX} and its files){holds}")


def _contents(
    file: Path, dtypes: Mapping[str, torch.dtype]
) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Key, shape and dtype of each tensor of a file; ValueError where the file is damaged or has
    another dtype.
    """
    contents = []
    try:
        with safe_open(file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118  # no mapping
                part = opened.get_slice(key)
                kind = part.get_dtype()
                if kind not in dtypes:
                    raise ValueError(f"{file}: {key} is {kind}; weights are {', '.join(dtypes)}")
                contents.append((key, tuple(part.get_shape()), dtypes[kind]))
    except SafetensorError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    return contents


LARGE = 1 << 20
"""Elements of a tensor that `OnMeta` makes on the meta device."""


class OnMeta(TorchFunctionMode):
    """Context in which tensors of `LARGE` elements or more are made on the meta device: shapes
    alone.

    Small ones are real, so a policy can check and keep its normalization.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, with another device where it makes a large tensor from a shape."""
        named = dict(kwargs or {})
        if func in (torch.empty, torch.zeros, torch.ones):
            is_one_shape = len(args) == 1 and not isinstance(args[0], int)
            shape_of_args = args[0] if is_one_shape else args
            shape = named.get("size", shape_of_args)
            if prod(shape) >= LARGE:
                named["device"] = "meta"
        return func(*args, **named)
