"""pi0.5 and pi0 as folders of LeRobot and openpi.

LeRobot's folder of a pi0.5 or pi0 policy, as its `save_pretrained` writes it.

    model.safetensors                  released keys behind `model.`, the embedding also under its
                                       own name
    config.json                        the fields of `PI05Config` or `PI0Config` that this policy
                                       decides
    policy_preprocessor.json           steps before the network; its safetensors file has the
                                       normalization
    policy_postprocessor.json          steps behind it

The processors normalize by MEAN_STD with the policy's own offset and spread: (x - mean) / (std +
eps), whose eps of 1e-30 changes no float32 spread. Quantiles would be rounded once more.
`normalization_mapping` in config.json is the family's own, by which LeRobot normalizes in a
training on other data.

A pi0.5 whose prompts are messages is of LeRobot's type `pi052` (`PI052Config`,
`make_pi052_pre_post_processors` at its commit f2c8867d of 2026-07-28): the same tensors, and other
steps for its texts.

openpi's folder of a pi0.5 or pi0 policy, as its converter to torch writes it.

    model.safetensors              released keys; the embedding has the name of the head to which it
                                   is tied
    config.json                    the converter's fields, and those of `Pi0Config` that openpi
                                   takes from its own code
    assets/ID/norm_stats.json      the normalization, by quantiles and by mean and deviation: both
                                   give the same map

openpi's `safetensors.torch.load_model` takes one name of a tied tensor and refuses two.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from understudy import FOLDER_FACTS, LerobotProcessor, Pi05PolicyConfig, StoredNormalization
from understudy_base import ACTION, STATE, ConfigError, Record
from understudy_zoo.folder_formats import ForeignFolder, Robot
from understudy_zoo.lerobot_processors import (
    BEFORE,
    DEVICE,
    Step,
    map_figures,
    processor_files,
    to_json,
)


def check_prompts(config: Pi05PolicyConfig, tool: str) -> None:
    """Raise ConfigError if the policy acts on a response or on past frames, which neither tool
    has.
    """
    if config.history:
        raise ConfigError(
            f"format: {tool}: policy.history is {config.history}: {tool} shows a policy the "
            "present alone; export it with --format understudy"
        )
    if config.response_tokens:
        raise ConfigError(
            f"format: {tool}: policy.response_tokens is {config.response_tokens}: {tool} predicts "
            "no responses, on which this policy acts; export it with --format understudy"
        )


def common_files(config: Pi05PolicyConfig, tool: str) -> tuple[dict[str, bytes], list[str]]:
    """Return the tokenizer and the dimensions as files, and notes on them."""
    files = {}
    notes = []
    sizes = config.sizes
    if config.tokenizer:
        path = Path(config.tokenizer)
        (name,) = config.FILES["tokenizer"]
        file = path / name if path.is_dir() else path
        files[name] = file.read_bytes()
    released = sizes.BASE
    if (sizes.vision, sizes.vlm, sizes.expert, sizes.vocab) != (
        released.vision,
        released.vlm,
        released.expert,
        released.vocab,
    ):
        files[sizes.FILE] = to_json(
            {name: value for name, value in asdict(sizes).items() if name != "adaptive"}
        )
        notes.append(f"dimensions: {tool} has no name for these; {sizes.FILE} has them")
    notes.append(
        "images: understudy resizes with antialiasing; the torch code of openpi and LeRobot without"
    )
    return files, notes


EPS = 1e-30
TOKENIZER_NAME = "google/paligemma-3b-pt-224"
"""Tokenizer that LeRobot loads from the hub."""
MESSAGE = {"role": "user", "content": "${task}", "stream": "low_level"}
"""Recipe of the prompts of the format `message`: the instruction, with the state."""
MESSAGE_FIELDS = {
    "type": "pi052",
    "recipe_path": "recipes/subtask.yaml",
    "enable_fast_action_loss": False,
}
"""Fields of LeRobot's config of such a policy; the recipe is that of a training on other data."""
NORMALIZED = {"pi05": "QUANTILES", "pi0": "MEAN_STD"}


def lerobot_folder(
    config: Pi05PolicyConfig, normalization: Record, robot_facts: Record, head: int, dtype: str
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
    if config.tokenizer and config.sizes.vocab != config.sizes.BASE.vocab:
        notes.append(
            "tokenizer: LeRobot loads tokenizers by name, and this one has none; give its step a "
            "tokenizer"
        )
    if STATE in robot.maps and (constant := robot.maps[STATE].constant):
        notes.append(
            f"normalization: the state dimensions {constant} were constant. understudy maps each "
            "value of them to 0, LeRobot to its distance from the constant"
        )
    if config.has_messages:
        notes.append(
            "subtasks: LeRobot generates them from the instruction, and this policy never learnt "
            "to: run it there with --direct_subtask"
        )
    if config.max_delay:
        notes.append(
            f"max_delay: {config.max_delay}: LeRobot continues no chunk with given actions"
        )
    files |= _facts_file(_common_facts(config, robot))
    return ForeignFolder(
        files,
        partial(_keys, config),
        {f"model.{key}": shape for key, shape in config.unread_tensors().items()},
        notes,
    )


def _keys(config: Pi05PolicyConfig, name: str) -> Sequence[str]:
    """Both keys of the embedding: LeRobot has two parameters there, and a strict `load_state_dict`
    requires both.
    """
    return [f"model.{key}" for key in config.released_keys(config.stored_name(name))]


def _check(config: Pi05PolicyConfig, robot: Robot) -> None:
    check_prompts(config, "lerobot")
    prompts = ("state", "message") if config.type == "pi05" else ("plain",)
    if config.prompt not in prompts:
        raise ConfigError(
            f"format: lerobot: policy.prompt is {config.prompt}: LeRobot's {config.type} has "
            f"{' or '.join(prompts)}; export with --format openpi or understudy"
        )
    if STATE not in robot.maps:
        raise ConfigError(
            "format: lerobot: the policy has no state (data.state), which LeRobot requires"
        )
    if robot.delta and robot.width(STATE) < robot.width(ACTION):
        raise ConfigError(
            "format: lerobot: actions are learnt as differences to a state of "
            f"{robot.width(STATE)} dimensions, and LeRobot requires as many as the action has, "
            f"{robot.width(ACTION)}; export with --format understudy"
        )


def _features(config: Pi05PolicyConfig, robot: Robot, facts: Record) -> dict[str, dict[str, Any]]:
    """LeRobot's features by key; cameras in the network's order."""
    side = config.sizes.vision.image
    cameras = [key for key in config.cameras if key in facts.get("cameras", config.cameras)]
    features: dict[str, dict[str, Any]] = {
        key: {"type": LerobotProcessor.VISUAL, "shape": [3, side, side]} for key in cameras
    }
    features[STATE] = {"type": "STATE", "shape": [robot.width(STATE)]}
    features[ACTION] = {"type": "ACTION", "shape": [robot.width(ACTION)]}
    return features


def _config(
    config: Pi05PolicyConfig, robot: Robot, facts: Record, features: Record, dtype: str
) -> dict[str, Any]:
    """Fields of LeRobot's config that the policy decides; all others have LeRobot's defaults."""
    sizes = config.sizes
    released = config.flow_time == "released"
    mode = NORMALIZED[config.type]
    names, excluded = _relative_names(robot, facts)
    their_dtype = "bfloat16" if dtype == "bf16" else "float32"
    scale = 0.999 if released else 1.0
    offset = 0.001 if released else 0.0
    fields: dict[str, Any] = {
        "type": config.type,
        "n_obs_steps": 1,
        "input_features": {key: value for key, value in features.items() if key != ACTION},
        "output_features": {ACTION: features[ACTION]},
        "normalization_mapping": {
            LerobotProcessor.VISUAL: "IDENTITY",
            "STATE": mode,
            "ACTION": mode,
        },
        **sizes.tower_names(),
        "dtype": their_dtype,
        "chunk_size": config.chunk,
        "n_action_steps": config.chunk,
        "max_state_dim": sizes.dim,
        "max_action_dim": sizes.dim,
        "image_resolution": [sizes.vision.image] * 2,
        "tokenizer_max_length": config.prompt_tokens,
        "num_inference_steps": 10,
        "time_sampling_scale": scale,
        "time_sampling_offset": offset,
        "use_relative_actions": bool(robot.delta),
        "relative_exclude_joints": excluded,
        "action_feature_names": names,
    }
    if config.has_messages:
        fields |= MESSAGE_FIELDS
    return fields


def _relative_names(robot: Robot, facts: Record) -> tuple[list[str] | None, list[str]]:
    """Names of the action dimensions, and those that are no differences.

    LeRobot excludes a dimension if its name contains an excluded one. Where the data's names cannot
    express the differences so, names by number can.
    """
    width = robot.width(ACTION)
    recorded = [str(name) for name in facts.get("action_names") or []]
    if not robot.delta:
        return recorded or None, []
    for names in (recorded, [f"dim{dim:03}" for dim in range(width)]):
        if len(names) != width:
            continue
        excluded = [name for dim, name in enumerate(names) if dim not in robot.delta]
        relative = [dim for dim, name in enumerate(names) if not _has_any(name, excluded)]
        if tuple(relative) == robot.delta and all(excluded):
            break
    return names, excluded


def _has_any(name: str, parts: Sequence[str]) -> bool:
    return any(part.lower() in name.lower() for part in parts)


def _processors(
    config: Pi05PolicyConfig, robot: Robot, facts: Record, features: Record
) -> dict[str, bytes]:
    """Both processor files, and the file of statistics of each."""
    names, excluded = _relative_names(robot, facts)
    named = (
        {"tokenizer_name": TOKENIZER_NAME} if config.sizes.vocab == config.sizes.BASE.vocab else {}
    )
    text = {
        "max_length": config.prompt_tokens,
        "padding_side": "right",
        "padding": "max_length",
        **named,
    }
    normal = {
        "eps": EPS,
        "norm_map": {
            LerobotProcessor.VISUAL: "IDENTITY",
            "STATE": "MEAN_STD",
            "ACTION": "MEAN_STD",
        },
    }
    relative: Step = (
        "relative_actions_processor",
        {"enabled": bool(robot.delta), "exclude_joints": excluded, "action_names": names},
    )
    normalize: Step = ("normalizer_processor", {**normal, "features": dict(features)})
    tokenize: Step = ("tokenizer_processor", {**text, "task_key": "task", "truncation": True})
    if config.has_messages:
        render: Step = ("render_messages_processor", {"recipe": {"messages": [MESSAGE]}})
        before = [*BEFORE, relative, normalize, render, ("pi052_text_tokenizer", text), DEVICE]
    elif config.type == "pi05":
        state: Step = ("pi05_prepare_state_tokenizer_processor_step", {})
        before = [*BEFORE, relative, normalize, state, tokenize, DEVICE]
    else:
        before = [*BEFORE, ("pi0_new_line_processor", {}), tokenize, DEVICE, relative, normalize]
    behind: list[Step] = [
        ("unnormalizer_processor", {**normal, "features": {ACTION: features[ACTION]}}),
        ("absolute_actions_processor", {"enabled": bool(robot.delta)}),
        DEVICE,
    ]
    return processor_files(before, behind, map_figures(robot.maps))


NAMES = {STATE: "state", ACTION: "actions"}
"""Key -> openpi's name."""
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
"""Names of openpi's cameras, in the order of the tokens."""


def openpi_folder(
    config: Pi05PolicyConfig, normalization: Record, robot_facts: Record, head: int, dtype: str
) -> ForeignFolder:
    """Describe a policy as openpi's folder; see `describe_folder`.

    Raises:
        ConfigError: openpi has no equal of the policy.
    """
    check_prompts(config, "openpi")
    if config.has_messages:
        raise ConfigError(
            "format: openpi: policy.prompt is message: openpi has no such prompts; export with "
            "--format lerobot or understudy"
        )
    robot = Robot.from_head(config, normalization, head)
    sizes = config.sizes
    files, notes = common_files(config, "openpi")
    ours = {
        "pi05": sizes.adaptive,
        "action_dim": sizes.dim,
        "action_horizon": config.chunk,
        **sizes.tower_names(),
        "max_token_len": config.prompt_tokens,
        "discrete_state_input": config.prompt == "state",
    }
    precision = "bfloat16" if dtype == "bf16" else "float32"
    files["config.json"] = to_json(ours | {"precision": precision})
    asset = (
        re.sub(r"[^\w.-]+", "_", str(list(normalization.get("heads", [""]))[head])).strip("._")
        or "robot"
    )
    files[f"assets/{asset}/{StoredNormalization.OPENPI}"] = to_json(
        {"norm_stats": _norm_stats(robot, sizes.adaptive)}
    )
    settings = ", ".join(f"{name}={value!r}" for name, value in ours.items())
    notes.append(
        f"settings: openpi reads none from a folder; give its code Pi0Config({settings}), assets "
        f"{asset!r}"
    )
    cameras = [key for key in config.cameras if key in robot_facts.get("cameras", config.cameras)]
    pairs = [f"{theirs} is {camera}" for theirs, camera in zip(CAMERAS, cameras)]
    pairs += [f"{theirs} is missing (image_mask False)" for theirs in CAMERAS[len(cameras) :]]
    if more := cameras[len(CAMERAS) :]:
        pairs.append(f"openpi has no camera for {', '.join(more)}")
    notes.append(f"cameras: openpi's transforms have to map them: {'; '.join(pairs)}")
    if robot.delta:
        notes.append(
            f"differences: the actions {list(robot.delta)} are differences to the state; set "
            "DeltaActions so"
        )
    if STATE in robot.maps and (constant := robot.maps[STATE].constant):
        notes.append(
            f"normalization: the state dimensions {constant} were constant. understudy maps each "
            "value of them to 0, openpi to its distance from the constant"
        )
    if config.max_delay:
        notes.append(f"max_delay: {config.max_delay}: openpi continues no chunk with given actions")
    facts = {
        "delta": list(robot.delta),
        "cameras": list(config.cameras),
        "action_dim": robot.width(ACTION),
    }
    facts["state_dim"] = robot.width(STATE) if STATE in robot.maps else 0
    files |= _facts_file(facts | _common_facts(config, robot))
    return ForeignFolder(
        files,
        lambda name: [config.stored_name(name)],
        config.unread_tensors(),
        notes,
    )


def _common_facts(config: Pi05PolicyConfig, robot: Robot) -> dict[str, Any]:
    """Facts for which neither tool has a place."""
    constant = robot.maps[STATE].constant if STATE in robot.maps else []
    facts: dict[str, Any] = {}
    if constant:
        facts["constant"] = constant
    if config.max_delay:
        facts["max_delay"] = config.max_delay
    return facts


def _facts_file(facts: Record) -> dict[str, bytes]:
    return {FOLDER_FACTS: to_json(facts)} if facts else {}


def _norm_stats(robot: Robot, quantiles: bool) -> dict[str, dict[str, list[float]]]:
    """Statistics whose map is the policy's, under both formulas of openpi.

    Args:
        robot: the normalization.
        quantiles: whether openpi normalizes this family by quantiles, and not by mean and
            deviation.

    Raises:
        ConfigError: a spread is below that of openpi's formula.
    """
    stats = {}
    least = StoredNormalization.OPENPI_EPS / 2 if quantiles else StoredNormalization.OPENPI_EPS
    for key, (offset, stored) in robot.maps.items():
        # A constant state must stay finite where it varies after all; a constant action has its
        # constant in reverse.
        spread_of_constant = 1.0 if key == STATE else least
        spread = np.where(stored == 0, spread_of_constant, stored)
        if (narrow := np.flatnonzero(spread < least * (1 - 1e-6))).size:
            raise ConfigError(
                f"format: openpi: {key}[{narrow[0]}] has the spread {spread[narrow[0]]:.3g}, and "
                f"openpi's formula none below {least:.3g}; export with --format lerobot or "
                "understudy"
            )
        low = offset - spread
        stats[NAMES[key]] = {
            "mean": offset.tolist(),
            "std": np.maximum(spread - StoredNormalization.OPENPI_EPS, 0).tolist(),
            "q01": low.tolist(),
            "q99": (low + np.maximum(2 * spread - StoredNormalization.OPENPI_EPS, 0)).tolist(),
        }
    return stats
