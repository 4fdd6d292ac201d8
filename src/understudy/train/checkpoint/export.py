"""`understudy export`: write the policy of a checkpoint for a robot; and read it as the start of a new run.

The result is a folder with model.safetensors, config.json and normalisation.json (`policies/policy_folder.py`). It does
not depend on mesh and storage of the run, and needs neither dataset nor processes. Low-rank adapters are merged into
the weights in float32: the policy is an ordinary one. bf16 halves the file and rounds each weight to the nearest; the
normalization stays float32. Moments and position stay in the run.

With `format` the folder is one of another tool instead (`policies/folder_formats.py`).

`train --init-from FOLDER` starts a new run with these weights and this normalization: its policy at step 0 gives the
same actions as the exported one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from understudy.config.declare import Count, Natural, Positional
from understudy.errors import ConfigError
from understudy.records import Record

if TYPE_CHECKING:
    from torch import Tensor

    from understudy.policies.weight_files import TensorReader


@dataclass(frozen=True)
class ExportConfig:
    """Export the policy of a run to one self-sufficient folder."""

    run: Positional[str] = ""
    """Run directory."""
    output_dir: str = ""
    """Folder to write; the default is RUN/export. With another `format` the folder must not exist, even with
    `overwrite`, and the default is RUN/export-FORMAT."""
    overwrite: bool = False
    """Replace an earlier export at that place. Anything else there is an error."""
    format: Literal["understudy", "lerobot", "openpi", "torch_export", "onnx"] = "understudy"
    """Files of the folder: `lerobot` and `openpi` name these tools, for pi05 and pi0. Facts that they do not
    hold are printed. `torch_export` and `onnx` are the network as a graph, for flow; it is compared with the policy."""
    steps: Count = 10
    """Integration steps of a graph."""
    head: str = ""
    """Norm head of the robot, where the run has several and the format holds one."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Dtype of the stored weights."""
    checkpoint: Natural | Literal["latest", "best"] = "latest"
    """Step of the checkpoint, or `latest`, or `best`: the lowest validation loss of those on disk, or the lowest
    figure of `keep_best`."""

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        problems = [] if self.run else ["run: required, the directory of a run: understudy export RUN"]
        if self.head and self.format == "understudy":
            problems.append(f"head: {self.head}: format understudy has all heads of the run; leave it out")
        if self.steps != 10 and not self.is_graph():
            problems.append(f"steps: {self.steps}: format {self.format} holds no steps; leave it out")
        return problems

    def is_graph(self) -> bool:
        """Return whether the format is a graph of tensors."""
        return self.format in ("torch_export", "onnx")


def export(config: ExportConfig) -> None:
    """Write the folder and print its path.

    Raises:
        ConfigError: no run, no such checkpoint, something else in place of the folder, or a policy that the format
            cannot hold.
        CheckpointError: the checkpoint cannot be read. OSError: the folder cannot be written.
    """
    from understudy.atomic import refuse_existing
    from understudy.policies import folder_formats, policy_folder
    from understudy.train.checkpoint.checkpoint import describe_choice

    source, record, facts = _read_run(config)
    is_plain = config.format == "understudy"
    target = Path(config.output_dir or Path(config.run) / ("export" if is_plain else f"export-{config.format}"))
    network, normalization = policy_folder.read_config(record["policy"]), record["normalisation"]
    with _path_errors():
        if is_plain:
            policy_folder.check_replaceable(target, network.type)
            refuse_existing(target, "output_dir", config.overwrite)
        else:
            folder_formats.check_absent(target)
    folder = None
    if not is_plain:
        folder = folder_formats.describe_folder(
            config.format, network, normalization, record.get("metadata") or {}, config.head, config.dtype
        )
    weights = policy_weights(source, config.dtype)
    if folder is None:
        policy_folder.save(target, network, normalization, weights, facts, is_new=not config.overwrite)
    else:
        folder_formats.save_folder(target, folder, weights)
    size = sum(weight.numel() for weight in weights.values())
    print(f"{target}: {size:,} weights in {config.dtype} of {source.name}")
    print(f"  {describe_choice(source, _metric(config))}")
    for note in folder.notes if folder is not None else ():
        print(f"  not in the folder: {note}")


def _read_run(config: ExportConfig) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Return the path of the checkpoint to export, order.json of its run, and the facts about the robots."""
    from understudy.train.checkpoint.run_dir import RunDir
    from understudy.train.data.input_contract import with_provenance

    run = RunDir(Path(config.run))
    source = find_checkpoint(run.checkpoints, config.checkpoint, run.settings().checkpoint.keep_best)
    record = run.read_record()
    return source, record, with_provenance(record.get("metadata"), run.root, int(source.name.rpartition("-")[2]))


def _metric(config: ExportConfig) -> str:
    from understudy.train.checkpoint.run_dir import RunDir

    return RunDir(Path(config.run)).settings().checkpoint.keep_best


@contextmanager
def _path_errors() -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise ConfigError(f"output_dir: {error}") from error


def policy_weights(checkpoint: Path, dtype: str) -> "dict[str, Tensor]":
    """Read the policy's state dict from a checkpoint: the moving average where the run keeps one, else the weights.

    Low-rank adapters are merged, at the scale of the checkpoint's settings.
    """
    import torch

    from understudy.optim.lora import merge_adapters
    from understudy.train.checkpoint.checkpoint import read_state, read_tensors, tensor_names
    from understudy.train.checkpoint.run_dir import read_settings
    from understudy.train.precision import export_names

    names = export_names(tensor_names(checkpoint))
    tensors: dict[str, Tensor] = {}
    for kind in sorted({stored.partition("/")[0] for stored in names.values()}):
        tensors |= read_tensors(checkpoint, f"{kind}/")
    scale = read_settings(read_state(checkpoint)["settings"], checkpoint).lora.scale
    whole = {name: tensors[stored] for name, stored in names.items()}
    whole = {name: t.float() if t.dtype == torch.bfloat16 else t for name, t in whole.items()}  # frozen (`lora.base`)
    weights = merge_adapters(whole, scale)
    if dtype == "bf16":
        weights = {name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in weights.items()}
    return weights


@dataclass(frozen=True)
class InitialPolicy:
    """Start of a run from an exported policy."""

    normalization: dict[str, Any]
    weights: "TensorReader"
    """By name, in the dtype of the file; each is read when it is asked for."""
    digest: str
    """SHA-256 of the file of weights, or of several (`WeightFiles.digest`)."""


def read_initial_policy(path: str | Path, network: Any) -> InitialPolicy:
    """Read an exported policy to start from.

    Raises:
        ConfigError: there is none, it is damaged or changes meanwhile, or it is another network than `network`; names
            each setting that differs.
    """
    from understudy.policies import policy_folder
    from understudy.policies.registry import network_differences

    try:
        config, normalization, weights, _ = policy_folder.load(policy_folder.of_run(Path(path)))
    except (OSError, ValueError) as error:
        raise ConfigError(f"init_from: {error}") from error
    if differences := network_differences(config, network):
        lines = "\n".join(f"  {line}" for line in differences)
        raise ConfigError(
            f"init_from: {path} holds another network; set policy.*, data.* and mode as there, or name another\n{lines}"
        )
    try:
        digest = weights.digest()
        weights.check_values()
        return InitialPolicy(normalization, weights, digest)
    except (OSError, ValueError) as error:
        raise ConfigError(f"init_from: {error}") from error


def find_checkpoint(checkpoints: Path, step: int | str, metric: str) -> Path:
    """Return the path of a checkpoint by its step, "latest", or "best": the lowest `metric` ("none": loss).

    Raises:
        ConfigError: there is none.
    """
    from understudy.train.checkpoint import checkpoint

    steps, best = checkpoint.list_steps(checkpoints), checkpoint.list_best(checkpoints)
    by = metric if metric != "none" else "loss"
    path: Path | None = None
    if isinstance(step, int):
        kind = "step" if step in steps else "best"
        path = checkpoints / f"{kind}-{step:08d}" if step in (*steps, *best) else None
    else:
        path = checkpoint.find_latest(checkpoints) if step == "latest" else checkpoint.find_best(checkpoints, by)
    if path is None:
        listed = ", ".join(map(str, sorted({*steps, *best}))) or "none yet"
        raise ConfigError(f"checkpoint: {step} is not in {checkpoints}; there are: {listed}")
    return path


def describe_policy(root: Path) -> str | None:
    """Describe the step of the policy that a run has exported, next to the best one; None: it is unknown, or no run."""
    import json

    from understudy.contract.facts import FILE
    from understudy.train.checkpoint.checkpoint import describe_choice
    from understudy.train.checkpoint.run_dir import RunDir

    run = RunDir(root)
    try:
        step = json.loads((run.policy / FILE).read_text(encoding="utf-8"))["provenance"]["step"]
        metric = run.settings().checkpoint.keep_best
        return describe_choice(run.checkpoints / f"step-{int(step):08d}", metric)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def export_graph(config: ExportConfig) -> None:
    """Write the graph, compare it with the policy, and print the differences.

    Args:
        config: settings of the command, with a graph as `format`.

    Raises:
        ConfigError: no run, no such checkpoint, something in place of the folder, no graph of this type, `head` names
            none of several, or the graph differs from the policy.
        MissingExtraError: the extra `onnx` is not installed.
        CheckpointError: the checkpoint cannot be read. OSError: the folder cannot be written.
    """
    from understudy.atomic import create_folder
    from understudy.checksums import write_checksums
    from understudy.contract.facts import FILE, write_contract
    from understudy.optional_packages import require
    from understudy.policies import folder_formats, policy_folder
    from understudy.policies import graph as files
    from understudy.policies.inference import RobotPolicy
    from understudy.policies.registry import policy_type
    from understudy.train.checkpoint.checkpoint import describe_choice

    kind: Any = config.format
    if kind == "onnx":
        require("onnx")
    source, record, facts = _read_run(config)
    target = Path(config.output_dir or Path(config.run) / f"export-{kind}")
    with _path_errors():
        folder_formats.check_absent(target)
    network = policy_folder.read_config(record["policy"])
    files.check_type(network.type)
    weights = policy_weights(source, config.dtype)
    # The run's own normalization: settings only say where a new run takes one from.
    policy = policy_type(network.type).build(replace(network, compute="float32"), record["normalisation"])
    policy.load_weights(weights)
    try:
        robot = RobotPolicy(policy.eval(), facts, config.head or None, reaction="off")
    except ValueError as error:
        raise ConfigError(f"head: {error}") from error
    head = policy.norm_heads[robot.head]
    graph = files.make_graph(robot, _camera_sizes(facts, head, network, robot.metadata), config.steps)
    with create_folder(target) as fresh:
        function = files.write_graph(graph, fresh / files.FILES[kind], kind)
        parity = files.compare(robot, graph, function, config.steps)
        (fresh / files.DESCRIPTION).write_text(
            files.describe_graph(graph, kind, config.steps, parity, robot.metadata), encoding="utf-8"
        )
        if contract := facts.get(policy_folder.CONTRACT):
            write_contract(fresh / FILE, contract)
        write_checksums(fresh)
    differences = ", ".join(f"{value:.2g} at batch size {rows}" for rows, value in parity["largest_difference"].items())
    size = sum(weight.numel() for weight in weights.values())
    print(f"{target}: {size:,} weights of {source.name} as {files.FILES[kind]}")
    print(f"  {describe_choice(source, _metric(config))}")
    print(f"  largest difference from the policy: {differences}; largest action {parity['largest_action']:.3g}")


def _camera_sizes(facts: Record, head: str, network: Any, metadata: Record) -> dict[str, tuple[int, int]]:
    """Height and width of the images of a robot: those of its recordings, else those of the network."""
    from understudy.contract.facts import CameraFacts

    robots = facts.get("contract", {}).get("robots", {})
    stored = robots.get(head, {}).get("cameras", {})
    recorded = {key: CameraFacts.from_json(camera).size for key, camera in stored.items()}
    cameras = metadata.get("cameras", network.cameras)
    sizes = {key: recorded.get(key, (0, 0)) for key in network.cameras if key in cameras}
    return {key: size if all(size) else network.image_size for key, size in sizes.items()}
