"""Figures from outside against the rows of a run: named, refused, or mended before the first
step.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy import EpisodeWriter
from understudy.config.train import TrainConfig
from understudy.train.data import given_figures
from understudy.train.data.run_data import open_data
from understudy.train.data.run_normalization import (
    choose_normalization,
    confront_policy,
    confront_update,
)
from understudy_base import ConfigError, DatasetError
from understudy_data.datasets.stats import norm_heads
from understudy_data.load.row_sample import RowSample
from understudy_kit import SourceConfig, main, override

ACTION = "action"
STATE = "observation.state"
NAMES = ("a", "b", "gripper")
KEYS = {STATE: "state", ACTION: "actions"}


def recording(
    root: Path,
    scale: float = 1.0,
    episodes: int = 4,
    length: int = 100,
    columns: dict[int, np.ndarray] | None = None,
) -> Path:
    """Normal values times `scale`; `columns` replaces dimensions of all keys by values, [episodes *
    length].
    """
    rng = np.random.default_rng(3)
    features = {key: {"dtype": "float32", "shape": (3,), "names": list(NAMES)} for key in KEYS}
    with EpisodeWriter(root, fps=10, features=features, robot_type="arm") as writer:
        for episode in range(episodes):
            for frame in range(length):
                row = scale * rng.normal(size=3)
                for dim, values in (columns or {}).items():
                    row[dim] = values[episode * length + frame]
                writer.add_frame({key: row.astype(np.float32) for key in features}, "move")
            writer.save_episode()
    return root


def rare(count: int = 800, share: float = 0.005, noise: float = 1e-4) -> np.ndarray:
    """A gripper that is 0 but for noise, and 1 in a few rows."""
    values = noise * np.random.default_rng(1).normal(size=count)
    values[:: round(1 / share)] = 1.0
    return values


def config_of(root: Path, **data: Any) -> TrainConfig:
    made = override(
        TrainConfig(),
        data={"root": str(root), "val_fraction": 0.0, "control_mode": "joint", **data},
    )
    return made.with_policy_defaults()


def openpi_file(
    root: Path, path: Path, change: dict[str, dict[int, float]] | None = None, factor: float = 1.0
) -> str:
    """Figures of a dataset as openpi writes them, with other ones in some dimensions of both
    keys.
    """
    recorded = json.loads((root / "meta/stats.json").read_text())
    entries = {}
    for key, name in KEYS.items():
        figures = {
            figure: np.array(recorded[key][figure]) * factor
            for figure in ("mean", "std", "q01", "q99")
        }
        for figure, values in (change or {}).items():
            for dim, value in values.items():
                figures[figure][dim] = value
        entries[name] = {figure: values.tolist() for figure, values in figures.items()}
    path.write_text(json.dumps({"norm_stats": entries}))
    return str(path)


def chosen(config: TrainConfig) -> dict[str, Any]:
    return dict(choose_normalization(config, open_data(config)))


@pytest.fixture(scope="module")
def radians(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording(tmp_path_factory.mktemp("figures") / "rad")


# -- refused, or named


@pytest.mark.parametrize("factor", [1 / 57.3, 1e-3])
@pytest.mark.parametrize("mode", ["mean_std", "quantile"])
def test_statistics_of_other_units_are_refused(
    radians: Path, tmp_path: Path, factor: float, mode: str
) -> None:
    stats = openpi_file(radians, tmp_path / "norm_stats.json", factor=factor)
    big = recording(tmp_path / "d", scale=3.0 if factor > 0.01 else 1.0)
    with pytest.raises(DatasetError) as caught:
        chosen(config_of(big, stats=stats, normalize=mode))
    assert "action[0] (a)" in caught.value.what
    assert "observation.state[2] (gripper)" in caught.value.what
    assert "stats" in caught.value.fix


def test_stale_recorded_statistics_are_refused_and_min_max_too(
    radians: Path, tmp_path: Path
) -> None:
    root = recording(tmp_path / "d", scale=300.0)
    (root / "meta/stats.json").write_bytes((radians / "meta/stats.json").read_bytes())
    for mode in ("mean_std", "min_max", "quantile"):
        with pytest.raises(DatasetError) as caught:
            chosen(config_of(root, stats="recorded", normalize=mode))
        assert "data.stats recorded" in caught.value.what


def test_statistics_of_absolute_actions_for_differences_are_refused(tmp_path: Path) -> None:
    """openpi's figures of absolute joints, one of which rests far from 0, where differences are
    learnt.
    """
    still = 1.569 + 1e-4 * np.random.default_rng(0).normal(size=400)
    root = recording(tmp_path / "d", columns={1: still})
    stats = openpi_file(root, tmp_path / "norm_stats.json")
    chosen(config_of(root, stats=stats))
    with pytest.raises(DatasetError) as caught:
        chosen(config_of(root, stats=stats, delta_action_dims=(0, 1)))
    assert "action[1] (b)" in caught.value.what
    assert "action[0]" not in caught.value.what


def test_a_few_dimensions_beyond_the_figures_are_named_and_trained(
    radians: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stats = openpi_file(
        radians,
        tmp_path / "norm_stats.json",
        {"std": {1: 1 / 30}, "q01": {1: -0.05}, "q99": {1: 0.05}},
    )
    config = config_of(radians, stats=stats)
    with caplog.at_level(logging.INFO):
        made = chosen(config)
    (line,) = [record.getMessage() for record in caplog.records if "beyond" in record.getMessage()]
    assert "action[1] (b)" in line
    assert "observation.state[1] (b)" in line
    assert "[0]" not in line
    assert made[ACTION]["spread"][0][1] == np.float32(1 / 30)


def test_figures_a_thousand_times_too_wide_are_named(
    radians: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stats = openpi_file(radians, tmp_path / "norm_stats.json", factor=1000.0)
    chosen(config_of(radians, stats=stats))
    assert any(
        "stay within" in record.getMessage() and "action[0]" in record.getMessage()
        for record in caplog.records
    )


@pytest.mark.parametrize("stats", ["", "recorded", "file"])
@pytest.mark.parametrize("mode", ["mean_std", "min_max", "quantile"])
def test_figures_of_the_data_are_silent_and_unchanged(
    radians: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, stats: str, mode: str
) -> None:
    if stats == "file":
        stats = str(radians / "meta/stats.json")
    with caplog.at_level(logging.INFO):
        made = chosen(config_of(radians, stats=stats, normalize=mode))
    assert not [record for record in caplog.records if "normalization" in record.getMessage()]
    rows = given_figures.Samples(open_data(config_of(radians)), 0).of(0).rows[ACTION]
    if mode == "mean_std":
        np.testing.assert_allclose(made[ACTION]["spread"][0], rows.std(0), rtol=1e-5)


def test_a_source_of_other_units_in_a_shared_head_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, radians: Path
) -> None:
    """300 frames in degrees among 6,000 in radians: a part of the pooled deviation."""
    recording(tmp_path / "many", episodes=60)
    recording(tmp_path / "few", scale=300.0, episodes=1, length=20)
    source = SourceConfig(robot_type="arm", control_mode="joint")
    config = config_of(radians)
    sources = tuple(replace(source, root=str(tmp_path / name)) for name in ("many", "few"))
    config = replace(config, data=replace(config.data, root="", control_mode="", sources=sources))
    data = open_data(config)
    choose_normalization(config, data)
    lines = [record.getMessage() for record in caplog.records if "beyond" in record.getMessage()]
    assert lines
    assert all("'few'" in line for line in lines)


def test_the_figures_of_an_initial_policy_are_confronted(radians: Path, tmp_path: Path) -> None:
    config = replace(config_of(radians), init_from="base")
    theirs = chosen(config_of(radians))
    assert confront_policy(config, open_data(config), theirs) == theirs
    degrees = replace(config_of(recording(tmp_path / "deg", scale=57.3)), init_from="base")
    with pytest.raises(DatasetError) as caught:
        confront_policy(degrees, open_data(degrees), theirs)
    assert "init_from base" in caught.value.what


def test_the_rows_of_an_update_are_confronted_alone(radians: Path, tmp_path: Path) -> None:
    theirs = chosen(config_of(radians))
    config = config_of(radians)
    data = open_data(config)
    other = open_data(config_of(recording(tmp_path / "deg", scale=57.3)))
    (first,) = data.sources
    (second,) = other.sources
    added = replace(second, number=1, name="added", of=0, head=first.head)
    both = replace(data, sources=(first, added))
    with pytest.raises(DatasetError):
        confront_update(config, both, theirs, 1)
    confront_update(
        config, replace(both, sources=(first, replace(added, training=first.training))), theirs, 1
    )


# -- no spread that is tiny beside its range


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-4, 1e-3])
@pytest.mark.parametrize("given", [False, True])
def test_a_gripper_that_rarely_closes_is_divided_by_its_range(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, noise: float, given: bool
) -> None:
    root = recording(tmp_path / "d", episodes=8, columns={2: rare(noise=noise)})
    stats = openpi_file(root, tmp_path / "norm_stats.json") if given else ""
    with caplog.at_level(logging.INFO):
        made = chosen(config_of(root, stats=stats, normalize="quantile"))
    for key in KEYS:
        assert made[key]["spread"][0][2] == pytest.approx(0.5, rel=0.01)
    assert any(
        "range" in r.getMessage() and "action[2] (gripper)" in r.getMessage()
        for r in caplog.records
    )


@pytest.mark.parametrize("count", [500, 4000])
def test_one_damaged_value_does_not_flatten_a_joint(tmp_path: Path, count: int) -> None:
    values = np.random.default_rng(2).normal(size=count)
    values[count // 3] = 1e4
    root = recording(tmp_path / "d", episodes=5, length=count // 5, columns={0: values})
    assert chosen(config_of(root, normalize="quantile"))[ACTION]["spread"][0][0] < 3


def test_a_nearly_constant_dimension_is_not_divided_by_noise_of_the_sample(tmp_path: Path) -> None:
    root = recording(tmp_path / "d", columns={1: np.full(400, 1.57)})
    stats = openpi_file(root, tmp_path / "norm_stats.json")
    made = chosen(config_of(root, stats=stats, normalize="quantile"))
    assert made[ACTION]["spread"][0][1] == 0
    assert made[ACTION]["offset"][0][1] == np.float32(1.57)


def test_equal_quantiles_of_a_dimension_that_moves_are_named_as_such(
    radians: Path, tmp_path: Path
) -> None:
    stats = openpi_file(radians, tmp_path / "norm_stats.json", {"q01": {1: 0.0}, "q99": {1: 0.0}})
    with pytest.raises(DatasetError) as caught:
        chosen(config_of(radians, stats=stats, normalize="quantile"))
    assert "q01 = q99" in caught.value.what
    assert "(b)" in caught.value.what
    assert "stats" in caught.value.fix


def test_an_initial_policy_whose_gripper_rested_trains_with_the_range(
    radians: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of three dimensions one rested in the training of the policy."""
    config = replace(config_of(radians), init_from="base")
    theirs = chosen(config_of(radians))
    theirs[ACTION] = {
        "offset": [[*theirs[ACTION]["offset"][0][:2], 0.0]],
        "spread": [[*theirs[ACTION]["spread"][0][:2], 0.0]],
    }
    made = confront_policy(config, open_data(config), theirs)
    rows = given_figures.Samples(open_data(config), config.seed).of(0).rows[ACTION][:, 2]
    assert made[ACTION]["spread"][0][2] == pytest.approx((rows.max() - rows.min()) / 2, rel=1e-6)
    assert made[ACTION]["spread"][0][:2] == theirs[ACTION]["spread"][0][:2]
    assert any("range" in record.getMessage() for record in caplog.records)


# -- the sample


def test_the_sample_is_a_function_of_the_key_and_bounded(tmp_path: Path) -> None:
    data = open_data(config_of(recording(tmp_path / "d", episodes=30, length=40)))
    part = data.training[0]
    first = RowSample.read(part, (), 4, 5, 100, 10).rows
    again = RowSample.read(part, (), 4, 5, 100, 10).rows
    other = RowSample.read(part, (), 4, 6, 100, 10).rows
    assert len(first[ACTION]) <= 100
    assert np.array_equal(first[ACTION], again[ACTION])
    assert not np.array_equal(first[ACTION], other[ACTION])
    assert np.array_equal(first[ACTION], first[STATE])


def test_the_sample_of_differences_stays_in_their_window(tmp_path: Path) -> None:
    ramp = np.tile(np.arange(40.0), 10)
    root = recording(tmp_path / "d", episodes=10, length=40, columns={0: ramp})
    part = open_data(config_of(root, chunk_size=8)).training[0]
    steps = RowSample.read(part, (0,), 8, 1, 100_000, 64).rows[ACTION][:, 0]
    assert set(np.unique(steps)) == set(range(8))


# -- a normalization per dimension


def test_single_dimensions_have_their_own_normalization(radians: Path) -> None:
    plain = {
        mode: chosen(config_of(radians, normalize=mode))
        for mode in ("mean_std", "min_max", "quantile")
    }
    made = chosen(
        config_of(
            radians, normalize={"*": "quantile", "gripper": "identity", "action[1]": "min_max"}
        )
    )
    for key in KEYS:
        assert (made[key]["offset"][0][2], made[key]["spread"][0][2]) == (0, 1)
        assert made[key]["spread"][0][0] == plain["quantile"][key]["spread"][0][0]
    assert made[ACTION]["spread"][0][1] == plain["min_max"][ACTION]["spread"][0][1]
    assert made[STATE]["spread"][0][1] == plain["quantile"][STATE]["spread"][0][1]
    rest = chosen(config_of(radians, normalize={"observation.state[0]": "identity"}))
    assert rest[ACTION] == plain["mean_std"][ACTION]


def test_identity_of_a_difference_and_of_a_constant_stays(tmp_path: Path) -> None:
    root = recording(tmp_path / "d", columns={2: np.full(400, 5.0)})
    made = chosen(
        config_of(root, normalize={"gripper": "identity", "a": "identity"}, delta_action_dims=(0,))
    )
    assert [made[ACTION]["spread"][0][dim] for dim in (0, 2)] == [1, 1]
    assert made["delta"] == [[True, False, False]]


@pytest.mark.parametrize(
    ("normalize", "words"),
    [
        ({"griper": "identity"}, ("griper", "gripper")),
        ({"action[3]": "identity"}, ("action[3]", "gripper")),
        ({"2": "identity"}, ("action[2]",)),
        ({"gripper": "identity", "action[2]": "min_max"}, ("gripper", "action[2]")),
    ],
)
def test_an_unknown_or_double_name_is_refused(
    radians: Path, normalize: dict[str, str], words: Sequence[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(config_of(radians, normalize=normalize))
    assert all(word in str(caught.value) for word in words)


def test_an_ambiguous_name_lists_all_that_it_may_be(tmp_path: Path) -> None:
    features = {
        key: {"dtype": "float32", "shape": (2,), "names": ["left_gripper", "right_gripper"]}
        for key in KEYS
    }
    with EpisodeWriter(tmp_path / "d", fps=10, features=features) as writer:
        for _ in range(20):
            writer.add_frame(
                {key: np.random.default_rng(0).normal(size=2).astype(np.float32) for key in KEYS},
                "move",
            )
        writer.save_episode()
    with pytest.raises(ConfigError) as caught:
        chosen(config_of(tmp_path / "d", normalize={"gripper": "identity"}))
    assert "left_gripper" in str(caught.value)
    assert "right_gripper" in str(caught.value)


def test_given_statistics_need_the_figures_of_the_named_modes_alone(
    radians: Path, tmp_path: Path
) -> None:
    stats = openpi_file(radians, tmp_path / "norm_stats.json")
    made = chosen(
        config_of(radians, stats=stats, normalize={"*": "quantile", "gripper": "identity"})
    )
    assert made[ACTION]["spread"][0][2] == 1
    with pytest.raises(DatasetError):
        chosen(config_of(radians, stats=stats, normalize={"gripper": "min_max"}))


def test_a_policy_that_was_trained_otherwise_refuses_identity(radians: Path) -> None:
    theirs = chosen(config_of(radians))
    config = replace(config_of(radians, normalize={"gripper": "identity"}), init_from="base")
    with pytest.raises(ConfigError, match="gripper"):
        confront_policy(config, open_data(config), theirs)
    own = chosen(config_of(radians, normalize={"gripper": "identity"}))
    assert confront_policy(config, open_data(config), own) == own


SMALL = (
    "--batch-size",
    "4",
    "--val.every",
    "0",
    "--log.no-report",
    "--policy.width",
    "16",
    "--policy.layers",
    "1",
)


def test_a_run_resumes_with_its_own_modes_alone(
    radians: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "train",
        "--data.root",
        str(radians),
        "--output-dir",
        str(tmp_path / "r"),
        "--steps",
        "1",
        *SMALL,
    ]
    assert main([*words, "--data.normalize", "gripper", "identity"]) == 0
    stored = json.loads((tmp_path / "r/policy/normalisation.json").read_text())
    assert stored[ACTION]["spread"][0][2] == 1
    assert main(["resume", str(tmp_path / "r"), "--steps", "2"]) == 0
    assert (
        main(
            [
                "resume",
                str(tmp_path / "r"),
                "--steps",
                "3",
                "--data.normalize",
                "gripper",
                "min_max",
            ]
        )
        == 2
    )
    assert "data.normalize" in capsys.readouterr().err


def test_the_summary_of_a_source_is_read_once_at_the_start(
    radians: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contract needs the actions as recorded, the normalization their differences: one pass has
    both.
    """
    read: list[object] = []
    original = norm_heads.load_or_compute_all
    monkeypatch.setattr(
        norm_heads, "load_or_compute_all", lambda *args: read.extend(args[1]) or original(*args)
    )
    words = [
        "train",
        "--data.root",
        str(radians),
        "--output-dir",
        str(tmp_path / "r"),
        "--steps",
        "1",
        *SMALL,
    ]
    words += [
        "--data.val-fraction",
        "0",
        "--data.delta-action-dims",
        "0",
        "1",
        "--data.cache",
        str(tmp_path / "c"),
    ]
    assert main(words) == 0
    assert len(read) == 1
    (robot,) = json.loads((tmp_path / "r/policy/contract.json").read_text())["robots"].values()
    rows = given_figures.Samples(open_data(config_of(radians)), 0).of(0).rows[ACTION]
    np.testing.assert_allclose(robot["action"]["figures"]["std"], rows.std(0), rtol=1e-4)


@pytest.mark.parametrize("moves", [1, 3])
def test_weights_of_a_dimension_that_rested_train_with_the_range(radians: Path, moves: int) -> None:
    """openpi's formula leaves a spread of 5e-7; if most dimensions differ, the figures are of
    something else.
    """
    data = open_data(config_of(radians))
    theirs = chosen(config_of(radians))
    resting = {name: np.array(rows) for name, rows in theirs[ACTION].items()}
    resting["offset"][0][:moves], resting["spread"][0][:moves] = 0.0, 5e-7
    figures = {**theirs, ACTION: {name: rows.tolist() for name, rows in resting.items()}}
    origins = {0: given_figures.of_weights("weights")}
    if moves == 3:
        with pytest.raises(DatasetError) as caught:
            given_figures.settle(figures, given_figures.Samples(data, 0), origins)
        assert "policy.normalization data" in caught.value.fix
        return
    made = given_figures.settle(figures, given_figures.Samples(data, 0), origins)
    assert made[ACTION]["spread"][0][0] > 1
    assert figures[ACTION]["spread"][0][0] == 5e-7
