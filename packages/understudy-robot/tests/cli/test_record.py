"""`understudy record`: the dataset equals the expert's episodes, in balanced tasks, also after a
kill.
"""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_base import ConfigError, DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_kit import complete
from understudy_robot.cli import record as module
from understudy_robot.cli.record import RecordConfig, demonstrate, record

pytest.importorskip("mujoco", reason="the extra `demo` is not installed")

from understudy_robot.envs.env import Outcome, layout_seed
from understudy_robot.envs.registry import open_env
from understudy_robot.envs.tabletop import TabletopEnv  # (after the skip)

FRONT = "observation.images.front"


def settings(out: Path, **more: Any) -> RecordConfig:
    return complete(RecordConfig(output_dir=str(out), **{"episodes": 5, "image_size": 32, **more}))


def contents(root: Path) -> list[dict[str, Any]]:
    data = EpisodeDataset(root)
    return [data[i] for i in range(len(data))]


def assert_equal(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> None:
    assert len(one) == len(two)
    for a, b in zip(one, two):
        assert set(a) == set(b)
        for key in a:
            assert a[key] == b[key] if isinstance(a[key], str) else (a[key] == b[key]).all(), key


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recorded") / "data"
    assert record(settings(root)) == 0
    return root


def test_record_reads_back_the_expert_s_episodes(recorded: Path) -> None:
    env = open_env("tabletop", 32)
    catalog = Catalog.open(recorded)
    assert catalog.fps == env.fps
    assert set(env.features) <= set(catalog.features)
    assert list(catalog.tasks) == list(env.tasks)
    samples = iter(contents(recorded))
    for episode in range(5):
        frames, task, failed = demonstrate(env, settings(recorded), episode)
        assert failed == 0
        for number, frame in enumerate(frames):
            sample = next(samples)
            assert (int(sample["episode_index"]), int(sample["frame_index"])) == (episode, number)
            assert sample["task"] == task == env.tasks[episode % 3]
            np.testing.assert_array_equal(
                sample["observation.state"].numpy(), frame["observation.state"]
            )
            np.testing.assert_array_equal(sample["action"].numpy(), frame["action"])
            # Lossy video of sharp small images, chroma at half size: close in the mean.
            image = sample[FRONT].permute(1, 2, 0).numpy().astype(int)
            assert np.abs(image - frame[FRONT]).mean() < 6
    assert next(samples, None) is None


def test_record_stores_the_noise_free_action() -> None:
    env = open_env("tabletop", 16)
    noisy, *_ = demonstrate(env, settings(Path("x"), noise=0.3), 0)
    clean, *_ = demonstrate(env, settings(Path("x"), noise=0.0), 0)
    moved = np.diff([frame["observation.state"][:3] for frame in noisy], axis=0) / 0.015
    meant = np.array([frame["action"][:3] for frame in noisy])[:-1]
    assert 0.15 < np.std(moved - meant) < 0.4  # (clipping takes some of the 0.3)
    moved = np.diff([frame["observation.state"][:3] for frame in clean], axis=0) / 0.015
    np.testing.assert_allclose(
        moved, np.array([frame["action"][:3] for frame in clean])[:-1], atol=0.01
    )


def test_demonstrate_is_a_function_of_the_seed(tmp_path: Path, recorded: Path) -> None:
    env = open_env("tabletop", 32)
    one, *_ = demonstrate(env, settings(tmp_path), 4)
    two, *_ = demonstrate(open_env("tabletop", 32), settings(tmp_path), 4)
    other, *_ = demonstrate(env, settings(tmp_path, seed=1), 4)
    for a, b in zip(one, two):
        np.testing.assert_array_equal(a[FRONT], b[FRONT])
        np.testing.assert_array_equal(a["action"], b["action"])
    assert (one[0][FRONT] != other[0][FRONT]).any()


def test_record_uses_training_layouts_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeds = []
    reset = TabletopEnv.reset
    monkeypatch.setattr(
        TabletopEnv, "reset", lambda self, seed, task: seeds.append(seed) or reset(self, seed, task)
    )
    record(settings(tmp_path / "data", episodes=4, seed=3))
    assert seeds == [layout_seed(3, episode) for episode in range(4)]
    assert max(seeds) < 2**62


def test_record_of_another_environment_has_its_keys(tmp_path: Path) -> None:
    assert record(settings(tmp_path / "data", env="recall", episodes=2)) == 0
    data = EpisodeDataset(tmp_path / "data")
    env = open_env("recall", 32)
    assert set(env.features) <= set(data.catalog.features)
    assert list(data.catalog.tasks) == list(env.tasks)


# -- continuing ------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_robot.cli.record import RecordConfig, record
add, frames = EpisodeWriter.add_frame, 0
def add_frame(self, values, task):
    global frames
    frames += 1
    if frames == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, values, task)
EpisodeWriter.add_frame = add_frame
record(RecordConfig(output_dir=sys.argv[1], episodes=5, image_size=32))
"""


def test_record_continues_after_a_kill_to_the_same_dataset(tmp_path: Path, recorded: Path) -> None:
    root = tmp_path / "data"
    lengths = Catalog.open(recorded).episodes.lengths
    at = int(lengths[:2].sum()) + 4  # in the third episode
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(root), str(at)], capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(Catalog.open(root).episodes.ids) == 2
    record(settings(root))
    assert_equal(contents(root), contents(recorded))


@pytest.mark.parametrize("episodes", [5, 1])
def test_record_of_a_complete_dataset_changes_no_file(
    episodes: int, tmp_path: Path, recorded: Path
) -> None:
    root = tmp_path / "data"
    shutil.copytree(recorded, root)
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }
    assert record(settings(root, episodes=episodes)) == 0
    after = {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }
    assert after == before


@pytest.mark.long
def test_record_in_parts_leaves_the_same_statistics(tmp_path: Path, recorded: Path) -> None:
    for episodes in (1, 3, 5):
        record(settings(tmp_path / "data", episodes=episodes))
    assert (tmp_path / "data/meta/stats.json").read_bytes() == (
        recorded / "meta/stats.json"
    ).read_bytes()


def test_record_refuses_other_settings_without_changes(tmp_path: Path) -> None:
    root = tmp_path / "data"
    record(settings(root, episodes=1))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with refused("seed", 0, 7, "noise", None, 0.1, kind=ConfigError):
        record(settings(root, seed=7, noise=0.1))
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_record_refuses_a_foreign_folder(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DatasetError):
        record(settings(tmp_path))
    with refused(where=str(tmp_path / "thesis.txt")):
        record(settings(tmp_path / "thesis.txt"))
    root = tmp_path / "data"
    record(settings(root, episodes=1))
    (root / module.NOTE).write_text("{")
    with refused(root / module.NOTE, kind=ConfigError):
        record(settings(root))
    (root / module.NOTE).unlink()
    with refused(root, module.NOTE, kind=ConfigError):
        record(settings(root))


# -- an expert that fails --------------------------------------------------------------------------


class Clumsy(TabletopEnv):
    """Fails at every layout whose attempt number is below `failures`."""

    failures = 0

    def reset(self, seed: int, task: str) -> dict[str, np.ndarray]:
        self.fails = seed % 64 < self.failures
        return super().reset(seed, task)

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], Outcome]:
        observation, outcome = super().step(action)
        return observation, replace(outcome, completed_task=None) if self.fails else outcome


@pytest.mark.long
def test_record_keeps_successes_and_counts_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("understudy_robot.envs.registry.open_env", lambda *_: Clumsy(32))
    monkeypatch.setattr(Clumsy, "failures", 2)
    root = tmp_path / "data"
    record(settings(root, episodes=3))
    assert "succeeded in 3 of 9 attempts" in capsys.readouterr().out
    first = contents(root)[0]
    env = TabletopEnv(32)
    observation = env.reset(layout_seed(0, 0, attempt=2), env.tasks[0])
    np.testing.assert_array_equal(
        first["observation.state"].numpy(), observation["observation.state"]
    )
    monkeypatch.setattr(Clumsy, "failures", 64)
    with refused(64, env.tasks[0], kind=ConfigError):
        demonstrate(Clumsy(16), settings(tmp_path), 0)


@pytest.mark.long
def test_record_accepts_other_settings_before_the_first_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error suggests less noise, so a second try with less must work."""
    with monkeypatch.context() as patch:
        patch.setattr("understudy_robot.envs.registry.open_env", lambda *_: Clumsy(32))
        patch.setattr(Clumsy, "failures", 64)
        with refused(64, "noise", 0.2, kind=ConfigError):
            record(settings(tmp_path / "data", episodes=1, noise=0.2))
    record(settings(tmp_path / "data", episodes=1, noise=0.1))
    assert len(Catalog.open(tmp_path / "data").episodes) == 1


# -- settings --------------------------------------------------------------------------------------


def test_record_names_all_wrong_settings() -> None:
    with refused("output_dir", "image_size", "33x33", kind=ConfigError):
        complete(RecordConfig(image_size=33))
    with refused("image_size", "62x62", "libx265", 64, kind=ConfigError):
        complete(RecordConfig(output_dir="unused", image_size=62, codec="libx265"))
    with pytest.raises(ConfigError, match="'pink'"):
        record(RecordConfig(output_dir="unused", tasks=("pink",)))
    assert not Path("unused").exists()


@pytest.mark.long
def test_record_balances_tasks(tmp_path: Path) -> None:
    root = tmp_path / "data"
    record(settings(root, episodes=4, tasks=("blue", "green")))
    tasks = [sample["task"] for sample in contents(root) if int(sample["frame_index"]) == 0]
    assert tasks == ["pick up the blue block", "pick up the green block"] * 2
    assert json.loads((root / module.NOTE).read_text())["tasks"] == ["blue", "green"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_record_metaworld(tmp_path: Path) -> None:
    pytest.importorskip("metaworld", reason="the extra `sim` is not installed")
    root = tmp_path / "data"
    record(settings(root, env="metaworld", episodes=1, tasks=("reach-v3",), cameras=()))
    samples = contents(root)
    assert samples[0]["task"] == "Reach a goal position"
    assert samples[0]["observation.environment_state"].shape == (39,)
    assert 10 < len(samples) < 200
