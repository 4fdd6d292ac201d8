"""A run that learns nothing ends as an error; a value that would spoil a normalization is named
before it begins.
"""

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from understudy.config.train import TrainConfig
from understudy.testing.runs import series, tiny_config
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import open_data
from understudy.train.data.run_normalization import compute_normalization
from understudy.train.loop import TrainingStalled
from understudy_base import DatasetError
from understudy_data.datasets.stats.norm_heads import check_outliers
from understudy_data.datasets.stats.summary import Statistics
from understudy_data.testing.datasets import Spec, edit_column, write_dataset
from understudy_kit import override


def wild(data: Path, out: Path, **changes: object) -> TrainConfig:
    """A run whose weights are beyond float32 after its first step."""
    config = override(tiny_config(data, out, val={"every": 0}, log={"report": False}), **changes)
    return replace(
        config,
        optim=replace(config.optim, lr=1e30),
        schedule=replace(config.schedule, warmup_steps=0),
    )


def test_train_fails_when_all_steps_are_skipped(data: Path, tmp_path: Path) -> None:
    config = wild(
        data,
        tmp_path / "r",
        steps=30,
        max_skipped_steps=5,
        checkpoint={"every": 1, "keep_last": 1},
        log={"every": 2},
    )
    with pytest.raises(TrainingStalled, match="5"):
        run.train(config)
    skipped = [r["skipped"] for r in series(tmp_path / "r")]
    assert sum(skipped[-5:]) == 5
    assert len(skipped) < 30
    assert not (tmp_path / "r/policy").exists()
    # Steps that change nothing push no checkpoint out.
    assert checkpoint.list_steps(tmp_path / "r/checkpoints") == [2]
    with pytest.raises(TrainingStalled):
        run.resume(RunDir(tmp_path / "r").settings())


def test_train_fails_when_a_short_run_skips_every_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from understudy.train import state

    plain = state.TrainState.train_step

    def skipped(self: state.TrainState, *arguments: object) -> object:
        result = plain(self, *arguments)  # type: ignore[arg-type]
        return result._replace(skipped=result.skipped * 0 + 1)

    monkeypatch.setattr(state.TrainState, "train_step", skipped)
    with pytest.raises(TrainingStalled):
        run.train(tiny_config(data, tmp_path / "r", steps=3, val={"every": 0}))


def test_train_accepts_occasional_skipped_steps(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from understudy.train import state

    plain = state.TrainState.train_step

    def sometimes(self: state.TrainState, *arguments: object) -> object:
        result = plain(self, *arguments)  # type: ignore[arg-type]
        return result._replace(skipped=result.skipped * 0 + (self.step % 3 != 0))

    monkeypatch.setattr(state.TrainState, "train_step", sometimes)
    assert (
        run.train(tiny_config(data, tmp_path / "r", max_skipped_steps=3, val={"every": 0}))
        == run.DONE
    )
    assert checkpoint.list_steps(tmp_path / "r/checkpoints")[-1] == 12


# -- values that spoil a normalization -------------------------------------------------------------


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of enough frames that one of them is less than a hundredth."""
    root = tmp_path_factory.mktemp("longer") / "d"
    write_dataset(root, Spec(lengths=(60,) * 6))
    return root


def changed(rows: np.ndarray, values: dict[int, float]) -> list[list[float]]:
    """Rows with other values in dimension 1."""
    return [
        [row[0], values.get(number, row[1]), *row[2:]] for number, row in enumerate(rows.tolist())
    ]


def with_value(data: Path, root: Path, key: str, frame: int, value: float) -> tuple[Path, int]:
    """A copy with one other value, in dimension 1 of a frame of the first file; and that frame's
    episode.
    """
    shutil.copytree(data, root)
    path = sorted(root.glob("data/chunk-*/*.parquet"))[0]
    edit_column(path, key, lambda rows: changed(rows, {frame: value}))
    return root, int(pq.read_table(path)["episode_index"][frame].as_py())


@pytest.mark.parametrize("value", [-1e9, 3e38])
@pytest.mark.parametrize("mode", ["mean_std", "quantile"])
@pytest.mark.parametrize("key", ["action", "observation.state"])
@pytest.mark.parametrize("held_out", [False, True])
def test_one_value_far_from_all_is_named(
    longer: Path, tmp_path: Path, mode: str, key: str, held_out: bool, value: float
) -> None:
    root, episode = with_value(longer, tmp_path / "d", key, 3, value)
    config = tiny_config(root, tmp_path / "r")
    config = replace(
        config,
        data=replace(
            config.data,
            normalize=mode,
            val_episodes=(episode,) if held_out else (5,),
            val_fraction=0.0,
        ),
    )
    with pytest.raises(DatasetError, match=rf"episode {episode}, frame 3: {key}\[1\]") as caught:
        compute_normalization(open_data(config), config.data.normalize)
    assert f"exclude_episodes {episode}" in caught.value.fix
    left = replace(
        config, data=replace(config.data, exclude_episodes=(episode,), val_episodes=(5,))
    )
    compute_normalization(open_data(left), left.data.normalize)


def test_a_value_that_makes_the_spread_too_wide_is_told_and_a_rare_movement_is_not(
    longer: Path, tmp_path: Path
) -> None:
    root, _ = with_value(longer, tmp_path / "d", "action", 3, 1e4)
    config = tiny_config(root, tmp_path / "r")
    with pytest.warns(UserWarning, match=r"action\[1\]"):
        compute_normalization(open_data(config), "min_max")
    quiet, _ = with_value(longer, tmp_path / "q", "action", 3, 5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mode in ("mean_std", "min_max", "quantile"):
            data = open_data(tiny_config(quiet, tmp_path / "r"))
            compute_normalization(data, mode)  # type: ignore[arg-type]


RARE = {
    "flag": 1.0,
    "gripper in millimetres": -80.0,
    "motor in ticks": 4096.0,
    "motor in ticks of 19 bits": 501_923.0,
}


@pytest.mark.parametrize("value", RARE.values(), ids=RARE)
@pytest.mark.parametrize("times", [1, 3])
def test_a_column_that_rests_but_for_a_few_frames_is_used_as_it_is(
    longer: Path, tmp_path: Path, value: float, times: int
) -> None:
    root = tmp_path / "d"
    shutil.copytree(longer, root)
    for path in sorted(root.glob("data/chunk-*/*.parquet")):
        table = pq.read_table(path, columns=["frame_index", "episode_index"])
        numbers = enumerate(
            zip(table["frame_index"].to_pylist(), table["episode_index"].to_pylist())
        )
        values = {
            row: value if episode == 2 and frame < times else 0.0
            for row, (frame, episode) in numbers
        }
        edit_column(path, "action", lambda rows, values=values: changed(rows, values))
    data = open_data(tiny_config(root, tmp_path / "r"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for mode in ("mean_std", "min_max", "quantile"):
            computed = compute_normalization(data, mode)  # type: ignore[arg-type]
            spread = computed["action"]["spread"][0][1]
            assert 0 < spread <= abs(value)
    assert abs(value) > 1000 or not told
    assert not [w for w in told if "quantile" in str(w.message)]  # it would be of no help


def test_a_resting_column_with_a_value_beyond_all_counts_is_named(
    longer: Path, tmp_path: Path
) -> None:
    data = open_data(tiny_config(longer, tmp_path / "r"))
    nothing = np.zeros(1)
    known = Statistics(100, nothing, nothing + 1e7, nothing, nothing + 1e9, nothing, nothing)
    with pytest.raises(DatasetError):
        check_outliers("action", known, known.min, known.max, data.training)
