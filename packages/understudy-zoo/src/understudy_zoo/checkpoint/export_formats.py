"""Exports in the formats of other tools, and as graphs: the entry points `understudy.formats` of
`export`.
"""

from dataclasses import replace
from typing import Any

from understudy import ExportConfig, RobotPolicy, policy_type
from understudy_base import ConfigError, Record, create_folder, require
from understudy_client import CameraFacts, Contract, write_contract
from understudy_data import Checksums
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
    run = config.open_run()
    with config.path_errors():
        folder_formats.check_absent(run.target)
    folder = folder_formats.describe_folder(
        config.format, run.network, run.normalization, run.metadata, config.head, config.dtype
    )
    weights = run.weights()
    folder_formats.save_folder(run.target, folder, weights)
    run.print_written(weights)
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
    run = config.open_run()
    target = run.target
    with config.path_errors():
        folder_formats.check_absent(target)
    network = run.network
    files.check_type(network.type)
    weights = run.weights()
    policy = policy_type(network.type).build(replace(network, compute="float32"), run.normalization)
    policy.load_weights(weights)
    try:
        robot = RobotPolicy(policy.eval(), run.facts, config.head or None, reaction="off")
    except ValueError as error:
        raise ConfigError(f"head: {error}") from error
    head = policy.norm_heads[robot.head]
    graph = files.make_graph(
        robot, _camera_sizes(run.facts, head, network, robot.metadata), config.steps
    )
    with create_folder(target) as fresh:
        function = files.write_graph(graph, fresh / files.FILES[kind], kind)
        parity = files.compare(robot, graph, function, config.steps)
        (fresh / files.DESCRIPTION).write_text(
            files.describe_graph(graph, kind, config.steps, parity, robot.metadata),
            encoding="utf-8",
        )
        if run.contract:
            write_contract(fresh / Contract.FILE, run.contract)
        Checksums(fresh).write()
    differences = ", ".join(
        f"{value:.2g} at batch size {rows}" for rows, value in parity["largest_difference"].items()
    )
    size = sum(weight.numel() for weight in weights.values())
    print(f"{target}: {size:,} weights of {run.checkpoint.name} as {files.FILES[kind]}")
    print(f"  {run.describe()}")
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
