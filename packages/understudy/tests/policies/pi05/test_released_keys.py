"""Map between the names of released files and the network's parameters: dialects, heads, and every
kind of misfit.
"""

from dataclasses import replace
from math import prod

import pytest

from understudy.policies.pi05.config import BASE, TINY, Sizes
from understudy.policies.pi05.released_keys import (
    EXPERT_HEAD,
    HEAD,
    Shapes,
    WeightsError,
    canonical,
    is_adaptive,
    match,
    own_name,
    released_key,
)
from understudy.testing.released import L, P, T, released_shapes
from understudy_base.testing.refusals import refused

PI05 = TINY
PI0 = replace(TINY, adaptive=False)
BOTH = pytest.mark.parametrize("sizes", [PI05, PI0], ids=["pi0.5", "pi0"])


def parameters(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Shapes of the network's parameters by its own names."""
    found = released_shapes(sizes)
    return {str(own_name(key)): shape for key, shape in found.items() if key != EXPERT_HEAD}


def renamed(shapes: Shapes, *pairs: tuple[str, str]) -> dict[str, tuple[int, ...]]:
    found = {}
    for key, shape in shapes.items():
        for old, new in pairs:
            key = key.replace(old, new)
        found[key] = tuple(shape)
    return found


def test_match_finds_every_tensor_of_the_released_sizes() -> None:
    for adaptive, count, stored in (
        (True, 3_353_433_872, 3_616_757_520),
        (False, 3_238_048_528, 3_501_372_176),
    ):
        sizes = replace(BASE, adaptive=adaptive)
        wanted = parameters(sizes)
        found = released_shapes(sizes)
        assert sum(map(prod, wanted.values())) == count
        assert sum(map(prod, found.values())) == stored
        assert len(match(found, wanted).keys) == len(wanted) == len(found) - 1


@BOTH
def test_released_key_inverts_own_name(sizes: Sizes) -> None:
    wanted = parameters(sizes)
    assert {released_key(name) for name in wanted} == set(released_shapes(sizes)) - {EXPERT_HEAD}
    assert all(own_name(released_key(name)) == name for name in wanted)
    assert all(own_name(name) == name for name in wanted), "own names are accepted, too"
    for stranger in ("vision.head.weight", "layers.0.other.weight", "layers.x.vlm.mlp", "weight"):
        with pytest.raises(KeyError):
            released_key(stranger)
        assert own_name(stranger) is None


NEWER = (("vision_tower.vision_model.", "vision_tower."),)
OLDER = (
    (f"{P}model.language_model.", f"{P}language_model.model."),
    (f"{P}lm_head", f"{P}language_model.lm_head"),
    (f"{P}model.vision_tower.", f"{P}vision_tower."),
    (f"{P}model.multi_modal_projector.", f"{P}multi_modal_projector."),
)
DIALECTS = {
    "released": ((), ""),
    "LeRobot's trainer": ((), "model."),
    "transformers 5.6": (NEWER, ""),
    "transformers 5.6 in LeRobot": (NEWER, "model."),
    "before transformers 4.52": (OLDER, ""),
}
"""Replacements in the released names, and a first part."""


@pytest.mark.parametrize("dialect", DIALECTS)
@BOTH
def test_match_reads_each_dialect(dialect: str, sizes: Sizes) -> None:
    plain = released_shapes(sizes)
    wanted = parameters(sizes)
    pairs, first = DIALECTS[dialect]
    found = {first + key: shape for key, shape in renamed(plain, *pairs).items()}
    matched = match(found, wanted)
    order = dict(zip(found, plain))
    assert {name: order[key] for name, key in matched.keys.items()} == match(plain, wanted).keys
    assert {canonical(key) for key in found} == set(plain)
    assert list(matched.ignored) == [key for key in found if canonical(key) == EXPERT_HEAD]
    assert is_adaptive(found) == sizes.adaptive


def test_match_prefers_the_embedding_to_a_stale_head() -> None:
    found = released_shapes(PI05)
    embedding = f"{L}embed_tokens.weight"
    both = match({**found, embedding: found[HEAD]}, parameters(PI05))
    assert both.keys["embedding.weight"] == embedding
    assert set(both.ignored) == {HEAD, EXPERT_HEAD}
    alone = {key: shape for key, shape in found.items() if key != HEAD} | {embedding: found[HEAD]}
    assert match(alone, parameters(PI05)).keys["embedding.weight"] == embedding
    assert match(found, parameters(PI05)).keys["embedding.weight"] == HEAD


def test_match_names_missing_extra_and_misshapen_keys() -> None:
    found = released_shapes(PI05)
    wanted = parameters(PI05)
    lost = f"{L}layers.1.mlp.up_proj.weight"
    odd = f"{T}post_layernorm.bias"
    wrong = {**found, odd: (3,), f"{L}layers.9.mlp.up_proj.weight": (2, 2), "surplus": (1,)}
    del wrong[lost]
    with pytest.raises(WeightsError) as caught:
        match(wrong, wanted, "some.safetensors")
    error = caught.value
    assert error.where == "some.safetensors"
    assert error.missing == (lost,)
    assert error.extra == {f"{L}layers.9.mlp.up_proj.weight": "", "surplus": ""}
    assert error.shapes == {odd: ((3,), (PI05.vision.width,))}
    assert all(key in str(error) for key in (lost, odd, "surplus"))


def test_match_refuses_two_tensors_of_one_parameter() -> None:
    found = released_shapes(PI05)
    with pytest.raises(WeightsError) as caught:
        match(
            {**found, "model.action_in_proj.bias": found["action_in_proj.bias"]}, parameters(PI05)
        )
    assert list(caught.value.extra) == ["model.action_in_proj.bias"]


@pytest.mark.parametrize(
    "key",
    [
        "model.discrete_action_embedding.weight",
        "model.da_head.bias",
        "model.proprio_history_proj.weight",
        "normalize_inputs.buffer_observation_state.mean",
        "unnormalize_outputs.buffer_action.std",
    ],
)
def test_match_refuses_keys_that_change_the_meaning_with_a_reason(key: str) -> None:
    with pytest.raises(WeightsError) as caught:
        match({**released_shapes(PI05), key: (4,)}, parameters(PI05))
    assert caught.value.extra[key]


def test_match_ignores_buffers_of_old_releases() -> None:
    more = {
        f"{L}layers.0.self_attn.rotary_emb.inv_freq": (8,),
        f"{T}embeddings.position_ids": (1, 64),
    }
    assert set(more) < set(match(released_shapes(PI05) | more, parameters(PI05)).ignored)


@pytest.mark.parametrize(("theirs", "ours", "kind"), [(PI0, PI05, "pi0"), (PI05, PI0, "pi05")])
def test_match_names_the_other_family(theirs: Sizes, ours: Sizes, kind: str) -> None:
    with pytest.raises(WeightsError) as caught:
        match(released_shapes(theirs), parameters(ours))
    assert caught.value.fix.endswith(kind)


def test_match_refuses_another_shape_and_a_missing_tensor() -> None:
    found = released_shapes(PI05)
    wanted = parameters(PI05)
    found["action_in_proj.weight"] = (PI05.expert.width, 7)
    del found["action_out_proj.bias"]
    with pytest.raises(WeightsError) as caught:
        match(found, wanted)
    assert list(caught.value.shapes) == ["action_in_proj.weight"]
    assert caught.value.missing == ("action_out_proj.bias",)
    with refused("time_mlp_in.weight", "action_time_mlp_in.weight", kind=ValueError):
        is_adaptive(["paligemma.weight"])
