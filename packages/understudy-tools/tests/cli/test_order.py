"""`order explain` reads lengths alone, and shows the order and its candidates."""

from pathlib import Path

import numpy as np
import pytest

from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.load.explain import droid_like
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit import main
from understudy_kit.cli.main import read_settings
from understudy_tools.cli.order import ExplainConfig, explain, explained

SMALL = {"batch_size": 32, "world_size": 2, "episodes": 400, "frames_in_flight": 4096}


def test_explain_accepts_clip_lanes_and_the_order_inside(
    capsys: pytest.CaptureFixture[str],
) -> None:
    explain(ExplainConfig(**SMALL, clip=24, lanes=128, inside="permuted"))
    text = capsys.readouterr().out
    assert "400 episodes" in text
    assert "128 lanes of clips of 24, permuted inside a clip" in text


@pytest.mark.parametrize(
    "wrong",
    [
        "--batch-size 0",
        "--batch-size 1000000000000",
        "--world-size 1000000000000",
        "--episodes 1000000000000",
        "--lanes 1000000000000",
        "--batch-size 32 --world-size 3",
        "--reach -1 0",
        "--gop -1",
        "--weights 1",
        "a b --weights 1 0",
        "a b --weights 1 1e7",
        "a b --weights 1 nan",
        "--seed -1",
        "--memory lots",
    ],
)
def test_explain_names_wrong_settings(wrong: str) -> None:
    name = (
        next(word for word in wrong.split() if word.startswith("--")).strip("-").replace("-", "_")
    )
    with pytest.raises(ConfigError) as caught:
        read_settings("order explain", wrong.split())
    assert name in str(caught.value).replace("-", "_")


def test_explain_refuses_a_dataset_that_is_named_twice() -> None:
    with refused("paths", "a", kind=ConfigError):
        read_settings("order explain", ["a", "a"])


def test_explain_refuses_an_absurd_batch_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["order", "explain", "--batch-size", "1000000000000"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1


def test_explain_prints_the_candidates_and_marks_the_chosen_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "data", Spec(lengths=(60,) * 8, gop=30))
    paths = (str(tmp_path / "data"),)
    for memory in ("4GB", "6MB"):
        config = ExplainConfig(batch_size=4, world_size=1, paths=paths, memory=memory)
        choice = explained(config).choice
        assert choice is not None
        explain(config)
        lines = capsys.readouterr().out.splitlines()
        marked = [line for line in lines if line.startswith("> ")]
        assert [str(choice.chosen) in line for line in marked] == [True]
        assert f"{choice.chosen.cost:.2f}" in marked[0]
        assert sum(str(candidate) in "\n".join(lines) for candidate in choice.candidates) == len(
            choice.candidates
        )
    assert explained(ExplainConfig(**SMALL)).choice is None


def test_droid_like_lengths() -> None:
    lengths = droid_like()
    assert lengths.shape == (76_000,)
    assert lengths.dtype == np.int64
    assert lengths.mean() == pytest.approx(300, abs=0.1)
    assert np.quantile(lengths, 0.95) == pytest.approx(672, abs=1)
    assert lengths.min() >= 1
    halves = lengths[:38_000].mean(), lengths[38_000:].mean()
    assert halves == pytest.approx((300, 300), rel=0.01)  # not sorted by length
    assert droid_like(1).tolist() == [251]  # the median, 300 exp(-0.18)
