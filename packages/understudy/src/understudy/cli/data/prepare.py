"""`understudy statistics`, `fast fit` and `tokenizer fit`: files that a training needs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from understudy.config.train import TrainConfig
from understudy.policies.capabilities.past import Past
from understudy.policies.capabilities.texts import ReadsTexts
from understudy.policies.registry import policy_type
from understudy.policies.settings import PolicySettings
from understudy_base import (
    ACTION,
    HEAD,
    RESPONSE,
    STATE,
    ConfigError,
    create_folder,
    optional_imports,
    plural,
    require,
)
from understudy_kit import Interval, WorkersConfig

if TYPE_CHECKING:
    import numpy as np

    from understudy.policies.common.fast_tokenizer import FastTokenizer
    from understudy.train.data.run_data import RunData
    from understudy_data import EpisodeDataset


@dataclass(frozen=True)
class FitConfig(TrainConfig):
    """Settings of a run, and a folder for the file that this run will need."""

    output_dir: str = ""
    """Folder to write, which a setting of the policy then names. Required; one that holds files is
    not overwritten.
    """
    policy: PolicySettings = field(default_factory=lambda: policy_type("pi05").settings())
    """Policy of the run."""
    json: bool = False
    """Print the summary as one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        errors = super().problems()
        folder = Path(self.output_dir)
        if not self.output_dir:
            errors.append("output_dir: required, the folder to write")
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            errors.append(
                f"output_dir: {self.output_dir} exists; name another folder, or remove it"
            )
        return errors


def spread_rows(dataset: "EpisodeDataset", count: int, batch: int) -> Iterator[dict[str, Any]]:
    """Yield rows of `count` samples, evenly spread over `dataset`, in batches of up to `batch`
    samples.
    """
    import numpy as np

    rows = np.linspace(0, len(dataset) - 1, count).round().astype(np.int64)
    for begin in range(0, count, batch):
        yield dataset.row_batch(*dataset.locate(rows[begin : begin + batch]))


@dataclass(frozen=True)
class StatisticsConfig(TrainConfig, WorkersConfig):
    """Compute the statistics of a run's data before it starts.

    The start of the run finds them in the cache of the host (`data.cache`). Give the settings of
    the run. The statistics are equal to the bit for any number of processes.
    """

    json: bool = False
    """Print the statistics as one JSON object: norm head -> column -> figures."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        return super().problems() + self.worker_problems()


_COST = 400
"""Frames whose statistics take the time of one frame of other work."""


def prepare_statistics(config: StatisticsConfig) -> None:
    """Compute the statistics that the start of a run needs, and print them."""
    from understudy.train.data.run_data import open_data
    from understudy.train.data.run_normalization import HeadStatistics, choose_normalization
    from understudy.train.paths import with_local_files
    from understudy_data import RemoteOptions, Workers

    run = with_local_files(config).with_policy_defaults()
    data = open_data(run)
    cache = Path(RemoteOptions(cache=run.data.cache).folder)
    processes = config.processes(sum(map(len, data.training)) // _COST)
    with Workers(processes, config.ray, config.work) as workers:
        statistics: HeadStatistics = {}
        choose_normalization(run, data, cache, workers, statistics)
    if config.json:
        print(
            json.dumps(
                statistics,
                default=lambda value: value.tolist() if hasattr(value, "tolist") else vars(value),
            )
        )
        return
    for head, of_head in statistics.items():
        print(f"{head}: {plural(of_head[ACTION].count, 'frame')} of {', '.join(of_head)}")
    print(f"in {cache / 'statistics'}")


CHUNKS = 512
"""Chunks that are read at once."""


@dataclass(frozen=True)
class FastConfig:
    """FAST tokens to fit."""

    vocab_size: Annotated[int, Interval(ge=2, le=2**16)] = 1024
    """Most tokens; a larger vocabulary gives shorter sequences."""
    scale: Annotated[float, Interval(gt=0, lt=inf)] = 10.0
    """Steps per unit of a cosine coefficient of the normalized actions: 10 rounds each to within
    0.05.
    """
    chunks: Annotated[int, Interval(ge=1, le=10**8)] = 100_000
    """Most chunks to read, evenly spread over the training frames; one in ten measures the result.
    """


@dataclass(frozen=True)
class FastFitConfig(FitConfig):
    """Fit FAST action tokens to the actions of a dataset.

    Give the settings of the run that will use the folder as `policy.fast`: data, chunk size and
    normalization must be the same.
    """

    fast: FastConfig = field(default_factory=FastConfig)


def fit_fast(config: FastFitConfig) -> None:
    """Fit, write the folder, and print lengths and errors on chunks that were not fitted."""
    from understudy.policies.common.fast_tokenizer import FastTokenizer

    require("pi05")
    chunks = list(read_chunks(config))
    fitted = [chunk for number, chunk in enumerate(chunks) if number % 10 != 9 or len(chunks) < 20]
    measured = chunks[9::10] if len(chunks) >= 20 else chunks
    tokenizer = FastTokenizer.fit(fitted, config.fast.vocab_size, config.fast.scale)
    facts = measure(tokenizer, measured) | {"chunks": len(chunks), "output_dir": config.output_dir}
    with create_folder(Path(config.output_dir)) as fresh:
        tokenizer.save(fresh)
    text = json.dumps(facts) if config.json else format_fast(facts)
    print(text)


def read_chunks(config: TrainConfig) -> "Iterator[np.ndarray]":
    """Yield normalized chunks of actions, float32 [T, own dimensions], evenly spread over the
    training frames.
    """
    import torch

    from understudy.policies.batch import split_states
    from understudy.policies.common.normalizer import Normalizer
    from understudy.train.data.run_data import open_data
    from understudy.train.data.run_normalization import choose_normalization
    from understudy.train.paths import with_local_files

    config = with_local_files(config).with_policy_defaults()
    data = open_data(config)
    policy = data.policy_config(config)
    widths = {ACTION: policy.action_dim}
    if policy.state_dim:
        widths[STATE] = policy.state_dim
    normalizer = Normalizer(choose_normalization(config, data), widths)
    most = config.fast.chunks if isinstance(config, FastFitConfig) else inf
    total = sum(map(len, data.training))
    times = Past.of(config.policy).states
    for number, part in enumerate(data.training):
        count = max(1, round(min(1.0, most / total) * len(part)))
        for read in spread_rows(part, count, CHUNKS):
            if times and STATE in read:
                read = split_states(read, len(times))
            batch: dict[str, Any] = {
                key: torch.nn.functional.pad(read[key], (0, width - read[key].shape[-1]))
                for key, width in widths.items()
                if key in read
            }
            batch[HEAD] = torch.full(
                (len(read[ACTION]),), int(data.head_of_source[number]), dtype=torch.int64
            )
            actions = normalizer.actions(batch)
            action_dim = normalizer.dims[ACTION][int(data.head_of_source[number])]
            yield from actions[..., :action_dim].numpy()


def measure(tokenizer: "FastTokenizer", chunks: "list[np.ndarray]") -> dict[str, Any]:
    """Return the lengths and the largest error of the tokens of chunks."""
    import numpy as np

    lengths = []
    errors = []
    clipped = 0
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


def format_fast(facts: dict[str, Any]) -> str:
    """Format the summary for a terminal."""
    return "\n".join(
        [
            f"{facts['output_dir']}: {facts['vocab_size']:,} tokens, fitted to {facts['chunks']:,} "
            "chunks",
            f"  {facts['measured']:,} chunks measured: {facts['tokens_mean']:.1f} tokens on "
            f"average, the longest {facts['tokens_max']}; set policy.action_tokens to "
            f"{facts['tokens_max'] + 8} or more",
            f"  largest error of a normalized action {facts['error_max']:.3f}; "
            f"{facts['clipped']:.2%} of the chunks are out of range",
        ]
    )


FILE = "tokenizer.model"
"""Name of the model in its folder, where `policy.tokenizer` finds it."""
FRAMES = 4096
"""Frames that are read at once."""


@dataclass(frozen=True)
class TokenizerConfig:
    """Text tokenizer to fit."""

    vocab_size: Annotated[int, Interval(ge=1, le=2**20)] = 512
    """Most ids. Every tokenizer has 261 for control tokens, the line end and bytes; few words need
    few more.
    """
    frames: Annotated[int, Interval(ge=1, le=10**8)] = 100_000
    """Most frames of a dataset to read responses from (`data.response`), evenly spread over the
    training frames.
    """


@dataclass(frozen=True)
class TokenizerFitConfig(FitConfig):
    """Fit a text tokenizer to the instructions of a dataset, and to its responses if the run has
    them.

    For networks that train from fresh weights: released weights need the tokenizer that they were
    trained with. Give the settings of the run that will use the folder as `policy.tokenizer`.
    """

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)


def fit_tokenizer(config: TokenizerFitConfig) -> None:
    """Fit, write the folder, and print the number of ids and the length of the longest prompt."""
    from understudy.policies.common.fit_text_tokenizer import fit_text_tokenizer
    from understudy.train.data.run_data import open_data, prompt_fields
    from understudy.train.paths import with_local_files

    require("pi05")
    run = with_local_files(config)
    policy = run.policy
    if not isinstance(policy, ReadsTexts):
        raise ConfigError(
            f"policy.type: {policy.type}: reads no texts by a tokenizer; name a type that does, "
            "such as pi05"
        )
    room = policy.text_vocabulary()
    if config.tokenizer.vocab_size > room:
        raise ConfigError(
            f"tokenizer.vocab_size: {config.tokenizer.vocab_size}: a policy of type "
            f"{config.policy.type} with these settings has room for {room} ids of texts, beside "
            "reserved ones and those of policy.fast; give fewer"
        )
    run = run.with_policy_defaults()
    data = open_data(run)
    known_tasks: set[str] = set()
    for part in data.training:
        known_tasks.update(part.catalog.tasks)
    tasks = [*sorted(known_tasks), *prompt_fields(data.training)]
    responses = read_responses(config, data)
    texts = policy.tokenizer_texts(tasks, responses, data.policy_config(run).state_dim)
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
    with create_folder(Path(config.output_dir)) as fresh:
        (fresh / FILE).write_bytes(model)
    text = json.dumps(facts) if config.json else format_tokenizer(facts)
    print(text)


def read_responses(config: TokenizerFitConfig, data: "RunData") -> list[str]:
    """Return the distinct responses of frames that are evenly spread over each source's training
    frames, sorted.
    """
    responses: set[str] = set()
    for source, part in zip(config.data.mixed(), data.training):
        if not source.response:
            continue
        for read in spread_rows(part, min(len(part), config.tokenizer.frames), FRAMES):
            responses.update(read[RESPONSE])
    return sorted(responses)


def format_tokenizer(facts: dict[str, Any]) -> str:
    """Format the summary for a terminal."""
    return "\n".join(
        [
            f"{facts['output_dir']}: {facts['vocab_size']:,} ids, fitted to {facts['tasks']:,} "
            f"instructions and {facts['responses']:,} responses",
            f"  the longest text has {facts['tokens_max']} tokens: policy.prompt_tokens must not "
            "be less",
        ]
    )
