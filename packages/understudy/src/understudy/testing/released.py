"""Keys and shapes of released pi0.5 and pi0 files, written down from their description and not from
the code.
"""

from typing import Any

P = "paligemma_with_expert.paligemma."
E = "paligemma_with_expert.gemma_expert."
T = f"{P}model.vision_tower.vision_model."
L = f"{P}model.language_model."


def released_shapes(sizes: Any) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a released file of these sizes."""
    v = sizes.vision
    vlm = sizes.vlm
    expert = sizes.expert
    dim = sizes.dim
    found: dict[str, tuple[int, ...]] = {}

    def linear(name: str, into: int, out: int, bias: bool = True) -> None:
        found[f"{name}.weight"] = (out, into)
        if bias:
            found[f"{name}.bias"] = (out,)

    def norm(name: str, width: int) -> None:
        found[f"{name}.weight"] = found[f"{name}.bias"] = (width,)

    found[f"{T}embeddings.patch_embedding.weight"] = (v.width, 3, v.patch, v.patch)
    found[f"{T}embeddings.patch_embedding.bias"] = (v.width,)
    found[f"{T}embeddings.position_embedding.weight"] = ((v.image // v.patch) ** 2, v.width)
    for i in range(v.depth):
        layer = f"{T}encoder.layers.{i}."
        norm(f"{layer}layer_norm1", v.width)
        norm(f"{layer}layer_norm2", v.width)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(f"{layer}self_attn.{name}", v.width, v.width)
        linear(f"{layer}mlp.fc1", v.width, v.mlp)
        linear(f"{layer}mlp.fc2", v.mlp, v.width)
    norm(f"{T}post_layernorm", v.width)
    linear(f"{P}model.multi_modal_projector.linear", v.width, vlm.width)
    linear(f"{P}lm_head", vlm.width, sizes.vocab, bias=False)
    linear(f"{E}lm_head", expert.width, sizes.vocab, bias=False)
    for tower, first, adaptive in ((vlm, L, False), (expert, f"{E}model.", sizes.adaptive)):
        queries = tower.num_heads * tower.head_dim
        keys = tower.num_kv_heads * tower.head_dim
        norms = [f"{first}norm"]
        for i in range(tower.depth):
            layer = f"{first}layers.{i}."
            linear(f"{layer}self_attn.q_proj", tower.width, queries, bias=False)
            linear(f"{layer}self_attn.k_proj", tower.width, keys, bias=False)
            linear(f"{layer}self_attn.v_proj", tower.width, keys, bias=False)
            linear(f"{layer}self_attn.o_proj", queries, tower.width, bias=False)
            linear(f"{layer}mlp.gate_proj", tower.width, tower.mlp_dim, bias=False)
            linear(f"{layer}mlp.up_proj", tower.width, tower.mlp_dim, bias=False)
            linear(f"{layer}mlp.down_proj", tower.mlp_dim, tower.width, bias=False)
            norms += [f"{layer}input_layernorm", f"{layer}post_attention_layernorm"]
        for name in norms:
            if adaptive:
                linear(f"{name}.dense", tower.width, 3 * tower.width)
            else:
                found[f"{name}.weight"] = (tower.width,)
    linear("action_in_proj", dim, expert.width)
    linear("action_out_proj", expert.width, dim)
    if sizes.adaptive:
        linear("time_mlp_in", expert.width, expert.width)
        linear("time_mlp_out", expert.width, expert.width)
    else:
        linear("state_proj", dim, expert.width)
        linear("action_time_mlp_in", 2 * expert.width, expert.width)
        linear("action_time_mlp_out", expert.width, expert.width)
    return found
