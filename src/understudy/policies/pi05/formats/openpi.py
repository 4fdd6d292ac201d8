"""openpi's folder of a pi0.5 or pi0 policy, as its converter to torch writes it.

    model.safetensors              released keys; the embedding has the name of the head to which it is tied
    config.json                    the converter's fields, and those of `Pi0Config` that openpi takes from its own code
    assets/ID/norm_stats.json      the normalization, by quantiles and by mean and deviation: both give the same map

openpi's `safetensors.torch.load_model` takes one name of a tied tensor and refuses two.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from understudy.batch_keys import ACTION, STATE
from understudy.errors import ConfigError
from understudy.policies.folder_formats import ForeignFolder
from understudy.policies.pi05.config import Pi05PolicyConfig
from understudy.policies.pi05.formats.robot import Robot, check_prompts, common_files, to_json, variant
from understudy.policies.pi05.weights.openpi_normalization import OPENPI, OPENPI_EPS
from understudy.policies.pi05.weights.released_keys import EXPERT_HEAD, released_key

NAMES = {STATE: "state", ACTION: "actions"}
"""Key -> openpi's name."""
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
"""Names of openpi's cameras, in the order of the tokens."""


def openpi_folder(
    config: Pi05PolicyConfig, normalization: Mapping[str, Any], robot_facts: Mapping[str, Any], head: int, dtype: str
) -> ForeignFolder:
    """Describe a policy as openpi's folder; see `describe_folder`.

    Raises:
        ConfigError: openpi has no equal of the policy.
    """
    check_prompts(config, "openpi")
    robot, sizes = Robot.from_head(config, normalization, head), config.sizes
    files, notes = common_files(config, "openpi")
    ours = {
        "pi05": sizes.adaptive,
        "action_dim": sizes.dim,
        "action_horizon": config.chunk,
        "paligemma_variant": variant(sizes.vlm),
        "action_expert_variant": variant(sizes.expert),
        "max_token_len": config.prompt_tokens,
        "discrete_state_input": config.prompt == "state",
    }
    files["config.json"] = to_json(ours | {"precision": "bfloat16" if dtype == "bf16" else "float32"})
    asset = re.sub(r"[^\w.-]+", "_", str(list(normalization.get("heads", [""]))[head])).strip("._") or "robot"
    files[f"assets/{asset}/{OPENPI}"] = to_json({"norm_stats": _norm_stats(robot, sizes.adaptive)})
    settings = ", ".join(f"{name}={value!r}" for name, value in ours.items())
    notes.append(f"settings: openpi reads none from a folder; give its code Pi0Config({settings}), assets {asset!r}")
    cameras = [key for key in config.cameras if key in robot_facts.get("cameras", config.cameras)]
    pairs = [f"{theirs} is {own}" for theirs, own in zip(CAMERAS, cameras)]
    pairs += [f"{theirs} is missing (image_mask False)" for theirs in CAMERAS[len(cameras) :]]
    if more := cameras[len(CAMERAS) :]:
        pairs.append(f"openpi has no camera for {', '.join(more)}")
    notes.append(f"cameras: openpi's transforms have to map them: {'; '.join(pairs)}")
    if robot.delta:
        notes.append(f"differences: the actions {list(robot.delta)} are differences to the state; set DeltaActions so")
    if STATE in robot.maps and (constant := robot.maps[STATE].constant):
        notes.append(
            f"normalization: the state dimensions {constant} were constant. understudy maps each value of them to 0, "
            "openpi to its distance from the constant"
        )
    return ForeignFolder(files, _keys, {EXPERT_HEAD: (sizes.vocab, sizes.expert.width)}, notes)


def _keys(name: str) -> Sequence[str]:
    return [released_key(name)]


def _norm_stats(robot: Robot, quantiles: bool) -> dict[str, dict[str, list[float]]]:
    """Statistics whose map is that of the policy, under both formulas of openpi.

    Args:
        robot: the normalization.
        quantiles: whether openpi normalizes this family by quantiles, and not by mean and deviation.

    Raises:
        ConfigError: a spread is below that of openpi's formula.
    """
    found, least = {}, OPENPI_EPS / 2 if quantiles else OPENPI_EPS
    for key, (offset, own) in robot.maps.items():
        # A constant state must stay finite where it varies after all; a constant action has its constant in reverse.
        spread = np.where(own == 0, 1.0 if key == STATE else least, own)
        if (narrow := np.flatnonzero(spread < least * (1 - 1e-6))).size:
            raise ConfigError(
                f"format: openpi: {key}[{narrow[0]}] has the spread {spread[narrow[0]]:.3g}, and openpi's formula none "
                f"below {least:.3g}; export with --format lerobot or understudy"
            )
        low = offset - spread
        found[NAMES[key]] = {
            "mean": offset.tolist(),
            "std": np.maximum(spread - OPENPI_EPS, 0).tolist(),
            "q01": low.tolist(),
            "q99": (low + np.maximum(2 * spread - OPENPI_EPS, 0)).tolist(),
        }
    return found
