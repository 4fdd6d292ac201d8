"""Tokens of a batch, which `Policy.preprocess` adds in loader threads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy.policies.batch import CUT_SUFFIX, check_shape, prompts_of, value_of
from understudy.policies.common.fast_tokenizer import FastTokenizer
from understudy.policies.common.normalizer import Normalizer, state_now
from understudy.policies.pi05.text import (
    Rows,
    TextSettings,
    TextTokenizer,
    find_tokenizer,
    state_bins,
)
from understudy_base import ACTION, RESPONSE, STATE, Batch, ConfigError

CUT = {
    "prompts": f"prompt{CUT_SUFFIX}",
    "responses": f"response{CUT_SUFFIX}",
    "actions": f"action_tokens{CUT_SUFFIX}",
    "action range": f"action_range{CUT_SUFFIX}",
}
"""Keys of the marks of samples that lost something."""


class Shared(tuple[Normalizer]):
    """A normalizer on the host: `to` does not find it, and copies of a policy share it."""

    def __deepcopy__(self, memo: Any) -> "Shared":
        return self


class Texts:
    """Tokens of prompts, responses and actions of one policy.

        texts = Texts(config, weights="FOLDER", vocab=257152)
        batch = texts.add(batch, normalizer)

    The tokenizers are read at once, so that a missing file is an error before the first step. A
    policy without a tokenizer can be built, but `add` raises.
    """

    def __init__(self, config: Any, vocab: int, weights: str = "") -> None:
        """Read the tokenizers.

        Args:
            config: fields of `TextSettings`, and `state_dim`.
            vocab: rows of the token embedding.
            weights: folder of the weights, which may hold `tokenizer.model`.

        Raises:
            ConfigError: a tokenizer cannot be read, or does not fit the vocabulary; there is
                no state for the prompts.
        """
        self.config: TextSettings = config
        self.has_state = config.prompt != "plain"
        self.state_dim = int(config.state_dim)
        if self.has_state and not config.state_dim:
            raise ConfigError(
                f"policy.prompt: the format {config.prompt} needs a state, and the policy has "
                "none; set data.state to its key, or policy.prompt to plain if the weights were "
                "trained with it"
            )
        path = find_tokenizer(config.tokenizer, weights)
        self.tokenizer = TextTokenizer.read(path, vocab) if path is not None else None
        self.fast = FastTokenizer.read(config.fast) if config.fast else None
        room = self.tokenizer.fast_room if self.tokenizer is not None else vocab
        if self.fast is not None and self.fast.vocab_size > room:
            raise ConfigError(
                f"policy.fast: {config.fast} has {self.fast.vocab_size} ids, and the network's "
                f"vocabulary has room for {room} next to the texts; fit one with --fast.vocab-size "
                f"{room} or less"
            )

    def required(self) -> TextTokenizer:
        """Return the tokenizer of texts. Raises ConfigError where there is none."""
        if self.tokenizer is None:
            raise ConfigError(
                "policy.tokenizer: required to read instructions: PaliGemma's sentencepiece model "
                "(tokenizer.model of google/paligemma-3b-pt-224), a file or a folder that holds "
                "it; with fresh weights also one of `understudy tokenizer fit`"
            )
        return self.tokenizer

    def longest_prompt(self, texts: Sequence[str]) -> int | None:
        """Count the tokens of the longest prompt, with the longest numbers as its state; None
        without a tokenizer.

        Args:
            texts: instructions with their metadata.
        """
        if self.tokenizer is None or not texts:
            return None
        bins = [[255] * self.state_dim] * len(texts) if self.has_state else None
        settings = {"response": self.config.learns_responses, "message": self.config.has_messages}
        return self.tokenizer.longest_prompt(texts, bins, **settings)

    def add(self, batch: Batch, normalizer: Normalizer) -> dict[str, Any]:
        """Return the batch with the tokens of its texts.

        It adds `prompt_tokens` int64 [B, L], `prompt_is_pad` bool [B, L] and `prompt_is_cut` bool
        [B]. Where the policy has responses and the batch has `response`, it adds the same of
        `response`; where the policy has FAST tokens and the batch has `action`, it adds
        `action_tokens`, `action_tokens_is_pad`, `action_tokens_is_cut`, and `action_range_is_cut`,
        which marks actions outside of the FAST alphabet.

        Args:
            batch: see `Policy`; tensors on the CPU.
            normalizer: the policy's.

        Raises:
            ConfigError: the policy has no tokenizer, or the batch has responses that the policy
                does not take.
            ValueError: a missing key, a state that is NaN, or an action that is not finite.
        """
        config = self.config
        tokenizer = self.required()
        has_response = config.response_tokens > 0
        if RESPONSE in batch and not has_response:
            raise ConfigError(
                "policy.response_tokens: is 0, and the data has responses (data.response); set it "
                "to the longest one"
            )
        bins = self._bins(batch, normalizer) if self.has_state else None
        added = dict(batch)
        settings = {"response": has_response, "message": config.has_messages}
        prompts = tokenizer.prompts(prompts_of(batch), bins, config.prompt_tokens, **settings)
        added |= _entries(prompts, "prompt_tokens", "prompt_is_pad", CUT["prompts"])
        if has_response and RESPONSE in batch:
            responses = tokenizer.responses(batch[RESPONSE], config.response_tokens)
            added |= _entries(responses, "response_tokens", "response_is_pad", CUT["responses"])
        if self.fast is not None and ACTION in batch:
            codes, clipped = self._codes(self.fast, batch, normalizer)
            lead = has_response or config.prompt != "state"
            actions = tokenizer.actions(codes, config.action_tokens, lead=lead)
            added |= _entries(actions, "action_tokens", "action_tokens_is_pad", CUT["actions"])
            added[CUT["action range"]] = torch.from_numpy(clipped)
        return added

    def _bins(self, batch: Batch, normalizer: Normalizer) -> list[list[int]]:
        """Numbers of each sample's state, of its robot's own dimensions alone."""
        states = normalizer.states(batch, state_now(batch))  # [B, S]
        real = _real(states, normalizer.dim_is_pad(STATE, batch))
        bins = state_bins(states.numpy())
        return [numbers[keep].tolist() for numbers, keep in zip(bins, real)]

    def _codes(
        self, fast: FastTokenizer, batch: Batch, normalizer: Normalizer
    ) -> tuple[list[list[int] | None], np.ndarray]:
        """FAST ids of each sample's own dimensions, None where every step is padded; and where
        actions were clipped.

        Padded steps repeat the last real one, whatever the batch holds there.
        """
        actions = normalizer.actions(batch)  # [B, T, A]
        is_pad: Tensor = value_of(batch, f"{ACTION}_is_pad")
        check_shape(f"{ACTION}_is_pad", is_pad, tuple(actions.shape[:2]))
        real = _real(actions, normalizer.dim_is_pad(ACTION, batch))
        codes: list[list[int] | None] = []
        clipped = np.zeros(len(actions), bool)
        for row, (chunk, pad, keep) in enumerate(zip(actions.numpy(), is_pad.numpy(), real)):
            if pad.all():
                codes.append(None)
                continue
            last = np.maximum.accumulate(np.where(pad, -1, np.arange(len(pad))))
            first = int(np.argmin(pad))  # padding before the first real step repeats that one
            try:
                encoded = fast.encode(chunk[np.where(last < 0, first, last)][None][:, :, keep])
            except ValueError as error:
                raise ValueError(f"sample {row} of the batch: {error}") from error
            codes.append(encoded.tokens[0])
            clipped[row] = encoded.is_clipped[0]
        return codes, clipped


def _entries(rows: Rows, tokens: str, is_pad: str, is_cut: str) -> dict[str, Tensor]:
    return {name: torch.from_numpy(values) for name, values in zip((tokens, is_pad, is_cut), rows)}


def _real(values: Tensor, dim_is_pad: Tensor | None) -> np.ndarray:
    """Own dimensions of each sample, bool [B, dim]."""
    shape = (values.shape[0], values.shape[-1])
    if dim_is_pad is None:
        return np.ones(shape, bool)
    return (~dim_is_pad).expand(shape).numpy()
