"""Validations that are not made to their end: a stop in their midst, and unreadable frames."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from understudy.config.train import TrainConfig
from understudy.distributed import mesh as parallel
from understudy.policies.flow.model import FlowPolicy
from understudy.report.run import tables, validation
from understudy.testing.pages import html_of
from understudy.testing.ranks import in_ranks, outcomes_in_ranks
from understudy.testing.runs import same_run, series, tiny_config
from understudy.testing.validated import evaluate_all
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import open_data
from understudy.train.validation import validation_loss
from understudy.train.validation.validation_loss import ValidationFailed, evaluate
from understudy_base.testing.refusals import refused
from understudy_data.load.validation_data import ValidationData
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.video.packets import open_packets
from understudy_kit import override

CHUNK = 4
"""Frames of a chunk in these tests, so that there are several."""
LENGTHS = (9, 7, 11, 8, 6, 10, 9, 7, 8, 12)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each frame is a key frame, and each episode has its own file."""
    root = tmp_path_factory.mktemp("judging") / "dataset"
    write_dataset(root, Spec(lengths=LENGTHS, gop=1, per_video_file=1))
    return root


def config_of(data: Path, out: Path, **changes: Any) -> TrainConfig:
    config = tiny_config(
        data,
        out,
        device="cpu",
        micro_batch_size=2,
        checkpoint={"keep_best": "loss"},
        log={"report": False},
    )
    return override(config, **changes)


@contextmanager
def small_chunks() -> Iterator[None]:
    before = validation_loss.BATCH
    validation_loss.BATCH = CHUNK
    try:
        yield
    finally:
        validation_loss.BATCH = before


# -- a stop ----------------------------------------------------------------------------------------


class Asked:
    """Has this process asked to stop while the chunk `at` of the `which`-th validation is read, on
    one rank.
    """

    def __init__(self, which: int, at: int = 1, rank: int = 0) -> None:
        self.which, self.at, self.mine = which, at, int(os.environ.get("RANK", "0")) == rank
        self.begun = 0
        self.after = 0
        self._judge = evaluate
        self._read = ValidationData.read
        self._asked = False
        self._number = 0

    def __enter__(self) -> "Asked":
        def judged(*arguments: Any, **options: Any) -> Any:
            self.begun = self.begun + 1
            self._number = 0
            return self._judge(*arguments, **options)

        def read(held: ValidationData, part: slice) -> Any:
            self.after += self._asked
            self._number += 1
            if self.mine and self.begun == self.which and self._number == self.at + 1:
                self._asked = True
                os.kill(os.getpid(), signal.SIGTERM)
            return self._read(held, part)

        validation_loss.evaluate, ValidationData.read = judged, read  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        validation_loss.evaluate = self._judge
        ValidationData.read = self._read  # type: ignore[method-assign]


def stopped_and_carried_on(config: TrainConfig, which: int, rank: int) -> dict[str, Any]:
    """A run that is stopped in one of its validations, and again in the same one, and then carried
    on.
    """
    out = RunDir(Path(config.output_dir))
    told: dict[str, Any] = {}
    with Asked(which, rank=rank) as asked:
        told["codes"] = [run.train(config)]
    told["after"] = asked.after
    told["step"] = checkpoint.list_steps(out.checkpoints)[-1]
    told["judged"] = [record["step"] for record in series(out.root, "val")]
    with Asked(1, rank=rank) as asked:
        told["codes"].append(run.resume(out.settings()))
    told["after"] += asked.after
    told["codes"].append(run.resume(out.settings()))
    return told


def alone(config: TrainConfig, which: int) -> dict[str, Any]:
    with small_chunks():
        return stopped_and_carried_on(config, which, 0)


def whole_and_stopped(config: TrainConfig, out: Path) -> list[dict[str, Any]]:
    """On several ranks: a run that is never stopped, and one that is in each of its validations,
    asked on rank 1.
    """
    import torch.distributed as dist

    dist.init_process_group("gloo")  # around all of them: the ranks cannot meet at one port twice
    with small_chunks():
        assert run.train(replace(config, output_dir=str(out / "whole"))) == run.DONE
        return [
            stopped_and_carried_on(replace(config, output_dir=str(out / f"{n}")), n, 1)
            for n in (1, 3)
        ]


@pytest.fixture(scope="module")
def whole(data: Path) -> Path:
    out = data.with_name("whole")
    with small_chunks():
        assert run.train(config_of(data, out)) == run.DONE
    assert [record["step"] for record in series(out, "val")] == [5, 10, 12]
    return out


def check(told: dict[str, Any], step: int, before: list[int]) -> None:
    assert told["codes"] == [run.STOPPED, run.STOPPED, run.DONE]
    assert told["step"] == step
    assert told["judged"] == before
    assert told["after"] <= 2  # of some seven chunks in each: those being read already


@pytest.mark.short("3-12-before1")
@pytest.mark.parametrize(("which", "step", "before"), [(1, 5, []), (3, 12, [5, 10])])
def test_stop_in_a_validation_saves_the_step_and_resume_repeats_it(
    data: Path, whole: Path, tmp_path: Path, which: int, step: int, before: list[int]
) -> None:
    (told,) = in_ranks(1, alone, config_of(data, tmp_path / "r"), which)
    check(told, step, before)
    same_run(whole, tmp_path / "r")
    best = [
        checkpoint.find_best(RunDir(root).checkpoints, "loss") for root in (whole, tmp_path / "r")
    ]
    assert best[0] is not None
    assert best[1] is not None
    assert best[0].name == best[1].name
    assert checkpoint.read_metrics(best[0]) == checkpoint.read_metrics(best[1])


class Kept:
    """A run of wandb on a server, which keeps the first figures of a step."""

    steps: ClassVar[dict[int, dict[str, float]]] = {}

    def __init__(self, **_: object) -> None:
        self.starting_step = max(self.steps, default=0) + 1

    def log(self, values: dict[str, float], step: int) -> None:
        self.steps.setdefault(step, values)

    def finish(self) -> None: ...


@pytest.mark.long
def test_tracker_gets_a_validation_made_after_resume(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offline = SimpleNamespace(settings=SimpleNamespace(mode="offline"))
    wandb = SimpleNamespace(init=Kept, Settings=lambda **_: None, setup=lambda: offline)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    out = tmp_path / "r"
    with small_chunks():
        with Asked(1):
            assert run.train(config_of(data, out, log={"trackers": ("wandb",)})) == run.STOPPED
        assert max(Kept.steps) == 4
        assert run.resume(RunDir(out).settings()) == run.DONE
    assert {step for step, values in Kept.steps.items() if "val/loss" in values} == {5, 10, 12}
    assert sorted(Kept.steps) == list(range(1, 13))


@pytest.mark.long
def test_ranks_stop_a_validation_together(data: Path, whole: Path, tmp_path: Path) -> None:
    for first, last in in_ranks(
        2, whole_and_stopped, config_of(data, tmp_path), tmp_path, timeout=240
    ):
        check(first, 5, [])
        check(last, 12, [5, 10])
    for name in ("whole", "1", "3"):
        same_run(whole, tmp_path / name)


# -- unreadable frames -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def damaged(data: Path) -> tuple[Path, int]:
    """The same dataset with one frame of a validation episode overwritten, and the number of its
    sample.
    """
    held = held_out_of(data)
    sample = 6
    episode = int(held.episode[sample])
    frame = int(held.frame[sample])
    root = data.with_name("damaged")
    shutil.copytree(data, root)
    video = sorted((root / "videos").rglob("*.mp4"))[episode]
    packets = open_packets(str(video))
    at = int(packets.index.offset[frame])
    size = int(packets.index.size[frame])
    packets.close()
    content = bytearray(video.read_bytes())
    content[at + 5 : at + size] = b"\xff" * (size - 5)
    video.write_bytes(bytes(content))
    return root, sample


def held_out_of(data: Path, skips: bool = False) -> ValidationData:
    held = ValidationData.from_sources(
        open_data(config_of(data, Path("out"))), mixed=False, skip_unreadable=skips
    )
    assert held is not None
    return held


def substituting(config: TrainConfig) -> TrainConfig:
    return replace(config, data=replace(config.data, on_bad_frame="substitute"))


@pytest.mark.long
def test_evaluate_skips_an_unreadable_frame(
    data: Path, whole: Path, damaged: tuple[Path, int], tmp_path: Path
) -> None:
    root, sample = damaged
    out = tmp_path / "r"
    with small_chunks():
        assert run.train(substituting(config_of(root, out))) == run.DONE
    assert series(out) == series(whole)  # the training reads none of it
    for record, sound in zip(series(out, "val"), series(whole, "val"), strict=True):
        assert (record["unreadable"], "unreadable" in sound) == (1, False)
        assert record["held_out"] == sound["held_out"] == sound["samples"] == record["samples"] + 1
        # Its other samples are evaluated as before.
        assert sum(each["samples"] for each in record["tasks"].values()) == record["samples"]
        assert 0 < abs(record["loss"] - sound["loss"]) < 0.2 * sound["loss"]
    held = held_out_of(data)
    chosen = np.arange(len(held)) != sample
    config = config_of(data, out)
    with parallel.join_mesh(config.mesh) as mesh, small_chunks():
        policy = FlowPolicy.load(out / "policy")
        without = evaluate_all(policy, held.select(chosen), config.seed, mesh, 1, per_dim=True)
        left_out = evaluate_all(policy, held_out_of(root, True), config.seed, mesh, 1, per_dim=True)
    assert left_out["loss"] == pytest.approx(without["loss"], rel=1e-5)
    assert left_out["se"] == pytest.approx(without["se"], rel=1e-4)
    (one,), (two,) = left_out["sources"].values(), without["sources"].values()
    assert one["dims"] == pytest.approx(two["dims"], rel=1e-4)
    (one,), (two,) = (
        left_out["open_loop"]["sources"].values(),
        without["open_loop"]["sources"].values(),
    )
    assert one["samples"] == two["samples"] == len(held) - 1
    assert one["mse"] == pytest.approx(two["mse"], rel=1e-3)


@pytest.mark.long
def test_unreadable_validation_frame_loses_no_step(
    damaged: tuple[Path, int], tmp_path: Path
) -> None:
    root, _ = damaged
    out = RunDir(tmp_path / "r")
    config = config_of(root, out.root)
    with small_chunks(), pytest.raises(ValidationFailed, match="on_bad_frame"):
        run.train(config)
    assert checkpoint.list_steps(out.checkpoints)[-1] == 5  # saved every 4 steps, validated every 5
    assert [record["step"] for record in series(out.root)] == [1, 2, 3, 4, 5]
    with small_chunks():
        with pytest.raises(ValidationFailed):
            run.resume(out.settings())  # nothing has changed
        assert run.resume(substituting(out.settings())) == run.DONE
        assert run.train(substituting(config_of(root, tmp_path / "at once"))) == run.DONE
    same_run(tmp_path / "at once", out.root)


@pytest.mark.long
def test_unreadable_frame_of_one_rank_ends_all_ranks(
    damaged: tuple[Path, int], tmp_path: Path
) -> None:
    for kind, said in outcomes_in_ranks(
        2, run.train, config_of(damaged[0], tmp_path / "r"), timeout=100
    ):
        assert kind == "raised"
        assert "ValidationFailed" in said
    assert checkpoint.list_steps(RunDir(tmp_path / "r").checkpoints)[-1] == 5


def test_evaluate_refuses_many_unreadable_frames(
    damaged: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation_loss, "FEW", 0)
    with refused(1, 0, kind=ValidationFailed):
        run.train(substituting(config_of(damaged[0], tmp_path / "r")))
    assert checkpoint.list_steps(RunDir(tmp_path / "r").checkpoints)[-1] == 5


# -- a sample of the frames ------------------------------------------------------------------------


def with_small_chunks(config: TrainConfig) -> int:
    with small_chunks():
        return run.train(config)


@pytest.mark.long
def test_validation_sample_is_evaluated_and_reported(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    """The same sample in each validation, in any process; the training does not notice."""
    config = config_of(data, tmp_path / "one", val={"frames": 10})
    assert with_small_chunks(config) == run.DONE
    assert in_ranks(2, with_small_chunks, replace(config, output_dir=str(tmp_path / "two"))) == [
        run.DONE,
        run.DONE,
    ]
    same_run(tmp_path / "one", tmp_path / "two")
    assert series(tmp_path / "one") == series(whole)
    val = series(tmp_path / "one", "val")
    frames = series(whole, "val")[0]["samples"]
    for record, of_all in zip(val, series(whole, "val"), strict=True):
        assert (record["samples"], record["held_out"]) == (10, frames)
        assert record["tasks"].keys() == of_all["tasks"].keys()
        assert record["loss"] != of_all["loss"]
    judged = run.evaluate_checkpoint(tmp_path / "one")
    assert judged == {key: value for key, value in val[-1].items() if key != "kind"}
    for text in (tables.format_validation(judged), html_of(*validation.render_validation(val))):
        assert f"10 of {frames} validation frames" in text
