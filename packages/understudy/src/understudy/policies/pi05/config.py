"""Dimensions, settings and configs of pi0.5 and pi0. No torch.

`Sizes.BASE` are the dimensions of the released checkpoints, `Sizes.TINY` those of a network that
trains on a CPU in minutes. A JSON object with the field names of `Sizes` gives any other
(`Sizes.from_mapping`).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self, TypeVar

from understudy.policies.capabilities.images import Resize
from understudy.policies.capabilities.past import Past
from understudy.policies.capabilities.returns import predicts_actions
from understudy.policies.common.facts import PolicyConfig
from understudy.policies.common.fast_tokenizer import FastTokenizer
from understudy.policies.common.settings import TowerSizes, age_problems, times_of
from understudy.policies.pi05.released_keys import EMBEDDING, EXPERT_HEAD, HEAD, released_key
from understudy.policies.pi05.text import RESERVED, TextSettings
from understudy.policies.registry import PolicyType
from understudy.policies.settings import PolicySettings
from understudy_base import Record

T = TypeVar("T")

MEMORY = "mem"
"""Key of reference files: {"frames": of a video, "every": `VisionSizes.temporal_every`}."""


@dataclass(frozen=True, kw_only=True)
class VisionSizes:
    """Dimensions of the vision encoder (SigLIP, Zhai et al. 2023)."""

    width: int
    """Features per token."""
    depth: int
    """Layers."""
    mlp: int
    """Hidden features of the MLP."""
    heads: int
    """Attention heads; they divide `width`."""
    patch: int
    """Side of a patch in pixels."""
    image: int
    """Side of the square input image in pixels, a multiple of `patch`."""
    temporal_every: int = 4
    """Every N-th layer attends to past frames, where a policy has them: with 4 the layers 3, 7, 11,
    ... Of fewer than N layers the last one does.
    """

    @property
    def temporal_layers(self) -> range:
        """Numbers of the layers that attend to past frames; at least one."""
        return range(min(self.temporal_every, self.depth) - 1, self.depth, self.temporal_every)

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return (self.image // self.patch) ** 2


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Dimensions of a network: a vision encoder, a language tower and an action expert of equally
    many layers.

    Raises:
        ValueError: a value that breaks a rule; the message lists all of them.
    """

    BASE: ClassVar["Sizes"]
    """The released pi0.5 (3,353,433,872 parameters); with `adaptive=False` the released pi0
    (3,238,048,528).
    """
    TINY: ClassVar["Sizes"]
    """A network that trains on a CPU in minutes."""
    FILE: ClassVar[str] = "sizes.json"
    """File with the dimensions of a network whose towers have no name in openpi and LeRobot, as
    `from_mapping` reads it.
    """

    vision: VisionSizes
    """The vision encoder."""
    vlm: TowerSizes
    """The tower of images and text."""
    expert: TowerSizes
    """The tower of actions. Its `depth` and its heads are the same as of `vlm`."""
    vocab: int
    """Rows of the token embedding."""
    chunk: int
    """Actions predicted at once."""
    dim: int
    """Width of actions and states inside the network; narrower ones are padded with zeros."""
    adaptive: bool = True
    """True is pi0.5: the flow time modulates the expert's norms. False is pi0: a state token, and
    the time next to each action.
    """

    def __post_init__(self) -> None:
        if problems := self.problems():
            raise ValueError("; ".join(problems))

    def tower_names(self) -> dict[str, str]:
        """Return the names of both towers in openpi and LeRobot, by the fields of their configs;
        `OTHER` of one that has none.
        """
        return {
            "paligemma_variant": TOWER_NAMES.get(self.vlm, OTHER),
            "action_expert_variant": TOWER_NAMES.get(self.expert, OTHER),
        }

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        problems = [
            f"{name}: {value}: must be a whole number of at least 1"
            for name, value in _numbers(self).items()
            if isinstance(value, bool) or not isinstance(value, int) or value < 1
        ]
        if problems:
            return problems
        vision = self.vision
        vlm = self.vlm
        expert = self.expert
        if vision.width % vision.heads:
            problems.append(
                f"vision.heads: {vision.heads}: must divide vision.width {vision.width}"
            )
        if vision.image % vision.patch:
            problems.append(
                f"vision.image: {vision.image}: must be a multiple of vision.patch {vision.patch}"
            )
        for name in ("depth", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(vlm, name) != getattr(expert, name):
                rule = (
                    f"must be that of vlm, {getattr(vlm, name)}: the towers attend to each "
                    "other in each layer"
                )
                problems.append(f"expert.{name}: {getattr(expert, name)}: {rule}")
        if vlm.num_heads % vlm.num_kv_heads:
            problems.append(
                f"vlm.num_kv_heads: {vlm.num_kv_heads}: must divide vlm.num_heads {vlm.num_heads}"
            )
        if vlm.head_dim % 2:
            problems.append(f"vlm.head_dim: {vlm.head_dim}: must be even, for rotary positions")
        if expert.width % 2:
            problems.append(
                f"expert.width: {expert.width}: must be even, for sines and cosines of the flow "
                "time"
            )
        return problems

    @classmethod
    def from_mapping(cls, stored: Record, **replaced: Any) -> Self:
        """Read the sizes from JSON:
        `{"vision": {...}, "vlm": {...}, "expert": {...}, "vocab": ..., ...}`.

        Args:
            stored: the object; all fields but `adaptive` and `vision.temporal_every` are required.
                `mem.every` is another name of the latter.
            replaced: fields that replace those of `stored`.

        Raises:
            ValueError: a missing or unknown field, or a value that breaks a rule.
        """
        values = {**stored, **replaced}
        memory = values.pop(MEMORY, None)
        if (
            isinstance(memory, Mapping)
            and "every" in memory
            and isinstance(values.get("vision"), Mapping)
        ):
            values["vision"] = {"temporal_every": memory["every"], **values["vision"]}
        for name, kind in (("vision", VisionSizes), ("vlm", TowerSizes), ("expert", TowerSizes)):
            if isinstance(values.get(name), Mapping):
                values[name] = _read(kind, values[name], f"{name}.")
        return _read(cls, values, "")


def _numbers(sizes: Sizes) -> dict[str, Any]:
    """Every number of `sizes` by its dotted name."""
    numbers: dict[str, Any] = {}
    for field in fields(sizes):
        value = getattr(sizes, field.name)
        if isinstance(value, VisionSizes | TowerSizes):
            numbers |= {
                f"{field.name}.{inner.name}": getattr(value, inner.name) for inner in fields(value)
            }
        elif field.name != "adaptive":
            numbers[field.name] = value
    return numbers


def _read(kind: type[T], stored: Record, prefix: str) -> T:
    # `kind` is a dataclass
    names = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    missing = [
        prefix + name
        for name, default in names.items()
        if name not in stored and default is MISSING
    ]
    unknown = [prefix + str(name) for name in stored if name not in names]
    if missing or unknown:
        lacks = f"missing {', '.join(missing)}" if missing else ""
        extra = f"unknown {', '.join(unknown)}" if unknown else ""
        raise ValueError(f"sizes: {'; '.join(filter(None, (lacks, extra)))}")
    return kind(**stored)


BASE = Sizes.BASE = Sizes(
    vision=VisionSizes(width=1152, depth=27, mlp=4304, heads=16, patch=14, image=224),
    vlm=TowerSizes(width=2048, depth=18, mlp_dim=16384, num_heads=8, num_kv_heads=1, head_dim=256),
    expert=TowerSizes(
        width=1024, depth=18, mlp_dim=4096, num_heads=8, num_kv_heads=1, head_dim=256
    ),
    vocab=257_152,
    chunk=50,
    dim=32,
)

TINY = Sizes.TINY = Sizes(
    vision=VisionSizes(width=64, depth=3, mlp=128, heads=4, patch=8, image=64),
    vlm=TowerSizes(width=96, depth=4, mlp_dim=256, num_heads=4, num_kv_heads=1, head_dim=24),
    expert=TowerSizes(width=64, depth=4, mlp_dim=192, num_heads=4, num_kv_heads=1, head_dim=24),
    vocab=1024,
    chunk=8,
    dim=32,
)


TOWER_NAMES = {BASE.vlm: "gemma_2b", BASE.expert: "gemma_300m"}
"""Names of towers in openpi and LeRobot."""
OTHER = "other"
"""Name of a tower that neither tool has; LeRobot refuses it before it reads weights."""
RELEASED_LEAST = 0.001
"""Least flow time of the released training."""
NETWORK_SIZE = (0, 0)
"""Value of `image_size` that means the image size of the network."""
MOST_SAMPLES = 2**12
OPENPI_OPTIM = {
    "lr": 2.5e-5,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 1e-10,
    "weight_decay_on": "all",
    "grad_clip_norm": 1.0,
}
"""Defaults of `AdamW` in openpi's `training/optimizer.py` (commit 15a9616)."""
OPENPI_WARMUP = 1000
OPENPI_STEPS = 30_000
OPENPI_SCHEDULE = {"kind": "cosine", "final_lr_ratio": 0.1}
"""Defaults of `CosineDecaySchedule` there, `warmup_steps` and `decay_steps` apart: from 2.5e-5 to
2.5e-6.
"""
OPENPI_RUN = {"steps": OPENPI_STEPS, "batch_size": 32}
"""Defaults of `num_train_steps` and `batch_size` in openpi's `training/config.py`."""
OPENPI_EMA = {"decay": 0.99}
"""Default of `ema_decay` there; the configs with LoRA keep no average."""


@dataclass(frozen=True, kw_only=True)
class Pi05Settings(TextSettings, PolicySettings):
    """pi0.5: a vision-language model with an action expert (3.4 billion parameters; `size` tiny:
    0.9 million).
    """

    RUN_ONLY: ClassVar[tuple[str, ...]] = (
        "compute",
        "weights",
        "tokenizer",
        "noise_samples",
        "flow_time",
        "max_delay",
        "insulation",
        "history",
    )

    START_FILES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "weights": ("*.json", "model*.safetensors", "policy_*.safetensors", "tokenizer.model")
    }
    PARTS: ClassVar[Mapping[str, str]] = {
        "layers.*.vlm.*": "vlm",
        "projector.*": "vlm",
        "embedding.*": "vlm",
        "vlm_norm.*": "vlm",
        "proprio_history_proj.*": "vlm",
        "vision.*": "vision",
        "*": "expert",
    }
    RESIZED: ClassVar[str] = "aspect ratio kept, between black bars"
    # Both towers, and the layers of actions (`action_in_proj`), state and flow time: another robot
    # has other actions.
    LORA_TARGETS: ClassVar[tuple[str, ...]] = ("layers.*_proj", "[as]*_proj", "*time_mlp_*")

    type: Literal["pi05"] = "pi05"
    """Type of the policy."""
    size: Literal["base", "tiny"] = "base"
    """Dimensions of the network: `base` of the released weights, `tiny` for a CPU."""
    network: str = ""
    """Other dimensions than those of `size`, as a JSON object with the fields of `Sizes`. The
    default is those of the tensors of `weights`.
    """
    weights: str = ""
    """Released weights to start from: a safetensors file, its folder, or the id of a hub
    repository. The default is fresh weights.
    """
    image_size: tuple[int, int] = NETWORK_SIZE
    """Height and width of the network's images, which follow from `size`: leave it out. Images of
    another size are resized with their aspect ratio kept, between black bars.
    """
    noise_samples: int = 1
    """Noises and flow times per sample and step; they share one pass of the language tower, most of
    the cost.
    """
    flow_time: Literal["released", "beta"] = "released"
    """Distribution of the flow times: `beta` is Beta(1.5, 1), and `released` is 0.999 t + 0.001 for
    t of `beta`, as in openpi.
    """
    max_delay: int = 0
    """Largest number of leading actions that a training sample is given, uniform from 0. The policy
    learns to continue a chunk that is still being executed (training-time real-time chunking). 0:
    none.
    """
    insulation: bool = True
    """With `response_tokens` or `fast`: the flow loss trains the action expert alone, and the
    predicted tokens train the rest (knowledge insulation), whatever their loss weights are: with
    weights of 0 nothing trains the rest. Without both settings, the flow loss trains everything.
    """

    history: tuple[float, ...] = ()
    """Ages in seconds of the past frames of each camera that the policy sees, as in `5 4 3 2 1`:
    multiples of 1/fps. Every fourth layer of the vision encoder attends to them, without new
    weights. The default is the present alone.
    """
    state_history: bool = False
    """Also give the language tower the states of these times, one token each, by a new projection.
    The state of the prompt stays with `prompt: state`.
    """

    @property
    def adaptive(self) -> bool:
        """Whether the flow time modulates the expert's norms, as in pi0.5."""
        return True

    def past(self) -> Past:
        """Return the times of `history`, of states with `state_history`."""
        times = times_of(self.history)
        return Past(times, times if self.state_history else ())

    def resize(self) -> Resize:
        """Return the function that writes an image between black bars."""
        from understudy.policies.common.images import write_letterbox

        return write_letterbox

    @property
    def network_size(self) -> tuple[int, int]:
        """Height and width of the images that the network computes with."""
        return (self.preset().vision.image,) * 2

    def text_vocabulary(self) -> int:
        """Return the rows of the token embedding, without those of reserved ids and of the FAST
        tokens of `fast`.
        """
        fast = FastTokenizer.read(self.fast).vocab_size if self.fast else 0
        return max(0, self.preset().vocab - RESERVED - fast)

    def lora_targets(self) -> tuple[str, ...]:
        """Return the default of `lora.targets`: `LORA_TARGETS` where tokens are predicted.

        The flow loss reads only keys and values of the language tower's last layer. Without
        predicted tokens, the other projections of that layer get no adapter.
        """
        if self.response_tokens or self.fast:
            return self.LORA_TARGETS
        last = self.lora_depth - 1
        tower = (
            *(f"layers.{layer}.vlm.*_proj" for layer in range(last)),
            f"layers.{last}.vlm.self_attn.[kv]_proj",
        )
        return ("layers.*.expert.*_proj", *tower, *self.LORA_TARGETS[1:])

    @property
    def lora_depth(self) -> int:
        """Layers of the language tower, for `lora_targets`."""
        return self.preset().vlm.depth

    def started(self) -> Self:
        """Return the settings with the dimensions of the weights, where `size` has others.

        Raises:
            ConfigError: the dimensions of the weights are not known.
        """
        if self.network or self.size != "base" or not os.path.exists(self.weights):
            return self
        stored = Sizes.from_mapping(_stored_facts(self.weights)["dimensions"])
        preset = self.preset()
        sizes = replace(stored, chunk=preset.chunk, adaptive=preset.adaptive)
        if sizes == preset:
            return self
        return replace(
            self, network=json.dumps({k: v for k, v in asdict(sizes).items() if k != "adaptive"})
        )

    def run_defaults(self, steps: int, lora_rank: int) -> Record:
        """Return openpi's values for dimensions of `base`; others have those of every run, but for
        the normalization.

        A run of less steps than openpi's schedule compresses it.
        """
        if not self._trains_as_openpi:
            return {"data": {"normalize": self.NORMALIZE}}
        share = min(1.0, steps / OPENPI_STEPS)
        schedule = {
            "warmup_steps": int(OPENPI_WARMUP * share),
            "decay_steps": min(steps, OPENPI_STEPS),
        }
        chunk = {}
        if predicts_actions(self) and not self.weights:
            chunk = {"chunk_size": self.preset().chunk}
        ema = {} if lora_rank else {"ema": OPENPI_EMA}
        return {
            **OPENPI_RUN,
            "data": {"normalize": self.NORMALIZE, **chunk},
            "optim": {**OPENPI_OPTIM, **ema},
            "schedule": {**OPENPI_SCHEDULE, **schedule},
        }

    def deviation(self, steps: int) -> str:
        """Return a line about a compressed schedule."""
        if not self._trains_as_openpi or steps >= OPENPI_STEPS:
            return ""
        return (
            f"openpi's schedule of {OPENPI_STEPS:,} steps, {OPENPI_WARMUP:,} of them warm-up, is "
            f"compressed to the {steps:,} of this run; openpi would cut it off"
        )

    @property
    def _trains_as_openpi(self) -> bool:
        return self.size == "base" and not self.network

    def stored_chunk(self) -> int | None:
        """Return the actions per chunk of `weights`; None: there are none, or no file has it."""
        if not self.weights or not os.path.exists(self.weights):
            return None
        return _stored_facts(self.weights).get("chunk")

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        problems = self.text_problems()
        try:
            self.preset()
        except ValueError as error:
            return [*problems, f"network: {error}"]
        if not 1 <= self.noise_samples <= MOST_SAMPLES:
            problems.append(
                f"noise_samples: {self.noise_samples}: must be from 1 to {MOST_SAMPLES}"
            )
        if self.max_delay < 0:
            problems.append(f"max_delay: {self.max_delay}: must be 0 or more")
        problems += age_problems("history", self.history)
        if self.state_history and not self.history:
            problems.append("state_history: True: needs the ages of past states; set history")
        side = self.preset().vision.image
        if tuple(self.image_size) not in (NETWORK_SIZE, (side, side)):
            problems.append(
                f"image_size: {self.image_size}: is {(side, side)} with size {self.size}; leave it "
                "out"
            )
        return problems

    @property
    def least_time(self) -> float:
        """Least flow time of the training that `flow_time` names."""
        return 0.0 if self.flow_time == "beta" else RELEASED_LEAST

    def stored_name(self, name: str) -> str:
        """Return the released name of a parameter: other tools find every weight of a saved
        folder.
        """
        return released_key(name)

    def preset(self) -> Sizes:
        """Return the dimensions that `network` has or `size` names.

        Raises:
            ValueError: `network` is not a JSON object of dimensions.
        """
        if self.network:
            stored = json.loads(self.network)
            if not isinstance(stored, dict):
                raise ValueError(f"{self.network}: must be a JSON object")
            return Sizes.from_mapping({"chunk": Sizes.BASE.chunk} | stored, adaptive=self.adaptive)
        sizes = Sizes.BASE if self.size == "base" else Sizes.TINY
        return replace(sizes, adaptive=self.adaptive)


@dataclass(frozen=True, kw_only=True)
class Pi0Settings(Pi05Settings):
    """pi0: the predecessor of pi0.5. The state enters the action expert, and the prompt is the task
    alone.
    """

    NORMALIZE: ClassVar[Literal["mean_std", "min_max", "quantile"]] = "mean_std"

    type: Literal["pi0"] = "pi0"  # type: ignore[assignment]  # another constant
    """Type of the policy."""
    prompt: Literal["state", "plain"] = "plain"
    """Format of the prompt, which belongs to the checkpoint: pi0 has `plain`, the task alone."""
    prompt_tokens: int = 48
    """Longest prompt in tokens; longer ones are cut at the end, and counted in the log."""

    @property
    def adaptive(self) -> bool:
        """Whether the flow time modulates the expert's norms; pi0 has it next to each action."""
        return False


@dataclass(frozen=True)
class Pi05PolicyConfig(Pi05Settings, PolicyConfig):
    """Config of a `Pi05Policy`: the run's settings and the facts of its data."""

    dimensions: Record | None = None
    """Dimensions of the network (`Sizes`) as a JSON object; None: those of `size`. config.json
    always has them.
    """

    @staticmethod
    def released_keys(key: str) -> tuple[str, ...]:
        """Return the keys of the tensor that a released key names: of the head, to which the
        embedding is tied, both.
        """
        return (HEAD, EMBEDDING) if key == HEAD else (key,)

    def unread_tensors(self) -> dict[str, tuple[int, int]]:
        """Return key and shape of each tensor that released files have and no network reads."""
        return {EXPERT_HEAD: (self.sizes.vocab, self.sizes.expert.width)}

    def __post_init__(self) -> None:
        problems = self.fact_problems()
        if self.dimensions is None:
            object.__setattr__(self, "dimensions", asdict(self.preset()))
        object.__setattr__(self, "network", "")  # `dimensions` has it
        sizes = self.sizes
        object.__setattr__(self, "dimensions", asdict(sizes))  # complete
        object.__setattr__(self, "image_size", (sizes.vision.image,) * 2)
        for name in ("action_dim", "state_dim"):
            if getattr(self, name) > sizes.dim:
                problems.append(
                    f"{name}: {getattr(self, name)}: the network takes up to {sizes.dim} (dim)"
                )
        if not sizes.adaptive and not self.state_dim:
            problems.append("state_dim: 0: pi0 needs a state; set data.state to its key")
        if self.state_history and not self.state_dim:
            problems.append("state_history: True: there is no state; set data.state to its key")
        if self.max_delay >= self.chunk:
            problems.append(
                f"max_delay: {self.max_delay}: must be below the chunk of {self.chunk} actions"
            )
        if problems := [*problems, *self.problems_of_fields()]:
            raise ValueError("; ".join(problems))

    def problems_of_fields(self) -> list[str]:
        """List the rules that settings break, apart from the image size, which follows from the
        dimensions.
        """
        return [line for line in self.problems() if not line.startswith("image_size")]

    def describe_history(self) -> list[str]:
        """Describe the past that the policy sees, in lines; none without a history."""
        if not self.history:
            return []
        ages, layers = (
            ", ".join(map(str, numbers))
            for numbers in (self.history, self.sizes.vision.temporal_layers)
        )
        lines = [
            f"history: frames of {ages} s ago; layers {layers} of vision attend to them, with the "
            "weights they have"
        ]
        return (
            lines
            + ["history: states of these times, by the new proprio_history_proj"]
            * self.state_history
        )

    def preset(self) -> Sizes:
        """Return the dimensions of the network."""
        return super().preset() if self.dimensions is None else self.sizes

    @property
    def sizes(self) -> Sizes:
        """Dimensions of the network."""
        assert self.dimensions is not None
        return Sizes.from_mapping(self.dimensions, adaptive=self.adaptive)


@dataclass(frozen=True)
class Pi0PolicyConfig(Pi0Settings, Pi05PolicyConfig):
    """Config of a `Pi05Policy` of type pi0."""


def _stored_facts(weights: str) -> Record:
    """Return dimensions and chunk of released weights, without torch until there are any.

    Raises:
        ConfigError: a file is damaged, or contradicts another.
    """
    facts: Record = PI05.load().stored_facts(weights)
    return facts


POLICY = "understudy.policies.pi05.policy:Pi05Policy"
"""Class of both types."""
PI05 = PolicyType(Pi05Settings, POLICY, config=Pi05PolicyConfig)
PI0 = PolicyType(Pi0Settings, POLICY, config=Pi0PolicyConfig)
