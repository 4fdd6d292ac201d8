"""A policy is connected to a world by the record of its run: keys, cameras, widths and the norm
head.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from understudy.config.data import DataConfig
from understudy.config.rollout import Play
from understudy.policies.capabilities.past import Past
from understudy.policies.draws import RandomSpec
from understudy.policies.policy import Policy
from understudy.policies.settings import PolicySettings
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import SourceConfig
from understudy_robot.envs.env import Outcome, image_feature, vector_feature
from understudy_robot.rollout.adapter import EnvAdapter, check_env, make_adapter
from understudy_robot.rollout.play import rollout

FRONT = "observation.images.front"
WRIST = "observation.images.wrist"
ARM = SourceConfig(
    root="arm", state="observation.joints", cameras={FRONT: "observation.images.cam0", WRIST: WRIST}
)
HAND = SourceConfig(root="hand", cameras={WRIST: "observation.images.palm"})
POLICY = {"cameras": [FRONT, WRIST], "state_dim": 5, "action_dim": 4, "picture": [8, 8]}
NORM = {
    "heads": ["arm::joint", "hand::joint"],
    "dims": {"action": [4, 2], "observation.state": [5, 3]},
}
SOURCES = [{"name": "arm", "head": "arm::joint"}, {"name": "hand", "head": "hand::joint"}]
FROZEN = {"policy": POLICY, "normalisation": NORM, "sources": SOURCES}


class Room:
    """A world in which one number goes up; its actions are remembered."""

    name = "room"
    fps = 10
    max_steps = 4
    episodes = 30
    one_scene = False
    noise = 0.1
    tasks = ("wave",)
    conditions: ClassVar[dict[str, str]] = {}

    def __init__(self, state: str = "observation.state", width: int = 3, action: int = 2) -> None:
        self.features: dict[str, Any] = {
            "observation.images.palm": image_feature(8),
            state: vector_feature([f"j{i}" for i in range(width)]),
            "action": vector_feature([f"a{i}" for i in range(action)]),
        }
        self.done: list[np.ndarray] = []

    def reset(self, seed: int, task: str) -> dict[str, np.ndarray]:
        self.done = []
        return self._seen()

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], Outcome]:
        self.done.append(action)
        return self._seen(), Outcome(None, len(self.done) >= self.max_steps)

    def expert(self) -> np.ndarray:
        return np.zeros(2, np.float32)

    def _seen(self) -> dict[str, np.ndarray]:
        return {
            key: np.full(
                f["shape"], 7 + len(self.done), np.uint8 if f["dtype"] == "video" else np.float32
            )
            for key, f in self.features.items()
            if key != "action"
        }


@dataclass(frozen=True, kw_only=True)
class Shape(PolicySettings):
    chunk: int = 2
    action_dim: int = 4
    noise_dim: int = 4


class Noisy(Policy):
    """A policy that takes one noise of the shape of its actions."""

    config: Shape = Shape()

    def random_spec(self, use: str) -> dict[str, RandomSpec]:
        return {"noise": RandomSpec("normal", (self.config.chunk, self.config.noise_dim))}

    def preprocess(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch


class Watcher(Noisy):
    """Remembers its batches and acts as the noise says."""

    config: Shape = Shape()

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[dict[str, Any]] = []

    def act(
        self, batch: dict[str, Any], draws: dict[str, torch.Tensor], steps: int = 10
    ) -> torch.Tensor:
        self.batches.append(batch)
        return draws["noise"]


def mixed(*sources: SourceConfig) -> DataConfig:
    return DataConfig(sources=sources)


def test_a_policy_of_two_robots_plays_as_the_one_that_is_named() -> None:
    wired = make_adapter(mixed(ARM, HAND), FROZEN, Play(source="hand"))
    world = Room()
    policy = Watcher()
    check_env(wired, world, FROZEN)
    assert wired.cameras == ["palm"]
    result = rollout(policy, [world], 1, execute=2, adapter=wired)
    assert [episode.steps for episode in result.episodes] == [4]
    first, second = policy.batches
    assert set(first) == {FRONT, WRIST, f"{FRONT}_is_missing", "observation.state", "task", "head"}
    assert (first["head"].tolist(), first["head"].dtype) == ([1], torch.int64)
    assert first["task"] == ["wave"]
    assert second["observation.state"].tolist() == [[9, 9, 9, 0, 0]]  # padded to the widest
    assert torch.equal(second[WRIST], torch.full((1, 3, 8, 8), 9, dtype=torch.uint8))
    assert torch.equal(first[FRONT], torch.zeros((1, 3, 8, 8), dtype=torch.uint8))
    assert first[f"{FRONT}_is_missing"].tolist() == [True]
    assert [len(action) for action in world.done] == [2] * 4  # of four numbers, the robot's own


def test_a_policy_with_a_history_sees_every_step_of_its_episode() -> None:
    class Remembers(Shape):
        def past(self) -> Past:
            return Past((-0.3, -0.1, 0.0), (-0.3, -0.1, 0.0))

    wired = make_adapter(mixed(ARM, HAND), FROZEN, Play(source="hand"))
    policy = Watcher()
    policy.config = Remembers()
    worlds: list[Any] = [Room(), Room()]
    rollout(policy, worlds, 3, execute=2, adapter=wired)
    for batch, (steps, padded) in zip(
        policy.batches, 2 * [([0, 0, 0], [1, 1, 0]), ([0, 1, 2], [1, 0, 0])], strict=True
    ):
        rows = len(batch["task"])
        assert batch[WRIST].shape == batch[FRONT].shape == (rows, 3, 3, 8, 8)
        assert batch[WRIST][:, :, 0, 0, 0].tolist() == [[7 + step for step in steps]] * rows
        assert batch["observation.state"][:, :, 0].tolist() == [[7 + step for step in steps]] * rows
        assert batch["observation.state"].shape == (rows, 3, 5)
        for key in (WRIST, "observation.state"):
            assert batch[f"{key}_is_pad"].tolist() == [list(map(bool, padded))] * rows
        assert batch[f"{FRONT}_is_pad"].all()
    assert [len(batch["task"]) for batch in policy.batches] == [2, 2, 1, 1]
    worlds[0].fps = 7
    with pytest.raises(ValueError, match="1/fps"):
        rollout(policy, worlds, 1, adapter=wired, execute=1)


def test_the_other_robot_lacks_nothing_and_is_told_so_too() -> None:
    wired = make_adapter(mixed(ARM, HAND), FROZEN, Play(source="arm"))
    assert wired.names == {"observation.state": "observation.joints", **ARM.cameras}
    assert (wired.missing, wired.missable, wired.head, wired.action_dim) == ((), (FRONT,), 0, 4)
    seen = {
        own: np.zeros((8, 8, 3) if "images" in own else 5, np.float32)
        for own in wired.names.values()
    }
    assert wired.batch([seen], ["x"])[f"{FRONT}_is_missing"].tolist() == [False]


def test_sources_that_differ_need_a_name_and_equal_ones_do_not() -> None:
    with refused("source", "arm, hand", kind=ConfigError):
        make_adapter(mixed(ARM, HAND), FROZEN, Play())
    with refused("source", "'foot'", "arm, hand", kind=ConfigError):
        make_adapter(mixed(ARM, HAND), FROZEN, Play(source="foot"))
    one_head = {
        **FROZEN,
        "normalisation": {"heads": ["arm::joint"]},
        "sources": [SOURCES[0], SOURCES[0]],
    }
    wired = make_adapter(mixed(ARM, replace(ARM, root="again")), one_head, Play())
    assert (wired.head, wired.missable, wired.action_dim) == (None, (), 4)
    # The same keys, but not the same robot: which numbers would come out?
    two = {**FROZEN, "sources": SOURCES}
    with refused(
        "source", ", ".join(mixed(ARM, replace(ARM, root="again")).names()), kind=ConfigError
    ):
        make_adapter(mixed(ARM, replace(ARM, root="again")), two, Play())


def test_no_head_is_guessed() -> None:
    """A folder with a policy of several robots and nothing else."""
    with refused("arm::joint, hand::joint", kind=ConfigError):
        make_adapter(DataConfig(), {"policy": POLICY, "normalisation": NORM}, Play())


def test_flat_settings_are_one_source_and_a_key_may_be_named() -> None:
    frozen = {"policy": {**POLICY, "cameras": []}, "normalisation": {"action": {}}}
    data = DataConfig(root="d", state="observation.environment_state")
    assert make_adapter(data, frozen, Play()) == EnvAdapter(
        {"observation.state": "observation.environment_state"},
        image_size=(8, 8),
        state_dim=5,
        action_dim=4,
    )
    assert make_adapter(data, frozen, Play(state="observation.joints")).names == {
        "observation.state": "observation.joints"
    }
    blind = {"policy": {**POLICY, "cameras": [], "state_dim": 0}, "normalisation": {}}
    assert make_adapter(data, blind, Play()).names == {}


@pytest.mark.parametrize(
    ("world", "told"),
    [
        (Room("joints"), ["state", "room", "'observation.state'", "joints"]),
        (Room(width=4), ["state", 3, "'observation.state'", "room", 4]),
        (Room(action=3), [2, "room", 3]),
    ],
)
def test_what_a_world_does_not_have_is_told(world: Room, told: list[object]) -> None:
    wired = make_adapter(mixed(ARM, HAND), FROZEN, Play(source="hand"))
    with refused(*told, kind=ConfigError):
        check_env(wired, world, FROZEN)


def test_a_key_that_would_fit_is_told() -> None:
    world = Room(width=4)
    world.features["observation.environment_state"] = vector_feature(["a", "b", "c"])
    wired = make_adapter(mixed(ARM, HAND), FROZEN, Play(source="hand"))
    with refused("--state", "observation.environment_state", kind=ConfigError):
        check_env(wired, world, FROZEN)


def test_a_source_without_named_cameras_has_those_of_its_dataset() -> None:
    wired = make_adapter(DataConfig(root="d"), {"policy": POLICY, "normalisation": {}}, Play())
    assert wired.cameras == ["front", "wrist"]


def test_a_camera_that_a_dataset_lacks_is_missing_also_where_none_is_named() -> None:
    """The run wrote down which ones each source has."""
    frozen = {
        **FROZEN,
        "sources": [{**SOURCES[0], "cameras": [FRONT, WRIST]}, {**SOURCES[1], "cameras": [WRIST]}],
    }
    wired = make_adapter(
        mixed(SourceConfig(root="arm"), SourceConfig(root="hand")), frozen, Play(source="hand")
    )
    assert (wired.cameras, wired.missing, wired.missable) == (["wrist"], (FRONT,), (FRONT,))
