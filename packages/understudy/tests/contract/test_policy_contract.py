"""The contract of a trained policy: measured in a run, written into its folder, compared where the
policy acts.
"""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import understudy as us
from understudy.policies.inference import RobotPolicy
from understudy.testing.policies import editable
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train import run
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused, warned
from understudy_client import Contract, ContractError, ContractWarning, declare


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("contract") / "dataset")


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    folder = data.parent / "trained"
    assert (
        run.train(tiny_config(data, folder, steps=2, checkpoint={"every": 2}, val={"every": 0}))
        == run.DONE
    )
    return folder / "policy"


def observations(data: Path, episode: int = 0) -> list[dict[str, object]]:
    """Observations of a recorded episode, images as [H, W, 3]."""
    dataset = us.EpisodeDataset(data)
    length = int(dataset.catalog.episodes.lengths[dataset.catalog.episodes.row_of(episode)])
    found = []
    for frame in range(length):
        sample = dataset.sample(episode, frame)
        seen = {key: value for key, value in sample.items() if key.startswith("observation.")}
        seen = {
            key: value.permute(1, 2, 0) if value.ndim == 3 else value for key, value in seen.items()
        }
        found.append({key: value.numpy() for key, value in seen.items()} | {"task": sample["task"]})
    return found


def test_the_contract_is_that_of_the_recordings(trained: Path, data: Path) -> None:
    contract = Contract.read_folder(trained)
    assert contract is not None
    ((head, facts),) = contract.robots.items()
    dataset = us.EpisodeDataset(data)
    assert (facts.fps, facts.chunk) == (dataset.fps, 3)
    assert list(facts.cameras) == list(dataset.meta.camera_keys)
    assert set(facts.tasks) == {*dataset.meta.tasks, ""}  # `augment.text_dropout`
    assert facts.state is not None
    assert facts.state.width == dataset.meta.features["observation.state"].shape[0]
    seen = np.stack([dataset.sample(0, frame)["observation.state"].numpy() for frame in range(5)])
    assert (seen <= facts.state.high + 1e-6).all()
    assert (seen >= facts.state.low - 1e-6).all()
    for key, camera in facts.cameras.items():
        assert camera.size == tuple(dataset.sample(0, 0)[key].shape[1:])
        assert camera.look is not None
    assert contract.provenance["step"] == 2
    assert contract.provenance["run"] == "trained"
    assert head in us.load_policy(trained).policy.norm_heads


def test_a_recorded_episode_has_no_mismatch(trained: Path, data: Path) -> None:
    policy = us.load_policy(trained, contract="strict")
    policy.reset()
    facts = policy.facts
    assert facts is not None
    assert (
        policy.declare(declare(fps=facts.fps, cameras=[c.key for c in facts.cameras.values()]))
        == []
    )
    for observation in observations(data):
        assert policy.act(observation).shape == (3, policy.action_dim)


def test_strict_names_a_missing_input_as_a_difference(trained: Path, data: Path) -> None:
    seen = observations(data)[0]
    policy = us.load_policy(trained, contract="strict")
    lenient = us.load_policy(trained, contract="off")
    for key in seen:
        lacking = {other: value for other, value in seen.items() if other != key}
        for call in (policy.act, policy.select_action):
            policy.reset()
            with refused(key, kind=ContractError) as caught:
                call(lacking)
            assert [(mismatch.kind, mismatch.key) for mismatch in caught.value.mismatches] == [
                ("missing key", key)
            ]
        with refused(key, kind=ValueError):
            lenient.act(lacking)


def test_strict_refuses_warn_warns_and_off_is_silent(trained: Path, data: Path) -> None:
    seen = observations(data)
    wrong = [{**each, "task": "dance"} for each in seen]
    strict = us.load_policy(trained, contract="strict")
    # no observation is accepted until the next episode
    for observation in (wrong[0], wrong[0], seen[1]):
        with refused("task", "dance", kind=ContractError) as caught:
            strict.act(observation)
        assert [mismatch.kind for mismatch in caught.value.mismatches] == ["instruction"]
    strict.reset()
    strict.act(seen[1])
    with refused("task", "dance", kind=ContractError):
        strict.act(wrong[1])
    with warned("task", "dance", kind=ContractWarning):
        us.load_policy(trained).act(wrong[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        us.load_policy(trained, contract="off").act(wrong[0])
    with refused("contract", "loud", kind=ValueError):
        us.load_policy(trained, contract="loud")  # type: ignore[arg-type]


def test_other_values_of_an_observation_are_not_looked_at(trained: Path, data: Path) -> None:
    """Beside the inputs of a batch there may be anything; a bfloat16 state is one, too."""
    one = observations(data)[0]
    batch: dict[str, object] = {
        key: np.asarray(value)[None] for key, value in one.items() if key != "task"
    }
    state = torch.tensor(batch["observation.state"]).bfloat16()
    policy = us.load_policy(trained)
    with warned("timestamp", kind=ContractWarning):
        policy.act(
            {
                **batch,
                "observation.state": state,
                "task": [one["task"]],
                "timestamp": 0.3,
                "more": {},
            }
        )


def test_a_policy_under_another_name_is_still_compared(
    trained: Path, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(data, tmp_path / "second")
    config = tiny_config(
        tmp_path / "second", tmp_path / "r", init_from=str(trained), steps=1, val={"every": 0}
    )
    assert run.train(config) == run.DONE
    policy = us.load_policy(tmp_path / "r/policy", contract="strict")
    assert policy.facts is not None
    assert policy.metadata["fps"] == policy.facts.fps
    with refused("task", "dance", kind=ContractError):
        policy.act({**observations(data)[0], "task": "dance"})


def test_checks_change_no_action(trained: Path, data: Path) -> None:
    def act(policy: RobotPolicy) -> np.ndarray:
        return np.stack(
            [
                policy.act(each, generator=torch.Generator().manual_seed(1))
                for each in observations(data)
            ]
        )

    unchecked = us.load_policy(trained, contract="off")
    assert np.array_equal(act(us.load_policy(trained, contract="strict")), act(unchecked))


def test_select_action_keeps_the_chunk(trained: Path, data: Path) -> None:
    policy = us.load_policy(trained)
    seen = observations(data)
    policy.reset()
    torch.manual_seed(0)
    taken = [policy.select_action(each, horizon=2) for each in seen[:3]]
    torch.manual_seed(0)
    chunks = [policy.act(seen[0]), policy.act(seen[2])]
    assert np.array_equal(np.stack(taken), np.concatenate([chunks[0][:2], chunks[1][:1]]))
    policy.reset()  # forgets the second action of the second chunk
    torch.manual_seed(0)
    assert np.array_equal(policy.select_action(seen[0]), chunks[0][0])
    with refused("horizon", 4, 3, kind=ValueError):
        policy.select_action(seen[0], horizon=4)


def test_a_damaged_contract_is_an_error(trained: Path, tmp_path: Path) -> None:
    folder = editable(shutil.copytree(trained, tmp_path / "policy"))
    stored = json.loads((folder / "contract.json").read_text())
    for damage in ({**stored, "version": 9}, {**stored, "robots": {"a": {}}}, []):
        (folder / "contract.json").write_text(json.dumps(damage))
        with refused("contract.json", kind=ConfigError):
            us.load_policy(folder)
