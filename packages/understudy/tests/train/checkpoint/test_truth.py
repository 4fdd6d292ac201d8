"""A checkpoint is as written, or refused by name: flipped bits, other steps' files, renamed
folders, code.
"""

import io
import json
import os
import pickle
import random
import resource
import shutil
import struct
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import metadata

from understudy.testing import checkpoint_ranks
from understudy.testing.ranks import in_ranks
from understudy.testing.runs import SHORT, same_run, trained_run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.checkpoint import CheckpointError
from understudy.train.checkpoint.checksums import FILES, SEAL, add_seal
from understudy.train.checkpoint.tensor_files import read_index
from understudy_base.testing.refusals import refused
from understudy_kit import main


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"weights/a": torch.full((30, 20), value), "moments/a": torch.full((30, 20), value + 1)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The folder of checkpoints 5 and 6."""
    for step in (5, 6):
        checkpoint.save(tmp_path, step, tensors(float(step)), {"position": 10 * step})
    return tmp_path


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def check_unreadable(path: Path, *values: object) -> None:
    for read in (
        lambda: checkpoint.load(path, tensors(0.0)),
        lambda: checkpoint.read_tensors(path, "weights/"),
    ):
        with refused(path, *values, kind=CheckpointError) as caught:
            read()
        assert "\n" not in str(caught.value)


def test_load_refuses_any_flipped_bit_and_suggests_the_one_before(saved: Path) -> None:
    path = saved / "step-00000006"
    draw = random.Random(0)
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for _ in range(25):
            flip(file, draw.randrange(8 * len(whole)))
            with pytest.raises(CheckpointError) as caught:
                checkpoint.load(path, tensors(0.0))
            assert "format" in str(caught.value) or (
                file.name in str(caught.value) and "step 5" in str(caught.value)
            )
            file.write_bytes(whole)
    checkpoint.load(path, tensors(0.0))


def test_load_refuses_a_file_of_another_step(saved: Path) -> None:
    shutil.copy(saved / "step-00000005/__0_0.distcp", saved / "step-00000006/__0_0.distcp")
    check_unreadable(saved / "step-00000006", "__0_0.distcp", 5)


def test_load_refuses_a_missing_or_truncated_file(saved: Path) -> None:
    file = saved / "step-00000006/__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])
    check_unreadable(file.parent, file.name)
    file.unlink()
    check_unreadable(file.parent, file.name)


def test_load_refuses_a_renamed_folder(saved: Path) -> None:
    (saved / "step-00000006").rename(saved / "step-00000900")
    check_unreadable(saved / "step-00000900", 6, 5)
    (saved / "step-00000005").rename(saved / "elsewhere")
    checkpoint.load(saved / "elsewhere", tensors(0.0))  # a copy under a name that promises nothing
    check_unreadable(saved / "step-00000900")


def test_read_state_refuses_an_edited_state(saved: Path) -> None:
    path = saved / "step-00000006"
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(state | {"position": 61}))
    check_unreadable(path, "state.json")


@pytest.mark.parametrize(
    "change",
    [{"step": "sixty"}, {"position": None}, {"settings": []}, {"step": True}, {"world": 1.5}],
)
def test_read_state_refuses_other_types(saved: Path, change: dict[str, object]) -> None:
    path = saved / "step-00000006"
    strip(path, change)
    check_unreadable(path, next(iter(change)))


def strip(path: Path, change: dict[str, object] | None = None) -> None:
    """Remove the checksums of the files and change the state, under a seal that fits."""
    state = json.loads((path / "state.json").read_text())
    del state[SEAL]
    (path / "state.json").write_text(json.dumps(add_seal(state | {FILES: {}} | (change or {}))))


@pytest.mark.long
def test_load_fails_on_all_ranks_together(tmp_path: Path) -> None:
    told = in_ranks(2, checkpoint_ranks.flipped, tmp_path)
    assert len(set(told)) == 1
    for file, error in zip(
        ("__0_0.distcp", "__1_0.distcp", ".metadata"), told[0].split("\n"), strict=True
    ):
        assert file in error


# -- code ------------------------------------------------------------------------------------------


class Evil:
    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def dotted(trace: Path) -> bytes:
    """A name that an allowed module has imported: `torch.distributed.checkpoint.metadata` has
    `os`.
    """

    def text(value: str) -> bytes:
        return b"\x8c" + bytes([len(value)]) + value.encode()

    names = text("torch.distributed.checkpoint.metadata") + text("os.system")
    return b"\x80\x04" + names + b"\x93" + text(f"touch {trace}") + b"\x85R."


def payloads(trace: Path) -> dict[str, bytes]:
    return {
        "a command": pickle.dumps(Evil(os.system, f"touch {trace}")),
        "an expression": pickle.dumps(Evil(eval, f"open({str(trace)!r}, 'w')")),
        "inside an index": pickle.dumps(
            metadata.Metadata({}, planner_data=Evil(os.system, f"touch {trace}"))
        ),
        "through a module": dotted(trace),
        "an attribute": pickle.dumps(
            Evil(getattr, Evil(getattr, metadata.Metadata, "__init__"), "__globals__")
        ),
        "of torch": pickle.dumps(Evil(torch.load, str(trace.with_suffix(".pt")), None)),
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory.mktemp("truth") / "run", **SHORT)


@pytest.mark.parametrize(
    "name",
    [
        "a command",
        "an expression",
        "inside an index",
        "through a module",
        "an attribute",
        "of torch",
    ],
)
def test_no_command_runs_code_of_an_index(
    trained: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    path = tmp_path / "run/checkpoints/step-00000004"
    trace = tmp_path / "trace"
    payload = payloads(trace)[name]
    (path / ".metadata").write_bytes(payload)
    strip(path)
    verbs = [["export", "--output-dir", str(tmp_path / "out")]]
    if name == "a command":  # one reader serves all commands
        verbs += [["resume", "--steps", "6"], ["validate"]]
    for verb in verbs:
        assert main([verb[0], str(tmp_path / "run"), *verb[1:]]) == 1, verb
        told = capsys.readouterr().err
        assert ".metadata" in told
        assert "Traceback" not in told
        assert not trace.exists(), verb
    if name not in ("of torch", "an attribute"):
        pickle.loads(payload)  # the negative control: where it is let, it runs
        assert trace.exists()


def test_read_index_accepts_only_tensors_of_its_checkpoint(saved: Path) -> None:
    path = saved / "step-00000006"
    strip(path)
    whole = read_index(path)
    other = pickle.loads(pickle.dumps(whole))
    next(iter(other.storage_data.values())).relative_path = "../step-00000005/__0_0.distcp"
    (path / ".metadata").write_bytes(pickle.dumps(other))
    check_unreadable(path, ".metadata")
    # DCP would unpickle them
    bytes_of = {name: metadata.BytesStorageMetadata() for name in whole.state_dict_metadata}
    (path / ".metadata").write_bytes(
        pickle.dumps(metadata.Metadata(bytes_of, storage_data=whole.storage_data))
    )
    check_unreadable(path, ".metadata")


def test_resume_names_damage_and_continues_without_that_checkpoint(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    newest = tmp_path / "run/checkpoints/step-00000004"
    flip(newest / "__0_0.distcp", 12_345)
    for verb in ("resume", "validate", "export"):
        assert main([verb, str(tmp_path / "run")]) == 1
        told = capsys.readouterr().err.splitlines()
        assert any("__0_0.distcp" in line and "step 2" in line for line in told)
    newest.rename(tmp_path / "set-aside")
    assert main(["resume", str(tmp_path / "run")]) == 0
    same_run(trained, tmp_path / "run")


class ByName(pickle.Pickler):
    """Writes members of enums as Python 3.11.0 to 3.11.3 do."""

    def reducer_override(self, value: object) -> object:
        return (getattr, (type(value), value.name)) if isinstance(value, Enum) else NotImplemented


def test_read_index_of_an_older_python(saved: Path) -> None:
    path = saved / "step-00000006"
    whole = read_index(path)
    written = io.BytesIO()
    ByName(written).dump(pickle.loads((path / ".metadata").read_bytes()))
    assert b"getattr" in written.getvalue()
    (path / ".metadata").write_bytes(written.getvalue())
    assert read_index(path) == whole


@pytest.mark.parametrize("name", ["__init__", "__subclasses__", "read_index"])
def test_read_index_allows_only_enum_members(saved: Path, name: str) -> None:
    path = saved / "step-00000006"
    (path / ".metadata").write_bytes(
        pickle.dumps(Evil(getattr, metadata._MEM_FORMAT_ENCODING, name))
    )
    with pytest.raises(ValueError, match=r"\.metadata"):
        read_index(path)


@pytest.mark.parametrize(
    "target",
    [
        b"cpathlib\nPosixPath\n",
        b"ctorch\nSize\n",
        b"ctorch\nfloat32\n",
        b"ctorch.serialization\n_get_layout\n",
        b"ctorch.distributed.checkpoint.metadata\nMetadata\n",
    ],
)
def test_read_index_sets_no_state_of_a_class(saved: Path, target: bytes) -> None:
    path = saved / "step-00000006"
    (path / ".metadata").write_bytes(target + b"(N}(Vname\nVx\nutb.")
    with pytest.raises(ValueError, match=r"\.metadata"):
        read_index(path)
    objects = (
        Path("/a/b"),
        torch.Size,
        torch.float32,
        torch.serialization._get_layout,
        metadata.Metadata,
    )
    assert [getattr(changed, "name", None) for changed in objects] == ["b", None, None, None, None]


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02Nr\x00\x00\x00\x200.",  # an entry 2 ** 29 of the memo, whose entries take 4 GiB
        pickle.PROTO + b"\x05" + pickle.BYTEARRAY8 + struct.pack("<Q", 2**32) + pickle.STOP,
        pickle.PROTO + b"\x04" + pickle.BINBYTES8 + struct.pack("<Q", 2**40) + pickle.STOP,
    ],
)
def test_read_index_lets_a_file_choose_no_amount_of_memory(saved: Path, content: bytes) -> None:
    path = saved / "step-00000006"
    (path / ".metadata").write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"\.metadata"):
        read_index(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # KiB


@pytest.mark.parametrize(
    "read", [checkpoint.tensor_names, checkpoint.tensor_dtypes, checkpoint.read_tensors]
)
def test_each_changed_bit_of_an_index_is_a_checkpoint_error(
    saved: Path, read: Callable[[Path], object]
) -> None:
    path = saved / "step-00000006/.metadata"
    whole = path.read_bytes()
    try:
        for bit in np.random.default_rng(0).integers(0, 8 * len(whole), 40).tolist():
            changed = bytearray(whole)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            with pytest.raises(CheckpointError):
                read(path.parent)
    finally:
        path.write_bytes(whole)
    read(path.parent)
