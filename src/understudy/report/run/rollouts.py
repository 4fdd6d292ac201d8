"""Section of the report on rollouts: those during training, and those of `understudy rollout`."""

import base64
import json
from collections.abc import Sequence
from html import escape as _text
from pathlib import Path
from typing import Any

import numpy as np


def render_during_training(records: Sequence[dict[str, Any]]) -> str:
    """Render success per task of the latest rollouts during training, beside the best so far."""
    from understudy.report import html

    if not records:
        return ""
    by_step = sorted(records, key=lambda record: record["step"])
    last = by_step[-1]

    def best(rates: list[dict[str, Any]]) -> str:
        found = max(rates, key=lambda rate: rate["rate"])
        return f"{found['successes']}/{found['episodes']}"

    rows = [
        [*_row(task, rate), best([record["tasks"][task] for record in by_step if task in record["tasks"]])]
        for task, rate in last["tasks"].items()
    ]
    rows.append([*_row("all", last["success"]), best([record["success"] for record in by_step])])
    table = html.table(["task", "success", "95 % interval", "", "best so far"], rows)
    return html.card(f"<h3>{_text(last['world'])}, the weights of step {last['step']:,}</h3>", table)


def _row(name: str, rate: dict[str, Any]) -> list[Any]:
    from understudy.report import html

    share = rate["successes"] / max(1, rate["episodes"])
    between = f"{100 * rate['low']:.0f} to {100 * rate['high']:.0f} %"
    return [
        name,
        f"{rate['successes']}/{rate['episodes']}",
        between,
        html.interval_bar(rate["low"], share, rate["high"]),
    ]


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Read the results of `understudy rollout`, those with swapped text last; other files are ignored."""
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        if path.name.startswith("step-"):  # rollouts during training, which are also in metrics.jsonl
            continue
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            result["success"]["episodes"], result["swap_text"], result["world"], result["tasks"]
        except (ValueError, KeyError, TypeError, OSError):
            continue
        found.append(result)
    return sorted(found, key=lambda result: bool(result["swap_text"]))


def render_result(result: dict[str, Any], folder: Path) -> str:
    """Render success per task with its interval, and strips of images."""
    from understudy.report import html

    rows = [_row(task, rate) for task, rate in result["tasks"].items()]
    rows.append(_row("all", result["success"]))
    if result["swap_text"]:
        rows.append(_row("completed the scene's own task instead", result["took_scene"]))
    table = html.table(["task", "success", "95 % interval", ""], rows)
    title = f"{result['world']}, seed {result['seed']}" + (", another object named" if result["swap_text"] else "")
    strips = [_strip(result, episode, name, folder) for episode, name in result.get("pictures", {}).items()]
    strips = [strip for strip in strips if strip]
    films = (
        f"<details open><summary>images of {len(strips)} episodes</summary>{''.join(strips)}</details>"
        if strips
        else ""
    )
    return html.card(f"<h3>{_text(title)}</h3>", table, films)


def _strip(result: dict[str, Any], episode: str, name: str, folder: Path) -> str:
    """Render some images of an episode with their times, and the whole episode as a folded animation."""
    from PIL import Image

    from understudy.report import html
    from understudy.rollout.files import STRIP

    entry = next((e for e in result["episodes"] if str(e["episode"]) == episode), None)
    if entry is None or not (folder / name).is_file():
        return ""
    with Image.open(folder / name) as image:
        pixels = np.asarray(image.convert("RGB"))
    outcome = '<span class="good">success</span>' if entry["success"] else '<span class="bad">failure</span>'
    outcome += f": {_text(entry['error'])}" if entry.get("error") else ""
    title = f"<p><small>{_text(entry['told'])}, {entry['steps']} steps: {outcome}</small></p>"
    times = np.linspace(0, entry["steps"], STRIP).round() / result.get("fps", 10)
    images = np.split(pixels, STRIP, axis=1) if pixels.shape[1] % STRIP == 0 else [pixels]
    strip = html.film(images, [f"{time:.1f} s" for time in times[: len(images)]], f"episode {episode}")
    return title + strip + _film(folder / result.get("films", {}).get(episode, ""), episode)


def _film(path: Path, episode: str) -> str:
    if not path.is_file():
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    alt = f"episode {_text(episode)}, whole"
    image = f'<img class="pixels" width="256" alt="{alt}" src="data:image/webp;base64,{data}">'
    return f"<details><summary>play episode {_text(episode)}</summary>{image}</details>"
