"""Environments of Gymnasium: keys, tasks, success, ends, seeds, actions; and those that entry
points name.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="the extra `gymnasium` is not installed")

import gymnasium
from gymnasium.spaces import Box, Dict, Discrete

from understudy.config.gymnasium_options import GymnasiumOptions
from understudy.config.rollout import Play
from understudy.policies.own_code.types import name_by_hand
from understudy_base import ConfigError, MissingExtraError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_kit import validate
from understudy_robot.cli.record import RecordConfig, record
from understudy_robot.envs.env import ActionError, Outcome, layout_seed
from understudy_robot.envs.gymnasium import GymnasiumEnv
from understudy_robot.envs.registry import open_env

ID = "understudy_tests/Slide-v0"
HELD_OUT = layout_seed(0, 3, evaluation=True)


class Slide(gymnasium.Env):
    """A point moves by the action; it is at its end beyond 1 (a success) or below -1 (none)."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(
        self, obs_type: str = "state", render_mode: str | None = None, reports: str = "is_success"
    ) -> None:
        self.render_mode = render_mode
        self.reports = reports
        self.obs_type = obs_type
        place = Box(-9, 9, (1,), np.float64)
        image = Box(0, 255, (16, 24, 3), np.uint8)
        spaces = {
            "pixels": Dict({"top": image, "wrist": image}),
            "agent_pos": place,
            "tool": Dict({"grip": place}),
        }
        self.observation_space = Dict(spaces) if obs_type == "pixels_agent_pos" else place
        self.action_space = Box(-0.5, 0.5, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed, self.place = seed, self.np_random.uniform(-0.1, 0.1)
        return self.observation(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.dtype == np.float32
        self.place += float(action[0])
        info = {self.reports: np.bool_(self.place > 1)}
        return self.observation(), self.place, self.place < -1 or self.place > 1.5, False, info

    def render(self) -> np.ndarray:
        return np.full((6, 8, 3), 9, np.uint8)

    def observation(self) -> Any:
        place = np.array([self.place])
        if self.obs_type != "pixels_agent_pos":
            return place
        images = {
            "top": np.full((16, 24, 3), 1, np.uint8),
            "wrist": np.full((16, 24, 3), 2, np.uint8),
        }
        return {"pixels": images, "agent_pos": place, "tool": {"grip": -place}}


gymnasium.register(ID, Slide, max_episode_steps=7, kwargs={"obs_type": "state"})


def opened(
    cameras: tuple[str, ...] | None = None, tasks: tuple[str, ...] = (), **options: Any
) -> GymnasiumEnv:
    env = open_env(f"gymnasium:{ID}", None, cameras, tasks, GymnasiumOptions(**options))
    assert isinstance(env, GymnasiumEnv)
    return env


def play(env: GymnasiumEnv, *actions: float) -> list[Outcome]:
    env.reset(HELD_OUT, env.tasks[0])
    return [env.step(np.array([action], np.float32))[1] for action in actions]


def test_default_keys_are_those_of_lerobot() -> None:
    env = opened()
    observation = env.reset(HELD_OUT, env.tasks[0])
    assert {key: feature["shape"] for key, feature in env.features.items()} == {
        **dict.fromkeys(("observation.images.top", "observation.images.wrist"), (16, 24, 3)),
        **dict.fromkeys(("observation.state", "observation.tool_grip", "action"), (1,)),
    }
    assert {key: value.dtype for key, value in observation.items()} == {
        key: np.dtype(np.uint8 if "images" in key else np.float32)
        for key in env.features
        if key != "action"
    }
    assert (observation["observation.images.wrist"] == 2).all()
    assert (env.name, env.fps, env.max_steps, env.tasks) == (
        "understudy_tests-Slide-v0",
        20,
        7,
        ("Slide-v0",),
    )
    assert env.conditions["gymnasium"] == gymnasium.__version__


def test_keys_join_rename_and_leave_out() -> None:
    keys = {"tool.grip": "observation.state", "agent_pos": "observation.state"}
    keys |= {
        "pixels.top": "observation.images.front",
        "pixels.wrist": "",
        "render": "observation.images.wide",
    }
    env = opened(keys=keys, tasks=("slide",))
    observation = env.reset(HELD_OUT, "slide")
    assert list(observation) == [
        "observation.images.front",
        "observation.images.wide",
        "observation.state",
    ]
    assert observation["observation.images.wide"].shape == (6, 8, 3)
    grip, place = observation["observation.state"]
    assert grip == -place != 0, "in the sequence of the setting"
    assert set(opened(("front",), keys=keys).features) == {
        "observation.images.front",
        "observation.state",
        "action",
    }


def test_an_environment_without_images_is_rendered() -> None:
    assert set(opened(args={"obs_type": "state"}).features) == {
        "observation.image",
        "observation.state",
        "action",
    }
    assert set(opened((), args={"obs_type": "state"}).features) == {"observation.state", "action"}


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"keys": {"pixel": "observation.state"}}, ["gymnasium.keys", "pixel", "pixels.top"]),
        ({"keys": {"agent_pos": "observation.image"}}, ["gymnasium.keys", "agent_pos"]),
        ({"keys": {"agent_pos": "state"}}, ["gymnasium.keys", "agent_pos"]),
        (
            {"keys": {"tool.grip": "observation.state"}},
            ["gymnasium.keys", "tool.grip", "agent_pos"],
        ),
        ({"keys": {"pixels.top": "observation.images.wrist"}}, ["gymnasium.keys", "pixels.wrist"]),
        ({"args": {"size": 3}}, ["TypeError", "size"]),
        ({"max_steps": 0}, [ID]),
        ({"fps": -1}, ["gymnasium.fps"]),
        ({"cameras": ("side",)}, ["cameras", "side"]),
        ({"tasks": ("one", "two")}, ["tasks"]),
    ],
)
def test_settings_that_do_not_fit_are_named(options: dict[str, Any], values: list[str]) -> None:
    with refused(*values, kind=ValueError):
        opened(**options)


@pytest.mark.parametrize(
    "name", ["gymnasium:Nowhere-v0", "gymnasium:nowhere/Env-v0", "gymnasium:nowhere:Env-v0"]
)
def test_an_unknown_id_is_named(name: str) -> None:
    with refused(name.partition(":")[2], kind=ValueError):
        open_env(name)


def test_a_size_and_settings_of_another_environment_are_refused() -> None:
    with refused("image_size", 64, kind=ValueError):
        open_env(f"gymnasium:{ID}", 64)
    with refused("gymnasium", "recall", kind=ValueError):
        open_env("recall", gymnasium=GymnasiumOptions(fps=3))


def test_discrete_actions_are_refused() -> None:
    class Buttons(Slide):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.action_space = Discrete(3)

    gymnasium.register("understudy_tests/Buttons-v0", Buttons, max_episode_steps=7)
    with refused("Discrete(3)".partition("(")[0], kind=ValueError):
        open_env("gymnasium:understudy_tests/Buttons-v0")


def test_success_at_any_step_ends_the_episode() -> None:
    outcomes = play(opened(), 0.5, 0.5, 0.5)
    assert outcomes == [Outcome(None, False), Outcome(None, False), Outcome("Slide-v0", True)]


def test_success_at_the_end_is_that_of_the_last_step() -> None:
    env = opened(success="end")
    assert play(env, 0.5, 0.5, 0.5, 0.5)[-2:] == [Outcome(None, False), Outcome("Slide-v0", True)]
    assert play(env, 0.5, 0.5, 0.2, -0.5, 0, 0, 0)[-1] == Outcome(None, True), (
        "truncated, no success any more"
    )


def test_termination_without_success_is_a_failure() -> None:
    assert play(opened(), -0.5, -0.5, -0.5)[-1] == Outcome(None, True)


def test_truncation_ends_the_episode() -> None:
    outcomes = play(opened(), *[0.0] * 7)
    assert [outcome.done for outcome in outcomes] == [False] * 6 + [True]
    assert [outcome.done for outcome in play(opened(max_steps=2), 0.0, 0.0)] == [False, True]
    assert play(opened(max_steps=3), 0.5, 0.5, 0.5)[-1] == Outcome("Slide-v0", True), (
        "a success in the last step"
    )


def test_success_by_reward_and_by_another_entry() -> None:
    assert play(opened(success_reward=0.4), 0.5)[-1] == Outcome("Slide-v0", True)
    assert play(opened(args={"reports": "success"}), 0.5, 0.5, 0.5)[-1].completed_task
    assert play(opened(args={"reports": "won"}, success_key="won"), 0.5, 0.5, 0.5)[
        -1
    ].completed_task
    with refused("gymnasium.success", "won", "gymnasium.success_reward", kind=ValueError):
        play(opened(args={"reports": "won"}), 0.0)
    with refused("gymnasium.success", "won", kind=ValueError):
        play(opened(success_key="won", max_steps=2), 0.0, 0.0)


def test_seeds_are_reproducible_and_evaluation_has_its_own() -> None:
    env = opened()
    seeds = []
    for evaluation in (False, True):
        for episode in range(300):
            first = env.reset(layout_seed(5, episode, evaluation=evaluation), env.tasks[0])
            seeds.append(env.unwrapped.seed)
            again = env.reset(layout_seed(5, episode, evaluation=evaluation), env.tasks[0])
            assert first["observation.state"] == again["observation.state"]
    assert len(set(seeds)) == 600
    assert max(seeds[:300]) < 2**30 <= min(seeds[300:]) <= max(seeds[300:]) < 2**31


def test_action_bounds_are_off_clamp_or_error() -> None:
    assert play(opened(max_steps=1), 9.0)[-1].completed_task
    assert not play(opened(max_steps=1, action_bounds="clamp"), 9.0)[-1].completed_task
    with refused("action_0", 9, 0.5, kind=ActionError):
        play(opened(action_bounds="error"), 9.0)
    with refused("nan", kind=ValueError):
        play(opened(), np.nan)


def test_settings_are_read_from_flags_and_files() -> None:
    play = validate(
        Play,
        {"gymnasium": {"args": {"observation_width": 96, "damping": "0.5"}, "success_reward": 2}},
    )
    assert play.gymnasium.args == {"observation_width": 96, "damping": "0.5"}
    env = opened(args={"render_mode": "null", "reports": "success"})
    assert env.unwrapped.render_mode is None, "a text that is JSON is its value"


def test_record_takes_an_expert_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "def right(env, observation):\n"
        "    return [0.5 + 0 * observation['observation.state'][0] * env.unwrapped.place]\n"
    )
    settings = {
        "output_dir": str(tmp_path / "data"),
        "env": f"gymnasium:{ID}",
        "episodes": 2,
        "codec": "libx264",
    }
    assert [line.partition(":")[0] for line in RecordConfig(**settings).problems()] == ["expert"]
    with refused("expert", "--expert", kind=ConfigError):  # nobody named this file by hand
        record(RecordConfig(**settings, expert=f"{tmp_path}/mine.py:right"))
    name_by_hand(f"{tmp_path}/mine.py:right")
    with refused("expert", kind=ConfigError):
        record(RecordConfig(**settings, expert=f"{tmp_path}/mine.py:left"))
    assert record(RecordConfig(**settings, expert=f"{tmp_path}/mine.py:right")) == 0
    data = EpisodeDataset(tmp_path / "data")
    assert data.catalog.fps == 20
    assert {"observation.images.top", "observation.state", "observation.tool_grip"} <= set(
        data.catalog.features
    )
    assert float(data[0]["action"]) == 0.5


def test_missing_gymnasium_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "understudy_robot.envs.gymnasium")
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with refused("gymnasium", "'understudy-robot[gymnasium]'", kind=MissingExtraError):
        open_env("gymnasium:Any-v0")


def test_entry_points_add_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kitchen_package.py").write_text(
        "from understudy_robot.envs.recall import RecallEnv\n"
        "def make(size, cameras, tasks):\n    return RecallEnv(size or 16, cameras, tasks)\n"
    )
    info = tmp_path / "kitchen-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kitchen\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[understudy.envs]\nkitchen = kitchen_package:make\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert open_env("kitchen").features["observation.images.top"]["shape"] == (16, 16, 3)
    with refused("kitchens", "kitchen", kind=ValueError):
        open_env("kitchens")


@pytest.mark.parametrize(
    ("name", "image", "actions", "fps"),
    [
        ("gym_pusht/PushT-v0", "observation.image", 2, 10),
        ("gym_aloha/AlohaTransferCube-v0", "observation.images.top", 14, 50),
    ],
)
def test_published_environments_work_without_settings(
    name: str, image: str, actions: int, fps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "MUJOCO_GL" not in os.environ:  # dm_control reads it at its import
        monkeypatch.setenv("MUJOCO_GL", "osmesa")
    package = name.partition("/")[0]
    try:
        __import__(package)
    except ImportError:
        pytest.skip(f"{package} is not installed")
    except AttributeError as error:
        pytest.skip(f"there is no OpenGL for {package}: {error}")
    env = open_env(f"gymnasium:{name}")
    task = env.tasks[0]
    assert task.endswith(".")
    assert (env.fps, env.max_steps, env.features["action"]["shape"]) == (fps, 300, (actions,))
    first, again = (env.reset(HELD_OUT, task) for _ in range(2))
    np.testing.assert_array_equal(first["observation.state"], again["observation.state"])
    np.testing.assert_array_equal(first[image], again[image])
    assert len(np.unique(first[image])) > 10, "an image, not one color"
    assert env.step(np.zeros(actions))[1] == Outcome(None, False)
