"""First weights of a network: of a released file in parts, and fresh ones."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from understudy.policies.pi05.config import TINY
from understudy.policies.pi05.first_weights import FirstWeights, fresh_weight
from understudy.policies.pi05.released_keys import EXPERT_HEAD, WeightsError, own_name
from understudy.policies.policy import load
from understudy.testing.pi05_policy import policy
from understudy.testing.released import released_shapes

KEYS = released_shapes(TINY)
WANTED = {str(own_name(key)): shape for key, shape in KEYS.items() if key != EXPERT_HEAD}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("released")
    generator = torch.Generator().manual_seed(0)
    save_file(
        {key: torch.randn(shape, generator=generator) for key, shape in KEYS.items()},
        path / "model.safetensors",
    )
    return path


def test_first_weights_come_from_the_file(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    weights = FirstWeights(WANTED, folder)
    for key, tensor in stored.items():
        if key != EXPERT_HEAD:
            name = str(own_name(key))
            rows = len(tensor)
            assert torch.equal(weights(name, 0, rows), tensor)
            assert torch.equal(weights(name, rows // 3, rows - 1), tensor[rows // 3 : rows - 1])


def test_first_weights_are_those_of_the_file(folder: Path) -> None:
    weights = FirstWeights(WANTED, folder, seed=3)
    drawn = FirstWeights(WANTED, seed=3)
    assert not torch.equal(
        weights("action_in_proj.weight", 0, 4), drawn("action_in_proj.weight", 0, 4)
    )
    with pytest.raises(WeightsError):
        FirstWeights(WANTED | {"vlm_norm.weight": (7,)}, folder)


@pytest.mark.parametrize("adaptive", [True, False])
def test_saved_folder_has_released_keys_and_loads_again(tmp_path: Path, adaptive: bool) -> None:
    made = policy("", adaptive=adaptive)  # type: ignore[arg-type]  # no tokenizer
    made.save(tmp_path / "policy")
    stored = load_file(tmp_path / "policy" / "model.safetensors")
    expected = released_shapes(made.sizes)
    del expected[EXPERT_HEAD]
    assert {key: tuple(tensor.shape) for key, tensor in stored.items()} == expected
    again = load(tmp_path / "policy")
    own = dict(again.named_parameters())
    assert all(torch.equal(tensor, own[name]) for name, tensor in made.named_parameters())
    weights = FirstWeights({name: tuple(p.shape) for name, p in own.items()}, tmp_path / "policy")
    assert weights.match is not None
    assert not weights.match.ignored


def test_fresh_weights_depend_on_seed_name_and_shape_alone() -> None:
    before = torch.get_rng_state()
    one = FirstWeights(WANTED, seed=1)
    two = FirstWeights(dict(reversed(WANTED.items())), seed=1)
    for name, (rows, *_) in WANTED.items():
        assert torch.equal(
            one(name, 0, rows), torch.cat([two(name, 0, rows // 2), two(name, rows // 2, rows)])
        )
    assert torch.equal(torch.get_rng_state(), before)
    name = "layers.0.vlm.mlp.up_proj.weight"
    assert not torch.equal(fresh_weight(name, WANTED[name], 1), fresh_weight(name, WANTED[name], 2))
    assert not torch.equal(
        fresh_weight(name, WANTED[name], 1), fresh_weight(name.replace("0", "1"), WANTED[name], 1)
    )


def test_fresh_weights_begin_as_the_identity() -> None:
    """Norms leave their input, adaptive ones too; matrices keep the size of activations."""
    for name, shape in WANTED.items():
        drawn = fresh_weight(name, shape, 0)
        if name.endswith(".bias") or ".dense." in name:
            assert not drawn.any()
        elif len(shape) == 1:
            assert (drawn == (1 if name.startswith("vision.") else 0)).all()
        else:
            assert drawn.std().item() == pytest.approx(drawn[0].numel() ** -0.5, rel=0.2)
