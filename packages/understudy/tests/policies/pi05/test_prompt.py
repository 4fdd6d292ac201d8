"""Prompts against the formula of the released tokenizers, written down a second time here."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.policies.pi05.text import (
    RESERVED,
    TextSettings,
    TextTokenizer,
    clean,
    find_tokenizer,
    state_bins,
)
from understudy_base import ConfigError

sentencepiece = pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from understudy.testing.sentences import model, write_model  # noqa: E402
from understudy_base.testing.refusals import refused  # noqa: E402

VOCAB = 512
TASKS = ["pick up the red block", "  Push_the\nblue block ", "", "grün"]
STATES = np.array(
    [
        [-1.0, 0.0, 0.999],
        [-1.5, 1.0, 7.0],
        [0.25, -1e-30, 1 / 128],
        [-0.5, 0.5, np.nextafter(-1, -2)],
    ]
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return TextTokenizer.read(write_model(tmp_path_factory.mktemp("tokenizer")), VOCAB)


def openpi_prompt(task: str, state: np.ndarray | None, length: int) -> tuple[list[int], list[bool]]:
    """Tokens and mask by openpi's `PaligemmaTokenizer.tokenize`, from its description."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model())
    text = task.strip().replace("_", " ").replace("\n", " ")
    if state is not None:
        bins = np.digitize(state, bins=np.linspace(-1, 1, 256 + 1)[:-1]) - 1
        ids = processor.encode(
            f"Task: {text}, State: {' '.join(map(str, bins))};\nAction: ", add_bos=True
        )
    else:
        ids = processor.encode(text, add_bos=True) + processor.encode("\n")
    valid = [True] * len(ids) + [False] * max(0, length - len(ids))
    return (ids + [0] * max(0, length - len(ids)))[:length], valid[:length]


@pytest.mark.parametrize("length", [5, 48, 200])
@pytest.mark.parametrize("with_state", [True, False])
def test_prompts_are_those_of_the_released_formula(
    tokenizer: TextTokenizer, with_state: bool, length: int
) -> None:
    bins = state_bins(STATES).tolist() if with_state else None
    found = tokenizer.prompts(TASKS, bins, length)
    for row, task in enumerate(TASKS):
        ids, valid = openpi_prompt(task, STATES[row] if with_state else None, length)
        assert found.tokens[row].tolist() == ids
        assert found.is_pad[row].tolist() == [not each for each in valid]
        whole = openpi_prompt(task, STATES[row] if with_state else None, 10**4)[1]
        assert found.is_cut[row] == (sum(whole) > length)
    assert found.is_cut.any() == (length == 5)


def test_prompts_golden(tokenizer: TextTokenizer) -> None:
    def text(ids: np.ndarray) -> str:
        return str(tokenizer.model.decode(ids[ids > 0].tolist()))

    bins = [[0, 128, 255]]
    assert (
        text(tokenizer.prompts(["Pick_up"], bins, 99).tokens)
        == "Task: Pick up, State: 0 128 255;\nAction: "
    )
    assert (
        text(tokenizer.prompts(["Pick"], bins, 99, response=True).tokens)
        == "Task: Pick, State: 0 128 255;\nSubtask: "
    )
    assert text(tokenizer.prompts(["Pick up"], None, 99).tokens) == "Pick up\n"
    # LeRobot's pi052 renders `User: {content}, State: {bins};\n`, and changes no character of the
    # content.
    ids = tokenizer.model.encode("User: Pick_up, State: 0 128 255;\n", add_bos=True)
    assert tokenizer.prompts(["Pick_up"], bins, len(ids), message=True).tokens[0].tolist() == ids
    assert tokenizer.prompts(["a"], None, 9).tokens[0, 0] == tokenizer.model.bos_id()


@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=8))
def test_state_bins_are_numpys(values: list[float]) -> None:
    state = np.array([values], np.float32)
    expected = np.digitize(state, bins=np.linspace(-1, 1, 256 + 1)[:-1]) - 1
    np.testing.assert_array_equal(state_bins(state), expected)


def test_state_bins_golden_and_nan() -> None:
    assert state_bins(STATES).tolist() == [
        [0, 128, 255],
        [-1, 255, 255],
        [160, 127, 129],
        [64, 192, -1],
    ]
    assert state_bins(np.array([[np.inf, -np.inf]])).tolist() == [[255, -1]]
    with refused("state", 2, "NaN", kind=ValueError):
        state_bins(np.array([[0.0], [0.0], [np.nan]]))


def test_responses(tokenizer: TextTokenizer) -> None:
    found = tokenizer.responses(["push", "", " pick_up "], 30)
    eos = tokenizer.model.eos_id()
    assert found.tokens[0][~found.is_pad[0]].tolist() == [*tokenizer.model.encode("push"), eos]
    assert found.is_pad[1].all()
    assert tokenizer.model.decode(found.tokens[2][~found.is_pad[2]].tolist()) == "pick up"
    assert tokenizer.responses(["push the blue block"], 3).is_cut.tolist() == [True]


def test_actions_take_the_last_words_before_the_reserved_ones(tokenizer: TextTokenizer) -> None:
    end = tokenizer.model.encode("|", add_eos=True)
    found = tokenizer.actions([[0, 7], None, []], 20, lead=False)
    top = VOCAB - 1 - RESERVED
    assert found.tokens[0][~found.is_pad[0]].tolist() == [top, top - 7, *end]
    assert found.is_pad[1].all()
    assert found.tokens[2][~found.is_pad[2]].tolist() == end
    led = tokenizer.actions([[0]], 40, lead=True)
    assert led.tokens[0][~led.is_pad[0]].tolist() == [
        *tokenizer.model.encode("Action: "),
        top,
        *end,
    ]
    assert tokenizer.actions([[1, 2, 3]], 3, lead=False).is_cut.tolist() == [True]
    lowest = tokenizer.actions([[tokenizer.fast_room - 1]], 9, lead=False).tokens[0, 0]
    assert lowest > 3  # pad, eos, bos, unknown


def test_actions_of_the_released_vocabulary() -> None:
    """Token 0 of FAST is `<loc1023>`, number 257,023 (openpi's pi0-FAST)."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model())
    assert TextTokenizer(processor, 257_152).actions([[0, 1023, 1024]], 9, lead=False).tokens[
        0, :3
    ].tolist() == [
        257_023,
        256_000,
        255_999,
    ]


@pytest.mark.parametrize("content", [None, b"", b"no model"])
def test_read_names_the_file_that_is_missing_or_damaged(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "tokenizer.model"
    if content is not None:
        file.write_bytes(content)
    for path in (file, tmp_path):
        with pytest.raises(ConfigError, match=r"tokenizer\.model"):
            TextTokenizer.read(path, VOCAB)


def test_read_refuses_a_tokenizer_of_another_network(tmp_path: Path) -> None:
    with refused("policy.tokenizer", tmp_path / "tokenizer.model", 50, kind=ConfigError):
        TextTokenizer.read(write_model(tmp_path), 50)


def test_read_sees_a_changed_file(tmp_path: Path) -> None:
    write_model(tmp_path)
    before = TextTokenizer.read(tmp_path, VOCAB)
    (tmp_path / "tokenizer.model").write_bytes(model(100))
    after = TextTokenizer.read(tmp_path, VOCAB)
    assert before.model.vocab_size() != after.model.vocab_size()


def test_find_tokenizer(tmp_path: Path) -> None:
    assert find_tokenizer("", "") is None
    assert find_tokenizer("", str(tmp_path)) is None
    write_model(tmp_path)
    assert find_tokenizer("", str(tmp_path)) == tmp_path / "tokenizer.model"
    assert find_tokenizer("other", str(tmp_path)) == Path("other")


def test_text_settings_list_problems() -> None:
    assert TextSettings().text_problems() == []
    wrong = TextSettings(prompt_tokens=0, response_tokens=-1, action_tokens=10**9).text_problems()
    assert [line.split(":")[0] for line in wrong] == [
        "prompt_tokens",
        "response_tokens",
        "action_tokens",
    ]


def test_clean_keeps_upper_case() -> None:
    assert clean(" Pick_up\nNOW ") == "Pick up NOW"


def test_resolved_settings_name_the_tokenizer_beside_the_weights(tmp_path: Path) -> None:
    assert TextSettings(weights=str(tmp_path)).resolved().tokenizer == ""
    file = write_model(tmp_path)
    (tmp_path / "model.safetensors").touch()
    for weights in (tmp_path, tmp_path / "model.safetensors"):
        assert TextSettings(weights=str(weights)).resolved().tokenizer == str(file)
    assert TextSettings(weights=str(tmp_path), tokenizer="/other").resolved().tokenizer == "/other"
