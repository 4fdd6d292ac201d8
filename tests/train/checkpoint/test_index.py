"""A changed index of a checkpoint is refused, and changes nothing outside of it."""

import pickle
import random
import resource
import struct
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
import torch

from understudy.errors import CheckpointError
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.tensor_files import INDEX, read_index

READERS: tuple[Callable[[Path], object], ...] = (
    checkpoint.tensor_names,
    checkpoint.tensor_dtypes,
    checkpoint.read_tensors,
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return checkpoint.save(tmp_path, 3, {"model/a": torch.ones(4), "model/b": torch.zeros(2, 2)}, {})


def _state_of(module: str, name: str) -> bytes:
    """Pickle that sets an attribute of a class or function."""
    return f"c{module}\n{name}\n".encode() + b"(N(X\x04\x00\x00\x00nameX\x01\x00\x00\x00xdtb."


@pytest.mark.parametrize(
    ("module", "name", "target"),
    [
        ("pathlib", "PosixPath", PurePosixPath),
        ("torch.serialization", "_get_layout", torch.serialization._get_layout),
        ("torch.distributed.checkpoint.metadata", "Metadata", torch.distributed.checkpoint.metadata.Metadata),
        ("torch", "float32", torch.float32),
    ],
)
def test_index_sets_no_state_of_this_process(tmp_path: Path, module: str, name: str, target: object) -> None:
    content = _state_of(module, name)
    with pytest.raises(ValueError, match=r"\.metadata"):
        _read(tmp_path, content)
    assert getattr(target, "name", None) != "x"
    assert PurePosixPath("/a/b").name == "b"


def _read(folder: Path, content: bytes) -> object:
    (folder / INDEX).write_bytes(content)
    return read_index(folder)


@pytest.mark.parametrize(
    "content",
    [
        pickle.PROTO + b"\x02" + pickle.NONE + pickle.LONG_BINPUT + struct.pack("<I", 2**29) + pickle.STOP,
        pickle.PROTO + b"\x05" + pickle.BYTEARRAY8 + struct.pack("<Q", 2**32) + pickle.STOP,
        pickle.PROTO + b"\x04" + pickle.BINBYTES8 + struct.pack("<Q", 2**40) + pickle.STOP,
    ],
)
def test_index_chooses_no_amount_of_memory(tmp_path: Path, content: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"\.metadata"):
        _read(tmp_path, content)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # KiB: 64 MiB


def test_each_reader_refuses_a_flipped_index(saved: Path) -> None:
    path, draw = saved / INDEX, random.Random(0)
    sound = path.read_bytes()
    for _ in range(40):
        bit = draw.randrange(len(sound) * 8)
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        for read in READERS:
            with pytest.raises(CheckpointError):
                read(saved)
    path.write_bytes(sound)
    assert [sorted(read(saved)) for read in READERS] == [["model/a", "model/b"]] * 3  # type: ignore[call-overload]
