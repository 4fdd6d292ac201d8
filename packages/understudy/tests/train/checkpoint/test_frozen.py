"""Frozen tensors are on disk once, in every checkpoint: linked, copied, killed in the save,
damaged, of older files.
"""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from understudy.testing.killed import Changes, Victim
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.checkpoint import checkpoint, tensor_files
from understudy.train.checkpoint.checkpoint import CheckpointError, Saver
from understudy.train.checkpoint.run_dir import RunDir
from understudy_kit import override

FROZEN = {"weights/base"}


def tensors(step: int) -> dict[str, Tensor]:
    base = torch.arange(30_000, dtype=torch.float32).view(300, 100)
    return {"weights/base": base, "weights/low": torch.full((3, 5), float(step))}


def save(folder: Path, step: int, earlier: int | None = None) -> Path:
    before = None if earlier is None else folder / f"step-{earlier:08d}"
    return checkpoint.save(folder, step, tensors(step), {"position": step}, None, FROZEN, before)


def holds(path: Path, step: int) -> bool:
    found = checkpoint.read_tensors(path)
    return found.keys() == tensors(step).keys() and all(
        torch.equal(found[n], t) for n, t in tensors(step).items()
    )


def inodes(path: Path) -> dict[int, int]:
    """Size of each file of a checkpoint, by inode."""
    return {file.stat().st_ino: file.stat().st_size for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """The folder of checkpoints 1 and 2."""
    saver = Saver(tmp_path, keep_last=9)
    for step in (1, 2):
        saver.save(step, tensors(step), {"position": step}, FROZEN)
    return tmp_path


def test_second_checkpoint_has_only_the_bytes_that_change(two: Path) -> None:
    first = two / "step-00000001"
    second = two / "step-00000002"
    assert holds(first, 1)
    assert holds(second, 2)
    new = {inode: size for inode, size in inodes(second).items() if inode not in inodes(first)}
    assert sum(new.values()) < 10_000 < 120_000 < sum(inodes(second).values())
    links = {file.name: file.stat().st_nlink for file in (second / tensor_files.FROZEN).iterdir()}
    assert links == {".metadata": 2, "__0_0.distcp": 2}
    control = checkpoint.save(two / "whole", 2, tensors(2), {})
    assert not (control / tensor_files.FROZEN).exists(), (
        "a checkpoint without frozen tensors is as before"
    )


def test_removal_of_old_checkpoints_keeps_the_frozen_tensors(two: Path) -> None:
    checkpoint.prune(two, keep_last=1)
    assert checkpoint.list_steps(two) == [2]
    assert holds(two / "step-00000002", 2)
    assert {file.stat().st_nlink for file in (two / "step-00000002/frozen").iterdir()} == {1}


def test_copied_folder_alone_is_complete(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "step-00000002", tmp_path / "other/step-00000002")
    shutil.rmtree(two / "step-00000001")
    shutil.rmtree(two / "step-00000002")
    assert holds(tmp_path / "other/step-00000002", 2)
    saver = Saver(tmp_path / "other", keep_last=2)
    live = tensors(0)
    saver.load(tmp_path / "other/step-00000002", live)
    saver.save(3, {**live, "weights/low": tensors(3)["weights/low"]}, {}, FROZEN)
    assert holds(tmp_path / "other/step-00000003", 3)
    assert tensor_files.is_shared(*checkpoints(tmp_path / "other"), "frozen/__0_0.distcp")


def checkpoints(folder: Path) -> tuple[Path, Path]:
    one, two = (folder / f"step-{step:08d}" for step in checkpoint.list_steps(folder))
    return one, two


@pytest.mark.parametrize("allowed", [0, 1])
def test_frozen_tensors_are_written_again_where_links_are_impossible(
    two: Path, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    plain = os.link
    calls = []

    def refuse(*paths: Any) -> None:
        calls.append(paths)
        if len(calls) > allowed:
            raise OSError(errno.EXDEV, "no links here")
        plain(*paths)

    monkeypatch.setattr(os, "link", refuse)
    path = save(two, 3, earlier=2)
    assert len(calls) == allowed + 1
    assert holds(path, 3)
    assert {file.stat().st_nlink for file in (path / "frozen").iterdir()} == {1}


def other_shape(path: Path) -> None:
    shutil.rmtree(path)
    checkpoint.save(path.parent, 2, {"weights/base": torch.zeros(7)}, {}, None, FROZEN)


def short(path: Path) -> None:
    file = path / "frozen/__0_0.distcp"
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-1])


def symbolic(path: Path) -> None:
    """As `cp -rs` copies a run: the files are those of another folder, which may be removed."""
    shutil.copytree(path / "frozen", path.parent / "other")
    for file in (path / "frozen").iterdir():
        file.unlink()
        file.symlink_to(f"../../other/{file.name}")


@pytest.mark.parametrize("change", [shutil.rmtree, other_shape, short, symbolic])
def test_frozen_tensors_are_written_again_where_the_earlier_ones_do_not_serve(
    two: Path, change: Callable[[Path], None]
) -> None:
    change(two / "step-00000002")
    path = save(two, 3, earlier=2)
    assert holds(path, 3)
    assert {file.lstat().st_nlink for file in (path / "frozen").iterdir()} == {1}
    assert not [file for file in path.rglob("*") if file.is_symlink()]


@pytest.mark.parametrize("name", ["frozen/__0_0.distcp", "frozen/.metadata"])
def test_damaged_frozen_tensors_are_an_error_by_name(two: Path, name: str) -> None:
    """All checkpoints share the file, so none of them is suggested."""
    path = two / "step-00000002"
    whole = (path / name).read_bytes()
    content = bytearray(whole)
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)
    reads: list[Callable[[], object]] = [lambda: checkpoint.load(path, tensors(0))]
    reads.append(lambda: Saver(two, keep_last=2).load(path, tensors(0)))
    if name.endswith(".metadata"):
        (path / name).write_bytes(whole.replace(b"base", b"bass"))  # another index
        reads.append(lambda: checkpoint.tensor_dtypes(path))  # a resumed run calls it first
    for read in reads:
        with pytest.raises(CheckpointError) as caught:
            read()
        assert name in str(caught.value)
        assert "step 1" not in str(caught.value)
    # of this checkpoint alone: the one before is complete, or was damaged with it
    shutil.rmtree(path / "frozen")
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(path, tensors(0))
    assert "frozen/" in str(caught.value)
    assert "step 1" in str(caught.value)


def test_new_run_writes_the_frozen_file_that_a_damaged_one_lost(two: Path, tmp_path: Path) -> None:
    """All checkpoints are one inode: a copy into the damaged file restores each of them, adapters
    included.
    """
    file = "frozen/__0_0.distcp"
    (two / "step-00000001" / file).write_bytes(b"damaged")
    again = checkpoint.save(tmp_path / "new", 5, tensors(5), {}, None, FROZEN)
    shutil.copyfile(again / file, two / "step-00000002" / file)
    assert holds(two / "step-00000001", 1)
    assert holds(two / "step-00000002", 2)


def test_kill_in_the_save_leaves_complete_checkpoints(two: Path) -> None:
    """SIGKILL before each change of the disk, in turn; then the save is repeated."""
    for change in range(100):
        child = os.fork()
        if child == 0:
            Changes(two, Victim(0, change=change))
            save(two, 3, earlier=2)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        for step in checkpoint.list_steps(two):
            assert holds(two / f"step-{step:08d}", step), change
        if not status:
            break
        assert os.WIFSIGNALED(status), change
        if change % 2:
            checkpoint.prune(two, keep_last=9)
            assert not list(two.glob("*.tmp"))
        if checkpoint.list_steps(two) == [1, 2, 3]:  # killed behind the rename
            shutil.rmtree(two / "step-00000003")
    assert change >= 8
    assert checkpoint.list_steps(two) == [1, 2, 3]
    assert {file.stat().st_nlink for file in (two / "step-00000003/frozen").iterdir()} == {3}


def test_background_save_does_not_copy_frozen_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = Saver(tmp_path, keep_last=2, background=True)
    copied = set[str]()
    plain = Saver._copy

    def copy(self: Saver, given: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
        copied.update(given)
        return plain(self, given, kind)

    monkeypatch.setattr(Saver, "_copy", copy)
    for step in (1, 2):
        saver.save(step, tensors(step), {}, FROZEN)
    saver.wait()
    assert copied == {"weights/low"}
    assert all(holds(path, step) for step, path in enumerate(checkpoints(tmp_path), 1))


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{"lora": {"rank": 4}}, {"optim": {"freeze": ("vision.*",)}}], ids=["lora", "freeze"]
)
def test_run_writes_frozen_weights_once(
    tmp_path: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = override(
        tiny_config(tiny_dataset(tmp_path / "d"), tmp_path / "run", val={"every": 0}), **change
    )
    assert run.train(config) == run.DONE
    first, last = checkpoints(RunDir(tmp_path / "run").checkpoints)
    assert tensor_files.is_shared(first, last, "frozen/__0_0.distcp")
    names = tensor_files.read_indexes(last)[tensor_files.PREFIX].state_dict_metadata.keys()
    stored = checkpoint.tensor_names(last)
    assert names
    assert all(f"exp_avg/{name.removeprefix('weights/')}" not in stored for name in names)
    assert not {f"average/{name.removeprefix('weights/')}" for name in names} & set(stored)
