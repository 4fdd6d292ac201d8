"""Normalization of a run: exact for one dataset, pooled per head, from training frames only."""

import json
import tracemalloc
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.stats import summary
from understudy_data.datasets.stats.norm_heads import (
    HeadMember,
    compute_normalization,
    compute_statistics,
    head_name,
)
from understudy_data.datasets.stats.summary import Mode, Statistics, count_pairs
from understudy_data.testing.datasets import Spec, Truth, edit_json, write_dataset

ACTION = "action"
STATE = "observation.state"
MODES: tuple[Mode, ...] = ("mean_std", "min_max", "quantile")
FPS = 10


def opened(root: Path, chunk: int = 4, **choice: Any) -> EpisodeDataset:
    """As a run opens it: action windows of `chunk` frames."""
    choice.setdefault("keys", [ACTION, STATE])
    return EpisodeDataset(root, {ACTION: [i / FPS for i in range(chunk)]}, **choice)


def changed(root: Path, key: str, change: Callable[[int, np.ndarray], np.ndarray]) -> None:
    """Replace a column's values (n, dim) in every episode; `change` gets the episode's id."""
    for path in sorted((root / "data").glob("chunk-*/*.parquet")):
        table = pq.read_table(path)
        values = np.stack(table[key].to_numpy())
        episodes = table["episode_index"].to_numpy()
        for episode in np.unique(episodes):
            values[episodes == episode] = change(int(episode), values[episodes == episode].copy())
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(values.ravel(), pa.float32()), values.shape[1]
        )
        at = table.schema.get_field_index(key)
        pq.write_table(table.set_column(at, key, column), path)


def recording(root: Path, place: float = 0.0, **spec: Any) -> Truth:
    """A dataset without images whose action and state lie around `place`."""
    spec = {"lengths": (6, 9, 4, 30), "cameras": ()} | spec
    truth = write_dataset(root, Spec(**spec))
    for key in (ACTION, STATE):
        for rows in truth.rows.values():
            rows[key] = (rows[key] + np.float32(place)).astype(np.float32)
        changed(
            root,
            key,
            lambda episode, _, key=key: truth.rows[episode][key],  # type: ignore[misc]
        )
    return truth


def rows_of(truth: Truth, key: str, segments: np.ndarray) -> np.ndarray:
    """float64 (n, dim): the written rows of the frames of segments."""
    return np.concatenate([truth.rows[e][key][a:b] for e, a, b in segments.tolist()]).astype(
        np.float64
    )


def by_hand(rows: np.ndarray, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """(offset, spread) float32 from the definitions, one dimension at a time."""
    out = []
    for x in np.ascontiguousarray(rows.T):
        low, high = (x.min(), x.max()) if mode == "min_max" else np.quantile(x, [0.01, 0.99])
        offset, spread = (
            (x.mean(), x.std()) if mode == "mean_std" else ((low + high) / 2, (high - low) / 2)
        )
        out.append((x[0], 0) if (x == x[0]).all() else (offset, spread))
    offset, spread = np.array(out).T.astype(np.float32)
    return offset, spread


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("mode", MODES)
def test_norm_heads_one_dataset_has_the_figures_of_all_its_rows_bit_for_bit(
    tmp_path: Path, version: str, mode: Mode
) -> None:
    truth = recording(tmp_path / "d", version=version)
    data = opened(tmp_path / "d", episodes=[0, 2, 3])
    made = compute_normalization([HeadMember(data, "arm::joint")], mode, 4)
    assert json.loads(json.dumps(made)) == made
    assert made["heads"] == ["arm::joint"]
    assert made["dims"] == {ACTION: [2], STATE: [3]}
    assert made["delta"] == [[False, False]]
    for key in (ACTION, STATE):
        offset, spread = by_hand(rows_of(truth, key, data.segments), mode)
        np.testing.assert_array_equal(np.array(made[key]["offset"][0], np.float32), offset)
        np.testing.assert_array_equal(np.array(made[key]["spread"][0], np.float32), spread)
    assert made[STATE]["spread"][0][2] == 0


def test_norm_heads_no_image_is_opened(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(images=("observation.images.png",)))
    data = EpisodeDataset(tmp_path / "d")
    before = compute_normalization([HeadMember(data, "a")], "quantile", 4)
    for video in (tmp_path / "d/videos").rglob("*.mp4"):
        video.write_bytes(b"no video")
    for path in (tmp_path / "d/data").glob("chunk-*/*.parquet"):
        table = pq.read_table(path)
        png = "observation.images.png"
        broken = pa.array([{"bytes": b"no picture", "path": ""}] * len(table), table[png].type)
        pq.write_table(table.set_column(table.schema.get_field_index(png), png, broken), path)
    assert (
        compute_normalization([HeadMember(EpisodeDataset(tmp_path / "d"), "a")], "quantile", 4)
        == before
    )


@pytest.mark.parametrize("delta", [(), (0, 1)])
def test_norm_heads_validation_values_have_no_say(tmp_path: Path, delta: tuple[int, ...]) -> None:
    def made() -> dict[str, Any]:
        data = opened(tmp_path / "d", episodes=[0, 1, 3])
        held = opened(tmp_path / "d", episodes=[2])
        return {
            mode: compute_normalization([HeadMember(data, "a", delta)], mode, 4, None, [held])
            for mode in MODES
        }

    recording(tmp_path / "d")
    before = made()
    changed(tmp_path / "d", ACTION, lambda episode, rows: rows * 1e6 if episode == 2 else rows)
    changed(tmp_path / "d", STATE, lambda episode, rows: rows - 1e6 if episode == 2 else rows)
    assert made() == before
    changed(tmp_path / "d", ACTION, lambda episode, rows: rows * 2 if episode == 1 else rows)
    assert made()["mean_std"] != before["mean_std"]  # the test would notice


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Truth]]:
    """Three recordings of one robot, in different places."""
    root = tmp_path_factory.mktemp("three")
    places = {"a": 0.0, "b": 40.0, "c": -7.0}
    lengths = {"a": (6, 9, 30), "b": (50,), "c": (1, 2, 70)}
    return root, [
        recording(root / name, place, lengths=lengths[name]) for name, place in places.items()
    ]


@pytest.mark.parametrize("delta", [(), (1,)])
@pytest.mark.parametrize("mode", MODES)
def test_norm_heads_a_head_pools_its_sources_and_their_sequence_changes_no_bit(
    three: tuple[Path, list[Truth]], mode: Mode, delta: tuple[int, ...]
) -> None:
    root, truths = three
    heads = {"a": "one::joint", "b": "one::joint", "c": "other::joint"}
    members = [HeadMember(opened(root / name), head, delta) for name, head in heads.items()]
    made = compute_normalization(members, mode, 4)
    assert made["heads"] == ["one::joint", "other::joint"]
    for several in permutations(members):
        assert compute_normalization(several, mode, 4) == made
    for head, sources in enumerate(((0, 1), (2,))):
        for key in (ACTION, STATE):
            rows = np.concatenate(
                [rows_of(truths[s], key, members[s].data.segments) for s in sources]
            )
            offset, spread = by_hand(rows, mode)
            same = np.s_[:1] if delta and key == ACTION else np.s_[:]
            np.testing.assert_allclose(made[key]["offset"][head][same], offset[same], rtol=1e-6)
            np.testing.assert_allclose(made[key]["spread"][head][same], spread[same], rtol=1e-6)


def test_norm_heads_narrow_heads_are_padded_with_what_gives_zero(tmp_path: Path) -> None:
    recording(tmp_path / "narrow")
    recording(tmp_path / "wide", action_dim=5, state_dim=4)
    members = [
        HeadMember(opened(tmp_path / name), name, delta)
        for name, delta in (("wide", (0, 3)), ("narrow", ()))
    ]
    made = compute_normalization(members, "mean_std", 4)
    assert made["heads"] == ["narrow", "wide"]
    assert made["dims"] == {ACTION: [2, 5], STATE: [3, 4]}
    assert made["delta"] == [[False] * 5, [True, False, False, True, False]]
    for key, width in ((ACTION, 2), (STATE, 3)):
        alone = compute_normalization(members[1:], "mean_std", 4)
        for name in ("offset", "spread"):
            assert made[key][name][0][:width] == alone[key][name][0]
            assert not any(made[key][name][0][width:])
            assert len(made[key][name][0]) == len(made[key][name][1])


def test_norm_heads_a_dataset_without_state_stands_beside_one_with(tmp_path: Path) -> None:
    recording(tmp_path / "with")
    recording(tmp_path / "without")
    edit_json(tmp_path / "without/meta/info.json", lambda info: info["features"].pop(STATE))
    bare = HeadMember(opened(tmp_path / "without", keys=[ACTION]), "bare")
    assert STATE not in compute_normalization([bare], "mean_std", 4)
    assert compute_normalization([bare], "mean_std", 4)["dims"] == {ACTION: [2]}
    both = compute_normalization(
        [HeadMember(opened(tmp_path / "with"), "full"), bare], "mean_std", 4
    )
    assert both["dims"][STATE] == [0, 3]
    assert both[STATE]["spread"][0] == [0, 0, 0]
    with refused("with", 3, "without", "observation.state"):
        compute_normalization([HeadMember(opened(tmp_path / "with"), "bare"), bare], "mean_std", 4)


# -- actions as differences to the state


def differences(data: EpisodeDataset) -> np.ndarray:
    """float64 (pairs, 2): sample by sample through the dataset's own windows, padding left out."""
    found = []
    for number in range(len(data)):
        sample = data[number]
        real = ~sample["action_is_pad"]
        found.append((sample[ACTION][real] - sample[STATE][:2]).numpy())
    return np.concatenate(found).astype(np.float64)


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"drop_n_last_frames": 3, "drop_n_first_frames": 2},
        {"keep_ranges": {"0": [[1, 5]], "3": [[2, 9], [12, 30]]}, "keep_rule": "start"},
        {"keep_ranges": {"0": [[0, 6]], "3": [[2, 9], [12, 25]]}, "keep_rule": "window"},
        {"episodes": [1, 2]},
    ],
)
@pytest.mark.parametrize("chunk", [1, 4, 50])
def test_norm_heads_differences_are_those_of_the_windows(
    tmp_path: Path, choice: dict[str, Any], chunk: int
) -> None:
    truth = recording(tmp_path / "d")
    if "keep_ranges" in choice:
        choice = choice | {
            "keep_ranges": {int(key): ranges for key, ranges in choice["keep_ranges"].items()}
        }
    if chunk == 50 and choice.get("keep_rule") == "window":
        chunk = 7
    data = opened(tmp_path / "d", chunk, **choice)
    expected = differences(data)
    assert count_pairs(data, chunk) == len(expected)
    for mode in MODES:
        made = compute_normalization([HeadMember(data, "a", (1,))], mode, chunk)
        plain = compute_normalization([HeadMember(data, "a")], mode, chunk)
        offset, spread = by_hand(expected, mode)
        absolute = by_hand(rows_of(truth, ACTION, data.segments), mode)
        assert made["delta"] == [[False, True]]
        assert made[STATE] == plain[STATE]
        assert plain[ACTION]["spread"][0] == absolute[1].tolist()
        for name, figure in (("offset", offset), ("spread", spread)):
            # absolute: one value per frame, as without
            assert made[ACTION][name][0][0] == plain[ACTION][name][0][0]
            assert made[ACTION][name][0][1] == figure[1]
    found = compute_statistics([HeadMember(data, "a", (1, 0))], chunk)["a"][ACTION]
    np.testing.assert_array_equal(found.q99, np.quantile(expected, 0.99, axis=0))


@pytest.mark.long
def test_norm_heads_thinned_differences_show_every_step_of_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actions run away from the state by 1 a frame, so a difference is its step k: quantiles are
    known.
    """
    recording(tmp_path / "d", lengths=(600,))
    for key in (ACTION, STATE):
        changed(
            tmp_path / "d", key, lambda _, rows: np.arange(len(rows))[:, None] + np.zeros_like(rows)
        )
    monkeypatch.setattr(summary, "ROWS", 1000)
    data = opened(tmp_path / "d", 16)
    found = compute_statistics([HeadMember(data, "a", (0, 1))], 16)["a"][ACTION]
    assert (found.min[0], found.max[0]) == (0, 15)
    assert (found.q01[0], found.q99[0]) == (0, 15)
    np.testing.assert_allclose(found.mean, differences(data).mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std, differences(data).std(0), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_norm_heads_differences_of_whole_numbers_do_not_wrap(tmp_path: Path, dtype: str) -> None:
    recording(tmp_path / "d", lengths=(12,))
    for key in (ACTION, STATE):
        changed(
            tmp_path / "d",
            key,
            lambda _, rows, key=key: np.full_like(rows, 9 if key == STATE else 4),
        )  # type: ignore[misc]
    for key in (ACTION, STATE):
        edit_json(
            tmp_path / "d/meta/info.json",
            lambda info, key=key: info["features"][key].update(dtype=dtype),
        )
    found = compute_statistics([HeadMember(opened(tmp_path / "d"), "a", (0,))], 4)["a"][ACTION]
    assert (found.min[0], found.max[0], found.min[1]) == (-5, -5, 4)


# -- refused data


@pytest.mark.filterwarnings("ignore:.*not finite")
@pytest.mark.parametrize("where", ["training", "validation", "behind the segment"])
@pytest.mark.parametrize("delta", [(), (0, 1)])
def test_norm_heads_a_value_that_is_not_finite_is_named(
    tmp_path: Path, where: str, delta: tuple[int, ...]
) -> None:
    def with_nan(episode: int, rows: np.ndarray) -> np.ndarray:
        if episode == 3:
            rows[-1, 1] = np.inf
        return rows

    recording(tmp_path / "d")
    changed(tmp_path / "d", ACTION, with_nan)
    drop = {"drop_n_last_frames": 2} if where == "behind the segment" else {}
    held = opened(tmp_path / "d", episodes=[3])
    data = opened(tmp_path / "d", episodes=[0, 1] if where == "validation" else [0, 3], **drop)
    with refused("action[1]", "inf", 1, where="d, episode 3", fix="exclude_episodes"):
        compute_normalization(
            [HeadMember(data, "a", delta)],
            "mean_std",
            4,
            None,
            [held] if where == "validation" else [],
        )
    if where == "validation":
        compute_normalization([HeadMember(data, "a", delta)], "mean_std", 4)
    # a target of a window that reaches there; of a shorter one it is none
    if where == "behind the segment":
        compute_normalization(
            [HeadMember(opened(tmp_path / "d", 2, episodes=[0, 3], **drop), "a", delta)],
            "mean_std",
            2,
        )


@pytest.mark.filterwarnings("ignore:.*not finite")
@pytest.mark.parametrize(
    ("key", "frame", "choice", "window", "seen"),
    [
        # the last sample is frame 2 of 0..5
        (STATE, 5, {"drop_n_last_frames": 3}, [0.0, 0.1, 0.2], False),
        (STATE, 5, {"drop_n_last_frames": 2}, [0.0, 0.1, 0.2], True),
        (
            STATE,
            1,
            {"drop_n_first_frames": 3, "keep_ranges": {0: [(0, 5)], 1: [(0, 5)]}},
            [-0.1, 0.0],
            False,
        ),
        (
            STATE,
            1,
            {"drop_n_first_frames": 3, "keep_ranges": {0: [(0, 5)], 1: [(0, 5)]}},
            [-0.2, 0.0],
            True,
        ),
        # targets of a policy with `Past.actions`
        (ACTION, 1, {"drop_n_first_frames": 3}, [-0.1, 0.0, 0.1], False),
        (ACTION, 1, {"drop_n_first_frames": 3}, [-0.2, 0.0, 0.1], True),
    ],
)
def test_norm_heads_values_must_be_finite_where_windows_see_them(
    tmp_path: Path, key: str, frame: int, choice: dict[str, Any], window: list[float], seen: bool
) -> None:
    """Windows reach frames that are no samples; the statistics are those of the samples alone."""

    def with_nan(episode: int, rows: np.ndarray) -> np.ndarray:
        rows[frame, 0] = np.nan if episode == 0 else 0
        if "keep_ranges" in choice:
            rows[5:, 1] = np.inf  # behind the samples, where no window of the state reaches
        return rows

    recording(tmp_path / "d", lengths=(6, 9))
    changed(tmp_path / "d", key, with_nan)
    windows = {ACTION: [0.0, 0.1]} | {key: window}
    data = EpisodeDataset(tmp_path / "d", windows, keys=[ACTION, STATE], **choice)
    plain = compute_normalization(
        [HeadMember(opened(tmp_path / "d", 2, **choice), "x", (0,))], "mean_std", 2
    )
    if seen:
        with refused(f"{key}[0]", "nan", where="d, episode 0"):
            compute_normalization([HeadMember(data, "x", (0,))], "mean_std", 2, tmp_path / "cache")
    else:
        assert (
            compute_normalization([HeadMember(data, "x", (0,))], "mean_std", 2, tmp_path / "cache")
            == plain
        )


def test_norm_heads_what_does_not_go_together_is_refused_with_both_names(tmp_path: Path) -> None:
    recording(tmp_path / "two")
    recording(tmp_path / "three", action_dim=3)
    two = opened(tmp_path / "two")
    three = opened(tmp_path / "three")
    with refused("x", "two", 2, "three", 3, "action"):
        compute_normalization([HeadMember(two, "x"), HeadMember(three, "x")], "mean_std", 4)
    with refused("x", "two", "[]", "[0]", "delta", fix="delta"):
        compute_normalization([HeadMember(two, "x"), HeadMember(two, "x", (0,))], "mean_std", 4)
    compute_normalization(
        [HeadMember(two, "x"), HeadMember(two, "y", (0,)), HeadMember(three, "z")], "mean_std", 4
    )
    with refused("delta", "dimension 2", "action", where="two"):
        compute_normalization([HeadMember(two, "x", (0, 2))], "mean_std", 4)
    with refused("delta", -1, where="two"):
        compute_normalization([HeadMember(two, "x", (-1,))], "mean_std", 4)
    recording(tmp_path / "long", action_dim=4)
    with refused("delta", "dimension 3", "observation.state", where="long"):
        compute_normalization([HeadMember(opened(tmp_path / "long"), "x", (3,))], "mean_std", 4)


def test_norm_heads_values_beyond_float32_are_refused(tmp_path: Path) -> None:
    recording(tmp_path / "d", stored_double=True)
    edit_json(
        tmp_path / "d/meta/info.json", lambda info: info["features"][ACTION].update(dtype="float64")
    )
    path = next((tmp_path / "d/data").glob("chunk-*/*.parquet"))
    table = pq.read_table(path)
    values = np.stack(table[ACTION].to_numpy()).astype(np.float64)
    values[2, 1] = 1e100
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 2)
    pq.write_table(table.set_column(table.schema.get_field_index(ACTION), ACTION, column), path)
    with refused("action[1]", "1e+100", where="d, episode 2, frame 2", fix="exclude_episodes"):
        compute_normalization([HeadMember(opened(tmp_path / "d"), "x")], "mean_std", 4)


# -- statistics that others computed


def figures(place: float, dim: int, count: int = 10) -> Statistics:
    around = [np.full(dim, place + by) for by in (0.0, -5.0, 5.0, -4.0, 4.0)]
    return Statistics(count, around[0], np.full(dim, 2.0), *around[1:])


def test_norm_heads_recorded_statistics_stand_for_reading(tmp_path: Path) -> None:
    recording(tmp_path / "d")
    data = opened(tmp_path / "d")
    recorded = {ACTION: figures(1.0, 2), STATE: figures(2.0, 3)}
    for path in (tmp_path / "d/data").rglob("*.parquet"):
        path.unlink()
    alone = compute_normalization([HeadMember(data, "x", (0,), recorded)], "quantile", 4)
    assert (alone[ACTION]["offset"], alone[ACTION]["spread"]) == ([[1.0, 1.0]], [[4.0, 4.0]])
    assert (
        compute_normalization([HeadMember(data, "x", (0,), recorded)] * 2, "quantile", 4) == alone
    )
    other = {ACTION: figures(3.0, 2, 30), STATE: figures(2.0, 3)}
    pool = [HeadMember(data, "x", (), recorded), HeadMember(data, "x", (), other)]
    made = compute_normalization(pool, "mean_std", 4)
    assert made[ACTION]["offset"] == [[2.5, 2.5]]
    np.testing.assert_allclose(
        made[ACTION]["spread"], np.sqrt(4 + (0.25 * 1.5**2 + 0.75 * 0.5**2)), rtol=1e-6
    )
    assert compute_normalization(pool, "min_max", 4)[ACTION]["offset"] == [[2.0, 2.0]]
    with refused("x", "action[0]", "quantile", fix="file"):
        compute_normalization(pool, "quantile", 4)
    unknown = {ACTION: figures(3.0, 2, 0), STATE: figures(2.0, 3, 0)}
    with refused("x", "action[0]", "mean_std"):
        compute_normalization([*pool, HeadMember(data, "x", (), unknown)], "mean_std", 4)
    with refused(3, "action", 2, where="d"):
        compute_normalization(
            [HeadMember(data, "x", (), {ACTION: figures(1.0, 3), STATE: figures(2.0, 3)})],
            "mean_std",
            4,
        )
    with refused("observation.state", 3, where="d"):
        compute_normalization([HeadMember(data, "x", (), {ACTION: figures(1.0, 2)})], "mean_std", 4)


@pytest.mark.parametrize("first", [0, 1])
def test_norm_heads_recorded_and_computed_make_one_pool(tmp_path: Path, first: int) -> None:
    truth = recording(tmp_path / "d", lengths=(20, 31))
    half = [opened(tmp_path / "d", episodes=[episode]) for episode in (first, 1 - first)]
    recorded = compute_statistics([HeadMember(half[1], "x", (1,))], 4)["x"]
    members = [HeadMember(half[0], "x", (1,)), HeadMember(half[1], "x", (1,), recorded)]
    made = compute_statistics(members, 4)["x"][ACTION]
    rows = rows_of(truth, ACTION, opened(tmp_path / "d").segments)
    learnt = differences(opened(tmp_path / "d"))
    np.testing.assert_allclose(made.std, [rows.std(0)[0], learnt.std(0)[1]], rtol=1e-12)
    np.testing.assert_allclose(made.mean, [rows.mean(0)[0], learnt.mean(0)[1]], rtol=1e-12)
    assert (made.min[0], made.max[0]) == (rows[:, 0].min(), rows[:, 0].max())
    assert (made.min[1], made.max[1]) == (learnt[:, 1].min(), learnt[:, 1].max())


# -- as it runs


@pytest.mark.long
def test_norm_heads_memory_does_not_grow_with_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four times the files, too: one file's columns, a block, and between a third and all of the
    rows to keep.
    """
    monkeypatch.setattr(summary, "ROWS", 1000)
    monkeypatch.setattr(summary, "LOADED_BYTES", 0)
    monkeypatch.setattr(summary, "PAIRS", 1000)
    peaks = []
    for files in (8, 32):
        recording(
            tmp_path / f"{files}",
            lengths=(400,) * files,
            per_data_file=1,
            action_dim=8,
            state_dim=8,
        )
        data = opened(tmp_path / f"{files}")
        tracemalloc.start()
        compute_normalization([HeadMember(data, "x", tuple(range(8)))], "quantile", 4)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]


def test_norm_heads_it_is_silent_without_a_terminal(
    three: tuple[Path, list[Truth]], capfd: pytest.CaptureFixture[str]
) -> None:
    compute_normalization([HeadMember(opened(three[0] / "a"), "x")], "mean_std", 4)
    assert capfd.readouterr() == ("", "")


def test_norm_heads_real_recordings(real_data: Path) -> None:
    """Both formats, each as numpy says of all its rows."""
    roots = [real_data / "g1_v21", real_data / "g1_v30"]
    plain = [EpisodeDataset(root, keys=[ACTION, STATE]) for root in roots]
    rows = []
    for data in plain:
        columns = [
            data.row_batch(np.full(b - a, e), np.arange(a, b))[ACTION]
            for e, a, b in data.segments.tolist()
        ]
        rows.append(np.concatenate(columns).astype(np.float64))
    for data, values in zip(plain, rows):
        made = compute_normalization([HeadMember(data, "g1::joint")], "quantile", 16)
        offset, spread = by_hand(values, "quantile")
        rare = np.quantile(values, 0.01, axis=0) == np.quantile(values, 0.99, axis=0)
        np.testing.assert_array_equal(
            np.array(made[ACTION]["offset"][0], np.float32)[~rare], offset[~rare]
        )
        np.testing.assert_array_equal(
            np.array(made[ACTION]["spread"][0], np.float32)[~rare], spread[~rare]
        )


@pytest.mark.parametrize(
    ("robot", "control", "head"),
    [
        ("g1", "joint", "g1::joint"),
        (" g1 ", "joint", "g1::joint"),
        ("", "joint", "my_data"),
        ("g1", "", "my_data"),
        ("g1", "  ", "my_data"),
        (None, "joint", "my_data"),
        ("g1", None, "my_data"),
        ("Unknown", "joint", "my_data"),
        ("g1", "UNKNOWN", "my_data"),
        ("unknown_arm", "joint", "unknown_arm::joint"),
    ],
)
def test_head_name_names(robot: str | None, control: str | None, head: str) -> None:
    assert head_name(robot, control, "my_data") == head
