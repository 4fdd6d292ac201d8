"""Closed-loop evaluation: scenes, credit for success, and results that only the seed decides."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from understudy.config.rollout import Play, RolloutConfig, RolloutEvery
from understudy.config.train import DataConfig, TrainConfig
from understudy.policies.draws import RandomSpec
from understudy.policies.policy import Policy
from understudy.policies.settings import PolicySettings
from understudy.testing.runs import tiny_config
from understudy.train import run
from understudy.train.checkpoint.run_dir import RECORDED, RunDir
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused, warned
from understudy_client import ContractWarning
from understudy_kit import wilson_interval
from understudy_robot.background_rollouts import check_rollouts
from understudy_robot.cli.record import RecordConfig, record
from understudy_robot.cli.rollout import rollout as rollout_run
from understudy_robot.cli.why import WhyConfig, why
from understudy_robot.rollout.adapter import EnvAdapter
from understudy_robot.rollout.env_contract import env_contract
from understudy_robot.rollout.files import write_result
from understudy_robot.rollout.play import rollout, rollout_saved_policy
from understudy_robot.rollout.result import PROMPT, Episode, RolloutResult

pytest.importorskip("mujoco", reason="the extra `demo` is not installed")

from understudy_robot.envs.env import layout_seed
from understudy_robot.envs.tabletop import TabletopEnv  # (after the skip)


@dataclass(frozen=True, kw_only=True)
class Shape(PolicySettings):
    chunk: int
    action_dim: int = 4
    noise_dim: int = 4


class Noisy(Policy):
    """A policy that takes one noise of the shape of its actions."""

    config = Shape(chunk=8)

    def random_spec(self, use: str) -> dict[str, RandomSpec]:
        return {"noise": RandomSpec("normal", (self.config.chunk, self.config.noise_dim))}

    def preprocess(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch


class Zero(Noisy):
    """Does nothing, with an open hand."""

    config = Shape(chunk=8)

    def act(
        self, batch: dict[str, Any], draws: dict[str, torch.Tensor], steps: int = 10
    ) -> torch.Tensor:
        return torch.zeros_like(draws["noise"])


class Listener(Noisy):
    """The scripted expert as a policy: finds the world that a row of the batch shows, and follows
    its instruction.
    """

    config = Shape(chunk=1)

    def __init__(self, worlds: list[TabletopEnv], deaf: bool = False) -> None:
        super().__init__()
        self.worlds = worlds
        self.deaf = deaf
        self.batches = []

    def act(
        self, batch: dict[str, Any], draws: dict[str, torch.Tensor], steps: int = 10
    ) -> torch.Tensor:
        rows = len(batch["task"])
        assert draws["noise"].shape == (rows, 1, 4)
        assert batch["observation.images.front"].dtype == torch.uint8
        assert batch["observation.images.front"].shape == (rows, 3, 8, 8)
        assert batch["observation.state"].dtype == torch.float32
        self.batches.append(rows)
        actions = []
        for row in range(rows):
            picture = batch["observation.images.front"][row].permute(1, 2, 0).numpy()
            (world,) = [
                w
                for w in self.worlds
                if np.array_equal(w.hand.astype(np.float32), state(batch, row))
            ]
            np.testing.assert_array_equal(picture, world.render())
            if not self.deaf:
                world.color = batch["task"][row].split()[-2]
            actions.append(world.expert())
        return torch.from_numpy(np.stack(actions))[:, None]


class Drift(Noisy):
    """Acts as the noise says: shows which noise came."""

    config = Shape(chunk=4)

    def act(
        self, batch: dict[str, Any], draws: dict[str, torch.Tensor], steps: int = 10
    ) -> torch.Tensor:
        return draws["noise"]


def state(batch: dict[str, Any], row: int) -> np.ndarray:
    return batch["observation.state"][row, :3].numpy()


def worlds(count: int, **more: Any) -> list[TabletopEnv]:
    return [TabletopEnv(8, **more) for _ in range(count)]


# -- playing ---------------------------------------------------------------------------------------


def test_an_expert_succeeds_and_idleness_does_not() -> None:
    lanes = worlds(4)
    expert = Listener(lanes)
    result = rollout(expert, lanes, 12, execute=1)
    assert result.successes == 12
    assert result.per_task() == dict.fromkeys(lanes[0].tasks, (4, 4))
    assert max(expert.batches) == 4  # one forward for all the worlds
    assert rollout(Zero(), lanes, 6).successes == 0


class Broken(Zero):
    """Gives one lane a chunk that is not finite, from its third prediction on."""

    def act(
        self, batch: dict[str, Any], draws: dict[str, torch.Tensor], steps: int = 10
    ) -> torch.Tensor:
        actions = super().act(batch, draws, steps)
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 3:
            actions[0, -1, 2] = torch.nan
        return actions


def test_a_chunk_that_is_not_finite_fails_its_episode_with_the_reason() -> None:
    result = rollout(Broken(), worlds(2), 3, execute=4)
    assert [
        (episode.steps, "nan" in episode.error, episode.success) for episode in result.episodes
    ] == [
        (8, True, False),
        (70, False, False),
        (70, False, False),
    ]
    assert [bool(episode["error"]) for episode in result.to_json()["episodes"]] == [
        True,
        False,
        False,
    ]
    assert "episode 0, step 8" in result.table()


def test_swapped_text_credits_what_was_told() -> None:
    lanes = worlds(3)
    listens = rollout(Listener(lanes), lanes, 12, execute=1, swap_text=True)
    assert (listens.successes, listens.took_scene) == (12, 0)
    pairs = [(episode.scene, episode.told) for episode in listens.episodes]
    assert all(scene != told for scene, told in pairs)
    assert all(pairs.count(pair) == 2 for pair in set(pairs))
    assert len(set(pairs)) == 6
    deaf = rollout(Listener(lanes, deaf=True), lanes, 6, execute=1, swap_text=True)
    assert (deaf.successes, deaf.took_scene) == (0, 6)
    assert deaf.headline() == "swapped-text success 0/6"


def test_layouts_are_evaluation_layouts_and_episodes_are_in_order() -> None:
    result = rollout(Zero(), worlds(2), 3, seed=5)
    assert [e.episode for e in result.episodes] == [0, 1, 2]
    assert [e.seed for e in result.episodes] == [
        layout_seed(5, e, evaluation=True) for e in range(3)
    ]
    assert [e.steps for e in result.episodes] == [70] * 3
    assert [e.taken for e in result.episodes] == [None] * 3


def test_the_seed_decides_and_the_number_of_worlds_does_not() -> None:
    one = rollout(Drift(), worlds(1), 5, seed=1, execute=3, films=5)
    many = rollout(Drift(), worlds(4), 5, seed=1, execute=3, films=5)
    other = rollout(Drift(), worlds(4), 5, seed=2, execute=3, films=5)
    assert one.to_json() == many.to_json()
    for episode in range(5):
        np.testing.assert_array_equal(one.films[episode], many.films[episode])
    assert any(not np.array_equal(one.films[e], other.films[e]) for e in range(5))
    # Each prediction of an episode has its own noise: the chunks of one that predicts more often
    # are others.
    often = rollout(Drift(), worlds(1), 1, seed=1, execute=1, films=1)
    np.testing.assert_array_equal(often.films[0][:2], one.films[0][:2])
    assert not np.array_equal(often.films[0][:9], one.films[0][:9])


def test_only_so_many_actions_of_a_chunk_are_executed() -> None:
    calls = []

    class Counting(Zero):
        def act(
            self, batch: dict[str, Any], draws: dict[str, torch.Tensor], steps: int = 10
        ) -> torch.Tensor:
            calls.append(steps)
            return super().act(batch, draws, steps)

    rollout(Counting(), worlds(1), 1, execute=5, steps=3)
    assert calls == [3] * 14  # 70 steps


def test_protocol_has_the_metadata_of_the_prompts() -> None:
    lanes = worlds(1)
    names = {key: key for key in lanes[0].features if key != "action"}
    adapter = EnvAdapter(names, action_dim=4, metadata="quality: 5\nsuccess: true")
    assert (
        rollout(Zero(), lanes, 1, adapter=adapter).protocol[PROMPT] == "quality: 5, success: true"
    )
    assert PROMPT not in rollout(Zero(), lanes, 1).protocol


def test_what_cannot_be_played_is_told() -> None:
    lanes = worlds(1)
    with refused("execute=9", 8, kind=ValueError):
        rollout(Zero(), lanes, 1, execute=9)
    with refused("tabletop", kind=ValueError):
        rollout(Zero(), worlds(1, tasks=("red",)), 1, swap_text=True)

    class Arm(Zero):
        config = Shape(chunk=8, action_dim=7)

    with refused(7, "tabletop", 4, kind=ValueError):
        rollout(Arm(), lanes, 1)


# -- its messages ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        # Newcombe, "Two-sided confidence intervals for the single proportion", Stat. Med. 17
        # (1998), table I
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (30, 30, 0.8865, 1.0),
    ],
)
def test_the_interval_is_wilsons(successes: int, count: int, low: float, high: float) -> None:
    assert wilson_interval(successes, count) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_an_interval_holds_its_rate_and_mirrors(tried: tuple[int, int]) -> None:
    successes, count = tried
    low, high = wilson_interval(successes, count)
    assert 0 <= low <= successes / count <= high <= 1
    assert wilson_interval(count - successes, count) == pytest.approx(
        (1 - high, 1 - low), abs=1e-12
    )


def test_nothing_tried_says_nothing() -> None:
    assert wilson_interval(0, 0) == (0, 1)
    with refused(5, 3, kind=ValueError):
        wilson_interval(5, 3)


def result(swap: bool = False) -> RolloutResult:
    episodes = (
        Episode(0, 1, "a", "b" if swap else "a", "a", 7),
        Episode(1, 2, "b", "a" if swap else "b", "a", 9),
        Episode(2, 3, "a", "b" if swap else "a", None, 70),
    )
    film = np.random.Generator(np.random.PCG64(0)).integers(0, 255, (5, 8, 8, 3)).astype(np.uint8)
    return RolloutResult("tabletop", 4, {"action steps": "2"}, swap, episodes, {0: film})


def test_results_are_written_whole(tmp_path: Path) -> None:
    path = write_result(result(), tmp_path / "rollouts")
    content = json.loads(path.read_text())
    assert path.name == "tabletop-seed4.json"
    assert {k: content["success"][k] for k in ("successes", "episodes")} == {
        "successes": 1,
        "episodes": 3,
    }
    assert (content["success"]["low"], content["success"]["high"]) == wilson_interval(1, 3)
    assert content["tasks"]["a"]["successes"] == 1
    assert [e["success"] for e in content["episodes"]] == [True, False, False]
    strip = np.asarray(Image.open(path.parent / content["pictures"]["0"]))
    assert strip.shape == (8, 8 * 8, 3)
    np.testing.assert_array_equal(strip[:, :8], result().films[0][0])
    np.testing.assert_array_equal(strip[:, -8:], result().films[0][-1])
    assert write_result(result(swap=True), tmp_path).name == "tabletop-seed4-swapped.json"


def test_another_evaluation_moves_the_files_of_the_one_before(tmp_path: Path) -> None:
    first = write_result(result(), tmp_path)
    first.with_suffix(".jsonl").write_text("trace")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_result(result(swap=True), tmp_path)
    assert write_result(result(), tmp_path) == first  # the same evaluation
    assert not (tmp_path / "earlier-1").exists()
    for number in (1, 2):
        write_result(replace(result(), protocol={"action steps": str(2 + number)}), tmp_path)
        assert (tmp_path / f"earlier-{number}/tabletop-seed4.json").exists()
    assert {path.name: path.read_bytes() for path in (tmp_path / "earlier-1").iterdir()} == before
    assert json.loads(first.read_text())["protocol"] == {"action steps": "4"}
    assert (tmp_path / "tabletop-seed4-swapped.json").exists()


def test_the_table_ends_with_the_line_for_machines() -> None:
    lines = result().table().splitlines()
    assert lines[-1] == "success 1/3"
    assert lines[1].split()[:3] == ["a", "1/2", "50%"]
    swapped = result(swap=True).table().splitlines()
    assert swapped[-2:] == ["did the scene's own task instead: 1/3", "swapped-text success 1/3"]


# -- the command -----------------------------------------------------------------------------------


def test_the_verb_plays_the_policy_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from understudy.policies.flow.model import FlowPolicy, FlowPolicyConfig

    config = FlowPolicyConfig(
        4,
        4,
        ("observation.images.front",),
        4,
        image_size=(16, 16),
        text_bytes=64,
        channels=8,
        blocks=1,
        keypoints=4,
        width=16,
        layers=1,
    )
    unit = {"offset": np.zeros(4, np.float32), "spread": np.ones(4, np.float32)}
    FlowPolicy(config, {"action": unit, "observation.state": unit}).save(tmp_path / "policy")
    asked = RolloutConfig(run=str(tmp_path), episodes=3, image_size=16, num_envs=3, films=1)
    assert rollout_run(asked) == 0
    first = capsys.readouterr().out
    assert first.splitlines()[-1].startswith("success ")
    assert first.splitlines()[-1].endswith("/3")
    content = (tmp_path / "rollouts" / "tabletop-seed0.json").read_text()
    assert (tmp_path / "rollouts" / "tabletop-seed0-episode0.png").is_file()
    assert rollout_run(asked) == 0
    assert (tmp_path / "rollouts" / "tabletop-seed0.json").read_text() == content
    for wrong, told in (
        ({"action_steps": 5}, "execute=5"),
        ({"tasks": ("pink",)}, "'pink'"),
        ({"device": "fpga"}, "device: 'fpga'"),
        ({"device": "nonsense"}, "device: 'nonsense'"),
    ):
        with refused(told, kind=ConfigError):
            rollout_run(RolloutConfig(**{**vars(asked), **wrong}))
    with refused("rollouts", kind=ConfigError):
        # the policy has no contract, so its rollouts have no trace
        why(WhyConfig(paths=(str(tmp_path),)))
    stated = env_contract(TabletopEnv(16))
    slow = {"": replace(stated.robots[""], fps=3.0)}
    slow_policy = replace(stated, robots=slow, kind="policy")
    slow_policy.write(tmp_path / "policy" / "contract.json")
    with warned("rate", kind=ContractWarning):
        rollout_run(asked)
    assert (tmp_path / "rollouts" / "tabletop-seed0.json").read_text() == content
    _, *rows = map(
        json.loads, (tmp_path / "rollouts" / "tabletop-seed0.jsonl").read_text().splitlines()
    )
    numbers = {(row["robot"], row["episode"]) for row in rows}
    assert numbers == {(f"environment {episode}", episode) for episode in range(3)}
    for path in (tmp_path, tmp_path / "rollouts" / "tabletop-seed0.json"):
        capsys.readouterr()
        why(WhyConfig(paths=(str(path),)))
        assert capsys.readouterr().out.startswith("rate")
    rows = (tmp_path / "rollouts" / "tabletop-seed0.jsonl").read_text().splitlines()[1:]
    assert {json.loads(row)["robot"] for row in rows} == {
        f"environment {number}" for number in range(3)
    }


def test_a_run_without_a_policy_is_named(tmp_path: Path) -> None:
    with refused(tmp_path, kind=ConfigError):
        rollout_run(RolloutConfig(run=str(tmp_path)))
    assert [line.partition(":")[0] for line in RolloutConfig().problems()] == ["run"]


def test_a_policy_that_never_learnt_to_act_is_not_played(tmp_path: Path) -> None:
    config = TrainConfig(mode="forward_dynamics", data=DataConfig(root="d"))
    RunDir(tmp_path).begin(config, {name: {} for name in RECORDED - {"format"}})
    (tmp_path / "policy").mkdir()
    with refused(tmp_path, "forward_dynamics", kind=ConfigError):
        rollout_run(RolloutConfig(run=str(tmp_path)))


def test_a_rollout_renders_the_size_of_the_recordings(tmp_path: Path) -> None:
    record(
        RecordConfig(output_dir=str(tmp_path / "data"), episodes=2, image_size=16, tasks=("red",))
    )
    out = tmp_path / "run"
    val = {"every": 0}
    config = tiny_config(tmp_path / "data", out, steps=1, val=val, policy={"image_size": (8, 8)})
    assert run.train(config) == run.DONE
    asked = Play(tasks=("red",), episodes=1, num_envs=1, action_steps=3, contract="strict")
    assert (
        rollout_saved_policy(out / "policy", config.data, None, asked).protocol["image size"]
        == "16x16"
    )
    larger = replace(asked, image_size=32)
    with refused("observation.images.front", "16x16", "32x32", kind=ConfigError):
        rollout_saved_policy(out / "policy", config.data, None, larger)
    with warned("observation.images.front", "16x16", "32x32", kind=ContractWarning):
        result = rollout_saved_policy(
            out / "policy", config.data, None, replace(larger, contract="warn")
        )
    assert result.protocol["image size"] == "32x32"
    check_rollouts(
        replace(config, rollout=RolloutEvery(action_steps=3, every=1)), RunDir(out).read_record()
    )
