"""Episodes in a batch: counted for each step, and compared with a uniform shuffle before the first one."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.datasets import Spec, write_dataset
from support.runs import series, tiny_config, tiny_dataset
from understudy.cli.main import main
from understudy.config.schema import override
from understudy.data.dataset import EpisodeDataset
from understudy.load.batch_mixing import FEW_EPISODES, batch_figures, measure_mixing
from understudy.order import Order
from understudy.order.design_effect import distinct_episodes, expected_episodes
from understudy.train import run


def test_expected_episodes_are_those_of_draws() -> None:
    lengths = np.array([3, 50, 7, 20, 20])
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(5), lengths)
    counts = [len(set(draw.choice(owner, 6).tolist())) for _ in range(4000)]
    assert expected_episodes(lengths, 6) == pytest.approx(np.mean(counts), rel=0.02)
    assert expected_episodes(lengths, 1) == pytest.approx(1)
    assert expected_episodes(lengths, 10_000) == pytest.approx(5)


def test_episodes_of_two_sources_are_distinct() -> None:
    assert distinct_episodes(np.array([0, 1, 0, 1]), np.array([3, 3, 3, 4])) == 3


@pytest.mark.parametrize(("mode", "is_poor"), [("sequential", True), ("uniform", False), ("clips", False)])
def test_stored_order_has_few_episodes(mode: str, is_poor: bool, tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=(20,) * 30, cameras=()))
    data = EpisodeDataset(tmp_path / "set")
    order = Order.from_datasets([data], batch_size=8, seed=0, mode=mode)
    mixing = measure_mixing(order, [data.segments], order.start)
    assert mixing.is_poor == is_poor
    figures = [batch_figures(order, 8 * number) for number in range(8)]
    assert mixing.episodes == pytest.approx(np.mean([one["episodes"] for one in figures]))
    _, episode, _ = order.locate(np.arange(8))
    assert figures[0]["episodes"] == len(set(episode.tolist()))
    assert (figures[0]["design_effect"] > 2) == is_poor


@pytest.mark.parametrize("shuffle", ["sequential", "uniform"])
def test_a_run_counts_and_warns_before_the_first_step(
    shuffle: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config(tiny_dataset(tmp_path / "data"), tmp_path / "r", steps=3)
    config = override(config, data={"shuffle": shuffle})
    with caplog.at_level("INFO", "understudy"):
        assert run.train(config) == run.DONE
    warnings = [record for record in caplog.records if record.levelname == "WARNING" and "episodes" in record.message]
    assert bool(warnings) == (shuffle == "sequential")
    train = series(tmp_path / "r")
    assert [record["step"] for record in train] == [1, 2, 3]
    assert all(1 <= record["episodes"] <= config.batch_size for record in train)
    assert all(record["design_effect"] >= 0 for record in train)


@pytest.mark.parametrize("stored", [True, False])
def test_order_explain_compares_a_foreign_file(
    stored: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=(20,) * 30, cameras=()))
    pairs = np.array([(episode, frame) for episode in range(30) for frame in range(20)])
    pairs = pairs if stored else np.random.default_rng(0).permutation(pairs)
    table = pa.table({"position": np.arange(600), "episode_index": pairs[:, 0], "frame_index": pairs[:, 1]})
    pq.write_table(table, tmp_path / "order.parquet")
    explained = ["order", "explain", str(tmp_path / "set"), "--order", str(tmp_path / "order.parquet")]
    assert main([*explained, "--batch-size", "8"]) == 0
    assert (FEW_EPISODES in capsys.readouterr().out) == stored
    assert main(["order", "explain", "--order", str(tmp_path / "order.parquet")]) == 2
