"""Settings that the config beside released weights implies, checked against those of a new run.

    LeRobot       config.json      type, chunk_size, tokenizer_max_length, max_*_dim, variants, image_resolution
    openpi        config.json or   action_horizon, action_dim, max_token_len, discrete_state_input, variants
                  metadata.json
    understudy    config.json      type, chunk, prompt, prompt_tokens

The weights fit other chunks and prompts, too, and train differently with them. So a difference is an error, which the
setting `weights_settings` turns off. Precision is no such setting: weights are read in their own dtype.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from understudy.errors import ConfigError
from understudy.policies.pi05.config import Pi05PolicyConfig
from understudy.policies.pi05.formats.robot import variant
from understudy.policies.pi05.weights.stored_figures import read_object

FILES = ("config.json", "metadata.json")
PROMPTS = {True: "state", False: "plain"}
"""openpi's `discrete_state_input` -> our `prompt`."""


def check_implied(config: Pi05PolicyConfig) -> None:
    """Check the config of a new run against the files beside its weights.

    Raises:
        ConfigError: a file implies other values, listed with both; or it is damaged.
    """
    if not config.weights or config.weights_settings == "ignore":
        return
    path = Path(config.weights)
    folder = path if path.is_dir() else path.parent
    found = []
    for file in (folder / name for name in FILES):
        if file.is_file():
            for field, theirs, setting, ours in _compare(read_object(file), config):
                if theirs != ours:
                    found.append(f"{setting} is {ours}, and {file} has {field}: {theirs}")
    if found:
        raise ConfigError(
            "policy.weights: the weights were trained with other settings; take theirs, or train with yours on "
            "purpose: --policy.weights-settings ignore\n" + "\n".join(f"  {line}" for line in found)
        )


def _compare(stored: Mapping[str, Any], config: Pi05PolicyConfig) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield (field of the file, its value, our setting, our value) for each field that the file has."""
    sizes, prompt = config.sizes, ("policy.prompt", config.prompt)
    chunk, length = ("data.chunk_size", config.chunk), ("policy.prompt_tokens", config.prompt_tokens)
    width, kind = ("the network's width of actions", sizes.dim), ("policy.type", config.type)
    towers = {
        "paligemma_variant": ("the network's language tower", variant(sizes.vlm)),
        "action_expert_variant": ("the network's action expert", variant(sizes.expert)),
    }
    tables: dict[str, dict[str, tuple[str, Any]]] = {
        "chunk_size": {  # LeRobot
            "type": kind,
            "chunk_size": chunk,
            "tokenizer_max_length": length,
            "max_action_dim": width,
            "max_state_dim": ("the network's width of states", sizes.dim),
            "image_resolution": ("the network's image size", [sizes.vision.image] * 2),
            **towers,
        },
        "action_horizon": {"action_horizon": chunk, "action_dim": width, "max_token_len": length, **towers},
        "chunk": {"type": kind, "chunk": chunk, "prompt": prompt, "prompt_tokens": length},  # understudy
    }
    for mark, fields in tables.items():
        if mark in stored:
            for field, (setting, ours) in fields.items():
                if field in stored:
                    yield field, stored[field], setting, ours
    if "chunk_size" in stored and stored.get("type") == config.type:  # LeRobot's types have one prompt each
        yield f"type {config.type}, which means policy.prompt", PROMPTS[config.type == "pi05"], *prompt
    if "action_horizon" in stored:
        if isinstance(stored.get("pi05"), bool):
            yield "pi05, which means policy.type", "pi05" if stored["pi05"] else "pi0", *kind
        if sizes.adaptive and isinstance(stored.get("discrete_state_input"), bool):
            yield "discrete_state_input, which means policy.prompt", PROMPTS[stored["discrete_state_input"]], *prompt
