"""Policies as functions of tensors, and their files for `torch.export` and ONNX, compared with the
policy.

A type of policy that can be a graph has an entry point of its name in the group `GRAPHS`.
"""

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from understudy import RobotPolicy
from understudy_base import PROMPT_METADATA, TASK, ConfigError, Record, find_entry_points, require


@dataclass(frozen=True)
class GraphInput:
    """One input of a graph.

    Attributes:
        name: key of the observation; `task` are the tokens of the instruction, `noise` is standard
            normal.
        dtype: "uint8", "float32" or "int64".
        shape: without the batch dimension, which is the first and of any size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


class PolicyGraph(nn.Module):
    """A policy of one robot as a function of tensors, in evaluation mode.

    Attributes:
        inputs: arguments of `forward`, in its sequence.
    """

    inputs: tuple[GraphInput, ...]

    @abstractmethod
    def prepare(self, task: str) -> Tensor:
        """Return the tokens of an instruction, int64 [1, L]."""


GRAPHS = "understudy.graphs"
"""Group of entry points, named as the type: functions (policy, number of the norm head, sizes of
cameras, steps) -> `PolicyGraph`.
"""
Format = Literal["torch_export", "onnx"]
FILES: Mapping[Format, str] = {"torch_export": "policy.pt2", "onnx": "policy.onnx"}
"""File of each format."""
DESCRIPTION = "graph.json"
"""File with inputs, outputs and the parity report."""
TOLERANCE = 1e-4
"""Largest difference of an action, relative to the largest action, that counts as equal."""
BATCH_SIZES = (1, 4)
"""Batch sizes of the parity report."""
_OUTPUT = "action"


def check_type(kind: str) -> None:
    """Raise ConfigError unless a policy of this type can be a graph."""
    if kind not in find_entry_points(GRAPHS):
        raise ConfigError(f"format: a policy of type {kind} has no graph; use --format understudy")


def make_graph(
    robot: RobotPolicy, cameras: Mapping[str, tuple[int, int]], steps: int
) -> PolicyGraph:
    """Make the graph of a robot's policy.

    Args:
        robot: the policy, on the CPU.
        cameras: height and width of the robot's images by key.
        steps: integration steps.

    Raises:
        ConfigError: a policy of this type has no graph.
    """
    check_type(robot.config.type)
    make: Callable[..., PolicyGraph] = find_entry_points(GRAPHS)[robot.config.type].load()
    return make(robot.policy, robot.head, dict(cameras), steps).eval()


def write_graph(
    graph: PolicyGraph, path: Path, kind: Format
) -> Callable[[Sequence[Tensor]], Tensor]:
    """Write a graph to a file.

    Args:
        graph: the graph.
        path: file to write.
        kind: its format.

    Returns:
        The function in the file, which has been read back: the inputs [B, ...] -> actions [B, T,
            A].

    Raises:
        MissingExtraError: the format is onnx, and the extra `onnx` is not installed.
    """
    example = example_inputs(graph, 2, seed=0)
    batch = torch.export.Dim("batch", min=1, max=4096)
    shapes = ({0: batch},) * len(example)
    if kind == "torch_export":
        with torch.no_grad():
            program = torch.export.export(
                graph, tuple(example), dynamic_shapes=(shapes,), strict=False
            )
        torch.export.save(program, path)
        module = torch.export.load(path).module()
        return lambda inputs: module(*inputs)
    require("onnx")
    import onnxruntime

    names = [tensor_input.name for tensor_input in graph.inputs]
    with torch.no_grad():
        torch.onnx.export(
            graph,
            tuple(example),
            path,
            input_names=names,
            output_names=[_OUTPUT],
            dynamic_shapes=(shapes,),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    held = {tensor_input.name for tensor_input in session.get_inputs()}

    def run(inputs: Sequence[Tensor]) -> Tensor:
        values = {
            name: value.numpy() for name, value in zip(names, inputs, strict=True) if name in held
        }
        return torch.from_numpy(session.run([_OUTPUT], values)[0])

    return run


def example_inputs(graph: PolicyGraph, rows: int, seed: int) -> list[Tensor]:
    """Draw random inputs of a graph, [rows, ...] each: images, standard normal numbers, differing
    instructions.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for graph_input in graph.inputs:
        shape = (rows, *graph_input.shape)
        if graph_input.name == TASK:
            tensors.append(
                torch.cat([graph.prepare(f"move block {seed} {row}") for row in range(rows)])
            )
        elif graph_input.dtype == "uint8":
            tensors.append(torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator))
        else:
            tensors.append(torch.randn(shape, generator=generator))
    return tensors


def compare(
    robot: RobotPolicy, graph: PolicyGraph, run: Callable[[Sequence[Tensor]], Tensor], steps: int
) -> dict[str, Any]:
    """Compare a written graph with `RobotPolicy.act` on random observations.

    Args:
        robot: the policy.
        graph: its graph.
        run: the function of the file (`write_graph`).
        steps: integration steps.

    Returns:
        Largest absolute difference of an action by batch size, and the largest action, in the
        robot's units.

    Raises:
        ConfigError: a difference exceeds `TOLERANCE` of the largest action: the graph is not this
            policy.
    """
    differences = {}
    largest = 0.0
    for rows in BATCH_SIZES:
        inputs = dict(
            zip(
                [graph_input.name for graph_input in graph.inputs],
                example_inputs(graph, rows, seed=rows),
                strict=True,
            )
        )
        generator = torch.Generator().manual_seed(rows)
        noise = robot.policy.generate_draws("act", rows, generator)["noise"]
        inputs["noise"] = noise
        texts = [f"move block {rows} {row}" for row in range(rows)]
        observation = {
            key: value for key, value in inputs.items() if key not in (TASK, "noise")
        } | {TASK: texts}
        expected = robot.act(
            observation, steps=steps, generator=torch.Generator().manual_seed(rows)
        )
        with torch.no_grad():
            actions = run(list(inputs.values())).numpy()
        if actions.shape != expected.shape or not np.isfinite(actions).all():
            raise ConfigError(
                f"format: the graph gives {actions.shape}, the policy {expected.shape}: report this"
            )
        differences[rows] = float(np.abs(actions - expected).max())
        largest = max(largest, float(np.abs(expected).max()))
    if max(differences.values()) > TOLERANCE * largest:
        raise ConfigError(
            f"format: the graph differs from the policy by {max(differences.values()):.3g}, at "
            f"most {TOLERANCE * largest:.3g} is allowed; export with --format understudy, and "
            "report this"
        )
    return {
        "largest_difference": {str(rows): value for rows, value in differences.items()},
        "largest_action": largest,
    }


def describe_graph(
    graph: PolicyGraph, kind: Format, steps: int, parity: Record, metadata: Record
) -> str:
    """Describe a written graph in JSON: its inputs, output and parity report.

    Args:
        graph: the graph.
        kind: its format.
        steps: integration steps.
        parity: result of `compare`.
        metadata: metadata of the robot; its `prompt_metadata` belongs to the instruction.
    """
    content = {
        "format": kind,
        "file": FILES[kind],
        "inputs": [
            asdict(graph_input) | {"shape": ["batch", *graph_input.shape]}
            for graph_input in graph.inputs
        ],
        "output": {"name": _OUTPUT, "dtype": "float32"},
        "steps": steps,
        "tokens": "UTF-8 bytes of the instruction, cut to the length, padded as in the row "
        "`padding`",
        "padding": graph.prepare("")[0].tolist(),
        "parity": dict(parity),
    }
    if PROMPT_METADATA in metadata:
        content[PROMPT_METADATA] = metadata[PROMPT_METADATA]
    return json.dumps(content, indent=2) + "\n"
