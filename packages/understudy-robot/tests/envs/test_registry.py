"""The environment protocol, environments by name, and layouts that recording and evaluation never
share.
"""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_base import MissingExtraError
from understudy_base.testing.refusals import refused
from understudy_robot.envs.env import layout_seed
from understudy_robot.envs.registry import open_env
from understudy_robot.testing.envs import check_env

pytest.importorskip("mujoco", reason="the extra `demo` is not installed")

KEY = st.tuples(
    st.integers(0, 2**32 - 1), st.integers(0, 2**24 - 1), st.integers(0, 63), st.booleans()
)


@given(KEY, KEY)
def test_layout_seed_belongs_to_one_episode_of_one_split(one: tuple, two: tuple) -> None:
    def of(key: tuple) -> int:
        return layout_seed(key[0], key[1], attempt=key[2], evaluation=key[3])

    assert (of(one) == of(two)) == (one == two)
    assert 0 <= of(one) < 2**63
    assert (of(one) >= 2**62) == one[3]  # training below, evaluation above


@pytest.mark.parametrize(
    ("seed", "episode", "attempt", "named"),
    [
        (-1, 0, 0, "seed=-1"),
        (2**32, 0, 0, f"seed={2**32}"),
        (0, 2**24, 0, f"episode={2**24}"),
        (0, 0, 64, "attempt=64"),
    ],
)
def test_layout_seed_refuses_values_out_of_range(
    seed: int, episode: int, attempt: int, named: str
) -> None:
    with refused(named, kind=ValueError):
        layout_seed(seed, episode, attempt=attempt)


def test_tabletop_fulfils_the_protocol() -> None:
    env = open_env("tabletop", size=16)
    check_env(env, steps=5)
    assert env.one_scene
    assert [task.split()[-2] for task in env.tasks] == ["red", "green", "blue"]


def test_outcome_names_a_completed_task_that_was_not_requested() -> None:
    env = open_env("tabletop", size=8)
    red, green, _ = env.tasks
    actions = []
    env.reset(1, red)
    while True:
        actions.append(env.expert())
        outcome = env.step(actions[-1])[1]
        if outcome.done:
            break
    assert outcome.completed_task == red
    env.reset(1, green)  # the same scene: the same actions lift the same block
    assert [env.step(action)[1] for action in actions][-1] == outcome


def test_open_env_selects_tasks_by_short_name_or_sentence() -> None:
    assert open_env("tabletop", tasks=("blue",)).tasks == ("pick up the blue block",)
    assert open_env("tabletop", tasks=("pick up the red block", "blue")).tasks == (
        "pick up the red block",
        "pick up the blue block",
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "kitchen"}, ["'kitchen'", "tabletop, recall, metaworld"]),
        ({"name": "tabletop", "tasks": ("pink",)}, ["tasks", "'pink'", "red, green, blue"]),
        ({"name": "tabletop", "cameras": ("wrist",)}, ["cameras=['wrist']", "'front'"]),
        ({"name": "tabletop", "cameras": ()}, ["cameras=[]", "'front'"]),
    ],
)
def test_open_env_names_an_unknown_argument(arguments: dict, words: list[str]) -> None:
    with refused(*words, kind=ValueError):
        open_env(**arguments)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("tabletop", "mujoco", "demo"), ("metaworld", "metaworld", "sim")],
)
def test_open_env_names_the_extra_of_a_missing_package(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, extra: str
) -> None:
    for module in list(sys.modules):
        if (
            module.startswith(("understudy_robot.envs.", f"{package}."))
            and module != "understudy_robot.envs.registry"
        ):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with refused(f"'{name}'", package, f"'understudy-robot[{extra}]'", kind=MissingExtraError):
        open_env(name)
