"""Paths of a run's data, valid in any working directory, and after the run moved together with its
data.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from understudy.config.data import DataConfig
from understudy.config.train import TrainConfig
from understudy.policies import policy_folder
from understudy.policies.capabilities.files import files_of
from understudy.policies.capabilities.start import StartsFromWeights
from understudy_base import ConfigError, absolute_path, split_view
from understudy_data import HubRepo
from understudy_kit import SourceConfig

Source = TypeVar("Source", DataConfig, SourceConfig)

PATHS = ("root", "keep_ranges", "frame_weights")
"""Settings of a source that name a file or folder, and that a resumed run reads again."""


def moved_fix(config: TrainConfig) -> str:
    """Return the remedy for datasets of a run that are not at their places, which are not URLs; "":
    all are there.
    """
    roots = [split_view(source.root)[0] for source in config.data.mixed()]
    gone = [
        number
        for number, root in enumerate(roots)
        if "://" not in root and not os.path.exists(root)
    ]
    if not gone:
        return ""
    file = f"{config.output_dir}/config.yaml"
    if config.data.sources:
        places = ", ".join(f"data.sources.{number}.root ({roots[number]})" for number in gone)
        return f"if the datasets have moved, name their folders in {file}: {places}"
    flag = "--data.root FOLDER of `resume` and `validate`"
    return f"if the dataset has moved, name its folder: {flag}, or data.root in {file}"


def resolve_paths(config: TrainConfig) -> TrainConfig:
    """Return settings with absolute paths of the data; URLs, hub ids and keys of features stay."""

    def place(path: str) -> str:
        return absolute_path(path) if os.path.exists(os.path.expanduser(path)) else path

    return _with_paths(config, place)


def find_moved(config: TrainConfig, root: Path, output_dir: str) -> TrainConfig:
    """Return stored settings with the present paths of the data.

    For a path that is gone, the same place relative to the run is tried: both may have moved
    together.

    Args:
        config: stored settings of the run.
        root: present folder of the run.
        output_dir: its folder when it was started, as config.yaml holds it.
    """
    present = os.path.abspath(root)
    original = os.path.normpath(output_dir)

    def place(path: str) -> str:
        if os.path.isabs(path) and not os.path.exists(path):
            moved = os.path.normpath(os.path.join(present, os.path.relpath(path, original)))
            return moved if os.path.exists(moved) else path
        return path

    return _with_paths(config, place)


def with_root(config: TrainConfig, root: str) -> TrainConfig:
    """Return settings whose only dataset is at `root`, with its view; empty: the settings
    themselves.

    Raises:
        ConfigError: the settings have several datasets.
    """
    if not root:
        return config
    if config.data.sources:
        problem = f"data.root: {root}: the run has {len(config.data.sources)} sources"
        raise ConfigError(f"{problem}; set data.sources.N.root in {config.output_dir}/config.yaml")
    address, view = split_view(root)
    root = address + (view or split_view(config.data.root)[1])
    return resolve_paths(replace(config, data=replace(config.data, root=root)))


def _with_paths(config: TrainConfig, place: Callable[[str], str]) -> TrainConfig:
    """Return settings in which `place` has replaced each path."""

    def moved(source: Source) -> Source:
        present: dict[str, Any] = {}
        for name in PATHS:
            path = getattr(source, name)
            if path and "://" not in path:
                address, view = split_view(path)
                present[name] = place(address) + view
        return replace(source, **present)

    return replace(
        config, data=replace(moved(config.data), sources=tuple(map(moved, config.data.sources)))
    )


def with_local_files(config: TrainConfig) -> TrainConfig:
    """Fetch the files that the settings of the policy name by hub ids, and return the settings with
    their paths.

    Raises:
        ConfigError: a repository or a file of it cannot be fetched.
        MissingExtraError: the extra `hub` is not installed.
    """
    policy = config.policy
    paths = dict[str, Any]()
    files = files_of(policy)
    start_files = policy.START_FILES if isinstance(policy, StartsFromWeights) else {}
    for field, patterns in {**files, **start_files}.items():
        if repository := HubRepo.of_model(str(getattr(policy, field))):
            required = field in files
            paths[field] = str(repository.fetch_files(patterns, f"policy.{field}", required))
    if HubRepo.of_model(config.init_from):
        config = replace(config, init_from=str(policy_folder.find_policy(config.init_from)))
    return replace(config, policy=replace(policy, **paths)) if paths else config
