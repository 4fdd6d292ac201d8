"""Section of the report on rollouts, during training and by `understudy rollout`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from understudy import PagePart, Run, RunDir, short_text
from understudy_base import Record, Records
from understudy_kit import Block, Blocks, Curve

Rate = Mapping[str, Any]
"""Successes, episodes and the 95 % interval `low` to `high`."""


def rollouts_part(run: Run) -> PagePart:
    """Return the part of a run's page on its rollouts (`report/run/parts.py`)."""
    during = run.logs["rollout"]
    blocks = render_rollouts(during, run.results, RunDir(run.root).rollouts)
    return PagePart("Rollouts", blocks, _success_figures(during, run.results))


def render_rollouts(records: Records, results: Sequence[Record], folder: Path) -> Blocks:
    """Render success per task with its interval, and images and films of episodes.

    Args:
        records: Rollouts during training, in any sequence.
        results: Results of `understudy rollout` (`read_results`).
        folder: Folder of their images.
    """
    return [*_during_training(records), *(_result_card(result, folder) for result in results)]


def interval_text(rate: Rate) -> str:
    """Format the 95 % interval of a success rate."""
    return f"{100 * rate['low']:.0f} to {100 * rate['high']:.0f} %"


def _success_figures(rollouts: Records, results: Sequence[Record]) -> list[tuple[str, str]]:
    """Success of the latest rollouts during training and of each result, with its interval."""
    rates = []
    if rollouts:
        latest = max(rollouts, key=lambda record: record["step"])
        rates.append((latest["success"], f"success of the weights of step {latest['step']:,}"))
    for result in results:
        name = "success with swapped text" if result["swap_text"] else "success"
        rates.append((result["success"], f"{name}, {result['world']}"))
    return [
        (f"{rate['successes']}/{rate['episodes']}", f"{name}; {interval_text(rate)}")
        for rate, name in rates
    ]


def _during_training(records: Records) -> Blocks:
    """Render the latest rollouts during training next to the best, and success over the steps."""
    if not records:
        return []
    by_step = sorted(records, key=lambda record: record["step"])
    last = by_step[-1]

    def best(rates: Sequence[Rate]) -> str:
        highest = max(rates, key=lambda rate: rate["rate"])
        return f"{highest['successes']}/{highest['episodes']}"

    rows = []
    for task, rate in last["tasks"].items():
        task_rates = [record["tasks"][task] for record in by_step if task in record["tasks"]]
        rows.append([*_row(task, rate), best(task_rates)])
    rows.append([*_row("all", last["success"]), best([record["success"] for record in by_step])])
    rates = Block.table(["task", "success", "95 % interval", "", "best so far"], rows)
    title = f"{last['world']}, the weights of step {last['step']:,}"
    return [
        Block.card(title, rates, _protocol(last)),
        Block.card("Success over the steps", _success_chart(by_step)),
    ]


def _success_chart(records: Records) -> Block | None:
    """Draw the success rate with its 95 % interval, and faintly the rates of up to ten tasks."""
    tasks: set[str] = set()
    for record in records:
        tasks.update(record["tasks"])
    steps = [record["step"] for record in records]
    rates = [record["success"]["rate"] for record in records]
    low = [record["success"]["low"] for record in records]
    high = [record["success"]["high"] for record in records]
    lines = [Curve("all", steps, rates, 1, low=low, high=high, points=True)]
    if 1 < len(tasks) <= 10:
        for color, task in enumerate(sorted(tasks), start=2):
            entries = [
                {"step": record["step"], **record["tasks"][task]}
                for record in records
                if task in record["tasks"]
            ]
            lines.append(Curve.from_records(short_text(task), entries, "rate", color, faint=True))
    return Block.chart("success", "step", "success rate, with the 95 % interval", lines)


def _row(name: str, rate: Rate) -> list[Any]:
    share = rate["successes"] / max(1, rate["episodes"])
    bar = Block.interval_bar(rate["low"], share, rate["high"])
    return [name, f"{rate['successes']}/{rate['episodes']}", interval_text(rate), bar]


def _result_card(result: Record, folder: Path) -> Block:
    rows = [_row(task, rate) for task, rate in result["tasks"].items()]
    rows.append(_row("all", result["success"]))
    if result["swap_text"]:
        rows.append(_row("completed the scene's own task instead", result["took_scene"]))
    rates = Block.table(["task", "success", "95 % interval", ""], rows)
    title = f"{result['world']}, seed {result['seed']}"
    if result["swap_text"]:
        title += ", another object named"
    films: Blocks = []
    shown = 0
    for episode, name in result.get("pictures", {}).items():
        blocks = _episode(result, episode, name, folder)
        films += blocks
        shown += bool(blocks)
    images = Block.fold(f"images of {shown} episodes", *films, is_open=True) if films else None
    return Block.card(title, rates, _protocol(result), images)


def _protocol(result: Record) -> Block | None:
    rows = [list(row) for row in result.get("protocol", {}).items()]
    return Block.fold("conditions", Block.table(["condition", "value"], rows)) if rows else None


def _episode(result: Record, episode: str, name: str, folder: Path) -> Blocks:
    """Render some images of an episode with their times, and the whole episode as a folded
    animation.
    """
    from PIL import Image

    from understudy_robot.rollout.files import STRIP

    entry = next((entry for entry in result["episodes"] if str(entry["episode"]) == episode), None)
    if entry is None or not (folder / name).is_file():
        return []
    with Image.open(folder / name) as image:
        pixels = np.asarray(image.convert("RGB"))
    outcome = "success" if entry["success"] else "failure"
    outcome += f": {entry['error']}" if entry.get("error") else ""
    style = "good" if entry["success"] else "bad"
    times = np.linspace(0, entry["steps"], STRIP).round() / result.get("fps", 10)
    images = np.split(pixels, STRIP, axis=1) if pixels.shape[1] % STRIP == 0 else [pixels]
    strip = Block.film(
        images, [f"{time:.1f} s" for time in times[: len(images)]], f"episode {episode}"
    )
    return [
        Block.paragraph(f"{entry['told']}, {entry['steps']} steps: {outcome}", style),
        strip,
        _animation(result, episode, folder),
    ]


def _animation(result: Record, episode: str, folder: Path) -> Block | None:
    path = folder / result.get("films", {}).get(episode, "")
    if not path.is_file():
        return None
    animation = Block.encoded_image(
        path.read_bytes(), "webp", f"episode {episode}, whole", 256, True
    )
    return Block.fold(f"play episode {episode}", animation)
