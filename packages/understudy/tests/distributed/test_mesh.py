"""The mesh: who is who, agreement, errors that reach every rank, and weights spread over
processes.
"""

import hashlib
import os
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import distributed as dist

from understudy.config.train import ParallelConfig, TrainConfig
from understudy.distributed import mesh as parallel
from understudy.distributed import torch_release
from understudy.testing.ranks import in_ranks, outcomes_in_ranks
from understudy_base import ConfigError, SourceError
from understudy_base.testing.refusals import refused


def config(**changes: Any) -> TrainConfig:
    return replace(TrainConfig(device="cpu", parallel=ParallelConfig(timeout=300)), **changes)


def refuse() -> None:
    raise ConfigError("the words of rank 0")


def agreement() -> dict[str, Any]:
    with parallel.join_mesh(config().mesh) as mesh:
        told: dict[str, Any] = {
            "who": (mesh.rank, mesh.world_size, mesh.local_rank, mesh.local_world_size, mesh.shape)
        }
        told["sum"] = mesh.sum(torch.tensor([mesh.rank + 0.25], dtype=torch.float64)).item()
        told["any"] = [mesh.any(mesh.rank == 1), mesh.any(False)]
        told["first"] = mesh.first(lambda: os.getpid())
        told["gather"] = mesh.gather((mesh.rank, os.getpid()))
        try:
            mesh.first(refuse)
        except ConfigError as error:
            told["refused"] = str(error)
        outage = SourceError("no answer", fix="try again", transient=True)
        for wrong in (ConfigError("the words of one"), KeyError("another"), outage):
            try:
                with mesh.together():
                    if mesh.rank == 1:
                        raise wrong
            except Exception as error:
                told[type(wrong).__name__] = f"{type(error).__name__}: {error}"
        return told


def test_ranks_agree() -> None:
    one, two = in_ranks(2, agreement)
    assert one["who"] == (0, 2, 0, 2, (2, 1))
    assert two["who"] == (1, 2, 1, 2, (2, 1))
    for told in (one, two):
        assert told["sum"] == 1.5
        assert told["any"] == [True, False]
        assert told["first"] == one["gather"][0][1] != two["gather"][1][1]
        assert told["refused"] == "the words of rank 0"
        assert told["ConfigError"] == "ConfigError: the words of one"
    assert one["KeyError"] == "RankError: rank 1 failed: 'another'"
    assert two["KeyError"] == "KeyError: 'another'"
    assert one["SourceError"].startswith("RankError: ")  # an outage is no wrong input of any rank
    assert two["SourceError"].startswith("SourceError: ")


def group_of_the_program(backend: str) -> str:
    """Error of joining a process group that the program has made, "" for none."""
    dist.init_process_group(backend)
    try:
        with parallel.join_mesh(config().mesh) as mesh:
            return "" if mesh.gather(mesh.rank) == [0, 1] and not mesh.ours else "other ranks"
    except ConfigError as error:
        return str(error)


@pytest.mark.long
def test_group_of_the_program_is_used_if_it_has_tensors_of_the_cpu() -> None:
    assert in_ranks(2, group_of_the_program, "gloo") == ["", ""]
    for error in in_ranks(2, group_of_the_program, "cuda:gloo"):
        assert "cuda:gloo" in error
        assert "cpu:gloo" in error


TIMEOUT = 10


def long_work(seconds: float) -> int:
    """Takes longer than the process group waits, a little at a time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.05)
    return os.getpid()


def alone_for_long() -> list[int]:
    patient = config(parallel=ParallelConfig(timeout=TIMEOUT))
    with parallel.join_mesh(patient.mesh) as mesh:
        return [
            mesh.first(lambda: long_work(TIMEOUT + 2)),
            mesh.first(os.getpid),
            mesh.gather(os.getpid())[0],
        ]


@pytest.mark.long
@pytest.mark.timeout(120)
def test_ranks_wait_for_the_first_one_as_long_as_it_works() -> None:
    one, two = in_ranks(2, alone_for_long)
    assert one == two
    assert len(set(one)) == 1


def busy_helper() -> int:
    """A thread of its own computes for seven seconds, and who waits for it uses no time of a
    processor.
    """

    def work() -> None:
        until = time.monotonic() + 7
        while time.monotonic() < until:
            hashlib.sha256(bytes(1 << 20)).digest()

    helper = threading.Thread(target=work)
    helper.start()
    helper.join()
    return os.getpid()


def helped() -> int:
    with parallel.join_mesh(config().mesh) as mesh:
        return replace(mesh, timeout=3.0).first(busy_helper)


@pytest.mark.long
def test_ranks_wait_while_threads_of_the_first_one_work() -> None:
    one, two = in_ranks(2, helped)
    assert one == two


def hang() -> None:
    """Do nothing until the other rank is gone, which ends the thread that talks to it."""
    others = [
        thread for thread in threading.enumerate() if thread is not threading.current_thread()
    ]
    for thread in others:
        thread.join(60)


def alone_and_stuck() -> None:
    with parallel.join_mesh(config().mesh) as mesh:
        replace(mesh, timeout=1.0).first(hang)


def alone_and_gone() -> None:
    with parallel.join_mesh(config().mesh) as mesh:
        mesh.gather(None)  # both have begun
        mesh.first(lambda: os._exit(7))


@pytest.mark.long
def test_ranks_do_not_wait_for_a_first_one_that_hangs_or_is_gone() -> None:
    (first, _), (kind, said) = outcomes_in_ranks(2, alone_and_stuck)
    assert first == kind == "raised"
    assert "RankError: rank 1: rank 0" in said
    assert "1 seconds (parallel.timeout)" in said
    first, (kind, said) = outcomes_in_ranks(2, alone_and_gone)
    assert first == ("died", 7)
    assert kind == "raised"
    assert "RankError: rank 1: another process of the run is gone" in said


def vanishing() -> None:
    with parallel.join_mesh(config().mesh) as mesh:
        if mesh.rank == 1:
            os._exit(7)
        mesh.sum(torch.zeros(()))


@pytest.mark.skipif(
    not torch_release.has_gradient_sum(), reason="a run of several processes needs torch 2.8"
)
def test_a_rank_that_dies_ends_the_others_with_one_clear_error() -> None:
    (kind, said), other = outcomes_in_ranks(2, vanishing)
    assert other == ("died", 7)
    assert kind == "raised"
    assert "RankError: rank 0: another process of the run is gone" in said


def test_arrangements_that_do_not_come_out_say_what_would() -> None:
    def arranged(world: int, **changes: Any) -> tuple[int, int]:
        return parallel.mesh_shape(TrainConfig(parallel=ParallelConfig(**changes)).mesh, world)

    assert [
        arranged(1),
        arranged(4),
        arranged(4, dp_shard=2),
        arranged(4, dp_shard=4, dp_replicate=1),
    ] == [
        (1, 1),
        (4, 1),
        (2, 2),
        (1, 4),
    ]
    with refused("parallel", "dp_shard 3", 4, "1, 2, 4", kind=ConfigError):
        arranged(4, dp_shard=3)
    with refused("parallel", "dp_replicate 2", 1, kind=ConfigError):
        arranged(1, dp_replicate=2)
    with refused("batch_size", 64, 65, kind=ConfigError):
        arranged(65)
    with refused("micro_batch_size", 16, 3, kind=ConfigError):
        parallel.mesh_shape(replace(TrainConfig(), micro_batch_size=16).mesh, 3)
    assert arranged(3) == (3, 1)
    if not torch.cuda.is_available():
        with refused("device", "cuda", "--device", kind=ConfigError):
            parallel.choose_device(replace(TrainConfig(), device="cuda").device, 0)


def test_one_process_is_a_mesh_too_and_leaves_no_group_behind() -> None:
    with parallel.join_mesh(config().mesh) as mesh:
        assert (mesh.rank, mesh.world_size, mesh.shape) == (0, 1, (1, 1))
        assert mesh.sum(torch.tensor(2.0)).item() == 2.0
        assert mesh.first(lambda: "made") == "made"
    assert not torch.distributed.is_initialized()


def test_what_an_older_torch_lacks_is_asked_for_before_anything_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_release, "has_gradient_sum", lambda: False)
    monkeypatch.setattr(torch_release, "has_grad_dtype", lambda: False)
    split = config(precision="bf16-split", batch_size=8)
    for asked, world, needed in (
        (config(), 2, (2, "2.8")),
        (replace(split, micro_batch_size=4), 1, ("micro_batch_size", "2.10")),
    ):
        with refused(*needed, torch.__version__, kind=ConfigError) as caught:
            parallel.mesh_shape(asked.mesh, world)
        assert "\n" not in str(caught.value)
    for fine in (
        config(),
        split,
        replace(split, micro_batch_size=8),
        replace(split, precision="bf16", micro_batch_size=4),
    ):
        assert parallel.mesh_shape(fine.mesh, 1) == (1, 1)


def test_this_torch_has_what_it_is_asked_for() -> None:
    """The names by which it is recognised are torch's own: one that is renamed would turn everybody
    away.
    """
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    assert torch_release.has_gradient_sum() == (release >= (2, 8))
    assert torch_release.has_grad_dtype() == (release >= (2, 10))


def test_a_process_begins_and_ends_run_after_run() -> None:
    """Before torch 2.8 freeing a process group could wait for ever for a thread that waited for the
    interpreter.
    """
    config = TrainConfig()
    for number in range(60):
        with parallel.join_mesh(config.mesh) as mesh:
            assert mesh.gather({"run": number}) == [{"run": number}]
            assert mesh.first(lambda: number) == number  # noqa: B023 (called at once)


@pytest.mark.parametrize(
    ("name", "value", "setting"),
    [
        ("MIXED_PRECISION", "bf16", "--precision"),
        ("USE_FSDP", "true", "--parallel.dp-shard"),
        ("DYNAMO_BACKEND", "INDUCTOR", "--compile"),
        ("GRADIENT_ACCUMULATION_STEPS", "4", "--micro-batch-size"),
    ],
)
def test_options_of_accelerate_launch_are_refused_with_ours(
    name: str, value: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for neutral in (
        "MIXED_PRECISION=no",
        "DYNAMO_BACKEND=NO",
        "USE_FSDP=false",
        "GRADIENT_ACCUMULATION_STEPS=1",
    ):
        monkeypatch.setenv(*f"ACCELERATE_{neutral}".split("="))
    with parallel.join_mesh(config().mesh):
        pass
    monkeypatch.setenv(f"ACCELERATE_{name}", value)
    with pytest.raises(ConfigError, match=setting):
        parallel.begin(config().mesh)
