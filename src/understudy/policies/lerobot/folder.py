"""LeRobot's folder of a policy: read as one of ours, and described for the export. No torch.

    config.json                        fields of LeRobot's config
    model.safetensors                  the network, under LeRobot's names
    policy_preprocessor.json           normalization of images, state and action, with its safetensors file
    policy_postprocessor.json          its inverse

The processors that we write normalize by MEAN_STD with the policy's own offset and spread: (x - mean) / (std + eps).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from understudy.batch_keys import ACTION, STATE
from understudy.errors import ConfigError
from understudy.policies.folder_formats import ForeignFolder
from understudy.policies.lerobot.settings import IDENTITY, VISUAL, LerobotConfig, LerobotSettings
from understudy.policies.pi05.export import to_json
from understudy.policies.pi05.normalization import LEROBOT, LEROBOT_OUT, read_lerobot, read_object
from understudy.policies.registry import policy_type, stored_type

EPS = 1e-8
Step = tuple[str, dict[str, Any]]
"""Registered name of a processor's step, and its config."""


def read_folder(
    folder: Path, stored: Mapping[str, Any], normalization: Mapping[str, Any] | None, shapes: Any, asset: str = ""
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return config and normalization as our own folders have them; None: the folder is not LeRobot's.

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
    kind: Any = policy_type(stored_type(stored)).settings
    if not issubclass(kind, LerobotSettings):
        return None
    name = kind.type
    inputs, outputs = (_features(stored, key) for key in ("input_features", "output_features"))
    cameras = {key: shape for key, (feature, shape) in inputs.items() if feature == VISUAL}
    if unknown := sorted(set(inputs) - set(cameras) - {STATE}) + sorted(set(outputs) - {ACTION}):
        raise ValueError(f"input_features: {unknown[0]}: {name} has cameras and {STATE} alone")
    sizes = {tuple(shape[1:]) for shape in cameras.values()}
    if len(sizes) != 1 or STATE not in inputs or ACTION not in outputs:
        raise ValueError(f"input_features: cameras of the sizes {sorted(sizes)}: {name} needs one size, and a state")
    values = {
        "type": name,
        "cameras": list(cameras),
        "image_size": list(sizes.pop()),
        "state_dim": inputs[STATE][1][0],
        "action_dim": outputs[ACTION][1][0],
    }
    values |= kind.read_stored(stored, _image_figures(folder, list(cameras), name))
    if normalization is None:
        maps = read_lerobot(folder).maps
        if missing := [key for key in (STATE, ACTION) if key not in maps]:
            raise ConfigError(f"{folder / LEROBOT}: has no normalization of {missing[0]}; restore the file")
        normalization = {"heads": [""], **{key: {n: [list(affine[n])] for n in affine} for key, affine in maps.items()}}
    return values, dict(normalization)


def _features(stored: Mapping[str, Any], name: str) -> dict[str, tuple[str, list[int]]]:
    features = stored.get(name)
    if not isinstance(features, Mapping):
        raise ValueError(f"{name}: {features!r}: must be an object")
    return {
        str(key): (str(feature["type"]), [int(side) for side in feature["shape"]]) for key, feature in features.items()
    }


def _image_figures(folder: Path, cameras: list[str], name: str) -> dict[str, list[float]]:
    """Mean and deviation of the colors, the same for all cameras.

    Raises:
        ValueError: they differ between cameras, or images have another normalization.
    """
    path = folder / LEROBOT
    steps = [s for s in read_object(path)["steps"] if s.get("registry_name") == "normalizer_processor"]
    if len(steps) != 1:
        raise ConfigError(f"{path}: has {len(steps)} steps normalizer_processor; expected one")
    mode = steps[0]["config"].get("norm_map", {}).get(VISUAL, "IDENTITY")
    figures = load_file(folder / Path(str(steps[0]["state_file"])).name) if steps[0].get("state_file") else {}
    if mode == "IDENTITY" or not any(f"{camera}.mean" in figures for camera in cameras):
        return IDENTITY
    if mode != "MEAN_STD":
        raise ValueError(f"normalization_mapping: {VISUAL}: {mode}: {name} normalizes images by MEAN_STD")
    colors = {}
    for field, figure in (("image_mean", "mean"), ("image_std", "std")):
        values = {tuple(np.asarray(figures[f"{camera}.{figure}"]).reshape(-1).tolist()) for camera in cameras}
        if len(values) != 1:
            raise ValueError(f"{path}: the {figure} of the cameras differ; {name} has the same for all cameras")
        colors[field] = [float(str(np.float32(value))) for value in values.pop()]  # 0.485, not 0.48500001
    return colors


def describe_folder(
    config: LerobotConfig, normalization: Mapping[str, Any], robot_facts: Mapping[str, Any], head: int, dtype: str
) -> ForeignFolder:
    """Describe a policy as LeRobot's folder; see `folder_formats.describe_folder`.

    Raises:
        ConfigError: actions are differences to the state, or the robot is narrower than the network.
    """
    if dtype != "fp32":
        raise ConfigError(f"dtype: {dtype}: {config.type} is float32; leave it out")
    if np.any(normalization.get("delta", [[False]])[head]):
        raise ConfigError("format: lerobot: actions are learnt as differences to the state, which LeRobot lacks")
    widths = {ACTION: config.action_dim, STATE: config.state_dim}
    for key, width in widths.items():
        dims = normalization.get("dims", {}).get(key, [width] * (head + 1))[head]
        if dims != width:
            raise ConfigError(f"head: {key} has {dims} dimensions, and the network {width}; LeRobot pads no vectors")
    facts = config.their_facts()
    features = {**facts["input_features"], **facts["output_features"]}
    colors = "MEAN_STD" if hasattr(config, "image_mean") else "IDENTITY"
    modes = {VISUAL: colors, "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
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
    files = {"config.json": to_json(about)} | _processors(config, normalization, features, head, modes)
    height, width = config.image_size
    notes = [] if colors == "IDENTITY" else [f"image_size: LeRobot resizes no images: send {height} x {width}"]
    return ForeignFolder(files, lambda name: [name], {}, notes)


def _processors(
    config: LerobotConfig,
    normalization: Mapping[str, Any],
    features: Mapping[str, Any],
    head: int,
    modes: Mapping[str, str],
) -> dict[str, bytes]:
    """Both processor files, and the file of statistics of each."""
    figures: dict[str, np.ndarray] = {}
    for key in (STATE, ACTION):
        offset, spread = (np.asarray(normalization[key][name], np.float32) for name in ("offset", "spread"))
        offset, spread = (array[head] if array.ndim > 1 else array for array in (offset, spread))
        # A constant state must stay finite where it varies after all; a constant action has its constant in reverse.
        std = np.where(spread == 0, np.float32(1), spread) if key == STATE else spread
        figures |= {f"{key}.mean": offset.astype(np.float32), f"{key}.std": std.astype(np.float32)}
    for camera in config.cameras if modes[VISUAL] != "IDENTITY" else ():
        for name, values in (("mean", config.image_mean), ("std", config.image_std)):  # type: ignore[attr-defined]
            figures[f"{camera}.{name}"] = np.asarray(values, np.float32).reshape(3, 1, 1)
    normal = {"eps": EPS, "norm_map": dict(modes)}
    device: Step = ("device_processor", {"device": "cpu", "float_dtype": None})
    before: list[Step] = [
        ("rename_observations_processor", {"rename_map": {}}),
        ("to_batch_processor", {}),
        *config.their_steps(),
        device,
        ("normalizer_processor", {**normal, "features": dict(features)}),
    ]
    behind: list[Step] = [("unnormalizer_processor", {**normal, "features": {ACTION: features[ACTION]}}), device]
    files: dict[str, bytes] = {}
    for file, steps in ((LEROBOT, before), (LEROBOT_OUT, behind)):
        array, entries = file.removesuffix(".json"), []
        for number, (name, content) in enumerate(steps):
            entry: dict[str, Any] = {"registry_name": name, "config": content}
            if "norm_map" in content:
                entry["state_file"] = f"{array}_step_{number}_{name}.safetensors"
                files[entry["state_file"]] = save(figures)
            entries.append(entry)
        files[file] = to_json({"name": array, "steps": entries})
    return files
