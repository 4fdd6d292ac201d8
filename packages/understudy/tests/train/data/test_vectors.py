"""Actions and states of every width and type that datasets hold: one number, doubles, names in any
form.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from understudy.policies.flow.model import FlowPolicy
from understudy.report.run.tables import format_validation, with_error
from understudy.testing.runs import series, tiny_config
from understudy.train.data.run_data import open_data
from understudy.train.run import DONE, evaluate_checkpoint, train
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.testing.datasets import Spec, edit_json, write_dataset
from understudy_kit import override


def test_a_robot_of_one_joint_trains_validates_and_is_exported(tmp_path: Path) -> None:
    """A vector of shape (1,) is stored as a plain column, and is a vector of one number to a
    policy.
    """
    spec = Spec(lengths=(9, 7, 11, 8, 6), action_dim=1, state_dim=1, gop=4)
    truth = write_dataset(tmp_path / "d", spec)
    config = tiny_config(tmp_path / "d", tmp_path / "run", steps=4, val={"open_loop_every": 2})
    data = open_data(config)
    batch = data.training[0].batch(*data.training[0].locate([0, 3]))
    assert (tuple(batch["action"].shape), tuple(batch["observation.state"].shape)) == (
        (2, 3, 1),
        (2, 1),
    )
    episode = int(batch["episode_index"][0])
    assert batch["action"][0].tolist() == truth.rows[episode]["action"][:3].tolist()
    assert train(config) == DONE
    assert np.isfinite([record["loss"] for record in series(tmp_path / "run")]).all()
    assert list(evaluate_checkpoint(tmp_path / "run")["open_loop"]["sources"]["d"]["mse"]) == ["0"]
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
    assert evaluate_checkpoint(tmp_path / "run")["samples"] == sum(
        len(part) for part in open_data(config).validation if part
    )


@pytest.mark.long
def test_validation_names_the_joints_of_each_dataset(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(9, 7, 11, 8, 6), gop=4))
    nested = [["waist", "wrist"]]
    edit_json(
        tmp_path / "d/meta/info.json", lambda info: info["features"]["action"].update(names=nested)
    )
    config = override(
        tiny_config(tmp_path / "d", tmp_path / "run"), steps=2, val={"open_loop_every": 2}
    )
    assert train(config) == DONE
    result = evaluate_checkpoint(tmp_path / "run", per_dim=True)
    assert list(result["open_loop"]["sources"]["d"]["mse"]) == nested[0]
    assert list(result["sources"]["d"]["dims"]) == nested[0]
    never = {**result["open_loop"]["sources"]["d"], "mse": {"waist": 0.1, "wrist": 0.0, "hip": 0.0}}
    never["mae"] = {"waist": 0.2, "wrist": 0.0, "hip": 1e-30}
    assert with_error(never) == ["waist", "hip"]  # a table has one line for all the others
    shown = format_validation(
        {**result, "open_loop": {**result["open_loop"], "sources": {"d": never}}}
    )
    *_, last = shown.splitlines()
    assert last.split()[0] == "1"
