"""External statistics: read unchanged, or refused by file, figure and usable modes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_base import DatasetError, MissingFileError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.recorded_stats import parse_stats
from understudy_data.datasets.stats.norm_heads import (
    HeadMember,
    compute_normalization,
    compute_statistics,
)
from understudy_data.datasets.stats.stats_files import read_stats_file, to_openpi
from understudy_data.datasets.stats.summary import Mode, Statistics, offset_and_spread
from understudy_data.testing.datasets import Spec, edit_json, write_dataset

ACTION = "action"
STATE = "observation.state"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> EpisodeDataset:
    """2 actions, 3 states; stats.json as older LeRobot writes it, without quantiles."""
    root = tmp_path_factory.mktemp("data")
    write_dataset(root / "d", Spec(cameras=()))
    return EpisodeDataset(root / "d", keys=[ACTION, STATE])


def norm_stats(action: dict[str, Any], state: dict[str, Any] | None = None) -> str:
    state = state or {"mean": [0, 0, 0], "std": [1, 1, 1], "q01": [-2, -2, -2], "q99": [2, 2, 2]}
    return json.dumps({"norm_stats": {"state": state, "actions": action}})


def saved(folder: Path, text: str, name: str = "norm_stats.json") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


PI = {"mean": [1.0, 2.0], "std": [0.5, 4.0], "q01": [0.0, -7.0], "q99": [2.0, 9.0]}


@pytest.mark.parametrize("width", [2, 32])
@pytest.mark.parametrize("fill", ["zeros", "nearly", "neutral"])
def test_external_openpi_is_read_with_its_padding_cut(
    data: EpisodeDataset, tmp_path: Path, width: int, fill: str
) -> None:
    """openpi's histograms leave 1e-10 of a zero."""
    pad = {"zeros": (0, 0, 0, 0), "nearly": (1e-11, 1e-9, -1e-10, 1e-10), "neutral": (0, 1, -1, 1)}[
        fill
    ]
    wide = {name: [*PI[name], *[by] * (width - 2)] for name, by in zip(PI, pad)}
    path = saved(tmp_path, norm_stats(wide))
    for mode in ("mean_std", "quantile"):
        got = read_stats_file(path, mode, data, (0, 1))[ACTION]  # of differences, as openpi's are
        for name, values in PI.items():
            assert getattr(got, name).tolist() == values
        assert np.isnan([got.min, got.max]).all()
        assert got.count == 0
        made = compute_normalization(
            [HeadMember(data, "x", (0, 1), read_stats_file(path, mode, data))], mode, 4
        )
        expected = [[1.0, 2.0], [0.5, 4.0]] if mode == "mean_std" else [[1.0, 1.0], [1.0, 8.0]]
        assert [made[ACTION]["offset"][0], made[ACTION]["spread"][0]] == expected
    with pytest.raises(DatasetError) as caught:
        read_stats_file(path, "min_max", data)
    assert str(caught.value) == (
        f"{path}: 'actions' has no 'min', which normalize='min_max' needs "
        "(it suffices for 'mean_std' and 'quantile'; or compute them)"
    )


@pytest.mark.parametrize(
    "tail",
    [
        {"mean": [0.1]},
        {"std": [0.5]},
        {"q99": [1.0]},
        {"mean": [np.nan]},
        {"std": [0.0, 0.0]},
        {"std": []},
    ],
)
def test_external_refuses_extra_dimensions_without_padding(
    data: EpisodeDataset, tmp_path: Path, tail: dict[str, list[float]]
) -> None:
    wide = {name: values + tail.get(name, [0.0]) for name, values in PI.items()}
    with refused("actions", 3, "mean", 2, where="norm_stats.json"):
        read_stats_file(saved(tmp_path, norm_stats(wide)), "mean_std", data)


def test_external_too_few_dimensions_are_refused(data: EpisodeDataset, tmp_path: Path) -> None:
    narrow = {name: values[:1] for name, values in PI.items()}
    with refused("actions", 1, "mean", 2, where="norm_stats.json"):
        read_stats_file(saved(tmp_path, norm_stats(narrow)), "mean_std", data)


@pytest.mark.parametrize("mode", ["mean_std", "quantile"])
def test_external_constant_dimensions_of_openpi_become_zero(
    data: EpisodeDataset, tmp_path: Path, mode: Mode
) -> None:
    """It has no least and greatest value, and its deviation of a constant is rounding."""
    state = {
        "mean": [3.0, 0.7001, 0.0],
        "std": [0.0, 1e-4, 1.0],
        "q01": [3.0, 0.7, -2.0],
        "q99": [3.0, 0.7, 2.0],
    }
    found = read_stats_file(saved(tmp_path, norm_stats(PI, state)), mode, data)
    numbers = offset_and_spread(found[STATE], mode)
    assert numbers["spread"][:2].tolist() == [0, 0]
    assert numbers["offset"][:2].tolist() == [3.0, np.float32(0.7)]
    assert numbers["spread"][2] > 0


def test_external_a_rare_event_in_openpi_is_not_lost(data: EpisodeDataset, tmp_path: Path) -> None:
    """Both quantiles equal, and yet it changes: its range is not known, so quantiles cannot be had
    of it.
    """
    rare = {"mean": [0.005, 0], "std": [0.07, 1], "q01": [0, -2], "q99": [0, 2]}
    path = saved(tmp_path, norm_stats(rare))
    with refused("action[0]", "q01", "q99", fix="stats"):
        compute_normalization(
            [HeadMember(data, "x", (), read_stats_file(path, "quantile", data))], "quantile", 4
        )
    compute_normalization(
        [HeadMember(data, "x", (), read_stats_file(path, "mean_std", data))], "mean_std", 4
    )


def test_external_to_openpi_round_trips_bit_for_bit(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(cameras=(), lengths=(20, 30)))
    data = EpisodeDataset(tmp_path / "d", {ACTION: [0, 0.1]}, keys=[ACTION, STATE])
    computed = compute_statistics([HeadMember(data, "x", (1,))], 2)["x"]
    content = json.loads(to_openpi(computed))["norm_stats"]
    assert {key: sorted(entry) for key, entry in content.items()} == {
        "actions": ["mean", "q01", "q99", "std"],
        "state": ["mean", "q01", "q99", "std"],
    }
    path = saved(tmp_path, to_openpi(computed))
    for mode in ("mean_std", "quantile"):
        read = read_stats_file(path, mode, data, (1,))
        for key in (ACTION, STATE):
            for name in ("mean", "std", "q01", "q99"):
                assert getattr(read[key], name).tolist() == getattr(computed[key], name).tolist()
        made = [
            compute_normalization([HeadMember(data, "x", (1,), r)], mode, 2) for r in (read, None)
        ]
        np.testing.assert_allclose(made[0][ACTION]["spread"], made[1][ACTION]["spread"], rtol=1e-6)
        np.testing.assert_allclose(made[0][STATE]["offset"], made[1][STATE]["offset"], rtol=1e-6)


def test_external_to_openpi_leaves_out_unknown_figures() -> None:
    nan = np.full(2, np.nan)
    some = np.ones(2)
    text = to_openpi({ACTION: Statistics(3, some, some, some, some, nan, nan)})
    assert json.loads(text) == {"norm_stats": {"actions": {"mean": [1, 1], "std": [1, 1]}}}
    with refused("action"):
        to_openpi({ACTION: Statistics(3, nan, nan, some, some, some, some)})


def test_external_null_is_not_there(data: EpisodeDataset, tmp_path: Path) -> None:
    """As openpi writes statistics without quantiles."""
    path = saved(tmp_path, norm_stats(PI | {"q01": None, "q99": None}))
    assert read_stats_file(path, "mean_std", data)[ACTION].mean.tolist() == [1, 2]
    with refused("q01", where=str(path), fix="'mean_std'; or"):
        read_stats_file(path, "quantile", data)


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_external_lerobots_are_read_from_the_dataset_or_from_a_file(
    tmp_path: Path, version: str
) -> None:
    truth = write_dataset(tmp_path / "d", Spec(version=version, cameras=()))
    data = EpisodeDataset(tmp_path / "d", keys=[ACTION, STATE])
    rows = {
        key: np.concatenate([r[key] for r in truth.rows.values()]).astype(np.float64)
        for key in (ACTION, STATE)
    }
    name = "episodes_stats.jsonl" if version == "v2.1" else "stats.json"
    for source, place in (
        ("recorded", "d/meta"),
        (str(tmp_path / "d/meta" / name), f"d/meta/{name}"),
    ):
        for mode in ("mean_std", "min_max"):
            found = read_stats_file(source, mode, data)
            for key, values in rows.items():
                np.testing.assert_allclose(found[key].mean, values.mean(0), rtol=1e-6, atol=1e-6)
                np.testing.assert_allclose(found[key].std, values.std(0), rtol=1e-6, atol=1e-6)
                np.testing.assert_allclose(found[key].max, values.max(0), rtol=1e-6)
                assert found[key].count == len(values)
        with refused("action", "q01", where=place, fix="'mean_std' and 'min_max'"):
            read_stats_file(source, "quantile", data)
        with refused("delta", "[0]", where=place):
            read_stats_file(source, "mean_std", data, (0,))


def test_external_quantiles_that_lerobot_wrote_are_taken(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(cameras=()))

    def with_quantiles(stats: dict[str, Any]) -> None:
        for key, width in ((ACTION, 2), (STATE, 3)):
            stats[key] |= {"q01": [-1.5] * width, "q50": [0.0] * width, "q99": [2.5] * width}
        rare = {
            "mean": 1000.0,
            "std": 0.5,
            "min": 990.0,
            "max": 1030.0,
            "q01": 1000.0,
            "q99": 1000.0,
        }
        for name, value in rare.items():
            stats[STATE][name][1] = value

    edit_json(tmp_path / "d/meta/stats.json", with_quantiles)
    data = EpisodeDataset(tmp_path / "d", keys=[ACTION, STATE])
    made = compute_normalization(
        [HeadMember(data, "x", (), read_stats_file("recorded", "quantile", data))], "quantile", 4
    )
    # a rare event far from zero: its range is known, and taken
    assert made[STATE]["offset"][0][1] == 1010.0
    assert made[STATE]["spread"][0][1] == 20.0
    assert (made[ACTION]["offset"], made[ACTION]["spread"]) == ([[0.5, 0.5]], [[2.0, 2.0]])
    assert made[STATE]["spread"][0][2] == 0  # constant: least and greatest are the same


def test_external_mapped_keys_are_looked_up_under_their_own_names(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(cameras=(), action_dim=3))
    plain = EpisodeDataset(tmp_path / "d", keys=[ACTION, STATE])
    crossed = EpisodeDataset(
        tmp_path / "d", keys=[ACTION, STATE], names={ACTION: STATE, STATE: ACTION}
    )
    for source in ("recorded", str(tmp_path / "d/meta/stats.json")):
        a, b = (read_stats_file(source, "mean_std", each) for each in (plain, crossed))
        assert a[ACTION].mean.tolist() == b[STATE].mean.tolist() != a[STATE].mean.tolist()
    renamed = EpisodeDataset(tmp_path / "d", keys=[ACTION, STATE], names={ACTION: "next.reward"})
    stats = {
        key: {"mean": [7.0] * width, "std": [1.0] * width}
        for key, width in ((ACTION, 1), (STATE, 3))
    }
    path = saved(tmp_path, json.dumps(stats), "stats.json")  # of another dataset, in standard keys
    assert read_stats_file(path, "mean_std", renamed)[ACTION].mean.tolist() == [7.0]


@pytest.mark.parametrize(
    ("text", "values", "fix"),
    [
        ("{", ("JSON", "line 1 column 2"), ""),
        ("[]", ("JSON",), ""),
        ('{"norm_stats": {"state": {"mean": [0]}}}', ("actions",), "state"),
        ("{}", ("action",), "none"),
        ('{"norm_stats": {"actions": 3, "state": 4}}', ("actions",), ""),
        ('{"action": {"mean": ["x"]}}', ("mean", "action", "'x'"), ""),
        (norm_stats(PI | {"std": [-1, 1]}), ("std", "actions[0]", -1.0), ""),
        (norm_stats(PI | {"mean": [1, float("inf")]}), ("mean", "actions[1]", "inf"), ""),
        (norm_stats(PI | {"q01": [9, 0]}), ("q01", "actions[0]", "q99", 9.0, 2.0), ""),
    ],
)
def test_external_broken_files_are_refused(
    data: EpisodeDataset, tmp_path: Path, text: str, values: tuple[object, ...], fix: str
) -> None:
    with refused(*values, where="norm_stats.json", fix=fix):
        read_stats_file(saved(tmp_path, text), "mean_std", data)


def test_external_a_file_that_is_not_there(data: EpisodeDataset, tmp_path: Path) -> None:
    for name in ("norm_stats.json", "episodes_stats.jsonl"):
        with pytest.raises(MissingFileError) as caught:
            read_stats_file(str(tmp_path / "nowhere" / name), "mean_std", data)
        assert caught.value.where == str(tmp_path / "nowhere" / name)
        # it is no file of the dataset, to be downloaded again
        assert "computed" in caught.value.fix


def test_external_real_recordings_carry_what_their_rows_say(real_data: Path) -> None:
    data = EpisodeDataset(real_data / "g1_v30", keys=[ACTION, STATE])
    computed = compute_statistics([HeadMember(data, "x")], 1)["x"]
    recorded = read_stats_file("recorded", "mean_std", data)
    for key in (ACTION, STATE):
        np.testing.assert_allclose(recorded[key].mean, computed[key].mean, atol=1e-3)
        np.testing.assert_allclose(recorded[key].std, computed[key].std, atol=1e-3)


@pytest.mark.parametrize("value", [True, "1.5", np.inf, np.nan])
@pytest.mark.parametrize("source", ["openpi", "lerobot", "recorded"])
def test_external_figures_that_are_no_numbers_are_refused(
    data: EpisodeDataset, tmp_path: Path, value: Any, source: str
) -> None:
    entry = {**PI, "min": [0, 0], "max": [1, 1], "std": [0.5, value]}
    state = {"mean": [0, 0, 0], "std": [1, 1, 1], "q01": [-2, -2, -2], "q99": [2, 2, 2]}
    if source == "openpi":
        path = saved(tmp_path, norm_stats(entry))
        of = data
    elif source == "lerobot":
        path = saved(tmp_path, json.dumps({ACTION: entry, STATE: state}), "stats.json")
        of = data
    else:
        write_dataset(tmp_path / "d", Spec(cameras=()))
        edit_json(
            tmp_path / "d/meta/stats.json",
            lambda content: content.update({ACTION: entry, STATE: state}),
        )
        path = "recorded"
        of = EpisodeDataset(tmp_path / "d", keys=[ACTION, STATE])
    with pytest.raises(DatasetError) as caught:
        read_stats_file(path, "mean_std", of)
    assert "std" in caught.value.what


def test_external_a_mask_leaves_its_dimensions_as_they_are(
    data: EpisodeDataset, tmp_path: Path
) -> None:
    path = saved(tmp_path, norm_stats({**PI, "mask": [True, False]}))
    for mode in ("mean_std", "quantile"):
        found = offset_and_spread(read_stats_file(path, mode, data)[ACTION], mode)
        assert (found["offset"][1], found["spread"][1]) == (0, 1)
        assert found["offset"][0] == 1
    with refused("mask", "actions", where="norm_stats.json", fix="dimension"):
        read_stats_file(saved(tmp_path, norm_stats({**PI, "mask": [1, 2]})), "mean_std", data)


def test_extremes_of_a_boolean_feature_are_read(tmp_path: Path) -> None:
    """LeRobot writes `"min": [false]` for `next.done`; a boolean as a mean is no figure."""
    recorded = {"min": [False], "max": [True], "mean": [0.05], "std": [0.2], "count": [60]}
    figures = parse_stats({"next.done": recorded}, "stats.json")["next.done"]
    assert figures["min"].tolist() == [0.0]
    assert figures["max"].tolist() == [1.0]
    with pytest.raises(DatasetError, match="mean"):
        parse_stats({"next.done": recorded | {"mean": [True]}}, "stats.json")
