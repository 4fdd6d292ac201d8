"""Folders of released weights as a policy: all tools' files, dimensions from tensors, and files
that contradict.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from understudy.config.train import DataConfig, TrainConfig
from understudy.policies import policy_folder
from understudy.policies.inference import RobotPolicy, load_policy
from understudy.policies.pi05.config import Pi05PolicyConfig, Pi05Settings, Sizes
from understudy.policies.pi05.policy import Pi05Policy
from understudy.policies.pi05.released_keys import EXPERT_HEAD, HEAD, own_name
from understudy.policies.settings import check_start
from understudy.policies.weight_files import FILE, INDEX
from understudy.testing.pi05 import SMALL
from understudy.testing.pi05_policy import CAMERAS, NORMALISATION, policy
from understudy.testing.policies import editable
from understudy.testing.released import released_shapes
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.testing.sentences import write_model
from understudy.train import run
from understudy.train.checkpoint.run_dir import RunDir
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import main
from understudy_zoo.folder_formats import describe_folder, save_folder

BOTH = pytest.mark.parametrize("adaptive", [True, False])
MAPS = {"heads": [""], **NORMALISATION}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tokenizer"))


def folder_of(made: Pi05Policy, path: Path, tool: str) -> Path:
    if tool == "understudy":
        policy_folder.save(path, made.config, MAPS, made.state_dict())
    else:
        save_folder(path, describe_folder(tool, made.config, MAPS, {}), made.state_dict())
    return editable(path)


def edit(path: Path, change: Callable[[dict[str, Any]], object], name: str = "config.json") -> Path:
    content = json.loads((path / name).read_text())
    change(content)
    (path / name).write_text(json.dumps(content))
    return path


def edit_tensors(path: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    tensors = load_file(path / FILE)
    change(tensors)
    save_file(tensors, path / FILE)
    return path


def shard(path: Path, parts: int = 3) -> Path:
    """Cut the file into shards with an index."""
    tensors = load_file(path / FILE)
    (path / FILE).unlink()
    names = {
        key: f"model-{number % parts + 1:05}-of-{parts:05}.safetensors"
        for number, key in enumerate(tensors)
    }
    for name in set(names.values()):
        save_file({key: tensors[key] for key in names if names[key] == name}, path / name)
    (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return path


def act(loaded: RobotPolicy) -> np.ndarray:
    seen = {camera: np.full((12, 10, 3), 90, np.uint8) for camera in loaded.config.cameras}
    observation = {
        **seen,
        "observation.state": np.full(2, 0.25, np.float32),
        "task": "push the block",
    }
    return loaded.act(observation, generator=torch.Generator().manual_seed(0))


def check_same(loaded: RobotPolicy, made: Pi05Policy) -> None:
    own = dict(loaded.policy.named_parameters())
    assert own.keys() == dict(made.named_parameters()).keys()
    assert all(torch.equal(own[name], parameter) for name, parameter in made.named_parameters())
    assert loaded.config.sizes == replace(made.config.sizes, chunk=loaded.config.sizes.chunk)
    for name in ("type", "chunk", "action_dim", "state_dim", "prompt", "prompt_tokens"):
        assert getattr(loaded.config, name) == getattr(made.config, name)


@pytest.mark.short(
    "openpi-True-False", "openpi-True-True", "openpi-False-True", "understudy-False-False"
)
@BOTH
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("tool", ["understudy", "lerobot", "openpi"])
def test_folder_of_each_tool_is_the_policy(
    tool: str, sharded: bool, adaptive: bool, tokenizer: Path, tmp_path: Path
) -> None:
    made = policy(tokenizer, adaptive)
    path = folder_of(made, tmp_path / "w", tool)
    loaded = load_policy(shard(path) if sharded else path)
    check_same(loaded, made)
    assert loaded.config.cameras == CAMERAS
    expected = act(RobotPolicy(made, {}))
    assert np.allclose(act(loaded), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@BOTH
def test_dimensions_come_from_the_tensors(adaptive: bool, tokenizer: Path, tmp_path: Path) -> None:
    """Only heads and chunk are no shapes; heads of keys and values are one unless stated."""
    made = policy(tokenizer, adaptive)
    path = folder_of(made, tmp_path / "w", "understudy")
    heads = {"vision": {"heads": SMALL.vision.heads}}
    for part in ("vlm", "expert"):
        heads[part] = {"num_kv_heads": SMALL.vlm.num_kv_heads}
    check_same(load_policy(edit(path, lambda c: c.update(dimensions=heads))), made)
    alone = load_policy(
        edit(path, lambda c: c.update(dimensions={"vision": heads["vision"]}))
    ).config.sizes.vlm
    assert (alone.num_heads, alone.num_kv_heads, alone.head_dim) == (2, 1, 16)
    with pytest.raises(ValueError, match=r"dimensions\.vision\.heads"):
        load_policy(edit(path, lambda c: c.pop("dimensions")))


def test_chunk_of_the_dimensions_serves_where_there_is_no_other(
    tokenizer: Path, tmp_path: Path
) -> None:
    path = folder_of(policy(tokenizer), tmp_path / "w", "understudy")
    assert load_policy(edit(path, lambda c: c.pop("chunk"))).config.chunk == SMALL.chunk
    assert load_policy(edit(path, lambda c: c.update(chunk=3))).config.chunk == 3
    edit(path, lambda c: (c.pop("chunk"), c["dimensions"].pop("chunk")))
    with pytest.raises(ValueError, match="chunk"):
        load_policy(path)


def _stored(path: Path, sizes: Sizes, **config: Any) -> Path:
    path.mkdir()
    save_file(
        {key: torch.zeros(shape) for key, shape in released_shapes(sizes).items()}, path / FILE
    )
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_released_lerobot_config_is_read(tmp_path: Path) -> None:
    """Fields as in the released pi05_base, which has a camera without images in its variants."""
    features = {
        f"observation.images.{name}": {"type": "VISUAL", "shape": [3, 8, 8]} for name in ("b", "a")
    }
    features["observation.images.empty_camera_0"] = {"type": "VISUAL", "shape": [3, 8, 8]}
    path = _stored(
        tmp_path / "w",
        SMALL,
        type="pi05",
        chunk_size=50,
        dtype="bfloat16",
        image_resolution=[224, 224],
        paligemma_variant="gemma_2b",
        dimensions={
            name: value
            for name, value in asdict(SMALL).items()
            if name not in ("chunk", "adaptive")
        },
        tokenizer_max_length=120,
        n_obs_steps=1,
        input_features={**features, "observation.state": {"type": "STATE", "shape": [4]}},
        output_features={"action": {"type": "ACTION", "shape": [3]}},
    )
    maps = {
        "action": {"offset": [0] * 3, "spread": [1] * 3},
        "observation.state": {"offset": [0] * 4, "spread": [1] * 4},
    }
    found = load_policy(path, normalization=maps).config
    assert found.cameras == ("observation.images.b", "observation.images.a")
    assert (found.chunk, found.action_dim, found.state_dim, found.prompt_tokens) == (50, 3, 4, 120)
    with pytest.raises(ValueError, match="normalization"):
        load_policy(path)
    with pytest.raises(ValueError, match="n_obs_steps"):
        load_policy(edit(path, lambda c: c.update(n_obs_steps=2)), normalization=maps)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c["dimensions"]["vlm"].update(width=32), ["dimensions.vlm.width", 32]),
        (lambda c: c["dimensions"]["vlm"].update(depth=10**9), ["dimensions.vlm.depth", 10**9]),
        (lambda c: c["dimensions"]["vision"].update(image=16), ["dimensions.vision.image", 16]),
        (
            lambda c: c["dimensions"]["expert"].update(num_heads=3),
            ["dimensions.expert.num_heads", 3],
        ),
        (lambda c: c["dimensions"].update(dim=7), ["dimensions.dim", 7, "action_in_proj.weight"]),
        (lambda c: c["dimensions"].update(adaptive=False), ["dimensions.adaptive", False]),
        (lambda c: c["dimensions"].update(vlm=[1]), ["dimensions.vlm", [1]]),
        (lambda c: c["dimensions"].update(more=1), ["more"]),
        (lambda c: c.update(type="pi0"), ["type", "'pi0'"]),
        (lambda c: c.update(metadata=3), ["metadata"]),
    ],
)
def test_config_that_contradicts_the_tensors_is_refused(
    change: Callable[[Any], object], named: list[object], tokenizer: Path, tmp_path: Path
) -> None:
    path = edit(folder_of(policy(tokenizer), tmp_path / "w", "understudy"), change)
    with refused(path / "config.json", *named, kind=ValueError):
        load_policy(path)


def _nan(tensors: dict[str, Tensor]) -> None:
    tensors["action_in_proj.bias"][1] = torch.nan


def _infinite(tensors: dict[str, Tensor]) -> None:
    tensors["action_in_proj.bias"] = tensors["action_in_proj.bias"].half()
    tensors["action_in_proj.bias"][1] = torch.inf


def _misshapen(tensors: dict[str, Tensor]) -> None:
    tensors["action_in_proj.bias"] = torch.zeros(3)


@pytest.mark.parametrize(
    "change", [_nan, _infinite, _misshapen, lambda t: t.pop("action_in_proj.bias")]
)
def test_damaged_tensor_is_named(
    change: Callable[[Any], object], tokenizer: Path, tmp_path: Path
) -> None:
    path = edit_tensors(folder_of(policy(tokenizer), tmp_path / "w", "lerobot"), lambda t: None)
    edit_tensors(
        path, lambda t: [t.update({key.removeprefix("model."): t.pop(key)}) for key in list(t)]
    )
    edit_tensors(path, change)
    with pytest.raises(ValueError, match=r"action_in_proj\.bias"):
        load_policy(path)


PI052: dict[str, Any] = {
    "type": "pi052",
    "recipe_path": "recipes/subtask_mem.yaml",
    "text_loss_weight": 1.0,
}
RECIPE = {
    "blend": {
        "low": {
            "weight": 1.0,
            "messages": [{"role": "user", "content": "${task}", "stream": "low_level"}],
        }
    }
}


def pi052_of(path: Path) -> Path:
    """Make a folder of LeRobot's pi052 of one of its pi05: other processors, and a trained text
    head.
    """

    def steps(processor: dict[str, Any]) -> None:
        own = [{"registry_name": "render_messages_processor", "config": {"recipe": RECIPE}}]
        own += [
            {
                "registry_name": "pi052_text_tokenizer",
                "config": {"max_length": 200, "subtask_dropout_prob": 0.1},
            }
        ]
        own += [
            {"registry_name": "action_tokenizer_processor", "config": {"fast_skip_tokens": 1152}}
        ]
        before = processor["steps"][:4]
        behind = processor["steps"][-1:]
        assert before[-1]["registry_name"] == "normalizer_processor"
        processor["steps"] = [*before, *own, *behind]

    edit(path, lambda config: config.update(PI052))
    edit(path, steps, "policy_preprocessor.json")
    return edit_tensors(path, lambda tensors: tensors[f"model.{HEAD}"].add_(1.0))


def test_pi052_folder_is_the_policy_it_was_made_from(tokenizer: Path, tmp_path: Path) -> None:
    """The same weights and normalization, and other prompts; the trained head next to the embedding
    is not read.
    """
    made = policy(tokenizer)
    path = pi052_of(folder_of(made, tmp_path / "w", "lerobot"))
    loaded = load_policy(path)
    assert loaded.config.prompt == "message"
    expected = act(RobotPolicy(policy(tokenizer, prompt="message"), {}))
    assert np.allclose(act(loaded), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert not np.allclose(expected, act(RobotPolicy(made, {})), rtol=0, atol=1e-3), (
        "the prompt matters"
    )
    plain = load_policy(edit(path, lambda config: config.update(recipe_path=None)))
    check_same(plain, made)
    golden = act(RobotPolicy(made, {}))
    assert np.allclose(act(plain), golden, rtol=0, atol=1e-5 * np.abs(golden).max())


def test_pi052_with_a_subtask_in_the_prefix_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    path = pi052_of(folder_of(policy(tokenizer), tmp_path / "w", "lerobot"))
    with refused("joint_subtask_conditioning", kind=ValueError):
        load_policy(edit(path, lambda config: config.update(joint_subtask_conditioning=True)))


@pytest.mark.long
def test_run_starts_from_a_pi052_folder_and_exports_one(tmp_path: Path) -> None:
    data = tiny_dataset(tmp_path / "data")
    base = tiny_config(data, tmp_path / "first", steps=1)
    chosen = Pi05Settings(size="tiny", tokenizer=str(write_model(tmp_path / "tok")))
    assert run.train(replace(base, policy=chosen)) == run.DONE
    assert main(["export", str(tmp_path / "first"), "--format", "lerobot"]) == 0
    weights = str(pi052_of(editable(tmp_path / "first/export-lerobot")))
    second = replace(
        base, output_dir=str(tmp_path / "second"), policy=replace(chosen, weights=weights)
    )
    with refused("policy.prompt", "message", kind=ConfigError):
        run.train(second)
    assert (
        run.train(replace(second, policy=replace(chosen, weights=weights, prompt="message")))
        == run.DONE
    )
    assert main(["export", str(tmp_path / "second"), "--format", "lerobot"]) == 0
    stored = json.loads((tmp_path / "second/export-lerobot/config.json").read_text())
    assert (stored["type"], stored["enable_fast_action_loss"]) == ("pi052", False)
    assert load_policy(tmp_path / "second/export-lerobot").config.prompt == "message"


def test_links_of_a_hub_cache_are_followed(tokenizer: Path, tmp_path: Path) -> None:
    made = policy(tokenizer)
    path = shard(folder_of(made, tmp_path / "w", "lerobot"))
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, file in enumerate(sorted(path.iterdir())):
        file.rename(blobs / str(number))
        file.symlink_to(Path("..") / "blobs" / str(number))
    check_same(load_policy(path), made)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float64])
def test_values_of_the_file_are_kept(stored: torch.dtype, tokenizer: Path, tmp_path: Path) -> None:
    path = folder_of(policy(tokenizer), tmp_path / "w", "openpi")
    edit_tensors(path, lambda t: t.update({key: tensor.to(stored) for key, tensor in t.items()}))
    own = dict(load_policy(path).policy.named_parameters())
    for key, tensor in load_file(path / FILE).items():
        if key != EXPERT_HEAD:
            assert own[str(own_name(key))].dtype == torch.float32
            assert torch.equal(own[str(own_name(key))], tensor.float())


@BOTH
def test_bfloat16_weights_are_rounded_once(adaptive: bool, tokenizer: Path, tmp_path: Path) -> None:
    made = policy(tokenizer, adaptive)
    path = folder_of(made, tmp_path / "w", "understudy")
    loaded = load_policy(path, compute="bfloat16")
    dtypes = {name: parameter.dtype for name, parameter in loaded.policy.named_parameters()}
    narrow = [name for name, dtype in dtypes.items() if dtype == torch.bfloat16]
    assert {"layers.0.vlm.mlp.up_proj.weight", "vision.layers.1.mlp.fc1.bias"} <= set(narrow)
    assert not any(
        "norm.weight" in name or name.startswith(("action_", "embedding")) for name in narrow
    )
    whole = policy(tokenizer, adaptive, compute="bfloat16")
    assert np.array_equal(act(loaded), act(RobotPolicy(whole, {})))
    assert not np.array_equal(act(loaded), act(load_policy(path)))


def settings(folder: Path, **changes: Any) -> TrainConfig:
    return TrainConfig(
        data=DataConfig(root="d"), policy=Pi05Settings(weights=str(folder), **changes)
    ).resolved()


@pytest.mark.parametrize("tool", ["understudy", "lerobot", "openpi"])
def test_run_takes_chunk_dimensions_and_tokenizer_of_the_weights(
    tool: str, tokenizer: Path, tmp_path: Path
) -> None:
    made = policy(tokenizer)
    path = folder_of(made, tmp_path / "w", tool)
    found = settings(path, prompt_tokens=80)
    chosen = found.policy
    assert isinstance(chosen, Pi05Settings)
    assert found.data.chunk_size == made.config.chunk
    assert chosen.network_size == (8, 8)
    assert chosen.tokenizer == str(path / "tokenizer.model")
    network = Pi05PolicyConfig(
        **asdict(chosen), action_dim=3, state_dim=2, chunk=4, cameras=CAMERAS
    )
    assert replace(network.sizes, chunk=5) == made.config.sizes
    assert network.network_size == (8, 8)
    check_start(network)
    for name in (FILE, "config.json"):
        (path / name).unlink()
    assert found.with_policy_defaults() == found, "a run resumes without the folder"
    mine = TrainConfig(data=DataConfig(root="d", chunk_size=7), policy=replace(chosen, network=""))
    assert mine.with_policy_defaults().data.chunk_size == 7


def test_run_without_weights_has_the_default_chunk() -> None:
    found = TrainConfig(data=DataConfig(root="d"), policy=Pi05Settings(size="tiny")).resolved()
    assert found.data.chunk_size == 8
    assert isinstance(found.policy, Pi05Settings)
    assert not found.policy.network


@pytest.mark.parametrize("text", ["[]", "{", '{"dim": 4}', "3"])
def test_network_that_is_no_object_of_dimensions_is_a_problem(text: str) -> None:
    assert [line.split(":")[0] for line in Pi05Settings(network=text).problems()] == ["network"]


def test_damaged_weights_are_named_before_a_run(tokenizer: Path, tmp_path: Path) -> None:
    path = folder_of(policy(tokenizer), tmp_path / "w", "lerobot")
    (path / FILE).write_bytes((path / FILE).read_bytes()[:-1])
    with refused("policy.weights", path / FILE, kind=ConfigError):
        settings(path)


@pytest.mark.long
def test_weights_and_data_are_all_that_a_run_needs(tmp_path: Path) -> None:
    data = tiny_dataset(tmp_path / "data")
    sizes = {
        name: value
        for name, value in asdict(replace(SMALL, vocab=256)).items()
        if name != "adaptive"
    }
    path = _stored(
        tmp_path / "w", replace(SMALL, vocab=256), type="pi05", chunk_size=3, dimensions=sizes
    )
    write_model(path)
    base = tiny_config(data, tmp_path / "run", steps=2)
    config = replace(
        base,
        data=replace(base.data, chunk_size=None),
        policy=Pi05Settings(weights=str(path), normalization="data"),
    )
    assert run.train(config) == run.DONE
    for name in (FILE, "config.json"):
        (path / name).unlink()
    assert run.resume(replace(RunDir(tmp_path / "run").settings(), steps=3)) == run.DONE
    found = load_policy(tmp_path / "run").config
    assert (found.chunk, found.sizes.vlm) == (3, SMALL.vlm)
