"""Tests of OpenTau on understudy: statistics of actions as differences to the state, norm heads, seeds of a mixture.

The package `opentau` is not needed: the names that the tests import are these.
"""

import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import understudy as us
from shared import accept_our_refusals, explain
from understudy.batch_keys import ACTION, STATE
from understudy.data.format.recorded_stats import aggregate
from understudy.data.stats.norm_heads import Member, compute_statistics, head_name
from understudy.data.stats.running import RunningStatistics
from understudy.errors import DatasetError

accept_our_refusals()


class RunningStats:
    """Their interface over `RunningStatistics`, of rows of the last axis."""

    def __init__(self, bounds: Any = None) -> None:
        self._statistics: RunningStatistics | None = None

    def update(self, batch: np.ndarray) -> None:
        rows = batch.reshape(-1, batch.shape[-1])
        self._statistics = self._statistics or RunningStatistics(rows.shape[1:], keep=1 << 20)
        try:
            self._statistics.add(rows)
        except ValueError as error:
            raise DatasetError(str(error)) from error

    def get_statistics(self) -> dict[str, np.ndarray]:
        if self._statistics is None or self._statistics.rows < 2:
            raise DatasetError("fewer than two rows")
        return self._statistics.result()


def compute_delta_action_stats(
    parquet_paths: Sequence[str],
    state_col: str,
    action_col: str,
    state_index: Sequence[int] | None,
    action_index: Sequence[int] | None,
    delta_map: Mapping[int, int],
    chunk_offsets: np.ndarray,
    strategy: str,
    episodes: Collection[int] | None,
    max_workers: int,
    **caps: Any,
) -> dict[str, dict[str, np.ndarray]]:
    """Record the rows as a dataset, and compute its statistics with the dimensions of `delta_map` as differences."""
    if not np.array_equal(chunk_offsets, np.arange(len(chunk_offsets))) or strategy != "nearest":
        raise DatasetError("windows have whole frames")
    if not Path(parquet_paths[0]).exists():
        raise DatasetError("no file")
    table = pq.read_table(parquet_paths[0])
    state, action = (np.array(table[key].to_pylist(), np.float64) for key in (state_col, action_col))
    state = state if state_index is None else state[:, list(state_index)]
    action = action if action_index is None else action[:, list(action_index)]
    state = state[:, [delta_map.get(dim, dim) for dim in range(state.shape[1])]]
    features = {STATE: {"dtype": "float64", "shape": state.shape[1:]}}
    features[ACTION] = {"dtype": "float64", "shape": action.shape[1:]}
    numbers = np.array(table["episode_index"].to_pylist())
    root = Path(tempfile.mkdtemp(), "set")
    with us.EpisodeWriter(root, fps=10, features=features) as writer:
        for episode in np.unique(numbers):
            for row in np.flatnonzero(numbers == episode):
                writer.add_frame({STATE: state[row], ACTION: action[row]}, task="exam")
            writer.save_episode()
    data = us.EpisodeDataset(root, episodes=None if episodes is None else sorted(episodes))
    member = Member(data, "head", tuple(sorted(delta_map)))
    statistics = compute_statistics([member], len(chunk_offsets))["head"]
    figures = {name: vars(statistics[key]) for name, key in (("actions", ACTION), ("state", STATE))}
    return {name: {**f, "count": np.array([f["count"]])} for name, f in figures.items()}


def compute_norm_key(robot_type: str | None, control_mode: str | None, fallback: str) -> tuple[str, bool]:
    head = head_name(robot_type, control_mode, fallback)
    return head, head == fallback


class DatasetMixtureMetadata:
    """Statistics of the heads of a mixture, pooled by `aggregate` with the frames of each dataset as its count."""

    def __init__(self, cfg: Any, metadatas: Sequence[Any], dataset_weights: Any, dataset_names: Sequence[str]) -> None:
        heads, names = defaultdict(list), defaultdict(list)
        for metadata, name in zip(metadatas, dataset_names):
            head = head_name(metadata.info.get("robot_type"), metadata.info.get("control_mode"), name)
            heads[head].append(metadata)
            names[head].append(name)
        self.norm_keys, self.norm_key_to_dataset_names = sorted(heads), dict(names)
        self.dataset_to_norm_index = {name: self.norm_keys.index(head) for head in names for name in names[head]}
        self.dataset_names, self.per_dataset_stats = dataset_names, [metadata.stats for metadata in metadatas]
        self.per_norm_key_stats = [self._pool(heads[head]) for head in self.norm_keys]

    @staticmethod
    def _pool(metadatas: Sequence[Any]) -> dict[str, dict[str, np.ndarray]]:
        frames = [np.array([metadata.info["total_frames"]]) for metadata in metadatas]
        try:
            return {
                key: aggregate([{**metadata.stats[key], "count": count} for metadata, count in zip(metadatas, frames)])
                for key in ("state", "actions")
            }
        except ValueError as error:  # of NumPy; the training compares widths first (`norm_heads.compute_statistics`)
            raise DatasetError(str(error)) from error


class HierarchicalSampler:
    """Indices of samples of a mixture, one after the other as the datasets are concatenated."""

    def __init__(
        self,
        dataset_lengths: Sequence[int],
        dataset_probs: Sequence[float],
        num_samples: int,
        generator: Any = None,
        seed: int | None = None,
    ) -> None:
        chosen = seed if seed is not None else generator.initial_seed() if generator is not None else 0
        sources = [
            SimpleNamespace(name=str(number), segments=np.array([[0, 0, length]]), gop=1, reach=(0, 0))
            for number, length in enumerate(dataset_lengths)
        ]
        order = us.Order.from_datasets(sources, weights=list(dataset_probs), batch_size=1, seed=chosen, mode="uniform")
        source, _, frame = order.locate(np.arange(num_samples))
        self._indices = (np.concatenate([[0], np.cumsum(dataset_lengths)])[source] + frame).tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)


class Stub:
    """A name that a skipped test imports."""


def module(name: str, *stubs: str, **members: Any) -> None:
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__dict__.update(members | dict.fromkeys(stubs, Stub))
    parent, _, child = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            module(parent)
        setattr(sys.modules[parent], child, sys.modules[name])


module(
    "opentau.datasets.delta_action_stats",
    "_allocate_row_budgets",
    "_merge_running",
    "_select_anchor_rows",
    "delta_stats_cache_key",
    "load_or_compute_delta_action_stats",
    CACHE_SUBDIR="",
    RunningStats=RunningStats,
    compute_delta_action_stats=compute_delta_action_stats,
)
module("opentau.datasets.compute_stats", QUANTILE_STAT_NAMES=("q01", "q99"))
module("opentau.datasets.standard_data_format_mapping", DATA_FEATURES_NAME_MAPPING={})
module(
    "opentau.datasets.dataset_mixture",
    "WeightedDatasetMixture",
    "pad_vector",
    "resolve_mixture_delta_map",
    "_resolve_mixture_delta_map",
    DatasetMixtureMetadata=DatasetMixtureMetadata,
    HierarchicalSampler=HierarchicalSampler,
    compute_norm_key=compute_norm_key,
)
module("opentau.configs.default", "DatasetConfig", "DatasetMixtureConfig")
module("opentau.datasets.factory", "make_dataset")
module("opentau.utils.random_utils", set_seed=lambda seed, accelerator: torch.manual_seed(seed))
module("tests.fixtures.constants", DUMMY_REPO_ID="")
module("tests.utils", retry_on_hf_flakiness=lambda *args, **options: lambda function: function)

CAP = "a cap on rows; ours reads all rows, and samples only the quantiles of more than 4 million"
CLASSES = "a class or function of OpenTau's own configuration or loader"
SKIPS = {
    **dict.fromkeys(("TestRowCap", "TestRowBudgetAllocation"), CAP),
    **dict.fromkeys(
        ("TestCacheKey", "TestFactoryWiring", "TestLoadOrCompute"), "the keys and files of OpenTau's cache"
    ),
    **dict.fromkeys(
        (
            "TestPadVector",
            "TestDatasetMixtureMetadata",
            "TestResolveMixtureDeltaMap",
            "TestWeightedDatasetMixture",
            "TestWeightedDatasetMixtureIntegration",
            "TestMakeDatasetNames",
            "TestDatasetMixtureOptionalKeyDropProbs",
            "TestRobotTypeControlModeOverridesAndRequirements",
            "TestTaggedDatasetIndexIsNormHead",
        ),
        CLASSES,
    ),
}
PAIRS = "steps behind the end of an episode are padding in a window and do not count; theirs repeats the last frame"
HISTOGRAM = "looks into the histogram of their quantiles; ours are exact here"
GENERATOR = "a seed is a number; there is no generator of torch to share or to reseed"
LOGS = "text of their log; ours prints the heads at the start of a run"
FAILURES = {
    "test_bounds_prevent_rebinning_error_on_a_widening_stream": HISTOGRAM,
    "test_without_bounds_matches_openpi_behavior": HISTOGRAM,
    **dict.fromkeys(
        (
            "test_matches_brute_force_reference",
            "test_chunks_clip_at_episode_boundaries",
            "test_column_index_is_applied_before_the_delta",
        ),
        PAIRS,
    ),
    **dict.fromkeys(
        ("test_action_count_is_frames_times_horizon", "test_episode_selection_is_honored"),
        "the count is that of frames, not of pairs of a frame and a step",
    ),
    "test_linear_and_nearest_strategies_both_run": "windows have whole frames; nothing is interpolated",
    "test_partial_quantile_coverage_in_a_head_warns_and_keeps_building": LOGS,
    "test_missing_robot_type_falls_back_with_single_warning": LOGS,
    "test_norm_head_summary_logged": LOGS,
    "test_seed_none_preserves_the_legacy_default_generator_stream": GENERATOR,
    "test_seed_beats_generator_and_reseeds_it_in_place": GENERATOR,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    explain(items, FAILURES, SKIPS)
