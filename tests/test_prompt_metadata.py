"""Metadata of episodes in prompts: their text, which a run, a validation and a robot share."""

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import understudy as us
from understudy.config.data import DataConfig
from understudy.config.rollout import Play
from understudy.config.train import TrainConfig
from understudy.policies.batch import prompts_of
from understudy.testing.policies import batch as flow_batch
from understudy.testing.policies import policy as flow_policy
from understudy.testing.runs import tiny_config
from understudy.train import run
from understudy.train.augment_batch import drop_metadata
from understudy.train.data.run_data import longest_prompts, open_data
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.order import sample_uniform
from understudy_data.prompt_metadata import PromptMetadata
from understudy_data.testing.datasets import Spec, rate_episodes, write_dataset
from understudy_data.testing.outcomes import write_outcomes
from understudy_kit import SourceConfig
from understudy_robot.rollout.adapter import make_adapter

QUALITY = [4, 5, None, 3, 1, 2]
LENGTHS = (5, 6, 4, 5, 6, 5)


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("prompts") / "rated"
    write_dataset(root, Spec(lengths=LENGTHS, cameras=()))
    success = [True, False, True, None, True, False]
    rate_episodes(
        root, control_mode=["joint"] * 6, success=success, quality=QUALITY, pages=[[1]] * 6
    )
    return root


def test_values_become_text() -> None:
    values: dict[str, Any] = {
        "quality": np.float64(3),
        "control_mode": " joint  velocity\n",
        "success": False,
        "speed": 1 / 3,
        "lost": None,
        "nan": math.nan,
        "big": np.int64(7),
        "flag": np.bool_(True),
    }
    lines = PromptMetadata((*values, "absent")).lines(values)
    wanted = [
        "quality: 3",
        "control mode: joint velocity",
        "success: false",
        "speed: 0.333333",
        "big: 7",
        "flag: true",
    ]
    assert lines.splitlines() == wanted
    assert PromptMetadata.add([" pick up ", " "], ["a: 1\nb: x", "a: 1"]) == [
        "pick up, a: 1, b: x",
        "a: 1",
    ]
    for without in (None, [""]):
        assert PromptMetadata.add(["pick up "], without) == ["pick up "]  # as it is
    with refused(2, 1, kind=ValueError):
        PromptMetadata.add(["a", "b"], [""])
    with refused("'pages'", kind=ValueError):
        PromptMetadata(("pages",)).lines({"pages": [1]})
    with refused("'a:b'", kind=ValueError):
        PromptMetadata(("a:b",)).lines({"a:b": 1})


def test_dataset_delivers_the_metadata_of_its_episodes(rated: Path) -> None:
    data = us.EpisodeDataset(rated, prompt_metadata=["quality", "success"])
    assert data.sample(0, 1)["prompt_metadata"] == "quality: 4\nsuccess: true"
    assert data.sample(2, 0)["prompt_metadata"] == "success: true"
    assert data.sample(3, 0)["prompt_metadata"] == "quality: 3"
    assert "prompt_metadata" not in us.EpisodeDataset(rated).sample(0, 0)
    assert (
        data.prompts.digest
        == us.EpisodeDataset(rated, prompt_metadata=["quality", "success"]).prompts.digest
    )
    assert (
        data.prompts.digest != us.EpisodeDataset(rated, prompt_metadata=["quality"]).prompts.digest
    )
    with refused("'qualty'", where=str(rated), fix="'quality'"):
        us.EpisodeDataset(rated, prompt_metadata=["qualty"])
    with refused("'pages'", where=str(rated)):
        us.EpisodeDataset(rated, prompt_metadata=["pages"])


def settings(
    rated: Path, out: Path, chances: dict[str, float], everything: float = 0.0, **changes: Any
) -> TrainConfig:
    config = tiny_config(rated, out, **changes)
    data = replace(
        config.data, prompt_metadata=chances, prompt_metadata_dropout=everything, cameras=("none",)
    )
    return replace(config, data=data, policy=replace(config.policy, text_bytes=64))


def test_a_source_without_metadata_has_prompts_without_it(rated: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "plain", Spec(lengths=(5, 6, 4), cameras=()))
    config = settings(rated, tmp_path, {"quality": 0.1})
    sources = tuple(SourceConfig(root=str(root)) for root in (tmp_path / "plain", rated))
    data = open_data(replace(config, data=replace(config.data, root="", sources=sources)))
    with us.Loader(data.training, batch_size=16, seed=0) as loader:
        batch = next(loader)
    for source, episode, lines in zip(
        batch["source"].tolist(), batch["episode_index"].tolist(), batch["prompt_metadata"]
    ):
        known = source == 1 and QUALITY[episode] is not None
        assert lines == (f"quality: {QUALITY[episode]}" if known else "")
    assert set(batch["source"].tolist()) == {0, 1}


def test_dropout_depends_on_seed_and_position_alone(rated: Path) -> None:
    config = settings(rated, rated, {"quality": 0.3, "success": 0.0}, 0.2).data
    positions = torch.arange(4000)
    lines = ["quality: 4\nsuccess: true"] * len(positions)
    dropped = drop_metadata({"position": positions, "prompt_metadata": lines}, config, 7)[
        "prompt_metadata"
    ]
    rest = {text: dropped.count(text) / len(dropped) for text in set(dropped)}
    assert set(rest) == {"", "success: true", lines[0]}
    assert rest[""] == pytest.approx(0.2, abs=0.03)
    assert rest["success: true"] == pytest.approx(0.8 * 0.3, abs=0.03)
    some = torch.tensor([3999, 17, 256])  # another rank, or after a restart
    again = drop_metadata({"position": some, "prompt_metadata": lines[:3]}, config, 7)[
        "prompt_metadata"
    ]
    assert again == [dropped[position] for position in some.tolist()]
    assert (
        drop_metadata({"position": positions, "prompt_metadata": lines}, config, 8)[
            "prompt_metadata"
        ]
        != dropped
    )
    alone = settings(rated, rated, {"quality": 0.3}).data
    one = drop_metadata({"position": positions, "prompt_metadata": lines}, alone, 7)[
        "prompt_metadata"
    ]
    quality = sample_uniform(7, "prompt metadata quality", positions) < 0.3
    assert [text == "success: true" for text in one] == quality.tolist()


def test_policy_sees_the_metadata() -> None:
    policy = flow_policy(text_bytes=64)
    batch = flow_batch(3)
    plain = policy.preprocess(batch)
    rated = policy.preprocess({**batch, "prompt_metadata": ["quality: 1", "", "quality: 1"]})
    draws = {name: torch.zeros(3, *spec.shape) for name, spec in policy.random_spec("act").items()}
    change = (policy.act(rated, draws) - policy.act(plain, draws)).flatten(1).abs().amax(1)
    assert [bool(each > 0) for each in change] == [True, False, True]
    assert prompts_of(rated)[1] == batch["task"][1]
    assert rated["task"] == batch["task"]  # by which losses are grouped


def test_pi05_has_the_metadata_in_its_prompts(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece", reason="needs the extra pi05")
    from understudy.testing import pi05_policy
    from understudy.testing.sentences import write_model

    policy = pi05_policy.policy(write_model(tmp_path), prompt_tokens=120)
    batch, lines = pi05_policy.batch(2), ["quality: 1\nsuccess: true", ""]
    written = {**batch, "task": PromptMetadata.add(batch["task"], lines)}
    found, wanted = (
        policy.preprocess(each)["prompt_tokens"]
        for each in ({**batch, "prompt_metadata": lines}, written)
    )
    assert torch.equal(found, wanted)
    longest, most, setting = policy.prompt_room(written["task"]) or (0, 0, "")
    assert longest >= (wanted != 0).sum(1).max()  # with the longest numbers as its state
    assert (most, setting) == (120, "prompt_tokens")
    assert policy.prompt_room(["push " * 200])[0] > 120  # before it is cut


def test_run_trains_validates_and_exports_with_metadata(rated: Path, tmp_path: Path) -> None:
    chances = {"quality": 0.25, "success": 0.0}
    config = settings(
        rated, tmp_path / "r", chances, steps=2, val={"every": 2}, checkpoint={"every": 2}
    )
    run.train(config)
    folder = tmp_path / "r/policy"
    (head,) = json.loads((folder / "config.json").read_text())["metadata"]["heads"].values()
    assert head["prompt_metadata"] == {
        "format": PromptMetadata.FORMAT,
        "names": ["quality", "success"],
    }
    policy = us.load_policy(folder, contract="strict")
    recorded = us.EpisodeDataset(rated).sample(0, 0)
    observation = {
        "observation.state": recorded["observation.state"].numpy(),
        "task": recorded["task"],
    }

    def act(**metadata: Any) -> np.ndarray:
        return policy.act(observation | metadata, generator=torch.Generator().manual_seed(0))

    good = act(prompt_metadata={"success": True, "quality": 5})
    bad = act(prompt_metadata={"quality": 1})
    assert not np.array_equal(good, bad)
    assert np.array_equal(act(), act(prompt_metadata={"quality": None}))
    direct = {**observation, "task": f"{observation['task']}, quality: 5, success: true"}
    plain = us.load_policy(folder, contract="off")
    assert np.array_equal(plain.act(direct, generator=torch.Generator().manual_seed(0)), good)
    with refused("'speed'", kind=ValueError):
        act(prompt_metadata={"speed": 1})
    opened = open_data(config)
    assert opened.validation[0] is not None
    row = opened.validation[0].segments[0, 0]
    text = opened.validation[0].sample(int(row), 0)["prompt_metadata"]
    # validation keeps all that is recorded
    assert ("quality" in text) == (QUALITY[row] is not None)
    prompts = longest_prompts(opened.training)
    longest = max(len(task) for task in opened.training[0].meta.tasks) + len(
        ", quality: 4, success: false"
    )
    assert policy.policy.prompt_room(prompts) == (1 + longest, 64, "text_bytes")
    with refused("'speed'", where=str(rated), fix="quality"):
        open_data(settings(rated, tmp_path / "r", {"speed": 0.1}))


def test_robot_gives_known_names_and_a_known_format() -> None:
    facts = {"prompt_metadata": {"format": PromptMetadata.FORMAT, "names": ["quality", "operator"]}}
    given = {"prompt_metadata": [{"operator": "ann", "quality": 2}, {}]}
    assert PromptMetadata.of_robot(facts).observed(given, 2) == {
        "prompt_metadata": ["quality: 2\noperator: ann", ""]
    }
    assert PromptMetadata.of_robot(facts).observed({}, 2) == {"prompt_metadata": ["", ""]}
    assert PromptMetadata.of_robot({}).observed({}, 2) == {}
    with refused(2, 3, kind=ValueError):
        PromptMetadata.of_robot(facts).observed(given, 3)
    with refused("'quality'", kind=ValueError):
        PromptMetadata.of_robot({}).observed({"prompt_metadata": {"quality": 1}}, 1)
    with refused("'<task>'", kind=ValueError):
        PromptMetadata.of_robot(
            {"prompt_metadata": {"format": "<task>", "names": ["quality"]}}
        ).observed({}, 1)


def test_prompts_have_the_values_of_frames(tmp_path: Path) -> None:
    """A feature with one number or text per frame is metadata of frames, in its place among the
    names.
    """
    root = tmp_path / "frames"
    write_outcomes(root, (4, 3, 5), (True, None, False))
    names = ["success", "helped", "reward"]
    data = us.EpisodeDataset(root, prompt_metadata=names)
    assert len(data) == 12
    for episode, won in enumerate(("success: true", None, "success: false")):
        for frame in range((4, 3, 5)[episode]):
            sample = data.sample(episode, frame)
            fields = [
                won,
                f"helped: {int(sample['helped'])}",
                f"reward: {float(sample['reward']):g}",
            ]
            assert sample["prompt_metadata"].splitlines() == [field for field in fields if field]
    assert set(data.prompts.texts) == {sample["prompt_metadata"] for sample in data}
    part = us.EpisodeDataset(root, prompt_metadata=names, episodes=[2])
    assert part.sample(2, 4)["prompt_metadata"] == data.sample(2, 4)["prompt_metadata"]
    assert (
        len(
            {
                data.prompts.digest,
                us.EpisodeDataset(root, prompt_metadata=["success"]).prompts.digest,
            }
        )
        == 2
    )
    with refused("'action'", where="frames", fix="helped"):
        us.EpisodeDataset(root, prompt_metadata=["action"])


def test_memory_of_prompts_grows_with_the_changes_of_a_feature(tmp_path: Path) -> None:
    """Not with the frames: 3,000 of them have three runs of equal text."""
    write_outcomes(tmp_path / "long", (3000,), (True,))
    data = us.EpisodeDataset(tmp_path / "long", prompt_metadata=["helped"])
    assert len(pickle.dumps(data.prompts)) < 3000
    copied = pickle.loads(pickle.dumps(data.prompts))
    frames = np.array([0, 1, 2, 2999])
    texts = copied.read(np.zeros(4, np.int64), frames)["prompt_metadata"]
    assert texts == [f"helped: {number}" for number in (0, 1, 0, 0)]


def test_rollouts_give_the_metadata_of_their_settings() -> None:
    data = DataConfig(root="table", prompt_metadata={"quality": 0.1, "advantage_is_positive": 0.3})
    frozen = {
        "policy": {"cameras": [], "state_dim": 0, "action_dim": 4, "image_size": [64, 64]},
        "normalisation": {},
    }
    asked = Play(prompt_metadata={"advantage_is_positive": True, "quality": 5})
    batch = make_adapter(data, frozen, asked).batch([{}, {}], ["pick up", "push"])
    assert prompts_of(batch) == [
        f"{task}, quality: 5, advantage is positive: true" for task in ("pick up", "push")
    ]
    assert "prompt_metadata" not in make_adapter(data, frozen, Play()).batch([{}], ["pick up"])
    with refused("speed", kind=ConfigError):
        make_adapter(data, frozen, Play(prompt_metadata={"speed": 1}))
