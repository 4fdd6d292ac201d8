"""`understudy export`: a policy out of a run's checkpoint, as a robot loads it; and a run's first weights out of one.

A folder with model.safetensors, config.json and normalisation.json (`policies/pretrained.py`), whole, whatever mesh and
storage the run had; neither dataset nor processes are needed. bf16 halves the file and rounds each weight to the
nearest; the normalisation stays float32. It is no checkpoint: moments, position and the other 16 bits stay in the run.

Back: `train --init-from FOLDER` begins a new run with these weights and this normalisation, so that its policy at step
0 answers as the exported one does.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from understudy.config.declare import Ge, Positional

if TYPE_CHECKING:
    from torch import Tensor

    from understudy.policies.flow.model import FlowPolicyConfig


@dataclass(frozen=True)
class ExportConfig:
    """A policy from a run, in one folder that needs nothing else."""

    run: Positional[str] = ""
    """Run directory."""
    out: str = ""
    """Folder to write. An earlier export there is replaced, anything else is refused. None named: RUN/export."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """What weights are stored in."""
    checkpoint: Annotated[int, Ge(0)] | Literal["latest", "best"] = "latest"
    """Step of the checkpoint, or which one; `best` has the lowest held-out loss of those that are kept, or what
    `keep_best` says."""

    def problems(self) -> list[str]:
        return [] if self.run else ["run: required, the directory of a run"]


def export(config: ExportConfig) -> None:
    """Write the folder and say where it is.

    Raises:
        ConfigError: no run, no such checkpoint, something else where the folder would go.
        CheckpointError: it cannot be read. OSError: the folder not written.
    """
    from understudy.errors import ConfigError
    from understudy.policies import pretrained
    from understudy.train.checkpoint.run_dir import RunDir

    run = RunDir(Path(config.run))
    metric = run.settings().keep_best
    source, target = (
        find_checkpoint(run.checkpoints, config.checkpoint, metric),
        Path(config.out or run.root / "export"),
    )
    frozen = run.frozen()
    network = _policy(frozen["policy"])
    try:
        pretrained.replaceable(target, type(network).__name__)
    except FileExistsError as error:
        raise ConfigError(f"out: {error}") from error
    weights = policy_weights(source, config.dtype)
    pretrained.save(target, network, frozen["normalisation"], weights)
    size = sum(weight.numel() for weight in weights.values())
    print(f"{target}: {size:,} weights in {config.dtype} of {source.name}")


def policy_weights(checkpoint: Path, dtype: str = "fp32") -> "dict[str, Tensor]":
    """The policy's state dict out of a checkpoint: the average where the run keeps one, else the weights."""
    import torch

    from understudy.train.checkpoint.checkpoint import read_tensors

    weights: dict[str, Tensor] = {}
    for prefix in ("average/", "weights/"):
        weights = weights or {name.removeprefix(prefix): t for name, t in read_tensors(checkpoint, prefix).items()}
    if dtype == "bf16":
        weights = {name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in weights.items()}
    return weights


@dataclass(frozen=True)
class InitialPolicy:
    """What a run begins with that begins from an exported policy."""

    normalisation: dict[str, Any]
    weights: "dict[str, Tensor]"
    """float32."""
    digest: str
    """Of the file of weights."""


def read_initial_policy(path: str | Path, wanted: "FlowPolicyConfig") -> InitialPolicy:
    """An exported policy to begin with.

    Raises:
        ConfigError: there is none, or it is another network than `wanted`; names each setting that differs.
    """
    from understudy.errors import ConfigError
    from understudy.policies import pretrained
    from understudy.policies.flow.model import FlowPolicyConfig

    try:
        config, normalisation, weights = pretrained.load(path, FlowPolicyConfig)
    except (OSError, ValueError) as error:
        raise ConfigError(f"init_from: {error}") from error
    theirs, ours = asdict(config), asdict(wanted)
    odd = [f"{name}: {theirs[name]} there, {ours[name]} here" for name in ours if theirs[name] != ours[name]]
    if odd := [line for line in odd if not line.startswith("compute:")]:  # arithmetic is this run's own choice
        lines = "\n".join(f"  {line}" for line in odd)
        raise ConfigError(
            f"init_from: {path} holds another network; set policy.*, data.* and mode as there, or name another\n{lines}"
        )
    digest = hashlib.sha256((Path(path) / pretrained.WEIGHTS).read_bytes()).hexdigest()
    return InitialPolicy(normalisation, {name: tensor.float() for name, tensor in weights.items()}, digest)


def find_checkpoint(checkpoints: Path, which: int | str, metric: str) -> Path:
    """A checkpoint by its step, "latest" or "best": by `metric` of its validation, by its loss where that is "none".

    Raises ConfigError when there is none."""
    from understudy.errors import ConfigError
    from understudy.train.checkpoint import checkpoint

    there, by = checkpoint.steps(checkpoints), metric if metric != "none" else "loss"
    if isinstance(which, int):
        found = checkpoints / f"step-{which:08d}" if which in there else None
    else:
        found = checkpoint.latest(checkpoints) if which == "latest" else checkpoint.best(checkpoints, by)
    if found is None:
        known = ", ".join(map(str, there)) or "none yet"
        raise ConfigError(f"checkpoint: there is no {which} one in {checkpoints}; there are: {known}")
    return found


def _policy(stored: Mapping[str, Any]) -> "FlowPolicyConfig":
    from understudy.policies.flow.model import FlowPolicyConfig

    known = {field.name for field in fields(FlowPolicyConfig)}
    # JSON has lists where the frozen config has tuples.
    network: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in stored.items() if n in known}
    return FlowPolicyConfig(**network)
