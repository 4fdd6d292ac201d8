"""Section of the report on one step of the run: its time by phases, and the memory of a rank.

The run itself records the time of a step and the waiting in it, since phases take a synchronised device. Those, and
the memory, predicted and measured, are of `understudy profile` with the folder of the run as its `--output-dir`.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from understudy.config.train import TrainConfig
from understudy.report import html
from understudy.report.step_profile import (
    describe,
    explain_difference,
    headlines,
    memory_cards,
    milliseconds,
    time_cards,
)


def render_step(config: TrainConfig, speed: Sequence[Mapping[str, Any]], root: Path) -> str:
    """Render the cards of one step; "" for a run without logged steps and without a profile.

    Args:
        config: settings of the run.
        speed: its records of speed.
        root: its folder, which may have a profile.json.
    """
    from understudy.train.profiling.profile import Profile, step_settings

    recorded = html.card("<h3>As recorded during training</h3>", _recorded(config, speed)) if speed else ""
    try:
        found = Profile.from_plain(json.loads((root / "profile.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return recorded + _note(f"Phases and memory: {_command(root)}.") if recorded else ""
    except (OSError, ValueError, RecursionError):
        return recorded + _note(f"profile.json is of another release, or no profile: {_command(root)}.")
    now = step_settings(config)
    changed = [name for name in now if now[name] != found.settings.get(name)]
    title = f"<h3>Measured by profile</h3><p class='soft'>{escape(describe(found.conditions))}</p>"
    if changed:
        title += f"<p class='bad'>Measured with other settings than the run's: {escape(', '.join(changed))}.</p>"
    title += f"<p class='soft'>{escape(explain_difference(found))}</p>"
    figures = html.table(["figure", "value"], [[name, value] for value, name in headlines(found)])
    return "".join([recorded, html.card(title, figures), *time_cards(found), memory_cards(found)])


def render_sources(order: Mapping[str, Any], speed: Sequence[Mapping[str, Any]]) -> str:
    """Render the throughput of each source of a mixture: its exact share in the order, of the run's median.

    Args:
        order: the order, as order.json holds it; its last shares count.
        speed: records of speed.

    Returns:
        "" for a single source, and for a run without logged steps.
    """
    sources, slots = order["sources"], order["schedule"][-1]["slots"]
    if len(sources) < 2 or not speed:
        return ""
    rate = float(np.median([record["samples_per_s"] for record in speed]))
    rows = []
    for number, source in enumerate(sources):  # an entry may list fewer sources; the others do not take part
        share = slots[number] / sum(slots) if number < len(slots) else 0.0
        seconds = source["frames"] / (share * rate) if share else None
        epoch = "never" if seconds is None else str(timedelta(seconds=round(seconds)))
        rows.append([source["name"], f"{share:.2%}", f"{share * rate:,.1f}", f"{source['frames']:,}", epoch])
    head = ["source", "share of the samples", "samples per second", "frames of an epoch", "time of an epoch"]
    return html.card("<h3>Throughput of each source</h3>", html.table(head, rows))


def _recorded(config: TrainConfig, speed: Sequence[Mapping[str, Any]]) -> str:
    """Table of the median step, the waiting for data in it, and the rest."""
    steps = np.array([config.batch_size / record["samples_per_s"] for record in speed])
    step, wait = float(np.median(steps)), float(np.median(steps * np.array([record["wait"] for record in speed])))
    rows = [
        ["step", milliseconds(step)],
        ["of it waiting for data", milliseconds(wait)],
        ["everything else", milliseconds(step - wait)],
    ]
    return html.table([f"median of {len(speed)} logs", "per step"], rows)


def _command(root: Path) -> str:
    return (
        f"understudy profile {root / 'config.yaml'} --output-dir {root} measures them, then understudy report {root} "
        "shows them here"
    )


def _note(text: str) -> str:
    return html.card(f'<p class="soft">{escape(text)}</p>')
