"""Summary of the data before the first step: one table of the sources, and notes on peculiarities."""

from collections.abc import Sequence

import numpy as np

from understudy.config.schema import flat, plain
from understudy.config.train import TrainConfig
from understudy.data.dataset import EpisodeDataset
from understudy.load.instructions import split_task
from understudy.order import Order
from understudy.train.data.run_data import RunData
from understudy.train.draw_task_modes import describe_modes

MAX_SOURCES = 60
"""Sources that get a line of their own."""

MAX_NAMED = 5
"""Sources that a note names."""

_WEIGHTS_IN = {"order": "the order", "loss": "the loss", "both": "the order and the loss"}

HEADER = ("source", "head", "training", "validation", "weight", "share", "an epoch", "tasks")


def startup_summary(config: TrainConfig, data: RunData, order: Order) -> list[str]:
    """Return the lines of the summary.

    The table has, per source, its frames, the share of its weight, its exact share, and the steps per epoch. Below it
    are shares that differ from their weights, notes on the selections (keep-ranges and their matches), losses that
    modes leave out, figures of the frame weights, and cameras that a source lacks (a forgotten mapping looks like
    that, too).
    """
    slots, weights = order.spec.schedule[-1].slots, data.weights
    rows: list[tuple[str, ...]] = [HEADER]
    for number, part in enumerate(data.training[:MAX_SOURCES]):
        share = slots[number] / sum(slots)
        head = data.heads[data.head_of_source[number]]
        epoch = f"{order.spec.sources[number].frames / (share * config.batch_size):,.4g} steps" if share else "never"
        validation = _format_amount(data.validation[number])
        shares = f"{weights[number] / sum(weights):.3%}", f"{share:.3%}"
        rows.append(
            (data.names[number], head, _format_amount(part), validation, *shares, epoch, str(_count_tasks(part)))
        )
    lines = _align(rows)
    if len(data.training) > MAX_SOURCES:
        lines.append(f"… and {len(data.training) - MAX_SOURCES} more sources")
    off = order.share_errors(weights)
    for number, share, asked in off[:MAX_NAMED]:
        actual = f"{share:.4%} of the samples instead of {asked:.4%}, {share / asked - 1:+.1%}"
        lines.append(f"{data.names[number]} has {actual}: shares are multiples of 1/{sum(slots)}")
    if len(off) > MAX_NAMED:
        lines.append(f"… and {len(off) - MAX_NAMED} more shares differ by more than 1 %")
    lines += _describe_weights(data)
    frames = sum(len(part) for part in data.validation if part is not None)
    if config.val.every and 0 < config.val.frames < frames:
        sample = f"{config.val.frames:,} of {frames:,} validation frames"
        lines.append(f"each validation evaluates {sample}, always the same ones (val.frames)")
    longest = max(_longest_episode(part) for part in data.training)
    if (chunk := config.data.actions_per_chunk) > longest:
        lines.append(
            f"data.chunk_size {chunk:,} is longer than every episode ({longest:,} frames): the rest is padding"
        )
    if (warmup := config.schedule.warmup(config.steps)) >= config.steps:
        lines.append(
            f"schedule.warmup_steps {warmup:,} is not over before the last of {config.steps:,} "
            f"steps: the learning rate rises to {config.steps / warmup:.0%} of optim.lr and never decays"
        )
    lines += [*describe_defaults(config), *_describe_metadata(data), *_describe_instructions(config, data)]
    lines += [f"{name}: {note}" for name, notes in zip(data.names, data.notes) for note in notes]
    ahead = config.policy.images_ahead(config.data.actions_per_chunk)
    lines += describe_modes(config.mode, config.mode_weights(), bool(ahead and data.cameras))
    lines += describe_images(config, data)
    for camera in data.cameras:
        if missing := [name for name, part in zip(data.names, data.training) if camera in part.missing_cameras]:
            more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
            lines.append(f"no {camera} in {', '.join(missing[:MAX_NAMED])}{more}: black there, and marked as missing")
    if data.size is not None:
        lines.append(f"images are loaded at {data.size[0]} x {data.size[1]}: those of the sources differ in size")
    return lines


def describe_images(config: TrainConfig, data: RunData) -> list[str]:
    """Return a line about each camera: the recorded size, and the network's with the way of resizing.

    Sources that record another size have a line of their own.
    """
    seen, resized = _size(config.policy.fitted(data.image_sizes).network_size), config.policy.RESIZED
    lines = []
    for camera in data.cameras:
        recorded = dict[tuple[int, int] | None, list[str]]()
        for name, part in zip(data.names, data.training):
            if camera not in part.missing_cameras:
                recorded.setdefault(part.catalog.features[camera].size, []).append(name)
        for size, names in recorded.items():
            stored = "of an unknown size" if size is None else _size(size)
            change = f" -> {seen} ({resized})" if stored != seen else ""
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            where = f" in {', '.join(names[:MAX_NAMED])}{more}" if len(recorded) > 1 else ""
            lines.append(f"{camera} {stored}{change}{where}")
    return lines


def describe_defaults(config: TrainConfig) -> list[str]:
    """Return the settings whose defaults come from the policy, and those that differ from them, in a line each."""
    brought, present = flat(config.run_defaults()), flat(plain(config))
    taken = [f"{name} {value}" for name, value in brought.items() if present.get(name) == value]
    others = [
        f"{name} {present.get(name)} (its own: {value})"
        for name, value in brought.items()
        if present.get(name) != value
    ]
    lines = [f"from policy {config.policy.type}: {', '.join(taken)}"] if taken else []
    if deviation := config.policy.deviation(config.steps):
        lines.append(f"{config.policy.type}: {deviation}")
    return lines + ([f"not from policy {config.policy.type}: {', '.join(others)}"] if others else [])


def _describe_instructions(config: TrainConfig, data: RunData) -> list[str]:
    """Return a line about the task texts that `augment.task_separator` divides: a wrong one divides none."""
    if not (separator := config.augment.task_separator):
        return []
    texts = {text for part in data.training for text in part.catalog.tasks}
    several = sum(len(split_task(text, separator)) > 1 for text in texts)
    counts = f"{several:,} of {len(texts):,} task texts have several instructions"
    return [f"augment.task_separator {separator!r}: {counts}" + (", a sample gets one of them" if several else "")]


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _describe_weights(data: RunData) -> list[str]:
    """Figures of the frame weights of each source that has some."""
    lines = []
    for name, part in zip(data.names, data.training):
        if (own := part.frame_weights) is None:
            continue
        facts, kept = own.facts, own.facts.frames - own.facts.zero
        passes = f" in {facts.passes} passes" if facts.passes > 1 else ""
        lines.append(
            f"{name}: frame weights in {_WEIGHTS_IN[own.weights_in]}: {facts.frames:,} training frames, "
            f"{facts.zero / facts.frames:.1%} of weight 0; an epoch of {facts.epoch:,} samples{passes}; effective "
            f"sample size {facts.effective:,.0f} ({facts.effective / kept:.1%}); largest weight {facts.largest:g}"
        )
    if len(lines) > MAX_SOURCES:
        lines = [*lines[:MAX_SOURCES], f"… and {len(lines) - MAX_SOURCES} more sources with frame weights"]
    return lines


def _describe_metadata(data: RunData) -> list[str]:
    """First oddities in each dataset's metadata; missing files are in the notes on its selection."""
    lines, seen = [], set[str]()
    for name, part in zip(data.names, data.training):
        catalog = part.catalog
        if catalog.root in seen:
            continue
        seen.add(catalog.root)
        odd = catalog.metadata_notes()
        lines += [f"{name}: {line}" for line in odd[:MAX_NAMED]]
        if len(odd) > MAX_NAMED:
            lines.append(f"{name}: {len(odd) - MAX_NAMED} more of these: understudy inspect {catalog.root}")
    return lines


def _format_amount(part: EpisodeDataset | None) -> str:
    if part is None:
        return "nothing"
    episodes = len(np.unique(part.segments[:, 0]))
    return f"{len(part):,} frame{'s' if len(part) > 1 else ''} of {episodes:,} episode{'s' if episodes > 1 else ''}"


def _longest_episode(part: EpisodeDataset) -> int:
    """Frames of its longest episode; segments may be the first frames of chunks alone."""
    table = part.catalog.episodes
    return int(table.lengths[table.rows_of(part.segments[:, 0])].max())


def _count_tasks(part: EpisodeDataset) -> int:
    """Number of distinct instructions of its episodes."""
    table = part.catalog.episodes
    chosen = np.zeros(len(table), bool)
    chosen[table.rows_of(part.segments[:, 0])] = True
    return len(np.unique(table.task_indices[np.repeat(chosen, np.diff(table.task_offsets))]))


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
