"""A saved policy comes back bit for bit, is written whole or not at all, and damage is named."""

import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

import understudy as us
from understudy.policies.flow.model import FlowPolicy
from understudy.policies.policy import Policy
from understudy.testing.arm import write_arm_policy
from understudy.testing.policies import batch, draws, editable, policy
from understudy_base.testing.calls import recorded_calls
from understudy_base.testing.refusals import refused


def test_what_is_loaded_is_bit_equal(tmp_path: Path) -> None:
    model = policy()
    model.save(tmp_path / "policy")
    state = torch.get_rng_state()
    back = FlowPolicy.load(tmp_path / "policy")
    # loading draws nothing that anyone could notice
    assert torch.equal(torch.get_rng_state(), state)
    assert back.config == model.config
    for (name, weight), (other_name, other) in zip(
        model.state_dict().items(), back.state_dict().items(), strict=True
    ):
        assert name == other_name
        assert torch.equal(weight, other)
    for (name, buffer), (_, other) in zip(model.named_buffers(), back.named_buffers(), strict=True):
        assert torch.equal(buffer, other), name
    data, (noise, _) = batch(3), draws(3)
    assert torch.equal(
        model.act(data, {"noise": noise[:, 0]}), back.act(data, {"noise": noise[:, 0]})
    )


def test_normalization_survives_where_decimal_text_could_round(tmp_path: Path) -> None:
    model = policy()
    values = torch.tensor([0.1, 1 / 3, 1e-30])
    model.normalizer.action.offset.copy_(values)
    model.normalizer.action.spread.copy_(values)
    model.save(tmp_path / "policy")
    back = FlowPolicy.load(tmp_path / "policy")
    assert torch.equal(back.normalizer.action.offset, values[None])
    assert torch.equal(back.normalizer.action.spread, values[None])


def test_the_folder_holds_five_readable_files(tmp_path: Path) -> None:
    model = policy()
    model.save(tmp_path / "policy")
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "normalisation.json",
        "understudy.sha256",
    ]
    assert json.loads((tmp_path / "policy/config.json").read_text())["chunk"] == 4
    maps = json.loads((tmp_path / "policy/normalisation.json").read_text())
    assert set(maps) == {"heads", "action", "observation.state", "delta", "dims"}
    assert all(
        weight.dtype == torch.float32
        for weight in load_file(tmp_path / "policy/model.safetensors").values()
    )


def test_saving_again_replaces_the_folder_whole(tmp_path: Path) -> None:
    policy(seed=0).save(tmp_path / "policy")
    policy(seed=1).save(tmp_path / "policy")
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]
    assert torch.equal(FlowPolicy.load(tmp_path / "policy").fuse.weight, policy(seed=1).fuse.weight)


def test_a_save_that_breaks_off_leaves_the_old_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy(seed=0).save(tmp_path / "policy")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused(28, kind=OSError):
        policy(seed=1).save(tmp_path / "policy")
    assert torch.equal(FlowPolicy.load(tmp_path / "policy").fuse.weight, policy(seed=0).fuse.weight)
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]  # nor does it keep a full disk full


def _killed(target: Path, at: int) -> None:
    """Save a policy in a process that is killed before a rename."""
    rename = os.rename
    count = itertools.count(1)

    def killing(*paths: Any) -> None:
        if next(count) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*paths)

    os.rename = killing  # type: ignore[assignment]
    policy(seed=1).save(target)


@pytest.mark.parametrize(("at", "seed"), [(1, 0), (2, 1)])
def test_a_kill_between_the_renames_costs_neither_policy(
    tmp_path: Path, at: int, seed: int
) -> None:
    target = tmp_path / "policy"
    policy(seed=0).save(target)
    foreign = [
        tmp_path / name
        for name in (".policy-2.understudy", ".policy-mine-a.understudy", "policy.old")
    ]
    for folder_ in foreign:
        folder_.mkdir()
        (folder_ / "thesis.txt").write_text("years of work")
    before = set(tmp_path.iterdir())
    process = multiprocessing.get_context("fork").Process(target=_killed, args=(target, at))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert set(tmp_path.iterdir()) != before
    assert torch.equal(FlowPolicy.load(target).fuse.weight, policy(seed=seed).fuse.weight)
    policy(seed=2).save(target)
    assert torch.equal(FlowPolicy.load(target).fuse.weight, policy(seed=2).fuse.weight)
    assert set(tmp_path.iterdir()) == before
    assert all((folder_ / "thesis.txt").is_file() for folder_ in foreign)


def _a_file(path: Path) -> None:
    path.write_text("a file of the user's")


def _a_folder(path: Path) -> None:
    (path / "precious").mkdir(parents=True)
    (path / "precious/thesis.txt").write_text("years of work")


def _a_policy_with_notes(path: Path) -> None:
    policy().save(path)
    (path / "notes.md").write_text("trained on Tuesday")


def _a_policy_with_a_folder_of_our_name(path: Path) -> None:
    (path / "config.json").mkdir(parents=True)


def _another_policy(path: Path) -> None:
    policy().save(path)
    (path / "config.json").write_text('{"type": "act"}')


@pytest.mark.parametrize(
    "made",
    [
        _a_file,
        _a_folder,
        _a_policy_with_notes,
        _a_policy_with_a_folder_of_our_name,
        _another_policy,
    ],
)
def test_what_is_no_policy_is_not_replaced(tmp_path: Path, made: Callable[[Path], None]) -> None:
    made(tmp_path / "there")
    before = {path: path.read_bytes() if path.is_file() else b"" for path in tmp_path.rglob("*")}
    with pytest.raises(FileExistsError, match="there"):
        policy().save(tmp_path / "there")
    assert {
        path: path.read_bytes() if path.is_file() else b"" for path in tmp_path.rglob("*")
    } == before


def test_a_link_stays_a_link_and_the_current_folder_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy(seed=0).save(tmp_path / "first")
    (tmp_path / "latest").symlink_to("first")
    policy(seed=1).save(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert torch.equal(FlowPolicy.load(tmp_path / "first").fuse.weight, policy(seed=1).fuse.weight)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(FileExistsError):
        policy().save(".")


@pytest.mark.parametrize("umask", [0o022, 0o007, 0o077])
def test_the_files_are_readable_as_the_umask_says(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        policy().save(tmp_path / "policy")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "policy").iterdir()} == {
        0o666 & ~umask
    }
    assert (tmp_path / "policy").stat().st_mode & 0o777 == 0o777 & ~umask


def test_the_weights_say_which_library_they_are_for(tmp_path: Path) -> None:
    policy().save(tmp_path / "policy")
    with safe_open(tmp_path / "policy/model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_everything_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = recorded_calls(monkeypatch)
    policy().save(tmp_path / "policy")
    named = next(number for number, (call, path) in enumerate(calls) if call == "rename")
    flushed = {path.name for call, path in calls[:named] if call == "fsync"}
    assert flushed >= {"model.safetensors", "config.json", "normalisation.json", "new"}
    assert ("fsync", tmp_path) in calls[named:]


@pytest.mark.parametrize("name", ["config.json", "normalisation.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    policy().save(tmp_path)
    (editable(tmp_path) / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        FlowPolicy.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "named"),
    [("{", "JSON"), ("[]", "list"), ('{"type": "Other"}', "'Other'"), ("SURPLUS", "'surplus'")],
)
def test_a_wrong_config_is_refused(tmp_path: Path, text: str, named: str) -> None:
    policy().save(tmp_path)
    path = editable(tmp_path) / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"surplus": 1}) if text == "SURPLUS" else text
    )
    with refused(path, named, kind=ValueError):
        FlowPolicy.load(tmp_path)


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    policy().save(tmp_path)
    path = editable(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with refused(path, kind=ValueError):
        FlowPolicy.load(tmp_path)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    policy(width=64).save(tmp_path / "wide")
    policy().save(tmp_path / "policy")
    (tmp_path / "wide/model.safetensors").rename(
        editable(tmp_path / "policy") / "model.safetensors"
    )
    with refused("text.near.weight", 64, 32, kind=ValueError):
        FlowPolicy.load(tmp_path / "policy")


@pytest.mark.parametrize(
    "change",
    [
        {"width": 1_000_000},
        {"chunk": 10**10},
        {"chunk": 10**18},
        {"chunk": 10**30},
        {"channels": 2**16},
        {"cameras": [f"observation.images.{number}" for number in range(2000)]},
    ],
)
def test_config_chooses_no_amount_of_memory(tmp_path: Path, change: dict[str, Any]) -> None:
    policy().save(tmp_path)
    path = editable(tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with refused(str(tmp_path), kind=ValueError):
        FlowPolicy.load(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB: 256 MiB


@pytest.mark.parametrize("dims", [[float("inf")], [float("nan")], ["x"], 3, [1.5], [0]])
def test_wrong_number_of_dimensions_is_one_clean_error(tmp_path: Path, dims: Any) -> None:
    policy().save(tmp_path)
    path = editable(tmp_path) / "normalisation.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"dims": stored["dims"] | {"action": dims}}))
    with pytest.raises(ValueError, match="dims"):
        FlowPolicy.load(tmp_path)


def test_own_way_to_load_weights_takes_no_memory_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a policy fills missing names by itself, and the shapes of the others are compared."""

    def load_weights(self: FlowPolicy, weights: Mapping[str, Tensor]) -> None:
        Policy.load_weights(self, {"out_proj.bias": torch.ones(12), **weights})

    monkeypatch.setattr(FlowPolicy, "load_weights", load_weights)
    policy().save(
        tmp_path,
        {name: weight for name, weight in policy().state_dict().items() if name != "out_proj.bias"},
    )
    assert FlowPolicy.load(tmp_path).get_parameter("out_proj.bias").eq(1).all()
    path = editable(tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"width": 1_000_000}))
    with refused("1000000", kind=ValueError):
        FlowPolicy.load(tmp_path)


WRONG = (float("inf"), 10**30, True, None, "x", [None], {"a": 1}, [["x"]])
"""JSON values of another type than a file has."""


def damaged(value: Any, wrong: Any) -> Iterator[Any]:
    """Copies of a JSON value in each of which one part is `wrong`."""
    yield wrong
    if isinstance(value, dict | list):
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
        for key, part in items[: 2 if isinstance(value, list) else None]:
            for other in damaged(part, wrong):
                changed = value.copy()
                changed[key] = other
                yield changed


@pytest.mark.short("contract.json")
@pytest.mark.parametrize("name", ["normalisation.json", "config.json", "contract.json"])
def test_wrong_value_in_a_file_is_one_clean_error(name: str, tmp_path: Path) -> None:
    path = editable(write_arm_policy(tmp_path / "policy")) / name
    draw = random.Random(name)
    stored = json.loads(path.read_text())
    for wrong in WRONG:
        copies = list(damaged(stored, wrong))
        for content in [copies[0], *draw.sample(copies, 7)]:
            path.write_text(json.dumps(content))
            with suppress(ValueError):
                us.load_policy(path.parent, head="arm")


@pytest.mark.parametrize("heads", [None, [], {"": None}, {"": ["x"]}, 3])
def test_metadata_of_another_form_are_refused(tmp_path: Path, heads: Any) -> None:
    policy().save(tmp_path)
    path = editable(tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metadata": {"heads": heads}}))
    with refused(path, "metadata", kind=ValueError):
        us.load_policy(tmp_path)


def test_a_run_without_a_policy_yet_names_the_command_that_writes_it(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("steps: 3\n")
    with refused("export", str(tmp_path / "run"), kind=FileNotFoundError):
        us.load_policy(tmp_path / "run")
