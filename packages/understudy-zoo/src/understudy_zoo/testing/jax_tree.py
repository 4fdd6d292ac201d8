"""The JAX tree of a small pi0.5 or pi0, by formulas of its own, and its files, written by orbax.

`python packages/understudy-zoo/src/understudy_zoo/testing/jax_tree.py FOLDER` writes the tree of
the tests; it needs orbax-checkpoint.
"""

import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from understudy.testing.pi05 import SMALL, small

Weights = dict[str, np.ndarray]


def weights(adaptive: bool = True) -> Weights:
    """Parameters by the network's names, of values that are exact in bfloat16 and differ between
    parameters.
    """
    found = {}
    for name, parameter in small(adaptive).named_parameters():
        draw = np.random.default_rng(zlib.crc32(name.encode()))
        found[name] = draw.integers(-8, 8, tuple(parameter.shape)).astype(np.float32) / 8
    return found


def tree(own: Weights) -> Weights:
    """Arrays of openpi's tree by their names, `a/b/c`: the inverse of the reader's map."""
    vision = SMALL.vision
    found = Weights()

    def stack(name: str) -> np.ndarray:
        keys = sorted(key for key in own if _fits(key, name))
        return np.stack([own[key] for key in keys])

    img = "PaliGemma/img"
    found[f"{img}/embedding/kernel"] = np.einsum("ocij->ijco", own["vision.patch.weight"])
    found[f"{img}/embedding/bias"] = own["vision.patch.bias"]
    found[f"{img}/pos_embedding"] = own["vision.position.weight"][None]
    found[f"{img}/head/kernel"] = own["projector.weight"].T
    found[f"{img}/head/bias"] = own["projector.bias"]
    block = f"{img}/Transformer/encoderblock"
    layer = "vision.layers.*"
    heads = (vision.heads, vision.width // vision.heads)
    for theirs, ours in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
        attention = f"{block}/MultiHeadDotProductAttention_0/{theirs}"
        kernel = np.einsum("loi->lio", stack(f"{layer}.self_attn.{ours}.weight"))
        found[f"{attention}/kernel"] = kernel.reshape(vision.depth, vision.width, *heads)
        found[f"{attention}/bias"] = stack(f"{layer}.self_attn.{ours}.bias").reshape(
            vision.depth, *heads
        )
    out = np.einsum("loi->lio", stack(f"{layer}.self_attn.out_proj.weight"))
    found[f"{block}/MultiHeadDotProductAttention_0/out/kernel"] = out.reshape(
        vision.depth, *heads, vision.width
    )
    found[f"{block}/MultiHeadDotProductAttention_0/out/bias"] = stack(
        f"{layer}.self_attn.out_proj.bias"
    )
    for number in (0, 1):
        dense = stack(f"{layer}.mlp.fc{number + 1}.weight")
        found[f"{block}/MlpBlock_0/Dense_{number}/kernel"] = np.einsum("loi->lio", dense)
        found[f"{block}/MlpBlock_0/Dense_{number}/bias"] = stack(f"{layer}.mlp.fc{number + 1}.bias")
        found[f"{block}/LayerNorm_{number}/scale"] = stack(f"{layer}.layer_norm{number + 1}.weight")
        found[f"{block}/LayerNorm_{number}/bias"] = stack(f"{layer}.layer_norm{number + 1}.bias")
    found[f"{img}/Transformer/encoder_norm/scale"] = own["vision.norm.weight"]
    found[f"{img}/Transformer/encoder_norm/bias"] = own["vision.norm.bias"]
    found["PaliGemma/llm/embedder/input_embedding"] = own["embedding.weight"]
    for end, tower, sizes in (("", "vlm", SMALL.vlm), ("_1", "expert", SMALL.expert)):
        llm = "PaliGemma/llm/layers"
        layer = f"layers.*.{tower}"

        def split(
            name: str, count: int, layer: str = layer, size: int = sizes.head_dim
        ) -> np.ndarray:
            """[layers, heads, in, head_dim]."""
            matrix = stack(f"{layer}.self_attn.{name}.weight")
            return np.einsum("lndi->lnid", matrix.reshape(len(matrix), count, size, -1))

        found[f"{llm}/attn/q_einsum{end}/w"] = split("q_proj", sizes.num_heads)
        pair = [split(name, sizes.num_kv_heads) for name in ("k_proj", "v_proj")]
        found[f"{llm}/attn/kv_einsum{end}/w"] = np.stack(pair, axis=1)
        out = np.einsum("loi->lio", stack(f"{layer}.self_attn.o_proj.weight"))
        found[f"{llm}/attn/attn_vec_einsum{end}/w"] = out.reshape(
            len(out), sizes.num_heads, sizes.head_dim, sizes.width
        )
        gates = [
            np.einsum("loi->lio", stack(f"{layer}.mlp.{name}_proj.weight"))
            for name in ("gate", "up")
        ]
        found[f"{llm}/mlp{end}/gating_einsum"] = np.stack(gates, axis=1)
        found[f"{llm}/mlp{end}/linear"] = np.einsum(
            "loi->lio", stack(f"{layer}.mlp.down_proj.weight")
        )
        for theirs, ours in (
            ("pre_attention_norm", "input_layernorm"),
            ("pre_ffw_norm", "post_attention_layernorm"),
        ):
            found |= _norm(
                f"{llm}/{theirs}{end}",
                {k: stack(f"{layer}.{ours}.{k}") for k in _norm_keys(own, layer)},
            )
        last = {key: own[f"{tower}_norm.{key}"] for key in _norm_keys(own, layer)}
        found |= _norm(f"PaliGemma/llm/final_norm{end}", last)
    for name in own:
        first, _, kind = name.partition(".")
        if first.startswith(("action_", "time_", "state_")):
            theirs = "kernel" if kind == "weight" else "bias"
            found[f"{first}/{theirs}"] = own[name].T
    return found


def _fits(key: str, name: str) -> bool:
    front, _, back = name.partition("*")
    return (
        key.startswith(front)
        and key.endswith(back)
        and key[len(front) : len(key) - len(back)].isdigit()
    )


def _norm_keys(own: Weights, layer: str) -> tuple[str, ...]:
    adaptive = any(key.startswith("time_mlp") for key in own) and layer.endswith("expert")
    return ("dense.weight", "dense.bias") if adaptive else ("weight",)


def _norm(name: str, own: Weights) -> Weights:
    if "weight" in own:
        return {f"{name}/scale": own["weight"]}
    return {
        f"{name}/Dense_0/kernel": np.swapaxes(own["dense.weight"], -1, -2),
        f"{name}/Dense_0/bias": own["dense.bias"],
    }


def write(folder: Path, arrays: Weights) -> Path:
    """Write FOLDER/params as openpi does: names below `params`, leaves behind `value`."""
    import orbax.checkpoint as ocp

    nested: dict[str, Any] = {}
    for name, array in arrays.items():
        inside = nested
        for part in name.split("/"):
            inside = inside.setdefault(part, {})
        inside["value"] = np.ascontiguousarray(array)
    with ocp.PyTreeCheckpointer() as saver:
        saver.save(folder.absolute() / "params", {"params": nested})
    return folder


def write_zarr(folder: Path, arrays: Weights, kind: str) -> Path:
    """Write FOLDER/params with the same names without orbax, in the dtype `kind`; needs
    tensorstore.
    """
    import ml_dtypes
    import tensorstore

    dtype = ml_dtypes.bfloat16 if kind == "bfloat16" else np.dtype(kind)
    base = {"driver": "file", "path": f"{(folder / 'params').absolute()}/"}
    for name, array in arrays.items():
        place = f"params.{name.replace('/', '.')}.value/"
        spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": place}}
        made = tensorstore.open(spec, create=True, dtype=dtype, shape=array.shape).result()
        made.write(array.astype(dtype)).result()
    return folder


if __name__ == "__main__":
    made = write(Path(sys.argv[1]), tree(weights()))
    (made / "params" / "commit_success.txt").unlink()  # it has the path of this machine
