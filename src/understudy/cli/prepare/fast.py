"""`understudy fast fit`: fit FAST action tokens to the actions of a dataset, normalized as a run would."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from understudy.cli.prepare.fit_config import FitConfig
from understudy.cli.prepare.spread_rows import spread_rows
from understudy.config.declare import Interval
from understudy.config.train import TrainConfig

if TYPE_CHECKING:
    import numpy as np

    from understudy.policies.common.fast_tokenizer import FastTokenizer

BATCH = 512
"""Chunks that are read at once."""


@dataclass(frozen=True)
class FastConfig:
    """FAST tokens to fit."""

    vocab_size: Annotated[int, Interval(ge=2, le=2**16)] = 1024
    """Most tokens; a larger vocabulary gives shorter sequences."""
    scale: Annotated[float, Interval(gt=0, lt=inf)] = 10.0
    """Steps per unit of a cosine coefficient of the normalized actions: 10 rounds each to within 0.05."""
    chunks: Annotated[int, Interval(ge=1, le=10**8)] = 100_000
    """Most chunks to read, evenly spread over the training frames; one in ten measures the result."""


@dataclass(frozen=True)
class FastFitConfig(FitConfig):
    """Fit FAST action tokens to the actions of a dataset.

    Give the settings of the run that will use the folder as `policy.fast`: data, chunk size and normalization must be
    the same.
    """

    fast: FastConfig = field(default_factory=FastConfig)


def fit(config: FastFitConfig) -> None:
    """Fit, write the folder, and print lengths and errors on chunks that were not fitted."""
    from understudy.optional_packages import require
    from understudy.policies.common.fast_tokenizer import FastTokenizer

    require("pi05")
    chunks = list(read_chunks(config))
    fitted = [chunk for number, chunk in enumerate(chunks) if number % 10 != 9 or len(chunks) < 20]
    measured = chunks[9::10] if len(chunks) >= 20 else chunks
    tokenizer = FastTokenizer.fit(fitted, config.fast.vocab_size, config.fast.scale)
    facts = measure(tokenizer, measured) | {"chunks": len(chunks), "output_dir": config.output_dir}
    tokenizer.save(config.output_dir)
    print(json.dumps(facts) if config.json else format_summary(facts))


def read_chunks(config: TrainConfig) -> "Iterator[np.ndarray]":
    """Yield normalized chunks of actions, float32 [T, own dimensions], evenly spread over the training frames."""
    import torch

    from understudy.batch_keys import ACTION, HEAD, STATE
    from understudy.policies.batch import split_states
    from understudy.policies.common.normalizer import Normalizer
    from understudy.train.data.run_data import choose_normalization, open_data
    from understudy.train.paths import with_local_files

    config = with_local_files(config).with_policy_defaults()
    data = open_data(config)
    policy = data.policy_config(config)
    widths = {ACTION: policy.action_dim} | ({STATE: policy.state_dim} if policy.state_dim else {})
    normalizer = Normalizer(choose_normalization(config, data), widths)
    most = config.fast.chunks if isinstance(config, FastFitConfig) else inf
    total = sum(map(len, data.training))
    for number, part in enumerate(data.training):
        count = max(1, round(min(1.0, most / total) * len(part)))
        for read in spread_rows(part, count, BATCH):
            if config.policy.state_times and STATE in read:
                read = split_states(read, len(config.policy.state_times))
            batch: dict[str, Any] = {
                key: torch.nn.functional.pad(read[key], (0, width - read[key].shape[-1]))
                for key, width in widths.items()
                if key in read
            }
            batch[HEAD] = torch.full((len(read[ACTION]),), int(data.head_of_source[number]), dtype=torch.int64)
            actions = normalizer.actions(batch)
            own = normalizer.dims[ACTION][int(data.head_of_source[number])]
            yield from actions[..., :own].numpy()


def measure(tokenizer: "FastTokenizer", chunks: "list[np.ndarray]") -> dict[str, Any]:
    """Return the lengths and the largest error of the tokens of chunks."""
    import numpy as np

    lengths, errors, clipped = [], [], 0
    for chunk in chunks:
        encoded = tokenizer.encode(chunk[None])
        lengths.append(len(encoded.tokens[0]))
        if encoded.is_clipped[0]:
            clipped += 1
            continue
        decoded = tokenizer.decode(encoded.tokens, *chunk.shape)
        errors.append(float(np.abs(decoded.actions[0] - chunk).max()))
    return {
        "vocab_size": tokenizer.vocab_size,
        "scale": tokenizer.scale,
        "tokens_mean": float(np.mean(lengths)),
        "tokens_max": int(max(lengths)),
        "measured": len(chunks),
        "clipped": clipped / len(chunks),
        "error_max": max(errors, default=0.0),
    }


def format_summary(facts: dict[str, Any]) -> str:
    """Format the summary for a terminal."""
    return "\n".join(
        [
            f"{facts['output_dir']}: {facts['vocab_size']:,} tokens, fitted to {facts['chunks']:,} chunks",
            f"  {facts['measured']:,} chunks measured: {facts['tokens_mean']:.1f} tokens on average, the longest "
            f"{facts['tokens_max']}; set policy.action_tokens to {facts['tokens_max'] + 8} or more",
            f"  largest error of a normalized action {facts['error_max']:.3f}; {facts['clipped']:.2%} of the chunks "
            "are out of range",
        ]
    )
