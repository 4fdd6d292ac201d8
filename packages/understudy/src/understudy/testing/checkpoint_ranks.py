"""Functions of each rank in the tests of checkpoints on several ranks
(`packages/understudy/tests/train/checkpoint/test_ranks.py`)."""

import hashlib
import os
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from understudy.config.train import DataConfig, TrainConfig
from understudy.testing import policies
from understudy.train import precision
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.checkpoint import CheckpointError, Saver

STORAGES = ("ddp", "fsdp2", "split")


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Hash of names, types, shapes and every bit."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        if isinstance(tensor, DTensor):
            tensor = tensor.full_tensor()
        tensor = tensor.contiguous()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def value(name: str, like: Tensor) -> Tensor:
    """The whole tensor of that name in these tests. All 32 bits of its values matter."""
    generator = torch.Generator().manual_seed(
        int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    )
    return torch.randn(tuple(like.shape), generator=generator, dtype=torch.float32).to(like.dtype)


class Training:
    """A policy, its optimizer and its average in one of `STORAGES`, on all ranks."""

    def __init__(self, storage: str) -> None:
        config = TrainConfig(data=DataConfig(root="d"))
        if storage == "split":
            config = replace(config, precision="bf16-split")
        self.policy, self.average = (policies.policy(seed, cameras=(), layers=1) for seed in (0, 1))
        masters = precision.store(self.policy, config.precision)
        world = dist.get_world_size()
        shape = (1, world) if storage == "fsdp2" else (world, 1)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp_replicate", "dp_shard"))
        for module in (self.policy, self.average):
            for block in module.layers:
                fully_shard(block, mesh=mesh)
            fully_shard(module, mesh=mesh)
        if storage == "split":
            masters = {
                name: like(masters[name], p)
                for name, p in self.policy.named_parameters()
                if name in masters
            }
        self.optimizer = precision.make_optimizer(
            self.policy, config.optim, masters, accumulates=config.batching.accumulates()
        )

    def tensors(self) -> dict[str, Tensor]:
        return precision.named_tensors(self.policy, self.optimizer, self.average)

    @torch.no_grad()
    def fill(self, number: float = 1.0) -> None:
        """Load `value` of each name, times `number`."""
        tensors = self.tensors()
        for name, tensor in tensors.items():
            tensor.copy_(like(value(name, tensor) * number, tensor))
        precision.restore(self.policy, self.optimizer, tensors)


def like(whole: Tensor, other: Tensor) -> Tensor:
    if isinstance(other, DTensor):
        return distribute_tensor(whole, other.device_mesh, other.placements, src_data_rank=None)
    return whole


def rank() -> int:
    return dist.get_rank()


# -- any storage, any number of ranks --------------------------------------------------------------


def reshard(root: Path, pairs: bool) -> dict[str, Any]:
    """Load every checkpoint below `root` and write one more in each storage; returns digests of the
    loaded ones.

    With `pairs` each is loaded into every storage, else into one, in turn.
    """
    dist.init_process_group("gloo")
    seen: dict[str, Any] = {}
    written = sorted(root.glob("*"))
    for number, storage in enumerate(STORAGES):
        training = Training(storage)
        name = f"{storage}-{dist.get_world_size()}"
        loaded = written if pairs else written[number::3]
        for folder in loaded:
            path = checkpoint.find_latest(folder)
            tensors = training.tensors()
            assert path is not None
            for tensor in tensors.values():
                tensor.detach().zero_()
            state = checkpoint.load(path, tensors, dist.group.WORLD)
            precision.restore(training.policy, training.optimizer, tensors)
            # From the training state, not from the loaded tensors.
            seen[f"{folder.name} -> {name}"] = (digest(training.tensors()), state["from"])
        training.fill()
        saver = Saver(root / name, keep_last=1, background=storage in ("fsdp2", "split"))
        saver.save(3, training.tensors(), {"from": name})
        saver.wait()
        seen["names"] = sorted(training.tensors())
    return seen


# -- failures --------------------------------------------------------------------------------------


def trouble(root: Path) -> dict[str, list[str]]:
    """Each kind of failure, on one rank: the error of this rank, and the files left on disk."""
    dist.init_process_group("gloo")
    folder = root / "checkpoints"
    tensors = {"weights/a": torch.full((70_000,), 1.0), "weights/b": torch.full((70_000,), 2.0)}
    errors: dict[str, list[str]] = {}
    for background in (False, True):
        saver = Saver(folder, keep_last=3, background=background)
        saver.save(1, tensors, {})
        saver.wait()
        for name, breaking in TROUBLE.items():
            dist.barrier()
            try:
                with breaking(folder):
                    saver.save(2, tensors, {})
                    # Training continues. The rank that sees the failure first must not leave the
                    # others alone.
                    failed = torch.tensor([0])
                    while not failed.item() and background:
                        failed = torch.tensor([int(saver.failed)])
                        dist.all_reduce(failed, op=dist.ReduceOp.MAX)
                    saver.wait()
                error = "none"
            except CheckpointError as caught:
                error = str(caught)
            dist.barrier()
            left = sorted(path.name for path in folder.iterdir())
            live = {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}
            saver.load(folder / "step-00000001", live)
            whole = all(torch.equal(live[key], tensors[key]) for key in tensors)
            where = " in the background" if background else ""
            errors[f"{name}{where}"] = [error, " ".join(left), str(whole)]
    return errors


def flipped(root: Path) -> str:
    """Flip a bit in each file of a checkpoint, one after the other; this rank's errors, a line
    each.
    """
    dist.init_process_group("gloo")
    training = Training("fsdp2")
    saver = Saver(root, keep_last=1)
    errors = []
    saver.save(1, training.tensors(), {})
    path = root / "step-00000001"
    for name in ("__0_0.distcp", "__1_0.distcp", ".metadata"):
        whole = (path / name).read_bytes()
        if rank() == 0:
            (path / name).write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
        dist.barrier()
        try:
            saver.load(path, training.tensors())
            errors.append("nothing")
        except CheckpointError as error:
            errors.append(str(error))
        dist.barrier()
        if rank() == 0:
            (path / name).write_bytes(whole)
        dist.barrier()
    saver.load(path, training.tensors())
    return "\n".join(errors)


@contextmanager
def no_space(folder: Path) -> Iterator[None]:
    """Limit files of rank 1 to 100 kB: the system fails in the middle of a write."""
    if rank() != 1:
        yield
        return
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def broken(module: Any, name: str, instead: Callable[..., Any], on: int) -> Iterator[None]:
    plain = getattr(module, name)
    if rank() == on:
        setattr(module, name, instead)
    try:
        yield
    finally:
        setattr(module, name, plain)


def raising(number: int, text: str) -> Callable[..., Any]:
    def instead(*_: Any, **__: Any) -> None:
        raise OSError(number, text)

    return instead


@contextmanager
def removed(folder: Path, on: int) -> Iterator[None]:
    """Remove the folder of an unfinished checkpoint, just after rank `on` has written its part."""
    plain = os.fsync

    def fsync(handle: int) -> None:
        plain(handle)
        for path in folder.glob("*.tmp"):
            shutil.rmtree(path, ignore_errors=True)

    with broken(os, "fsync", fsync, on):
        yield


@contextmanager
def no_permission(folder: Path) -> Iterator[None]:
    """Take write permission from rank 0. Root ignores permissions, so it changes its user."""
    if rank() != 0:
        yield
        return
    user = os.geteuid()
    mode = folder.stat().st_mode
    folder.chmod(0o555)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(0)
        folder.chmod(mode)


TROUBLE: dict[str, Callable[[Path], Any]] = {
    "no space on rank 1": no_space,
    "no permission": no_permission,
    "fsync fails on rank 0": lambda _: broken(os, "fsync", raising(5, "Input/output error"), 0),
    "fsync fails on rank 1": lambda _: broken(os, "fsync", raising(5, "Input/output error"), 1),
    "rename fails": lambda _: broken(Path, "rename", raising(28, "No space left on device"), 0),
    "removed by rank 0's writing": lambda folder: removed(folder, 0),
    "removed by rank 1's writing": lambda folder: removed(folder, 1),
}


def full_disk(root: Path) -> list[str]:
    """Save twice on a real file system of 512 kB, mounted on `root`; the errors, and the files
    left.
    """
    dist.init_process_group("gloo")
    if rank() == 0:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=512k", "none", root],
            check=True,
            capture_output=True,
        )
    dist.barrier()
    try:
        saver = Saver(root, keep_last=3, background=True)
        errors = []
        for step, floats in ((1, 40_000), (2, 200_000), (3, 40_000)):
            try:
                saver.save(step, {"weights/a": torch.full((floats,), float(step))}, {})
                saver.wait()
                errors.append("saved")
            except CheckpointError as error:
                errors.append(str(error))
        dist.barrier()
        return [*errors, *sorted(path.name for path in root.iterdir())]
    finally:
        dist.barrier()
        if rank() == 0:
            subprocess.run(["umount", "-l", root], check=True)


# -- beside the training ---------------------------------------------------------------------------


def background(root: Path) -> dict[str, Any]:
    """A slow save beside the training, then another one."""
    dist.init_process_group("gloo")
    training = Training("fsdp2")
    training.fill()
    expected = digest(training.tensors())
    saver = Saver(root, keep_last=5, background=True)
    plain = os.fsync
    may_go_on = threading.Event()
    in_flight = [0]
    most = [0]

    def slow(handle: int) -> None:
        in_flight[0] += 1
        most[0] = max(most[0], in_flight[0])
        assert may_go_on.wait(240)
        in_flight[0] -= 1
        plain(handle)

    os.fsync = slow
    try:
        saver.save(1, training.tensors(), {})
        training.fill(2.0)  # the next steps overwrite everything
        for _ in range(30):  # and communicate meanwhile
            dist.all_reduce(torch.ones(1000))
        unfinished = checkpoint.find_latest(root)
        threading.Timer(0.3, may_go_on.set).start()
        saver.save(2, training.tensors(), {})  # waits for the first
        first = 1 in checkpoint.list_steps(root)  # and may itself be done by now
        saver.wait()
    finally:
        os.fsync = plain
    tensors = training.tensors()
    saver.load(root / "step-00000001", tensors)
    return {
        "unfinished": unfinished,
        "first": first,
        "steps": checkpoint.list_steps(root),
        "isolated": digest(tensors) == expected,
        "at once": most[0],
        "own group": saver.group is not dist.group.WORLD,
    }


def no_agreement(root: Path) -> str:
    """Negative control: without agreement only rank 0 knows of its failure to name the
    checkpoint.
    """
    dist.init_process_group("gloo")
    plain = checkpoint.run_on_rank_0

    def alone(group: Any, work: Any) -> Any:
        """Wait for the others as `agreed` does, without passing on an error."""
        try:
            return work() if dist.get_rank() == 0 else True
        finally:
            dist.barrier(group)

    checkpoint.run_on_rank_0 = alone
    try:
        with broken(checkpoint, "sync", raising(28, "No space left on device"), 0):
            checkpoint.save(root, 1, {"weights/a": torch.ones(3)}, {}, dist.group.WORLD)
        return "saved"
    except CheckpointError as error:
        return str(error)
    finally:
        checkpoint.run_on_rank_0 = plain
