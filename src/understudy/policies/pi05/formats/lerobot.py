"""LeRobot's folder of a pi0.5 or pi0 policy, as its `save_pretrained` writes it.

    model.safetensors                  released keys behind `model.`, the embedding also under its own name
    config.json                        the fields of `PI05Config` or `PI0Config` that this policy decides
    policy_preprocessor.json           steps before the network; its safetensors file has the normalization
    policy_postprocessor.json          steps behind it

The processors normalize by MEAN_STD with the policy's own offset and spread: (x - mean) / (std + eps), whose eps of
1e-30 changes no float32 spread. Quantiles would be rounded once more. `normalization_mapping` in config.json is the
family's own, by which LeRobot normalizes in a training on other data.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from safetensors.numpy import save

from understudy.batch_keys import ACTION, STATE
from understudy.errors import ConfigError
from understudy.policies.folder_formats import ForeignFolder
from understudy.policies.pi05.config import Pi05PolicyConfig
from understudy.policies.pi05.formats.robot import Robot, check_prompts, common_files, to_json, variant
from understudy.policies.pi05.sizes import Sizes
from understudy.policies.pi05.weights.lerobot_normalization import LEROBOT, LEROBOT_OUT
from understudy.policies.pi05.weights.released_keys import EMBEDDING, EXPERT_HEAD, HEAD, released_key

Step = tuple[str, dict[str, Any]]
"""Registered name of a processor's step, and its config."""

EPS = 1e-30
TOKENIZER_NAME = "google/paligemma-3b-pt-224"
"""Tokenizer that LeRobot loads from the hub."""
VISUAL, NORMALIZED = "VISUAL", {"pi05": "QUANTILES", "pi0": "MEAN_STD"}


def lerobot_folder(
    config: Pi05PolicyConfig, normalization: Mapping[str, Any], robot_facts: Mapping[str, Any], head: int, dtype: str
) -> ForeignFolder:
    """Describe a policy as LeRobot's folder; see `describe_folder`.

    Raises:
        ConfigError: LeRobot has no equal of the policy.
    """
    robot = Robot.from_head(config, normalization, head)
    _check(config, robot)
    files, notes = common_files(config, "LeRobot")
    features = _features(config, robot, robot_facts)
    files["config.json"] = to_json(_config(config, robot, robot_facts, features, dtype))
    files |= _processors(config, robot, robot_facts, features)
    if config.tokenizer and config.sizes.vocab != Sizes.BASE.vocab:
        notes.append("tokenizer: LeRobot loads tokenizers by name, and this one has none; give its step a tokenizer")
    if STATE in robot.maps and (constant := robot.maps[STATE].constant):
        notes.append(
            f"normalization: the state dimensions {constant} were constant. understudy maps each value of them to 0, "
            "LeRobot to its distance from the constant"
        )
    if config.max_delay:
        notes.append(f"max_delay: {config.max_delay}: LeRobot continues no chunk with given actions")
    return ForeignFolder(files, _keys, {f"model.{EXPERT_HEAD}": (config.sizes.vocab, config.sizes.expert.width)}, notes)


def _keys(name: str) -> Sequence[str]:
    """Both keys of the embedding: LeRobot has two parameters there, and a strict `load_state_dict` requires both."""
    key = released_key(name)
    return [f"model.{each}" for each in ((HEAD, EMBEDDING) if key == HEAD else (key,))]


def _check(config: Pi05PolicyConfig, robot: Robot) -> None:
    check_prompts(config, "lerobot")
    wanted = "state" if config.type == "pi05" else "plain"
    if config.prompt != wanted:
        raise ConfigError(
            f"format: lerobot: policy.prompt is {config.prompt}: LeRobot's {config.type} has the prompt {wanted}; "
            "export with --format openpi or understudy"
        )
    if STATE not in robot.maps:
        raise ConfigError("format: lerobot: the policy has no state (data.state), which LeRobot requires")
    if robot.delta and robot.width(STATE) < robot.width(ACTION):
        raise ConfigError(
            f"format: lerobot: actions are learnt as differences to a state of {robot.width(STATE)} dimensions, and "
            f"LeRobot requires as many as the action has, {robot.width(ACTION)}; export with --format understudy"
        )


def _features(config: Pi05PolicyConfig, robot: Robot, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """LeRobot's features by key; cameras in the network's order."""
    side = config.sizes.vision.image
    cameras = [key for key in config.cameras if key in facts.get("cameras", config.cameras)]
    found: dict[str, dict[str, Any]] = {key: {"type": VISUAL, "shape": [3, side, side]} for key in cameras}
    found[STATE] = {"type": "STATE", "shape": [robot.width(STATE)]}
    found[ACTION] = {"type": "ACTION", "shape": [robot.width(ACTION)]}
    return found


def _config(
    config: Pi05PolicyConfig, robot: Robot, facts: Mapping[str, Any], features: Mapping[str, Any], dtype: str
) -> dict[str, Any]:
    """Fields of LeRobot's config that the policy decides; all others have LeRobot's defaults."""
    sizes, released, mode = config.sizes, config.flow_time == "released", NORMALIZED[config.type]
    names, excluded = _relative_names(robot, facts)
    return {
        "type": config.type,
        "n_obs_steps": 1,
        "input_features": {key: value for key, value in features.items() if key != ACTION},
        "output_features": {ACTION: features[ACTION]},
        "normalization_mapping": {VISUAL: "IDENTITY", "STATE": mode, "ACTION": mode},
        "paligemma_variant": variant(sizes.vlm),
        "action_expert_variant": variant(sizes.expert),
        "dtype": "bfloat16" if dtype == "bf16" else "float32",
        "chunk_size": config.chunk,
        "n_action_steps": config.chunk,
        "max_state_dim": sizes.dim,
        "max_action_dim": sizes.dim,
        "image_resolution": [sizes.vision.image] * 2,
        "tokenizer_max_length": config.prompt_tokens,
        "num_inference_steps": 10,
        "time_sampling_scale": 0.999 if released else 1.0,
        "time_sampling_offset": 0.001 if released else 0.0,
        "use_relative_actions": bool(robot.delta),
        "relative_exclude_joints": excluded,
        "action_feature_names": names,
    }


def _relative_names(robot: Robot, facts: Mapping[str, Any]) -> tuple[list[str] | None, list[str]]:
    """Names of the action dimensions, and those that are no differences.

    LeRobot excludes a dimension if its name contains an excluded one. Where the data's names cannot express the
    differences so, names by number can.
    """
    width = robot.width(ACTION)
    own = [str(name) for name in facts.get("action_names") or []]
    if not robot.delta:
        return own or None, []
    for names in (own, [f"dim{dim:03}" for dim in range(width)]):
        if len(names) != width:
            continue
        excluded = [name for dim, name in enumerate(names) if dim not in robot.delta]
        kept = [dim for dim, name in enumerate(names) if not any(each.lower() in name.lower() for each in excluded)]
        if tuple(kept) == robot.delta and all(excluded):
            break
    return names, excluded


def _processors(
    config: Pi05PolicyConfig, robot: Robot, facts: Mapping[str, Any], features: Mapping[str, Any]
) -> dict[str, bytes]:
    """Both processor files, and the file of statistics of each."""
    names, excluded = _relative_names(robot, facts)
    known = {"tokenizer_name": TOKENIZER_NAME} if config.sizes.vocab == Sizes.BASE.vocab else {}
    text = {"max_length": config.prompt_tokens, "task_key": "task", "padding_side": "right", "padding": "max_length"}
    normal = {"eps": EPS, "norm_map": {VISUAL: "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}}
    rename: Step = ("rename_observations_processor", {"rename_map": {}})
    batch: Step = ("to_batch_processor", {})
    relative: Step = (
        "relative_actions_processor",
        {"enabled": bool(robot.delta), "exclude_joints": excluded, "action_names": names},
    )
    normalize: Step = ("normalizer_processor", {**normal, "features": dict(features)})
    tokenize: Step = ("tokenizer_processor", {**text, "truncation": True, **known})
    device: Step = ("device_processor", {"device": "cpu", "float_dtype": None})
    if config.type == "pi05":
        state: Step = ("pi05_prepare_state_tokenizer_processor_step", {})
        before = [rename, batch, relative, normalize, state, tokenize, device]
    else:
        before = [rename, batch, ("pi0_new_line_processor", {}), tokenize, device, relative, normalize]
    behind: list[Step] = [
        ("unnormalizer_processor", {**normal, "features": {ACTION: features[ACTION]}}),
        ("absolute_actions_processor", {"enabled": bool(robot.delta)}),
        device,
    ]
    statistics = save(_statistics(robot))
    files: dict[str, bytes] = {}
    for file, steps in ((LEROBOT, before), (LEROBOT_OUT, behind)):
        own, entries = file.removesuffix(".json"), []
        for number, (name, content) in enumerate(steps):
            entry: dict[str, Any] = {"registry_name": name, "config": content}
            if "norm_map" in content:
                entry["state_file"] = f"{own}_step_{number}_{name}.safetensors"
                files[entry["state_file"]] = statistics
            entries.append(entry)
        files[file] = to_json({"name": own, "steps": entries})
    return files


def _statistics(robot: Robot) -> dict[str, np.ndarray]:
    """Statistics of the MEAN_STD mode, float32 [dim] each, whose map is that of the policy."""
    found: dict[str, np.ndarray] = {}
    for key, (offset, spread) in robot.maps.items():
        # A constant state must stay finite where it varies after all; a constant action has its constant in reverse.
        std = np.where(spread == 0, 1.0, spread) if key == STATE else spread
        found |= {f"{key}.mean": offset.astype(np.float32), f"{key}.std": std.astype(np.float32)}
    return found
