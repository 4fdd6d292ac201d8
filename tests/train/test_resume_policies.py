"""A run that is stopped and resumed equals the whole one bit for bit, with adapters and for pi0.5 and pi0.

Flow is in test_run.py, world_action in test_world_action_runs.py.
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
    "pi0": pi("pi0", max_delay=1),
}
SHORT = ("adapters", "pi05 with text and action tokens")


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in SHORT else pytest.mark.long) for c in CASES])
def test_resumed_run_equals_the_whole(files: Path, tmp_path: Path, case: str) -> None:
    config: TrainConfig = tiny_config(
        files / "data", tmp_path / "whole", steps=5, checkpoint={"every": 2}, val={"every": 4}, log={"report": False}
    )
    config = override(config, **CASES[case](files))
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
    assert run.resume(RunDir(tmp_path / "cut").settings()) == run.DONE
    same_run(tmp_path / "whole", tmp_path / "cut")
