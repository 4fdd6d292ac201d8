"""LeRobot's folder of a policy: read as one of ours, and described for the export. No torch.

    config.json                        fields of LeRobot's config
    model.safetensors                  the network, under LeRobot's names
    policy_preprocessor.json           normalization of images, state and action, with its
                                       safetensors file
    policy_postprocessor.json          its inverse

The processors that we write normalize by MEAN_STD with the policy's own offset and spread: (x -
mean) / (std + eps).
"""

from pathlib import Path
from typing import Any

import numpy as np

from understudy import LerobotProcessor, PolicySettings, StoredNormalization
from understudy_base import ACTION, STATE, ConfigError, Record
from understudy_zoo.folder_formats import ForeignFolder, Robot
from understudy_zoo.lerobot.settings import IDENTITY, LerobotConfig, LerobotSettings
from understudy_zoo.lerobot_processors import (
    BEFORE,
    DEVICE,
    map_figures,
    processor_files,
    to_json,
)

EPS = 1e-8


def read_folder(
    folder: Path, stored: Record, normalization: Record | None, shapes: Any, asset: str = ""
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return config and normalization as our own folders have them; None: the folder is not
    LeRobot's.

    Args:
        folder: the folder.
        stored: its config.json.
        normalization: content of normalisation.json; None: take the folder's.
        shapes: shapes of its tensors.
        asset: has no meaning here.

    Raises:
        ValueError: LeRobot's policy has inputs or a normalization that ours lacks, by name.
        ConfigError: the processors are missing or damaged.
    """
    if "input_features" not in stored:
        return None
    kind: Any = PolicySettings.select(stored)
    if not issubclass(kind, LerobotSettings):
        return None
    name = kind.type
    inputs, outputs = (
        LerobotProcessor.features(stored, key) for key in ("input_features", "output_features")
    )
    cameras = {
        key: shape for key, (feature, shape) in inputs.items() if feature == LerobotProcessor.VISUAL
    }
    if unknown := sorted(set(inputs) - set(cameras) - {STATE}) + sorted(set(outputs) - {ACTION}):
        raise ValueError(f"input_features: {unknown[0]}: {name} has cameras and {STATE} alone")
    sizes = {tuple(shape[1:]) for shape in cameras.values()}
    if len(sizes) != 1 or STATE not in inputs or ACTION not in outputs:
        raise ValueError(
            f"input_features: cameras of the sizes {sorted(sizes)}: {name} needs one size, and a "
            "state"
        )
    values = {
        "type": name,
        "cameras": list(cameras),
        "image_size": list(sizes.pop()),
        "state_dim": inputs[STATE][1][0],
        "action_dim": outputs[ACTION][1][0],
    }
    values |= kind.read_stored(stored, _image_figures(folder, list(cameras), name))
    if normalization is None:
        robot = StoredNormalization.of_lerobot(folder)
        if robot.delta:
            raise ValueError(
                f"{robot.where}: relative_actions_processor: the actions {list(robot.delta)} "
                f"are differences to the state, and {name} is read with absolute actions alone"
            )
        maps = robot.maps
        if missing := [key for key in (STATE, ACTION) if key not in maps]:
            raise ConfigError(
                f"{robot.where}: has no normalization of {missing[0]}; restore the file"
            )
        of_one_head: dict[str, Any] = {"heads": [""]}
        for key, affine in maps.items():
            of_one_head[key] = {name: [list(affine[name])] for name in affine}
        normalization = of_one_head
    return values, dict(normalization)


def _image_figures(folder: Path, cameras: list[str], name: str) -> dict[str, list[float]]:
    """Mean and deviation of the colors, the same for all cameras.

    Raises:
        ValueError: they differ between cameras, or images have another normalization.
    """
    path = folder / LerobotProcessor.BEFORE
    processor = LerobotProcessor(path)
    step = processor.find("normalizer_processor")
    mode = step["config"].get("norm_map", {}).get(LerobotProcessor.VISUAL, "IDENTITY")
    figures = processor.statistics(step)
    if mode == "IDENTITY" or not any("mean" in figures.get(camera, {}) for camera in cameras):
        return IDENTITY
    if mode != "MEAN_STD":
        raise ValueError(
            f"normalization_mapping: {LerobotProcessor.VISUAL}: {mode}: {name} normalizes images "
            "by MEAN_STD"
        )
    colors = {}
    for field, figure in (("image_mean", "mean"), ("image_std", "std")):
        values = {tuple(figures[camera][figure].reshape(-1).tolist()) for camera in cameras}
        if len(values) != 1:
            raise ValueError(
                f"{path}: the {figure} of the cameras differ; {name} has the same for all cameras"
            )
        # 0.485, not 0.48500001
        colors[field] = [float(str(np.float32(value))) for value in values.pop()]
    return colors


def describe_folder(
    config: LerobotConfig, normalization: Record, robot_facts: Record, head: int, dtype: str
) -> ForeignFolder:
    """Describe a policy as LeRobot's folder; see `folder_formats.describe_folder`.

    Raises:
        ConfigError: actions are differences to the state, or the robot is narrower than the
            network.
    """
    if dtype != "fp32":
        raise ConfigError(f"dtype: {dtype}: {config.type} is float32; leave it out")
    robot = Robot.from_head(config, normalization, head)
    if robot.delta:
        raise ConfigError(
            "format: lerobot: actions are learnt as differences to the state, which LeRobot lacks"
        )
    for key, width in ((ACTION, config.action_dim), (STATE, config.state_dim)):
        if robot.width(key) != width:
            raise ConfigError(
                f"head: {key} has {robot.width(key)} dimensions, and the network {width}; LeRobot "
                "pads no vectors"
            )
    facts = config.their_facts()
    features = {**facts["input_features"], **facts["output_features"]}
    colors = "MEAN_STD" if hasattr(config, "image_mean") else "IDENTITY"
    modes = {LerobotProcessor.VISUAL: colors, "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
    about = {
        "type": config.type.removeprefix("lerobot-"),
        **facts,
        "normalization_mapping": modes,
        "device": "cpu",
        **config.FIXED,
        **config.config,
    }
    if "pretrained_backbone_weights" in about:
        about["pretrained_backbone_weights"] = None  # the folder has weights
    normal = {"eps": EPS, "norm_map": modes}
    before = [
        *BEFORE,
        *config.their_steps(),
        DEVICE,
        ("normalizer_processor", {**normal, "features": features}),
    ]
    behind = [
        ("unnormalizer_processor", {**normal, "features": {ACTION: features[ACTION]}}),
        DEVICE,
    ]
    figures = map_figures(robot.maps)
    cameras = config.cameras if colors != "IDENTITY" else ()
    for camera in cameras:
        stated = {"mean": config.image_mean, "std": config.image_std}  # type: ignore[attr-defined]
        for name, values in stated.items():
            figures[f"{camera}.{name}"] = np.asarray(values, np.float32).reshape(3, 1, 1)
    files = {"config.json": to_json(about)} | processor_files(before, behind, figures)
    height, width = config.image_size
    notes = []
    if colors != "IDENTITY":
        notes.append(f"image_size: LeRobot resizes no images: send {height} x {width}")
    return ForeignFolder(files, lambda name: [name], {}, notes)
