"""`understudy tokenizer fit`."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentencepiece", reason="needs the extra pi05")
pytest.importorskip("tokenizers", reason="needs the extra pi05")

from support.datasets import TASKS
from support.runs import tiny_dataset
from understudy.cli.main import main
from understudy.errors import ConfigError
from understudy.policies.common.fit_text_tokenizer import LEAST_IDS, fit_text_tokenizer
from understudy.policies.pi05.config import Sizes
from understudy.policies.pi05.text import PAD, TextTokenizer, clean


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("data"))


def fit(data: Path, out: Path, *arguments: str) -> int:
    return main(["tokenizer", "fit", "--data.root", str(data), "--output-dir", str(out), "--json", *arguments])


def test_fitted_tokenizer_has_the_ids_and_prompts_of_paligemma(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(data, tmp_path / "one", "--policy.size", "tiny") == 0
    facts = json.loads(capsys.readouterr().out)
    assert fit(data, tmp_path / "two", "--policy.size", "tiny") == 0
    assert (tmp_path / "one/tokenizer.model").read_bytes() == (tmp_path / "two/tokenizer.model").read_bytes()
    read = TextTokenizer.read(tmp_path / "one", Sizes.TINY.vocab)
    model: Any = read.model
    assert (model.pad_id(), model.eos_id(), model.bos_id(), model.unk_id()) == (PAD, 1, 2, 3)
    assert len(model.encode("\n")) == 1
    assert facts["vocab_size"] == model.vocab_size() <= 512
    assert [len(model.encode(digits)) for digits in ("255", " 7")] == [3, 2]  # digits are never merged
    cut = [read.prompts(TASKS, [[255] * 3] * 3, facts["tokens_max"] - less).is_cut.any() for less in (0, 1)]
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
    assert [read.prompts(TASKS, None, longest - less).is_cut.any() for less in (0, 1)] == [False, True]


def test_responses_are_fitted_too(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    response = ("--policy.size", "tiny", "--data.response", "task", "--policy.response-tokens", "16")
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


def test_fit_fetches_the_weights_of_the_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights that cannot be fetched end the command; without them the settings would be others than the run's."""
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")

    def refuse(name: str, **_: object) -> str:
        raise ValueError(f"no {name}")

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    assert fit(data, tmp_path / "out", "--policy.size", "tiny", "--policy.weights", "me/weights") == 2
    assert "policy.weights: me/weights" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_fit_text_tokenizer_needs_one_id_per_character() -> None:
    least = LEAST_IDS + len(set("a b"))
    assert fit_text_tokenizer(["a b", "b"], least) == fit_text_tokenizer(["b", "a b", "b"], least)
    with pytest.raises(ConfigError):
        fit_text_tokenizer(["a b"], least - 1)
    with pytest.raises(ConfigError):
        fit_text_tokenizer([" ", ""], 512)
