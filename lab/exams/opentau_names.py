"""Tests of OpenTau on understudy: statistics of differences, norm heads, mixtures, segments, past
observations.

The package `opentau` is not needed: the names that the tests import are these.
"""

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

import understudy as us
from shared import RowStatistics, accept_our_refusals, explain
from understudy.policies.common.flow_matching import MAX_PERIOD, MIN_PERIOD, time_features
from understudy.policies.common.images import letterbox
from understudy.policies.observation_history import ObservationHistory
from understudy.policies.pi05.text import TextTokenizer
from understudy_base import ACTION, STATE, DatasetError
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.recorded_stats import aggregate
from understudy_data.datasets.stats.norm_heads import HeadMember, compute_statistics, head_name
from understudy_tools.cli.edit import SegmentConfig, segment

accept_our_refusals()


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
    """Record the rows as a dataset, and compute its statistics with the dimensions of `delta_map`
    as differences.
    """
    if not np.array_equal(chunk_offsets, np.arange(len(chunk_offsets))) or strategy != "nearest":
        raise DatasetError("windows have whole frames")
    if not Path(parquet_paths[0]).exists():
        raise DatasetError("no file")
    table = pq.read_table(parquet_paths[0])
    state, action = (
        np.array(table[key].to_pylist(), np.float64) for key in (state_col, action_col)
    )
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
    member = HeadMember(data, "head", tuple(sorted(delta_map)))
    statistics = compute_statistics([member], len(chunk_offsets))["head"]
    figures = {name: vars(statistics[key]) for name, key in (("actions", ACTION), ("state", STATE))}
    return {name: {**f, "count": np.array([f["count"]])} for name, f in figures.items()}


def compute_norm_key(
    robot_type: str | None, control_mode: str | None, fallback: str
) -> tuple[str, bool]:
    head = head_name(robot_type, control_mode, fallback)
    return head, head == fallback


class DatasetMixtureMetadata:
    """Statistics of the heads of a mixture, pooled by `aggregate` with the frames of each dataset
    as its count.
    """

    def __init__(
        self, cfg: Any, metadatas: Sequence[Any], dataset_weights: Any, dataset_names: Sequence[str]
    ) -> None:
        heads = defaultdict(list)
        names = defaultdict(list)
        for metadata, name in zip(metadatas, dataset_names):
            head = head_name(
                metadata.info.get("robot_type"), metadata.info.get("control_mode"), name
            )
            heads[head].append(metadata)
            names[head].append(name)
        self.norm_keys, self.norm_key_to_dataset_names = sorted(heads), dict(names)
        self.dataset_to_norm_index = {
            name: self.norm_keys.index(head) for head in names for name in names[head]
        }
        self.dataset_names = dataset_names
        self.per_dataset_stats = [metadata.stats for metadata in metadatas]
        self.per_norm_key_stats = [self._pool(heads[head]) for head in self.norm_keys]

    @staticmethod
    def _pool(metadatas: Sequence[Any]) -> dict[str, dict[str, np.ndarray]]:
        frames = [np.array([metadata.info["total_frames"]]) for metadata in metadatas]
        try:
            return {
                key: aggregate(
                    [
                        {**metadata.stats[key], "count": count}
                        for metadata, count in zip(metadatas, frames)
                    ]
                )
                for key in ("state", "actions")
            }
        # of NumPy; the training compares widths first (`norm_heads.compute_statistics`)
        except ValueError as error:
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
        chosen = (
            seed if seed is not None else generator.initial_seed() if generator is not None else 0
        )
        sources = [
            SimpleNamespace(
                name=str(number), segments=np.array([[0, 0, length]]), gop=1, reach=(0, 0)
            )
            for number, length in enumerate(dataset_lengths)
        ]
        order = us.Order.from_datasets(
            sources, weights=list(dataset_probs), batch_size=1, seed=chosen, mode="uniform"
        )
        source, _, frame = order.locate(np.arange(num_samples))
        self._indices = (np.concatenate([[0], np.cumsum(dataset_lengths)])[source] + frame).tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)


class Recorder:
    """Their dataset while it is written, with an `EpisodeWriter`."""

    def __init__(self, root: Path, features: Mapping[str, Any], use_videos: bool) -> None:
        self.fps, self.meta = 30, SimpleNamespace(stats={})
        self._writer = us.EpisodeWriter(root, fps=self.fps, features=features)

    def add_frame(self, frame: dict[str, Any]) -> None:
        self._writer.add_frame(frame, task=frame.pop("task"))

    def save_episode(self) -> None:
        self._writer.save_episode()


def segment_dataset(
    input_root: Path,
    output_root: Path,
    segments_by_episode: Path | Mapping[int, Sequence[tuple[int, int]]],
) -> None:
    """Run `understudy segment`."""
    times = input_root.with_name("segments.json")
    times.write_text(
        segments_by_episode.read_text()
        if isinstance(segments_by_episode, Path)
        else json.dumps(segments_by_episode)
    )
    segment(
        SegmentConfig(paths=(str(input_root), str(output_root)), times=str(times), unit="frames")
    )


def load_info(root: Path) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((root / "meta/info.json").read_text())
    return info


def load_episodes(root: Path) -> dict[int, dict[str, int]]:
    return {
        row: {"length": length}
        for row, length in enumerate(Catalog.open(root).episodes.lengths.tolist())
    }


class Metadata:
    """Their metadata, for the file of an episode; here all episodes are in one."""

    def __init__(self, repo_id: str, root: Path) -> None:
        self._root = root

    def get_data_file_path(self, episode: int) -> Path:
        source = self._root / "data/chunk-000/file-000.parquet"
        table = pq.read_table(source)
        target = self._root.with_name(f"{episode}.parquet")
        pq.write_table(table.filter(pc.equal(table["episode_index"], episode)), target)
        return target


class PI05MemPolicy:
    """The history of observations of a policy."""

    def _build_history_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Window of each key, from an `ObservationHistory` per row."""
        config = self.config
        keys = ["state", *getattr(config, "image_features", getattr(config, "input_features", {}))]
        steps = range(
            (config.n_obs_steps - 1) * config.history_interval, -1, -config.history_interval
        )
        times = dict.fromkeys(keys, tuple(-float(step) for step in steps))
        rows = self.__dict__.setdefault(
            "_rows", [ObservationHistory(times, fps=1) for _ in batch["state"]]
        )
        for number, row in enumerate(rows):
            row.add({key: batch[key][number].numpy() for key in keys})
        windows = [row.windows() for row in rows]
        seen = {
            key: torch.from_numpy(np.stack([window[key] for window in windows])) for key in keys
        }
        padded = torch.from_numpy(np.stack([window["state_is_pad"] for window in windows]))
        return {**batch, **seen, "obs_history_is_pad": padded}


def mem_config(n_obs_steps: int = 8, history_interval: int = 1, **others: Any) -> SimpleNamespace:
    return SimpleNamespace(n_obs_steps=n_obs_steps, history_interval=history_interval)


def create_sinusoidal_pos_embedding(
    time: torch.Tensor, dimension: int, min_period: float, max_period: float
) -> torch.Tensor:
    assert (min_period, max_period) == (MIN_PERIOD, MAX_PERIOD)
    return time_features(time, dimension)


def resize_with_pad(images: torch.Tensor, width: int, height: int) -> torch.Tensor:
    if images.ndim != 4 or width != height:
        raise DatasetError("images are [B, 3, H, W], and become squares")
    return letterbox(images.to(torch.uint8), width)


def pad_discrete_tokens(
    tokens: Sequence[Sequence[int]], max_length: int
) -> tuple[np.ndarray, np.ndarray]:
    rows = TextTokenizer(None, 0).pad(tokens, max_length)
    return rows.tokens, ~rows.is_pad


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
    RunningStats=RowStatistics,
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
module("opentau.datasets.lerobot_dataset", LeRobotDatasetMetadata=Metadata)
module(
    "opentau.datasets.utils",
    "write_json",
    "write_stats",
    DEFAULT_VIDEO_PATH="",
    load_episodes=load_episodes,
    load_episodes_stats=load_episodes,
    load_info=load_info,
)
module(
    "opentau.scripts.segment_lerobot_dataset",
    "_ffmpeg_trim_max_workers",
    _load_segments_by_episode=Path,
    FFMPEG_MAX_WORKERS_ENV_VAR="",
    segment_dataset=segment_dataset,
)
module("opentau.policies.pi05.paligemma_with_expert", "apply_rope")
module("opentau.policies.pi05_mem.configuration_pi05", PI05MemConfig=mem_config)
module(
    "opentau.policies.pi05_mem.modeling_pi05",
    "build_mrope_prefix_positions",
    "make_att_2d_masks",
    "mrope_suffix_position_ids",
    PI05MemPolicy=PI05MemPolicy,
    create_sinusoidal_pos_embedding=create_sinusoidal_pos_embedding,
    pad_discrete_tokens=pad_discrete_tokens,
    resize_with_pad=resize_with_pad,
)
module(
    "opentau.configs.types",
    FeatureType=SimpleNamespace(VISUAL="VISUAL"),
    PolicyFeature=SimpleNamespace,
)
module("tests.fixtures.constants", DUMMY_REPO_ID="")
module("tests.utils", retry_on_hf_flakiness=lambda *args, **options: lambda function: function)

CAP = "a cap on rows; ours reads all rows, and samples only the quantiles of more than 4 million"
CLASSES = "a class or function of OpenTau's own configuration or loader"
NETWORK = "their network's inputs and positions (M-RoPE); ours has others"
FFMPEG = (
    "processes of ffmpeg, and image files; here videos are cut in this process, and images "
    "lie in the tables"
)
SKIPS = {
    **dict.fromkeys(
        (
            "TestPI05MemConfig",
            "TestPrepareState",
            "TestPrepareVideos",
            "TestStateMaskCurrentStepAlwaysReal",
            "TestPI05MemExecutionHorizon",
            "TestInterleavedMRoPE",
            "test_make_att_2d_masks_basic",
            "test_make_att_2d_masks_with_padding",
        ),
        NETWORK,
    ),
    **dict.fromkeys(
        (
            "test_load_segments_by_episode_from_json",
            "test_segment_lerobot_copies_image_files_for_segments",
            "test_trim_video_segment_uses_frame_range_filter",
            "test_ffmpeg_trim_max_workers_env_var_valid",
            "test_ffmpeg_trim_max_workers_env_var_invalid_falls_back",
            "test_ffmpeg_trim_max_workers_env_var_unset_uses_cpu_default",
            "test_ffmpeg_trim_max_workers_env_var_caps_at_16",
            "test_ffmpeg_trim_max_workers_handles_none_cpu_count",
            "test_ffmpeg_trim_max_workers_override_takes_precedence",
            "test_ffmpeg_trim_max_workers_rejects_invalid_override",
            "test_segment_dataset_dispatches_ffmpeg_jobs_in_parallel",
            "test_segment_dataset_propagates_worker_exceptions",
            "test_segment_dataset_accepts_ffmpeg_max_workers_override",
        ),
        FFMPEG,
    ),
    "test_segment_lerobot_v20_input_outputs_v21": "makes its folder one of v2.0; ours records v3.0",
    **dict.fromkeys(("TestRowCap", "TestRowBudgetAllocation"), CAP),
    **dict.fromkeys(
        ("TestCacheKey", "TestFactoryWiring", "TestLoadOrCompute"),
        "the keys and files of OpenTau's cache",
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
PAIRS = (
    "steps behind the end of an episode are padding in a window and do not count; theirs "
    "repeats the last frame"
)
HISTOGRAM = "looks into the histogram of their quantiles; ours are exact here"
GENERATOR = "a seed is a number; there is no generator of torch to share or to reseed"
LOGS = "text of their log; ours prints the heads at the start of a run"
FIRST = "before its start an episode has its first observation as padding; theirs has zeros"
FAILURES = {
    "test_segment_lerobot_v21_dataset": "the output is of v3.0, theirs of v2.1",
    "test_segment_lerobot_non_consecutive_and_overlapping_ranges": "segments that overlap are "
    "refused",
    "test_sinusoidal_embedding_odd_dimension_raises": "an odd width is a mistake of the code, and "
    "is not checked",
    "test_sinusoidal_embedding_wrong_ndim_raises": "times of any shape have features",
    "test_first_call_zero_pads": FIRST,
    "test_state_and_camera_padding_match_emitted_mask": FIRST,
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
    "test_linear_and_nearest_strategies_both_run": "windows have whole frames; nothing is "
    "interpolated",
    "test_partial_quantile_coverage_in_a_head_warns_and_keeps_building": LOGS,
    "test_missing_robot_type_falls_back_with_single_warning": LOGS,
    "test_norm_head_summary_logged": LOGS,
    "test_seed_none_preserves_the_legacy_default_generator_stream": GENERATOR,
    "test_seed_beats_generator_and_reseeds_it_in_place": GENERATOR,
}


@pytest.fixture
def empty_lerobot_dataset_factory() -> type[Recorder]:
    return Recorder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    explain(items, FAILURES, SKIPS)
