"""`understudy fast fit`."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.runs import tiny_config, tiny_dataset
from understudy.cli.main import main
from understudy.cli.prepare import read_chunks
from understudy.config.schema import override
from understudy.policies.common.fast_tokenizer import FastTokenizer
from understudy.policies.registry import policy_type
from understudy.train.data.run_data import compute_normalization, open_data

pytest.importorskip("tokenizers", reason="needs the extra pi05")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("data"))


def test_fit_writes_a_tokenizer_of_normalized_actions(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fast"
    arguments = ["--data.root", str(data), "--output-dir", str(out), "--data.chunk-size", "6", "--json"]
    assert main(["fast", "fit", *arguments]) == 0
    facts = json.loads(capsys.readouterr().out)
    read = FastTokenizer.read(out)
    assert read.kind == "private"
    assert facts["vocab_size"] == read.vocab_size <= 1024
    assert facts["error_max"] <= 0.5 / 10 * np.sqrt(6) + 1e-6  # 6 coefficients, each off by at most 0.05
    assert 1 <= facts["tokens_mean"] <= facts["tokens_max"] <= 6 * 2


def test_chunks_are_normalized_by_quantiles_and_cover_the_training_frames(data: Path, tmp_path: Path) -> None:
    config = replace(tiny_config(data, tmp_path), policy=policy_type("pi05").settings(size="tiny"))
    chunks = list(read_chunks(config))
    opened = open_data(config)
    assert len(chunks) == sum(map(len, opened.training))
    maps = compute_normalization(opened, "quantile")["action"]
    first = opened.training[0].row_batch(*opened.training[0].locate([0]))["action"][0].numpy()
    expected = (first - np.array(maps["offset"][0], np.float32)) / np.array(maps["spread"][0], np.float32)
    np.testing.assert_allclose(chunks[0], expected, rtol=1e-5, atol=1e-6)


def test_chunks_are_differences_to_the_present_state_whatever_its_history(data: Path, tmp_path: Path) -> None:
    config = override(tiny_config(data, tmp_path), data={"delta_action_dims": (0, 1)})
    found = [
        np.stack(list(read_chunks(replace(config, policy=policy_type("pi05").settings(size="tiny", **history)))))
        for history in ({}, {"history": (0.1, 0.3), "state_history": True})
    ]
    np.testing.assert_array_equal(found[0], found[1])


def test_chunks_are_those_of_weights_on_the_hub(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    kind = type(policy_type("pi05").settings())
    monkeypatch.setattr(kind, "stored_chunk", lambda own: 5 if own.weights == str(tmp_path) else None)
    monkeypatch.setattr(kind, "choose_normalization", lambda own, computed: computed)
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **_: str({"me/weights": tmp_path}[name]))
    base = override(tiny_config(data, tmp_path), data={"chunk_size": None})
    config = replace(base, policy=policy_type("pi05").settings(size="tiny", weights="me/weights"))
    assert {chunk.shape for chunk in read_chunks(config)} == {(5, 2)}


def test_fit_overwrites_nothing(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("mine")
    assert main(["fast", "fit", "--data.root", str(data), "--output-dir", str(tmp_path)]) == 2
    assert "output_dir" in capsys.readouterr().err
    assert main(["fast", "fit", "--data.root", str(data)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_fit_refuses_more_integers_than_tokens(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--data.root", str(data), "--output-dir", str(tmp_path / "o"), "--fast.scale", "1e6"]
    assert main(["fast", "fit", *arguments]) == 2
    assert "vocab_size" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
