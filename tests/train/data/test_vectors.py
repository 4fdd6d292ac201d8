"""Actions and states of every width and type that datasets hold: one number, doubles, names in any form."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from support.datasets import Spec, edit_json, write_dataset
from support.runs import series, tiny_config
from understudy.data.dataset import EpisodeDataset
from understudy.policies.flow.model import FlowPolicy
from understudy.report.run.tables import told, with_error
from understudy.train.data.data import open_data
from understudy.train.run import DONE, judge, train


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_a_robot_of_one_joint_trains_validates_and_is_exported(tmp_path: Path, version: str) -> None:
    """A vector of shape (1,) is stored as a plain column, and is a vector of one number to a policy."""
    spec = Spec(version=version, lengths=(9, 7, 11, 8, 6), action_dim=1, state_dim=1, gop=4)
    truth = write_dataset(tmp_path / "d", spec)
    config = tiny_config(tmp_path / "d", tmp_path / "run", steps=4, val_open_loop=2)
    data = open_data(config)
    batch = data.training[0].batch(*data.training[0].locate([0, 3]))
    assert (tuple(batch["action"].shape), tuple(batch["observation.state"].shape)) == ((2, 3, 1), (2, 1))
    episode = int(batch["episode_index"][0])
    assert batch["action"][0].tolist() == truth.rows[episode]["action"][:3].tolist()
    assert train(config) == DONE
    assert np.isfinite([record["loss"] for record in series(tmp_path / "run")]).all()
    assert list(judge(tmp_path / "run")["open_loop"]["sources"]["d"]["mse"]) == ["0"]
    policy = FlowPolicy.load(tmp_path / "run/policy")
    assert (policy.config.action_dim, policy.config.state_dim) == (1, 1)


def test_a_dataset_of_doubles_trains(tmp_path: Path) -> None:
    """Samples are of the declared type; a policy computes in its own."""
    write_dataset(tmp_path / "d", Spec(lengths=(9, 7, 11, 8, 6), stored_double=True, gop=4))

    def doubles(info: dict) -> None:
        for key in ("action", "observation.state"):
            info["features"][key]["dtype"] = "float64"

    edit_json(tmp_path / "d/meta/info.json", doubles)
    data = EpisodeDataset(tmp_path / "d")
    assert {data[0][key].dtype for key in ("action", "observation.state")} == {torch.float64}
    config = tiny_config(tmp_path / "d", tmp_path / "run", steps=3)
    assert train(config) == DONE
    assert np.isfinite([record["loss"] for record in series(tmp_path / "run")]).all()
    assert judge(tmp_path / "run")["samples"] == sum(len(part) for part in open_data(config).held_out if part)


def test_joints_of_other_datasets_names_are_told_in_validation(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(9, 7, 11, 8, 6), gop=4))
    nested = [["waist", "wrist"]]
    edit_json(tmp_path / "d/meta/info.json", lambda info: info["features"]["action"].update(names=nested))
    config = replace(tiny_config(tmp_path / "d", tmp_path / "run"), steps=2, val_open_loop=2)
    assert train(config) == DONE
    result = judge(tmp_path / "run", per_dim=True)
    assert list(result["open_loop"]["sources"]["d"]["mse"]) == nested[0]
    assert list(result["sources"]["d"]["dims"]) == nested[0]
    never = {**result["open_loop"]["sources"]["d"], "mse": {"waist": 0.1, "wrist": 0.0, "hip": 0.0}}
    never["mae"] = {"waist": 0.2, "wrist": 0.0, "hip": 1e-30}
    assert with_error(never) == ["waist", "hip"]  # a table has one line for all the others
    shown = told({**result, "open_loop": {**result["open_loop"], "sources": {"d": never}}})
    *_, last = shown.splitlines()
    assert last.split()[0] == "1"
