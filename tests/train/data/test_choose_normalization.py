"""The normalization of a new run: its policy chooses between that of the data and that of weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from support.refusals import refused
from support.runs import tiny_config
from understudy.config.train import TrainConfig
from understudy.errors import ConfigError
from understudy.policies.registry import PolicySettings
from understudy.train.data.run_data import choose_normalization, compute_normalization, open_data


@dataclass(frozen=True, kw_only=True)
class Chooser(PolicySettings):
    NORMALIZE: ClassVar[Literal["mean_std", "min_max", "quantile"]] = "quantile"
    refuses: bool = False

    def choose_normalization(self, computed: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.refuses:
            raise ConfigError("policy.weights: robot_2")
        return {**computed, "chosen": True}


def test_the_default_mode_is_the_policys(data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, tmp_path)
    opened = open_data(config)
    assert config.data.normalize is None
    assert choose_normalization(config, opened) == compute_normalization(opened, "mean_std")
    other = replace(config, policy=Chooser())
    assert choose_normalization(other, opened) == compute_normalization(opened, "quantile") | {"chosen": True}
    named = replace(other, data=replace(config.data, normalize="min_max"))
    assert choose_normalization(named, opened) == compute_normalization(opened, "min_max") | {"chosen": True}


def test_the_resolved_settings_name_the_mode(data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, tmp_path)
    assert config.resolved().data.normalize == "mean_std"
    assert replace(config, policy=Chooser()).resolved().data.normalize == "quantile"
    assert TrainConfig(data=replace(config.data, normalize="min_max")).resolved().data.normalize == "min_max"


def test_weights_of_another_robot_stop_the_run(data: Path, tmp_path: Path) -> None:
    config = replace(tiny_config(data, tmp_path), policy=Chooser(refuses=True))
    with refused("robot_2", kind=ConfigError):
        choose_normalization(config, open_data(config))
