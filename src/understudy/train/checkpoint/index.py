"""Index of a checkpoint (`.metadata`), read without running code from it.

torch's distributed checkpoint format (DCP) pickles its index, and a plain unpickler calls anything that a pickle names.
This one knows the classes of an index and refuses all others. It also refuses dangerous content: values that are not
tensors (DCP unpickles them), and files outside the checkpoint. The tensors themselves are read by torch's restricted
loader.
"""

import io
import pickle
from collections import OrderedDict
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint import FileSystemReader, metadata

INDEX = ".metadata"

CLASSES: dict[str, tuple[str, ...]] = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),  # a layout by its name
    "torch": ("Size",),
}
"""Module -> names that an index may use, in every version of torch from 2.7 on."""


def _member(of: type[Enum], name: str) -> Enum:
    """Return a member of an Enum by its name; other attributes are refused."""
    if isinstance(of, type) and issubclass(of, Enum):
        return of[name]
    raise pickle.UnpicklingError("it asks for an attribute, which does not belong in a checkpoint")


class _Unpickler(pickle._Unpickler):
    """Unpickler in Python: its memo takes no more memory than its entries, and states are checked."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def load_build(self) -> None:
        """Set the state of an object; that of a class or of an Enum's member would change this process."""
        target = self.stack[-2]  # type: ignore[attr-defined]  # mypy's stubs leave the stack out
        if isinstance(target, type | Enum) or type(target).__name__ not in CLASSES.get(type(target).__module__, ()):
            raise pickle.UnpicklingError(f"it sets the state of {target!r:.80}, which does not belong in a checkpoint")
        super().load_build()  # type: ignore[misc]

    dispatch[pickle.BUILD[0]] = load_build
    del dispatch[pickle.BYTEARRAY8[0]]  # it would take any number of bytes

    def find_class(self, module: str, name: str) -> Any:
        if name in CLASSES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(value := getattr(torch, name, None), torch.dtype | torch.layout):
            return value
        if module in ("pathlib", "pathlib._local") and name in ("PosixPath", "WindowsPath"):
            return PurePosixPath  # the original path, which is not used
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) in (("builtins", "getattr"), ("__builtin__", "getattr")):
            return _member  # some versions of Python pickle a member of an Enum this way
        raise pickle.UnpicklingError(f"it names {module}.{name}, which does not belong in a checkpoint")


def read_index(path: Path) -> metadata.Metadata:
    """Read the index of the checkpoint in folder `path`.

    Raises:
        ValueError: it cannot be read, or contains anything but tensors and files of this checkpoint.
    """
    try:
        index = _Unpickler(io.BytesIO((path / INDEX).read_bytes())).load()
        if not isinstance(index, metadata.Metadata):
            raise pickle.UnpicklingError(f"it contains a {type(index).__name__}")
        for name, item in index.state_dict_metadata.items():
            if not isinstance(item, metadata.TensorStorageMetadata):
                raise pickle.UnpicklingError(f"{name} is no tensor")
        for piece in (index.storage_data or {}).values():
            if Path(piece.relative_path).name != piece.relative_path:
                raise pickle.UnpicklingError(f"it names the file {piece.relative_path!r}")
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"{INDEX}: {' '.join(f'{type(error).__name__}: {error}'.split())}") from error
    return index


class IndexReader(FileSystemReader):
    """DCP's reader of a folder, with `read_index`."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        """Read the index; called by DCP."""
        index = read_index(Path(self.path))
        if index.storage_meta is None:
            index.storage_meta = metadata.StorageMeta()
        index.storage_meta.load_id = self.load_id
        return index
