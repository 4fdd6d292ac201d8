"""A folder of a pi0.5 or pi0 policy of any tool, read as one of our own: config.json and
normalisation.json.

    LeRobot       config.json      chunk_size, input_features, output_features, tokenizer_max_length
                  policy_preprocessor.json and the file that it names
                  of the type pi05, pi0 or pi052 (`PI052Config` at commit f2c8867d of 2026-07-28)
    openpi        config.json or   action_horizon; max_token_len and discrete_state_input where
                  metadata.json    they are stored
                  assets/ID/norm_stats.json
    understudy    config.json      type, action_dim, cameras, chunk, ...
                  normalisation.json, or the normalization of one of the others

pi052 is a pi0.5 whose prompts are messages of a recipe, and whose text head is a tensor next to the
embedding. Actions depend on the embedding alone, so the head is not read. The instruction is the
subtask; LeRobot generates it.

Dimensions come from the tensors. A config of any of these tools may also have `dimensions`, an
object or a part of one (`Sizes`), or there is a file sizes.json with it.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np

from understudy.policies.capabilities.returns import predicts_actions
from understudy.policies.common.folder_facts import FOLDER_FACTS, read_facts
from understudy.policies.common.lerobot_processors import LerobotProcessor, read_object
from understudy.policies.pi05.config import TOWER_NAMES, Pi05PolicyConfig, Sizes
from understudy.policies.pi05.normalization import StoredNormalization, find_normalization
from understudy.policies.pi05.released_keys import (
    EMBEDDING,
    HEAD,
    Shapes,
    canonical,
    is_adaptive,
    own_name,
)
from understudy.policies.registry import stored_type
from understudy.policies.weight_files import open_weights
from understudy_base import ACTION, STATE, ConfigError, Record

logger = logging.getLogger(__name__)

PARTS = ("vision", "vlm", "expert")


def complete_dimensions(shapes: Shapes, stated: Record, where: object) -> dict[str, Any]:
    """Return the dimensions that `stated` has, and for the others those of the tensors.

    Args:
        shapes: shapes of the tensors of a file, by key of any dialect.
        stated: a part of a `Sizes` object; unknown fields are kept.
        where: the file, for errors.

    Raises:
        ValueError: a stated dimension contradicts a tensor; lists all, each with its key.
    """
    dimensions: dict[str, Any] = {
        name: value for name, value in stated.items() if name not in PARTS
    }
    for part in PARTS:
        value = stated.get(part, {})
        if not isinstance(value, Mapping):
            raise ValueError(f"dimensions.{part}: {value!r}: must be an object")
        dimensions[part] = dict(value)
    wrong = []
    for part, name, value, key in _measured(_own_shapes(shapes)):
        part_sizes = dimensions[part] if part else dimensions
        label = f"dimensions.{part}.{name}" if part else f"dimensions.{name}"
        if part_sizes.setdefault(name, value) != value:
            wrong.append(
                f"  {label} is {part_sizes[name]}, and {key} {list(shapes[key])} has {value}"
            )
    wrong += _complete_heads(dimensions, shapes)
    if wrong:
        raise ValueError(
            "\n".join(
                [f"{where}: the config states other dimensions than the tensors have", *wrong]
            )
        )
    adaptive = is_adaptive(shapes)
    if dimensions.setdefault("adaptive", adaptive) is not adaptive:
        raise ValueError(
            f"{where}: dimensions.adaptive is {dimensions['adaptive']}, and the tensors are of the "
            "other family"
        )
    return dimensions


def _own_shapes(shapes: Shapes) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return key and shape of each parameter by its name; of embedding and head the embedding."""
    by_name: dict[str, tuple[str, tuple[int, ...]]] = {}
    tied = any(canonical(key) == EMBEDDING for key in shapes)
    for key, shape in shapes.items():
        name = own_name(key)
        if name is not None and not (tied and canonical(key) == HEAD):
            by_name.setdefault(name, (key, tuple(shape)))
    return by_name


def _measured(
    stored: Mapping[str, tuple[str, tuple[int, ...]]],
) -> Iterator[tuple[str, str, int, str]]:
    """Yield (part, dimension, value, key) of each dimension that a tensor has."""

    def of(name: str, axis: int, rank: int) -> Iterator[tuple[int, str]]:
        if name in stored and len(stored[name][1]) == rank:
            yield stored[name][1][axis], stored[name][0]

    for part, first in (("vision", "vision.layers."), ("vlm", "layers."), ("expert", "layers.")):
        layers = {}
        for name, (key, _) in stored.items():
            number, _, rest = name.removeprefix(first).partition(".")
            if (
                name.startswith(first)
                and number.isdigit()
                and (part == "vision" or rest.startswith(f"{part}."))
            ):
                layers[number] = key
        if layers:
            yield part, "depth", len(layers), max(layers.values(), key=len)
    tables = (
        ("vision", "width", "vision.patch.weight", 0, 4),
        ("vision", "patch", "vision.patch.weight", 2, 4),
        ("vision", "mlp", "vision.layers.0.mlp.fc1.weight", 0, 2),
        ("vlm", "width", "embedding.weight", 1, 2),
        ("vlm", "mlp_dim", "layers.0.vlm.mlp.gate_proj.weight", 0, 2),
        ("expert", "width", "action_in_proj.weight", 0, 2),
        ("expert", "mlp_dim", "layers.0.expert.mlp.gate_proj.weight", 0, 2),
        ("", "vocab", "embedding.weight", 0, 2),
        ("", "dim", "action_in_proj.weight", 1, 2),
    )
    for part, dimension, name, axis, rank in tables:
        for value, key in of(name, axis, rank):
            yield part, dimension, value, key
    for patch, _ in of("vision.patch.weight", 2, 4):
        for tokens, key in of("vision.position.weight", 0, 2):
            if isqrt(tokens) ** 2 == tokens:
                yield "vision", "image", isqrt(tokens) * patch, key


def _complete_heads(dimensions: dict[str, Any], shapes: Shapes) -> list[str]:
    """Add the attention heads that are not stated, in place; return the contradictions."""
    stored = _own_shapes(shapes)
    wrong = []
    vision = dimensions["vision"]
    if "heads" not in vision:
        if vision.get("width") != Sizes.BASE.vision.width:
            raise ValueError(
                "dimensions.vision.heads: required: no tensor has the number of attention heads, "
                f"and a vision encoder of width {vision.get('width')} is not the released one; "
                "state it in config.json"
            )
        vision["heads"] = Sizes.BASE.vision.heads
    for part in PARTS[1:]:
        tower = dimensions[part]
        rows = {}
        keys = {}
        for name in ("q_proj", "k_proj"):
            key, shape = stored.get(f"layers.0.{part}.self_attn.{name}.weight", ("", ()))
            if len(shape) == 2:
                rows[name] = shape[0]
                keys[name] = key
        if len(rows) < 2:
            continue
        heads = _whole(tower.get("num_heads"))
        shared = _whole(tower.get("num_kv_heads"))
        size = _whole(tower.get("head_dim"))
        if not size:
            size = rows["q_proj"] // heads if heads else rows["k_proj"] // (shared or 1)
        if not size:
            continue
        for name, label in (("q_proj", "num_heads"), ("k_proj", "num_kv_heads")):
            count = tower.setdefault(label, rows[name] // size)
            if count * size != rows[name]:
                wrong.append(
                    f"  dimensions.{part}.{label} is {count} of head_dim {size}, and {keys[name]} "
                    f"has {rows[name]} rows"
                )
        tower.setdefault("head_dim", size)
    return wrong


def _whole(value: Any) -> int:
    """Return a stated number; 0 where there is none or it is not a whole number above 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


CAMERAS = tuple(
    f"observation.images.{name}_0_rgb" for name in ("base", "left_wrist", "right_wrist")
)
"""Cameras of the released policies, where a folder names none."""
EMPTY = "empty_camera"
"""Part of the names that LeRobot gives to cameras without images."""
CONFIG = "config.json"
METADATA = "metadata.json"
UNSUPPORTED = {
    "n_obs_steps": 1,
    "use_proprio_history": False,
    "use_memory": False,
    "joint_subtask_conditioning": False,
    "adapt_to_pi_aloha": False,
    "use_delta_joint_actions_aloha": False,
}
"""Fields of LeRobot's configs that change the network's inputs -> the only value that is read."""

PROMPTS = {True: "state", False: "plain"}
"""openpi's `discrete_state_input` -> our `prompt`."""

FIELDS = {ACTION: "action_dim", STATE: "state_dim"}
"""Key -> the field of the config with its width."""

Values = dict[str, Any]


def read_folder(
    folder: Path, stored: Record, normalization: Record | None, shapes: Shapes, asset: str = ""
) -> tuple[Values, Values] | None:
    """Return config and normalization as our own folders have them; None: the weights are of
    another type.

    Args:
        folder: the folder.
        stored: its config.json; empty where there is none.
        normalization: content of normalisation.json; None: take the folder's.
        shapes: shapes of its tensors, by key.
        asset: ID of openpi's normalization, where there are several.

    Raises:
        ValueError: a file contradicts another, or lacks something; names both values and the field.
        ConfigError: the normalization is missing or damaged.
    """
    try:
        kind = "pi05" if is_adaptive(shapes) else "pi0"
    except ValueError:
        return None
    if stored_type({"type": kind, **stored}) != kind:
        raise ValueError(f"type: {stored['type']!r}: the tensors are those of {kind}")
    if not stored and (folder / METADATA).is_file():
        stored = read_object(folder / METADATA)
    values = _translate(stored, kind)
    dimensions = complete_dimensions(shapes, _stated(folder, stored), folder)
    chunk = values.setdefault("chunk", dimensions.get("chunk"))
    if chunk is None:
        raise ValueError(
            "chunk: required: no tensor has the number of actions that are predicted at once; "
            "state it in config.json (`chunk`; `action_horizon` of openpi, `chunk_size` of LeRobot)"
        )
    values["dimensions"] = {"chunk": chunk} | dimensions
    if _tool(stored) != "understudy":
        for name, value in read_facts(folder).items():
            if name not in ("delta", "constant"):  # of the normalization
                values.setdefault(name, value)
    if normalization is None:
        widths = {key: values.get(field) for key, field in FIELDS.items()}
        found = find_normalization(folder, asset, kind == "pi05")
        if found.delta is None and found.whole is None:
            logger.warning(
                "%s does not say which actions are differences to the state (DeltaActions in the "
                "code of openpi): they are taken as absolute. Name those that are in %s, "
                '{"delta": [0, 1, 2]}, or {"delta": []}',
                folder,
                folder / FOLDER_FACTS,
            )
        normalization = _normalization(found, widths)
    if _tool(stored) != "understudy":
        for key, field in FIELDS.items():
            values.setdefault(field, _width(normalization, key))
        values.setdefault("cameras", list(CAMERAS))
    return values, dict(normalization)


def stored_facts(weights: str | Path) -> Values:
    """Return `dimensions` and `chunk` of the weights that a run starts from; each is absent where
    no file has it.

    Raises:
        ConfigError: a file is damaged, or contradicts another.
    """
    path = Path(weights)
    folder = path if path.is_dir() else path.parent
    file = next((folder / name for name in (CONFIG, METADATA) if (folder / name).is_file()), None)
    stored = read_object(file) if file is not None else {}
    try:
        shapes = open_weights(path).shapes
        kind = "pi05" if is_adaptive(shapes) else "pi0"
        values = _translate(stored, kind) if _towers(stored, kind) == kind else {}
        dimensions = complete_dimensions(shapes, _stated(folder, stored), path)
        Sizes.from_mapping({"chunk": 1} | dimensions)
    except (ValueError, OSError) as error:
        raise ConfigError(f"policy.weights: {error}") from error
    chunk = values.get("chunk", dimensions.get("chunk"))
    if isinstance(chunk, bool) or not isinstance(chunk, int | None):
        raise ConfigError(f"policy.weights: {file}: chunk: {chunk!r}: must be a whole number")
    facts: Values = {"dimensions": {"chunk": chunk or Sizes.BASE.chunk} | dimensions}
    if chunk:
        facts["chunk"] = chunk
    return facts


def _towers(stored: Record, kind: str) -> str:
    """Return the type of a stored config; `kind` where it has none, and for a world-action model,
    which has either.
    """
    name = stored_type({"type": kind, **stored})
    return kind if name == "world_action" else name


def _tool(stored: Record) -> str:
    """Return the tool that wrote a config; "" where it is empty or of none."""
    if "chunk_size" in stored or "input_features" in stored:
        return "LeRobot"
    if "action_horizon" in stored:
        return "openpi"
    return "understudy" if "type" in stored else ""


def _stated(folder: Path, stored: Record) -> Record:
    """Return the dimensions that a folder states: in its config, in sizes.json, or by the names of
    its towers.
    """
    in_file = read_object(folder / Sizes.FILE) if (folder / Sizes.FILE).is_file() else None
    for where, dimensions in ((CONFIG, stored.get("dimensions")), (Sizes.FILE, in_file)):
        if dimensions is not None:
            if not isinstance(dimensions, Mapping):
                raise ValueError(f"{where}: dimensions: {dimensions!r}: must be an object")
            return dimensions
    named: Values = {}
    for field, part in (("paligemma_variant", "vlm"), ("action_expert_variant", "expert")):
        for tower, name in TOWER_NAMES.items():
            if stored.get(field) == name:
                named[part] = asdict(tower)
    return named


def _lerobot_prompt(stored: Record, kind: str) -> str:
    """Return the format of prompts of LeRobot's types, one each; pi052 without a recipe has that of
    pi05.
    """
    has_recipe = stored.get("type") == "pi052" and stored.get("recipe_path", True)
    return "message" if has_recipe else PROMPTS[kind == "pi05"]


def _translate(stored: Record, kind: str) -> Values:
    """Return the fields of our config that follow from a config of any tool."""
    tool = _tool(stored)
    if tool == "understudy":
        return dict(stored)
    values: Values = {"type": kind}
    if tool == "LeRobot":
        for field, value in UNSUPPORTED.items():
            if stored.get(field, value) != value:
                raise ValueError(
                    f"{field}: {stored[field]!r}: only {value!r} is read: the network has other "
                    "inputs"
                )
        inputs, outputs = (
            LerobotProcessor.features(stored, name)
            for name in ("input_features", "output_features")
        )
        if inputs:
            values["cameras"] = [
                key
                for key, (type_, _) in inputs.items()
                if type_ == LerobotProcessor.VISUAL and EMPTY not in key
            ]
            values["state_dim"] = inputs[STATE][1][0] if STATE in inputs else 0
        if ACTION in outputs:
            values["action_dim"] = outputs[ACTION][1][0]
        values["prompt"] = _lerobot_prompt(stored, kind)
        if (stored.get("time_sampling_scale"), stored.get("time_sampling_offset")) == (1.0, 0.0):
            values["flow_time"] = "beta"
    if tool == "openpi":
        if isinstance(stored.get("pi05"), bool) and stored["pi05"] != (kind == "pi05"):
            raise ValueError(f"pi05: {stored['pi05']}: the tensors are those of {kind}")
        values["prompt"] = PROMPTS[bool(stored.get("discrete_state_input", kind == "pi05"))]
    renamed = {"chunk_size": "chunk", "action_horizon": "chunk"}
    renamed |= {"tokenizer_max_length": "prompt_tokens", "max_token_len": "prompt_tokens"}
    return values | {
        ours: stored[theirs] for theirs, ours in renamed.items() if stored.get(theirs) is not None
    }


def _normalization(stored: StoredNormalization, widths: Mapping[str, int | None]) -> Values:
    """Return a stored normalization as normalisation.json has it.

    Args:
        stored: the normalization.
        widths: widths of the robot's keys; None: as many dimensions as are no padding at the end.

    Raises:
        ValueError: a key has fewer dimensions, or more that are no padding.
    """
    if stored.whole is not None:
        return dict(stored.whole)
    made: Values = {}
    for key, affine in stored.maps.items():
        have = len(affine["offset"])
        padding = stored.padding[key]
        real = np.flatnonzero(~padding)
        width = widths.get(key)
        if width is None:
            width = int(real[-1]) + 1 if len(real) else have
        if width == 0:
            continue
        if have < width or not padding[width:].all():
            raise ValueError(
                f"{stored.where}: {key!r} has {have} dimensions, the config {width}; restore the "
                "files"
            )
        made[key] = {name: list(affine[name][:width]) for name in ("offset", "spread")}
    if stored.delta and ACTION in made:
        count = len(made[ACTION]["offset"])
        made["delta"] = [[dim in stored.delta for dim in range(count)]]
    return made


def _width(normalization: Record, key: str) -> int:
    """Return the number of dimensions of a key in a normalization; 0 where it has none."""
    return int(
        np.atleast_2d(np.asarray(normalization.get(key, {}).get("offset", []), float)).shape[-1]
    )


def check_implied(config: Pi05PolicyConfig) -> None:
    """Check the config of a new run against the files next to its weights.

    Raises:
        ConfigError: a file implies other values, listed with both; or it is damaged.
    """
    if not config.weights or config.weights_settings == "ignore":
        return
    path = Path(config.weights)
    folder = path if path.is_dir() else path.parent
    acts = predicts_actions(config)
    lines = []
    for file in (folder / name for name in (CONFIG, METADATA)):
        if file.is_file():
            try:
                compared = list(_compare(read_object(file), config))
            except ValueError as error:
                raise ConfigError(f"policy.weights: {file}: {error}") from error
            for field, theirs, setting, ours in compared:
                if theirs != ours and (acts or setting != "data.chunk_size"):
                    lines.append(f"{setting} is {ours}, and {file} has {field}: {theirs}")
    if lines:
        raise ConfigError(
            "policy.weights: the weights were trained with other settings; take theirs, or train "
            "with yours on purpose: --policy.weights-settings ignore\n"
            + "\n".join(f"  {line}" for line in lines)
        )


def _compare(stored: Record, config: Pi05PolicyConfig) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield (field of the file, its value, our setting, our value) for each field that the file
    has.
    """
    sizes = config.sizes
    prompt = ("policy.prompt", config.prompt)
    chunk = ("data.chunk_size", config.chunk)
    length = ("policy.prompt_tokens", config.prompt_tokens)
    width = ("the network's width of actions", sizes.dim)
    type_name = "pi05" if sizes.adaptive else "pi0"
    kind = ("policy.type", type_name)
    names = sizes.tower_names()
    towers = {
        "paligemma_variant": ("the network's language tower", names["paligemma_variant"]),
        "action_expert_variant": ("the network's action expert", names["action_expert_variant"]),
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
        "action_horizon": {
            "action_horizon": chunk,
            "action_dim": width,
            "max_token_len": length,
            **towers,
        },
        # understudy
        "chunk": {"type": kind, "chunk": chunk, "prompt": prompt, "prompt_tokens": length},
    }
    for mark, fields in tables.items():
        if mark in stored:
            for field, (setting, ours) in fields.items():
                if field in stored:
                    theirs = _towers(stored, type_name) if field == "type" else stored[field]
                    yield field, theirs, setting, ours
    if "chunk_size" in stored and "type" in stored and stored_type(stored) == type_name:
        yield (
            f"type {stored['type']}, which means policy.prompt",
            _lerobot_prompt(stored, type_name),
            *prompt,
        )
    if "action_horizon" in stored:
        if isinstance(stored.get("pi05"), bool):
            stored_type_name = "pi05" if stored["pi05"] else "pi0"
            yield "pi05, which means policy.type", stored_type_name, *kind
        if sizes.adaptive and isinstance(stored.get("discrete_state_input"), bool):
            yield (
                "discrete_state_input, which means policy.prompt",
                PROMPTS[stored["discrete_state_input"]],
                *prompt,
            )
