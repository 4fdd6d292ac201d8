"""A run over hundreds of small sources from a list file: killed and continued, while its list and
folders change.
"""

import json
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import many_sources
from understudy.config.train import TrainConfig
from understudy.distributed.mesh import join_mesh
from understudy.testing import resumed
from understudy.testing.ranks import outcomes_in_ranks
from understudy.testing.runs import same_run, tiny_config
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.input_contract import IMAGES
from understudy.train.data.run_data import open_data
from understudy.train.run_record import new_run_record
from understudy_data.testing.opened_files import opened_below
from understudy_kit import validate_new

SOURCES = 150
STEPS = 10
BATCH = 16
FEW = 80


def write_list(path: Path, sources: int) -> None:
    """List file of the first sources, with weights over four decades."""
    lines = ["path,weight,action,state,control_mode"]
    for number in range(sources):
        action, state, _ = many_sources.SPELLINGS[number % len(many_sources.SPELLINGS)]
        lines.append(f"sources/source-{number:05d},{10 ** (number % 5 - 2)},{action},{state},joint")
    path.write_text("\n".join(lines) + "\n")


def settings(folder: Path, out: Path) -> TrainConfig:
    """Settings of a run over the sources of the list file."""
    data = {"sources": str(folder / "list.csv"), "chunk_size": 3, "cache": str(folder / "cache")}
    config = tiny_config(folder, out, steps=STEPS, batch_size=BATCH, val={"every": 5})
    return replace(config, data=validate_new(TrainConfig, {"data": data}).data)


def killed(folder: Path, out: Path, step: int) -> None:
    """Start a run, and kill its process while it computes a step."""
    with resumed.watched(out, {step: resumed.send(signal.SIGKILL)}):
        run.train(settings(folder, out))


def test_a_second_start_opens_the_files_of_few_sources_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cache each start would parse all metadata, read all rows and open all videos."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    many_sources.write(tmp_path / "sources", FEW, with_videos=True)
    plain = many_sources.settings(tmp_path / "sources", FEW, with_videos=True)
    plain["data"]["cache"] = str(tmp_path / "cache")
    opened = []
    for number in range(2):
        config = validate_new(TrainConfig, {**plain, "output_dir": str(tmp_path / f"{number}")})
        with opened_below(tmp_path / "sources") as paths, join_mesh(config) as mesh:
            data = open_data(config.resolved())
            record = new_run_record(config.resolved(), data, mesh)
        opened.append(Counter("/".join(Path(path).parts[1:3]) for path in set(paths)))
        assert len(record["order"]["sources"]) == FEW
    first, second = opened
    videos = [
        sum(count for path, count in of.items() if path.startswith("videos")) for of in opened
    ]
    assert first["meta/tasks.parquet"] == first["meta/episodes"] == videos[0] == FEW
    assert second["meta/info.json"] == FEW  # its content decides all else
    assert second["meta/tasks.parquet"] == second["meta/episodes"] == 0
    assert videos[1] <= IMAGES
    assert second["data/chunk-000"] <= FEW  # those of a shared head are confronted


@pytest.mark.long
def test_a_killed_run_over_many_sources_is_identical(tmp_path: Path) -> None:
    many_sources.write(tmp_path / "sources", SOURCES, with_videos=False)
    write_list(tmp_path / "list.csv", SOURCES)
    with resumed.watched(tmp_path / "whole"):
        assert run.train(settings(tmp_path, tmp_path / "whole")) == run.DONE
    (kind, code), *_ = outcomes_in_ranks(1, killed, tmp_path, tmp_path / "r", 7)
    assert (kind, code) == ("died", -signal.SIGKILL)
    assert checkpoint.list_steps(tmp_path / "r/checkpoints") == [4]

    shutil.copytree(tmp_path / "sources/source-00000", tmp_path / "sources/source-99999")
    write_list(tmp_path / "list.csv", 2)
    stored = RunDir(tmp_path / "r").settings()
    assert [source.root for source in stored.data.sources] == [
        f"{tmp_path}/sources/source-{number:05d}" for number in range(SOURCES)
    ]
    with resumed.watched(tmp_path / "r", session=1):
        assert run.resume(stored) == run.DONE
    same_run(tmp_path / "whole", tmp_path / "r")
    assert resumed.consumed(tmp_path / "r") == Counter(range(STEPS * BATCH))
    orders = [
        json.loads((tmp_path / name / "order.json").read_text())["order"] for name in ("whole", "r")
    ]
    assert orders[0] == orders[1]
    slots = np.array(orders[0]["schedule"][0]["slots"])
    weights = np.array([10.0 ** (number % 5 - 2) for number in range(SOURCES)])
    assert np.allclose(slots / slots.sum(), weights / weights.sum(), rtol=0, atol=1 / (BATCH << 20))
