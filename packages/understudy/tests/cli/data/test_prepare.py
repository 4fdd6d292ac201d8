"""`understudy tokenizer fit` and `understudy fast fit`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.cli.data.prepare import read_chunks
from understudy.policies.common.fast_tokenizer import FastTokenizer
from understudy.policies.common.fit_text_tokenizer import LEAST_IDS, fit_text_tokenizer
from understudy.policies.pi05.config import Sizes
from understudy.policies.pi05.text import PAD, TextTokenizer, clean
from understudy.policies.registry import policy_type
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train.data.run_data import open_data
from understudy.train.data.run_normalization import choose_normalization, compute_normalization
from understudy_base import ConfigError, create_folder
from understudy_data.datasets.stats import norm_heads
from understudy_data.testing.datasets import TASKS
from understudy_kit import main, override

pytest.importorskip("sentencepiece", reason="needs the extra pi05")
pytest.importorskip("tokenizers", reason="needs the extra pi05")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("data"))


def fit(data: Path, out: Path, *arguments: str) -> int:
    return main(
        [
            "tokenizer",
            "fit",
            "--data.root",
            str(data),
            "--output-dir",
            str(out),
            "--json",
            *arguments,
        ]
    )


def test_fitted_tokenizer_has_the_ids_and_prompts_of_paligemma(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(data, tmp_path / "one", "--policy.size", "tiny") == 0
    facts = json.loads(capsys.readouterr().out)
    assert fit(data, tmp_path / "two", "--policy.size", "tiny") == 0
    assert (tmp_path / "one/tokenizer.model").read_bytes() == (
        tmp_path / "two/tokenizer.model"
    ).read_bytes()
    read = TextTokenizer.read(tmp_path / "one", Sizes.TINY.vocab)
    model: Any = read.model
    assert (model.pad_id(), model.eos_id(), model.bos_id(), model.unk_id()) == (PAD, 1, 2, 3)
    assert len(model.encode("\n")) == 1
    assert facts["vocab_size"] == model.vocab_size() <= 512
    # digits are never merged
    assert [len(model.encode(digits)) for digits in ("255", " 7")] == [3, 2]
    cut = [
        read.prompts(TASKS, [[255] * 3] * 3, facts["tokens_max"] - less).is_cut.any()
        for less in (0, 1)
    ]
    assert cut == [False, True]  # `tokens_max` is the length of the longest
    for text in (*TASKS, "Grün, 漢字 \t and  spaces"):
        assert model.decode(model.encode(text)) == text
    words = [model.encode(text, out_type=str) for text in TASKS]
    assert "▁block" in words[0]  # whole words of the tasks


def test_tokens_max_counts_the_line_end_of_plain_prompts(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(data, tmp_path / "plain", "--policy.size", "tiny", "--policy.prompt", "plain") == 0
    longest = json.loads(capsys.readouterr().out)["tokens_max"]
    read = TextTokenizer.read(tmp_path / "plain", Sizes.TINY.vocab)
    assert [read.prompts(TASKS, None, longest - less).is_cut.any() for less in (0, 1)] == [
        False,
        True,
    ]


def test_responses_are_fitted_too(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    response = (
        "--policy.size",
        "tiny",
        "--data.response",
        "task",
        "--policy.response-tokens",
        "16",
    )
    assert fit(data, tmp_path / "with", *response) == 0
    assert json.loads(capsys.readouterr().out)["responses"] == len(TASKS)
    read = TextTokenizer.read(tmp_path / "with", Sizes.TINY.vocab)
    pieces = [read.model.encode(text, out_type=str) for text in map(clean, TASKS)]
    assert all(not piece.startswith("<0x") for own in pieces for piece in own)
    assert "Subtask" in read.model.encode("Subtask: ", out_type=str)[0]


def test_fit_refuses_ids_that_would_be_those_of_other_tokens(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    room = Sizes.TINY.vocab - 128
    assert fit(data, out, "--policy.size", "tiny", "--tokenizer.vocab-size", str(room + 1)) == 2
    assert str(room) in capsys.readouterr().err
    assert fit(data, out, "--policy.type", "flow") == 2
    assert fit(data, out, "--policy.size", "tiny", "--tokenizer.vocab-size", "100") == 2
    assert not out.exists()
    (tmp_path / "mine").write_text("mine")
    assert fit(data, tmp_path) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.long
def test_fit_fetches_the_weights_of_the_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights that cannot be fetched end the command; without them the settings would be others
    than the run's.
    """
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")

    def refuse(name: str, **_: object) -> str:
        raise ValueError(f"no {name}")

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    assert (
        fit(data, tmp_path / "out", "--policy.size", "tiny", "--policy.weights", "me/weights") == 2
    )
    assert "policy.weights: me/weights" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_fit_text_tokenizer_needs_one_id_per_character() -> None:
    least = LEAST_IDS + len(set("a b"))
    assert fit_text_tokenizer(["a b", "b"], least) == fit_text_tokenizer(["b", "a b", "b"], least)
    with pytest.raises(ConfigError):
        fit_text_tokenizer(["a b"], least - 1)
    with pytest.raises(ConfigError):
        fit_text_tokenizer([" ", ""], 512)


# -- `understudy fast fit` ----------


def test_fit_writes_a_tokenizer_of_normalized_actions(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fast"
    arguments = [
        "--data.root",
        str(data),
        "--output-dir",
        str(out),
        "--data.chunk-size",
        "6",
        "--json",
    ]
    assert main(["fast", "fit", *arguments]) == 0
    facts = json.loads(capsys.readouterr().out)
    read = FastTokenizer.read(out)
    assert read.kind == "private"
    assert facts["vocab_size"] == read.vocab_size <= 1024
    # 6 coefficients, each off by at most 0.05
    assert facts["error_max"] <= 0.5 / 10 * np.sqrt(6) + 1e-6
    assert 1 <= facts["tokens_mean"] <= facts["tokens_max"] <= 6 * 2


def test_chunks_are_normalized_by_quantiles_and_cover_the_training_frames(
    data: Path, tmp_path: Path
) -> None:
    config = replace(tiny_config(data, tmp_path), policy=policy_type("pi05").settings(size="tiny"))
    chunks = list(read_chunks(config))
    opened = open_data(config)
    assert len(chunks) == sum(map(len, opened.training))
    maps = compute_normalization(opened, "quantile")["action"]
    first = opened.training[0].row_batch(*opened.training[0].locate([0]))["action"][0].numpy()
    expected = (first - np.array(maps["offset"][0], np.float32)) / np.array(
        maps["spread"][0], np.float32
    )
    np.testing.assert_allclose(chunks[0], expected, rtol=1e-5, atol=1e-6)


def test_chunks_are_differences_to_the_present_state_whatever_its_history(
    data: Path, tmp_path: Path
) -> None:
    config = override(tiny_config(data, tmp_path), data={"delta_action_dims": (0, 1)})
    found = [
        np.stack(
            list(
                read_chunks(
                    replace(config, policy=policy_type("pi05").settings(size="tiny", **history))
                )
            )
        )
        for history in ({}, {"history": (0.1, 0.3), "state_history": True})
    ]
    np.testing.assert_array_equal(found[0], found[1])


def test_chunks_are_those_of_weights_on_the_hub(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    kind = type(policy_type("pi05").settings())
    monkeypatch.setattr(
        kind, "stored_chunk", lambda own: 5 if own.weights == str(tmp_path) else None
    )
    monkeypatch.setattr(kind, "choose_normalization", lambda own, computed: computed)
    monkeypatch.setattr(
        hub, "snapshot_download", lambda name, **_: str({"me/weights": tmp_path}[name])
    )
    base = override(tiny_config(data, tmp_path), data={"chunk_size": None})
    config = replace(base, policy=policy_type("pi05").settings(size="tiny", weights="me/weights"))
    assert {chunk.shape for chunk in read_chunks(config)} == {(5, 2)}


def test_statistics_are_those_that_a_run_needs(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [
        "--data.root",
        str(data),
        "--data.cache",
        str(tmp_path),
        "--data.delta-action-dims",
        "0",
    ]
    settings += ["--data.chunk-size", "3", "--data.val-fraction", "0.3", "--seed", "7"]
    assert main(["statistics", *settings, "--policy.type", "flow", "--workers", "2", "--json"]) == 0
    (figures,) = json.loads(capsys.readouterr().out).values()
    assert figures["action"]["count"] > 0
    assert len(figures["action"]["q99"]) == 2
    monkeypatch.setattr(norm_heads, "summarize", lambda *_: pytest.fail("rows are read again"))
    config = override(
        tiny_config(data, tmp_path / "run"),
        data={"delta_action_dims": (0,), "cache": str(tmp_path)},
    )
    opened = open_data(config.with_policy_defaults())
    assert choose_normalization(config, opened, tmp_path)["heads"]
    measured: dict[str, Any] = {}
    choose_normalization(config, opened, tmp_path, absolute=measured)
    assert set(measured) == set(opened.heads)


def test_fit_overwrites_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("mine")
    assert main(["fast", "fit", "--data.root", str(data), "--output-dir", str(tmp_path)]) == 2
    assert "output_dir" in capsys.readouterr().err
    assert main(["fast", "fit", "--data.root", str(data)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_fit_refuses_more_integers_than_tokens(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--data.root",
        str(data),
        "--output-dir",
        str(tmp_path / "o"),
        "--fast.scale",
        "1e6",
    ]
    assert main(["fast", "fit", *arguments]) == 2
    assert "vocab_size" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("command", [("fast", "fit"), ("tokenizer", "fit")])
def test_fit_beside_another_one_is_refused(
    data: Path, tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with create_folder(out) as other:
        (other / "mine").write_text("first")
        assert main([*command, "--data.root", str(data), "--output-dir", str(out)]) == 2
    assert str(out) in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["mine"]
