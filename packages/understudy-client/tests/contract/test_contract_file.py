"""contract.json: written, read back to the bit, completed by statements, and open facts listed."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from understudy_base import ConfigError, DatasetError
from understudy_base.testing.refusals import refused
from understudy_client.contract.camera_print import SIDE, CameraPrint, shrink
from understudy_client.contract.facts import (
    CameraFacts,
    Contract,
    RobotFacts,
    VectorFacts,
    figures_digest,
)
from understudy_client.contract.mismatch import Mismatch
from understudy_client.testing.arm import NAMES, arm_contract

FAULT = Mismatch("weights", "", "a", "b", "c")
UNKNOWN = Contract(
    {
        "": RobotFacts(
            np.nan, 0, "", "", VectorFacts.unmeasured("", ()), VectorFacts.unmeasured("", ()), {}
        )
    },
    kind="robot",
)


@pytest.mark.parametrize(
    "contract",
    [
        arm_contract(),
        replace(arm_contract(), kind="dataset", weights="a" * 64, faults=(FAULT,)),
        Contract({"": replace(arm_contract().robots["arm"], state=None)}),
        UNKNOWN,
    ],
)
def test_a_contract_comes_back_to_the_bit(contract: Contract, tmp_path: Path) -> None:
    contract.write(tmp_path / Contract.FILE)
    found = Contract.read_folder(tmp_path)
    assert found is not None
    assert found.to_json() == contract.to_json()
    assert (found.kind, found.weights, found.faults) == (
        contract.kind,
        contract.weights,
        contract.faults,
    )
    found.write(tmp_path / "second.json")
    Contract.read(tmp_path / "second.json").write(tmp_path / "third.json")
    assert (tmp_path / "third.json").read_bytes() == (tmp_path / "second.json").read_bytes()


def test_a_vector_is_one_line(tmp_path: Path) -> None:
    """So a difference of two files shows the vectors that differ."""
    arm_contract().write(tmp_path / Contract.FILE)
    lines = (tmp_path / Contract.FILE).read_text().splitlines()
    (names, *others) = [line for line in lines if '"names":' in line]
    assert json.loads(re.sub(r",$", "", names.partition(":")[2])) == list(NAMES)
    assert len(others) == 3  # state and action of two robots


def test_a_folder_without_a_contract_has_none(tmp_path: Path) -> None:
    assert Contract.read_folder(tmp_path) is None


def test_a_new_file_replaces_none(tmp_path: Path) -> None:
    (tmp_path / Contract.FILE).write_text("mine")
    with pytest.raises(FileExistsError):
        arm_contract().write(tmp_path / Contract.FILE, is_new=True)
    assert (tmp_path / Contract.FILE).read_text() == "mine"


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff", b"nul", b"[" * 100_000, b'{"version": 2}']
)
def test_a_file_that_is_no_contract_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / Contract.FILE).write_bytes(content)
    with refused(str(tmp_path / Contract.FILE), kind=ConfigError):
        Contract.read(tmp_path / Contract.FILE)


def test_statements_of_a_dataset_are_read_or_refused() -> None:
    stored = json.loads(json.dumps(arm_contract().to_json()))
    assert RobotFacts.read_stated(stored, "meta/contract.json").to_json() == stored["robots"]["arm"]
    for damage in ({"version": 1}, {"robots": {}}, {"robots": {"": {}}}):
        with refused(where="meta/contract.json", fix="understudy contract", kind=DatasetError):
            RobotFacts.read_stated({**stored, **damage}, "meta/contract.json")


def test_open_facts_are_listed_by_their_places() -> None:
    places = set(UNKNOWN.unknowns())
    assert {
        'robots."".fps',
        'robots."".state.units',
        'robots."".action.gripper',
        "weights",
    } <= places
    known = set(arm_contract().unknowns())
    assert {"robots.arm.state.units", "weights"} <= known
    assert "robots.arm.fps" not in known


def test_statements_complete_a_contract() -> None:
    """Facts of the recordings stay, unknown ones come from the statement; other names make no
    statement.
    """
    arm = arm_contract().robots["arm"]
    assert arm.state is not None
    known = {"units": ("deg",) * 7, "gripper": {"gripper": (0.8, 0.0)}, "frame": "base"}
    camera = replace(arm.cameras["observation.images.front"], color="RGB", role="front")
    state = replace(arm.state, **known)  # type: ignore[arg-type]
    stated = replace(arm, state=state, cameras={"top": camera}, episodes=9)
    state = replace(arm.state, units=("rad",) * 7)
    action = VectorFacts.unmeasured("action", ("a", "b"))
    mixed = replace(arm, fps=np.nan, state=state, action=action, robot_type="", chunk=4)
    done = mixed.completed(stated)
    assert (done.fps, done.robot_type, done.chunk, done.episodes) == (30, "arm", 4, 9)
    assert done.state is not None
    assert (done.state.units, done.state.gripper, done.state.frame) == (
        state.units,
        known["gripper"],
        "base",
    )
    assert np.array_equal(done.state.figures["std"], state.figures["std"])
    assert done.action is action
    assert done.cameras["observation.images.front"].color == "RGB"  # by the key of the recordings
    assert done.cameras["observation.images.wrist_left"].color == ""


def test_vectors_have_figures_and_names_of_one_width() -> None:
    figures = arm_contract().robots["arm"].action.figures
    for changes in ({"units": ("rad",)}, {"roles": ("joint",) * 8}, {"references": ("state",)}):
        with refused("joints", kind=ValueError):
            VectorFacts("joints", NAMES, figures, **changes)
    with refused("joints", kind=ValueError):
        VectorFacts("joints", NAMES[:3], figures)
    numbered = VectorFacts.unmeasured("joints", ("", "", ""))
    assert (numbered.names, numbered.is_unnamed, numbered.width) == (("0", "1", "2"), True, 3)


def test_stored_figures_of_another_width_are_unknown() -> None:
    figures = {"mean": [1.0, 2.0], "std": [0.5, 0.5], "min": [0.0], "max": None}
    vector = VectorFacts.from_figures("joints", figures, 2, "external", "mean_std")
    assert vector.figures["mean"].tolist() == [1, 2]
    assert np.isnan(vector.figures["min"]).all()
    assert vector.normalization.digest == figures_digest(
        {"mean": np.array([1, 2.0]), "std": np.array([0.5, 0.5])}
    )
    assert vector.low.tolist() == [-1, 0]  # four deviations below the mean
    assert VectorFacts.unmeasured("joints", NAMES).normalization.digest == ""


def test_the_digest_of_figures_knows_names_and_numbers() -> None:
    figures = {"mean": np.array([1.0, 2.0]), "std": np.array([0.5, 0.25])}
    digest = figures_digest(figures)
    assert digest == figures_digest(
        {name: values.astype(">f8") for name, values in reversed(figures.items())}
    )
    assert digest != figures_digest({"mean": figures["std"], "std": figures["mean"]})
    assert digest != figures_digest({**figures, "std": figures["std"] + 1e-3})


def test_images_become_a_print_of_cells() -> None:
    image = np.zeros((32, 48, 3), np.uint8)
    image[:16, :24] = (10, 20, 30)
    grid = shrink(image)
    assert grid.shape == (SIDE, SIDE, 3)
    assert grid[0, 0].tolist() == [10, 20, 30]
    assert (grid[8:] == 0).all()
    assert np.allclose(grid.mean((0, 1)), image.mean((0, 1)))
    with pytest.raises(ValueError):
        CameraPrint.of_images([])
    camera = CameraFacts("cam", (32, 48), CameraPrint.of_images([grid] * 4))
    assert (
        CameraFacts.from_json(json.loads(json.dumps(camera.to_json()))).to_json()
        == camera.to_json()
    )
