"""`understudy export --format torch_export` and `onnx`: the policy of a checkpoint as a graph of tensors.

policy.pt2 or policy.onnx   the network with its normalization, for one robot
graph.json                  inputs, output, and the largest difference from the policy (parity report)
contract.json               the inputs of training (`contract/facts.py`), where the run recorded them
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from understudy.errors import ConfigError
from understudy.train.checkpoint.export import ExportConfig, find_checkpoint, policy_weights


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
    from understudy.policies.graph import files
    from understudy.policies.inference import RobotPolicy
    from understudy.policies.registry import policy_type
    from understudy.train.checkpoint.run_dir import RunDir
    from understudy.train.data.input_contract import with_provenance

    kind: Any = config.format
    if kind == "onnx":
        require("onnx")
    run = RunDir(Path(config.run))
    source = find_checkpoint(run.checkpoints, config.checkpoint, run.settings().checkpoint.keep_best)
    target = Path(config.output_dir or run.root / f"export-{kind}")
    try:
        folder_formats.check_absent(target)
    except FileExistsError as error:
        raise ConfigError(f"output_dir: {error}") from error
    record = run.read_record()
    network = policy_folder.read_config(record["policy"])
    files.check_type(network.type)
    weights = policy_weights(source, config.dtype)
    # The run's own normalization: settings only say where a new run takes one from.
    policy = policy_type(network.type).build(replace(network, compute="float32"), record["normalisation"])
    policy.load_weights(weights)
    facts = with_provenance(record.get("metadata"), run.root, int(source.name.rpartition("-")[2]))
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
    print(f"  largest difference from the policy: {differences}; largest action {parity['largest_action']:.3g}")


def _camera_sizes(
    facts: Mapping[str, Any], head: str, network: Any, metadata: Mapping[str, Any]
) -> dict[str, tuple[int, int]]:
    """Height and width of the images of a robot: those of its recordings, else those of the network."""
    robots = facts.get("contract", {}).get("robots", {})
    recorded = {key: tuple(own["shape"][:2]) for key, own in robots.get(head, {}).get("cameras", {}).items()}
    own = metadata.get("cameras", network.cameras)
    sizes = {key: recorded.get(key, (0, 0)) for key in network.cameras if key in own}
    return {key: size if all(size) else network.image_size for key, size in sizes.items()}
