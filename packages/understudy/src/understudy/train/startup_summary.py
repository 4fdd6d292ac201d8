"""Summary before the first step: the trained parameters, one table of the sources, and notes on
peculiarities.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy.config.train import AugmentConfig, TrainConfig
from understudy.optim.lora import A, B, adapted_layers
from understudy.optim.param_groups import part_of
from understudy.optim.state import local
from understudy.policies.capabilities.future import ImaginesImages, images_ahead
from understudy.policies.capabilities.images import fit_images, way_of_resizing
from understudy.policies.capabilities.start import Deviates
from understudy.policies.common.settings import LossTerm, TaskMode
from understudy.policies.policy import Policy
from understudy.policies.settings import PolicySettings
from understudy.train.data.run_data import RunData
from understudy.train.data.same_content import describe_copies, describe_rates
from understudy.train.precision import align
from understudy.train.state import TrainState
from understudy_data import Catalog, EpisodeDataset, Instructions, Order
from understudy_kit import flat, plain

MAX_SOURCES = 60
"""Sources that get a line each."""
MAX_NAMED = 5
"""Sources that a note names."""
WEIGHTS_IN = {"order": "the order", "loss": "the loss", "both": "the order and the loss"}
LOSS_NAMES = {LossTerm.FLOW: "action", LossTerm.DYNAMICS: "dynamics", LossTerm.IMAGES: "images"}
"""Loss term -> its name in messages."""


def startup_summary(
    config: TrainConfig,
    data: RunData,
    order: Order,
    policy: Policy | None = None,
    files: Mapping[str, list[str] | None] | None = None,
) -> list[str]:
    """Return the lines of the summary of the data; the policy names its loss terms and the modes
    that train them.

    `files` are the digests of the sources' files in order.json: they show copies among the sources.

    The table has, per source, its frames, the share of its weight, its exact share, and the steps
    per epoch. Below it are shares that differ from their weights, notes on the selections
    (keep-ranges and their matches), losses that modes leave out, figures of the frame weights, and
    cameras that a source lacks (a forgotten mapping looks like that, too).
    """
    lines = [
        *_describe_sources(config.batch_size, data, order),
        *describe_rates(data, config.data.actions_per_chunk),
        *describe_copies(data, files or {}),
        *_describe_weights(data),
        *_describe_lengths(config, data),
        *describe_defaults(config),
        *_describe_metadata(data),
        *_describe_instructions(config.augment, data),
    ]
    for source in data.sources:
        lines += [f"{source.name}: {note}" for note in source.notes]
    ahead = images_ahead(config.policy, config.data.actions_per_chunk)
    always = config.policy.ALWAYS if isinstance(config.policy, ImaginesImages) else ()
    shares = config.modes.weights()
    trained: dict[str, Collection[str]] = {}
    for mode in shares:
        trained[mode] = policy.trained_terms(mode) if policy else TaskMode.TRAINS[mode]
    terms = tuple(LOSS_NAMES) if policy is None else policy.loss_terms
    lines += describe_modes(
        config.mode, shares, bool(ahead and data.cameras), always, terms, trained
    )
    lines += describe_images(config.policy, data)
    for camera in data.cameras:
        if missing := [
            source.name for source in data.sources if camera in source.training.missing_cameras
        ]:
            lines.append(f"no {camera} in {_some(missing)}: black there, and marked as missing")
    if data.size is not None:
        lines.append(
            f"images are loaded at {data.size[0]} x {data.size[1]}: the sizes in the sources differ"
        )
    return lines


def _describe_sources(batch_size: int, data: RunData, order: Order) -> list[str]:
    slots = order.spec.schedule[-1].slots
    weights = data.weights
    rows = [("source", "head", "training", "validation", "weight", "share", "an epoch", "tasks")]
    for source in data.sources[:MAX_SOURCES]:
        share = slots[source.number] / sum(slots)
        epoch = "never"
        if share:
            steps = order.spec.sources[source.number].frames / (share * batch_size)
            epoch = f"{steps:,.4g} steps"
        row = (
            source.name,
            source.head,
            _format_amount(source.training),
            _format_amount(source.validation),
            f"{source.weight / sum(weights):.3%}",
            f"{share:.3%}",
            epoch,
            str(_count_tasks(source.training)),
        )
        rows.append(row)
    lines = align(rows)
    if len(data.sources) > MAX_SOURCES:
        lines.append(f"… and {len(data.sources) - MAX_SOURCES} more sources")
    errors = order.share_errors(weights)
    for number, share, asked in errors[:MAX_NAMED]:
        actual = f"{share:.4%} of the samples instead of {asked:.4%}, {share / asked - 1:+.1%}"
        lines.append(f"{data.names[number]} has {actual}: shares are multiples of 1/{sum(slots)}")
    if len(errors) > MAX_NAMED:
        lines.append(f"… and {len(errors) - MAX_NAMED} more shares differ by more than 1 %")
    return lines


def _describe_lengths(config: TrainConfig, data: RunData) -> list[str]:
    """Notes on a validation of a sample, and on chunks and warm-ups that are too long."""
    lines = []
    frames = sum(len(part) for part in data.validation if part is not None)
    if config.val.every and 0 < config.val.frames < frames:
        sample = f"{config.val.frames:,} of {frames:,} validation frames"
        lines.append(f"each validation evaluates {sample}, always the same ones (val.frames)")
    if config.val.every:
        lines += _describe_validation_tasks(data)
    longest = max(_longest_episode(part) for part in data.training)
    if (chunk := config.data.actions_per_chunk) > longest:
        lines.append(
            f"data.chunk_size {chunk:,} is longer than every episode ({longest:,} frames): the "
            "rest is padding"
        )
    if (warmup := config.schedule.warmup(config.steps)) >= config.steps:
        lines.append(
            f"schedule.warmup_steps {warmup:,} is not over before the last of {config.steps:,} "
            f"steps: the learning rate rises to {config.steps / warmup:.0%} of optim.lr and never "
            "decays"
        )
    return lines


def describe_modes(
    mode: str | Mapping[Any, float],
    shares: Mapping[str, float],
    images: bool = False,
    always: Collection[str] = (),
    terms: Sequence[str] = (LossTerm.FLOW, LossTerm.DYNAMICS, LossTerm.IMAGES),
    trained: Mapping[str, Collection[str]] = TaskMode.TRAINS,
) -> list[str]:
    """Return one line for each loss that not every sample trains.

    Args:
        mode: the setting `mode`.
        shares: share of each mode by name; they sum to 1.
        images: whether the policy predicts future images.
        always: terms that every sample of a run with mode `policy` trains.
        terms: loss terms of the policy.
        trained: mode -> those of them that a sample of it trains.
    """
    if isinstance(mode, str):
        name = mode
    else:
        name = " + ".join(f"{share:g} {part}" for part, share in mode.items() if share)
    lines = []
    for term in terms:
        word = LOSS_NAMES.get(term, term)
        acts = shares["policy"] > 0 and term in always
        share = 1.0
        if not acts:
            share = sum(share for part, share in shares.items() if term in trained[part])
        if share < 1 - 1e-12 and (term != LossTerm.IMAGES or images):
            samples = "on no sample"
            if share:
                samples = f"on {Fraction(share).limit_denominator(1000)} of the samples"
            lines.append(f"{name} trains the {word} loss {samples}")
    return lines


def describe_images(policy: PolicySettings, data: RunData) -> list[str]:
    """Return a line about each camera: the recorded size, and the network's with the way of
    resizing.

    Sources that record another size have a separate line.
    """
    seen = _size(fit_images(policy, data.image_sizes).network_size)
    resized = way_of_resizing(policy)
    lines = []
    for camera in data.cameras:
        recorded = dict[tuple[int, int] | None, list[str]]()
        for name, part in zip(data.names, data.training):
            if camera not in part.missing_cameras:
                recorded.setdefault(part.catalog.features[camera].size, []).append(name)
        for size, names in recorded.items():
            stored = "of an unknown size" if size is None else _size(size)
            change = f" -> {seen} ({resized})" if stored != seen else ""
            sources = f" in {_some(names)}" if len(recorded) > 1 else ""
            lines.append(f"{camera} {stored}{change}{sources}")
    return lines


def describe_defaults(config: TrainConfig) -> list[str]:
    """Return the settings whose defaults come from the policy, and those that differ from them, in
    a line each.
    """
    defaults = flat(config.run_defaults())
    present = flat(plain(config))
    name = config.policy.type
    taken = [f"{path} {value}" for path, value in defaults.items() if present.get(path) == value]
    others = [
        f"{path} {present.get(path)} (its own: {value})"
        for path, value in defaults.items()
        if present.get(path) != value
    ]
    lines = [f"from policy {name}: {', '.join(taken)}"] if taken else []
    deviation = config.policy.deviation(config.steps) if isinstance(config.policy, Deviates) else ""
    if deviation:
        lines.append(f"{name}: {deviation}")
    if others:
        lines.append(f"not from policy {name}: {', '.join(others)}")
    return lines


def _describe_instructions(augment: AugmentConfig, data: RunData) -> list[str]:
    """Return a line about the task texts that `augment.task_separator` divides: a wrong one divides
    none.
    """
    if not (separator := augment.task_separator):
        return []
    texts = set(chain.from_iterable(part.catalog.tasks for part in data.training))
    split = Instructions(separator).split
    several = sum(len(split(text)) > 1 for text in texts)
    counts = f"{several:,} of {len(texts):,} task texts have several instructions"
    line = f"augment.task_separator {separator!r}: {counts}"
    if several:
        line += ", a sample gets one of them"
    return [line]


def _describe_weights(data: RunData) -> list[str]:
    """Figures of the frame weights of each source that has some."""
    lines = []
    for name, part in zip(data.names, data.training):
        if (weights := part.frame_weights) is None:
            continue
        facts = weights.facts
        passes = f" in {facts.passes} passes" if facts.passes > 1 else ""
        lines.append(
            f"{name}: frame weights in {WEIGHTS_IN[weights.weights_in]}: {facts.frames:,} training "
            f"frames, {facts.zero / facts.frames:.1%} of weight 0; an epoch of {facts.epoch:,} "
            f"samples{passes}; effective sample size {facts.effective:,.0f} "
            f"({facts.effective / (facts.frames - facts.zero):.1%}); largest weight "
            f"{facts.largest:g}"
        )
    if len(lines) > MAX_SOURCES:
        lines = [
            *lines[:MAX_SOURCES],
            f"… and {len(lines) - MAX_SOURCES} more sources with frame weights",
        ]
    return lines


def _describe_metadata(data: RunData) -> list[str]:
    """First oddities in each dataset's metadata; missing files are in the notes on its
    selection.
    """
    lines = []
    catalogs = dict[str, tuple[str, Catalog]]()
    for name, part in zip(data.names, data.training):
        catalogs.setdefault(part.catalog.root, (name, part.catalog))
    for root, (name, catalog) in catalogs.items():
        notes = catalog.metadata_notes()
        lines += [f"{name}: {note}" for note in notes[:MAX_NAMED]]
        if len(notes) > MAX_NAMED:
            lines.append(f"{name}: {len(notes) - MAX_NAMED} more of these: understudy check {root}")
    return lines


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _format_amount(part: EpisodeDataset | None) -> str:
    if part is None:
        return "nothing"
    episodes = part.num_episodes
    frame_word = "frames" if len(part) > 1 else "frame"
    episode_word = "episodes" if episodes > 1 else "episode"
    return f"{len(part):,} {frame_word} of {episodes:,} {episode_word}"


def _longest_episode(part: EpisodeDataset) -> int:
    """Frames of its longest episode; segments may be the first frames of chunks alone."""
    table = part.catalog.episodes
    return int(table.lengths[table.rows_of(part.episodes)].max())


def _count_tasks(part: EpisodeDataset) -> int:
    """Number of distinct instructions of its episodes."""
    return len(_task_indices(part))


def _task_indices(part: EpisodeDataset) -> np.ndarray:
    """Indices of the distinct instructions of its episodes, int64 (n,), ascending."""
    table = part.catalog.episodes
    chosen = np.zeros(len(table), bool)
    chosen[table.rows_of(part.segments[:, 0])] = True
    return np.unique(table.task_indices[np.repeat(chosen, np.diff(table.task_offsets))])


def _describe_validation_tasks(data: RunData) -> list[str]:
    """Return a line where the validation has no episode of some instructions that are trained."""
    trained = set[str]()
    validated = set[str]()
    for part, held in zip(data.training, data.validation):
        texts = part.catalog.tasks
        trained |= {texts[index] for index in _task_indices(part)}
        if held is not None:
            validated |= {texts[index] for index in _task_indices(held)}
    lacking = sorted(trained - validated)
    if not validated or not lacking:
        return []
    names = [repr(name) for name in lacking]
    return [
        f"tasks without validation episodes, {len(lacking):,} of {len(trained | validated):,}: "
        f"{_some(names)}; data.val_fraction takes more episodes, data.val_episodes chooses them"
    ]


def describe_trainable(state: TrainState) -> list[str]:
    """Return the share of the parameters that are trained, and with frozen ones a table of the
    policy's parts.

    The bytes are exact, of the optimizer's state on this rank. With adapters on fresh weights a
    last line warns.
    """
    policy = state.policy
    config = state.config
    named = dict(policy.named_parameters())
    layers = adapted_layers(policy)
    total = _count(named.values())
    trained = _count(p for p in named.values() if p.requires_grad)
    states = state.optimizer.state.values()
    tensors = chain.from_iterable(of_parameter.values() for of_parameter in states)
    size = sum(local(tensor).nbytes for tensor in tensors)
    adapters = ""
    if layers:
        adapters = f"; adapters of rank {config.lora.rank} on {len(layers)} linear layers"
    share = "all" if trained == total else f"{trained:,} of"
    frozen = "" if trained == total else f", {total - trained:,} are frozen"
    where = " on this process" if state.mesh.world_size > 1 else ""
    lines = [
        f"trains {share} {total:,} parameters ({_percent(trained, total)}){frozen}{adapters}; "
        f"optimizer state {size:,} bytes{where}"
    ]
    lines += policy.describe_losses(state.weights)
    if policy.scalar_losses:
        lines.append(
            "the policy returns one loss per batch: training and validation have no losses per "
            "source, mode, task or episode"
        )
    if trained < total:
        lines += _describe_parts(named, list(layers), policy.config.PARTS)
    if layers:
        full = {
            name: p
            for name, p in named.items()
            if p.requires_grad and not name.endswith((f".{A}", f".{B}"))
        }
        parts = [f"{part} ({_count(members):,})" for part, members in _parts(full, {}).items()]
        if parts:
            lines.append(
                f"lora.also_train: {', '.join(parts)} are trained in full: named there, or not in "
                "the first weights"
            )
    if narrow := _count(
        p for p in named.values() if p.dtype == torch.bfloat16 and not p.requires_grad
    ):
        rounded = ""
        if state.rounded:
            rounded = f"; {state.rounded:,} of them were rounded from float32, once"
        lines.append(f"lora.base: {narrow:,} frozen weights are kept in bfloat16{rounded}")
    if layers and not (config.init_from or getattr(config.policy, "weights", "")):
        lines.append(
            "lora.rank: the frozen weights below the adapters are fresh random numbers; start from "
            "a trained policy (init_from)"
        )
    return lines


def _describe_parts(
    named: Mapping[str, Tensor], layers: list[str], parts: Mapping[str, str]
) -> list[str]:
    """Format one line per part of the policy, in the sequence of its parameters."""
    adapted = [part_of(f"{name}.weight", parts) for name in layers]
    rows = [("part", "parameters", "trained", "share", "adapters")]
    for part, members in _parts(named, parts).items():
        total = _count(members)
        trained = _count(p for p in members if p.requires_grad)
        share = _percent(trained, total) if trained else "frozen"
        rows.append((part, f"{total:,}", f"{trained:,}", share, str(adapted.count(part) or "-")))
    return align(rows)


def _parts(named: Mapping[str, Tensor], parts: Mapping[str, str]) -> dict[str, list[Tensor]]:
    groups: dict[str, list[Tensor]] = {}
    for name, parameter in named.items():
        groups.setdefault(part_of(name, parts), []).append(parameter)
    return groups


def _count(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %"
