"""Tokens that `Policy.preprocess` adds to a batch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy.policies.batch import CUT_SUFFIX
from understudy.policies.common.fast_tokenizer import FastTokenizer, quantise
from understudy.policies.common.normalizer import Normalizer
from understudy.policies.pi05.text import TextSettings, state_bins
from understudy.policies.pi05.tokenize_batch import Texts
from understudy_base import ConfigError

pytest.importorskip("sentencepiece", reason="needs the extra pi05")
pytest.importorskip("tokenizers", reason="needs the extra pi05")

from understudy.testing.sentences import write_model
from understudy_base.testing.refusals import refused

VOCAB = 1024
STEPS = 6
WIDTHS = {"action": 3, "observation.state": 2}
NORMALIZATION: dict[str, Any] = {
    "heads": ["a", "b"],
    "action": {
        "offset": [[0.0, 0.5, 0.0], [0.0, 0.0, 0.0]],
        "spread": [[1.0, 2.0, 1.0], [1.0, 1.0, 0.0]],
    },
    "observation.state": {"offset": [[0.5, 0.0], [0.0, 0.0]], "spread": [[0.5, 2.0], [1.0, 0.0]]},
    "dims": {"action": [3, 2], "observation.state": [2, 1]},
}


@dataclass(frozen=True)
class Config(TextSettings):
    state_dim: int = 2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tokenizer.model and fast/."""
    folder = tmp_path_factory.mktemp("files")
    write_model(folder)
    time = np.linspace(0, 1, STEPS)[:, None]
    chunks = [np.sin(time * rate + np.arange(3)) for rate in np.linspace(0, 3, 200)]
    FastTokenizer.fit(chunks, vocab_size=100).save(folder / "fast")
    return folder


@pytest.fixture
def normalizer() -> Normalizer:
    return Normalizer(NORMALIZATION, WIDTHS)


def batch() -> dict[str, Any]:
    time = torch.linspace(0, 1, STEPS)[:, None]
    return {
        "task": ["pick up the red block", "push"],
        "observation.state": torch.tensor([[0.25, 1.0], [0.5, 0.0]]),
        "action": torch.stack(
            [torch.sin(time + torch.arange(3)), torch.sin(2 * time + torch.arange(3))]
        ),
        "action_is_pad": torch.zeros(2, STEPS, dtype=torch.bool),
        "head": torch.tensor([0, 1]),
    }


def texts(files: Path, **changes: Any) -> Texts:
    return Texts(Config(tokenizer=str(files), **changes), VOCAB)


def decode(found: Texts, tokens: torch.Tensor, is_pad: torch.Tensor) -> str:
    assert found.tokenizer is not None
    return str(found.tokenizer.model.decode(tokens[~is_pad].tolist()))


def test_prompts_have_the_normalized_state_of_the_robots_own_dimensions(
    files: Path, normalizer: Normalizer
) -> None:
    own = texts(files)
    found = own.add(batch(), normalizer)
    shown = [decode(own, *pair) for pair in zip(found["prompt_tokens"], found["prompt_is_pad"])]
    assert shown == [
        "Task: pick up the red block, State: 64 192;\nAction: ",
        "Task: push, State: 192;\nAction: ",
    ]
    assert state_bins(np.array([(0.25 - 0.5) / 0.5, 1.0 / 2])).tolist() == [64, 192]
    assert found["prompt_tokens"].shape == (2, 200)
    assert "action_tokens" not in found
    assert "response_tokens" not in found


def test_prompts_do_not_see_padded_dimensions(files: Path, normalizer: Normalizer) -> None:
    changed = batch()
    changed["observation.state"][1, 1] = float("nan")
    own = texts(files)
    assert torch.equal(
        own.add(changed, normalizer)["prompt_tokens"], own.add(batch(), normalizer)["prompt_tokens"]
    )
    changed["observation.state"][1, 0] = float("nan")
    with pytest.raises(ValueError, match="sample 1"):
        own.add(changed, normalizer)


def test_plain_prompts_have_no_state(files: Path, normalizer: Normalizer) -> None:
    own = texts(files, prompt="plain", prompt_tokens=48)
    given = batch()
    del given["observation.state"]
    found = own.add(given, normalizer)
    assert decode(own, found["prompt_tokens"][1], found["prompt_is_pad"][1]) == "push\n"


def test_action_tokens_decode_to_the_normalized_actions(
    files: Path, normalizer: Normalizer
) -> None:
    own = texts(files, fast=str(files / "fast"))
    found = own.add(batch(), normalizer)
    assert own.fast is not None
    assert own.tokenizer is not None
    actions = normalizer.actions(batch()).numpy()
    end = own.tokenizer.model.encode("|", add_eos=True)
    for row, dim in enumerate((3, 2)):
        ids = found["action_tokens"][row][~found["action_tokens_is_pad"][row]].tolist()
        assert ids[-len(end) :] == end
        codes = [VOCAB - 1 - 128 - each for each in ids[: -len(end)]]
        decoded = own.fast.decode([codes], STEPS, dim)
        assert decoded.is_valid.all()
        inside = np.clip(
            quantise(actions[row : row + 1, :, :dim], 10.0), own.fast.min_token, own.fast.max_token
        )
        assert (quantise(decoded.actions, 10.0) == inside).all()


def test_padded_steps_repeat_the_last_real_one(files: Path, normalizer: Normalizer) -> None:
    own = texts(files, fast=str(files / "fast"))
    padded = batch()
    repeated = batch()
    padded["action_is_pad"][0, 3:] = True
    padded["action_is_pad"][1] = True
    padded["action"][0, 3:], padded["action"][1] = float("nan"), float("inf")
    repeated["action"][0, 3:] = repeated["action"][0, 2]
    one = own.add(padded, normalizer)
    two = own.add(repeated, normalizer)
    assert torch.equal(one["action_tokens"][0], two["action_tokens"][0])
    assert one["action_tokens_is_pad"][1].all()
    padded["action"][0, 1] = float("nan")
    with pytest.raises(ValueError, match="sample 0"):
        own.add(padded, normalizer)


def test_responses_follow_a_prompt_that_asks_for_them(files: Path, normalizer: Normalizer) -> None:
    own = texts(files, response_tokens=20, fast=str(files / "fast"))
    found = own.add({**batch(), "response": ["push", ""]}, normalizer)
    assert decode(own, found["prompt_tokens"][0], found["prompt_is_pad"][0]).endswith(
        ";\nSubtask: "
    )
    assert decode(own, found["response_tokens"][0], found["response_is_pad"][0]) == "push"
    assert found["response_is_pad"][1].all()
    assert own.tokenizer is not None
    lead = own.tokenizer.model.encode("Action: ")
    assert found["action_tokens"][0, : len(lead)].tolist() == lead
    acting = own.add(
        {"task": ["push"], "observation.state": torch.zeros(1, 2), "head": torch.tensor([0])},
        normalizer,
    )
    assert decode(own, acting["prompt_tokens"][0], acting["prompt_is_pad"][0]).endswith(
        ";\nSubtask: "
    )
    assert {"response_tokens", "action_tokens"}.isdisjoint(acting)


def test_every_cut_is_marked(files: Path, normalizer: Normalizer) -> None:
    own = texts(
        files, prompt_tokens=18, response_tokens=3, action_tokens=5, fast=str(files / "fast")
    )
    given = {**batch(), "response": ["push the blue block", "a"]}
    given["action"][1, 0, 0] = 1e4
    found = own.add(given, normalizer)
    marks = {key: value.tolist() for key, value in found.items() if key.endswith(CUT_SUFFIX)}
    assert marks == {
        "prompt_is_cut": [True, False],
        "response_is_cut": [True, False],
        "action_tokens_is_cut": [True, True],
        "action_range_is_cut": [False, True],
    }
    generous = texts(files, response_tokens=99, fast=str(files / "fast")).add(
        {**batch(), "response": ["a", "b"]}, normalizer
    )
    assert not any(value.any() for key, value in generous.items() if key.endswith(CUT_SUFFIX))


def test_missing_parts_are_errors_by_name(files: Path, normalizer: Normalizer) -> None:
    with pytest.raises(ConfigError, match=r"policy\.tokenizer"):
        Texts(Config(), VOCAB).add(batch(), normalizer)
    with pytest.raises(ConfigError, match=r"policy\.prompt"):
        Texts(Config(state_dim=0), VOCAB)
    with refused(files, "FAST", kind=ConfigError):
        texts(files, fast=str(files))
    with refused("policy.fast", files / "fast", kind=ConfigError):
        Texts(Config(tokenizer=str(files), fast=str(files / "fast")), 128 + 4 + 50)
    with pytest.raises(ConfigError, match=r"policy\.response_tokens"):
        texts(files).add({**batch(), "response": ["a", "b"]}, normalizer)
    with pytest.raises(ValueError, match="task"):
        texts(files).add(
            {key: value for key, value in batch().items() if key != "task"}, normalizer
        )


def test_the_tokenizer_beside_the_weights_is_used(files: Path, normalizer: Normalizer) -> None:
    found = Texts(Config(), VOCAB, weights=str(files)).add(batch(), normalizer)
    assert torch.equal(
        found["prompt_tokens"], texts(files).add(batch(), normalizer)["prompt_tokens"]
    )
