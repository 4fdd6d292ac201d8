"""A run that is stopped and resumed, perhaps on another mesh, equals the whole one bit for bit, whatever it trains.

Flow in one process is in test_run.py.
"""

import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import resumed
from support.killed import WORLD_ACTION
from support.ranks import in_ranks
from support.runs import same_run, tiny_config, tiny_dataset, trained_run
from understudy.config.schema import override
from understudy.config.train import TrainConfig
from understudy.policies.registry import policy_type
from understudy.train import run
from understudy.train.checkpoint.run_dir import RunDir


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/ and, where their packages are installed, tok/ and fast/ for pi0.5."""
    folder = tmp_path_factory.mktemp("policies")
    tiny_dataset(folder / "data")
    return folder


def write_tokenizers(files: Path) -> None:
    if (files / "tok").exists():
        return
    for package in ("sentencepiece", "tokenizers"):
        pytest.importorskip(package, reason="needs the extra pi05")
    from support.sentences import write_model
    from understudy.policies.common.fast_tokenizer import FastTokenizer

    write_model(files / "tok")
    time = np.linspace(0, 1, 3)[:, None]
    rates = np.linspace(0, 3, 100)
    FastTokenizer.fit([np.sin(time * rate + np.arange(2)) for rate in rates], vocab_size=60).save(files / "fast")


def pi(kind: str, **settings: Any) -> Callable[[Path], dict[str, Any]]:
    """Changes of a run of pi0.5 or pi0; "fast" is the name of a folder."""

    def changes(files: Path) -> dict[str, Any]:
        write_tokenizers(files)
        texts = {name: str(files / folder) for name, folder in settings.items() if name == "fast"}
        base = {"size": "tiny", "tokenizer": str(files / "tok"), "prompt_tokens": 64}
        return {"policy": policy_type(kind).settings(**(base | settings | texts))}

    return changes


def adapters(files: Path) -> dict[str, Any]:
    """Low-rank adapters on the policy of another run."""
    if not (files / "base").exists():
        trained_run(files / "base")
    return {"init_from": str(files / "base/policy"), "lora": {"rank": 4, "alpha": 8.0}}


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "adapters": adapters,
    "adapters on bf16-split": lambda files: {**adapters(files), "precision": "bf16-split"},
    "pi05 with text and action tokens": pi("pi05", max_delay=1, fast="fast", action_tokens=48, response_tokens=8),
    "pi05 with a history": pi("pi05", history=(0.2, 0.4), state_history=True),
    "pi0 in parts by tokens": lambda files: {**pi("pi0", max_delay=1)(files), "max_num_tokens": 160, "max_samples": 3},
    "one instruction of several": lambda files: {"augment": {"task_separator": " the "}},
    "world_action": lambda files: {"policy": WORLD_ACTION, "mode": "joint"},
}
MESHES = {"one instruction of several": (2, 1), "world_action": (2, 1)}
"""Processes and shards of the resumed run; one process where none are named."""
SHORT = ("adapters", "pi05 with text and action tokens", "one instruction of several", "world_action")


def resume_sharded(out: Path, shards: int) -> int:
    return run.resume(override(RunDir(out).settings(), parallel={"dp_shard": shards}))


@pytest.mark.parametrize(
    ("case", "mesh"),
    [
        *(pytest.param(c, MESHES.get(c, (1, 1)), marks=() if c in SHORT else pytest.mark.long) for c in CASES),
        *(pytest.param("world_action", mesh, marks=pytest.mark.long) for mesh in ((2, 2), (4, 2))),
    ],
)
def test_resumed_run_equals_the_whole(files: Path, tmp_path: Path, case: str, mesh: tuple[int, int]) -> None:
    world, shards = mesh
    config: TrainConfig = tiny_config(
        files / "data", tmp_path / "whole", steps=5, checkpoint={"every": 2}, val={"every": 4}, log={"report": False}
    )
    config = override(config, **CASES[case](files))
    if world > 1:
        config = override(config, batch_size=8, micro_batch_size=2, device="cpu")
    if config.policy.type == "pi05":
        config = override(config, data={"response": "task"} if config.policy.response_tokens else {})
    assert run.train(config) == run.DONE
    cut = replace(config, output_dir=str(tmp_path / "cut"))
    if config.init_from:
        shutil.copytree(config.init_from, tmp_path / "start")
        cut = replace(cut, init_from=str(tmp_path / "start"))
    with resumed.watched(tmp_path / "cut", {3: resumed.send(signal.SIGTERM)}):
        assert run.train(cut) == run.STOPPED
    shutil.rmtree(tmp_path / "start", ignore_errors=True)  # a checkpoint needs no other file
    if world == 1:
        assert run.resume(RunDir(tmp_path / "cut").settings()) == run.DONE
    else:
        assert in_ranks(world, resume_sharded, tmp_path / "cut", shards) == [run.DONE] * world
    same_run(tmp_path / "whole", tmp_path / "cut")
