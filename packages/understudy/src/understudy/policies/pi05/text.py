r"""Texts of pi0 and pi0.5 as ids of PaliGemma's vocabulary: prompts, responses, and FAST action
tokens. No torch.

A checkpoint understands the prompts that it was trained with. So the format is a setting, stored
with the weights:

    state    bos "Task: {task}, State: {bins};\nAction: "     pi0.5
    plain    bos "{task}" "\n"                                pi0, and pi0.5 trained without the
                                                              state (pi05_libero)
    message  bos "User: {task}, State: {bins};\n"             pi052 of LeRobot

The task loses outer white space; `_` and line ends become spaces; upper case stays. In `message` it
is as it is. The state is one number from -1 to 255 per dimension. With responses the format `state`
ends in `Subtask: ` instead of `Action: `, and `plain` is as it is.

    response   "{text}" eos
    actions    ["Action: "] ids "|" eos        "Action: " only where the prompt does not end with it

FAST ids take the places of PaliGemma's rarest words: id i is token `vocab - 129 - i` (openpi's
pi0-FAST). Sequences are padded and cut at their right end, as openpi does, and each cut is marked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from understudy.policies.capabilities.files import with_absolute_files
from understudy.policies.common import fast_tokenizer
from understudy.policies.pi05.normalization import NormalizationSettings
from understudy_base import ConfigError, optional_imports

TOKENIZER = "tokenizer.model"
"""Name of PaliGemma's sentencepiece model in a folder."""

PAD = 0
"""Id of padding; its embedding reaches nothing."""

RESERVED = 128
"""Ids at the end of PaliGemma's vocabulary (its segmentation tokens) that FAST leaves alone."""

ACTION_TEXTS = ("Action: ", "|")
"""Texts before and behind FAST ids."""

EDGES = np.linspace(-1, 1, 257)[:-1]
"""Lower edges of the state bins 0 to 255; each is a multiple of 1/128 and exact."""

LIMITS = {"prompt_tokens": (1, 2**16), "response_tokens": (0, 2**16), "action_tokens": (1, 2**16)}


@dataclass(frozen=True, kw_only=True)
class TextSettings(NormalizationSettings):
    """Settings of a policy's texts, and of the normalization that its prompts depend on."""

    FILES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "tokenizer": (TOKENIZER,),
        "fast": (fast_tokenizer.TOKENIZER, fast_tokenizer.CONFIG),
    }
    AT_START: ClassVar[tuple[str, ...]] = (
        "weights",
        "weights_settings",
        "normalization",
        "norm_asset",
    )
    NORMALIZE: ClassVar[Literal["mean_std", "min_max", "quantile"]] = "quantile"

    prompt: Literal["state", "plain", "message"] = "state"
    """Format of the prompt, which belongs to the checkpoint: `state` is pi0.5's, with the state as
    text, `plain` pi0's, with the task alone, `message` that of LeRobot's pi052, with the state.
    """
    prompt_tokens: int = 200
    """Longest prompt in tokens; longer ones are cut at the end, and counted in the log."""
    tokenizer: str = ""
    """PaliGemma's sentencepiece model: a file, or a folder with `tokenizer.model`. It is copied
    into exported folders. The default is `tokenizer.model` in the folder of the weights.
    """
    response_tokens: int = 0
    """Longest response (`data.response`) in tokens; 0: the policy has no responses."""
    fast: str = ""
    """Folder of a FAST tokenizer, published or of `understudy fast fit`: the language tower is also
    trained to predict the actions as tokens. It is copied into exported folders.
    """
    action_tokens: int = 128
    """Longest sequence of FAST tokens; longer ones are cut at the end, and counted in the log."""

    @property
    def learns_responses(self) -> bool:
        """Whether the policy learns to answer with the texts under `response`."""
        return self.response_tokens > 0

    @property
    def has_messages(self) -> bool:
        """Whether the format of the prompts is `message`."""
        return self.prompt == "message"

    def tokenizer_texts(
        self, tasks: Sequence[str], responses: Sequence[str], state_dim: int
    ) -> list[str]:
        """Return the prompts of the tasks, with the longest numbers as states, the responses, and
        the fixed texts.
        """
        if self.prompt != "plain":
            longest = [255] * state_dim
            prompts = [
                state_prompt(task, longest, self.learns_responses, self.has_messages)
                for task in tasks
            ]
            return [*prompts, *map(clean, responses), "-1 0 1 2 3 4 5 6 7 8 9", *ACTION_TEXTS]
        return [*(f"{clean(task)}\n" for task in tasks), *map(clean, responses), *ACTION_TEXTS]

    def resolved(self) -> Self:
        """Return the settings with absolute paths, and the tokenizer next to the weights as
        `tokenizer`.
        """
        tokenizer = find_tokenizer(self.tokenizer, self.weights)
        tokenizer_path = "" if tokenizer is None else str(tokenizer)
        return with_absolute_files(replace(self, tokenizer=tokenizer_path))

    @property
    def longest_texts(self) -> tuple[int, int, int]:
        """Most tokens of a prompt, a response and an action chunk."""
        return self.prompt_tokens, self.response_tokens, self.action_tokens

    def text_problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        problems = [
            f"{name}: {getattr(self, name)}: must be from {least} to {most}"
            for name, (least, most) in LIMITS.items()
            if not least <= getattr(self, name) <= most
        ]
        if self.has_messages and self.learns_responses:
            problems.append(
                f"response_tokens: {self.response_tokens}: prompts of the format message have no "
                "responses"
            )
        return problems


class Rows(NamedTuple):
    """Token sequences of a batch."""

    tokens: np.ndarray
    """int64 [B, L], `PAD` behind each sequence."""
    is_pad: np.ndarray
    """bool [B, L]."""
    is_cut: np.ndarray
    """bool [B]: the sequence was longer than L."""


@dataclass(frozen=True)
class TextTokenizer:
    """PaliGemma's tokenizer. Thread-safe."""

    model: Any
    """A `sentencepiece.SentencePieceProcessor`."""
    vocab: int
    """Rows of the network's token embedding."""

    @classmethod
    def read(cls, path: str | Path, vocab: int) -> "TextTokenizer":
        """Read a sentencepiece model, or the `tokenizer.model` of a folder.

        Raises:
            ConfigError: there is no such file, it is not a sentencepiece model with bos and eos, or
                it has more ids than the network.
            MissingExtraError: `sentencepiece` is not installed.
        """
        path = Path(path)
        file = path / TOKENIZER if path.is_dir() else path
        if not file.is_file():
            raise ConfigError(
                f"policy.tokenizer: {file} does not exist; name PaliGemma's sentencepiece model, "
                f"the file {TOKENIZER} next to its weights"
            )
        stat = file.stat()
        model = _read_model(file, stat.st_mtime_ns, stat.st_size)
        if model.bos_id() < 0 or model.eos_id() < 0:
            raise ConfigError(
                f"policy.tokenizer: {file} has no token for begin or end; name PaliGemma's "
                f"{TOKENIZER}"
            )
        if model.vocab_size() > vocab:
            raise ConfigError(
                f"policy.tokenizer: {file} has {model.vocab_size():,} ids, the network's "
                f"vocabulary {vocab:,}; name the tokenizer of these weights"
            )
        return cls(model, vocab)

    def prompts(
        self,
        tasks: Sequence[str],
        bins: Sequence[Sequence[int]] | None,
        length: int,
        *,
        response: bool = False,
        message: bool = False,
    ) -> Rows:
        """Encode prompts.

        Args:
            tasks: B instructions.
            bins: numbers of the state per sample (`state_bins`); None is the format `plain`.
            length: L, the most tokens.
            response: whether a response follows.
            message: whether the format is `message`, and not `state`.
        """
        return self.pad(self._prompts(tasks, bins, response, message), length)

    def longest_prompt(
        self,
        tasks: Sequence[str],
        bins: Sequence[Sequence[int]] | None,
        *,
        response: bool,
        message: bool,
    ) -> int:
        """Count the tokens of the longest prompt, which nothing cuts here; see `prompts`."""
        return max(map(len, self._prompts(tasks, bins, response, message)))

    def _prompts(
        self,
        tasks: Sequence[str],
        bins: Sequence[Sequence[int]] | None,
        response: bool,
        message: bool,
    ) -> list[list[int]]:
        if bins is None:
            return [self._encode(clean(task), bos=True) + self._encode("\n") for task in tasks]
        texts = [
            state_prompt(task, numbers, response, message)
            for task, numbers in zip(tasks, bins, strict=True)
        ]
        return [self._encode(text, bos=True) for text in texts]

    def responses(self, texts: Sequence[str], length: int) -> Rows:
        """Encode responses; an empty text has no token."""
        responses = []
        for text in map(clean, texts):
            ids = self._encode(text, eos=True) if text else []
            responses.append(ids)
        return self.pad(responses, length)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of the ids of a response; its end and ids without a text give nothing."""
        size = self.model.vocab_size()
        return str(self.model.decode([number for number in ids if number < size])).strip()

    def actions(self, codes: Sequence[Sequence[int] | None], length: int, *, lead: bool) -> Rows:
        """Encode FAST ids, each in 0 ... `fast_room` - 1; None has no token.

        Args:
            codes: B sequences.
            length: L, the most tokens.
            lead: whether "Action: " comes first.
        """
        lead_text, end_text = ACTION_TEXTS
        lead_ids = self._encode(lead_text) if lead else []
        end_ids = self._encode(end_text, eos=True)
        top = self.vocab - 1 - RESERVED
        sequences: list[list[int]] = []
        for codes_of_sample in codes:
            if codes_of_sample is None:
                sequences.append([])
            else:
                sequences.append([*lead_ids, *(top - code for code in codes_of_sample), *end_ids])
        return self.pad(sequences, length)

    @property
    def fast_room(self) -> int:
        """Number of FAST ids that the vocabulary has room for, above the ids of texts.

        PaliGemma's texts fill the whole vocabulary. There the FAST ids take the place of its rarest
        ones, as in the released models.
        """
        texts = int(self.model.vocab_size())
        free = self.vocab - RESERVED
        kept_texts = texts if texts <= free else 4
        return max(0, free - kept_texts)

    def pad(self, sequences: Sequence[Sequence[int]], length: int) -> Rows:
        """Pad and cut sequences to `length` at the right."""
        tokens = np.full((len(sequences), length), PAD, np.int64)
        sizes = np.array([len(ids) for ids in sequences], np.int64)
        for row, ids in enumerate(sequences):
            tokens[row, : min(length, len(ids))] = ids[:length]
        return Rows(tokens, np.arange(length) >= sizes[:, None], sizes > length)

    def _encode(self, text: str, bos: bool = False, eos: bool = False) -> list[int]:
        return list(self.model.encode(text, add_bos=bos, add_eos=eos))


def find_tokenizer(tokenizer: str, weights: str) -> Path | None:
    """Return the path of the sentencepiece model: `tokenizer`, else the one in the folder of the
    weights, else None.
    """
    if tokenizer:
        return Path(tokenizer)
    folder = Path(weights)
    if folder.is_file():
        folder = folder.parent
    neighbor = folder / TOKENIZER
    return neighbor if weights and neighbor.is_file() else None


def clean(task: str) -> str:
    """Return a task as the checkpoints' training data had it: stripped, `_` and line ends as
    spaces.
    """
    return task.strip().replace("_", " ").replace("\n", " ")


def state_prompt(task: str, bins: Sequence[int], response: bool, message: bool) -> str:
    """Return the prompt of the format `state` or `message` for a task and the numbers of a
    state.
    """
    if message:
        return f"User: {task}, State: {' '.join(map(str, bins))};\n"
    asked = "Subtask: " if response else "Action: "
    return f"Task: {clean(task)}, State: {' '.join(map(str, bins))};\n{asked}"


def state_bins(states: np.ndarray) -> np.ndarray:
    """Return the bin of each normalized value: -1 below -1, 0 to 255 inside -1..1, 255 above.
    int64, of the same shape.

    Raises:
        ValueError: a value is NaN.
    """
    states = np.asarray(states, np.float64)
    if np.isnan(states).any():
        row = int(np.isnan(states).reshape(len(states), -1).any(axis=1).argmax())
        raise ValueError(
            f"the state of sample {row} of the batch is NaN, which no prompt can hold: correct the "
            "data"
        )
    return np.searchsorted(EDGES, states, side="right").astype(np.int64) - 1


@lru_cache(maxsize=4)
def _read_model(file: Path, _time: int, _size: int) -> Any:
    """Read a model once per version of its file."""
    with optional_imports():
        from sentencepiece import SentencePieceProcessor
    try:
        model = SentencePieceProcessor()
        model.LoadFromSerializedProto(file.read_bytes())
        return model
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"policy.tokenizer: {file} is not a sentencepiece model: {error}"
        ) from error
