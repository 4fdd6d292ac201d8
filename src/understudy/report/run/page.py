"""The report.html of a run: data, training, validation and rollouts in one file that opens offline.

It needs only the run directory, and the dataset for the images of a batch. So it can be written at any time, of an
active, stopped or complete run.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from understudy.config.train import TrainConfig


def write_report(root: Path, path: Path | None = None, *, worst_episodes: int = 3, predict: bool = True) -> Path:
    """Write the report of the run directory `root`; returns its path.

    Args:
        root: The run directory.
        path: Page to write instead of report.html of the run.
        worst_episodes: Number of validation episodes to show, those with the largest losses.
        predict: Whether to load a checkpoint, for the actions that the policy predicts in them.

    Raises:
        ConfigError: There is no run, or another file at `path`.
    """
    from understudy.atomic import write_text
    from understudy.config.schema import dump_yaml
    from understudy.errors import CheckpointError
    from understudy.report import charts, html
    from understudy.report.run.imagined import render_imagined
    from understudy.report.run.losses import render_losses
    from understudy.report.run.rollouts import read_results, render_during_training, render_result
    from understudy.report.run.step import render_sources, render_step
    from understudy.report.run.validation import render_validation
    from understudy.report.run.worst_episodes import render_worst_episodes
    from understudy.train.checkpoint import checkpoint
    from understudy.train.checkpoint.run_dir import RunDir
    from understudy.train.track import metrics_file

    run = RunDir(root)
    config = run.settings()
    if path is not None:
        html.refuse_foreign(path)
    records = metrics_file.read(run.metrics)
    kinds = {kind: [r for r in records if r["kind"] == kind] for kind in ("train", "speed", "val", "rollout")}
    latest = checkpoint.find_latest(run.checkpoints)
    record, saved = run.read_record(), dict[str, Any]()
    with suppress(CheckpointError):  # a report is useful for a damaged run, too
        saved = checkpoint.read_state(latest) if latest is not None else {}
    versions: dict[str, str] = saved.get("versions", {})
    order = {**record["order"], **({"schedule": saved["schedule"]} if saved.get("schedule") else {})}
    rollouts = read_results(run.rollouts)
    worst = render_worst_episodes(run, kinds["val"], worst_episodes, predict=predict)
    done = kinds["train"][-1]["step"] if kinds["train"] else 0
    state = "complete" if done >= config.steps else "active or stopped"
    name = "/".join(root.resolve().parts[-2:])  # with its parent: "run" alone is too short
    page = html.page(
        f"{name} · understudy",
        f'<h1>{_text(name)}</h1><p class="soft">step {done:,} of {config.steps:,}, {state} · '
        f"{_text(config.data.root or ', '.join(config.data.names()))}</p>",
        html.tiles(_headlines(kinds, rollouts)),
        html.section(
            "Rollouts",
            render_during_training(kinds["rollout"]),
            html.card("<h3>Success over the steps</h3>", charts.success(kinds["rollout"])) if kinds["rollout"] else "",
            *[render_result(result, run.rollouts) for result in rollouts],
        ),
        html.section("Worst validation episodes", worst),
        html.section("Loss", render_losses(kinds["train"], kinds["val"])),
        html.section("Validation", render_validation(kinds["val"])),
        html.section("Imagined futures", render_imagined(kinds["val"], run.imagined)),
        html.section("The first batch", _batch(config, record), note=_BATCH_NOTE),
        html.section(
            "Optimizer and speed",
            html.tiles(_speed(kinds)),
            _curves(kinds),
            render_step(config, kinds["speed"], root),
            render_sources(order, kinds["speed"]),
        ),
        html.section(
            "Settings",
            _changed_settings(config),
            html.card(_details("config.yaml", dump_yaml(config)), *_order(run.order)),
        ),
        html.section("Versions", html.card(html.table(["package", "version"], list(versions.items()))))
        if versions
        else "",
    )
    write_text(path or run.report, page)
    return path or run.report


_BATCH_NOTE = (
    "Samples of step 0 as the policy received them, after augmentation: images, instruction and action chunk, one line "
    "per dimension in the robot's units; steps after the end of the episode are faint."
)


def _text(text: str) -> str:
    from html import escape

    return escape(text)


def _details(title: str, text: str) -> str:
    return f"<details><summary>{_text(title)}</summary><pre>{_text(text)}</pre></details>"


def _changed_settings(config: "TrainConfig") -> str:
    """Render the settings that differ from the defaults of a run with this type of policy."""
    from understudy.config.schema import differences, validate_new
    from understudy.config.train import TrainConfig
    from understudy.optional_packages import MissingExtraError
    from understudy.report import html

    usual, steps = TrainConfig(steps=config.steps, policy=type(config.policy)()), TrainConfig().steps
    with suppress(MissingExtraError):  # then the table has the defaults of every run
        kind = {"policy": {"type": config.policy.type}}
        usual, steps = validate_new(TrainConfig, {"steps": config.steps, **kind}), validate_new(TrainConfig, kind).steps
    found = differences(replace(usual.resolved(), steps=steps), config)
    rows = [[path, _shown(now), _shown(default)] for path, (default, now) in found.items()]
    table = html.table(["setting", "this run", "default"], rows) if rows else '<p class="soft">None.</p>'
    return html.card("<h3>Settings that differ from the defaults</h3>", table)


def _shown(value: Any) -> str:
    return "–" if value is None else "(empty)" if value in ("", [], {}) else str(value)


def _headlines(kinds: dict[str, list[dict[str, Any]]], rollouts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Figures of the result: success, then losses and their gap."""
    from understudy.report.run.validation import number
    from understudy.train.track.metrics_file import compare_losses

    found = []
    if kinds["rollout"]:
        latest = max(kinds["rollout"], key=lambda record: record["step"])
        rate = latest["success"]
        found.append((f"{rate['successes']}/{rate['episodes']}", f"success of the weights of step {latest['step']:,}"))
    for result in rollouts:
        rate = result["success"]
        name = "success with swapped text" if result["swap_text"] else "success"
        found.append((f"{rate['successes']}/{rate['episodes']}", f"{name}, {result['world']}"))
    if verdict := compare_losses(kinds["train"], kinds["val"]):
        loss = f"{verdict.term} loss" if verdict.term else "loss"
        if verdict.ratio is not None:
            found.append((f"{verdict.ratio:.3g} ×", f"validation {loss} over training {loss}"))
        found.append((number(verdict.validation, 3), f"validation {loss} at step {verdict.step:,}"))
        found.append((number(verdict.training, 3), f"training {loss}, mean of the {verdict.steps} steps before"))
        if verdict.validations > 1:
            found.append((f"step {verdict.lowest_step:,}", verdict.trend))
        return found
    losses = [r["loss"] for r in kinds["train"] if r["loss"] is not None]
    if losses:
        found.append((f"{np.mean(losses[-100:]):.3f}", f"training loss, mean of the last {len(losses[-100:])} steps"))
    if kinds["val"]:
        found.append((number(kinds["val"][-1]["loss"], 3), "validation loss"))
    return found


def _speed(kinds: dict[str, list[dict[str, Any]]]) -> list[tuple[str, str]]:
    """Figures of the speed of the run."""
    found = []
    if kinds["speed"]:
        speed = [r["samples_per_s"] for r in kinds["speed"]]
        found.append((f"{np.median(speed):,.0f}", "samples per second, median"))
        found += _token_figures(kinds["speed"])
        found.append((f"{100 * np.median([r['wait'] for r in kinds['speed']]):.1f} %", "of the time waiting for data"))
        seconds = sum(b["seconds"] for a, b in zip(kinds["speed"], [*kinds["speed"][1:], None]) for b in _ends(a, b))
        found.append((str(timedelta(seconds=round(seconds))), "training time"))
    skipped = sum(r["skipped"] for r in kinds["train"])
    if skipped:
        found.append((str(skipped), "steps skipped, gradient not finite"))
    return found


def _token_figures(speed: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Figures of micro-batches and tokens, medians over the logs that have them."""
    import numpy as np

    shown = {
        "tokens_per_s": ("{:,.0f}", "tokens per second, median"),
        "valid_share": ("{:.1%}", "of the computed tokens are valid"),
        "samples_per_part": ("{:,.1f}", "samples per micro-batch"),
    }
    values = {name: [record[name] for record in speed if name in record] for name in shown}
    return [(shown[name][0].format(np.median(own)), shown[name][1]) for name, own in values.items() if own]


def _ends(record: dict[str, Any], following: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The record if it is the last of its process, else nothing (`seconds` counts within one process)."""
    return [record] if following is None or following["seconds"] < record["seconds"] else []


def _curves(kinds: dict[str, list[dict[str, Any]]]) -> str:
    from understudy.report import charts, html

    if not kinds["train"]:
        return ""
    series = {
        "Gradient norm, before clipping": charts.series(
            kinds["train"], "grad_norm", 2, unit="norm", log=True, smooth=True
        ),
        "Learning rate": charts.series(kinds["train"], "lr", 3, unit="learning rate"),
        "Samples per second": charts.series(kinds["speed"], "samples_per_s", 5, unit="samples / s"),
        "Share of the time spent waiting for data": charts.series(kinds["speed"], "wait", 6, unit="share of the time"),
    }
    return html.grid([html.card(f"<h3>{title}</h3>", chart) for title, chart in series.items()], "two")


def _first_and_last(images: Any) -> list[Any]:
    """First and last frame of a window [T, 3, H, W]; the image itself where there is no window."""
    return [images] if images.ndim == 3 else [images[0], images[-1]] if len(images) > 1 else [images[0]]


def _batch(config: Any, record: Mapping[str, Any], count: int = 8) -> str:
    """Render the first samples of step 0, or the reason why they are unavailable."""
    from understudy.errors import DatasetError
    from understudy.report import charts, html
    from understudy.train.data.run_data import first_batch
    from understudy.train.run_record import recorded_sources

    try:
        batch, cameras = first_batch(config, recorded_sources(record), record.get("order"))
    except (DatasetError, ValueError, OSError) as error:
        return html.card(f'<p class="soft">The dataset cannot be opened: {_text(str(error))}</p>')
    cards = []
    for i in range(min(count, len(batch["task"]))):
        images = [
            html.image(frame.permute(1, 2, 0).numpy(), 84, camera)
            for camera in cameras[:2]
            for frame in _first_and_last(batch[camera][i])
        ]
        chart = charts.chunk(batch["action"][i].double().numpy(), batch["action_is_pad"][i].numpy())
        where = f"episode {int(batch['episode_index'][i])}, frame {int(batch['frame_index'][i])}"
        title = f"<h3>{_text(batch['task'][i]) or '<span class=soft>(no text)</span>'}</h3><small>{where}</small>"
        cards.append(html.card(title, f'<div class="row">{"".join(images)}</div>', chart))
    return f'<p class="soft">{_text(_sizes(config, batch, cameras))}</p>{html.grid(cards, "samples")}'


def _sizes(config: Any, batch: Mapping[str, Any], cameras: Sequence[str]) -> str:
    """Describe the size of the images of each camera, and that of the network."""
    seen = "{}x{}".format(*config.policy.network_size)
    loaded = {camera: "{}x{}".format(*batch[camera].shape[-2:]) for camera in cameras}
    change = {
        camera: "" if size == seen else f" -> {seen} ({config.policy.RESIZED})" for camera, size in loaded.items()
    }
    return "; ".join(f"{camera} {size}{change[camera]}" for camera, size in loaded.items())


def _order(path: Path) -> list[str]:
    """Render order.json: the order, the data's fingerprint and the normalization; nothing if it is unreadable."""
    try:
        return [_details("order.json", json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=2))]
    except (OSError, ValueError):
        return []
