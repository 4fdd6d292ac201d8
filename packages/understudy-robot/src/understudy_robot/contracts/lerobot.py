"""The contract of LeRobot's folder of a policy (0.6), and the contradictions inside it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from understudy import LerobotProcessor, is_adaptive, read_object
from understudy_base import ACTION, STATE, ConfigError, Record
from understudy_client import CameraFacts, Contract, Mismatch, RobotFacts, VectorFacts
from understudy_data import Checksums
from understudy_robot.contracts.tensors import Shapes, tensor_shapes, unfit, weights_digest

Statistics = Mapping[str, Mapping[str, np.ndarray]]
_NEEDED = {"MEAN_STD": ("mean", "std"), **LerobotProcessor.RANGES}
_MODES = {
    "MEAN_STD": "mean_std",
    "MIN_MAX": "min_max",
    "QUANTILES": "quantile",
    "IDENTITY": "identity",
}
_BAKED = ("normalize_inputs.buffer_", "unnormalize_outputs.buffer_")
_EMPTY = "empty_camera"
_RESIZES = {"resize_imgs_with_padding": "pad", "image_resolution": "pad", "resize_shape": "stretch"}
_WIDTHS = {
    "act": {
        "model.action_head.weight": (0, ACTION),
        "model.encoder_robot_state_input_proj.weight": (1, STATE),
    },
}
"""Type -> tensor -> (axis, the feature whose width it has)."""


class Processor:
    """A processor file: its steps by registered name, and the statistics of its normalization."""

    def __init__(self, path: Path, normalizer: str) -> None:
        """Read the file; a missing one has no steps. Raises ConfigError for a damaged one."""
        self.is_there = path.is_file()
        stored = read_object(path).get("steps", []) if self.is_there else []
        self.steps: dict[str, Record] = {
            str(step.get("registry_name", "")): step for step in stored
        }
        self.normalizer = self.config(normalizer)
        step = self.steps.get(normalizer, {})
        try:
            self.statistics: Statistics = LerobotProcessor(path).statistics(step)
        except ConfigError:
            self.statistics = {}  # a missing file is named as missing statistics

    def config(self, name: str) -> Record:
        """Return the config of a step; empty where there is none."""
        return self.steps.get(name, {}).get("config") or {}


def read_lerobot_contract(folder: Path) -> Contract:
    """Read the contract of LeRobot's folder.

    Raises:
        ConfigError, ValueError: a file is damaged.
    """
    stored = read_object(folder / "config.json")
    inputs = LerobotProcessor.features(stored, "input_features")
    outputs = LerobotProcessor.features(stored, "output_features")
    preprocessor = Processor(folder / LerobotProcessor.BEFORE, "normalizer_processor")
    postprocessor = Processor(folder / LerobotProcessor.BEHIND, "unnormalizer_processor")
    faults: list[Mismatch] = []
    try:
        shapes = tensor_shapes(folder)
        faults += _weights(stored, inputs | outputs, shapes)
    except ValueError as error:
        shapes = {}
        faults.append(unfit("whole weights", str(error)))
    baked = any(name.startswith(_BAKED) for name in shapes)
    vectors: dict[str, VectorFacts | None] = {}
    for key, features, side in ((STATE, inputs, preprocessor), (ACTION, outputs, postprocessor)):
        vectors[key] = None
        if key in features:
            shape = features[key][1]
            if not baked:
                faults += _statistics(key, shape, stored, side)
            vectors[key] = _vector(key, shape[0], stored, side, baked)
    faults += _differences(preprocessor, postprocessor)
    renamed = dict(preprocessor.config("rename_observations_processor").get("rename_map") or {})
    cameras = {
        key: shape
        for key, (kind, shape) in inputs.items()
        if kind == LerobotProcessor.VISUAL and _EMPTY not in key
    }
    faults += _renames(renamed, cameras)
    action = _named(vectors[ACTION] or VectorFacts.unmeasured(ACTION, ()), preprocessor)
    tokenizers = sorted(folder.glob("tokenizer.*"))
    digests = [Checksums.sha256_of(file) for file in tokenizers[:1]]
    facts = RobotFacts(
        fps=np.nan,
        chunk=_chunk(stored),
        robot_type="",
        control_mode="",
        state=vectors[STATE],
        action=action,
        cameras={key: _camera(key, shape, renamed, stored) for key, shape in cameras.items()},
        replan=int(stored.get("n_action_steps") or 0),
        prompt=_prompt(preprocessor),
        tokenizer=digests[0] if digests else "",
    )
    return Contract(
        {"": facts}, _provenance(folder), "policy", weights_digest(folder), tuple(faults)
    )


def _chunk(stored: Record) -> int:
    """Actions of a prediction; a diffusion policy's horizon begins with the first of its
    observations.
    """
    if "chunk_size" in stored:
        return int(stored["chunk_size"] or 0)
    return max(0, int(stored.get("horizon") or 0) - int(stored.get("n_obs_steps") or 1) + 1)


def _provenance(folder: Path) -> dict[str, Any]:
    path = folder / "train_config.json"
    settings = read_object(path) if path.is_file() else {}
    data = settings.get("dataset") or {}
    return {
        "tool": "lerobot",
        "datasets": {str(name): str(name) for name in (data.get("repo_id"),) if name},
    }


def _prompt(preprocessor: Processor) -> str:
    if any("prepare_state_tokenizer" in name for name in preprocessor.steps):
        return "state"
    return "plain" if "tokenizer_processor" in preprocessor.steps else ""


def _camera(
    key: str, shape: Sequence[int], renamed: Mapping[str, str], stored: Record
) -> CameraFacts:
    source = next((name for name, target in renamed.items() if target == key), key)
    resize = next((name for name in _RESIZES if stored.get(name)), "")
    size = tuple(stored[resize]) if resize else (0, 0)
    return CameraFacts(
        source,
        (shape[-2], shape[-1]),
        color="RGB",
        resize=_RESIZES.get(resize, ""),
        network_size=size,
    )


def _vector(key: str, width: int, stored: Record, side: Processor, baked: bool) -> VectorFacts:
    mode = _mode(key, stored, side)
    figures = side.statistics.get(key, {})
    if baked:
        source = "baked"
    elif figures:
        source = "external"
    else:
        source = "none" if mode == "IDENTITY" else ""
    return VectorFacts.from_figures(key, figures, width, source, _MODES.get(mode, mode))


def _named(action: VectorFacts, preprocessor: Processor) -> VectorFacts:
    """Return the action with the names and differences of the step that makes it relative to the
    state, if any.
    """
    config = preprocessor.config("relative_actions_processor")
    names = [str(name) for name in config.get("action_names") or ()]
    if len(names) == action.width:
        action = replace(action, names=tuple(names))
    if not config.get("enabled"):
        return action
    excluded = [str(name).lower() for name in config.get("exclude_joints") or [] if name]
    is_relative = []
    for name in action.names:
        is_relative.append(not any(word in name.lower() for word in excluded))
    relative = np.array(is_relative)
    figures = {name: np.where(relative, np.nan, values) for name, values in action.figures.items()}
    learned = np.where(relative, "state", "absolute").tolist()
    return replace(action, figures=figures, learned=tuple(learned))


def _mode(key: str, stored: Record, side: Processor) -> str:
    """Mode that the processor normalizes by; the one that the policy was configured with where it
    has none.

    LeRobot normalizes by the processor alone, and never reads the config's mode of a folder with
    processors.
    """
    for modes in (side.normalizer.get("norm_map"), stored.get("normalization_mapping")):
        mode = str((modes or {}).get(LerobotProcessor.KINDS[key], "IDENTITY"))
        if mode != "IDENTITY":
            return mode
    return "IDENTITY"


def _statistics(
    key: str, shape: Sequence[int], stored: Record, side: Processor
) -> Iterator[Mismatch]:
    """Faults of the statistics of one vector."""
    mode = _mode(key, stored, side)
    figures = side.statistics.get(key)
    if mode == "IDENTITY":
        return
    prefixed = sorted(name for name in side.statistics if name != key and name.endswith(f".{key}"))
    if figures is None and prefixed:
        fix = f"name them {key!r}; of several, take those of this robot"
        yield Mismatch("statistics ignored", key, f"statistics of {key}", ", ".join(prefixed), fix)
        return
    if (side.normalizer.get("norm_map") or {}).get(
        LerobotProcessor.KINDS[key], "IDENTITY"
    ) == "IDENTITY" or figures is None:
        came = (
            "no normalization: numbers stay as they are"
            if side.is_there
            else "no file of the processor"
        )
        yield Mismatch(
            "statistics missing", key, mode, came, "add the statistics of the training data"
        )
        return
    if lacking := [name for name in _NEEDED.get(mode, ()) if name not in figures]:
        came = f"no {' and '.join(lacking)}"
        yield Mismatch(
            "statistics missing",
            key,
            mode,
            came,
            f"compute {' and '.join(lacking)} of the training data",
        )
    shapes = {name: figures[name].shape for name in _NEEDED.get(mode, ()) if name in figures}
    if cut := {name: form for name, form in shapes.items() if form != tuple(shape)}:
        came = ", ".join(f"{name} {form}" for name, form in cut.items())
        yield Mismatch(
            "statistics cut",
            key,
            f"figures of the shape {tuple(shape)}",
            came,
            "store them whole again",
        )


def _differences(preprocessor: Processor, postprocessor: Processor) -> Iterator[Mismatch]:
    """A policy that learned differences to the state needs the state added again."""
    learns = bool(preprocessor.config("relative_actions_processor").get("enabled"))
    adds = bool(postprocessor.config("absolute_actions_processor").get("enabled"))
    if learns != adds:
        text = ("absolute actions", "differences to the state")
        fix = f"enable or remove it in {LerobotProcessor.BEHIND}, too"
        yield Mismatch(
            "delta", ACTION, text[not learns], text[learns], f"absolute_actions_processor: {fix}"
        )


def _renames(renamed: Mapping[str, str], cameras: Record) -> Iterator[Mismatch]:
    for source, target in renamed.items():
        if "image" in source and target not in cameras:
            came = f"{source} is given as {target}"
            fix = f"give it as one of {', '.join(cameras)}"
            yield Mismatch("camera map", target, ", ".join(cameras), came, fix)


def _weights(
    stored: Record, features: Mapping[str, tuple[str, list[int]]], shapes: Shapes
) -> Iterator[Mismatch]:
    """Tensors that contradict the config: LeRobot may load such a policy with fresh weights, and
    only print a line.
    """
    kind = str(stored.get("type", ""))
    if not shapes and not stored.get("use_peft"):
        yield unfit(f"weights of {kind}", "no model.safetensors")
        return
    if kind in ("pi0", "pi05", "pi052"):
        try:
            measured = "pi05" if is_adaptive(shapes) else "pi0"
        except ValueError as error:
            measured = str(error)
        if measured != kind.removesuffix("2"):
            yield unfit(f"type {kind}", f"tensors of {measured}")
    for name, (axis, key) in _WIDTHS.get(kind, {}).items():
        if name in shapes and key in features and shapes[name][axis] != features[key][1][0]:
            yield unfit(f"{key} of {features[key][1][0]} numbers", f"{name} {list(shapes[name])}")
