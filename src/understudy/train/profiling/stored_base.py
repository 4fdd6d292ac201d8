"""Dtype of the frozen base of a run that a plan or a profile does not load."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from understudy.config.train import TrainConfig
from understudy.optional_packages import MissingExtraError
from understudy.policies.weight_files import WeightFiles
from understudy.train.state import build_on_meta

if TYPE_CHECKING:
    from understudy.train.data.run_data import RunData

logger = logging.getLogger(__name__)


def with_known_base(config: TrainConfig, data: "RunData", normalization: Mapping[str, Any]) -> TrainConfig:
    """Replace the setting `lora.base: stored` by the dtype of most weights that the run starts from.

    Only names, shapes and dtypes of the file are read, as the policy reads them. Without a file, or where it cannot be
    read, which is logged, the dtype is float32.

    Args:
        config: settings of the run.
        data: its sources.
        normalization: of the policy.
    """
    if not config.lora.rank or config.lora.base != "stored":
        return config
    sizes: dict[torch.dtype, int] = {}
    try:
        for size, dtype in _stored(config, data, normalization):
            sizes[dtype] = sizes.get(dtype, 0) + size
    except (OSError, ValueError, MissingExtraError) as error:
        logger.warning("lora.base: stored: taken as float32, since the weights cannot be read: %s", error)
    narrow = sizes.get(torch.bfloat16, 0) > sum(sizes.values()) / 2
    return replace(config, lora=replace(config.lora, base="bfloat16" if narrow else "float32"))


def _stored(config: TrainConfig, data: "RunData", normalization: Mapping[str, Any]) -> list[tuple[int, torch.dtype]]:
    """Number of weights and dtype of each stored tensor; empty without a file."""
    if config.init_from:
        files = WeightFiles(config.init_from, floats_only=False)
        return [(prod(shape), files.dtypes[key]) for key, shape in files.shapes.items()]
    policy = build_on_meta(config, data.policy_config(config), normalization)
    if not policy.fills_weights:
        return []
    dtypes = getattr(policy.first_weights(config.seed), "dtypes", {})
    return [(p.numel(), dtypes[name]) for name, p in policy.named_parameters() if name in dtypes]
