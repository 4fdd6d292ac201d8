"""Twelve mistakes of a deployment, through the server: each is refused or warned of by its kind and key."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import understudy as us
from support.arm import NAMES
from support.refusals import refused
from understudy.checksums import ChecksumError
from understudy.contract.declared import Declaration

pytest.importorskip("websockets", reason="needs the extra serve")
pytest.importorskip("msgpack", reason="needs the extra serve")

from support.mistakes import MISTAKES, half_loaded, named, sound
from support.serving import served
from understudy.serve.server import PolicyServer


@pytest.fixture(scope="module", params=["warn", "strict"])
def server(folder: Path, request: pytest.FixtureRequest) -> Iterator[PolicyServer]:
    with served(folder, contract=request.param) as running:
        yield running


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_named(mistake: str, server: PolicyServer) -> None:
    change, robot, expected = MISTAKES[mistake]
    found = named(server, change, **robot)
    # strict, the first difference refuses the robot; several may come with one observation
    assert found == expected or (server.options.contract == "strict" and found and found <= expected)


def test_half_loaded_weights_are_named(folder: Path, tmp_path: Path) -> None:
    """The server does not start."""
    broken = half_loaded(folder, tmp_path / "policy")
    with refused(kind=ChecksumError) as caught:
        us.load_policy(broken, head="arm", contract="strict")
    assert caught.value.path == broken / "model.safetensors"


def test_another_head_is_named(server: PolicyServer) -> None:
    assert named(server, sound, head="other") == {("other robot", "")}


def test_a_sound_robot_is_neither_refused_nor_warned_of(server: PolicyServer) -> None:
    stated = Declaration(fps=30, state_names=NAMES, action_names=NAMES, cameras=["cam_front", "cam_wrist_left"])
    assert named(server, sound, declaration=stated, head="arm") == set()
