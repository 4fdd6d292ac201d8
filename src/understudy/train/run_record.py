"""What the beginning of a run decides for good (order.json), and the order as it is when the run goes on.

The order is frozen with the run; only the shares of the sources may change on the way, from a position on. Each such
change is one more entry of its schedule, which the checkpoints behind it carry: what leads to a checkpoint is always
known from that checkpoint and order.json.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from understudy.config.schema import plain
from understudy.config.train import TrainConfig
from understudy.distributed.mesh import Mesh
from understudy.errors import ConfigError
from understudy.order import Order
from understudy.storage.options import RemoteOptions
from understudy.train.checkpoint.export import read_initial_policy
from understudy.train.data.data import RunData, file_digests, fingerprint, normalisation
from understudy.train.inner_loop import new_order


def decided(config: TrainConfig, data: RunData, mesh: Mesh) -> dict[str, Any]:
    """What order.json holds, but its version.

    Raises:
        ConfigError: no such policy to begin with, memory for less than a batch. DatasetError: values that cannot be
            normalised.
    """
    network = data.policy_config(config)
    first = read_initial_policy(config.init_from, network) if config.init_from else None
    cache = Path(RemoteOptions(cache=config.data.cache).folder)
    computed = normalisation(data, config.data.normalise, cache)
    if first is not None:
        _check_units(config.init_from, first.normalisation, computed)
    order, said = new_order(config, data, mesh)
    for line in said:
        print(f"order: {line}", file=sys.stderr)
    return {
        "order": json.loads(order.to_json()),
        "dataset": fingerprint(data),
        "files": file_digests(data, cache),
        "normalisation": first.normalisation if first else computed,
        "policy": asdict(network),
        "metadata": data.metadata(),
        "init": first.digest if first else None,
        "sources": [
            {
                "name": name,
                "head": data.heads[head],
                "cameras": [camera for camera in data.cameras if camera not in part.missing_cameras],
                "skipped": list(skipped),
            }
            for name, head, part, skipped in zip(
                data.names, data.head_of_source.tolist(), data.training, data.skipped, strict=True
            )
        ],
        "settings": plain(config),
    }


def sources_of(frozen: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What order.json says of each source, by name."""
    return {source["name"]: source for source in frozen.get("sources", ())}


def _check_units(path: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise ConfigError where an exported policy's numbers mean something else than those of this run's data."""
    heads, own = list(theirs.get("heads", [""])), list(ours["heads"])
    # A policy of one robot may go on with a dataset of another name, but not as another robot that is known.
    if heads != own and (len(heads) > 1 or len(own) > 1 or all("::" in name for name in (*heads, *own))):
        raise ConfigError(
            f"init_from: {path} has the norm heads {', '.join(heads)}, the data has {', '.join(own)}: "
            "set robot_type and control_mode as there, or train a new policy"
        )
    for key, now in ours["dims"].items():
        if (before := theirs.get("dims", {}).get(key, now)) != now:
            raise ConfigError(f"init_from: {path} has heads with {before} dimensions of {key!r}, the data {now}")
    plain_delta = [[False] * len(row) for row in ours["delta"]]
    learnt, asked = (
        [[i for i, is_delta in enumerate(row) if is_delta] for row in rows]
        for rows in (theirs.get("delta", plain_delta), ours["delta"])
    )
    if learnt != asked:
        raise ConfigError(f"init_from: {path} learnt the dimensions {learnt} as differences, `delta` says {asked}")


def order_now(
    frozen: Mapping[str, Any],
    state: Mapping[str, Any] | None,
    then: TrainConfig,
    config: TrainConfig,
    data: RunData,
    where: object,
) -> Order:
    """The order to go on with: that of the checkpoint, with other shares from its position on where weights changed.

    Args:
        frozen: order.json. state: of the latest checkpoint; None: there is none.
        then: settings of that checkpoint, or of the beginning.
        where: order.json, for messages.
    Raises:
        ConfigError: the order cannot be read, or the sources do not hold the frames that it was made for.
    """
    spec = frozen["order"]
    if state is not None and state.get("schedule"):
        spec = {**spec, "schedule": state["schedule"]}
    try:
        order = Order.from_json(spec, data.training).with_batch_size(config.batch)
        if state is not None and weights_of(then) != weights_of(config):
            order = order.with_weights(state["position"], dict(zip(data.names, data.weights)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{where}: {error}") from error
    return order


def weights_of(config: TrainConfig) -> list[float | None]:
    """The weights as they were said."""
    return [source.weight for source in config.data.sources]


def schedule_of(order: Order) -> list[dict[str, Any]]:
    """What a checkpoint says of the order: the shares of the sources, by position."""
    return [asdict(entry) for entry in order.spec.schedule]


def first_weights(config: TrainConfig, data: RunData, frozen: Mapping[str, Any]) -> Mapping[str, Tensor] | None:
    """Those of the exported policy that the run begins from, if it does. Raises ConfigError when it is another now."""
    if not config.init_from:
        return None
    first = read_initial_policy(config.init_from, data.policy_config(config))
    if first.digest != frozen["init"]:
        raise ConfigError(f"init_from: {config.init_from} is not the policy any more that the run began with")
    return first.weights
