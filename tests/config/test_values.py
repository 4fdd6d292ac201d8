"""Values that a conversion would take for something else: booleans, masks, ranges, texts, and lists
that are none.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import understudy as us
from understudy.config.data import DataConfig
from understudy.config.train import TrainConfig
from understudy_base import ConfigError, DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.recorded_stats import parse_stats
from understudy_data.order import Order
from understudy_data.order.make_spec import as_int
from understudy_data.order.random import check_seed
from understudy_data.process_rank import ProcessRank
from understudy_kit import load, read_file, validate
from understudy_kit.config.flags import read_flags
from understudy_tools.imports.settings import ImportMapping

NUMBERS = {
    "steps": True,
    "seed": False,
    "optim.lr": True,
    "optim.loss_weights": {"action": True},
    "optim.weight_decay": "0-2",
    "augment.text_dropout": True,
    "checkpoint.every": True,
    "val.every": False,
    "policy.width": True,
    "mode": {"policy": True},
    "data.val_fraction": True,
    "data.sources": [{"root": "d", "weight": True}],
    "data.prompt_metadata": {"quality": True},
    "batch_size": "6-4",
}
"""Setting of a number -> a value that pydantic would take for one."""


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return a mapping with `value` at a dotted path."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize("suffix", ["json", "yaml", "toml"])
@pytest.mark.parametrize(("path", "value"), NUMBERS.items())
def test_a_boolean_in_a_file_is_no_number(
    path: str, value: Any, suffix: str, tmp_path: Path
) -> None:
    content = nested(path, value)
    file = tmp_path / f"c.{suffix}"
    if suffix == "toml":
        *groups, name = path.split(".")
        table = f"[{'.'.join(groups)}]\n" if groups else ""
        shown = json.dumps(value)
        if isinstance(value, dict):
            shown = (
                "{" + ", ".join(f"{key} = {json.dumps(item)}" for key, item in value.items()) + "}"
            )
        if isinstance(value, list):
            shown = "[{root = 'd', weight = true}]"
        file.write_text(f"{table}{name} = {shown}\n")
    else:
        file.write_text(json.dumps(content) if suffix == "json" else yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=path) as caught:
        load(TrainConfig, file)
    assert "number" in str(caught.value)


def test_settings_of_python_are_checked_as_those_of_a_file(tmp_path: Path) -> None:
    dims = (True, True, False)
    data = DataConfig(root=str(tmp_path), delta_action_dims=dims)  # type: ignore[arg-type]
    config = TrainConfig(steps=True, data=data)
    for given in (config, {"steps": True, "data": {"delta_action_dims": [True, False]}}):
        with refused("steps", "delta_action_dims", kind=ConfigError):
            us.train(given)


def test_numbers_of_python_and_yaml_stay_numbers(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "optim: {lr: 1e-3, weight_decay: 1}\nsteps: 20.0\nbatch_size: 1_0\n"
    )
    config = load(TrainConfig, tmp_path / "c.yaml")
    assert (config.optim.lr, config.optim.weight_decay, config.steps, config.batch_size) == (
        1e-3,
        1.0,
        20,
        10,
    )
    line = (
        "--optim.lr 1e-3 --steps 20 --optim.grad-clip-norm inf --optim.beta1 .5 "
        "--rollout.prompt-metadata ok true"
    )
    read = read_flags(TrainConfig, line.split(), {})
    assert (read.optim.lr, read.steps, read.optim.grad_clip_norm, read.optim.beta1) == (
        1e-3,
        20,
        float("inf"),
        0.5,
    )
    assert (
        validate(
            TrainConfig, {"optim": {"lr": "+1.5E-4"}, "compile": True, "val": {"every": "7"}}
        ).val.every
        == 7
    )


@pytest.mark.parametrize(
    "name", ["episodes", "exclude_episodes", "val_episodes", "delta_action_dims"]
)
def test_a_mask_is_no_list_of_numbers(name: str) -> None:
    with refused(f"data.{name}", "mask", "[0, 2]", kind=ConfigError):
        validate(TrainConfig, {"data": {name: [True, False, True]}})
    with refused(f"data.sources.0.{name}", "mask", kind=ConfigError):
        validate(TrainConfig, {"data": {"sources": [{"root": "d", name: [1, 1, 1, 0]}]}})
    for values in ([3, True], [5, 3, 5], ["0-4", 2], ["1", 1]):
        with pytest.raises(ConfigError, match=f"data.{name}"):
            validate(TrainConfig, {"data": {name: values}})


def test_a_list_that_is_wanted_is_called_a_list() -> None:
    for path, value in {
        "data.val_episodes": 0,
        "data.delta_action_dims": 2,
        "data.exclude_episodes": "0-2",
        "optim.freeze": "in_proj.*",
        "data.cameras": "front",
        "policy.image_size": 64,
    }.items():
        with refused(path, "list", kind=ConfigError):
            validate(TrainConfig, nested(path, value))
    with refused("--data.val-episodes", "'x'", kind=ConfigError):
        read_flags(TrainConfig, ["--data.val-episodes", "x"], {})


def test_ranges_of_episodes_are_their_ids_in_files_and_flags() -> None:
    read = validate(
        TrainConfig,
        {"data": {"exclude_episodes": ["0-2", 11, "5,7"], "delta_action_dims": ["0-3"]}},
    )
    assert read.data.exclude_episodes == (0, 1, 2, 11, 5, 7)
    assert read.data.delta_action_dims == (0, 1, 2, 3)
    words = ["--data.exclude-episodes", "0-11", "--data.val-episodes", "12,14", "20"]
    read = read_flags(TrainConfig, words, {})
    assert (read.data.exclude_episodes, read.data.val_episodes) == (tuple(range(12)), (12, 14, 20))
    for wrong in ("2-0", "0--2", "-3", "1-", "٣", "0-99999999", "1.5"):
        with refused("exclude", wrong, kind=ConfigError):
            read_flags(TrainConfig, ["--data.exclude-episodes", wrong], {})


BOMB = [
    "a: &a [x,x,x,x,x,x,x,x,x,x]",
    *(f"{n}: &{n} [{','.join(['*' + chr(ord(n) - 1)] * 10)}]" for n in "bcdefghij"),
]
MERGES = [
    "a: &a {k0: 1, k1: 1, k2: 1, k3: 1, k4: 1, k5: 1, k6: 1, k7: 1, k8: 1, k9: 1}",
    *(
        f"{n}: &{n} {{<<: [{','.join(['*' + chr(ord(n) - 1)] * 10)}], own_{n}: 1}}"
        for n in "bcdefghijklmno"
    ),
]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bomb.yaml", "\n".join([*BOMB, "data: {root: d, episodes: *j}"])),
        ("maps.yaml", "\n".join(line.replace("[", "{k: [").replace("]", "]}") for line in BOMB)),
        ("self.yaml", "data:\n  root: d\n  episodes: &e [0, *e]\n"),
        ("around.yaml", "a: &a {b: &b [{c: *a}, *b]}\n"),
        ("merges.yaml", "\n".join([*MERGES, "data: *o"])),
        ("deep.json", '{"a": ' + "[" * 900 + "]" * 900 + "}"),
        ("deep.yaml", "a: " + "[" * 200 + "]" * 200),
        ("deep.toml", "a = " + "[" * 200 + "]" * 200),
        ("deeper.json", "[" * 200_000),
    ],
)
def test_a_file_that_stands_for_too_much_is_refused(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    for cls in (TrainConfig, ImportMapping):
        with refused(name, kind=ConfigError):
            load(cls, tmp_path / name)


def test_shared_nodes_of_an_honest_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "data:\n  sources:\n"
        "  - &one {root: a, cameras: &c {front: cam0}, exclude_episodes: &x [1, '4-5']}\n"
        "  - {<<: *one, root: b}\n"
        "  - {root: c, cameras: *c, exclude_episodes: *x}\n"
    )
    sources = load(TrainConfig, tmp_path / "c.yaml").data.sources
    assert [source.root for source in sources] == ["a", "b", "c"]
    assert {source.exclude_episodes for source in sources} == {(1, 4, 5)}
    many = list(range(1_500_000))
    (tmp_path / "many.json").write_text(json.dumps({"episodes": many}))
    assert read_file(tmp_path / "many.json") == {"episodes": many}


def test_booleans_are_no_numbers_in_the_library(tmp_path: Path) -> None:
    features = {"action": {"dtype": "float32", "shape": (2,)}}
    with us.EpisodeWriter(tmp_path / "d", fps=10, features=features) as writer:
        for _ in range(3):
            writer.add_frame({"action": np.zeros(2, np.float32)}, "t")
            writer.save_episode()
    root = tmp_path / "d"
    for episodes in ([True, False, True], np.array([True, False, True]), [0, True], ["0-x"]):
        with pytest.raises(DatasetError, match="episodes"):
            us.EpisodeDataset(root, episodes=episodes)  # type: ignore[arg-type]
    assert us.EpisodeDataset(root, episodes=["0-1"]).num_episodes == 2  # type: ignore[list-item]
    data = us.EpisodeDataset(root)
    for arguments in (
        {"batch_size": True},
        {"batch_size": 1, "seed": True},
        {"batch_size": 1, "weights": [True]},
    ):
        with pytest.raises(ValueError, match="True"):
            us.choose_order([data], memory=1 << 28, **arguments)  # type: ignore[arg-type]
    order = Order.from_datasets([data], batch_size=1)
    with pytest.raises(ValueError, match="num_threads"):
        us.Loader([data], order=order, num_threads=True)
    for wrong in (
        {"fps": True, "features": features},
        {"fps": 10, "features": {"a": {**features["action"], "shape": [True]}}},
    ):
        with pytest.raises(ValueError, match="True"):
            us.EpisodeWriter(tmp_path / "e", **wrong)  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match="boolean"):
        parse_stats({"action": {"mean": [True, 0.0], "std": [1.0, 1.0]}}, "stats.json")
    for value in (True, np.True_):
        with pytest.raises(ValueError, match="True"):
            as_int("batch_size", value)
        with pytest.raises(ValueError, match="True"):
            check_seed(value)
    with pytest.raises(ConfigError):
        ProcessRank.find(False, True)


def test_numbers_of_numpy_are_settings() -> None:
    config = replace(TrainConfig(), steps=np.int64(5))
    with pytest.raises(ConfigError, match="root"):
        us.train(config)


def test_pairs_are_taken_with_an_equals_sign() -> None:
    read = read_flags(
        TrainConfig, ["--optim.loss-weights", "state=0.1", "action=2", "--mode", "policy=1"], {}
    )
    assert read.optim.loss_weights == {"state": 0.1, "action": 2.0}
    assert read.mode == {"policy": 1.0}
    with refused("--optim.loss-weights", kind=ConfigError):
        read_flags(TrainConfig, ["--optim.loss-weights", "state=0.1", "action"], {})


def test_a_flag_that_is_given_again_loses_nothing() -> None:
    twice = ["--optim.loss-weights", "state", "0", "--optim.loss-weights", "action=2"]
    assert read_flags(TrainConfig, twice, {}).optim.loss_weights == {"state": 0.0, "action": 2.0}
    assert read_flags(TrainConfig, ["--steps", "3", "--steps", "4"], {}).steps == 4
    with refused("--data.cameras", kind=ConfigError):
        read_flags(TrainConfig, ["--data.cameras", "a", "--data.cameras", "b"], {})
