"""Loader and order of a run, made with a rank's share of the host's memory and cores."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from understudy.batch_keys import HOST_KEYS
from understudy.bytesize import parse_bytes
from understudy.config.train import TrainConfig
from understudy.cores import MOST_LOADER_THREADS, fair_threads
from understudy.distributed.mesh import Mesh
from understudy.errors import ConfigError
from understudy.load.batch_request import Batch
from understudy.load.choose_order import choose_order
from understudy.load.loader import Loader
from understudy.order import Order
from understudy.storage.remote_options import RemoteOptions
from understudy.train.data.run_data import RunData

logger = logging.getLogger(__name__)


def make_loader(
    config: TrainConfig,
    data: RunData,
    order: Order,
    mesh: Mesh,
    position: int,
    preprocess: Callable[[Batch], Batch],
    journal: Path | None = None,
) -> Loader:
    """Make the loader of this rank's share of every batch.

    Args:
        config: the settings.
        data: the data of the run.
        order: the order of the samples.
        mesh: the processes of the run.
        position: first position to load.
        preprocess: called in loader threads with each batch (`TrainState.prepare`).
        journal: file for the substituted samples of this rank.

    Raises:
        ConfigError: on all ranks: one batch does not fit the memory.
    """
    with mesh.together():
        try:
            return Loader(
                data.training,
                order=order,
                image_size=data.size,
                rank=mesh.rank,
                allow_uneven=True,
                position=position,
                preprocess=preprocess,
                on_bad_frame=config.data.on_bad_frame,
                journal=journal,
                pin=mesh.device.type == "cuda",
                colors=config.loader.colors,
                device=mesh.device if config.loader.colors == "yuv" else None,
                host_keys=HOST_KEYS,
                decoded_cache=_decoded_cache(config),
                **_resources(config, mesh),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error


def make_order(config: TrainConfig, data: RunData, mesh: Mesh) -> Order:
    """Choose the order of a new run, and warn of one that costs much or mixes badly.

    Raises:
        ConfigError: one batch does not fit the memory, or the settings do not make an order.
    """
    in_rgb = config.loader.colors == "rgb"
    try:
        choice = choose_order(
            data.training,
            batch_size=config.batch_size,
            seed=config.seed,
            image_size=data.size if in_rgb else None,  # planes are resized on the device
            may_keep=in_rgb,
            decoded_cache=config.loader.decoded_cache,
            **data.order_options(config),
            **_resources(config, mesh) | {"num_threads": MOST_LOADER_THREADS},  # the same order on any machine
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if choice.advice and mesh.rank == 0:
        logger.warning("order: %s", choice.advice)
    return choice.order


def _decoded_cache(config: TrainConfig) -> tuple[str, int] | None:
    """Folder and size of the decoded images on disk."""
    if not config.loader.decoded_cache:
        return None
    return RemoteOptions(cache=config.data.cache).folder, parse_bytes(config.data.cache_size)


def _resources(config: TrainConfig, mesh: Mesh) -> dict[str, Any]:
    """Resources of a rank's loader."""
    return {
        "world_size": mesh.world_size,
        "num_threads": config.loader.num_threads
        if config.loader.num_threads != "auto"
        else fair_threads(mesh.local_world_size),
        "memory": parse_bytes(config.loader.memory) // mesh.local_world_size,
    }
