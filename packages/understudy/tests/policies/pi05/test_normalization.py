"""Normalization beside released weights, against the formulas of openpi and LeRobot written down a
second time here.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from understudy.config.train import TrainConfig
from understudy.policies.common.normalizer import Affine, Normalizer
from understudy.policies.pi05.config import Pi05Settings
from understudy.policies.pi05.normalization import (
    NormalizationSettings,
    find_normalization,
    fit_normalization,
    map_range,
)
from understudy.policies.pi05.text import state_bins
from understudy_base import ACTION, STATE, ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.stats.summary import Mode, Statistics, offset_and_spread

WIDTHS = {ACTION: 3, STATE: 2}
FIGURES = {
    "state": {"mean": [0.5, -3.0], "std": [2.0, 0.25], "q01": [-1.5, 100.0], "q99": [2.5, 101.0]},
    "actions": {
        "mean": [0.0, 1.0, 2.0],
        "std": [1.0, 2.0, 0.0],
        "q01": [-1.0, 0.1, 7.0],
        "q99": [1.0, 0.7, 7.0],
    },
}


def computed(
    delta: tuple[int, ...] = (), heads: tuple[str, ...] = ("arm",), widths: Any = None
) -> dict[str, Any]:
    """The normalization of the run's data, to whose shape the stored one is fitted."""
    widths = widths or WIDTHS
    maps = {
        key: {"offset": [[9.0] * dim] * len(heads), "spread": [[9.0] * dim] * len(heads)}
        for key, dim in widths.items()
    }
    dims = {key: [dim] * len(heads) for key, dim in widths.items()}
    learnt = [[dim in delta for dim in range(widths[ACTION])]] * len(heads)
    return {"heads": list(heads), **maps, "delta": learnt, "dims": dims}


def write_openpi(folder: Path, figures: Any = None, asset: str = "droid") -> Path:
    path = folder / "assets" / asset
    path.mkdir(parents=True)
    (path / "norm_stats.json").write_text(json.dumps({"norm_stats": figures or FIGURES}))
    return folder


def write_lerobot(folder: Path, mode: str = "QUANTILES", **changes: Any) -> Path:
    """Processor files as LeRobot's `save_pretrained` writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    stats = {}
    for key, name in ((STATE, "state"), (ACTION, "actions")):
        own = {figure: np.array(values, np.float32) for figure, values in FIGURES[name].items()}
        own |= {"min": own["q01"] - 1, "max": own["q99"] + 1, "q10": own["q01"], "q90": own["q99"]}
        stats |= {f"{key}.{figure}": values for figure, values in own.items()}
    features = {STATE: {"type": "STATE", "shape": [2]}, ACTION: {"type": "ACTION", "shape": [3]}}
    config = {
        "eps": 1e-8,
        "features": features,
        "norm_map": {"VISUAL": "IDENTITY", "STATE": mode, "ACTION": mode},
    }
    relative = {
        "enabled": False,
        "exclude_joints": ["gripper"],
        "action_names": ["x", "y", "Gripper.pos"],
    }
    relative |= changes.get("relative", {})
    files = {
        "policy_preprocessor": "normalizer_processor",
        "policy_postprocessor": "unnormalizer_processor",
    }
    for name, kind in files.items():
        state = f"{name}_step_2_{kind}.safetensors"
        steps = [
            {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
            {"registry_name": "relative_actions_processor", "config": relative},
            {"registry_name": kind, "config": config, "state_file": state},
        ]
        save_file(stats, folder / state)
        (folder / f"{name}.json").write_text(json.dumps({"name": name, "steps": steps}))
    return folder


def normalizer(folder: Path, quantiles: bool = True, **options: Any) -> Normalizer:
    found = fit_normalization(find_normalization(folder, quantiles=quantiles), computed(**options))
    return Normalizer(found, WIDTHS)


def values(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """States [B, 2] and actions [B, 4, 3]; the constant dimension of the actions is constant."""
    random = np.random.default_rng(seed)
    states = random.uniform([-2, 99.5], [3, 101.5], (50, 2)).astype(np.float32)
    actions = random.uniform(-1, 1, (50, 4, 3)).astype(np.float32)
    actions[..., 2] = 7.0
    return states, actions


def batch(states: np.ndarray, actions: np.ndarray) -> dict[str, Any]:
    return {STATE: torch.from_numpy(states), ACTION: torch.from_numpy(actions)}


# -- openpi ----------------------------------------------------------------------------------------


def test_openpi_quantiles_are_its_formula(tmp_path: Path) -> None:
    states, actions = values()
    own = normalizer(write_openpi(tmp_path))
    for name, x, found in (
        ("state", states, own.states(batch(states, actions), torch.from_numpy(states))),
        ("actions", actions, own.actions(batch(states, actions))),
    ):
        q01, q99 = (np.array(FIGURES[name][figure]) for figure in ("q01", "q99"))
        expected = (x - q01) / (q99 - q01 + 1e-6) * 2.0 - 1.0
        np.testing.assert_allclose(found.numpy(), expected, atol=3e-5)
    x = np.random.default_rng(1).normal(size=(50, 4, 3)).astype(np.float32)
    q01, q99 = (np.array(FIGURES["actions"][figure]) for figure in ("q01", "q99"))
    back = own.robot_actions(torch.from_numpy(x), batch(states, actions)).numpy()
    np.testing.assert_allclose(back, (x + 1) / 2 * (q99 - q01 + 1e-6) + q01, atol=3e-6)


def test_openpi_deviations_of_pi0_are_its_formula(tmp_path: Path) -> None:
    states, actions = values()
    actions[..., 2] = 2.0
    own = normalizer(write_openpi(tmp_path), quantiles=False)
    mean, std = (np.array(FIGURES["actions"][figure]) for figure in ("mean", "std"))
    expected = (actions - mean) / (std + 1e-6)
    np.testing.assert_allclose(own.actions(batch(states, actions)).numpy(), expected, atol=1e-5)


def test_openpi_padding_is_cut_and_anything_else_is_not(tmp_path: Path) -> None:
    wide = {
        name: {figure: [*own, *[0.0] * 29] for figure, own in of.items()}
        for name, of in FIGURES.items()
    }
    padded = normalizer(write_openpi(tmp_path / "padded", wide)).arrays()
    assert padded[ACTION] == normalizer(write_openpi(tmp_path / "exact")).arrays()[ACTION]
    wide["actions"]["q99"][5] = 0.5
    with refused("'action'", 32, 3, kind=ConfigError):
        normalizer(write_openpi(tmp_path / "other", wide))


def test_openpi_asset_is_chosen_by_its_id(tmp_path: Path) -> None:
    write_openpi(tmp_path, asset="droid")
    other = {
        name: {figure: [2 * each for each in own] for figure, own in of.items()}
        for name, of in FIGURES.items()
    }
    write_openpi(tmp_path, other, asset="team/libero")
    with pytest.raises(ConfigError, match=r"droid, team/libero"):
        find_normalization(tmp_path)
    one, two = (find_normalization(tmp_path, asset).maps for asset in ("droid", "team/libero"))
    assert one != two
    with pytest.raises(ConfigError, match="norm_asset"):
        find_normalization(tmp_path, "none")
    (tmp_path / "model.safetensors").touch()
    assert find_normalization(tmp_path / "model.safetensors", "droid").maps == one


# -- LeRobot ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["QUANTILES", "QUANTILE10", "MIN_MAX", "MEAN_STD", "IDENTITY"])
def test_lerobot_modes_are_its_formulas(tmp_path: Path, mode: str) -> None:
    states, actions = values()
    own = normalizer(write_lerobot(tmp_path, mode))
    figures = {name: np.array(each, np.float32) for name, each in FIGURES["state"].items()}
    if mode == "MEAN_STD":
        expected = (states - figures["mean"]) / (figures["std"] + 1e-8)
    elif mode == "IDENTITY":
        expected = states
    else:
        more = 1 if mode == "MIN_MAX" else 0
        low = figures["q01"] - more
        high = figures["q99"] + more
        expected = 2 * (states - low) / (high - low) - 1
    found = own.states(batch(states, actions), torch.from_numpy(states)).numpy()
    np.testing.assert_allclose(found, expected, atol=3e-5)


def test_lerobot_differences_must_be_those_of_the_run(tmp_path: Path) -> None:
    write_lerobot(tmp_path, relative={"enabled": True})
    assert find_normalization(tmp_path).delta == (0, 1)
    assert normalizer(tmp_path, delta=(0, 1)).arrays()["delta"] == [[True, True, False]]
    with pytest.raises(ConfigError, match=r"\[0, 1\]"):
        normalizer(tmp_path)
    write_lerobot(tmp_path / "off")
    with pytest.raises(ConfigError, match="delta_action_dims"):
        normalizer(tmp_path / "off", delta=(0,))


def test_lerobot_processors_that_disagree_are_refused(tmp_path: Path) -> None:
    write_lerobot(tmp_path)
    file = tmp_path / "policy_postprocessor_step_2_unnormalizer_processor.safetensors"
    save_file({"action.q01": np.zeros(3, np.float32), "action.q99": np.ones(3, np.float32)}, file)
    with refused(
        "policy_preprocessor.json", "policy_postprocessor.json", "'action'", kind=ConfigError
    ):
        find_normalization(tmp_path)


@pytest.mark.parametrize("damage", ["no file", "no statistics", "two steps", "text", "mode"])
def test_lerobot_damage_is_named(tmp_path: Path, damage: str) -> None:
    path = write_lerobot(tmp_path) / "policy_preprocessor.json"
    content = json.loads(path.read_text())
    if damage == "no file":
        (tmp_path / content["steps"][2]["state_file"]).unlink()
    elif damage == "no statistics":
        del content["steps"][2]["state_file"]
    elif damage == "two steps":
        content["steps"].append(content["steps"][2])
    elif damage == "mode":
        content["steps"][2]["config"]["norm_map"]["STATE"] = "OTHER"
    path.write_text("text" if damage == "text" else json.dumps(content))
    with pytest.raises(ConfigError, match=r"policy_preprocessor\.json"):
        find_normalization(tmp_path)


def test_lerobot_files_outside_of_the_folder_are_not_read(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "weights") / "policy_preprocessor.json"
    name = "policy_preprocessor_step_2_normalizer_processor.safetensors"
    (tmp_path / "weights" / name).rename(tmp_path / name)
    path.write_text(path.read_text().replace(name, f"../{name}"))
    with refused(path, f"../{name}", kind=ConfigError):
        find_normalization(tmp_path / "weights")


# -- bins at the ends ------------------------------------------------------------------------------


@given(
    low=st.floats(-1e4, 1e4, width=32),
    size=st.one_of(st.just(0.0), st.floats(2.0**-20, 2.0**14, width=32)),
    openpi=st.booleans(),
)
# half of 1e-8 is 85 steps of float32 here
@example(low=float(np.float32(0.0005)), size=0.0, openpi=False)
def test_the_smallest_state_is_in_bin_0(low: float, size: float, openpi: bool) -> None:
    """A rounding below -1 would change the text from "0" to "-1"; constant dimensions become -1,
    too.
    """
    high = float(np.float32(low + size))
    width = high - low
    eps = 1e-6 if openpi else (1e-8 if width == 0 else 0)
    maps = map_range(np.array([low]), np.array([high]), np.array([width + eps]))
    x = torch.tensor([[low], [high]], dtype=torch.float32)
    own = Normalizer({ACTION: maps}, {ACTION: 1}).action.normalize(x).numpy()
    assert own[0, 0] >= -1
    assert state_bins(own)[0, 0] == 0
    if width > 1e-3 * max(1, abs(low)):
        assert own[0, 0] == pytest.approx(-1, abs=1e-3)
        assert own[1, 0] == pytest.approx(1, abs=3e-3)


def test_plain_rounding_would_leave_bin_0() -> None:
    """The control of the test above: middle and half of the range, rounded to float32, put some
    minima below -1.
    """
    low = np.random.default_rng(0).uniform(-10, 10, 2000).astype(np.float32).astype(np.float64)
    high = low + np.random.default_rng(1).uniform(0.1, 3, 2000)
    offset = ((low + high) / 2).astype(np.float32)
    spread = ((high - low) / 2).astype(np.float32)
    assert (state_bins((low.astype(np.float32) - offset) / spread) < 0).any()


def maps_of_data(low: np.ndarray, high: np.ndarray, mode: Mode) -> dict[str, Any]:
    """Normalization as `data/stats` computes it; dimension 0 is constant, two heads."""
    names = ("mean", "std", "min", "max", "q01", "q99")
    figures = dict(
        zip(names, ((low + high) / 2, (high - low) / 4, low, high, low, high), strict=True)
    )
    maps = {
        name: row.tolist()
        for name, row in offset_and_spread(Statistics(100, **figures), mode).items()
    }
    two = {name: [row, row] for name, row in maps.items()}
    return {"heads": ["a", "b"], STATE: two, ACTION: two}


@pytest.mark.parametrize("mode", ["quantile", "min_max"])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_lowest_state_of_data_is_in_bin_0(mode: Mode, scale: float) -> None:
    """Control: with the maps as computed, some lowest states have the bin -1."""
    rng = np.random.default_rng(0)
    low = (rng.uniform(-10, 10, 4000) * scale).astype(np.float32).astype(np.float64)
    high = low + (rng.uniform(0.01, 3, 4000) * scale).astype(np.float32)
    high[0] = low[0]
    given = maps_of_data(low, high, mode)
    found = NormalizationSettings().choose_normalization(given)

    def bins(maps: Any, values: np.ndarray, head: int) -> np.ndarray:
        normalizer = Affine(maps[STATE]["offset"], maps[STATE]["spread"])
        return state_bins(
            normalizer.normalize(torch.tensor(values[None]), torch.tensor([head])).numpy()
        )[0]

    for head in (0, 1):
        assert (bins(given, low, head)[1:] < 0).any()
        assert (bins(found, low, head)[1:] == 0).all()
        below = low - 0.02 * (high - low)
        assert (bins(found, below, head)[1:] == -1).all()
        assert (bins(found, high, head)[1:] >= 254).all()
        assert bins(found, low, head)[0] == bins(given, low, head)[0] == 128  # a constant is 0
    assert found[ACTION] is given[ACTION]
    one, two = (np.array(maps[STATE]["offset"]) for maps in (given, found))
    assert np.abs(one - two).max() <= 8 * np.spacing(np.float32(np.abs(one).max()))
    assert found[STATE]["spread"] == given[STATE]["spread"]
    assert NormalizationSettings(type="pi0").choose_normalization(given) is given


# -- the choice ------------------------------------------------------------------------------------


def test_the_choice_is_never_silent(tmp_path: Path) -> None:
    given = computed()
    own = NormalizationSettings().choose_normalization(given)
    assert own[ACTION] is given[ACTION]
    np.testing.assert_allclose(own[STATE]["offset"], given[STATE]["offset"], rtol=1e-6)
    beside = NormalizationSettings(weights=str(tmp_path))
    with refused("--policy.normalization", kind=ConfigError):
        beside.choose_normalization(given)
    assert (
        NormalizationSettings(weights=str(tmp_path), normalization="data").choose_normalization(
            given
        )
        == own
    )
    write_openpi(tmp_path)
    quantiles = beside.choose_normalization(given)[ACTION]
    deviations = NormalizationSettings(weights=str(tmp_path), type="pi0").choose_normalization(
        given
    )[ACTION]
    assert (
        quantiles["offset"]
        == fit_normalization(find_normalization(tmp_path), given)[ACTION]["offset"]
    )
    assert deviations["offset"] == [FIGURES["actions"]["mean"]]


@pytest.mark.parametrize(
    "options",
    [{"heads": ("a", "b")}, {"widths": {ACTION: 4, STATE: 2}}, {"widths": {ACTION: 3, STATE: 1}}],
)
def test_another_robot_is_refused(tmp_path: Path, options: Any) -> None:
    found = find_normalization(write_openpi(tmp_path))
    with pytest.raises(ConfigError, match="norm_stats"):
        fit_normalization(found, computed(**options))


def test_a_missing_key_is_refused(tmp_path: Path) -> None:
    found = find_normalization(write_openpi(tmp_path, {"actions": FIGURES["actions"]}))
    with pytest.raises(ConfigError, match=r"observation\.state"):
        fit_normalization(found, computed())


@pytest.mark.parametrize(
    "change",
    [
        {"q01": None},
        {"q99": [1.0]},
        {"q01": [float("nan"), 0.0]},
        {"q01": [5.0, 500.0]},
        {"q01": "text"},
    ],
)
def test_openpi_figures_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    broken = FIGURES | {"state": FIGURES["state"] | change}
    with pytest.raises(ConfigError, match="'state'"):
        find_normalization(write_openpi(tmp_path, broken))


def test_an_own_folder_keeps_every_bit(tmp_path: Path) -> None:
    stored = computed() | {ACTION: {"offset": [[0.1, 0.2, 0.3]], "spread": [[1.0, 2.0, 0.0]]}}
    (tmp_path / "normalisation.json").write_text(json.dumps(stored))
    found = fit_normalization(find_normalization(tmp_path), computed(heads=("other",)))
    assert found == stored | {"heads": ["other"]}
    with refused("'action'", [4], kind=ConfigError):
        fit_normalization(find_normalization(tmp_path), computed(widths={ACTION: 4, STATE: 2}))
    with refused("data.delta_action_dims", kind=ConfigError):
        fit_normalization(find_normalization(tmp_path), computed(delta=(1,)))


def test_missing_weights_are_named_as_such(tmp_path: Path) -> None:
    with refused("policy.weights", tmp_path / "nowhere", kind=ConfigError):
        find_normalization(tmp_path / "nowhere")


def test_a_run_has_one_start() -> None:
    config = TrainConfig(policy=Pi05Settings(size="tiny", weights="one"))
    assert not any("init_from" in line for line in config.problems())
    assert any("init_from" in line for line in replace(config, init_from="two").problems())
    assert not any(
        "init_from" in line
        for line in replace(config, init_from="two", policy=Pi05Settings()).problems()
    )


# -- figures of padding, and of no numbers ---------------------------------------------------------


def wide(**last: float) -> dict[str, Any]:
    """Figures with a fourth action whose own figures are `last`, 0 where they have none."""
    entry = {name: [*row, last.get(name, 0.0)] for name, row in FIGURES["actions"].items()}
    return {**FIGURES, "actions": entry}


@pytest.mark.parametrize("quantiles", [True, False])
@pytest.mark.parametrize(
    "last", [{"q99": 0.5}, {"std": 0.2}, {"mean": 1e-3}, {"q01": -0.5, "q99": 0.5, "std": 1.0}]
)
def test_a_dimension_with_one_figure_of_its_own_is_no_padding(
    tmp_path: Path, last: dict[str, float], quantiles: bool
) -> None:
    """Whatever figures the type of policy is normalized by."""
    write_openpi(tmp_path, wide(**last))
    with refused("action", kind=ConfigError):
        fit_normalization(find_normalization(tmp_path, quantiles=quantiles), computed())


@pytest.mark.parametrize(
    "last", [{}, {"std": 1.0}, {"std": 1.0, "q01": -1.0, "q99": 1.0}, {"q01": -1e-10, "q99": 1e-10}]
)
def test_a_dimension_whose_figures_are_all_neutral_is_padding(
    tmp_path: Path, last: dict[str, float]
) -> None:
    write_openpi(tmp_path, wide(**last))
    fit_normalization(find_normalization(tmp_path), computed())


@pytest.mark.parametrize("mode", ["MEAN_STD", "QUANTILES", "MIN_MAX", "IDENTITY"])
def test_lerobot_recognises_padding_by_figures_that_its_mode_does_not_use(
    tmp_path: Path, mode: str
) -> None:
    write_lerobot(tmp_path, mode)
    rest = {
        "mean": 0.0,
        "std": 0.0,
        "q01": 0.0,
        "q99": 0.0,
        "q10": 0.0,
        "q90": 0.0,
        "min": 0.0,
        "max": 0.0,
    }
    for own, is_real in ((rest, False), (rest | {"max": 2.0}, True)):
        for path in tmp_path.glob("*.safetensors"):
            stats = load_file(path)
            for name, value in own.items():
                stats[f"{ACTION}.{name}"] = np.append(
                    stats[f"{ACTION}.{name}"][:3], np.float32(value)
                )
            save_file(stats, path)
        for path in tmp_path.glob("*.json"):
            path.write_text(path.read_text().replace('"shape": [3]', '"shape": [4]'))
        if is_real:
            with refused(ACTION, kind=ConfigError):
                fit_normalization(find_normalization(tmp_path), computed())
        else:
            fit_normalization(find_normalization(tmp_path), computed())


@pytest.mark.parametrize("value", [True, "1.5", None, float("nan"), float("inf")])
@pytest.mark.parametrize("figure", ["q01", "q99"])
def test_a_figure_that_is_no_number_is_refused_by_name(
    tmp_path: Path, figure: str, value: Any
) -> None:
    figures = {
        **FIGURES,
        "state": {**FIGURES["state"], figure: [FIGURES["state"][figure][0], value]},
    }
    write_openpi(tmp_path, figures)
    with pytest.raises(ConfigError) as caught:
        find_normalization(tmp_path)
    assert figure in str(caught.value)
    assert "state" in str(caught.value)


def test_a_negative_deviation_and_a_short_figure_are_refused_by_name(tmp_path: Path) -> None:
    for number, (figure, row) in enumerate(
        (("std", [2.0, -0.25]), ("mean", [0.5]), ("std", [[2.0], [0.25, 1.0]]))
    ):
        folder = write_openpi(
            tmp_path / str(number), {**FIGURES, "state": {**FIGURES["state"], figure: row}}
        )
        with pytest.raises(ConfigError, match=figure):
            find_normalization(folder, quantiles=False)


def test_booleans_of_a_state_file_of_lerobot_are_refused(tmp_path: Path) -> None:
    write_lerobot(tmp_path, "MEAN_STD")
    for path in tmp_path.glob("*preprocessor*.safetensors"):
        save_file(load_file(path) | {f"{STATE}.std": np.array([True, True])}, path)
    with refused("std", kind=ConfigError):
        find_normalization(tmp_path)


# -- LeRobot's masks -------------------------------------------------------------------------------


def mask(folder: Path, masked: bool) -> None:
    """Add the figure `mask` to the steps; only a masked normalizer heeds it."""
    for path in folder.glob("*.safetensors"):
        stats = load_file(path)
        save_file(stats | {f"{ACTION}.mask": np.array([1, 1, 0], np.float32)}, path)
    for path in folder.glob("*.json") if masked else ():
        text = path.read_text().replace(
            '"unnormalizer_processor"', '"molmoact2_masked_unnormalizer"'
        )
        path.write_text(text.replace('"normalizer_processor"', '"molmoact2_masked_normalizer"'))


@pytest.mark.parametrize("mode", ["MEAN_STD", "QUANTILES"])
def test_a_mask_of_lerobot_leaves_its_dimensions_as_they_are(tmp_path: Path, mode: str) -> None:
    plain = find_normalization(write_lerobot(tmp_path / "plain", mode)).maps[ACTION]
    for name, masked in (("ignored", False), ("masked", True)):
        mask(write_lerobot(tmp_path / name, mode), masked)
        found = find_normalization(tmp_path / name).maps[ACTION]
        assert found["offset"][:2] == plain["offset"][:2]
        assert (found["offset"][2], found["spread"][2]) == (
            (0, 1) if masked else (plain["offset"][2], plain["spread"][2])
        )


def test_lerobot_normalizes_the_observations_of_its_list_alone(tmp_path: Path) -> None:
    write_lerobot(tmp_path, "MEAN_STD")
    for path in tmp_path.glob("*.json"):
        path.write_text(
            path.read_text().replace('"eps": ', '"normalize_observation_keys": ["other"], "eps": ')
        )
    found = find_normalization(tmp_path).maps
    assert found[STATE] == {"offset": [0.0, 0.0], "spread": [1.0, 1.0]}
    assert found[ACTION]["spread"][0] == 1.0


def test_identity_keeps_to_the_bit_where_lower_ends_are_kept() -> None:
    given = computed()
    given[STATE] = {"offset": [[0.0, 3.0]], "spread": [[1.0, 2.0]]}
    made = NormalizationSettings().choose_normalization(given)
    assert (made[STATE]["offset"][0][0], made[STATE]["spread"][0][0]) == (0.0, 1.0)
