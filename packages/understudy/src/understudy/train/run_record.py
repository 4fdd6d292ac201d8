"""Decisions that hold for a whole run (order.json), and the current order on resume.

The order is fixed when the run starts. Later only the shares of the sources may change, and
episodes may be added, from a position on. Each change adds an entry to the schedule of the order,
which later checkpoints contain. A checkpoint and order.json together therefore define every sample
up to that checkpoint.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from understudy.config.train import TrainConfig
from understudy.distributed.mesh import Mesh
from understudy.policies.policy_folder import CONTRACT, digests
from understudy.policies.weight_files import TensorReader
from understudy.train.checkpoint.export import read_initial_policy
from understudy.train.data.input_contract import make_contract, named_heads
from understudy.train.data.run_data import RunData, dataset_fingerprint, file_digests, make_order
from understudy.train.data.run_normalization import (
    HeadStatistics,
    choose_normalization,
    confront_policy,
)
from understudy.train.data.updates import current_spec
from understudy.train.data.versions_read import versions_read
from understudy_base import ConfigError, Record
from understudy_data import Order, RemoteOptions
from understudy_kit import plain


def new_run_record(config: TrainConfig, data: RunData, mesh: Mesh) -> dict[str, Any]:
    """Make the content of order.json, without its version.

    Raises:
        ConfigError: there is no such initial policy, or one batch does not fit the memory.
        DatasetError: values cannot be normalized.
    """
    network = data.policy_config(config)
    initial = read_initial_policy(config.init_from, network) if config.init_from else None
    cache = Path(RemoteOptions(cache=config.data.cache).folder)
    statistics: HeadStatistics = {}
    computed = choose_normalization(config, data, cache, absolute=statistics)
    normalization = computed
    initial_digest = None
    if initial is not None:
        _check_same_meaning(config.init_from, initial.normalization, computed)
        normalization = confront_policy(config, data, initial.normalization)
        initial_digest = initial.digest
    order = make_order(config, data, mesh)
    return {
        "order": json.loads(order.to_json()),
        "dataset": dataset_fingerprint(data),
        "files": file_digests(data, cache),
        "normalisation": normalization,
        "policy": asdict(network),
        "metadata": named_heads(
            data.metadata() | {CONTRACT: make_contract(config.samples, data, cache, statistics)},
            data.heads,
            normalization,
        ),
        "policy_files": digests(network),
        "init": initial_digest,
        "sources": data.entries(),
        "versions": versions_read(data),
        "settings": plain(config),
    }


def _check_same_meaning(path: str, theirs: Record, ours: Record) -> None:
    """Raise ConfigError if the numbers of an exported policy have another meaning than those of
    this run's data.
    """
    heads = list(theirs.get("heads", [""]))
    our_heads = list(ours["heads"])
    # A policy of one robot may continue on a dataset of another name, but not as another known
    # robot.
    if heads != our_heads and (
        len(heads) > 1 or len(our_heads) > 1 or all("::" in name for name in (*heads, *our_heads))
    ):
        raise ConfigError(
            f"init_from: {path} has the norm heads {', '.join(heads)}, the data has "
            f"{', '.join(our_heads)}: set robot_type and control_mode as there, or train a new "
            "policy"
        )
    for key, now in ours["dims"].items():
        if (learned_dims := theirs.get("dims", {}).get(key, now)) != now:
            raise ConfigError(
                f"init_from: {path} has heads with {learned_dims} dimensions of {key!r}, the data "
                f"{now}"
            )
    no_deltas = [[False] * len(row) for row in ours["delta"]]
    learned = list(map(_numbers_of_true, theirs.get("delta", no_deltas)))
    configured = list(map(_numbers_of_true, ours["delta"]))
    if learned != configured:
        raise ConfigError(
            f"init_from: {path} learned the dimensions {learned} as differences, delta_action_dims "
            f"are {configured}"
        )


def _numbers_of_true(flags: Sequence[bool]) -> list[int]:
    return [number for number, flag in enumerate(flags) if flag]


def current_order(
    record: Record,
    saved: Record | None,
    then: TrainConfig,
    config: TrainConfig,
    data: RunData,
    where: object,
) -> Order:
    """Return the order of the checkpoint, from its position on with new weights and with the update
    of `data`, if any.

    Args:
        record: order.json.
        saved: state of the latest checkpoint; None if there is none.
        then: settings of that checkpoint, or of the start.
        config: settings to resume with.
        data: the data of the run.
        where: path of order.json, for messages.

    Raises:
        ConfigError: the order cannot be read, or the sources do not have the frames that it was
            made for.
    """
    try:
        spec = current_spec(record, saved or {})
        names = [source["name"] for source in spec["sources"]]
        order = Order.from_json(spec, data.training[: len(names)]).with_batch_size(
            config.batch_size
        )
        past_weights = [source.weight for source in then.data.sources]
        present_weights = [source.weight for source in config.data.sources]
        added = data.training[len(names) :]
        if saved is not None and (past_weights != present_weights or added):
            weights = dict(zip((*names, *data.names[len(names) :]), data.weights))
            in_flight = config.data.frames_in_flight
            order = order.with_weights(
                saved["position"], weights, added, in_flight, config.data.shuffle
            )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{where}: {error}") from error
    return order


def load_initial_weights(config: TrainConfig, data: RunData, record: Record) -> TensorReader | None:
    """Load the weights of `init_from`, if set. Raises ConfigError if that policy changed since the
    run started.
    """
    if not config.init_from:
        return None
    initial = read_initial_policy(config.init_from, data.policy_config(config))
    if initial.digest != record["init"]:
        raise ConfigError(f"init_from: {config.init_from} changed since the run started from it")
    return initial.weights
