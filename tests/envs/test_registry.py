"""What every world promises to recording and rolling out, and that evaluation never meets a recorded layout."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.worlds import check_world
from understudy.envs.env import layout_seed
from understudy.envs.registry import open_world

pytest.importorskip("mujoco", reason="the extra `demo` is not installed")

KEY = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**24 - 1), st.integers(0, 63), st.booleans())


@settings(max_examples=200, deadline=None)
@given(KEY, KEY)
def test_a_layout_seed_belongs_to_one_episode_of_one_split(one: tuple, two: tuple) -> None:
    def of(key: tuple) -> int:
        return layout_seed(key[0], key[1], attempt=key[2], evaluation=key[3])

    assert (of(one) == of(two)) == (one == two)
    assert 0 <= of(one) < 2**63
    assert (of(one) >= 2**62) == one[3]  # training below, evaluation above


@pytest.mark.parametrize(("seed", "episode", "attempt"), [(-1, 0, 0), (2**32, 0, 0), (0, 2**24, 0), (0, 0, 64)])
def test_a_layout_seed_out_of_range_is_refused_rather_than_aliased(seed: int, episode: int, attempt: int) -> None:
    with pytest.raises(ValueError, match="must be in"):
        layout_seed(seed, episode, attempt=attempt)


def test_the_tabletop_is_a_world() -> None:
    world = open_world("tabletop", size=16)
    check_world(world, steps=5)
    assert world.one_scene
    assert [task.split()[-2] for task in world.tasks] == ["red", "green", "blue"]


def test_an_outcome_tells_what_was_taken_even_if_it_was_not_asked_for() -> None:
    world = open_world("tabletop", size=8)
    red, green, _ = world.tasks
    actions = []
    world.reset(1, red)
    while True:
        actions.append(world.expert())
        outcome = world.step(actions[-1])[1]
        if outcome.over:
            break
    assert outcome.taken == red
    world.reset(1, green)  # the same scene: the same actions lift the same block
    assert [world.step(action)[1] for action in actions][-1] == outcome


def test_tasks_can_be_chosen_by_either_name() -> None:
    assert open_world("tabletop", tasks=("blue",)).tasks == ("pick up the blue block",)
    assert open_world("tabletop", tasks=("pick up the red block", "blue")).tasks == (
        "pick up the red block",
        "pick up the blue block",
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"name": "kitchen"}, "'kitchen'.*tabletop, metaworld"),
        ({"name": "tabletop", "tasks": ("pink",)}, "'pink'.*red, green, blue"),
        ({"name": "tabletop", "cameras": ("wrist",)}, "wrist.*'front'"),
        ({"name": "tabletop", "cameras": ()}, "'front'"),
    ],
)
def test_what_is_not_there_is_named(arguments: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        open_world(**arguments)


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("tabletop", "mujoco", "demo"), ("metaworld", "metaworld", "sim")]
)
def test_a_missing_package_comes_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, extra: str
) -> None:
    for module in list(sys.modules):
        if module.startswith(("understudy.envs.", f"{package}.")) and module != "understudy.envs.registry":
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs {package}.*understudy\[{extra}\]"):
        open_world(name)
