"""Planted wiring faults: does `understudy contract` name each before the first action, and none in
right pairings?

    python lab/benchmarks/wiring.py [--json]

Each fault is a small folder as its tool writes it (LeRobot 0.6, openpi, GR00T N1.5, ours) with one
change, most of them from public threads. It meets the dataset, robot, environment or policy that it
is used with. A fault is named where exactly its kinds and keys are listed, each with the remedy of
its kind. A right pairing has no change.

Faults that only motion shows are planted into observations of a simulated arm: the observations
until each is named.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from parsers import make_parser
from understudy_client import (
    CameraFacts,
    Contract,
    Mismatch,
    ObservationCheck,
    RobotFacts,
    VectorFacts,
    compare_contracts,
)
from understudy_client.contract.mismatch import REMEDIES
from understudy_client.contract.numbers import NUMBER_KINDS
from understudy_client.testing.arm import CENTER, DEVIATION, arm_contract, arm_observations, states
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_robot.cli.contract import ContractConfig, read_any
from understudy_robot.contracts.in_motion import list_undecided
from understudy_robot.contracts.tensors import weights_digest
from understudy_robot.rollout.env_contract import env_contract

STATE = "observation.state"
ACTION = "action"
FRONT = "observation.images.front"
WRIST = "observation.images.wrist"
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
MEAN = np.array([2.0, -40, 50, 60, -5, 20])
STD = np.array([25.0, 20, 20, 15, 30, 12])
TASKS = ("pick up the red block", "open the drawer")
HEIGHT = 48
WIDTH = 64
FPS = 30
CHUNK = 16
Stats = dict[str, np.ndarray]
Pairing = tuple[Path, Path | None]
SEEDS = range(10)


def gauss(mean: np.ndarray, std: np.ndarray) -> Stats:
    """Figures of a vector of bell curves."""
    low = mean - 2.33 * std
    high = mean + 2.33 * std
    return {
        "mean": mean,
        "std": std,
        "min": mean - 3 * std,
        "max": mean + 3 * std,
        "q01": low,
        "q99": high,
    }


ARM = gauss(MEAN, STD)


# -- datasets --------------------------------------------------------------------------------------


def images(camera: str, count: int) -> np.ndarray:
    """Images of one scene without symmetry, uint8 (count, H, W, 3)."""
    rng = np.random.default_rng(len(camera))
    scene = np.kron(rng.integers(30, 220, (6, 8, 3)), np.ones((8, 8, 1)))
    return np.clip(scene + rng.normal(0, 6, (count, *scene.shape)), 0, 255).astype(np.uint8)


def recorded(
    root: Path,
    *,
    cameras: tuple[str, ...] = (FRONT, WRIST),
    names: tuple[str, ...] = JOINTS,
    turned: bool = False,
) -> Path:
    """A LeRobot v3.0 dataset of two short episodes, with made-up statistics."""
    vector = {"dtype": "float32", "shape": (len(names),), "names": list(names)}
    image = {
        "dtype": "video",
        "shape": (HEIGHT, WIDTH, 3),
        "names": ["height", "width", "channels"],
    }
    features: dict[str, Any] = {**dict.fromkeys(cameras, image), STATE: vector, ACTION: vector}
    with EpisodeWriter(
        root, fps=FPS, features=features, robot_type="so101", codec="libx264"
    ) as writer:
        for task in TASKS:
            for frame in range(4):
                shown = {camera: images(camera, 4)[frame] for camera in cameras}
                shown = {
                    camera: value[::-1].copy() if turned else value
                    for camera, value in shown.items()
                }
                numbers = np.zeros(len(names), np.float32)
                writer.add_frame({**shown, STATE: numbers, ACTION: numbers}, task=task)
            writer.save_episode()
    return with_stats(root, {STATE: cut(ARM, len(names)), ACTION: cut(ARM, len(names))})


def cut(stats: Stats, width: int) -> Stats:
    return {name: values[:width] for name, values in stats.items()}


def with_stats(root: Path, stats: Mapping[str, Stats]) -> Path:
    path = root / "meta" / "stats.json"
    stored = json.loads(path.read_text())
    stored |= {
        key: {name: values.tolist() for name, values in entry.items()}
        for key, entry in stats.items()
    }
    path.write_text(json.dumps(stored))
    return root


class Sets:
    """Datasets of one benchmark: each is recorded once, then copied and changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made = 0

    def folder(self) -> Path:
        self._made += 1
        return self.root / f"folder-{self._made}"

    def dataset(
        self, name: str = "plain", stats: Mapping[str, Stats] | None = None, **options: Any
    ) -> Path:
        base = self.root / f"base-{name}"
        if not base.exists():
            recorded(base, **options)
        copy = Path(shutil.copytree(base, self.folder()))
        return with_stats(copy, stats or {})


def edit(root: Path, file: str, change: Callable[[dict[str, Any]], object]) -> Path:
    stored = json.loads((root / file).read_text())
    change(stored)
    (root / file).write_text(json.dumps(stored))
    return root


# -- policies --------------------------------------------------------------------------------------


def lerobot(
    root: Path,
    *,
    kind: str = "act",
    mode: str = "MEAN_STD",
    stats: Stats = ARM,
    cameras: tuple[str, ...] = (FRONT, WRIST),
    renamed: Mapping[str, str] | None = None,
    relative: bool = False,
    absolute: bool = False,
    tensors: Mapping[str, tuple[int, ...]] | None = None,
    chunk: int = CHUNK,
    executed: int = CHUNK,
) -> Path:
    """A folder of LeRobot 0.6 as its training writes it: config, processors, statistics and some
    tensors.
    """
    root.mkdir(parents=True)
    width = len(stats["mean"])
    visual = {key: {"type": "VISUAL", "shape": [3, HEIGHT, WIDTH]} for key in cameras}
    state = {"type": "STATE", "shape": [width]}
    action = {"type": "ACTION", "shape": [width]}
    modes = {"VISUAL": "MEAN_STD" if kind == "act" else "IDENTITY", "STATE": mode, "ACTION": mode}
    config = {
        "type": kind,
        "input_features": {**visual, STATE: state},
        "output_features": {ACTION: action},
        "chunk_size": chunk,
        "n_action_steps": executed,
        "normalization_mapping": modes,
    }
    (root / "config.json").write_text(json.dumps(config))
    normal = {"eps": 1e-8, "norm_map": modes, "features": {**visual, STATE: state, ACTION: action}}
    names = [f"{joint}.pos" for joint in JOINTS[:width]]
    relation = {"enabled": relative, "exclude_joints": ["gripper"], "action_names": names}
    before: list[tuple[str, dict[str, Any]]] = [
        ("rename_observations_processor", {"rename_map": dict(renamed or {})}),
        ("to_batch_processor", {}),
        *([("relative_actions_processor", relation)] if relative else []),
        ("normalizer_processor", normal),
    ]
    behind: list[tuple[str, dict[str, Any]]] = [
        ("unnormalizer_processor", normal | {"features": {ACTION: action}}),
        *([("absolute_actions_processor", {"enabled": True})] if absolute else []),
    ]
    figures = {
        f"{key}.{name}": np.float32(values)
        for key in (STATE, ACTION)
        for name, values in stats.items()
    }
    for stem, steps in (("policy_preprocessor", before), ("policy_postprocessor", behind)):
        entries = [{"registry_name": name, "config": step} for name, step in steps]
        for entry in entries:
            if "norm_map" in entry["config"]:
                entry["state_file"] = f"{stem}_normalizer.safetensors"
                save_file(figures, root / entry["state_file"])
        (root / f"{stem}.json").write_text(json.dumps({"name": stem, "steps": entries}))
    act = {
        "model.action_head.weight": (width, 8),
        "model.encoder_robot_state_input_proj.weight": (8, width),
    }
    marks = {"pi05": "time_mlp", "pi0": "action_time_mlp"}
    usual: dict[str, Mapping[str, tuple[int, ...]]] = {"act": act}
    usual |= {name: {f"model.{mark}_in.weight": (8, 8)} for name, mark in marks.items()}
    shapes = usual[kind] if tensors is None else tensors
    save_file(
        {name: np.zeros(shape, np.float32) for name, shape in shapes.items()},
        root / "model.safetensors",
    )
    return root


def change_statistics(
    root: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
) -> Path:
    """Change the statistics of both processors."""
    from safetensors.numpy import load_file

    for path in root.glob("policy_*.safetensors"):
        save_file(change(load_file(path)), path)
    return root


def without_map(root: Path) -> Path:
    def clear(stored: dict[str, Any]) -> None:
        for step in stored["steps"]:
            if "norm_map" in step["config"]:
                step["config"] |= {"norm_map": {}, "features": {}}
                step.pop("state_file")

    for stem in ("policy_preprocessor", "policy_postprocessor"):
        edit(root, f"{stem}.json", clear)
    return root


def openpi(root: Path, stats: Stats = ARM, pad: int = 32, **config: Any) -> Path:
    """A checkpoint of openpi in PyTorch: statistics padded to the width of the model."""
    width = len(stats["mean"])
    entry = {
        name: np.pad(stats[name], (0, pad - width)).tolist()
        for name in ("mean", "std", "q01", "q99")
    }
    (root / "assets" / "so101").mkdir(parents=True)
    content = {"norm_stats": {"state": entry, "actions": entry}}
    (root / "assets" / "so101" / "norm_stats.json").write_text(json.dumps(content))
    (root / "config.json").write_text(json.dumps({"action_horizon": CHUNK, "pi05": True, **config}))
    save_file({"time_mlp_in.weight": np.zeros((8, 8), np.float32)}, root / "model.safetensors")
    return root


def groot(root: Path, fps: float = FPS) -> Path:
    """A checkpoint of GR00T N1.5."""
    (root / "experiment_cfg").mkdir(parents=True)
    parts = {"single_arm": slice(0, 5), "gripper": slice(5, 6)}
    groups = {
        name: {
            "absolute": True,
            "rotation_type": None,
            "shape": [part.stop - part.start],
            "continuous": True,
        }
        for name, part in parts.items()
    }
    figures = {
        name: {figure: values[part].tolist() for figure, values in ARM.items()}
        for name, part in parts.items()
    }
    videos = {
        name: {"resolution": [WIDTH, HEIGHT], "channels": 3, "fps": fps}
        for name in ("front", "wrist")
    }
    entry = {
        "statistics": {"state": figures, "action": figures},
        "modalities": {"video": videos, "state": groups, "action": groups},
        "embodiment_tag": "new_embodiment",
    }
    (root / "experiment_cfg" / "metadata.json").write_text(json.dumps({"new_embodiment": entry}))
    (root / "config.json").write_text(
        json.dumps({"action_horizon": CHUNK, "architectures": ["GR00T_N1_5"]})
    )
    save_file({"action_head.weight": np.zeros((2, 2), np.float32)}, root / "model.safetensors")
    return root


def groot_processor(root: Path, rep: str = "ABSOLUTE", relative: bool = True) -> Path:
    """A checkpoint of GR00T N1.7: the processor's files."""
    root.mkdir(parents=True)
    parts = {"single_arm": slice(0, 5), "gripper": slice(5, 6)}
    figures = {
        name: {figure: values[part].tolist() for figure, values in ARM.items()}
        for name, part in parts.items()
    }
    kinds = [
        {"rep": kind, "type": "NON_EEF", "format": "DEFAULT", "state_key": None}
        for kind in (rep, "ABSOLUTE")
    ]
    configs = {
        "video": {"delta_indices": [0], "modality_keys": ["front", "wrist"]},
        "state": {"delta_indices": [0], "modality_keys": list(parts)},
        "action": {
            "delta_indices": list(range(CHUNK)),
            "modality_keys": list(parts),
            "action_configs": kinds,
        },
    }
    settings = {
        "modality_configs": {"new_embodiment": configs},
        "use_percentiles": True,
        "use_relative_action": True,
    }
    content = {"processor_class": "Gr00tN1d7Processor", "processor_kwargs": settings}
    (root / "processor_config.json").write_text(json.dumps(content))
    statistics = {"state": figures, "action": figures} | (
        {"relative_action": figures} if relative else {}
    )
    (root / "statistics.json").write_text(json.dumps({"new_embodiment": statistics}))
    (root / "config.json").write_text(
        json.dumps({"action_horizon": 50, "architectures": ["Gr00tN1d7"]})
    )
    save_file({"action_head.weight": np.zeros((2, 2), np.float32)}, root / "model.safetensors")
    return root


def with_modality(dataset: Path, order: tuple[str, ...] = ("single_arm", "gripper")) -> Path:
    """Add GR00T's meta/modality.json."""
    widths = {"single_arm": 5, "gripper": 1}
    start = 0
    groups = {}
    for name in order:
        groups[name] = {"start": start, "end": start + widths[name]}
        start += widths[name]
    videos = {"front": {"original_key": FRONT}, "wrist": {"original_key": WRIST}}
    content = {"state": groups, "action": groups, "video": videos}
    (dataset / "meta" / "modality.json").write_text(json.dumps(content))
    return dataset


def facts(**changes: Any) -> RobotFacts:
    """Our contract of the arm, with all that a human knows of it."""
    units = ("deg",) * 5 + ("1",)
    about: dict[str, Any] = {"units": units, "frame": "base", "gripper": {"gripper": (0.0, 1.0)}}
    state = VectorFacts(STATE, JOINTS, ARM, **about)
    action = VectorFacts(ACTION, JOINTS, ARM, references=("absolute",) * 6, **about)
    known: dict[str, Any] = {
        "orientation": "upright",
        "color": "RGB",
        "layout": "HWC",
        "dtype": "uint8",
    }
    cameras = {
        key: CameraFacts(key, (HEIGHT, WIDTH), role=key.rpartition(".")[2], **known)
        for key in (FRONT, WRIST)
    }
    robot = RobotFacts(
        FPS, CHUNK, "so101", "joint", state, action, cameras, TASKS, episodes=50, replan=8,
        prompt="state", tokenizer="a" * 64,
    )  # fmt: skip
    return replace(robot, **changes)


def ours(root: Path, robot: RobotFacts | None = None, seed: int = 0) -> Path:
    """A folder of ours: contract.json and the weights that it names."""
    root.mkdir(parents=True)
    save_file({"w": np.full(4, seed, np.float32)}, root / "model.safetensors")
    contract = Contract({"so101": robot or facts()}, {}, "policy", weights_digest(root))
    contract.write(root / "contract.json")
    return root


def robot(path: Path, **changes: Any) -> Path:
    """The contract of a robot, as a file."""
    stated = facts(
        **{"chunk": 0, "tasks": (), "prompt": "", "tokenizer": "", "episodes": 0, **changes}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    Contract({"": stated}, {}, "robot").write(path)
    return path


def environment(path: Path, **changes: Any) -> Path:
    """The contract of an environment, as a file."""

    image = {"dtype": "video", "shape": (HEIGHT, WIDTH, 3)}
    vector = {"dtype": "float32", "shape": (6,)}
    arm: Any = SimpleNamespace(
        name="arm",
        fps=FPS,
        tasks=TASKS,
        conditions={},
        features={
            **dict.fromkeys((FRONT, WRIST), image),
            **dict.fromkeys((STATE, ACTION), vector | {"names": JOINTS}),
        },
        meanings={FRONT: {"orientation": "upright"}, ACTION: {"gripper": {"gripper": (0.0, 1.0)}}}
        | changes,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    env_contract(arm, replan=8).write(path)
    return path


def each_camera(robot: RobotFacts, **changes: Any) -> dict[str, CameraFacts]:
    return {key: replace(camera, **changes) for key, camera in robot.cameras.items()}


def cameras_as(**roles: str) -> dict[str, CameraFacts]:
    return {
        key: replace(camera, role=roles[camera.role]) for key, camera in facts().cameras.items()
    }


def joined(vector: VectorFacts, **changes: Any) -> VectorFacts:
    return replace(vector, **changes)


STATE_FACTS = facts().state
ACTION_FACTS = facts().action
assert STATE_FACTS is not None
HANDS = tuple(f"observation.images.{name}" for name in ("left", "right", "hand"))
SLOTS = tuple(f"observation.images.camera{number}" for number in (1, 2, 3))
STORED_MAP = dict(zip(HANDS, SLOTS, strict=True))
EXCHANGED = {
    SLOTS[number]: CameraFacts(HANDS[source], (0, 0)) for number, source in enumerate((0, 2, 1))
}
DOTTED = tuple(f"{joint}.pos" for joint in JOINTS)
IN_RADIANS = {name: np.append(np.deg2rad(values[:5]), values[5]) for name, values in ARM.items()}
NOTHING = VectorFacts.unmeasured("", ())
UNSTATED: dict[str, Any] = {"fps": np.nan, "state": NOTHING, "action": NOTHING, "replan": 0}
DIFFERENCES = gauss(np.zeros(6), np.array([2.0, 2, 2, 2, 2, 12]))
LARGE = gauss(np.append(MEAN[:5], 1e8), np.append(STD[:5], 0.5))
OTHER_ROBOT = gauss(np.array([120.0, -110, -60, -30, 90, 70]), np.full(6, 9.0))


def prefixed(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"so100.buffer.{name}": values for name, values in tensors.items()}


def scalars(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name: values.reshape(()) if values.shape == (1,) else values
        for name, values in tensors.items()
    }


@dataclass(frozen=True)
class Fault:
    """A planted fault.

    Attributes:
        thread: the thread that describes it.
        make: writes both sides.
        named: kinds and keys that the comparison lists, and no others.
    """

    thread: str
    make: Callable[[Sets], Pairing]
    named: frozenset[tuple[str, str]]


def fault(thread: str, make: Callable[[Sets], Pairing], *named: tuple[str, str]) -> Fault:
    return Fault(thread, make, frozenset(named))


def policy_and(change: Callable[[Path], Path], **trained: Any) -> Callable[[Sets], Pairing]:
    """Our policy against a file that `change` writes."""
    return lambda sets: (
        ours(sets.folder(), facts(**trained)),
        change(sets.folder() / "robot.json"),
    )


def alone(make: Callable[[Path], Path]) -> Callable[[Sets], Pairing]:
    return lambda sets: (make(sets.folder()), None)


FAULTS: dict[str, Fault] = {
    "statistics under the name of a dataset": fault(
        "lerobot #4415",
        alone(lambda root: change_statistics(lerobot(root), prefixed)),
        ("statistics ignored", STATE),
        ("statistics ignored", ACTION),
    ),
    "empty normalization": fault(
        "lerobot #4647",
        alone(lambda root: without_map(lerobot(root))),
        ("statistics missing", STATE),
        ("statistics missing", ACTION),
    ),
    "quantiles that were never computed": fault(
        "openpi #1025, strands-labs #1613",
        alone(lambda root: lerobot(root, mode="QUANTILES", stats={"mean": MEAN, "std": STD})),
        ("statistics missing", STATE),
        ("statistics missing", ACTION),
    ),
    "weights of another type": fault(
        "lerobot #4577",
        alone(lambda root: lerobot(root, kind="pi0", tensors={"model.time_mlp_in.weight": (8, 8)})),
        ("weights", ""),
    ),
    "weights of another robot": fault(
        "lerobot #4577",
        alone(lambda root: lerobot(root, tensors={"model.action_head.weight": (14, 8)})),
        ("weights", ""),
    ),
    "weights that are not whole": fault(
        "lerobot #4577", alone(lambda root: shortened(lerobot(root))), ("weights", "")
    ),
    "singleton dimension lost": fault(
        "lerobot #4846",
        alone(lambda root: change_statistics(lerobot(root, stats=cut(ARM, 1)), scalars)),
        ("statistics cut", STATE),
        ("statistics cut", ACTION),
    ),
    "statistics cut to float32": fault(
        "lerobot #4846",
        lambda sets: (
            lerobot(sets.folder(), stats=LARGE),
            sets.dataset(stats={STATE: LARGE, ACTION: LARGE}),
        ),
        ("statistics cut", STATE),
        ("statistics cut", ACTION),
    ),
    "differences that are never added": fault(
        "lerobot #2970",
        alone(lambda root: lerobot(root, relative=True)),
        ("delta", ACTION),
    ),
    "camera map dropped": fault(
        "lerobot #4578",
        lambda sets: (lerobot(sets.folder(), cameras=SLOTS), sets.dataset("hands", cameras=HANDS)),
        *(("camera map", key) for key in SLOTS),
    ),
    "camera map to no input": fault(
        "lerobot #4578",
        alone(
            lambda root: lerobot(
                root, cameras=SLOTS, renamed=STORED_MAP | {HANDS[0]: "observation.images.top"}
            )
        ),
        ("camera map", "observation.images.top"),
    ),
    "two cameras of the map exchanged": fault(
        "lerobot #4548",
        lambda sets: (
            lerobot(sets.folder(), cameras=SLOTS, renamed=STORED_MAP),
            robot(sets.folder() / "robot.json", **UNSTATED, cameras=EXCHANGED),
        ),
        ("camera map", SLOTS[1]),
        ("camera map", SLOTS[2]),
    ),
    "reused statistics of another robot": fault(
        "openpi #1025",
        lambda sets: (openpi(sets.folder(), OTHER_ROBOT), sets.dataset()),
        ("statistics", STATE),
        ("statistics", ACTION),
    ),
    "reused statistics of another width": fault(
        "openpi #1025",
        lambda sets: (openpi(sets.folder(), gauss(np.ones(8), np.ones(8))), sets.dataset()),
        ("dimension count", STATE),
        ("dimension count", ACTION),
    ),
    "differences by absolute statistics": fault(
        "openpi #454",
        lambda sets: (
            lerobot(sets.folder(), relative=True, absolute=True),
            sets.dataset("dotted", names=DOTTED),
        ),
        ("statistics", ACTION),
    ),
    "degrees against radians": fault(
        "leisaac #136",
        lambda sets: (
            lerobot(sets.folder()),
            sets.dataset(stats={STATE: IN_RADIANS, ACTION: IN_RADIANS}),
        ),
        ("radians", STATE),
        ("radians", ACTION),
    ),
    "dimensions in another order": fault(
        "lerobot #4416, #4452",
        lambda sets: (ours(sets.folder()), sets.dataset("reversed", names=JOINTS[::-1])),
        ("dimension order", STATE),
        ("dimension order", ACTION),
    ),
    "gripper first in modality.json": fault(
        "Isaac-GR00T #414",
        lambda sets: (
            groot(sets.folder()),
            with_modality(sets.dataset(), ("gripper", "single_arm")),
        ),
        ("dimension order", STATE),
        ("dimension order", ACTION),
    ),
    "transposed images": fault(
        "lerobot #839",
        lambda sets: (lerobot(sets.folder()), edit(sets.dataset(), "meta/info.json", transpose)),
        ("transposed", FRONT),
    ),
    "flipped images": fault(
        "openpi_subtask #3, strands-labs #172",
        policy_and(lambda path: environment(path, **{FRONT: {"orientation": "rotated 180"}})),
        ("orientation", FRONT),
    ),
    "recordings upside down": fault(
        "openvla #295",
        lambda sets: (
            ours(sets.folder(), facts(cameras=looking(sets))),
            sets.dataset("turned", turned=True),
        ),
        ("orientation", FRONT),
        ("orientation", WRIST),
    ),
    "BGR": fault(
        "openpi #293",
        policy_and(lambda path: robot(path, cameras=each_camera(facts(), color="BGR"))),
        ("color order", FRONT),
        ("color order", WRIST),
    ),
    "cameras exchanged": fault(
        "strands-labs #517, genie_sim #146",
        policy_and(lambda path: robot(path, cameras=cameras_as(front="wrist", wrist="front"))),
        ("swapped cameras", FRONT),
        ("swapped cameras", WRIST),
    ),
    "control rate": fault(
        "lerobot #4615, OpenTau #312", policy_and(lambda path: robot(path, fps=10.0)), ("rate", "")
    ),
    "action horizon": fault(
        "Isaac-GR00T #424", policy_and(lambda path: robot(path, replan=50)), ("action horizon", "")
    ),
    "replanning": fault(
        "lerobot #4614", policy_and(lambda path: robot(path, replan=16)), ("replanning", "")
    ),
    "gripper sign": fault(
        "openpi #912, #1012 (symptom), positronic #456",
        policy_and(
            lambda path: robot(path, action=joined(ACTION_FACTS, gripper={"gripper": (1.0, -1.0)}))
        ),
        ("gripper", ACTION),
    ),
    "delta against absolute": fault(
        "lerobot #2559",
        policy_and(
            lambda path: robot(path, action=joined(ACTION_FACTS, references=("state",) * 6))
        ),
        ("delta", ACTION),
    ),
    "centimetres against degrees": fault(
        "robot-control-stack #60",
        policy_and(lambda path: robot(path, state=joined(STATE_FACTS, units=("cm",) * 5 + ("1",)))),
        ("units", STATE),
    ),
    "frame of the tool": fault(
        "robosuite #819",
        policy_and(lambda path: robot(path, action=joined(ACTION_FACTS, frame="tool"))),
        ("frame", ACTION),
    ),
    "keys of another client": fault(
        "openpi #1046, vllm-omni #6069",
        policy_and(
            lambda path: robot(path, state=joined(STATE_FACTS, key="observation/joint_position"))
        ),
        ("missing key", STATE),
    ),
    "instruction that training lacks": fault(
        "lerobot #4548",
        lambda sets: (ours(sets.folder(), facts(tasks=TASKS[:1])), sets.dataset()),
        ("instruction", "task"),
    ),
    "prompt and tokenizer of another policy": fault(
        "openvla #104",
        lambda sets: (
            ours(sets.folder()),
            ours(sets.folder(), facts(prompt="plain", tokenizer="b" * 64)),
        ),
        ("prompt", "task"),
        ("tokenizer", "task"),
    ),
    "server of other weights": fault(
        "moveit_pro_example_ws #979",
        lambda sets: (ours(sets.folder()), ours(sets.folder(), seed=1)),
        ("weights", ""),
    ),
}


RIGHT: dict[str, Callable[[Sets], Pairing]] = {
    "LeRobot's ACT and its dataset": lambda sets: (lerobot(sets.folder()), sets.dataset()),
    "LeRobot's pi05 and its dataset": lambda sets: (
        lerobot(sets.folder(), kind="pi05", mode="QUANTILES"),
        sets.dataset(),
    ),
    "LeRobot's camera map": lambda sets: (
        lerobot(sets.folder(), cameras=SLOTS, renamed=STORED_MAP),
        sets.dataset("hands", cameras=HANDS),
    ),
    "LeRobot's differences": lambda sets: (
        lerobot(sets.folder(), stats=DIFFERENCES | {}, relative=True, absolute=True, kind="pi05"),
        sets.dataset("dotted", names=DOTTED, stats={STATE: DIFFERENCES}),
    ),
    "LeRobot's policy of one number": lambda sets: (
        lerobot(sets.folder(), stats=cut(ARM, 1)),
        sets.dataset("single", names=JOINTS[:1]),
    ),
    "openpi and its dataset": lambda sets: (openpi(sets.folder()), sets.dataset()),
    "GR00T and its dataset": lambda sets: (groot(sets.folder()), with_modality(sets.dataset())),
    "GR00T N1.7 and its dataset": lambda sets: (
        groot_processor(sets.folder()),
        with_modality(sets.dataset()),
    ),
    "ours and its dataset": lambda sets: (
        ours(sets.folder(), facts(cameras=looking(sets))),
        sets.dataset(),
    ),
    "ours and its robot": policy_and(robot),
    "ours and a robot that states nothing": policy_and(
        lambda path: robot(path, **UNSTATED, cameras={})
    ),
    "ours and its environment": policy_and(environment),
    "ours and its server": lambda sets: (ours(sets.folder()), ours(sets.folder())),
    "ours and a dataset of other cameras, too": lambda sets: (
        ours(sets.folder(), facts(cameras={FRONT: facts().cameras[FRONT]})),
        sets.dataset(),
    ),
}


def looking(sets: Sets) -> dict[str, CameraFacts]:
    """Cameras of the contract with the appearance of the recordings; their orientation is
    unstated.
    """
    contract = read_any(str(sets.dataset()), ContractConfig(paths=("", "")))
    looks = {key: camera.look for key, camera in contract.robots[""].cameras.items()}
    return {
        key: replace(camera, orientation="", look=looks[key])
        for key, camera in facts().cameras.items()
    }


def transpose(info: dict[str, Any]) -> None:
    info["features"][FRONT]["shape"] = [WIDTH, HEIGHT, 3]


def shortened(root: Path) -> Path:
    path = root / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    return root


def listed(pairing: Pairing) -> list[Mismatch]:
    """Contradictions of a pairing, or of one folder."""
    paths = tuple(str(path) for path in pairing if path is not None)
    config = ContractConfig(paths=paths)
    contracts = [read_any(path, config) for path in paths]
    return compare_contracts(*contracts) if len(contracts) == 2 else list(contracts[0].faults)


# -- faults that only motion shows -----------------------------------------------------------------

Observation = dict[str, Any]
ARM_CONTRACT = arm_contract()
MOST_SEEN = 40


def joints(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Observation], Observation]:
    return lambda seen: {**seen, "joints": change(seen["joints"])}


def front(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Observation], Observation]:
    return lambda seen: {**seen, "cam_front": change(seen["cam_front"])}


IN_MOTION: dict[str, tuple[Callable[[Observation], Observation], str]] = {
    "degrees for radians": (
        joints(lambda x: x * np.where(np.arange(7) < 6, 180 / np.pi, 1.0)),
        "degrees",
    ),
    "millimetres for metres": (joints(lambda x: x * 1000), "scale"),
    "normalized state": (joints(lambda x: (x - CENTER) / DEVIATION), "normalized"),
    "joints in reverse": (joints(lambda x: x[::-1]), "dimension order"),
    "BGR": (front(lambda x: x[..., ::-1]), "color order"),
    "upside down": (front(lambda x: x[::-1]), "orientation"),
    "mirrored": (front(lambda x: x[:, ::-1]), "orientation"),
    "turned by 180 degrees": (front(lambda x: x[::-1, ::-1]), "orientation"),
}


KINDS_IN_MOTION = (*NUMBER_KINDS, "color order", "orientation", "unlike training")


def first_named(
    change: Callable[[Observation], Observation], kind: str, seed: int
) -> tuple[int, str] | None:
    """Observations of a robot until a fault is named, and its first kind; None: not in
    `MOST_SEEN`.
    """
    check = ObservationCheck(ARM_CONTRACT, "arm")
    numbers = [{"joints": pose} for pose in states(MOST_SEEN, seed)]
    for number, seen in enumerate(
        arm_observations(8, seed) if kind in ("color order", "orientation") else numbers
    ):
        kinds = [
            mismatch.kind
            for mismatch in check.look(change(seen))
            if mismatch.kind in KINDS_IN_MOTION
        ]
        if kinds:
            return number + 1, kinds[0]
    return None


def in_motion() -> dict[str, dict[str, Any]]:
    rows = {}
    for name, (change, kind) in IN_MOTION.items():
        needed = [first_named(change, kind, seed) for seed in SEEDS]
        found = [row for row in needed if row is not None]
        right = sum(named == kind for _, named in found)
        most = max((number for number, _ in found), default=None)
        rows[name] = {
            "named": len(found),
            "by its kind": right,
            "of": len(needed),
            "observations": most,
        }
    return rows


def main() -> int:
    options = make_parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sets = Sets(Path(folder))
        rows = []
        alarms = []
        for name, planted in FAULTS.items():
            found = {(mismatch.kind, mismatch.key) for mismatch in listed(planted.make(sets))}
            remedies = sorted({REMEDIES[kind] for kind, _ in planted.named})
            row = {
                "fault": name,
                "thread": planted.thread,
                "kinds": sorted({kind for kind, _ in planted.named}),
            }
            rows.append({**row, "remedies": remedies, "named": found == planted.named})
        for name, make in RIGHT.items():
            alarms += [{"pairing": name, **vars(mismatch)} for mismatch in listed(make(sets))]
    undecided = list_undecided(ARM_CONTRACT.robots["arm"], facts(cameras={}))
    report = {
        "faults": rows,
        "named": sum(bool(row["named"]) for row in rows),
        "pairings": len(RIGHT),
        "alarms": alarms,
        "in_motion": in_motion(),
        "power": {
            f"{fact.key}: {fact.fact}": fact.power for fact in undecided if fact.observations
        },
    }
    if options.json:
        print(json.dumps(report))
    else:
        print("| fault | thread | kind | remedy | named |\n|---|---|---|---|---|")
        for row in rows:
            cells = [
                row["fault"],
                row["thread"],
                ", ".join(row["kinds"]),
                ", ".join(row["remedies"]),
            ]
            print(f"| {' | '.join(map(str, cells))} | {'yes' if row['named'] else 'NO'} |")
        print(
            f"\n{report['named']} of {len(rows)} named; {len(alarms)} false alarms on {len(RIGHT)} "
            "right pairings"
        )
        for name, row in report["in_motion"].items():  # type: ignore[attr-defined]
            counts = f"{row['named']} of {row['of']} named, {row['by its kind']} by its kind"
            print(f"| {name} | {counts} | {row['observations']} |")
    return int(report["named"] != len(rows) or bool(alarms))


if __name__ == "__main__":
    sys.exit(main())
