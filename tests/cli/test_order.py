"""`order explain` reads lengths alone and compares all orders."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import understudy as us
from support.datasets import Spec, write_dataset
from understudy import progress
from understudy.cli import order
from understudy.cli.main import main
from understudy.cli.order import explain
from understudy.order.audit import baselines
from understudy.report import order as explain_module
from understudy.report.order import FEW, ExplainConfig, Table, choose, compare, read_tables, render

SMALL = {"batch_size": 32, "world_size": 2, "num_workers": 2, "episodes": 400, "frames_in_flight": 4096}
NAMES = ["clips", "uniform", "episode lanes", "block shuffle", "worker pool", "episode stream"]


def test_explain_prints_a_table_and_draws_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "order.png"
    assert explain(ExplainConfig(**SMALL, figure=str(figure))) == 0
    text = capsys.readouterr().out
    assert "400 episodes" in text
    head = next(line for line in text.splitlines() if "clips" in line and "uniform" in line)
    assert head.split("  ")[-1].strip() == "episode stream"
    assert all(name in head for name in NAMES)
    row = next(line for line in text.splitlines() if line.startswith("deff over 1 batch"))
    assert len(row.split()) == 4 + len(NAMES)
    assert max(map(len, text.splitlines())) <= 120
    with Image.open(figure) as image:
        assert image.size == (1210, 704)
        colors = image.convert("RGB").getcolors(maxcolors=2**20)
    assert colors is not None
    assert {(11, 110, 79), (192, 57, 43)} <= {color for _, color in colors}  # clips and the stream are drawn


@pytest.mark.long
def test_clips_mix_better_than_whole_episodes_with_as_many_frames() -> None:
    config = ExplainConfig(**SMALL | {"episodes": 4000, "frames_in_flight": 20_000})
    figures = {side.name: side.figures for side in compare(read_tables(config), config).sides}
    assert list(figures) == NAMES
    held = figures["clips"].frames_in_flight
    assert held <= 1.1 * config.frames_in_flight  # S is lengthened a little against resonance
    for name in NAMES[2:5]:
        assert 0.7 * held < figures[name].frames_in_flight < 1.7 * held
        assert all(np.array(figures[name].deff[1:]) > 1.5 * np.array(figures["clips"].deff[1:]))
    assert all(np.array(figures["uniform"].deff) <= np.array(figures["clips"].deff) + 0.02)


@pytest.mark.long
def test_progress_of_a_log_is_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MIN_INTERVAL", 0.0)
    assert explain(ExplainConfig(**SMALL)) == 0
    shown = capsys.readouterr().err
    assert "\r" not in shown
    assert len([line for line in shown.splitlines() if line.startswith("orders: ")]) == len(NAMES)


@pytest.mark.long
def test_explain_omits_orders_with_fewer_episodes_than_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(ExplainConfig(**SMALL | {"episodes": 3})) == 0
    text = capsys.readouterr().out
    assert "omitted: worker_pool: 3 episodes" in text
    assert "omitted: episode_stream" in text
    assert "block shuffle" in text


def test_compare_weights_a_mixture() -> None:
    lengths = np.full(300, 100)
    config = ExplainConfig(**SMALL, weights=(3, 1), paths=("a", "b"))
    tables = [Table(name, lengths, 2, (0, 0), 30.0, cameras) for name, cameras in (("a", 1), ("b", 3))]
    sides = compare(tables, config).sides
    episode, _, _ = sides[0].read(np.arange(2**16))
    assert (episode < 300).mean() == pytest.approx(0.75, abs=1e-3)
    clips = sides[0].figures
    assert clips.bytes_in_flight == pytest.approx(clips.frames_in_flight * 4096 * (0.75 * 1 + 0.25 * 3), rel=1e-6)


@pytest.mark.long
def test_explain_real_datasets(real_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = tuple(str(real_data / name) for name in ("g1_v21", "g1_v30"))
    assert explain(ExplainConfig(**SMALL, paths=both)) == 0
    text = capsys.readouterr().out
    assert text.count("8 episodes, 2,138 frames, 267 per episode, a key frame every 2") == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "batch_size: must be at least 1"),
        ({"batch_size": 10**12}, "batch_size: 1000000000000 exceeds the limit of"),
        ({"world_size": 10**12}, "world_size: 1000000000000 exceeds the limit of"),
        ({"episodes": 10**12}, "episodes: 1000000000000 exceeds the limit of"),
        ({"lanes": 10**12}, "lanes: 1000000000000 exceeds the limit of"),
        ({"world_size": 3}, "batch_size: 32 does not divide among 3 ranks"),
        ({"reach": (-1, 0)}, "gop, reach, clip, lanes: must not be negative"),
        ({"paths": ("a", "a")}, "paths: a is named twice"),
        ({"weights": (1.0,)}, "weights: 1 given for 0 datasets"),
        ({"paths": ("a", "b"), "weights": (1.0, 0.0)}, "weights: (1.0, 0.0) must be above 0"),
        ({"paths": ("a", "b"), "weights": (1.0, 1e7)}, "less than a million times the smallest"),
        ({"paths": ("a", "b"), "weights": (1.0, float("nan"))}, "weights: (1.0, nan)"),
        ({"seed": -1}, "seed: must be in"),
        ({"frame_bytes": 0.0}, "frame_bytes: must be above 0"),
        ({"figure": "no/such/folder/order.png"}, "no/such/folder is not a folder"),
        ({"figure": "order.gif"}, "must end in .png, .svg or .pdf"),
    ],
)
def test_explain_config_names_wrong_settings(wrong: dict, message: str) -> None:
    assert any(message in line for line in ExplainConfig(**SMALL | wrong).problems())
    assert ExplainConfig(**SMALL).problems() == []


@pytest.mark.long
def test_compare_audits_a_bounded_number_of_positions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a clip of all data, or memory for all data, the audit stays short and notes that it is approximate."""
    config = ExplainConfig(**SMALL | {"episodes": 40}, clip=10**12, lanes=32)
    assert compare(read_tables(config), config).settled  # no more is held than there is
    monkeypatch.setattr(explain_module, "MOST", 1 << 16)
    for kwargs in ({"frames_in_flight": 10**9}, {"clip": 10**12, "lanes": 32}):
        config = ExplainConfig(**SMALL | kwargs)
        comparison = compare(read_tables(config), config)
        assert not comparison.settled
        assert {side.figures.stretch for side in comparison.sides if side.figures} == {(1 << 16, 1 << 17)}
    assert explain(ExplainConfig(**SMALL, clip=10**12, lanes=1)) == 0
    text = capsys.readouterr().out
    assert "their figures are approximate" in text
    assert "omitted: audit: 'clips' opens nothing" in text


@pytest.mark.long
def test_explain_accepts_clip_lanes_and_the_order_inside(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(ExplainConfig(**SMALL, clip=24, lanes=128, inside="permuted")) == 0
    assert "128 lanes of clips of 24, permuted inside a clip" in capsys.readouterr().out


def test_explain_prints_the_order_before_the_audit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Counted(Exception):
        pass

    def count(*_: object) -> None:
        raise Counted

    monkeypatch.setattr(order, "compare", count)
    with pytest.raises(Counted):
        explain(ExplainConfig(**SMALL))
    assert "lanes of clips of" in capsys.readouterr().out
    assert explain(ExplainConfig(batch_size=1 << 20, episodes=10_000)) == 0  # too large for the audit
    assert "no comparison" in capsys.readouterr().out


def test_explain_refuses_an_absurd_batch_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["order", "explain", "--batch-size", "1000000000000"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1


@pytest.mark.long
def test_compare_audits_few_positions_of_large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that cannot settle in an affordable number of positions is audited briefly."""
    monkeypatch.setattr(explain_module, "MOST", 1 << 17)
    monkeypatch.setattr(explain_module, "FEW", 1 << 15)
    for batch, held, audited in ((256, 1 << 16, 1 << 15), (1024, 1 << 16, 1 << 16), (128, 1 << 12, 1 << 15)):
        config = ExplainConfig(**SMALL | {"batch_size": batch, "episodes": 4000, "frames_in_flight": held})
        low, high = next(side.figures.stretch for side in compare(read_tables(config), config).sides if side.figures)
        assert high - low == audited
    assert FEW == 1 << 20


def test_workers_share_one_permutation_of_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = baselines.permutation
    monkeypatch.setattr(baselines, "permutation", lambda n, key: made.append(n) or real(n, key))
    lengths = np.full(5000, 40)
    baselines.episode_stream(lengths, 1024, 128, 8, 4096, seed=99)
    baselines.worker_pool(lengths, 1024, 128, 8, 1, 4096, seed=99)
    assert made.count(5000) == 1


def test_explain_prints_the_candidates_and_marks_the_chosen_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "data", Spec(lengths=(60,) * 8, gop=30))
    paths = (str(tmp_path / "data"),)
    for memory in ("4GB", "6MB"):
        config = ExplainConfig(batch_size=4, world_size=1, num_workers=1, paths=paths, memory=memory)
        choice = choose(read_tables(config), config)
        assert choice is not None
        explain(config)
        lines = capsys.readouterr().out.splitlines()
        marked = [line for line in lines if line.startswith("> ")]
        assert [str(choice.chosen) in line for line in marked] == [True]
        assert f"{choice.chosen.cost:.2f}" in marked[0]
        assert sum(str(candidate) in "\n".join(lines) for candidate in choice.candidates) == len(choice.candidates)
        with us.Loader(paths[0], batch_size=4, memory=memory, seed=config.seed) as loader:
            spec, other = loader.order.spec.sources[0], choice.order.spec.sources[0]
            assert (spec.clip, spec.lanes, spec.cut) == (other.clip, other.lanes, other.cut)
    assert choose([], ExplainConfig()) is None


@pytest.mark.long
@pytest.mark.parametrize("episodes", [10, 2000])
def test_render_notes_batches_that_are_several_epochs(episodes: int) -> None:
    config = ExplainConfig(**SMALL, paths=("a",), gop=2)
    table = Table("a", np.full(episodes, 100), 2, (0, 0), 30.0, 1)
    comparison = compare([table], config)
    epochs = 64 * config.batch_size / (100 * episodes)
    assert (f"{epochs:,.3g} epochs" in render([table], comparison, config)) == (epochs > 1)
    deff = [side.figures.deff[-1] for side in comparison.sides if side.figures]
    assert min(deff) >= 0.9 * epochs
