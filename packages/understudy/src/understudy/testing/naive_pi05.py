"""pi0.5 and pi0 a second time, from the formulas and by loops: slow, in float64, one sample at a
time, released names.

It shares no idea with the network beyond the formulas. Padding is left out instead of masked, so
that a position is an index in a list. Each query attends by itself, to the keys that `sees` lists.
Rotary positions are complex numbers. The weights are a dict of tensors, so that autograd gives
gradients by released name.
"""

import cmath
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

PALIGEMMA = "paligemma_with_expert.paligemma.model."
VISION = f"{PALIGEMMA}vision_tower.vision_model."
VLM = f"{PALIGEMMA}language_model."
EXPERT = "paligemma_with_expert.gemma_expert.model."
HEAD = "paligemma_with_expert.paligemma.lm_head.weight"

KINDS = ("prefix", "response", "fast", "state", "action")
SEEN = {
    "prefix": ("prefix",),
    "response": ("prefix", "response"),
    "fast": ("prefix", "response", "fast"),
    "state": ("prefix", "response", "state"),
    "action": ("prefix", "response", "state", "action"),
}
"""Kind of a query -> kinds of the keys that it may see."""
CAUSAL = ("response", "fast")
"""Kinds that see only earlier tokens of their own kind, and themselves."""


def sees(query: tuple[str, int], key: tuple[str, int]) -> bool:
    """Whether the query token may attend to the key token; a token is (kind, index in its kind)."""
    if key[0] not in SEEN[query[0]]:
        return False
    return not (query[0] == key[0] and query[0] in CAUSAL and key[1] > query[1])


@dataclass
class Sample:
    """One sample of a golden file, without its padding."""

    images: list[Tensor]
    tokens: list[int]
    state: Tensor
    actions: Tensor
    noise: Tensor
    time: float
    response: list[int] = field(default_factory=list)
    fast: list[int] = field(default_factory=list)
    prefix: Tensor | None = None
    """Embeddings of images and prompt, where they are known already."""


def samples(inputs: dict[str, Tensor]) -> list[Sample]:
    """The samples of `inputs.safetensors`, in float64."""
    found = []
    for i, time in enumerate(inputs["time"]):
        images = [
            image.double()
            for image, there in zip(inputs["images"][i], inputs["image_masks"][i])
            if there
        ]
        tokens = [
            int(token)
            for token, there in zip(inputs["tokens"][i], inputs["token_masks"][i])
            if there
        ]
        state, actions, noise = (inputs[name][i].double() for name in ("state", "actions", "noise"))
        found.append(Sample(images, tokens, state, actions, noise, float(time)))
    return found


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query [features], keys and values [n, features] -> the average of the values
    [features].
    """
    scores = (keys * query).sum(1) / math.sqrt(query.shape[0])
    powers = torch.exp(scores - scores.detach().max())
    return (powers[:, None] * values).sum(0) / powers.sum()


def rotate(head: Tensor, position: int) -> Tensor:
    """Rotary position: feature i and feature i + half are the real and imaginary part of a number
    that turns.
    """
    half = head.shape[0] // 2
    turns = [cmath.exp(1j * position * 10000 ** (-2 * i / (2 * half))) for i in range(half)]
    turned = torch.complex(head[:half], head[half:]) * torch.tensor(turns, dtype=torch.complex128)
    return torch.cat([turned.real, turned.imag])


class NaivePi0:
    """The network on one sample.

    weights: released keys -> float64 tensors. sizes: the object of `sizes.json`.
    """

    def __init__(self, weights: dict[str, Tensor], sizes: dict[str, Any]) -> None:
        self.weights = weights
        self.sizes = sizes
        self.is_adaptive = "time_mlp_in.weight" in weights
        own = f"{VLM}embed_tokens.weight"
        name = own if own in weights else HEAD
        self.embedding = weights[name]

    def linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    # Vision

    def layer_norm(self, name: str, x: Tensor) -> Tensor:
        centerd = x - x.mean(-1, keepdim=True)
        normed = centerd / torch.sqrt((centerd**2).mean(-1, keepdim=True) + 1e-6)
        return normed * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def patches(self, image: Tensor) -> Tensor:
        """Image [3, H, W] -> [tokens, width]: one product a patch, row by row, plus the position's
        own vector.
        """
        side = self.sizes["vision"]["patch"]
        name = f"{VISION}embeddings."
        kernel = self.weights[f"{name}patch_embedding.weight"]
        bias = self.weights[f"{name}patch_embedding.bias"]
        rows = []
        for y in range(0, image.shape[1], side):
            for x in range(0, image.shape[2], side):
                patch = image[None, :, y : y + side, x : x + side]
                rows.append((kernel * patch).sum((1, 2, 3)) + bias)
        return torch.stack(rows) + self.weights[f"{name}position_embedding.weight"]

    def vision_heads(self, layer: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [n, width] -> q, k, v, each [n, heads, features]."""
        shape = (x.shape[0], self.sizes["vision"]["heads"], -1)
        q, k, v = (self.linear(f"{layer}self_attn.{name}_proj", x).reshape(shape) for name in "qkv")
        return q, k, v

    def vision_layer(self, index: int, x: Tensor) -> Tensor:
        layer = f"{VISION}encoder.layers.{index}."
        q, k, v = self.vision_heads(layer, self.layer_norm(f"{layer}layer_norm1", x))
        mixed = torch.zeros_like(q)
        for head in range(q.shape[1]):
            for i in range(q.shape[0]):
                mixed[i, head] = attend(q[i, head], k[:, head], v[:, head])
        return self.vision_rest(layer, x, mixed)

    def vision_rest(self, layer: str, x: Tensor, mixed: Tensor) -> Tensor:
        """Output projection and MLP, each added to its input."""
        x = x + self.linear(f"{layer}self_attn.out_proj", mixed.reshape(x.shape))
        hidden = gelu(self.linear(f"{layer}mlp.fc1", self.layer_norm(f"{layer}layer_norm2", x)))
        return x + self.linear(f"{layer}mlp.fc2", hidden)

    def project(self, x: Tensor) -> Tensor:
        return self.linear(
            f"{PALIGEMMA}multi_modal_projector.linear",
            self.layer_norm(f"{VISION}post_layernorm", x),
        )

    def image_features(self, image: Tensor) -> Tensor:
        """Image [3, H, W] in -1..1 -> [tokens, vlm.width]."""
        x = self.patches(image)
        for index in range(self.sizes["vision"]["depth"]):
            x = self.vision_layer(index, x)
        return self.project(x)

    def video_features(self, frames: list[Tensor], valid: list[bool], every: int = 4) -> Tensor:
        """Features of the last of `frames`, oldest first, whose tokens also attend to earlier
        frames.

        Every `every`-th layer has its attention over time in front of the one over patches, with
        the same projections and keys. A token sees its own place in valid frames up to its own (a
        frame always sees itself). All frames are carried through all layers.
        """
        last = len(frames) - 1
        tokens = [self.patches(frame) for frame in frames]
        for index in range(self.sizes["vision"]["depth"]):
            if (index + 1) % every:
                tokens = [self.vision_layer(index, x) for x in tokens]
            else:
                tokens = self.space_time_layer(index, tokens, valid)
        return self.project(tokens[last])

    def space_time_layer(self, index: int, tokens: list[Tensor], valid: list[bool]) -> list[Tensor]:
        layer = f"{VISION}encoder.layers.{index}."
        last = len(tokens) - 1
        heads = []
        for frame, x in enumerate(tokens):
            aged = x + self.age_embedding(last - frame, x.shape[1])
            heads.append(self.vision_heads(layer, self.layer_norm(f"{layer}layer_norm1", aged)))
        out = []
        for frame, x in enumerate(tokens):
            q, k, _ = heads[frame]
            seen = [past for past in self.frames_seen(frame, last) if valid[past] or past == frame]
            over_time = torch.zeros_like(q)
            mixed = torch.zeros_like(q)
            for head in range(q.shape[1]):
                for i in range(q.shape[0]):
                    past_keys = torch.stack([heads[past][1][i, head] for past in seen])
                    past_values = torch.stack([heads[past][2][i, head] for past in seen])
                    over_time[i, head] = attend(q[i, head], past_keys, past_values)
                for i in range(q.shape[0]):
                    mixed[i, head] = attend(q[i, head], k[:, head], over_time[:, head])
            out.append(self.vision_rest(layer, x, mixed))
        return out

    @staticmethod
    def age_embedding(age: int, width: int) -> Tensor:
        """Embedding [width] of a frame `age` frames before the last: zero at age 0; sine and cosine
        - 1 alternate.
        """
        found = []
        for i in range(width // 2):
            angle = -age * 10000 ** (-2 * i / width)
            found += [math.sin(angle), math.cos(angle) - 1]
        return torch.tensor(found, dtype=torch.float64)

    @staticmethod
    def frames_seen(frame: int, last: int) -> range:
        """Frames that a frame sees where they are valid: causal, itself included."""
        return range(frame + 1)

    # Towers

    def rms(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6)

    def norm(self, name: str, x: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor | float]:
        """(normed tokens, gate of the sublayer's output)."""
        if condition is None or f"{name}.dense.weight" not in self.weights:
            return self.rms(x) * (1 + self.weights[f"{name}.weight"]), 1.0
        scale, shift, gate = self.linear(f"{name}.dense", condition).chunk(3, -1)
        return self.rms(x) * (1 + scale) + shift, gate

    def time_embedding(self, time: float) -> Tensor:
        count = self.sizes["expert"]["width"] // 2
        periods = [0.004 * 1000 ** (f / (count - 1)) for f in range(count)]
        angles = [2 * math.pi * time / period for period in periods]
        return torch.tensor(
            [math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64
        )

    def condition(self, times: list[float]) -> Tensor:
        """One row per action."""
        rows = torch.stack([self.time_embedding(time) for time in times])
        return silu(self.linear("time_mlp_out", silu(self.linear("time_mlp_in", rows))))

    def text(self, tokens: list[int]) -> Tensor:
        width = self.embedding.shape[1]
        rows = [self.embedding[token] * math.sqrt(width) for token in tokens]
        return torch.stack(rows) if rows else torch.zeros(0, width, dtype=torch.float64)

    def prefix(self, sample: Sample) -> Tensor:
        """Embeddings of the images that are there and of the prompt."""
        return torch.cat([*map(self.image_features, sample.images), self.text(sample.tokens)])

    def run(
        self, sample: Sample, x: Tensor | None, times: list[float], insulated: bool = False
    ) -> dict[str, Tensor]:
        """Outputs of both towers by kind of token, behind their final norms.

        x [chunk, dim] are the noisy actions, each with its time; None: no suffix. With `insulated`,
        no gradient flows from a query of the expert to keys and values of the language tower.
        """
        first = self.prefix(sample) if sample.prefix is None else sample.prefix
        streams = {"vlm": torch.cat([first, self.text(sample.response), self.text(sample.fast)])}
        kinds = (
            ["prefix"] * len(first)
            + ["response"] * len(sample.response)
            + ["fast"] * len(sample.fast)
        )
        condition = None
        if x is not None:
            rows = self.linear("action_in_proj", x)
            kinds_of_suffix = ["action"] * len(x)
            if self.is_adaptive:
                condition = self.condition(times)
            else:
                beside = torch.stack([self.time_embedding(time) for time in times])
                hidden = silu(self.linear("action_time_mlp_in", torch.cat([rows, beside], 1)))
                rows = self.linear("action_time_mlp_out", hidden)
                rows = torch.cat([self.linear("state_proj", sample.state)[None], rows])
                kinds_of_suffix = ["state", *kinds_of_suffix]
            streams["expert"] = rows
            kinds = kinds + kinds_of_suffix
        owners = ["vlm"] * len(streams["vlm"]) + ["expert"] * (len(kinds) - len(streams["vlm"]))
        tokens = [(kind, kinds[:i].count(kind)) for i, kind in enumerate(kinds)]
        positions = [position(i, kinds) for i in range(len(kinds))]
        for index in range(self.sizes["vlm"]["depth"]):
            streams = self.pair_layer(
                index, streams, tokens, owners, positions, condition, insulated
            )
        vlm, _ = self.norm(f"{VLM}norm", streams["vlm"], None)
        rows_of_all = torch.split(vlm, 1)
        if x is not None:
            expert, _ = self.norm(f"{EXPERT}norm", streams["expert"], condition)
            rows_of_all += torch.split(expert, 1)
        outputs = {}
        for kind in KINDS:
            if kind in kinds:
                own_rows = [row for row, own in zip(rows_of_all, kinds) if own == kind]
                outputs[kind] = torch.cat(own_rows)
        return outputs

    def pair_layer(
        self,
        index: int,
        streams: dict[str, Tensor],
        tokens: list[tuple[str, int]],
        owners: list[str],
        positions: list[int],
        condition: Tensor | None,
        insulated: bool,
    ) -> dict[str, Tensor]:
        names = {"vlm": f"{VLM}layers.{index}.", "expert": f"{EXPERT}layers.{index}."}
        heads = self.sizes["vlm"]["num_heads"]
        kv_heads = self.sizes["vlm"]["num_kv_heads"]
        queries: list[Tensor] = []
        keys: list[Tensor] = []
        values: list[Tensor] = []
        gates: dict[str, Tensor | float] = {}
        for tower, x in streams.items():
            normed, gates[tower] = self.norm(
                f"{names[tower]}input_layernorm", x, self.given(tower, condition)
            )
            for name, count, rows in (
                ("q", heads, queries),
                ("k", kv_heads, keys),
                ("v", kv_heads, values),
            ):
                made = self.linear(f"{names[tower]}self_attn.{name}_proj", normed)
                rows.extend(made.reshape(len(x), count, -1))
        for i, at in enumerate(positions):
            queries[i] = torch.stack([rotate(head, at) for head in queries[i]])
            keys[i] = torch.stack([rotate(head, at) for head in keys[i]])
        mixed = []
        for i, query in enumerate(queries):
            seen_keys = []
            seen_values = []
            for key, value, owner, token in zip(keys, values, owners, tokens):
                if not sees(tokens[i], token):
                    continue
                if insulated and owners[i] == "expert" and owner == "vlm":
                    key = key.detach()
                    value = value.detach()
                seen_keys.append(key)
                seen_values.append(value)
            own_keys = torch.stack(seen_keys)
            own_values = torch.stack(seen_values)
            attended = []
            for head in range(heads):
                shared = head * kv_heads // heads
                attended.append(attend(query[head], own_keys[:, shared], own_values[:, shared]))
            mixed.append(torch.cat(attended))
        out = {}
        for tower, x in streams.items():
            rows = torch.stack([row for row, owner in zip(mixed, owners) if owner == tower])
            x = x + gates[tower] * self.linear(f"{names[tower]}self_attn.o_proj", rows)
            name = f"{names[tower]}post_attention_layernorm"
            normed, gate = self.norm(name, x, self.given(tower, condition))
            mlp = f"{names[tower]}mlp."
            hidden = gelu(self.linear(f"{mlp}gate_proj", normed)) * self.linear(
                f"{mlp}up_proj", normed
            )
            out[tower] = x + gate * self.linear(f"{mlp}down_proj", hidden)
        return out

    @staticmethod
    def given(tower: str, condition: Tensor | None) -> Tensor | None:
        return condition if tower == "expert" else None

    # Flow

    def velocity(
        self, sample: Sample, x: Tensor, times: list[float], insulated: bool = False
    ) -> Tensor:
        """Velocity [chunk, dim] of noisy actions x at one time per action."""
        return self.linear("action_out_proj", self.run(sample, x, times, insulated)["action"])

    def flow_loss(self, sample: Sample, clean: int = 0, insulated: bool = False) -> Tensor:
        """Squared error [chunk, dim]. The first `clean` actions are noiseless at time 0; their loss
        does not count.
        """
        times = [0.0] * clean + [sample.time] * (len(sample.actions) - clean)
        at = torch.tensor(times, dtype=torch.float64)[:, None]
        x = at * sample.noise + (1 - at) * sample.actions
        return (sample.noise - sample.actions - self.velocity(sample, x, times, insulated)) ** 2

    def token_losses(self, sample: Sample, insulated: bool = False) -> dict[str, Tensor]:
        """Cross-entropy of each `response` and `fast` token, given all tokens that come before
        it.
        """
        found = self.run(sample, None, [], insulated)
        rows = {"response": sample.response, "fast": sample.fast}
        before = found["prefix"][-1:]
        losses = {}
        for kind, tokens in rows.items():
            if tokens:
                inputs = torch.cat([before, found[kind][:-1]])
                logits = inputs @ self.embedding.T
                right = torch.stack([row[token] for row, token in zip(logits, tokens)])
                losses[kind] = torch.log(torch.exp(logits).sum(1)) - right
                before = found[kind][-1:]
        return losses

    @torch.no_grad()
    def sample(
        self,
        sample: Sample,
        steps: int = 10,
        clean: Tensor | None = None,
        own: Tensor | None = None,
    ) -> Tensor:
        """Actions [chunk, dim] after Euler steps from the noise; `clean` [d, dim] are given as the
        first actions.

        The velocity is the noise in dimensions that are not `own`, bool [dim].
        """
        x = sample.noise
        sample = replace(sample, prefix=self.prefix(sample))
        count = 0 if clean is None else len(clean)
        for time in euler_times(steps):
            if clean is not None:
                x = torch.cat([clean, x[count:]])
            times = [0.0] * count + [time] * (len(x) - count)
            move = self.velocity(sample, x, times)
            if own is not None:
                move = torch.where(own, move, sample.noise)
            x = x - move / steps
        return x if clean is None else torch.cat([clean, x[count:]])

    def guided_sample(
        self,
        sample: Sample,
        previous: Tensor,
        weights: list[float] | Tensor,
        highest: float,
        steps: int = 10,
        own: Tensor | None = None,
    ) -> Tensor:
        """Guided real-time chunking towards `previous` [chunk, dim], with a weight per action or
        element.

        Dimensions that are not `own`, bool [dim], stay at time * noise, as in training.
        """
        x = sample.noise
        sample = replace(sample, prefix=self.prefix(sample).detach())
        real = torch.ones(x.shape[-1], dtype=torch.bool) if own is None else own
        for time in euler_times(steps):
            x = torch.where(real, x, time * sample.noise)
            x = (
                x
                - guided_velocity(self.at(sample, time, real), x, time, previous, weights, highest)
                / steps
            )
        return torch.where(real, x, 0.0)

    def at(self, sample: Sample, time: float, own: Tensor) -> Callable[[Tensor], Tensor]:
        """Velocity as a function of the noisy actions, at one time; the noise in dimensions that
        are not `own`.
        """
        return lambda x: torch.where(own, self.velocity(sample, x, [time] * len(x)), sample.noise)


def position(index: int, kinds: list[str]) -> int:
    """Position of a token: the number of tokens before it, but `fast` ones count for each other
    only.
    """
    counted = [kind for kind in kinds[:index] if kind != "fast" or kinds[index] == "fast"]
    return len(counted)


def euler_times(steps: int) -> list[float]:
    """Times 1, 1 - 1/steps, ..., 1/steps, each rounded to float32 as the network takes it."""
    return [float(torch.tensor(1 - k / steps, dtype=torch.float32)) for k in range(steps)]


def paper_weights(length: int, delay: int, horizon: int) -> list[float]:
    """1 for the first `delay` actions, then c (e^c - 1) / (e - 1), and 0 from `horizon` on."""
    found = []
    for i in range(length):
        c = (horizon - i) / (horizon - delay + 1)
        weight = 0.0
        if i < delay:
            weight = 1.0
        elif i < horizon:
            weight = c * (math.exp(c) - 1) / (math.e - 1)
        found.append(weight)
    return found


def guided_velocity(
    velocity: Callable[[Tensor], Tensor],
    x: Tensor,
    time: float,
    previous: Tensor,
    weights: list[float] | Tensor,
    highest: float,
) -> Tensor:
    """Velocity minus the guidance towards `previous`, with the whole Jacobian of the denoised
    actions written out.
    """

    def denoised(at: Tensor) -> Tensor:
        return at - time * velocity(at)

    scale = torch.as_tensor(weights, dtype=torch.float64).reshape(len(x), -1)
    error = (previous - denoised(x)) * scale
    jacobian = torch.autograd.functional.jacobian(denoised, x)  # [chunk, dim, chunk, dim]
    correction = torch.einsum("abcd,ab->cd", jacobian, error.detach())
    tau = 1 - time
    strength = (
        highest
        if tau == 0
        else min(highest, (1 - tau) / tau * ((1 - tau) ** 2 + tau**2) / (1 - tau) ** 2)
    )
    return (velocity(x) - strength * correction).detach()
