"""`understudy export`: write the policy of a checkpoint for a robot; and read it as the start of a
new run.

The result is a folder with model.safetensors, config.json and normalisation.json
(`policies/policy_folder.py`). It does not depend on mesh and storage of the run, and needs neither
dataset nor processes. Low-rank adapters are merged into the weights in float32: the policy is an
ordinary one. bf16 halves the file and rounds each weight to the nearest; the normalization stays
float32. Moments and position stay in the run.

With `format` the folder is one of another tool, or a graph, which an entry point of the group
`FORMATS` writes.

`train --init-from FOLDER` starts a new run with these weights and this normalization: its policy at
step 0 gives the same actions as the exported one.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from understudy.config.intervals import Count
from understudy_base import ConfigError, load_entry_point
from understudy_kit import Ge, Positional

if TYPE_CHECKING:
    from torch import Tensor

    from understudy.policies.weight_files import TensorReader


@dataclass(frozen=True)
class ExportConfig:
    """Export the policy of a run to one self-sufficient folder."""

    run: Positional[str] = ""
    """Run directory."""
    output_dir: str = ""
    """Folder to write; the default is RUN/export. With another `format` the folder must not exist,
    even with `overwrite`, and the default is RUN/export-FORMAT.
    """
    overwrite: bool = False
    """Replace an earlier export at that place. Anything else there is an error."""
    format: Literal["understudy", "lerobot", "openpi", "torch_export", "onnx"] = "understudy"
    """Files of the folder: `lerobot` and `openpi` name these tools, for pi05 and pi0. Facts that
    they do not hold are printed. `torch_export` and `onnx` are the network as a graph, for flow; it
    is compared with the policy.
    """
    steps: Count = 10
    """Integration steps of a graph."""
    head: str = ""
    """Norm head of the robot, where the run has several and the format holds one."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Dtype of the stored weights."""
    checkpoint: Annotated[int, Ge(0)] | Literal["latest", "best"] = "latest"
    """Step of the checkpoint, or `latest`, or `best`: the lowest validation loss of those on disk,
    or the lowest figure of `keep_best`.
    """

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        problems = []
        if not self.run:
            problems.append("run: required, the directory of a run: understudy export RUN")
        if self.head and self.format == "understudy":
            problems.append(
                f"head: {self.head}: format understudy has all heads of the run; leave it out"
            )
        if self.steps != 10 and not self.is_graph():
            problems.append(
                f"steps: {self.steps}: format {self.format} holds no steps; leave it out"
            )
        return problems

    def open_run(self) -> "ExportedRun":
        """Find the checkpoint to export; see `open_run`."""
        return open_run(self)

    @staticmethod
    @contextmanager
    def path_errors() -> Iterator[None]:
        """Turn the FileExistsError of the block, about the folder to write, into a ConfigError."""
        try:
            yield
        except FileExistsError as error:
            raise ConfigError(f"output_dir: {error}") from error

    def is_graph(self) -> bool:
        """Return whether the format is a graph of tensors."""
        return self.format in ("torch_export", "onnx")


FORMATS = "understudy.formats"
"""Group of entry points: other values of `format` -> function of an `ExportConfig`, as `export`."""


def export(config: ExportConfig) -> None:
    """Write the folder and print its path.

    Raises:
        ConfigError: no run, no such checkpoint, something else in place of the folder, or a policy
            that the format cannot hold.
        MissingExtraError: the format is that of a distribution that is not installed.
        CheckpointError: the checkpoint cannot be read. OSError: the folder cannot be written.
    """
    if config.format != "understudy":
        load_entry_point(FORMATS, config.format, f"the format {config.format} of exports", "zoo")(
            config
        )
        return
    from understudy.policies import policy_folder
    from understudy_base import refuse_existing

    run = config.open_run()
    target = run.target
    with config.path_errors():
        policy_folder.check_replaceable(target, run.network.type)
        refuse_existing(target, "output_dir", config.overwrite)
    weights = run.weights()
    policy_folder.save(
        target, run.network, run.normalization, weights, run.facts, is_new=not config.overwrite
    )
    run.print_written(weights)


@dataclass(frozen=True)
class ExportedRun:
    """The checkpoint that an export writes, and what is known about it."""

    config: ExportConfig
    """Settings of the command."""
    checkpoint: Path
    """Path of the checkpoint."""
    network: Any
    """Config of the policy, a `PolicyConfig` with its settings."""
    normalization: dict[str, Any]
    """That of the run; settings only say where a new run takes one from."""
    metadata: dict[str, Any]
    """Facts about the robots, as the run recorded them."""
    facts: dict[str, Any]
    """The same, with the origin of the policy in its contract."""

    @property
    def target(self) -> Path:
        """Path of the folder to write."""
        name = "export" if self.config.format == "understudy" else f"export-{self.config.format}"
        return Path(self.config.output_dir or Path(self.config.run) / name)

    @property
    def contract(self) -> "dict[str, Any] | None":
        """Contract of the policy; None: the run has none."""
        from understudy.policies import policy_folder

        return self.facts.get(policy_folder.CONTRACT)

    def weights(self) -> "dict[str, Tensor]":
        """Read the policy's state dict; see `policy_weights`."""
        return policy_weights(self.checkpoint, self.config.dtype)

    def describe(self) -> str:
        """Return a line about the step of the checkpoint, next to the best one."""
        from understudy.train.checkpoint.checkpoint import describe_choice
        from understudy.train.checkpoint.run_dir import RunDir

        metric = RunDir(Path(self.config.run)).settings().checkpoint.keep_best
        return describe_choice(self.checkpoint, metric)

    def print_written(self, weights: "Mapping[str, Tensor]") -> None:
        """Print the folder, its weights and the choice of the checkpoint."""
        size = sum(weight.numel() for weight in weights.values())
        about = f"{size:,} weights in {self.config.dtype} of {self.checkpoint.name}"
        print(f"{self.target}: {about}")
        print(f"  {self.describe()}")


def open_run(config: ExportConfig) -> ExportedRun:
    """Find the checkpoint to export.

    Raises:
        ConfigError: no run, or no such checkpoint.
    """
    from understudy.policies import policy_folder
    from understudy.train.checkpoint.run_dir import RunDir
    from understudy.train.data.input_contract import with_provenance

    run = RunDir(Path(config.run))
    source = find_checkpoint(
        run.checkpoints, config.checkpoint, run.settings().checkpoint.keep_best
    )
    record = run.read_record()
    metadata = record.get("metadata")
    step = int(source.name.rpartition("-")[2])
    return ExportedRun(
        config,
        source,
        policy_folder.read_config(record["policy"]),
        record["normalisation"],
        metadata or {},
        with_provenance(metadata, run.root, step),
    )


def policy_weights(checkpoint: Path, dtype: str) -> "dict[str, Tensor]":
    """Read the policy's state dict from a checkpoint: the moving average where the run keeps one,
    else the weights.

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
    for name, tensor in whole.items():
        if tensor.dtype == torch.bfloat16:  # frozen (`lora.base`)
            whole[name] = tensor.float()
    weights = merge_adapters(whole, scale)
    if dtype == "bf16":
        for name, tensor in weights.items():
            if tensor.is_floating_point():
                weights[name] = tensor.to(torch.bfloat16)
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
        ConfigError: there is none, it is damaged or changes meanwhile, or it is another network
            than `network`; names each setting that differs.
    """
    from understudy.policies import policy_folder
    from understudy.policies.settings import network_differences

    try:
        config, normalization, weights, _ = policy_folder.load(policy_folder.of_run(Path(path)))
    except (OSError, ValueError) as error:
        raise ConfigError(f"init_from: {error}") from error
    if differences := network_differences(config, network):
        lines = "\n".join(f"  {line}" for line in differences)
        raise ConfigError(
            f"init_from: {path} holds another network; set policy.*, data.* and mode as there, or "
            f"name another\n{lines}"
        )
    try:
        digest = weights.digest()
        weights.check_values()
        return InitialPolicy(normalization, weights, digest)
    except (OSError, ValueError) as error:
        raise ConfigError(f"init_from: {error}") from error


def find_checkpoint(checkpoints: Path, step: int | str, metric: str) -> Path:
    """Return the path of a checkpoint by its step, "latest", or "best": the lowest `metric`
    ("none": loss).

    Raises:
        ConfigError: there is none.
    """
    from understudy.train.checkpoint import checkpoint

    steps = checkpoint.list_steps(checkpoints)
    best = checkpoint.list_best(checkpoints)
    by = metric if metric != "none" else "loss"
    path: Path | None = None
    if isinstance(step, int):
        kind = "step" if step in steps else "best"
        path = checkpoints / f"{kind}-{step:08d}" if step in (*steps, *best) else None
    elif step == "latest":
        path = checkpoint.find_latest(checkpoints)
    else:
        path = checkpoint.find_best(checkpoints, by)
    if path is None:
        listed = ", ".join(map(str, sorted({*steps, *best}))) or "none yet"
        raise ConfigError(f"checkpoint: {step} is not in {checkpoints}; there are: {listed}")
    return path
