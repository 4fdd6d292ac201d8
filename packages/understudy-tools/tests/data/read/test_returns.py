"""Returns, compared with sums over single steps."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy_base.testing.refusals import refused
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.layouts import END_IS_CUT
from understudy_data.datasets.read.returns import ReturnTarget
from understudy_data.datasets.read.rows import Rows
from understudy_data.testing.datasets import rate_episodes
from understudy_data.testing.outcomes import FPS, write_outcomes
from understudy_tools.cli.edit import EditConfig, SegmentConfig, edit, segment

LENGTHS = (4, 7, 1, 6, 3)
SUCCESS = (True, False, True, False, None)
TRUNCATED = (False, False, True, True, False)  # episode 2 succeeds in its last step, 3 is cut


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("returns") / "outcomes"
    write_outcomes(root, LENGTHS, SUCCESS, TRUNCATED)
    return root


def target(returns: str, **changes: Any) -> ReturnTarget:
    low, high = {"success": (0.0, 1.0), "time": (-2.0, 0.0)}.get(returns, (-50.0, 50.0))
    fields: dict[str, Any] = {"returns": returns, "discount": 0.9, "low": low, "high": high}
    return ReturnTarget(**(fields | changes))


def naive_return(
    data: EpisodeArrays, kind: str, episode: int, frame: int, discount: float
) -> float | None:
    """Add up the rewards from a frame on, one by one; None where the return is not known."""
    won = SUCCESS[episode]
    length = LENGTHS[episode]
    cut = (TRUNCATED[episode] and not won) or (won is None and kind != "reward")
    if cut and discount:
        return None
    total = 0.0
    for k in range(frame, length):
        last = k == length - 1
        if kind == "success":
            reward = 1.0 if last and won else 0.0
        elif kind == "time":
            reward = (0.0 if won else -2.0) if last else -1 / FPS
        else:
            reward = float(data.sample(episode, k)["reward"])
        total += discount ** (k - frame) * reward
    return max(total, -2.0) if kind == "time" else total


@pytest.mark.parametrize("kind", ["success", "time", "reward"])
@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_returns_are_those_of_the_steps(outcomes: Path, kind: str, discount: float) -> None:
    data = EpisodeArrays(outcomes, returns=target(kind, discount=discount))
    for episode, length in enumerate(LENGTHS):
        for frame in range(length):
            sample = data.sample(episode, frame)
            expected = naive_return(data, kind, episode, frame, discount)
            assert bool(sample["return_is_pad"]) == (expected is None), (episode, frame)
            assert float(sample["return"]) == pytest.approx(expected or 0.0, abs=1e-5), (
                episode,
                frame,
            )


def test_returns_of_rewards_take_four_bytes_per_frame(tmp_path: Path) -> None:
    write_outcomes(tmp_path / "long", (2000,), (True,))
    data = EpisodeArrays(tmp_path / "long", returns=target("reward", low=-9000.0, high=9000.0))
    assert len(pickle.dumps(data.returns)) < 4 * 2000 + 2000
    copied = pickle.loads(pickle.dumps(data.returns)).read(
        np.zeros(2, np.int64), np.array([0, 1999])
    )
    assert copied["return"].tolist() == [
        float(data.sample(0, frame)["return"]) for frame in (0, 1999)
    ]


def test_discount_of_zero_takes_the_column_itself(outcomes: Path) -> None:
    data = EpisodeArrays(outcomes, returns=target("reward", discount=0.0))
    batch = data.batch(
        np.repeat(np.arange(5), LENGTHS), np.concatenate([np.arange(n) for n in LENGTHS])
    )
    np.testing.assert_allclose(batch["return"], batch["reward"])
    assert not batch["return_is_pad"].any()


def test_selections_and_windows_keep_returns(outcomes: Path, tmp_path: Path) -> None:
    kept = tmp_path / "keep.json"
    kept.write_text('{"0": [[0, 2]], "1": [[1, 3], [5, 7]]}')
    whole = EpisodeArrays(outcomes, returns=target("time"))
    options: list[dict[str, Any]] = [
        {"episodes": [0, 1]},
        {"keep_ranges": str(kept), "keep_rule": "start"},
        {"drop_n_last_frames": 2, "episodes": [0, 1]},
        {"delta_timestamps": {"action": [frame / FPS for frame in range(8)]}},  # beyond each end
    ]
    for changes in options:
        part = EpisodeArrays(outcomes, returns=target("time"), **changes)
        for episode, start, stop in part.segments.tolist():
            for frame in range(start, stop):
                for key in ("return", "return_is_pad"):
                    assert part.sample(episode, frame)[key] == whole.sample(episode, frame)[key]


def test_outcomes_may_be_a_column(tmp_path: Path) -> None:
    write_outcomes(tmp_path / "data", (3, 2), (None, None))
    with refused("'success'", where="data", fix="--metadata"):
        EpisodeArrays(tmp_path / "data", returns=target("success", success="success"))
    data = EpisodeArrays(
        tmp_path / "data", returns=target("success", success="helped", discount=1.0)
    )
    # of the last frames
    assert [float(data.sample(episode, 0)["return"]) for episode in (0, 1)] == [0.0, 1.0]


def test_refuses_what_has_no_returns(outcomes: Path, tmp_path: Path) -> None:
    with refused("'outcome'", where="outcomes", fix="--metadata"):
        EpisodeArrays(outcomes, returns=target("success", success="outcome"))
    with refused("'cut'", where="outcomes", fix="--metadata"):
        EpisodeArrays(outcomes, returns=target("success", truncated="cut"))
    with refused("'lost'", where="outcomes", fix="success"):
        EpisodeArrays(outcomes, returns=target("lost"))
    with refused("'action'", where="outcomes", fix="success"):
        EpisodeArrays(outcomes, returns=target("action"))
    with refused(0, "0.3", "0.2", where="outcomes", fix="policy.horizon"):
        EpisodeArrays(outcomes, returns=target("time", low=-0.2))
    with refused(where="outcomes", fix="policy.value_range"):
        EpisodeArrays(outcomes, returns=target("reward", high=-1.0))
    write_outcomes(tmp_path / "texts", (2,), (True,))
    rate_episodes(tmp_path / "texts", verdict=["good"])
    with refused("'verdict'", "'good'", where="texts"):
        EpisodeArrays(tmp_path / "texts", returns=target("success", success="verdict"))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e10])
def test_rewards_of_cut_episodes_are_finite(outcomes: Path, tmp_path: Path, value: float) -> None:
    """No range holds for their returns, but advantages are sums of their rewards."""
    shutil.copytree(outcomes, tmp_path / "data")
    (file,) = (tmp_path / "data/data").rglob("*.parquet")
    table = pq.read_table(file)
    place = sum(LENGTHS[:3])  # of episode 3, which is cut
    rewards = table["reward"].to_pylist()
    rewards[place] = [value] if isinstance(rewards[place], list) else value
    column = pa.array(rewards, table.schema.field("reward").type)
    pq.write_table(table.set_column(table.schema.get_field_index("reward"), "reward", column), file)
    with refused("'reward'", 3, where="data", fix="--data.exclude-episodes 3"):
        EpisodeArrays(tmp_path / "data", returns=target("reward"))


@pytest.mark.parametrize("kind", ["success", "time", "reward"])
def test_an_end_that_was_cut_is_not_terminal(tmp_path: Path, kind: str) -> None:
    """Whatever the outcome of the whole episode: the part ends where nothing ended."""
    root = tmp_path / "data"
    parts = tmp_path / "parts"
    write_outcomes(root, (6, 4), (True, False))
    (tmp_path / "times.json").write_text('{"0": [2, 4], "1": [[0, 4]]}')
    segment(
        SegmentConfig(
            paths=(str(root), str(parts)), times=str(tmp_path / "times.json"), unit="frames"
        )
    )
    data = EpisodeArrays(parts, returns=target(kind))
    assert [bool(data.sample(episode, 0)["return_is_pad"]) for episode in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    assert data.returns is not None
    reader = Rows(data.catalog, data.returns.columns, 1 << 20)
    assert [data.returns.rewards(row, reader)[1] for row in range(4)] == [False, False, True, True]
    assert data.catalog.episode_metadata()["success"] == {0: True, 1: True, 2: True, 3: False}
    edit(EditConfig(paths=(str(parts), str(tmp_path / "later")), drop_n_first_frames=1))
    later = EpisodeArrays(tmp_path / "later", returns=target(kind))
    assert [bool(later.sample(episode, 0)["return_is_pad"]) for episode in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    ends = {episode: {"success": False if episode == 1 else None} for episode in range(4)}
    (tmp_path / "ends.json").write_text(json.dumps(ends))  # one is known of the part itself
    edit(
        EditConfig(
            paths=(str(parts), str(tmp_path / "rated")), metadata=str(tmp_path / "ends.json")
        )
    )
    assert Catalog.open(tmp_path / "rated").episode_metadata()[END_IS_CUT] == {
        0: True,
        1: False,
        2: False,
        3: False,
    }
    edit(EditConfig(paths=(str(root), str(tmp_path / "short")), drop_n_last_frames=1))
    returns = EpisodeArrays(tmp_path / "short", returns=target(kind)).returns
    assert not returns.known  # type: ignore[union-attr]
    edit(EditConfig(paths=(str(root), str(tmp_path / "copy")), drop_n_first_frames=1))
    assert END_IS_CUT not in Catalog.open(tmp_path / "copy").episode_metadata()
