"""Weights in openpi's JAX format: the map of names and arrays both ways, and files that orbax has
written.
"""

import json
import shutil
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from understudy.distributed.fill_weights import fill
from understudy.policies.inference import load_policy
from understudy.policies.pi05.first_weights import FirstWeights
from understudy.policies.pi05.released_keys import WeightsError
from understudy.policies.weight_files import open_weights
from understudy.testing.pi05 import GOLDEN, SMALL, small
from understudy_base import ACTION, STATE
from understudy_zoo.pi05.jax_tree import JaxTree, find_places
from understudy_zoo.testing import jax_tree

STORED = GOLDEN / "jax"
"""The tree of `jax_tree.weights()`, written by orbax-checkpoint 0.12.8 (`python
packages/understudy-zoo/src/understudy_zoo/testing/jax_tree.py`)."""
BOTH = pytest.mark.parametrize("adaptive", [True, False], ids=["pi05", "pi0"])
TENSORSTORE = pytest.mark.skipif(
    find_spec("tensorstore") is None, reason="needs the extra jax-weights (tensorstore)"
)


def arrays(adaptive: bool) -> dict[str, np.ndarray]:
    return {
        name.replace("/", "."): array
        for name, array in jax_tree.tree(jax_tree.weights(adaptive)).items()
    }


@BOTH
def test_every_parameter_has_its_place_in_the_tree(adaptive: bool) -> None:
    """The tree is made by other formulas than those that read it; each of its values is read
    once.
    """
    given = arrays(adaptive)
    own = jax_tree.weights(adaptive)
    places = find_places({name: array.shape for name, array in given.items()})
    assert places.keys() == own.keys()
    for name, (place, shape) in places.items():
        found = place.form.convert(given[place.array][place.at])
        assert shape == found.shape, name
        assert np.array_equal(found, own[name]), name
    assert sum(array.size for array in given.values()) == sum(array.size for array in own.values())


def test_unknown_arrays_and_other_dimensions_keep_their_names() -> None:
    given = {name: array.shape for name, array in arrays(True).items()}
    given["PaliGemma.llm.layers.attn.qkv_einsum.w"] = (3, 3, 4, 24, 8)
    given["PaliGemma.llm.layers.attn.q_einsum.w"] = (3, 4, 24)
    places = find_places(given)
    assert {
        "PaliGemma.llm.layers.attn.qkv_einsum.w",
        "PaliGemma.llm.layers.attn.q_einsum.w",
    } <= places.keys()
    assert "layers.0.vlm.self_attn.q_proj.weight" not in places


@TENSORSTORE
def test_stored_tree_fills_a_network_with_the_bits_of_its_weights() -> None:
    network = small()
    own = jax_tree.weights()
    read = FirstWeights({name: p.shape for name, p in network.named_parameters()}, STORED)
    fill(network.named_parameters(), read)
    assert [
        name
        for name, p in network.named_parameters()
        if not np.array_equal(p.detach().numpy(), own[name])
    ] == []
    assert set(read.dtypes.values()) == {torch.float32}
    tree = open_weights(STORED)
    assert isinstance(tree, JaxTree)
    for name in ("embedding.weight", "layers.1.expert.mlp.up_proj.weight"):
        assert np.array_equal(tree.read(name, 3, 9).numpy(), own[name][3:9])
        assert np.array_equal(tree.read(name, 5).numpy(), own[name][5:])


@TENSORSTORE
def test_tree_of_another_network_is_an_error_by_name(tmp_path: Path) -> None:
    shapes = {name: parameter.shape for name, parameter in small(adaptive=False).named_parameters()}
    with pytest.raises(WeightsError) as caught:
        FirstWeights(shapes, STORED)
    assert "pi05" in caught.value.fix
    with pytest.raises(FileNotFoundError):
        JaxTree(tmp_path)


def values(folder: Path) -> dict[str, np.ndarray] | None:
    """The parameters of a tree; None: it is refused."""
    try:
        tree = JaxTree(folder)
        return {name: tree.read(name).numpy() for name in tree.shapes}
    except ValueError:
        return None


@TENSORSTORE
def test_folder_with_a_tree_loads_as_a_policy(tmp_path: Path) -> None:
    """A file of weights beside the tree comes first."""
    folder = shutil.copytree(STORED, tmp_path / "openpi")
    config = {
        "type": "pi05",
        "action_dim": SMALL.dim,
        "state_dim": 2,
        "chunk": SMALL.chunk,
        "cameras": ["base"],
    }
    (folder / "config.json").write_text(json.dumps(config | {"dimensions": asdict(SMALL)}))
    unit = {
        key: {"offset": [0.0] * n, "spread": [1.0] * n}
        for key, n in ((ACTION, SMALL.dim), (STATE, 2))
    }
    (folder / "normalisation.json").write_text(json.dumps(unit))
    own = jax_tree.weights()
    found = load_policy(folder)
    assert {name: p.shape for name, p in found.policy.named_parameters()} == {
        n: own[n].shape for n in own
    }
    assert [
        n
        for n, p in found.policy.named_parameters()
        if not np.array_equal(p.detach().numpy(), own[n])
    ] == []
    save_file(
        {name: torch.from_numpy(2 * array) for name, array in own.items()},
        folder / "model.safetensors",
    )
    loaded = dict(load_policy(folder).policy.named_parameters())
    assert np.array_equal(loaded["embedding.weight"].detach().numpy(), 2 * own["embedding.weight"])


@TENSORSTORE
def test_digest_of_a_tree_is_that_of_its_files(tmp_path: Path) -> None:
    folder = shutil.copytree(STORED, tmp_path / "copy")
    assert JaxTree(folder).digest() == JaxTree(STORED).digest()
    (folder / "params" / "_METADATA").write_text("{}")
    assert JaxTree(folder).digest() != JaxTree(STORED).digest()


@TENSORSTORE
@pytest.mark.parametrize("damage", ["lost", "short"])
def test_damaged_tree_never_gives_other_values(tmp_path: Path, damage: str) -> None:
    """orbax keeps files that nothing reads; the loss of any other is an error."""
    own = jax_tree.weights()
    refused = 0
    for number, file in enumerate(
        sorted(path.relative_to(STORED) for path in STORED.glob("params/**/d/*"))
    ):
        broken = shutil.copytree(STORED, tmp_path / str(number))
        content = (broken / file).read_bytes()
        (broken / file).unlink()
        if damage == "short":
            (broken / file).write_bytes(content[: len(content) // 2])
        if (found := values(broken)) is None:
            refused += 1
        else:
            assert found.keys() == own.keys()
            assert all(np.array_equal(found[name], own[name]) for name in own), file
    assert refused >= 2


@TENSORSTORE
@BOTH
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_trees_of_orbax_are_read(tmp_path: Path, adaptive: bool, kind: str) -> None:
    pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    given = jax_tree.tree(jax_tree.weights(adaptive))
    if kind == "bfloat16":
        given = {name: array.astype(ml_dtypes.bfloat16) for name, array in given.items()}
    found = JaxTree(jax_tree.write(tmp_path / "tree", given))
    own = jax_tree.weights(adaptive)
    assert found.shapes == {name: array.shape for name, array in own.items()}
    assert set(found.dtypes.values()) == {getattr(torch, kind)}
    assert [
        name for name in own if not np.array_equal(found.read(name).float().numpy(), own[name])
    ] == []
    if kind == "float32":
        broken = given | {"action_in_proj/bias": np.full_like(given["action_in_proj/bias"], np.nan)}
        tree = JaxTree(jax_tree.write(tmp_path / "broken", broken))
        with pytest.raises(ValueError, match=r"action_in_proj\.bias"):
            tree.read("action_in_proj.bias")
