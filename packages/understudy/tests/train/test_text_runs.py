"""Runs of a policy with texts: tokens reach the training, cuts are counted, files travel with the
weights.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.config.train import TrainConfig
from understudy.policies.common.fast_tokenizer import FastTokenizer
from understudy.policies.inference import load_policy
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.track.metrics_file import read
from understudy_base import ConfigError
from understudy_kit import SourceConfig, validate

pytest.importorskip("sentencepiece", reason="needs the extra pi05")
pytest.importorskip("tokenizers", reason="needs the extra pi05")

from understudy.testing.sentences import model, write_model
from understudy_base.testing.refusals import refused

STEPS = 3
BATCH = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    tiny_dataset(folder / "data")
    write_model(folder)
    FastTokenizer.fit(np.random.default_rng(0).uniform(-1, 1, (300, 4, 2)), 400).save(
        folder / "fast"
    )
    return folder


def settings(files: Path, out: Path, **policy: Any) -> TrainConfig:
    base = tiny_config(files / "data", out, steps=STEPS, val={"every": 0})
    chosen = {"type": "pi05", "size": "tiny", "tokenizer": str(files / "tokenizer.model"), **policy}
    data = replace(
        base.data, chunk_size=4, response="task" if policy.get("response_tokens") else ""
    )
    typed = validate(TrainConfig, {"policy": chosen, "data": {"root": "x"}}).policy
    return replace(
        base,
        data=data,
        policy=typed,
        batch_size=BATCH,
        optim=replace(base.optim, freeze=(), lr_scale={}),
    )


def test_a_run_trains_on_prompts_responses_and_action_tokens(files: Path, tmp_path: Path) -> None:
    texts = {"response_tokens": 2, "fast": str(files / "fast"), "action_tokens": 60}
    config = settings(files, tmp_path / "r", **texts)
    run.train(replace(config, val=replace(config.val, every=STEPS)))
    (validation,) = read(tmp_path / "r" / "metrics.jsonl", "val")
    assert np.isfinite(validation["loss"])
    records = read(tmp_path / "r" / "metrics.jsonl", "train")
    assert len(records) == STEPS
    assert all(np.isfinite(record["loss"]) for record in records)
    for record in records:
        assert record["cut"]["prompt"] == 0
        assert record["cut"]["response"] == BATCH  # every instruction is longer than two tokens
    saved = tmp_path / "r" / "policy"
    assert (saved / "tokenizer.model").read_bytes() == (files / "tokenizer.model").read_bytes()
    assert sorted(path.name for path in (saved / "fast").iterdir()) == [
        "processor_config.json",
        "tokenizer.json",
    ]
    policy = load_policy(saved)
    observation: dict[str, Any] = {
        "observation.state": np.zeros(3, np.float32),
        "task": "push the blue block",
    }
    observation |= {camera: np.zeros((64, 64, 3), np.uint8) for camera in policy.config.cameras}
    assert np.isfinite(policy.act(observation, steps=2)).all()


def test_cut_prompts_are_counted_and_printed(
    files: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run.train(settings(files, tmp_path / "r", prompt_tokens=6))
    assert [record["cut"] for record in read(tmp_path / "r" / "metrics.jsonl", "train")] == [
        {"prompt": BATCH}
    ] * STEPS
    assert "100.00% of the samples" in capfd.readouterr().err


def test_another_tokenizer_stops_a_resumed_run(files: Path, tmp_path: Path) -> None:
    own = write_model(tmp_path / "own")
    config = settings(files, tmp_path / "r", tokenizer=str(own))
    run.train(config)
    assert set(json.loads((tmp_path / "r" / "order.json").read_text())["policy_files"]) == {
        "tokenizer"
    }
    own.write_bytes(model(100))
    with pytest.raises(ConfigError, match=r"policy\.tokenizer"):
        run.resume(replace(config, steps=STEPS + 1))


def test_a_run_without_a_tokenizer_does_not_start(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.tokenizer"):
        run.train(settings(files, tmp_path / "r", tokenizer=""))


def test_a_run_from_weights_takes_their_normalization_and_tokenizer(
    files: Path, tmp_path: Path
) -> None:
    run.train(settings(files, tmp_path / "first"))
    weights = tmp_path / "weights"
    stats = tmp_path / "weights" / "assets" / "arm" / "norm_stats.json"
    stats.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "first" / "policy" / "model.safetensors", weights)
    shutil.copy(files / "tokenizer.model", weights)
    low = {"state": [0.0, -1.0, 2.0], "actions": [0.0, 5.0]}
    high = {"state": [1.0, 1.0, 6.0], "actions": [2.0, 9.0]}
    content = {
        key: {"mean": own, "std": own, "q01": own, "q99": high[key]} for key, own in low.items()
    }
    stats.write_text(json.dumps({"norm_stats": content}))
    run.train(settings(files, tmp_path / "second", tokenizer="", weights=str(weights)))
    found = json.loads((tmp_path / "second" / "order.json").read_text())["normalisation"]
    np.testing.assert_allclose(found["action"]["offset"], [[1.0, 7.0]], rtol=1e-6)
    np.testing.assert_allclose(found["observation.state"]["spread"], [[0.5, 1.0, 2.0]], rtol=2e-6)
    assert json.loads((tmp_path / "second" / "policy" / "normalisation.json").read_text()) == found
    assert (tmp_path / "second" / "policy" / "tokenizer.model").is_file()
    stats.unlink()
    with refused("--policy.normalization", kind=ConfigError):
        run.train(settings(files, tmp_path / "third", tokenizer="", weights=str(weights)))


def test_settings_of_responses_must_agree(files: Path, tmp_path: Path) -> None:
    config = settings(files, tmp_path, response_tokens=20)
    assert not [line for line in config.problems() if "response" in line]
    without = replace(config, data=replace(config.data, response=""))
    unread = replace(settings(files, tmp_path), data=config.data)
    source = SourceConfig(str(files / "data"))
    beside = replace(config, data=replace(config.data, root="", sources=(source,)))
    for wrong in (
        without,
        unread,
        beside,
        replace(tiny_config(files / "data", tmp_path), data=config.data),
    ):
        assert [line.partition(":")[0] for line in wrong.problems()] == ["data.response"]
