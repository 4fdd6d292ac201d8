"""What the report says of rollouts: those on the way over the steps, and those that were asked for afterwards.

Not here: playing them (`train/rollout.py`, `train/rollouts.py`), the page (`report.py`).
"""

import json
from collections.abc import Sequence
from html import escape as _text
from pathlib import Path
from typing import Any

import numpy as np


def on_the_way(records: Sequence[dict[str, Any]]) -> str:
    """Success per task of the latest weights that were played during the training, beside the best so far."""
    from understudy.tools import html

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
    table = html.table(["told", "success", "", "95 % interval", "best so far"], rows)
    return html.card(f"<h3>{_text(last['world'])}, the weights of step {last['step']:,}</h3>", table) + "<br>"


def _row(name: str, rate: dict[str, Any]) -> list[Any]:
    from understudy.tools import html

    share = rate["successes"] / max(1, rate["episodes"])
    between = f"{100 * rate['low']:.0f} to {100 * rate['high']:.0f} %"
    return [
        name,
        f"{rate['successes']}/{rate['episodes']}",
        html.interval_bar(rate["low"], share, rate["high"]),
        between,
    ]


def results(folder: Path) -> list[dict[str, Any]]:
    """Results of `understudy rollout`, the plain ones first; a file that is none is passed over."""
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        if path.name.startswith("step-"):  # of rollouts on the way, which have lines in metrics.jsonl
            continue
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            result["success"]["episodes"], result["swap_text"], result["world"], result["tasks"]
        except (ValueError, KeyError, TypeError, OSError):
            continue
        found.append(result)
    return sorted(found, key=lambda result: bool(result["swap_text"]))


def result_of(result: dict[str, Any], folder: Path) -> str:
    """Success per task with its interval, and strips of pictures."""
    from understudy.tools import html

    rows = [_row(task, rate) for task, rate in result["tasks"].items()]
    rows.append(_row("all", result["success"]))
    if result["swap_text"]:
        rows.append(_row("did the scene's own task instead", result["took_scene"]))
    table = html.table(["told", "success", "", "95 % interval"], rows)
    title = f"{result['world']}, seed {result['seed']}" + (", another object named" if result["swap_text"] else "")
    strips = [_strip(result, int(episode), folder / name) for episode, name in result.get("pictures", {}).items()]
    films = (
        f"<details open><summary>pictures of {len(strips)} episodes</summary>{''.join(strips)}</details>"
        if strips
        else ""
    )
    return html.card(f"<h3>{_text(title)}</h3>", table, films) + "<br>"


def _strip(result: dict[str, Any], episode: int, path: Path) -> str:
    from PIL import Image

    from understudy.tools import html

    if not path.is_file():
        return ""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    told = next((e for e in result["episodes"] if e["episode"] == episode), None)
    if told is None:
        return ""
    outcome = '<span class="good">done</span>' if told["success"] else '<span class="bad">not done</span>'
    words = f"{_text(told['told'])}, {told['steps']} steps: {outcome}"
    return f"<p><small>{words}</small></p>" + html.picture(pixels, 1040, f"episode {episode}", magnify=True)
