"""The verdict on a run: training against validation loss."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from understudy.testing.runs import series, tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.track.metrics_file import compare_losses, read_verdict
from understudy_kit import override


def steps(losses: list[float | None], **more: Any) -> list[dict[str, Any]]:
    return [
        {"kind": "train", "step": step, "loss": loss, **more}
        for step, loss in enumerate(losses, start=1)
    ]


def validations(**losses: float | None) -> list[dict[str, Any]]:
    return [{"kind": "val", "step": int(step[1:]), "loss": loss} for step, loss in losses.items()]


def test_verdict_compares_the_steps_before_the_latest_validation() -> None:
    verdict = compare_losses(
        steps([1.0] * 50 + [0.1] * 100 + [9.0] * 50), validations(s100=1.5, s150=2.0)
    )
    assert verdict is not None
    assert (verdict.training, verdict.steps, verdict.validation) == (pytest.approx(0.1), 100, 2.0)
    assert verdict.ratio == pytest.approx(20)
    assert (verdict.lowest, verdict.lowest_step, verdict.falling) == (1.5, 100, False)


def test_verdict_knows_a_validation_that_still_falls() -> None:
    verdict = compare_losses(steps([1.0, 1.0, 1.0]), validations(s1=2.0, s2=None, s3=1.0))
    assert verdict is not None
    assert verdict.falling
    assert verdict.validations == 2
    flat = compare_losses(steps([1.0, 1.0]), validations(s1=1.0, s2=0.995))
    assert flat is not None
    assert not flat.falling


def test_verdict_compares_a_common_term_where_the_sums_differ() -> None:
    train = [
        {
            "kind": "train",
            "step": 1,
            "loss": 9.0,
            "terms": {"flow": {"loss": 1.0, "elements": 3}, "text": {"loss": 8.0}},
        },
        {"kind": "train", "step": 2, "loss": 2.0, "terms": {"flow": {"loss": 2.0, "elements": 1}}},
    ]
    val = [{"kind": "val", "step": 2, "loss": 5.0, "terms": {"flow": {"loss": 2.5}}}]
    verdict = compare_losses(train, val)
    assert verdict is not None
    assert (verdict.term, verdict.training, verdict.validation) == ("flow", 1.25, 2.5)


@pytest.mark.parametrize(
    ("losses", "val"),
    [
        ([1.0], {}),
        ([None, None], {"s2": 1.0}),
        ([1.0, 1.0], {"s1": 1.0, "s2": None}),
        ([], {"s0": 1.0}),
    ],
)
def test_without_two_finite_losses_there_is_no_verdict(
    losses: list[float | None], val: dict[str, Any]
) -> None:
    assert compare_losses(steps(losses), validations(**val)) is None


def test_verdict_of_a_long_run_holds_few_of_its_steps(tmp_path: Path) -> None:
    records = [*steps([1.0] * 3000), *validations(s3000=2.0)]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records)
    )
    tracemalloc.start()
    verdict = read_verdict(tmp_path / "metrics.jsonl")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert verdict == compare_losses(records[:-1], records[-1:])
    assert verdict is not None
    assert peak < 300_000


def test_run_logs_each_validation_and_a_verdict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The lowest loss of a resumed run is that of the whole run."""
    config = tiny_config(tiny_dataset(tmp_path / "data"), tmp_path / "r", val={"every": 4}, steps=4)
    with caplog.at_level("INFO", "understudy"):
        assert run.train(config) == run.DONE
        assert run.resume(override(config, steps=12)) == run.DONE
    lines = [
        line
        for record in caplog.records
        for line in record.getMessage().split("\n")
        if "validation" in line
    ]
    told = [line for line in lines if line.startswith("validation at step")]
    val = series(tmp_path / "r", "val")
    assert [int(line.split()[3].strip(":")) for line in told] == [4, 8, 12]
    assert all(f"{record['loss']:.4g}" in line for line, record in zip(told, val))
    best = min(val, key=lambda record: record["loss"])["step"]
    assert f"step {best}" in told[-1] if best < 12 else "lowest so far" in told[-1]
    verdict = compare_losses(series(tmp_path / "r"), val)
    assert str(verdict) in lines
