"""meta/contract.json of recorded and edited datasets: the facts that are known for certain, and
still so.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("mujoco", reason="the extra `demo` is not installed")

from understudy.train.data.input_contract import dataset_contract
from understudy_base.testing.refusals import refused
from understudy_client import Contract, RobotFacts
from understudy_robot.cli.record import RecordConfig, record
from understudy_robot.envs.registry import open_env
from understudy_robot.rollout.env_contract import env_contract
from understudy_tools.cli.edit import EditConfig, edit

FRONT = "observation.images.front"
STATE = "observation.state"
ACTION = "action"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stated") / "recorded"
    assert record(RecordConfig(output_dir=str(root), episodes=2, image_size=32)) == 0
    return root


def stated(root: Path) -> RobotFacts:
    contract = Contract.read_folder(root / "meta")
    assert contract is not None
    assert contract.kind == "dataset"
    return contract.robots[""]


def edited(out: Path, *sources: Path, **options: object) -> Path:
    edit(EditConfig(paths=(*map(str, sources), str(out)), **options))  # type: ignore[arg-type]
    return out


def test_a_recording_states_the_facts_of_its_environment(recorded: Path) -> None:
    robot = stated(recorded)
    known = env_contract(open_env("tabletop", 32)).robots[""]
    assert robot.to_json() == replace(known, robot_type="tabletop", tasks=()).to_json()
    read = dataset_contract(str(recorded)).robots[""]
    assert read.action.references == ("state", "state", "state", "absolute")
    assert read.action.gripper == {"grip": (1.0, -1.0)}
    assert (read.cameras[FRONT].role, read.cameras[FRONT].size, read.cameras[FRONT].color) == (
        "front",
        (32, 32),
        "RGB",
    )
    assert (read.fps, read.episodes) == (10.0, 2)


def test_an_edit_states_its_own_keys_sizes_and_robot(recorded: Path, tmp_path: Path) -> None:
    before = stated(recorded)
    options = {
        "size": "16",
        "rename": (f"{FRONT}=observation.images.top", f"{STATE}=state"),
        "robot_type": "arm",
    }
    after = stated(edited(tmp_path / "out", recorded, **options))
    top = after.cameras["observation.images.top"]
    assert (list(after.cameras), top.key, top.size, top.role) == (
        [top.key],
        top.key,
        (16, 16),
        "front",
    )
    assert (after.robot_type, after.fps) == ("arm", before.fps)
    assert after.state is not None
    assert before.state is not None
    assert (after.state.key, after.state.units, after.action.gripper) == (
        "state",
        before.state.units,
        before.action.gripper,
    )
    dropped = stated(edited(tmp_path / "dropped", recorded, drop_features=(FRONT, STATE)))
    assert (dropped.cameras, dropped.state) == ({}, None)
    assert stated(edited(tmp_path / "twice", tmp_path / "out")).to_json() == after.to_json()


def test_sources_that_differ_or_are_silent_state_nothing(recorded: Path, tmp_path: Path) -> None:
    other = edited(tmp_path / "other", recorded)
    assert stated(edited(tmp_path / "same", recorded, other)).to_json() == stated(other).to_json()
    robot = stated(other)
    camera = replace(robot.cameras[FRONT], orientation="mirrored")
    mirrored = Contract({"": replace(robot, cameras={FRONT: camera})}, kind="dataset")
    mirrored.write(other / "meta" / "contract.json")
    assert not (edited(tmp_path / "differing", recorded, other) / "meta" / "contract.json").exists()
    (other / "meta" / "contract.json").unlink()
    assert not (edited(tmp_path / "silent", recorded, other) / "meta" / "contract.json").exists()
    (other / "meta" / "contract.json").write_text(json.dumps({"version": 2}))
    with refused("required", where="meta/contract.json"):
        edited(tmp_path / "damaged", other)
