"""Settings and configs of LeRobot's ACT, Diffusion Policy and SmolVLA. No torch or lerobot until
they are checked.

`config` has fields of LeRobot's config class, which checks them. The config of a policy has all
that describe its network, so that a folder means the same in a release with other defaults.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from understudy import LerobotProcessor, Past, PolicyConfig, PolicySettings, PolicyType, read_object
from understudy_base import ACTION, STATE, ConfigError, Record, optional_imports

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
IDENTITY = {"image_mean": [0.0] * 3, "image_std": [1.0 - 1e-8] * 3}
"""Colors as they are: LeRobot adds 1e-8 to deviations."""
RECORDED = (0, 0)
"""Value of `image_size` that means the size of the recordings."""
OF_RUN = (
    "device",
    "input_features",
    "output_features",
    "normalization_mapping",
    "chunk_size",
    "drop_n_last_frames",
)
"""Fields of LeRobot's configs that follow from other settings of a run, apart from those of
`TRAINING`.
"""
TRAINING = (
    "optimizer_",
    "scheduler_",
    "compile_",
    "use_cache",
    "gradient_checkpointing",
    "load_vlm_",
    "rtc_",
)
"""First parts of the names of the fields that have no effect here."""

PIPELINE = "lerobot.configs.train:TrainPipelineConfig"
BACKBONE = "model.backbone.*"
NORMALIZATIONS = {"MEAN_STD": "mean_std", "MIN_MAX": "min_max", "QUANTILES": "quantile"}
"""LeRobot's training pipeline, the names of ACT's ResNet, and normalization of a run by the name of
LeRobot's.
"""

Value = str | int | float | bool | None | tuple[int, ...]
"""Value of a field of LeRobot's configs; a text is read as JSON."""


@dataclass(frozen=True, kw_only=True)
class LerobotSettings(PolicySettings):
    """Settings of a policy of LeRobot."""

    THEIR_CONFIG: ClassVar[str] = ""
    """LeRobot's config class, as "module:name"."""
    FIXED: ClassVar[Record] = {"n_obs_steps": 1}
    """Fields of LeRobot's config -> the only value that the adapter takes."""
    DEFAULTS: ClassVar[Record] = {}
    """Fields whose default is not LeRobot's."""
    CHUNK_FIELDS: ClassVar[tuple[str, ...]] = ("chunk_size", "n_action_steps")
    """Fields that have the length of the chunk."""

    config: dict[str, Value] = field(default_factory=dict)
    """Fields of LeRobot's config class, as in `dim_model 256`; the others have LeRobot's defaults.
    LeRobot checks them.
    """

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "config", {name: _parsed(value) for name, value in self.config.items()}
        )

    @cached_property
    def theirs(self) -> Any:
        """LeRobot's config object.

        Raises:
            MissingExtraError: lerobot is not installed. ValueError: LeRobot or the adapter refuses
                a field.
        """
        for name in self.config:
            if name in (*OF_RUN, *self.CHUNK_FIELDS) or name.startswith(TRAINING):
                raise ValueError(
                    f"config: {name}: other settings of the run decide it; leave it out"
                )
        for name, value in self.FIXED.items():
            if self.config.get(name, value) != value:
                raise ValueError(
                    f"config: {name}: {self.config[name]}: {self.type} has {value} alone"
                )
        kind = _import(self.THEIR_CONFIG)
        draccus = _import("draccus")
        values = {
            **self.DEFAULTS,
            **self.FIXED,
            **self.config,
            **self.their_facts(),
            "device": "cpu",
        }
        plain = {name: value for name, value in values.items() if value is not None}
        try:
            theirs = draccus.decode(kind, plain)
        except draccus.utils.DraccusException as error:
            # others hide that of LeRobot's class
            is_named = isinstance(error, draccus.utils.DecodingError)
            cause = error if is_named else error.__cause__ or error
            raise ValueError(f"config: {cause}") from error
        for name in values.keys() - plain.keys():
            if not hasattr(theirs, name):
                raise ValueError(f"config: {name}: {type(theirs).__name__} has no such field")
            setattr(theirs, name, None)
        return theirs

    def their_facts(self) -> dict[str, Any]:
        """Return the fields of LeRobot's config that follow from the data; settings alone have
        none.
        """
        return {}

    @classmethod
    def network_fields(cls, stored: Record) -> dict[str, Any]:
        """Return the fields of LeRobot's config.json that describe a network."""
        shared = {
            entry.name for entry in fields(_import("lerobot.configs.policies:PreTrainedConfig"))
        }
        names = {entry.name for entry in fields(_import(cls.THEIR_CONFIG))} - shared
        names -= {*OF_RUN, *cls.CHUNK_FIELDS, *cls.FIXED}
        names |= {"n_obs_steps"} - cls.FIXED.keys()
        return {
            name: stored[name]
            for name in sorted(names & stored.keys())
            if not name.startswith(TRAINING)
        }

    def complete(self) -> dict[str, Any]:
        """Return all fields of LeRobot's config that describe the network, with JSON values."""
        return self.network_fields(_import("draccus").encode(self.theirs))

    @classmethod
    def read_stored(cls, stored: Record, colors: Record) -> dict[str, Any]:
        """Return the fields of our config that follow from LeRobot's config.json.

        Args:
            stored: content of config.json.
            colors: `image_mean` and `image_std` of the folder's normalization, `IDENTITY` without
                one.

        Raises:
            ValueError: the policy needs something that ours lacks.
        """
        for name, value in cls.FIXED.items():
            if stored.get(name, value) != value:
                raise ValueError(f"{name}: {stored[name]}: {cls.type} has {value} alone")
        return {"config": cls.network_fields(stored), "chunk": stored.get("chunk_size")}

    def run_defaults(self, steps: int, lora_rank: int) -> Record:
        """Return the preset of LeRobot's config class; see `PolicySettings.run_defaults`."""
        return read_preset(self.THEIR_CONFIG, steps, self.has_preset_chunk)

    @property
    def has_preset_chunk(self) -> bool:
        """Whether the preset decides the length of the chunks."""
        return True

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        try:
            self.theirs  # noqa: B018  # LeRobot checks it
        except ValueError as error:
            return [str(error)]
        return []


@dataclass(frozen=True, kw_only=True)
class ColorSettings(LerobotSettings):
    """Settings of a policy whose images are normalized by mean and deviation."""

    image_size: tuple[int, int] = RECORDED
    """Height and width of the network's images; images of another size are area-averaged. The
    default is the size of the recordings, as in LeRobot.
    """
    image_mean: tuple[float, ...] = IMAGENET_MEAN
    """Mean of the colors in 0..1 by which images are normalized, three numbers; ImageNet's, as
    LeRobot's default is.
    """
    image_std: tuple[float, ...] = IMAGENET_STD
    """Deviation of the colors."""

    def fitted(self, sizes: Mapping[str, tuple[int, int] | None]) -> Self:
        """Return the settings with the size of the recordings, where `image_size` asks for it."""
        if tuple(self.image_size) != RECORDED or not sizes:
            return self
        size = next(iter(sizes.values()))
        if size is None or set(sizes.values()) != {size}:
            shapes = ", ".join(f"{camera} {shape or 'unknown'}" for camera, shape in sizes.items())
            raise ConfigError(
                f"policy.image_size: the cameras have no common size ({shapes}); give height and "
                "width"
            )
        return replace(self, image_size=size)

    @classmethod
    def read_stored(cls, stored: Record, colors: Record) -> dict[str, Any]:
        """Return the colors, too; see the base class."""
        return {**super().read_stored(stored, colors), **colors}

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        lines = super().problems()
        for name in ("image_mean", "image_std"):
            values = getattr(self, name)
            if len(values) != 3 or (name == "image_std" and min(values) <= 0):
                lines.append(f"{name}: {values}: must be three numbers, deviations above 0")
        if tuple(self.image_size) != RECORDED and (
            len(self.image_size) != 2 or min(self.image_size) < 32
        ):
            lines.append(f"image_size: {self.image_size}: height and width must be at least 32")
        return lines


@dataclass(frozen=True, kw_only=True)
class LerobotConfig(LerobotSettings, PolicyConfig):
    """Facts of the data that all policies of LeRobot need."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if lines := self.fact_problems() or self.problems():
            raise ValueError("; ".join(lines))
        self.theirs.validate_features()
        object.__setattr__(self, "config", self.complete())

    def their_facts(self) -> dict[str, Any]:
        """Return the features in the form of LeRobot's config.json, and the length of the chunk."""
        images = {
            key: {"type": LerobotProcessor.VISUAL, "shape": [3, *self.image_size]}
            for key in self.cameras
        }
        return {
            "input_features": {**images, STATE: {"type": "STATE", "shape": [self.state_dim]}},
            "output_features": {ACTION: {"type": "ACTION", "shape": [self.action_dim]}},
            **dict.fromkeys(self.CHUNK_FIELDS, self.chunk),
        }

    def their_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return further steps of LeRobot's preprocessor: registered names, and configs."""
        return []

    def fact_problems(self) -> list[str]:
        """List the rules that the facts of the data break, one line each."""
        lines = super().fact_problems()
        if self.compute != "float32":
            lines.append(
                f"compute: {self.compute}: {self.type} computes in float32; set precision to fp32"
            )
        if not self.cameras or not self.state_dim:
            lines.append(f"cameras: {self.type} needs a camera and a state")
        elif tuple(self.image_size) == RECORDED:
            lines.append(
                "image_size: (0, 0): the size of the recordings is not known here; give height and "
                "width"
            )
        if self.future:
            lines.append(f"future: True: {self.type} predicts no states")
        return lines


@dataclass(frozen=True, kw_only=True)
class LerobotActSettings(ColorSettings):
    """LeRobot's ACT. The ResNet starts with the weights of ImageNet; `init_from` starts from a
    folder of LeRobot.
    """

    THEIR_CONFIG: ClassVar[str] = "lerobot.policies.act.configuration_act:ACTConfig"
    FIXED: ClassVar[Record] = {"n_obs_steps": 1, "temporal_ensemble_coeff": None}
    RUN_ONLY: ClassVar[tuple[str, ...]] = ("compute", "config.pretrained_backbone_weights")

    type: Literal["lerobot-act"] = "lerobot-act"
    """Type of the policy."""

    @classmethod
    def read_stored(cls, stored: Record, colors: Record) -> dict[str, Any]:
        """Return the values without weights of ImageNet: the folder has weights; see
        `LerobotSettings.read_stored`.
        """
        values = super().read_stored(stored, colors)
        return {**values, "config": {**values["config"], "pretrained_backbone_weights": None}}


@dataclass(frozen=True)
class LerobotActConfig(LerobotActSettings, LerobotConfig):
    """Config of a `LerobotAct`: the run's settings and the facts of its data."""


@dataclass(frozen=True, kw_only=True)
class LerobotDiffusionSettings(ColorSettings):
    """LeRobot's Diffusion Policy. The ResNets start with fresh weights; `init_from` starts from a
    folder of LeRobot.
    """

    THEIR_CONFIG: ClassVar[str] = (
        "lerobot.policies.diffusion.configuration_diffusion:DiffusionConfig"
    )
    FIXED: ClassVar[Record] = {"pretrained_backbone_weights": None}
    DEFAULTS: ClassVar[Record] = {"use_group_norm": True}
    CHUNK_FIELDS: ClassVar[tuple[str, ...]] = ()
    RUN_ONLY: ClassVar[tuple[str, ...]] = (
        "compute",
        "config.n_action_steps",
        "config.num_inference_steps",
    )
    TORCH_ATTENTION: ClassVar[bool] = False
    NORMALIZE: ClassVar[Literal["mean_std", "min_max", "quantile"]] = "min_max"

    type: Literal["lerobot-diffusion"] = "lerobot-diffusion"
    """Type of the policy."""

    def deviation(self, steps: int) -> str:
        """Return the differences to LeRobot."""
        return (
            "LeRobot's ResNets start with the weights of ImageNet and have batch normalization; "
            "here they are fresh, with group normalization unless use_group_norm of policy.config "
            "is off. LeRobot's Adam adds weight decay to the gradients"
        )

    @property
    def past_steps(self) -> int:
        """Control steps before the present that the policy sees, and their actions in the
        horizon.
        """
        return int(self.theirs.n_obs_steps) - 1

    def past(self) -> Past:
        """Return the control steps before the present."""
        return Past(steps=self.past_steps, actions=self.past_steps)

    @property
    def has_preset_chunk(self) -> bool:
        """Whether the preset decides the length of the chunks: the horizon does."""
        return False

    def stored_chunk(self) -> int:
        """Return the default of `data.chunk_size`: the horizon from the present on."""
        return int(self.theirs.horizon) - self.past_steps

    @classmethod
    def read_stored(cls, stored: Record, colors: Record) -> dict[str, Any]:
        """Return the values with the length of the chunk; see `LerobotSettings.read_stored`."""
        values = super().read_stored({**stored, **cls.FIXED}, colors)
        return {**values, "chunk": cls(config=values["config"]).stored_chunk()}


@dataclass(frozen=True)
class LerobotDiffusionConfig(LerobotDiffusionSettings, LerobotConfig):
    """Config of a `LerobotDiffusion`: the run's settings and the facts of its data."""

    def fact_problems(self) -> list[str]:
        """List the rules that the facts of the data break, one line each."""
        lines = super().fact_problems()
        if not lines and not self.problems() and self.chunk != self.stored_chunk():
            lines.append(
                f"chunk: {self.chunk}: must be horizon - n_obs_steps + 1, {self.stored_chunk()}; "
                "leave out data.chunk_size, or set horizon of policy.config to "
                f"{self.chunk + self.past_steps}"
            )
        return lines


@dataclass(frozen=True, kw_only=True)
class LerobotSmolvlaSettings(LerobotSettings):
    """LeRobot's SmolVLA.

    `weights` starts from the network of a folder such as LeRobot's `smolvla_base`, with the
    normalization of the data; `init_from` also takes the folder's normalization. Without both, all
    weights are fresh.
    """

    THEIR_CONFIG: ClassVar[str] = "lerobot.policies.smolvla.configuration_smolvla:SmolVLAConfig"
    FIXED: ClassVar[Record] = {
        "n_obs_steps": 1,
        "empty_cameras": 0,
        "adapt_to_pi_aloha": False,
        "use_delta_joint_actions_aloha": False,
    }
    RUN_ONLY: ClassVar[tuple[str, ...]] = (
        *(
            "compute",
            "cameras",
            "chunk",
            "image_size",
            "weights",
            "config.resize_imgs_with_padding",
        ),
        *(
            "config.vlm_model_name",
            "config.tokenizer_max_length",
            "config.pad_language_to",
            "config.num_steps",
        ),
    )
    AT_START: ClassVar[tuple[str, ...]] = (
        *("config.freeze_vision_encoder", "config.train_expert_only", "config.train_state_proj"),
    )
    START_FILES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "weights": ("*.json", "model*.safetensors")
    }
    TORCH_ATTENTION: ClassVar[bool] = False
    RESIZED: ClassVar[str] = "aspect ratio kept, black on the left and on top"

    type: Literal["lerobot-smolvla"] = "lerobot-smolvla"
    """Type of the policy."""
    weights: str = ""
    """Network to start from: the folder of a SmolVLA of LeRobot or understudy, or the id of a hub
    repository. Fields that `config` leaves out have the folder's values, apart from frozen parts.
    The normalization is of the data.
    """
    image_size: tuple[int, int] = (480, 640)
    """Height and width of the images in LeRobot's config; the network takes images of any size."""

    @property
    def network_size(self) -> tuple[int, int]:
        """Height and width of the images that the network computes with."""
        size = self.theirs.resize_imgs_with_padding
        return self.image_size if size is None else (size[1], size[0])

    def resolved(self) -> Self:
        """Return the settings with the absolute paths of `vlm_model_name` and `weights`, where
        these exist.
        """
        weights = self.weights
        model = str(self.config.get("vlm_model_name", ""))
        if os.path.exists(weights):
            weights = os.path.abspath(weights)
        named = {"vlm_model_name": os.path.abspath(model)} if os.path.exists(model) else {}
        return replace(super().resolved(), weights=weights, config={**self.config, **named})

    def started(self) -> Self:
        """Return the settings of a new run: fields that `config` leaves out as the folder `weights`
        has them.

        Raises:
            ConfigError: the folder's config is missing or damaged, or of another type.
        """
        stored, _ = self.stored_values()
        taken = {
            name: value for name, value in stored.items() if f"config.{name}" not in self.AT_START
        }
        return replace(self, config={**taken, **self.config})

    def stored_chunk(self) -> int | None:
        """Return the actions per chunk of `weights`; None: there are none."""
        return self.stored_values()[1]

    @property
    def has_preset_chunk(self) -> bool:
        """Whether the preset decides the length of the chunks: `weights` do, where there are
        some.
        """
        return not self.weights

    def resize(self) -> Any:
        """Return the function that writes an image below and right of black bars."""
        return LEROBOT_SMOLVLA.load().resize_image

    def stored_values(self) -> tuple[dict[str, Any], int | None]:
        """Return all fields of the network of the folder `weights`, and its chunk; ({}, None):
        there is no such path.

        Raises:
            ConfigError: the config is missing or damaged, of another type, or needs something that
                ours lacks.
        """
        if not self.weights or not os.path.exists(self.weights):
            return {}, None
        file = _config_file(self.weights)
        stored = read_object(file)
        try:
            if (name := self.stored_type(stored)) != self.type:
                raise ValueError(f"type: {stored.get('type', name)}: policy.type is {self.type}")
            if "input_features" in stored:
                mapping = stored.get("normalization_mapping")
                mode = "IDENTITY"
                if isinstance(mapping, Mapping):
                    mode = mapping.get(LerobotProcessor.VISUAL, "IDENTITY")
                figures = IDENTITY if mode == "IDENTITY" else {LerobotProcessor.VISUAL: mode}
                stored = self.read_stored(stored, figures)
            chunk = stored.get("chunk")
            if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
                raise ValueError(f"chunk_size: {chunk!r}: must be a whole number of at least 1")
            return LerobotSmolvlaSettings(config=stored.get("config", {})).complete(), chunk
        except ValueError as error:
            raise ConfigError(f"policy.weights: {file}: {error}") from error

    @classmethod
    def read_stored(cls, stored: Record, colors: Record) -> dict[str, Any]:
        """Return the values of a policy without normalized images; see
        `LerobotSettings.read_stored`.
        """
        if colors != IDENTITY:
            raise ValueError(
                f"normalization_mapping: {LerobotProcessor.VISUAL}: {cls.type} normalizes no images"
            )
        return super().read_stored(stored, colors)


@dataclass(frozen=True)
class LerobotSmolvlaConfig(LerobotSmolvlaSettings, LerobotConfig):
    """Config of a `LerobotSmolvla`: the run's settings and the facts of its data."""

    def their_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the steps of the preprocessor that make tokens of the instruction."""
        tokens = {
            "max_length": self.theirs.tokenizer_max_length,
            "task_key": "task",
            "padding_side": "right",
            "padding": self.theirs.pad_language_to,
            "truncation": True,
            "tokenizer_name": self.theirs.vlm_model_name,
        }
        return [("smolvla_new_line_processor", {}), ("tokenizer_processor", tokens)]

    def fact_problems(self) -> list[str]:
        """List the rules that the facts of the data break, one line each."""
        lines = super().fact_problems()
        if lines or self.problems():
            return lines
        for name in ("state_dim", "action_dim"):
            width = getattr(self, name)
            most = getattr(self.theirs, f"max_{name}")
            if width > most:
                lines.append(
                    f"{name}: {width}: the network takes up to {most}; set max_{name} of "
                    "policy.config"
                )
        return lines


def read_preset(kind: str, steps: int, with_chunk: bool) -> dict[str, Any]:
    """Return the settings of a run, those of a group nested, with which LeRobot trains a policy.

    Args:
        kind: its config class, "module:name".
        steps: length of the run; a schedule that is longer is compressed, as LeRobot does.
        with_chunk: whether to add the length of its chunks.

    Raises:
        MissingExtraError: lerobot is not installed.
        ValueError: the preset needs an optimizer, a schedule or a normalization that a run lacks.
    """
    with optional_imports():
        theirs = _import(kind)(device="cpu")
        run = _import(PIPELINE)
    data: dict[str, Any] = {
        "normalize": NORMALIZATIONS[theirs.normalization_mapping["ACTION"].value]
    }
    if with_chunk:
        data["chunk_size"] = theirs.chunk_size
    if left_out := getattr(theirs, "drop_n_last_frames", 0):
        data["drop_n_last_frames"] = left_out
    optimizer = theirs.get_optimizer_preset()
    if optimizer.type not in ("adam", "adamw"):
        raise ValueError(f"{kind}: a run has AdamW, and its preset {optimizer.type}")
    beta1, beta2 = optimizer.betas
    optim = {
        "lr": float(optimizer.lr),
        "beta1": beta1,
        "beta2": beta2,
        "eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "weight_decay_on": "all",
        "grad_clip_norm": float(optimizer.grad_clip_norm),
    }
    backbone = getattr(theirs, "optimizer_lr_backbone", optimizer.lr)
    if backbone != optimizer.lr:
        optim["lr_scale"] = {BACKBONE: backbone / optimizer.lr}
    return {
        "steps": run.steps,
        "batch_size": run.batch_size,
        "data": data,
        "augment": {"shift": 0},
        "optim": optim,
        "schedule": schedule_settings(theirs.get_scheduler_preset(), steps),
    }


def schedule_settings(preset: Any, steps: int) -> dict[str, Any]:
    """Return the settings of a schedule of LeRobot; None is a constant learning rate.

    Raises:
        ValueError: a run has no such schedule.
    """
    if preset is None:
        return {"kind": "constant", "warmup_steps": 0}
    if preset.type == "diffuser" and preset.name in ("cosine", "linear", "constant_with_warmup"):
        kind = preset.name.partition("_")[0]
        return {"kind": kind, "warmup_steps": preset.num_warmup_steps or 0, "final_lr_ratio": 0.0}
    if preset.type == "cosine_decay_with_warmup":
        share = min(1.0, steps / preset.num_decay_steps)
        return {
            "kind": "cosine",
            "warmup_steps": int(preset.num_warmup_steps * share),
            "decay_steps": min(steps, preset.num_decay_steps),
            "final_lr_ratio": preset.decay_lr / preset.peak_lr,
        }
    raise ValueError(f"a run has no schedule {preset.type} of LeRobot; set --schedule.kind")


def check_smolvla_start(config: LerobotSmolvlaConfig) -> None:
    """Check the config of a new run against the folder `weights`.

    Raises:
        ConfigError: there is no such folder, its files are damaged, or it holds another network;
            names each setting with both values.
    """
    if not config.weights:
        return
    from understudy import WeightFiles

    file = _config_file(config.weights)
    try:
        WeightFiles(config.weights, floats_only=False)
        if not file.is_file():
            raise FileNotFoundError(f"{config.weights} has no {file.name} next to its weights")
    except (OSError, ValueError) as error:
        raise ConfigError(f"policy.weights: {error}; name a folder of LeRobot's SmolVLA") from error
    stored, _ = config.stored_values()
    lines = [
        f"  {name} of policy.config is {config.config[name]}, and {file} has {name}: {value}"
        for name, value in stored.items()
        if f"config.{name}" not in (*config.RUN_ONLY, *config.AT_START)
        and config.config[name] != value
    ]
    if lines:
        raise ConfigError(
            "\n".join(
                [
                    "policy.weights: the folder holds another network; leave out these settings",
                    *lines,
                ]
            )
        )


def _config_file(weights: str) -> Path:
    path = Path(weights)
    folder = path if path.is_dir() else path.parent
    return folder / "config.json"


def _import(target: str) -> Any:
    """Import "module:name" or a module of LeRobot. Raises MissingExtraError where it is not
    installed.
    """
    with optional_imports():
        module_name, _, name = target.partition(":")
        module = import_module(module_name)
        return getattr(module, name) if name else module


def _parsed(value: Any) -> Any:
    """Parse a value of the command line as JSON; other texts stay, and tuples become lists."""
    if isinstance(value, tuple):
        return list(value)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


LEROBOT_ACT = PolicyType(
    LerobotActSettings, "understudy_zoo.lerobot.act:LerobotAct", config=LerobotActConfig
)
LEROBOT_DIFFUSION = PolicyType(
    LerobotDiffusionSettings,
    "understudy_zoo.lerobot.diffusion:LerobotDiffusion",
    config=LerobotDiffusionConfig,
)
LEROBOT_SMOLVLA = PolicyType(
    LerobotSmolvlaSettings,
    "understudy_zoo.lerobot.smolvla:LerobotSmolvla",
    config=LerobotSmolvlaConfig,
)
