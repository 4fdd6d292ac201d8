"""`understudy tokenizer fit`: fit a small text tokenizer to a dataset, for networks without released weights."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from understudy.batch_keys import RESPONSE
from understudy.cli.prepare.fit_config import FitConfig
from understudy.cli.prepare.spread_rows import spread_rows
from understudy.config.declare import Interval

if TYPE_CHECKING:
    from understudy.train.data.run_data import RunData

FILE = "tokenizer.model"
"""Name of the model in its folder, where `policy.tokenizer` finds it."""
BATCH = 4096
"""Frames that are read at once."""


@dataclass(frozen=True)
class TokenizerConfig:
    """Text tokenizer to fit."""

    vocab_size: Annotated[int, Interval(ge=1, le=2**20)] = 512
    """Most ids. Every tokenizer has 261 for control tokens, the line end and bytes; few words need few more."""
    frames: Annotated[int, Interval(ge=1, le=10**8)] = 100_000
    """Most frames of a dataset to read responses from (`data.response`), evenly spread over the training frames."""


@dataclass(frozen=True)
class TokenizerFitConfig(FitConfig):
    """Fit a text tokenizer to the instructions of a dataset, and to its responses if the run has them.

    For networks that train from fresh weights: released weights need the tokenizer that they were trained with. Give
    the settings of the run that will use the folder as `policy.tokenizer`.
    """

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)


def fit(config: TokenizerFitConfig) -> None:
    """Fit, write the folder, and print the number of ids and the length of the longest prompt."""
    from understudy.errors import ConfigError
    from understudy.optional_packages import optional_imports, require
    from understudy.policies.common.fit_text_tokenizer import fit_text_tokenizer
    from understudy.train.data.run_data import open_data, prompt_fields
    from understudy.train.paths import with_local_files

    require("pi05")
    run = with_local_files(config)
    room = run.policy.text_vocabulary
    if config.tokenizer.vocab_size > room:
        raise ConfigError(
            f"tokenizer.vocab_size: {config.tokenizer.vocab_size}: a policy of type {config.policy.type} with these "
            f"settings has room for {room} ids of texts, beside reserved ones and those of policy.fast; give fewer"
        )
    run = run.with_policy_defaults()
    data = open_data(run)
    tasks = sorted({task for part in data.training for task in part.catalog.tasks})
    tasks += prompt_fields(data.training)
    responses = read_responses(config, data)
    texts = run.policy.tokenizer_texts(tasks, responses, data.policy_config(run).state_dim)
    model = fit_text_tokenizer(texts, config.tokenizer.vocab_size)
    with optional_imports():
        from sentencepiece import SentencePieceProcessor
    tokenizer = SentencePieceProcessor()
    tokenizer.LoadFromSerializedProto(model)
    facts = {
        "vocab_size": tokenizer.vocab_size(),
        "tasks": len(tasks),
        "responses": len(responses),
        "tokens_max": 1 + max(len(ids) for ids in tokenizer.encode(texts)),
        "output_dir": config.output_dir,
    }
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(model)
    print(json.dumps(facts) if config.json else format_summary(facts))


def read_responses(config: TokenizerFitConfig, data: "RunData") -> list[str]:
    """Return the distinct responses of frames that are evenly spread over each source's training frames, sorted."""
    found: set[str] = set()
    for source, part in zip(config.data.mixed(), data.training):
        if not source.response:
            continue
        for read in spread_rows(part, min(len(part), config.tokenizer.frames), BATCH):
            found.update(read[RESPONSE])
    return sorted(found)


def format_summary(facts: dict[str, Any]) -> str:
    """Format the summary for a terminal."""
    return "\n".join(
        [
            f"{facts['output_dir']}: {facts['vocab_size']:,} ids, fitted to {facts['tasks']:,} instructions and "
            f"{facts['responses']:,} responses",
            f"  the longest text has {facts['tokens_max']} tokens: policy.prompt_tokens must not be less",
        ]
    )
