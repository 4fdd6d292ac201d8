"""Exports in the formats of other tools, and as graphs: the entry points `understudy.formats` of
`export`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from understudy.policies import policy_folder
from understudy.policies.inference import RobotPolicy
from understudy.policies.registry import policy_type
from understudy.train.checkpoint.export import (
    ExportConfig,
    describe_source,
    path_errors,
    policy_weights,
    print_written,
    read_run,
)
from understudy_base import ConfigError, Record, create_folder, require
from understudy_client import CameraFacts, Contract, write_contract
from understudy_data import write_checksums
from understudy_zoo import folder_formats
from understudy_zoo import graph as files


def export_folder(config: ExportConfig) -> None:
    """Write the folder of another tool, print its path and the facts that it does not hold.

    Args:
        config: settings of the command, with a tool as `format`.

    Raises:
        ConfigError: no run, no such checkpoint, something in place of the folder, or a policy that
            the format cannot hold.
        CheckpointError: the checkpoint cannot be read. OSError: the folder cannot be written.
    """
    source, record, _ = read_run(config)
    target = Path(config.output_dir or Path(config.run) / f"export-{config.format}")
    network = policy_folder.read_config(record["policy"])
    normalization = record["normalisation"]
    with path_errors():
        folder_formats.check_absent(target)
    folder = folder_formats.describe_folder(
        config.format,
        network,
        normalization,
        record.get("metadata") or {},
        config.head,
        config.dtype,
    )
    weights = policy_weights(source, config.dtype)
    folder_formats.save_folder(target, folder, weights)
    print_written(config, source, target, weights)
    for note in folder.notes:
        print(f"  not in the folder: {note}")


def export_graph(config: ExportConfig) -> None:
    """Write the graph, compare it with the policy, and print the differences.

    Args:
        config: settings of the command, with a graph as `format`.

    Raises:
        ConfigError: no run, no such checkpoint, something in place of the folder, no graph of this
            type, `head` names none of several, or the graph differs from the policy.
        MissingExtraError: the extra `onnx` is not installed.
        CheckpointError: the checkpoint cannot be read. OSError: the folder cannot be written.
    """
    kind: Any = config.format
    if kind == "onnx":
        require("onnx")
    source, record, facts = read_run(config)
    target = Path(config.output_dir or Path(config.run) / f"export-{kind}")
    with path_errors():
        folder_formats.check_absent(target)
    network = policy_folder.read_config(record["policy"])
    files.check_type(network.type)
    weights = policy_weights(source, config.dtype)
    # The run's own normalization: settings only say where a new run takes one from.
    policy = policy_type(network.type).build(
        replace(network, compute="float32"), record["normalisation"]
    )
    policy.load_weights(weights)
    try:
        robot = RobotPolicy(policy.eval(), facts, config.head or None, reaction="off")
    except ValueError as error:
        raise ConfigError(f"head: {error}") from error
    head = policy.norm_heads[robot.head]
    graph = files.make_graph(
        robot, _camera_sizes(facts, head, network, robot.metadata), config.steps
    )
    with create_folder(target) as fresh:
        function = files.write_graph(graph, fresh / files.FILES[kind], kind)
        parity = files.compare(robot, graph, function, config.steps)
        (fresh / files.DESCRIPTION).write_text(
            files.describe_graph(graph, kind, config.steps, parity, robot.metadata),
            encoding="utf-8",
        )
        if contract := facts.get(policy_folder.CONTRACT):
            write_contract(fresh / Contract.FILE, contract)
        write_checksums(fresh)
    differences = ", ".join(
        f"{value:.2g} at batch size {rows}" for rows, value in parity["largest_difference"].items()
    )
    size = sum(weight.numel() for weight in weights.values())
    print(f"{target}: {size:,} weights of {source.name} as {files.FILES[kind]}")
    print(f"  {describe_source(config, source)}")
    print(
        f"  largest difference from the policy: {differences}; largest action "
        f"{parity['largest_action']:.3g}"
    )


def _camera_sizes(
    facts: Record, head: str, network: Any, metadata: Record
) -> dict[str, tuple[int, int]]:
    """Height and width of the images of a robot: those of its recordings, else those of the
    network.
    """
    robots = facts.get("contract", {}).get("robots", {})
    stored = robots.get(head, {}).get("cameras", {})
    recorded = {key: CameraFacts.from_json(camera).size for key, camera in stored.items()}
    cameras = metadata.get("cameras", network.cameras)
    sizes: dict[str, tuple[int, int]] = {}
    for key in network.cameras:
        if key in cameras:
            size = recorded.get(key, (0, 0))
            sizes[key] = size if all(size) else network.image_size
    return sizes
