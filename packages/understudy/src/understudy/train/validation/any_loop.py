"""Validation of any training loop: one pass over datasets, by the mechanism of a run's own.

A loop gives a function of a batch that returns losses per sample. Chunks, sums and standard errors
are those of a run (`validation_loss.py`), so that any number of ranks finds the same bits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from understudy.distributed.ranks import GivenRanks, given_ranks
from understudy.policies.batch import batch_to_device
from understudy.policies.draws import Draws, keyed_generators
from understudy.policies.losses import Loss
from understudy.policies.policy import Policy
from understudy.train.precision import align
from understudy.train.validation.losses import Losses
from understudy.train.validation.observer import Evaluation
from understudy.train.validation.validation_loss import Reading, evaluate
from understudy_base import Batch, ConfigError, Record
from understudy_data import EpisodeDataset, KeyedDraws, ValidationData

Dataset: TypeAlias = EpisodeDataset | str | Path
Key: TypeAlias = str | tuple[str, str]
SampleLosses: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Tensor | Loss] | Tensor]
PROBE = 2
"""Samples of the batch that shows the names of the losses."""


@dataclass(frozen=True)
class ValidationRow:
    """Losses of one dataset in one control mode."""

    dataset: str
    control_mode: str
    """"" where the sources name none."""
    loss: float
    """Weighted sum of the terms' means over elements."""
    se: float | None
    """Its standard error, with episodes as clusters; None with one episode."""
    samples: int
    episodes: int
    elements: int
    """Numbers behind the losses: of samples, or the counts that `losses` returned."""
    terms: Mapping[str, float]
    """Mean of each loss by name."""


@dataclass(frozen=True)
class ValidationTable:
    """Result of `validate`; `str` of it is a table."""

    total: ValidationRow
    """All samples together; `dataset` and `control_mode` are ""."""
    rows: tuple[ValidationRow, ...]
    """A row for each dataset and control mode that has samples, by name."""
    frames: int
    """Frames of the sources, of which `total.samples` were evaluated."""
    record: Mapping[str, Any]
    """The figures as a run logs them (docs/validation.md)."""

    def __str__(self) -> str:
        """Format a line for each dataset and control mode, and one for all samples."""
        terms = list(self.total.terms) if len(self.total.terms) > 1 else []
        head = ("dataset", "control mode", "loss", "standard error", *terms)
        lines = [(*head, "samples", "episodes", "elements")]
        for row in (*self.rows, self.total):
            counts = [f"{count:,}" for count in (row.samples, row.episodes, row.elements)]
            means = [f"{row.terms[term]:.4g}" if term in row.terms else "-" for term in terms]
            error = "-" if row.se is None else f"{row.se:.2g}"
            name = "all" if row is self.total else row.dataset
            lines.append((name, row.control_mode or "-", f"{row.loss:.4g}", error, *means, *counts))
        return "\n".join(align(lines))


def validate(
    losses: SampleLosses | nn.Module,
    sources: Mapping[Key, Dataset] | Sequence[Dataset] | Dataset,
    *,
    model: nn.Module | None = None,
    weights: Mapping[str, float] | None = None,
    batch_size: int = 128,
    frames: int = 100_000,
    seed: int = 0,
    device: str | torch.device | None = None,
    image_size: tuple[int, int] | None = None,
    num_threads: int = 1,
) -> ValidationTable:
    """Validate in any training loop: losses per dataset and control mode, in one pass.

        def losses(batch):                                   # {name: one number per sample}
            error = (model(batch) - batch["action"]).square().mean(dim=-1)     # [B, T]
            pad = batch["action_is_pad"]
            sums = torch.where(pad, 0.0, error).sum(dim=1)
            return {"mse": us.policies.Loss(sums, (~pad).sum(dim=1))}

        sources = {("aloha", "joint"): aloha, ("droid", "eef"): droid}
        table = us.validate(losses, sources, model=model)

    Every process of a group calls it together (torch.distributed with any backend), and all get the
    same table; one process and several find the same bits where the network does. Nothing of the
    loop changes: modules are in evaluation mode within the call and have their own modes after it,
    no gradient is computed, and no random generator moves. Numbers that `losses` draws from
    generators of torch, numpy and `random` repeat: they are keyed by the seed and the first sample
    of a chunk.

    Args:
        losses: function of a batch, or a module that is called with it, that returns losses by
            name, float [B] each; one tensor [B] is the loss "loss". `us.policies.Loss(sum, count)`
            weighs each element the same, and a sample without any has count 0. Also a `Policy`.
        sources: datasets by name, or by (name, control mode); a sequence, or one, is named by the
            folders. A path is opened with all its keys; open an `EpisodeDataset` to choose
            episodes, keys and windows.
        model: module of `losses`, where that is a function and no method of the module.
        weights: weights of the losses in their sum; a missing name weighs 0. None: 1 each.
        batch_size: most samples of a call, 1 to 128. Another number may round differently.
        frames: most frames to evaluate, spread over sources, tasks and episodes; 0: all.
        seed: of numbers that `losses` draws.
        device: device of the batches; None: that of the module, or the CPU.
        image_size: (height, width) of all images, area-averaged; needed where sources differ.
        num_threads: threads that read ahead.

    Returns:
        The table, its figures as a run logs them included.

    Raises:
        ConfigError: no frame, a value out of range, losses of another form, or processes that
            validate different data. ValueError: the sources cannot share a batch. DatasetError: a
            source or a frame cannot be read.
    """
    check_range("batch_size", batch_size, 1, 128)
    check_range("frames", frames, 0, 2**63)
    check_range("num_threads", num_threads, 1, 4096)
    given = _Sources.named(sources, image_size)
    network = model or _module_of(losses)
    place = torch.device(device) if device is not None else _device_of(network)
    policy = losses if isinstance(losses, Policy) else _GivenLosses(losses, place)
    held = ValidationData.from_sources(given.ordered(policy), len(given.names) > 1, frames)
    if held is None or not len(held):
        raise ConfigError("sources: they have no frame to validate")
    held = replace(held, chunk=batch_size)
    arithmetic = place if place.type in ("cpu", "cuda") else torch.device("cpu")
    with given_ranks(arithmetic) as ranks, _modes_kept(network, policy):
        if isinstance(policy, _GivenLosses):
            with (
                keyed_generators(KeyedDraws(seed).key("names of losses"), arithmetic),
                torch.no_grad(),
            ):
                policy.find_terms(held.read(slice(0, min(PROBE, len(held)))), len(held))
        chosen = _weights(policy.loss_terms, weights)
        _check_alike(ranks, (given.names, len(held), sorted(chosen.items()), batch_size))
        evaluation = Evaluation(policy, held, seed, ranks, chosen)
        record = evaluate(evaluation, [Losses(evaluation)], Reading(num_threads))
    return _table(record, given)


@dataclass(frozen=True)
class _Sources:
    """Sources of a validation (`load.validation_data.Sources`)."""

    keys: tuple[tuple[str, str], ...]
    """Dataset and control mode of each."""
    names: tuple[str, ...]
    training: tuple[EpisodeDataset, ...]
    heads: tuple[str, ...]
    size: tuple[int, int] | None

    @property
    def validation(self) -> tuple[EpisodeDataset, ...]:
        return self.training

    @property
    def weights(self) -> tuple[float, ...]:
        return (1.0,) * len(self.names)

    @property
    def cameras(self) -> tuple[str, ...]:
        keys = chain.from_iterable(part.catalog.camera_keys for part in self.training)
        return tuple(dict.fromkeys(keys))

    @property
    def head_of_source(self) -> np.ndarray:
        return np.array([self.heads.index(mode) for _, mode in self.keys], np.int64)

    def ordered(self, policy: Policy) -> "_Sources":
        """Number the control modes as the norm heads of a policy that has them."""
        if isinstance(policy, _GivenLosses) or not set(self.heads) <= set(policy.norm_heads):
            return self
        return _Sources(self.keys, self.names, self.training, policy.norm_heads, self.size)

    @staticmethod
    def named(sources: Any, size: tuple[int, int] | None) -> "_Sources":
        if isinstance(sources, str | Path | EpisodeDataset):
            sources = [sources]
        if not isinstance(sources, Mapping):
            opened = [_opened(source) for source in sources]
            seen: dict[str, EpisodeDataset] = {}
            for part in opened:
                number = 1 + sum(name.partition("#")[0] == part.name for name in seen)
                own_name = part.name if number == 1 else f"{part.name}#{number}"
                seen[own_name] = part
            sources = seen
        if not sources:
            raise ConfigError("sources: none is given; name datasets")
        keys = []
        for key in sources:
            pair = (key, "") if isinstance(key, str) else tuple(key)
            if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
                raise ConfigError(f"sources: {key!r}: give a name, or (name, control mode)")
            keys.append((pair[0], pair[1]))
        names = tuple("::".join(filter(None, key)) for key in keys)
        if len(set(names)) < len(names):
            raise ConfigError(f"sources: {', '.join(names)}: each name and mode once")
        return _Sources(
            tuple(keys),
            names,
            tuple(_opened(source) for source in sources.values()),
            tuple(dict.fromkeys(mode for _, mode in keys)),
            size,
        )


class _GivenLosses(Policy):
    """A function of a batch in the place of a policy."""

    def __init__(self, function: Any, device: torch.device) -> None:
        super().__init__()
        # no child: its modes are kept elsewhere
        self._function = [function]
        self._device = device
        self._terms: tuple[str, ...] = ()

    @property
    def loss_terms(self) -> tuple[str, ...]:
        return self._terms

    def find_terms(self, batch: dict[str, Any], samples: int) -> None:
        """Learn the names of the losses from a batch."""
        self._terms = tuple(self._call({k: v for k, v in batch.items() if k != "unreadable"}))
        if not self._terms:
            raise ConfigError(f"losses: no loss of {samples} samples; return {{name: tensor [B]}}")

    def sample_losses(
        self, batch: Batch, draws: Draws, terms: Any, detail: bool = False
    ) -> dict[str, Loss]:
        """Losses of a batch by name."""
        found = self._call(batch)
        for term in terms:
            if term not in found:
                raise ConfigError(f"losses: no {term!r} of some batches: {list(found)}")
        return {term: found[term] for term in terms}

    def _call(self, batch: Batch) -> dict[str, Loss]:
        batch = batch_to_device(batch, self._device)
        count = len(batch["episode_index"])
        returned = self._function[0](dict(batch))
        if isinstance(returned, Tensor):
            returned = {"loss": returned}
        if not isinstance(returned, Mapping):
            raise ConfigError(
                f"losses: returns a {type(returned).__name__}; return {{name: tensor [B]}}"
            )
        found = {}
        for name, loss in returned.items():
            if not isinstance(loss, Loss):
                ones = torch.ones(count, dtype=torch.int64)
                loss = Loss(torch.as_tensor(loss), ones)
            shapes = {tuple(loss.sum.shape), tuple(loss.count.shape)}
            if shapes != {(count,)}:
                raise ConfigError(
                    f"losses: {name!r} has shape {tuple(loss.sum.shape)} for {count} samples; "
                    "return a number for each, [B], or Loss(sum, count) of them; a mean over the "
                    "batch cannot be divided among datasets"
                )
            found[str(name)] = loss
        return found


@contextmanager
def _modes_kept(*networks: nn.Module | None) -> Iterator[None]:
    """Put networks into evaluation mode within this context; each module has its own after it."""
    modules = list(chain.from_iterable(n.modules() for n in networks if n is not None))
    modes = [module.training for module in modules]
    try:
        for network in networks:
            if network is not None:
                network.eval()
        yield
    finally:
        for module, mode in zip(modules, modes):
            module.training = mode


def _module_of(losses: Any) -> nn.Module | None:
    owner = losses if isinstance(losses, nn.Module) else getattr(losses, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def _device_of(network: nn.Module | None) -> torch.device:
    tensors = [] if network is None else chain(network.parameters(), network.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _opened(source: Dataset) -> EpisodeDataset:
    return source if isinstance(source, EpisodeDataset) else EpisodeDataset(source)


def _weights(terms: Sequence[str], given: Mapping[str, float] | None) -> dict[str, float]:
    """Weight of each loss in their sum; those of weight 0 are computed, too."""
    if given is None:
        return dict.fromkeys(terms, 1.0)
    if strangers := sorted(set(given) - set(terms)):
        raise ConfigError(f"weights: no loss {strangers[0]!r}; there are {', '.join(terms)}")
    return {term: float(given.get(term, 0.0)) for term in terms}


def _check_alike(ranks: GivenRanks, facts: Any) -> None:
    of_ranks = ranks.gather(facts)
    for rank, other in enumerate(of_ranks):
        if other != of_ranks[0]:
            raise ConfigError(
                f"sources: rank {rank} validates {other}, and rank 0 {of_ranks[0]}: give all "
                "processes the same sources and losses"
            )


def check_range(name: str, value: Any, least: int, most: int) -> None:
    """Raise ConfigError unless a value is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name}: {value!r}: must be a whole number from {least} to {most}")


def _table(record: Record, given: _Sources) -> ValidationTable:
    names = dict(zip(given.names, given.keys))
    rows = [_row(*names.get(name, ("", "")), entry) for name, entry in record["sources"].items()]
    return ValidationTable(_row("", "", record), tuple(rows), record["held_out"], dict(record))


def _row(dataset: str, control_mode: str, entry: Record) -> ValidationRow:
    figures = {name: entry[name] for name in ("loss", "se", "samples", "episodes", "elements")}
    terms = {term: of_term["loss"] for term, of_term in entry["terms"].items()}
    return ValidationRow(dataset, control_mode, **figures, terms=terms)
