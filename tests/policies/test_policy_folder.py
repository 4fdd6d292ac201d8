"""A saved policy comes back bit for bit, is written whole or not at all, and damage is named."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.policies import batch, draws, policy
from understudy.policies import folder
from understudy.policies.flow_policy import FlowPolicy


def test_what_is_loaded_is_bit_equal(tmp_path: Path) -> None:
    model = policy()
    model.save(tmp_path / "policy")
    state = torch.get_rng_state()
    back = FlowPolicy.load(tmp_path / "policy")
    assert torch.equal(torch.get_rng_state(), state)  # loading draws nothing that anyone could notice
    assert back.config == model.config
    for (name, weight), (other_name, other) in zip(model.state_dict().items(), back.state_dict().items(), strict=True):
        assert name == other_name
        assert torch.equal(weight, other)
    for (name, buffer), (_, other) in zip(model.named_buffers(), back.named_buffers(), strict=True):
        assert torch.equal(buffer, other), name
    data, (noise, _) = batch(3), draws(3)
    assert torch.equal(model.sample_actions(data, noise[:, 0]), back.sample_actions(data, noise[:, 0]))


def test_normalisation_survives_where_decimal_text_could_round(tmp_path: Path) -> None:
    model = policy()
    values = torch.tensor([0.1, 1 / 3, 1e-30])
    model.units.action.offset.copy_(values)
    model.units.action.spread.copy_(values)
    model.save(tmp_path / "policy")
    back = FlowPolicy.load(tmp_path / "policy")
    assert torch.equal(back.units.action.offset, values[None])
    assert torch.equal(back.units.action.spread, values[None])


def test_the_folder_holds_three_readable_files(tmp_path: Path) -> None:
    model = policy()
    model.save(tmp_path / "policy")
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["config.json", "model.safetensors", "normalisation.json"]
    assert json.loads((tmp_path / "policy/config.json").read_text())["chunk"] == 4
    maps = json.loads((tmp_path / "policy/normalisation.json").read_text())
    assert set(maps) == {"heads", "action", "observation.state", "delta", "dims"}
    assert all(weight.dtype == torch.float32 for weight in load_file(tmp_path / "policy/model.safetensors").values())


def test_saving_again_replaces_the_folder_whole(tmp_path: Path) -> None:
    policy(seed=0).save(tmp_path / "policy")
    (tmp_path / "policy/stale").touch()
    policy(seed=1).save(tmp_path / "policy")
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]
    assert not (tmp_path / "policy/stale").exists()
    assert torch.equal(FlowPolicy.load(tmp_path / "policy").fuse.weight, policy(seed=1).fuse.weight)


def test_a_save_that_breaks_off_leaves_the_old_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy(seed=0).save(tmp_path / "policy")

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(folder, "_flush", full)
    with pytest.raises(OSError, match="disk full"):
        policy(seed=1).save(tmp_path / "policy")
    assert torch.equal(FlowPolicy.load(tmp_path / "policy").fuse.weight, policy(seed=0).fuse.weight)
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]  # nor does it keep a full disk full
    monkeypatch.undo()
    (tmp_path / "policy.tmp").mkdir()  # as a kill leaves it
    policy(seed=1).save(tmp_path / "policy")
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


@pytest.mark.parametrize("name", ["config.json", "normalisation.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    policy().save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        FlowPolicy.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object"),
        ('{"type": "Other"}', "does not describe"),
        ("SURPLUS", "surplus"),
    ],
)
def test_a_wrong_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    policy().save(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"surplus": 1}) if text == "SURPLUS" else text)
    with pytest.raises(ValueError, match=message):
        FlowPolicy.load(tmp_path)


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    policy().save(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read"):
        FlowPolicy.load(tmp_path)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    policy(width=64).save(tmp_path / "wide")
    policy().save(tmp_path / "policy")
    (tmp_path / "wide/model.safetensors").rename(tmp_path / "policy/model.safetensors")
    with pytest.raises(ValueError, match="weights"):
        FlowPolicy.load(tmp_path / "policy")
