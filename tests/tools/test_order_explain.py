"""`order explain` reads lengths alone and shows every order it can, side by side."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from understudy.tools.order_explain import ExplainConfig, Table, compare, explain, read_tables

SMALL = {"batch": 32, "world": 2, "workers": 2, "episodes": 400, "frames_in_flight": 4096}
NAMES = ["clips", "uniform", "episode lanes", "block shuffle", "worker pool", "episode stream"]


def test_table_and_picture_of_the_synthetic_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "order.png"
    assert explain(ExplainConfig(**SMALL, picture=str(picture))) == 0
    text = capsys.readouterr().out
    assert "400 episodes" in text
    head = next(line for line in text.splitlines() if "clips" in line and "uniform" in line)
    assert head.split("  ")[-1].strip() == "episode stream"
    assert all(name in head for name in NAMES)
    row = next(line for line in text.splitlines() if line.startswith("deff over 1 batch"))
    assert len(row.split()) == 4 + len(NAMES)
    assert max(map(len, text.splitlines())) <= 120
    with Image.open(picture) as image:
        assert image.size == (1210, 704)
        colours = image.convert("RGB").getcolors(maxcolors=2**20)
    assert colours is not None
    assert {(11, 110, 79), (192, 57, 43)} <= {colour for _, colour in colours}  # clips and the stream are drawn


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


def test_with_fewer_episodes_than_workers_the_rest_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(ExplainConfig(**SMALL | {"episodes": 3})) == 0
    text = capsys.readouterr().out
    assert "not shown: worker_pool: 3 episodes leave some of 2 x 2 workers without any" in text
    assert "not shown: episode_stream" in text
    assert "block shuffle" in text


def test_a_mixture_is_weighted() -> None:
    lengths = np.full(300, 100)
    config = ExplainConfig(**SMALL, weights=(3, 1), paths=("a", "b"))
    tables = [Table(name, lengths, 2, (0, 0), 30.0, cameras) for name, cameras in (("a", 1), ("b", 3))]
    sides = compare(tables, config).sides
    episode, _, _ = sides[0].read(np.arange(2**16))
    assert (episode < 300).mean() == pytest.approx(0.75, abs=1e-3)
    clips = sides[0].figures
    assert clips.bytes_in_flight == pytest.approx(clips.frames_in_flight * 4096 * (0.75 * 1 + 0.25 * 3), rel=1e-6)


def test_real_datasets(real_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = tuple(str(real_data / name) for name in ("g1_v21", "g1_v30"))
    assert explain(ExplainConfig(**SMALL, paths=both)) == 0
    text = capsys.readouterr().out
    assert text.count("8 episodes, 2,138 frames, 267 per episode, a key frame every 2") == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"batch": 0}, "batch: must be at least 1"),
        ({"world": 3}, "batch: 32 does not divide among 3 ranks"),
        ({"reach": (-1, 0)}, "gop, reach, clip, lanes: must not be negative"),
        ({"paths": ("a", "a")}, "paths: a is named twice"),
        ({"weights": (1.0,)}, "weights: 1 given for 0 datasets"),
        ({"paths": ("a", "b"), "weights": (1.0, 0.0)}, "weights: (1.0, 0.0) must be above 0"),
        ({"paths": ("a", "b"), "weights": (1.0, 1e7)}, "less than a million times the smallest"),
        ({"paths": ("a", "b"), "weights": (1.0, float("nan"))}, "weights: (1.0, nan)"),
        ({"seed": -1}, "seed: must be in"),
        ({"frame_bytes": 0.0}, "frame_bytes: must be above 0"),
        ({"picture": "no/such/folder/order.png"}, "there is no folder no/such/folder"),
        ({"picture": "order.gif"}, "must end in .png, .svg or .pdf"),
    ],
)
def test_settings_that_cannot_be_are_named(wrong: dict, said: str) -> None:
    assert any(said in line for line in ExplainConfig(**SMALL | wrong).problems())
    assert ExplainConfig(**SMALL).problems() == []


def test_what_is_looked_at_is_bounded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A clip as long as all data, memory for all data: the stretch stays short, and what it cannot show is said."""
    config = ExplainConfig(**SMALL | {"episodes": 40}, clip=10**12, lanes=32)
    assert compare(read_tables(config), config).settled  # no more is held than there is
    monkeypatch.setattr("understudy.tools.order_explain.MOST", 1 << 16)
    for kwargs in ({"frames_in_flight": 10**9}, {"clip": 10**12, "lanes": 32}):
        config = ExplainConfig(**SMALL | kwargs)
        comparison = compare(read_tables(config), config)
        assert not comparison.settled
        assert {side.figures.stretch for side in comparison.sides if side.figures} == {(1 << 16, 1 << 17)}
    assert explain(ExplainConfig(**SMALL, clip=10**12, lanes=1)) == 0
    text = capsys.readouterr().out
    assert "take their figures as a sketch" in text
    assert "not shown: audit: 'clips' opens nothing" in text


def test_clip_lanes_and_the_order_inside_can_be_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(ExplainConfig(**SMALL, clip=24, lanes=128, inside="permuted")) == 0
    assert "128 lanes of clips of 24, permuted inside a clip" in capsys.readouterr().out
