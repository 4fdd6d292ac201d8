"""The report.html of a run: verdict, rollouts, validation, training and settings in one file that
opens offline.

It needs only the run directory, and the dataset for the images of a batch. So it can be written at
any time, of an active, stopped or complete run.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from understudy.policies.capabilities.images import way_of_resizing
from understudy.report.run import overlay
from understudy.report.run.parts import page_parts
from understudy.report.run.results import read_results
from understudy.report.run.validation import (
    describe_worse,
    number,
    render_imagined,
    render_losses,
    render_validation,
)
from understudy.report.run.worst_episodes import render_worst_episodes
from understudy.report.step_profile import render_sources, render_step
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.track.metrics_file import Verdict, compare_losses
from understudy_base import Batch, DataAccessError, Record, Records
from understudy_kit import Block, Blocks, Curve, refuse_foreign, render_page

if TYPE_CHECKING:
    from understudy.config.train import TrainConfig
    from understudy.train.data.run_data import RunData

SAMPLES = 8
"""Most samples of the first batch."""
BATCH_NOTE = (
    "Samples of step 0 as the policy received them, after augmentation: images, instruction and "
    "action chunk, one line per dimension in the robot's units; steps after the end of the episode "
    "are faint."
)


def read_run(root: Path, letter: str = "A") -> overlay.Run:
    """Read the files of a run.

    Raises:
        ConfigError: the folder is not a run.
    """
    from understudy.train.track import metrics_file

    run = RunDir(root)
    config = run.settings()
    logs = {
        kind: metrics_file.read(run.metrics, kind) for kind in ("train", "speed", "val", "rollout")
    }
    return overlay.Run(letter, root, config, run.read_record(), logs, read_results(run.rollouts))


def write_report(
    root: Path,
    path: Path | None = None,
    *,
    worst_episodes: int = 3,
    predict: bool = True,
    others: Sequence[overlay.Run] = (),
) -> Path:
    """Write the report of the run directory `root`; returns its path.

    Args:
        root: The run directory.
        path: Page to write instead of report.html of the run.
        worst_episodes: Number of validation episodes to show, those with the largest losses.
        predict: Whether to load a checkpoint, for the actions that the policy predicts in them.
        others: Further runs, whose curves are drawn over those of `root`, and which are compared
            with it.

    Raises:
        ConfigError: There is no run, or another file at `path`.
    """
    from understudy_base import write_text

    first = read_run(root)
    run = RunDir(root)
    config = first.config
    record = first.record
    if path is not None:
        refuse_foreign(path)
    train, speed, val, _ = first.logs.values()
    parts = page_parts(first)
    state = _latest_state(run)
    order = dict(record["order"])
    if state.get("schedule"):
        order["schedule"] = state["schedule"]
    step = train[-1]["step"] if train else 0
    progress = "complete" if step >= config.steps else "active or stopped"
    versions = list(state.get("versions", {}).items())
    name = "/".join(root.resolve().parts[-2:])  # with its parent: "run" alone is too short
    opened = cache(partial(_open_data, config, record))  # by two sections
    worst = render_worst_episodes(run, val, worst_episodes, predict=predict, opened=opened)
    sections = [
        *(Block.section(part.title, *part.blocks) for part in parts),
        Block.section("Loss", *render_losses(train, val)),
        Block.section("Validation", *render_validation(val, _spreads(record))),
        Block.section("Worst validation episodes", *worst),
        Block.section("Imagined futures", *render_imagined(val, run.imagined)),
        Block.section("The first batch", *_first_batch(config, record, opened), note=BATCH_NOTE),
        Block.section(
            "Optimizer and speed",
            _speed_tiles(train, speed),
            _speed_charts(train, speed),
            *render_step(config, speed, root),
            render_sources(order, speed),
        ),
        Block.section("Settings", _changed_settings(config), _recorded_settings(run, config)),
        Block.section("Versions", Block.table_card("", ["package", "version"], versions)),
    ]
    verdict = compare_losses(train, val)
    success = "; ".join(f"{value} {label}" for part in parts for value, label in part.figures)
    lines = [f"Rollouts: {success}."] if success else []
    if verdict:
        lines += [summarize(verdict), advise(verdict, root, config.steps)]
    worse = describe_worse(val)
    about = [
        f"step {step:,} of {config.steps:,}, {progress}",
        config.data.root or ", ".join(config.data.names()),
        f"{config.policy.type}, batches of {config.batch_size:,}, on {_device(config, speed)}",
        f"{_training_time(speed)} of training",
    ]
    choice = RunDir(root).describe_policy()
    described_policy = Block.paragraph(f"policy/ is of {choice}") if choice else None
    top = [
        Block.paragraph(" ".join(lines), "verdict") if lines else None,
        Block.paragraph(worse, "bad") if worse else None,
        Block.paragraph(" · ".join(about)),
        described_policy,
        Block.paragraph(f"understudy audit {root}", "code"),
        Block.tiles(
            [
                *chain.from_iterable(part.figures for part in parts),
                *_loss_figures(verdict, train, val),
            ]
        ),
    ]
    if others:
        overlay.draw_over(sections, list(map(_curves, others)))
        compared = overlay.compare([first, *others])
        names = enumerate(compared["runs"].items())
        rows = [[Block.swatch(f"{letter}: {place}", index)] for index, (letter, place) in names]
        top = [
            Block.card("", Block.table([""], rows)),
            Block.paragraph(compared["sentence"], "verdict"),
            Block.paragraph("The page of A, with all curves:"),
            *top,
        ]
        changed = [
            [path, *map(format_setting, values)] for path, values in compared["settings"].items()
        ]
        groups = Block.table_card(
            "", overlay.HEAD, list(map(overlay.cells, compared["groups"])), "groups"
        )
        settings = Block.table_card(
            "Settings that differ", ["setting", *compared["runs"]], changed, "settings"
        )
        sections = [Block.section("Comparison", groups, settings), *sections]
    page = render_page(
        f"{name} · understudy", name, sections, top=[block for block in top if block]
    )
    write_text(path or run.report, page)
    return path or run.report


def _curves(run: overlay.Run) -> Blocks:
    """Render the blocks of a run that have curves over its steps."""
    train, speed, val, _ = run.logs.values()
    parts = page_parts(replace(run, results=()))  # a result of one step has no curve
    return [
        *chain.from_iterable(part.blocks for part in parts),
        *render_losses(train, val),
        *render_validation(val),
        _speed_charts(train, speed),
    ]


def summarize(verdict: Verdict) -> str:
    """Describe the fit of a run in one line: overfitting with its factor, and the best step."""
    loss = f"{verdict.term} loss" if verdict.term else "loss"
    factor = verdict.validation / verdict.lowest if verdict.lowest > 0 else 1.0
    best = f"best step {verdict.lowest_step:,}, validation {loss} {verdict.lowest:.4g}"
    ratio = ""
    if verdict.ratio is not None:
        ratio = f"; the last is {verdict.ratio:.3g} × the training {loss}"
    if verdict.validations < 2:
        fit = "One validation"
    elif verdict.falling:
        fit = f"Not converged: the validation {loss} is still falling"
    elif factor >= 1 + Verdict.FALL:
        fit = f"Overfitting: the last validation {loss} is {factor:.3g} × the lowest"
    else:
        fit = f"Converged: the validation {loss} no longer falls"
    return f"{fit}. {best[0].upper()}{best[1:]}{ratio}."


def advise(verdict: Verdict, root: Path, steps: int) -> str:
    """Return what to do about the fit of a run of `steps` steps, in one sentence."""
    if verdict.validations < 2:
        return "A trend needs two validations: --val.every."
    if verdict.falling:
        return f"More steps may lower it: understudy resume {root} --steps {2 * steps}."
    if verdict.validation >= (1 + Verdict.FALL) * verdict.lowest:
        return "More steps raise it: use the best step, and record more episodes."
    return "More steps hardly lower it: measure the success, or record more episodes."


def _latest_state(run: RunDir) -> dict[str, Any]:
    """State of the latest checkpoint; empty without one, and for a damaged one: a report is still
    useful.
    """
    from understudy.train.checkpoint import checkpoint

    latest = checkpoint.find_latest(run.checkpoints)
    with suppress(checkpoint.CheckpointError):
        return checkpoint.read_state(latest) if latest is not None else {}
    return {}


def _loss_figures(verdict: Verdict | None, train: Records, val: Records) -> list[tuple[str, str]]:
    """Losses and their gap; without a verdict the losses that there are."""
    if verdict:
        loss = f"{verdict.term} loss" if verdict.term else "loss"
        figures = []
        if verdict.ratio is not None:
            figures.append((f"{verdict.ratio:.3g} ×", f"validation {loss} over training {loss}"))
        figures.append(
            (number(verdict.validation, 3), f"validation {loss} at step {verdict.step:,}")
        )
        figures.append(
            (
                number(verdict.training, 3),
                f"training {loss}, mean of the {verdict.steps} steps before",
            )
        )
        if verdict.validations > 1:
            figures.append((f"step {verdict.lowest_step:,}", verdict.trend))
        return figures
    losses = [r["loss"] for r in train if r["loss"] is not None][-100:]
    figures = []
    if losses:
        mean = f"{np.mean(losses):.3f}"
        figures.append((mean, f"training loss, mean of the last {len(losses)} steps"))
    if val:
        figures.append((number(val[-1]["loss"], 3), "validation loss"))
    return figures


# -- speed -----------------------------------------------------------------------------------------


def _speed_tiles(train: Records, speed: Records) -> Block | None:
    figures = []
    medians = {
        "samples_per_s": ("{:,.0f}", "samples per second, median"),
        "tokens_per_s": ("{:,.0f}", "tokens per second, median"),
        "valid_share": ("{:.1%}", "of the computed tokens are valid"),
        "samples_per_part": ("{:,.1f}", "samples per micro-batch"),
        "wait": ("{:.1%}", "of the time waiting for data"),
    }
    for name, (form, label) in medians.items():
        if values := [record[name] for record in speed if name in record]:
            figures.append((form.format(np.median(values)), label))
    if speed:
        figures.append((_training_time(speed), "training time"))
    if skipped := sum(record["skipped"] for record in train):
        figures.append((str(skipped), "steps skipped, gradient not finite"))
    return Block.tiles(figures) if figures else None


def _training_time(speed: Records) -> str:
    """Format the time of all processes; `seconds` counts within one, whose last record counts."""
    seconds = [record["seconds"] for record in speed]
    total = sum(now for now, after in zip(seconds, [*seconds[1:], 0.0]) if after < now)
    return str(timedelta(seconds=round(total)))


def _device(config: "TrainConfig", speed: Records) -> str:
    """Name the device of the arithmetic by the memory that was logged; `auto` before the first."""
    if not speed:
        return config.device
    return "cuda" if "gpu_bytes" in speed[-1] else "cpu"


def _spreads(record: Record) -> dict[str, list[float]]:
    """Return the spread of each action dimension in training by source, as far as recorded."""
    units = record["normalisation"]
    rows = units.get("action", {}).get("spread", [])
    by_head = dict(zip(units.get("heads", ()), rows))
    sources = record.get("sources", ())
    return {of["name"]: by_head[of["head"]] for of in sources if of.get("head") in by_head}


def _speed_charts(train: Records, speed: Records) -> Block | None:
    norm = [Curve.from_records("gradient norm", train, "grad_norm", 2, smooth=True)]
    charts = {
        "Gradient norm, before clipping": Block.chart(
            "gradient norm", "step", "norm", norm, log=True
        ),
        "Episodes in a batch": Block.chart(
            "episodes in a batch",
            "step",
            "episodes",
            [Curve.from_records("episodes", train, "episodes", 4, smooth=True)],
        ),
        "Learning rate": Block.chart(
            "learning rate",
            "step",
            "learning rate",
            [Curve.from_records("learning rate", train, "lr", 3)],
        ),
    }
    for title, key, unit, color in (
        ("Samples per second", "samples_per_s", "samples / s", 5),
        ("Share of the time spent waiting for data", "wait", "share of the time", 6),
    ):
        charts[title] = Block.chart(
            title.lower(), "step", unit, [Curve.from_records(title.lower(), speed, key, color)]
        )
    return Block.grid([Block.card(title, drawn) for title, drawn in charts.items() if drawn])


# -- first batch -----------------------------------------------------------------------------------


def _open_data(config: Any, record: Record) -> "RunData":
    """Open the data that the run started with."""
    from understudy.train.data.run_data import open_data
    from understudy.train.data.updates import recorded_sources

    return open_data(config, recorded_sources(record), check_files=False)


def _first_batch(config: Any, record: Record, opened: "Callable[[], RunData]") -> Blocks:
    """Render the first samples of step 0, or the reason why they are unavailable."""
    from understudy.train.data.run_data import first_batch

    try:
        batch, cameras = first_batch(config, order=record.get("order"), data=opened())
    except (DataAccessError, ValueError, OSError) as error:
        return [Block.card("", Block.paragraph(f"The dataset cannot be opened: {error}"))]
    samples = [_sample(batch, index, cameras) for index in range(min(SAMPLES, len(batch["task"])))]
    return [Block.paragraph(_sizes(config, batch, cameras)), Block.grid(samples, "samples")]


def _sample(batch: Batch, index: int, cameras: Sequence[str]) -> Block:
    """Render a sample: first and last frame of two cameras, instruction and action chunk."""
    images = []
    for camera in cameras[:2]:
        frames = batch[camera][index]
        if frames.ndim == 3:
            window = frames[None]
        elif len(frames) > 1:
            window = frames[[0, -1]]
        else:
            window = frames
        images += [Block.image(frame.permute(1, 2, 0).numpy(), camera, 84) for frame in window]
    actions = batch["action"][index].double().numpy()
    padded = batch["action_is_pad"][index].numpy()
    lines = []
    for joint, values in enumerate(actions.T):
        lines += [
            Curve("", range(len(values)), values, joint, faint=True),
            Curve("", range(len(values)), np.where(padded, np.nan, values), joint),
        ]
    place = (
        f"episode {int(batch['episode_index'][index])}, frame {int(batch['frame_index'][index])}"
    )
    drawn = Block.chart(
        "action chunk, one line per dimension",
        "action of the chunk",
        "robot's units",
        lines,
        zero=False,
        bare=True,
        height=150,
    )
    return Block.card(
        batch["task"][index] or "(no text)", Block.grid(images, "row"), drawn, note=place
    )


def _sizes(config: Any, batch: Batch, cameras: Sequence[str]) -> str:
    """Describe the size of the images of each camera, and the size in the network."""
    network = "{}x{}".format(*config.policy.network_size)
    sizes = {camera: "{}x{}".format(*batch[camera].shape[-2:]) for camera in cameras}
    described = []
    for camera, size in sizes.items():
        change = "" if size == network else f" -> {network} ({way_of_resizing(config.policy)})"
        described.append(f"{camera} {size}{change}")
    return "; ".join(described)


# -- settings --------------------------------------------------------------------------------------


def _changed_settings(config: "TrainConfig") -> Block:
    """Render the settings that differ from the defaults of a run with this type of policy."""
    from understudy.config.train import TrainConfig
    from understudy_base import MissingExtraError
    from understudy_kit import SourceConfig, differences, validate_new

    sources = (SourceConfig(),) * len(config.data.sources)
    usual = TrainConfig(steps=config.steps, policy=type(config.policy)())
    steps = TrainConfig().steps
    with suppress(MissingExtraError):  # then the table has the defaults of every run
        kind = {"policy": {"type": config.policy.type}}
        usual = validate_new(TrainConfig, {"steps": config.steps, **kind})
        steps = validate_new(TrainConfig, kind).steps
    usual = replace(usual.resolved(), steps=steps)
    usual = replace(usual, data=replace(usual.data, sources=sources))
    changed = differences(usual, config)
    rows = [
        [path, format_setting(now), format_setting(default)]
        for path, (default, now) in changed.items()
    ]
    settings = (
        Block.table(["setting", "this run", "default"], rows) if rows else Block.paragraph("None.")
    )
    return Block.card("Settings that differ from the defaults", settings)


def format_setting(value: Any) -> str:
    """Format the value of a setting."""
    if value is None:
        return "–"
    if value in ("", [], {}):
        return "(empty)"
    return str(value)


def _recorded_settings(run: RunDir, config: "TrainConfig") -> Block:
    """Render all settings, and order.json: the order, the data's fingerprint and the
    normalization.
    """
    from understudy_kit import dump_yaml

    order = None
    with suppress(OSError, ValueError):
        content = json.dumps(json.loads(run.order.read_text(encoding="utf-8")), indent=2)
        order = Block.fold("order.json", Block.code(content))
    return Block.card("", Block.fold("config.yaml", Block.code(dump_yaml(config))), order)
