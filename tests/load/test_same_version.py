"""All ranks read one version of their datasets, with a process group and without one, or one is
refused.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.load import same_version
from understudy_data.load.loader import Loader
from understudy_kit import main

FEATURES: dict[str, Any] = {"action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]}}
RANK = """
import json, os, sys
from understudy_data.load.loader import Loader
root, rank, group = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if group:
    import torch.distributed as dist
    store = dist.TCPStore("127.0.0.1", int(group), None, False, wait_for_workers=False)
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), "2"
    dist.distributed_c10d._get_default_store = lambda: store
    dist.is_initialized = lambda: True
    dist.get_rank, dist.get_world_size = (lambda: rank), (lambda: 2)
loader = Loader(root, batch_size=8, seed=0, rank=rank, world_size=2, num_threads=1)
read = []
for _ in range(8):
    batch = next(loader)
    read += zip(batch["episode_index"].tolist(), batch["frame_index"].tolist())
print(json.dumps(read), flush=True)
sys.stdin.read()
loader.close()
"""


def record(root: Path, episodes: int) -> Path:
    with EpisodeWriter(root, fps=10, features=FEATURES, resume=True) as writer:
        for _ in range(episodes):
            for frame in range(16):
                writer.add_frame({"action": np.full(2, frame, np.float32)}, "t")
            writer.save_episode()
    return root


def publish(*words: Path) -> None:
    assert main(["publish", *map(str, words)]) == 0


class Rank:
    """A process with a loader of rank `number`, which runs until it is ended."""

    def __init__(self, root: Path, number: int, group: str = "") -> None:
        words = [sys.executable, "-c", RANK, str(root), str(number), group]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.samples = set(map(tuple, json.loads(line))) if line else set()

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate("")
        return self.process.returncode, errors


@pytest.fixture(params=["", "group"])
def group(request: pytest.FixtureRequest) -> Any:
    """The port of a store; "" without a process group."""
    if not request.param:
        yield ""
        return
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    yield str(store.port)
    del store


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (*same_version._LAUNCH, "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.long
@pytest.mark.parametrize("ends", [True, False], ids=["ended", "alive"])
def test_a_rank_that_starts_after_a_publication_reads_that_of_the_others(
    tmp_path: Path, group: str, ends: bool
) -> None:
    arms = [record(tmp_path / name, 5) for name in ("arm1", "arm2")]
    out = tmp_path / "all"
    publish(arms[0], out)
    first = Rank(out, 0, group)
    if ends:
        first.end()
    publish(*arms, out)
    second = Rank(out, 1, group)
    assert len(first.samples) == len(second.samples) == 32
    assert not first.samples & second.samples
    code, errors = second.end()
    assert (code, "000001" in errors) == (0, True), errors
    first.end()


@pytest.mark.short("group")
def test_a_rank_that_starts_after_a_recording_is_refused(tmp_path: Path, group: str) -> None:
    root = record(tmp_path / "d", 5)
    first = Rank(root, 0, group)
    record(root, 1)
    second = Rank(root, 1, group)
    assert second.samples == set()
    code, errors = second.end()
    assert (code, "ConfigError" in errors, str(root) in errors) == (1, True, True), errors
    assert first.end()[0] == 0


@pytest.mark.short("group")
def test_ranks_of_one_version_start_in_any_sequence_and_again(tmp_path: Path, group: str) -> None:
    root = record(tmp_path / "d", 5)
    ranks = [Rank(root, number, group) for number in (1, 0)]
    assert not ranks[0].samples & ranks[1].samples
    assert [rank.end()[0] for rank in ranks] == [0, 0]


@pytest.mark.long
def test_a_new_start_of_all_ranks_reads_the_new_publication(tmp_path: Path) -> None:
    """Within the hour, in any sequence, and one rank that ended alone belongs to no later start."""
    arms = [record(tmp_path / name, 5) for name in ("arm1", "arm2")]
    out = tmp_path / "all"
    publish(arms[0], out)
    for rank in [Rank(out, number) for number in (0, 1)]:
        rank.end()
    publish(*arms, out)
    ranks = [Rank(out, number) for number in (1, 0)]
    assert not ranks[0].samples & ranks[1].samples
    assert max(episode for episode, _ in ranks[0].samples | ranks[1].samples) >= 5
    for rank in ranks:
        code, errors = rank.end()
        assert (code, "publication" in errors) == (0, False), errors


@pytest.mark.long
def test_a_recording_that_grew_between_two_starts_is_read(tmp_path: Path) -> None:
    root = record(tmp_path / "d", 5)
    assert Rank(root, 0).end()[0] == 0
    record(root, 1)
    for number in (1, 0):
        assert Rank(root, number).end()[0] == 0


def test_loaders_of_one_process_and_single_loaders_are_not_compared(tmp_path: Path) -> None:
    root = record(tmp_path / "d", 5)
    first = Loader(root, batch_size=8, seed=0, rank=0, world_size=2)
    record(root, 1)
    Loader(root, batch_size=8, seed=0, rank=1, world_size=2).close()
    first.close()
    count = len(list((tmp_path / "cache").rglob("ranks/*.json")))
    Loader(root, batch_size=8, seed=0).close()
    assert len(list((tmp_path / "cache").rglob("ranks/*.json"))) == count == 1


def test_old_files_of_starts_are_removed(tmp_path: Path) -> None:
    root = record(tmp_path / "d", 5)
    Loader(root, batch_size=8, seed=0, rank=0, world_size=2).close()
    (old,) = (tmp_path / "cache").rglob("ranks/*.json")
    os.utime(old, (0, 0))
    Loader(root, batch_size=8, seed=1, rank=0, world_size=2).close()
    assert not old.exists()


def test_without_a_cache_folder_nothing_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = record(tmp_path / "d", 5)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    Loader(root, batch_size=8, seed=0, rank=0, world_size=2).close()
