"""Micro-batches: the parts of a rank's share of a batch that are computed one after the other.

The batch is the contract. A cut neither chooses nor moves nor drops a sample: parts are consecutive
samples in position order. They depend on the batch, the settings and the largest number of parts on
any rank. All ranks run equally many parts, because the collectives of sharded weights must match.

    micro_batch_size             equal parts of that many samples
    max_num_tokens, max_samples  the longest parts within both limits, without look-ahead
    none of them                 one part
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from understudy.distributed.mesh import Mesh
from understudy.policies.capabilities.past import Past
from understudy.policies.draws import Draws
from understudy.policies.policy import Policy
from understudy_base import ACTION, STATE, TASK, Batch, ConfigError

if TYPE_CHECKING:
    from understudy.config.mesh import Batching
    from understudy.config.samples import SampleSettings
    from understudy.train.data.run_data import RunData


Span = tuple[int, int]
"""Samples [low, high) of a rank's share."""


class MicroBatch(NamedTuple):
    """Samples of one forward pass with their random numbers, on the policy's device."""

    batch: Batch
    draws: Draws


class IdleMicroBatch(MicroBatch):
    """A copy of a sample that counts nothing: computed where another rank has one part more."""


class PartCounts(NamedTuple):
    """Size of the parts of steps, known on the host."""

    samples: int
    parts: int
    tokens: int
    """Valid tokens; 0: the policy has no tokens."""
    processed: int
    """Tokens that the network computes, padding included."""

    def rates(self, seconds: float) -> dict[str, float]:
        """Figures of speed: `samples_per_part`, and with tokens `tokens_per_s` and
        `valid_share`.
        """
        figures = {"samples_per_part": self.samples / self.parts}
        if self.tokens:
            figures |= {
                "tokens_per_s": self.tokens / seconds,
                "valid_share": self.tokens / self.processed,
            }
        return figures


def sum_counts(mesh: Mesh, steps: Sequence[PartCounts | None]) -> PartCounts | None:
    """Sum the counts of some steps over all ranks, which call this together; None where there are
    none.

    Steps of one part without tokens have nothing to sum, so that they need no exchange.
    """
    counted = [step for step in steps if step is not None]
    if not any(step.tokens or step.parts > 1 for step in counted):
        return None
    return PartCounts(*mesh.sum(torch.tensor(add_counts(counted))).tolist())


def add_counts(steps: Sequence[PartCounts]) -> PartCounts:
    """Sum the counts of some steps, 1 or more."""
    return PartCounts(*(sum(values) for values in zip(*steps, strict=True)))


def cut_batch(
    policy: Policy, batching: "Batching", mesh: Mesh, batch: Batch, draws: Draws
) -> tuple[list[MicroBatch], PartCounts]:
    """Cut a rank's share of a batch by the settings; all ranks call this together.

    Args:
        policy: counts the tokens.
        batching: the settings.
        mesh: the ranks.
        batch: the share, prepared.
        draws: its random numbers.

    Raises:
        ConfigError: a sample has more tokens than `max_num_tokens`.
    """
    samples = len(batch[ACTION])
    tokens = policy.tokens(batch)
    if batching.max_num_tokens is None and batching.max_samples is None:
        spans = even_spans(samples, batching.num_micro_batches(mesh.world_size))
    else:
        rank_spans = fill_spans(
            samples, tokens, batching.max_num_tokens, batching.max_samples, batch.get("position")
        )
        spans = spread_spans(rank_spans, mesh.largest(len(rank_spans)))
    parts = take_parts(batch, draws, spans)
    processed = sum(policy.processed_tokens(part.batch) for part in parts)
    return parts, PartCounts(samples, len(parts), sum(tokens or ()), processed)


def even_spans(samples: int, count: int) -> list[Span]:
    """Divide samples into `count` spans, equal up to one sample. Raises ValueError for more spans
    than samples.
    """
    if not 1 <= count <= samples:
        raise ValueError(f"{count} spans of {samples} samples: give 1 to {samples}")
    bounds = [number * samples // count for number in range(count + 1)]
    return list(pairwise(bounds))


def fill_spans(
    samples: int,
    tokens: Sequence[int] | None,
    max_num_tokens: int | None,
    max_samples: int | None = None,
    positions: Tensor | None = None,
) -> list[Span]:
    """Divide consecutive samples greedily: a span ends before the sample that would exceed a limit.

    Args:
        samples: their number, 1 or more.
        tokens: tokens of each sample.
        max_num_tokens: largest sum of tokens in a span; None: no limit.
        max_samples: largest number of samples in a span; None: no limit.
        positions: int64 [samples] on the host, positions of the samples for the message.

    Raises:
        ConfigError: a sample has more than `max_num_tokens` tokens, or `tokens` is None with that
            limit.
    """
    if max_num_tokens is not None and tokens is None:
        raise ConfigError(
            f"max_num_tokens: {max_num_tokens}: this policy has no tokens; set max_samples"
        )
    spans = list[Span]()
    low = 0
    total = 0
    for number in range(samples):
        size = 0 if tokens is None or max_num_tokens is None else tokens[number]
        if max_num_tokens is not None and size > max_num_tokens:
            where = f"sample {number} of the batch"
            if positions is not None:
                where = f"position {int(positions[number])}"
            raise ConfigError(
                f"max_num_tokens: {max_num_tokens}: the sample at {where} has {size} tokens; set "
                f"{size} or more"
            )
        over = max_num_tokens is not None and total + size > max_num_tokens
        if number > low and (over or number - low == max_samples):
            spans.append((low, number))
            low = number
            total = 0
        total += size
    return [*spans, (low, samples)]


def spread_spans(spans: Sequence[Span], count: int) -> list[Span]:
    """Halve the longest spans (the first of them) until there are `count`; empty ones follow spans
    of one sample.
    """
    parts = list(spans)
    while len(parts) < count:
        longest = max(range(len(parts)), key=lambda number: parts[number][1] - parts[number][0])
        low, high = parts[longest]
        if high - low < 2:
            return parts + [(parts[-1][1],) * 2] * (count - len(parts))
        middle = (low + high + 1) // 2
        parts[longest : longest + 1] = [(low, middle), (middle, high)]
    return parts


def take_parts(batch: Batch, draws: Draws, spans: Sequence[Span]) -> list[MicroBatch]:
    """Take micro-batches out of a batch; an empty span becomes an `IdleMicroBatch` of the sample
    before it.
    """

    def cut(value: Any, low: int, high: int) -> Any:
        # A copy, not a view: where a tensor begins in memory may decide how a matrix product is
        # rounded.
        part = value[low:high]
        return part.clone() if len(spans) > 1 and isinstance(part, Tensor) else part

    parts = []
    for low, high in spans:
        span = (low, high) if high > low else (low - 1, low)
        kind = MicroBatch if high > low else IdleMicroBatch
        parts.append(
            kind(
                {k: cut(v, *span) for k, v in batch.items()},
                {k: cut(v, *span) for k, v in draws.items()},
            )
        )
    return parts


def check_budget(
    policy: Policy, batching: "Batching", settings: "SampleSettings", data: "RunData"
) -> None:
    """Raise ConfigError where a sample of the data could have more tokens than `max_num_tokens`.

    A sample is taken to have all cameras of its source, and texts as long as the policy takes. So
    no sample of a run that starts exceeds the budget later.
    """
    if batching.max_num_tokens is None:
        return
    tokens = largest_tokens(policy, settings, data)
    if tokens is None:
        raise ConfigError(
            f"max_num_tokens: {batching.max_num_tokens}: a policy of type {policy.config.type} has "
            "no tokens; set max_samples"
        )
    most = max(tokens)
    if most > batching.max_num_tokens:
        raise ConfigError(
            f"max_num_tokens: {batching.max_num_tokens}: a sample of source "
            f"{data.names[tokens.index(most)]} may have {most} tokens, with its cameras and the "
            f"longest texts of the policy; set {most} or more, or lower the limits of its texts "
            "(policy.*_tokens)"
        )


def largest_tokens(
    policy: Policy, settings: "SampleSettings", data: "RunData"
) -> Sequence[int] | None:
    """Return the tokens of the largest possible sample of each source; None: the policy has no
    tokens.
    """
    rows = len(data.sources)
    network = policy.config
    windows = settings.policy.windows(settings.data.actions_per_chunk, data.cameras)
    steps = Past.of(settings.policy).states or windows.get(STATE, ())
    times = (len(steps),) if steps else ()
    batch: dict[str, Any] = {
        ACTION: torch.zeros(rows, settings.data.actions_per_chunk, network.action_dim),
        f"{ACTION}_is_pad": torch.zeros(rows, settings.data.actions_per_chunk, dtype=torch.bool),
        STATE: torch.zeros(rows, *times, network.state_dim),
        f"{STATE}_is_pad": torch.zeros(rows, *times, dtype=torch.bool),
        TASK: [""] * rows,
        "position": torch.arange(rows),
        "source": torch.arange(rows),
        "head": torch.from_numpy(data.head_of_source),
    }
    for camera in data.cameras:
        batch[camera] = torch.zeros(rows, 3, 1, 1, dtype=torch.uint8)
        batch[f"{camera}_is_missing"] = torch.tensor(
            [camera in part.missing_cameras for part in data.training]
        )
    return policy.tokens(policy.largest_inputs(batch))
