"""Actions predicted over a validation episode: against a loop over single frames, and through
`understudy view RUN`.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from understudy.testing.runs import SHORT, trained_run
from understudy.train import run
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.validation.open_loop import EpisodeActions, choose_starts
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.selection.select import split_episodes
from understudy_data.order import sample_normal
from understudy_kit.cli import main

CHUNK = 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory.mktemp("actions") / "run", **SHORT)


def recorded(root: Path, episode: int) -> np.ndarray:
    rows = [pq.read_table(file) for file in sorted((root / "data").glob("chunk-*/file-*.parquet"))]
    found = [np.stack(t["action"].to_numpy()) for t in rows]
    ids = [t["episode_index"].to_numpy() for t in rows]
    return np.concatenate(found)[np.concatenate(ids) == episode]


@pytest.mark.parametrize(
    ("frames", "starts"),
    [(range(7), [0, 3, 6]), ([4, 5, 9, 10, 30], [0, 2, 4]), ([], []), ([8], [0])],
)
def test_starts_are_a_chunk_apart(frames: list[int], starts: list[int]) -> None:
    assert choose_starts(np.asarray(frames, np.int64), CHUNK).tolist() == starts


def test_predictions_are_those_of_single_frames(trained: Path) -> None:
    with run.open_checkpoint(trained) as (state, held):
        actions = EpisodeActions(state, held)
        episode = int(actions.episodes(0)[0])
        data = held.datasets[0]
        length = int(data.catalog.episodes.lengths[data.catalog.episodes.row_of(episode)])
        found = actions.predict(0, episode, length)
        assert found["starts"] == list(range(0, length, CHUNK))
        assert (found["chunk"], found["unreadable"], found["actions"].shape) == (
            CHUNK,
            0,
            (length, 2),
        )
        policy = state.eval_policy.eval()
        for start in found["starts"]:
            own = np.flatnonzero((held.episode == episode) & (held.frame == start))
            batch = policy.preprocess(held.batch(own))
            key = held.identity(slice(int(own[0]), int(own[0]) + 1)).numpy()
            [(name, spec)] = policy.random_spec("act").items()
            noise = torch.from_numpy(sample_normal(state.config.seed, "open loop", key, spec.shape))
            with torch.no_grad():
                [chunk] = policy.act(batch, {name: noise}, EpisodeActions.STEPS, "policy")
            steps = min(CHUNK, length - start)
            np.testing.assert_allclose(
                found["actions"][start : start + steps], chunk[:steps, :2], atol=1e-5
            )
        truth = recorded(Path(RunDir(trained).settings().data.root), episode)
        np.testing.assert_allclose(
            found["mae"], np.abs(found["actions"] - truth).mean(0), rtol=1e-5
        )
        state.config = replace(state.config, mode="forward_dynamics")
        with refused("forward_dynamics", kind=ConfigError):
            EpisodeActions(state, held)


@pytest.mark.long
def test_view_shows_validation_episodes_of_a_run(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "page"
    assert (
        main.main(["view", str(trained), "--export", str(out), "--episodes", *map(str, range(10))])
        == 0
    )
    validation = split_episodes(range(10), 0.3)[1].tolist()
    assert sorted(path.name for path in (out / "0").iterdir()) == [
        str(episode) for episode in validation
    ]
    text = (out / f"0/{validation[0]}/predicted.json.js").read_text()
    content = json.loads(text.partition(", ")[2].rpartition(")")[0])
    assert content["starts"][:2] == [0, CHUNK]
    assert len(content["values"]) == 2
    assert None not in content["values"][0]


@pytest.mark.long
def test_view_refuses_training_episodes_and_settings_of_datasets(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = split_episodes(range(10), 0.3)[0].tolist()
    for words in (
        ["--episodes", str(training[0])],
        ["--keep-ranges", "keep.json"],
        ["--checkpoint", "77"],
    ):
        assert main.main(["view", str(trained), "--no-browser", *words]) == main.WRONG_INPUT
        assert words[0].removeprefix("--").split("-")[0] in capsys.readouterr().err
    data = RunDir(trained).settings().data.root
    assert main.main(["view", data, "--no-browser", "--checkpoint", "2"]) == main.WRONG_INPUT
