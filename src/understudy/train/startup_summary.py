"""What a run says of its data before the first step: one table over the sources, and what was odd about them."""

from collections.abc import Sequence

import numpy as np

from understudy.config.train import TrainConfig
from understudy.data.dataset import EpisodeDataset
from understudy.order import Order
from understudy.train.data.data import RunData
from understudy.train.task_modes import told

MOST = 60
"""Sources that get a line of their own."""

FEW = 5
"""Sources that are named where something is missing."""

HEADER = ("source", "head", "trained on", "held out", "weight", "share", "an epoch", "tasks")


def started(config: TrainConfig, data: RunData, order: Order) -> list[str]:
    """The lines: per source how much of it there is, the share of the samples that its weight asks for and the one that
    it has, exactly, and how many steps it takes to see each of its frames once; then shares that are off, notes on the
    selections (keep-ranges and what they match), what modes leave out, and which cameras a source lacks: a mapping that
    was forgotten looks like that, too."""
    slots, weights = order.spec.schedule[-1].slots, data.weights
    rows: list[tuple[str, ...]] = [HEADER]
    for number, part in enumerate(data.training[:MOST]):
        share = slots[number] / sum(slots)
        head = data.heads[data.head_of_source[number]]
        epoch = f"{len(part) / (share * config.batch):,.4g} steps" if share else "never"
        held = _amount(data.held_out[number])
        shares = f"{weights[number] / sum(weights):.3%}", f"{share:.3%}"
        rows.append((data.names[number], head, _amount(part), held, *shares, epoch, str(_tasks(part))))
    lines = _aligned(rows)
    if len(data.training) > MOST:
        lines.append(f"… and {len(data.training) - MOST} more sources")
    off = order.share_errors(weights)
    for number, share, asked in off[:FEW]:
        has = f"{share:.4%} of the samples and not {asked:.4%}, {share / asked - 1:+.1%}"
        lines.append(f"{data.names[number]} has {has}: shares are met to the nearest of {sum(slots)} slots")
    if len(off) > FEW:
        lines.append(f"… and {len(off) - FEW} more shares are off by more than 1 %")
    frames = sum(len(held_out) for held_out in data.held_out if held_out is not None)
    if config.val_every and 0 < config.val_frames < frames:
        judged = f"{config.val_frames:,} of {frames:,} held-out frames"
        lines.append(f"each validation judges {judged}, always the same ones (val_frames)")
    longest = max(int((part.segments[:, 2] - part.segments[:, 1]).max()) for part in data.training)
    if config.data.chunk > longest:
        lines.append(
            f"data.chunk {config.data.chunk:,} is longer than every episode ({longest:,} frames): padding follows"
        )
    if config.schedule.warmup >= config.steps:
        lines.append(
            f"schedule.warmup {config.schedule.warmup:,} is not over before the last of {config.steps:,} steps: the "
            f"learning rate rises to {config.steps / config.schedule.warmup:.0%} of optim.lr and never decays"
        )
    lines += _odd(data)
    lines += [f"{name}: {note}" for name, notes in zip(data.names, data.notes) for note in notes]
    lines += told(config.mode, config.mode_weights())
    for camera in data.cameras:
        if lack := [name for name, part in zip(data.names, data.training) if camera in part.missing_cameras]:
            more = f" and {len(lack) - FEW} more" if len(lack) > FEW else ""
            lines.append(f"no {camera} in {', '.join(lack[:FEW])}{more}: black there, and told as missing")
    if data.size is not None:
        lines.append(f"pictures are loaded at {data.size[0]} x {data.size[1]}: those of the sources differ in size")
    return lines


def _odd(data: RunData) -> list[str]:
    """The first lines of what is odd about each dataset's metadata; missing files are in the notes on its selection."""
    lines, met = [], set[str]()
    for name, part in zip(data.names, data.training):
        catalog = part.catalog
        if catalog.root in met:
            continue
        met.add(catalog.root)
        odd = catalog.metadata_notes()
        lines += [f"{name}: {line}" for line in odd[:FEW]]
        if len(odd) > FEW:
            lines.append(f"{name}: {len(odd) - FEW} more of these: understudy inspect {catalog.root}")
    return lines


def _amount(part: EpisodeDataset | None) -> str:
    if part is None:
        return "nothing"
    episodes = len(np.unique(part.segments[:, 0]))
    return f"{len(part):,} frame{'s' if len(part) > 1 else ''} of {episodes:,} episode{'s' if episodes > 1 else ''}"


def _tasks(part: EpisodeDataset) -> int:
    """How many instructions its episodes have."""
    table = part.catalog.episodes
    chosen = np.zeros(len(table), bool)
    chosen[table.rows_of(part.segments[:, 0])] = True
    return len(np.unique(table.task_indices[np.repeat(chosen, np.diff(table.task_offsets))]))


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
