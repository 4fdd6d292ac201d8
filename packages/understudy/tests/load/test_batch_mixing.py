"""Episodes in a batch: counted for each step, and compared with a uniform shuffle before the first
one.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.testing.runs import series, tiny_config, tiny_dataset
from understudy.train import run
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.batch_mixing import BatchMixing
from understudy_data.order import Order
from understudy_data.order.design_effect import design_effect, expected_episodes
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit import main, override


def test_expected_episodes_are_those_of_draws() -> None:
    lengths = np.array([3, 50, 7, 20, 20])
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(5), lengths)
    counts = [len(set(draw.choice(owner, 6).tolist())) for _ in range(4000)]
    assert expected_episodes(lengths, 6) == pytest.approx(np.mean(counts), rel=0.02)
    assert expected_episodes(lengths, 1) == pytest.approx(1)
    assert expected_episodes(lengths, 10_000) == pytest.approx(5)


def test_episodes_of_two_sources_are_distinct(tmp_path: Path) -> None:
    parts = []
    for name in ("one", "two"):
        write_dataset(tmp_path / name, Spec(lengths=(20,) * 10, cameras=()))
        parts.append(EpisodeDataset(tmp_path / name))
    order = Order.from_datasets(parts, batch_size=8, seed=0, mode="uniform")
    source, episode, _ = order.locate(np.arange(8))
    assert BatchMixing.of_batch(order, 0)["episodes"] == len(
        {*zip(source.tolist(), episode.tolist())}
    )
    draws = [BatchMixing.of_batch(order, 8 * number)["episodes"] for number in range(40)]
    assert BatchMixing.measure(order, parts, 0).uniform == pytest.approx(np.mean(draws), rel=0.05)


@pytest.mark.parametrize(
    ("mode", "is_poor"), [("sequential", True), ("uniform", False), ("clips", False)]
)
def test_stored_order_has_few_episodes(mode: str, is_poor: bool, tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=(20,) * 30, cameras=()))
    data = EpisodeDataset(tmp_path / "set")
    order = Order.from_datasets([data], batch_size=8, seed=0, mode=mode)
    mixing = BatchMixing.measure(order, [data], order.start)
    assert bool(mixing.advice) == is_poor
    figures = [BatchMixing.of_batch(order, 8 * number) for number in range(8)]
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
    warnings = [
        record
        for record in caplog.records
        if record.levelname == "WARNING" and "episodes" in record.message
    ]
    assert bool(warnings) == (shuffle == "sequential")
    train = series(tmp_path / "r")
    assert [record["step"] for record in train] == [1, 2, 3]
    assert all(1 <= record["episodes"] <= config.batch_size for record in train)
    assert all(record["design_effect"] >= 0 for record in train)


@pytest.mark.parametrize("chosen", [30, 2], ids=["all episodes", "two of them"])
@pytest.mark.parametrize("stored", [True, False])
def test_order_explain_compares_a_file(
    stored: bool, chosen: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file over few episodes is compared with what they allow."""
    write_dataset(tmp_path / "set", Spec(lengths=(20,) * 30, cameras=()))
    pairs = np.array([(episode, frame) for episode in range(chosen) for frame in range(20)])
    pairs = pairs if stored else np.random.default_rng(0).permutation(pairs)
    table = pa.table(
        {
            "position": np.arange(len(pairs)),
            "episode_index": pairs[:, 0],
            "frame_index": pairs[:, 1],
        }
    )
    pq.write_table(table, tmp_path / "order.parquet")
    few = BatchMixing(8, 1.0, 8.0, 8.0).advice
    for paths in ([], [str(tmp_path / "set")]):
        explained = [
            "order",
            "explain",
            *paths,
            "--order",
            str(tmp_path / "order.parquet"),
            "--batch-size",
            "8",
        ]
        assert main(explained) == 0
        assert (few in capsys.readouterr().out) == (stored and chosen == 30)


def explained(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    assert main(["order", "explain", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("rows", [1, 5])
def test_order_explain_takes_a_file_without_a_whole_batch_as_one(
    rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pa.table({"episode": [*range(rows)], "frame": [0] * rows})
    pq.write_table(table, tmp_path / "order.parquet")
    lines = explained(capsys, "--order", tmp_path / "order.parquet")
    assert lines[0].endswith(f"{rows} samples")
    assert "256" in lines[1]
    assert lines[2].startswith(f"a batch of {rows} samples has frames of {rows} episodes")


def test_order_explain_measures_the_steps_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of 4 rows of one episode: their design effect, at any --batch-size, and with the
    dataset.
    """
    write_dataset(tmp_path / "set", Spec(lengths=(4,) * 16, cameras=()))
    episodes = np.repeat(np.arange(16), 4)
    frames = np.tile(np.arange(4), 16)
    table = pa.table({"episode": episodes, "frame": frames, "step": episodes})
    pq.write_table(table, tmp_path / "order.parquet")
    effect = float(design_effect(np.zeros((1, 4), int), np.arange(4)[None])[0])
    for size in (4, 16, 256):
        for paths in ([], [tmp_path / "set"]):
            lines = explained(
                capsys, *paths, "--order", tmp_path / "order.parquet", "--batch-size", size
            )
            assert any("a batch of 4 samples" in line and f"{effect:.3g}" in line for line in lines)
            assert any(f"--batch-size {size}" in line for line in lines) == (size != 4)
