"""The page of `understudy check`: findings, contents, and episodes with their images and curves."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from understudy_base import ACTION, STATE, DataAccessError, plural
from understudy_data import Catalog, EpisodeArrays, spread_evenly
from understudy_kit import Block, Blocks, Curve, as_rgb, render_page
from understudy_tools.check.contents import (
    UNUSUAL,
    format_duration,
    format_encoding,
    format_metadata,
)
from understudy_tools.check.effects import effect_of, rank_of, view_command
from understudy_tools.check.findings import RULES, SEVERITIES, Finding, Report, Severity
from understudy_tools.check.rules.episodes import MEASURES
from understudy_tools.motion import IDLE, numeric_keys

WORST = 6
"""Most episodes with findings, or unusual ones, that are shown."""
IMAGES = 8
"""Images per episode."""
HEIGHT = 160
"""Pixels of their height."""
WALL = 12
"""Most episodes with their first and last image."""
SAMPLED = 64
"""Most episodes in the distributions of actions."""
DIMENSIONS = 64
"""Most dimensions of a column to draw."""


def check_page(report: Report, shown: int) -> str:
    """Render a report as one HTML page.

    Args:
        report: Result of `check_dataset`.
        shown: Episodes to show; 0 leaves out all images.
    """
    counts = report.counts
    catalog = report.catalog
    contents = report.contents
    name = report.root.rstrip("/").rpartition("/")[2]
    faults = ", ".join(
        plural(counts[severity], severity) for severity in ("error", "warning") if counts[severity]
    )
    read = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in report.read.items())
    about = (
        f"LeRobot {report.version} · {contents.get('robot') or 'robot not named'} · "
        f"{report.root} · read "
    )
    figures = [
        (f"{report.episodes:,}", "episodes"),
        (f"{report.frames:,}", "frames"),
        *_figures(report),
    ]
    linked = list(_worst(report)) if shown and catalog is not None else []
    sections = [_of_severity(report, severity, linked) for severity in SEVERITIES]
    arguments = (f"{command} {words}" for command, words in report.exclude.items())
    leave_out = Block.card("", *(Block.paragraph(words, "code") for words in arguments))
    if report.exclude:
        sections.insert(1, Block.section("Leave them out", leave_out))
    if catalog is not None:
        sections += _contents(report, catalog, shown)
    sections.append(Block.section("Too little data", _too_little(report.undecided)))
    top = [
        Block.paragraph(_verdict(report), "verdict"),
        Block.paragraph(about + (read or "metadata")),
        Block.tiles(figures),
    ]
    return render_page(
        f"{name} · understudy check", f"{name}: {faults or 'sound'}", sections, top=top
    )


def _verdict(report: Report) -> str:
    """Describe in one sentence whether to train on the dataset, and the first thing to do."""
    counts = report.counts
    found = ", ".join(plural(counts[severity], severity) for severity in SEVERITIES)
    if not report.findings:
        unproven = f"; {len(report.undecided)} rules need more data" if report.undecided else ""
        return f"Sound: train on it ({found}{unproven})."
    first = min(report.findings, key=rank_of)
    worst = f"{found}; the first to mend is {first.rule}: {effect_of(first)}"
    fix = f"; {first.fix}" if first.fix else ""
    return f"{worst}{fix}."


def _figures(report: Report) -> Iterator[tuple[str, str]]:
    if contents := report.contents:
        lengths = contents["lengths"]
        yield format_duration(contents["duration"]), "recorded, h:mm:ss"
        yield f"{contents['fps']:g}", "frames per second"
        yield (
            f"{lengths['min']}–{lengths['max']}",
            f"frames per episode, median {lengths['median']:g}",
        )
    if report.idle_share is not None:
        yield f"{100 * report.idle_share:.1f} %", "idle frames"


def _of_severity(report: Report, severity: Severity, linked: Sequence[int]) -> Block:
    """Render the section of the findings of one severity."""
    findings = [finding for finding in report.findings if finding.severity == severity]
    note = ""
    if len(findings) > 1:
        note = "Those that stop a training first, then those that make it learn something wrong."
    cards = _findings(findings, report.root, linked)
    return Block.section(f"{severity.title()}s", *cards, note=note)


def _findings(findings: list[Finding], root: str, linked: Sequence[int]) -> Iterator[Block]:
    """Render each finding as a card of paragraphs, which no screen cuts off, with links to its
    episodes that the page shows.
    """
    for finding in findings:
        place = str(finding.place)
        shown = [episode for episode in finding.place.episodes if episode in linked]
        blocks = [
            Block.paragraph(finding.message, ""),
            Block.links({f"show episode {episode}": f"episode-{episode}" for episode in shown}),
            Block.paragraph(f"Rule: {RULES[finding.rule].sound}."),
            Block.paragraph(f"Effect: {effect_of(finding)}."),
        ]
        if finding.fix:
            blocks.append(Block.paragraph(f"Fix: {finding.fix}", ""))
        command = view_command(root, finding)
        if command and command not in finding.fix:
            blocks.append(Block.paragraph(command, "code"))
        title = f"{finding.rule}: {place}" if place else finding.rule
        style = "bad" if finding.severity == "error" else ""
        yield Block.card(title, *blocks, style=style)


def _too_little(undecided: tuple[Finding, ...]) -> Block | None:
    """Render the rules that the dataset has too little data for."""
    lines = [
        f"{': '.join(filter(None, (rule.rule, str(rule.place))))}: {rule.message}"
        for rule in undecided
    ]
    block = Block.listing(lines)
    if not block:
        return None
    return Block.card(
        "", block, note="These rules found nothing and passed nothing: they need more."
    )


def _contents(report: Report, catalog: Catalog, shown: int) -> Iterator[Block]:
    """Render the sections about a dataset whose metadata can be read."""
    contents = report.contents
    worst = _worst(report) if shown else {}
    rows = {int(episode): row for row, episode in enumerate(catalog.episodes.ids)}
    yield Block.section(
        "Episodes of findings",
        *(_episode(catalog, rows[episode], why) for episode, why in worst.items()),
    )
    unusual = [entry for entry in report.ranking if entry["score"] >= UNUSUAL]
    ranking = [[str(entry["episode"]), entry["score"], entry["why"]] for entry in unusual]
    terms = Block.listing([f"{name}: {meaning}" for name, meaning in MEASURES.items()])
    note = (
        "Robust z is the distance from the median in standard deviations, as the median "
        "distance gives them: from 5 on "
    )
    note += "it is a note, from 8 on a warning."
    block = None
    if ranking:
        block = Block.card(
            "", Block.table(["episode", "robust z", "because"], ranking), terms, note=note
        )
    yield Block.section("Most unusual episodes", block)
    lines = Block.listing(contents.get("keep_ranges", {}).get("lines", ()))
    keep_ranges = Block.card("", lines) if lines else None
    yield Block.section("Keep-ranges", keep_ranges)
    videos = contents["videos"].items()
    yield Block.section(
        "Encoding",
        *(Block.card(key, Block.paragraph(format_encoding(entry), "")) for key, entry in videos),
    )
    note = "" if report.idle_share is None else f"Idle frames: {IDLE}."
    yield Block.section(
        "Episodes", *(_episode(catalog, row) for row in _spread(catalog, shown)), note=note
    )
    walls = _walls(catalog) if shown else ()
    yield Block.section("First and last frames", *walls)
    yield _actions(catalog)
    tasks = [[task["task"], task["episodes"]] for task in contents["tasks"][:50]]
    yield Block.section("Tasks", Block.table_card("", ["task", "episodes"], tasks))
    metadata = [[key, format_metadata(entry)] for key, entry in contents["metadata"].items()]
    yield Block.section("Metadata of episodes", Block.table_card("", ["name", "values"], metadata))
    yield _features(contents, catalog)
    lengths = catalog.episodes.lengths
    bars = Block.histogram(
        "episode lengths", lengths, "frames", "episodes", min(60, max(10, len(lengths) // 5)), 180
    )
    yield Block.section("Episode lengths", Block.card("", bars))


def _worst(report: Report) -> dict[int, str]:
    """Episodes to show with a reason: of errors and warnings, then of notes, then the unusual
    ones.
    """
    reasons: dict[int, str] = {}
    for finding in report.findings:
        for episode in finding.place.episodes[:2]:
            reasons.setdefault(episode, f"{finding.rule}: {finding.message}")
    for entry in report.ranking:
        if entry["score"] >= UNUSUAL:
            reasons.setdefault(entry["episode"], entry["why"])
    return dict(list(reasons.items())[:WORST])


@contextmanager
def _collect(lines: list[str]) -> Iterator[None]:
    """Append errors and warnings of the block to `lines`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except (DataAccessError, OSError, ValueError, MemoryError) as error:
            lines.append(" ".join(str(error).split()) or type(error).__name__)
    lines += [
        str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)
    ]


def _spread(catalog: Catalog, count: int) -> list[int]:
    """Table rows of `count` episodes with frames, spread over the dataset."""
    rows = np.flatnonzero(catalog.episodes.lengths > 0)
    return [int(rows[place]) for place in spread_evenly(len(rows), count)] if count else []


def _read(catalog: Catalog, row: int, keys: list[str], frames: np.ndarray) -> dict[str, Any]:
    episode = int(catalog.episodes.ids[row])
    data = EpisodeArrays(catalog, episodes=[episode], keys=keys)
    return data.batch(np.full(len(frames), episode), frames)


def _episode(catalog: Catalog, row: int, why: str = "") -> Block:
    """Render an episode: images from first to last and curves of its rows, or the errors in their
    place.
    """
    episode = int(catalog.episodes.ids[row])
    length = int(catalog.episodes.lengths[row])
    errors: list[str] = []
    blocks = Blocks()
    task = ""
    frames = np.unique(np.linspace(0, length - 1, min(IMAGES, length)).round().astype(int))
    for camera in catalog.camera_keys:
        with _collect(errors):
            batch = _read(catalog, row, [camera], frames)
            task = batch["task"][0]
            captions = [f"{frame / catalog.fps:.1f} s" for frame in frames]
            images = list(_small(batch[camera]))
            blocks += [
                Block.paragraph(camera),
                Block.film(images, captions, f"{camera}, episode {episode}"),
            ]
    with _collect(errors):
        keys = [key for key in numeric_keys(catalog) if key.startswith(("action", "observation."))]
        batch = _read(catalog, row, keys, np.arange(length))
        task = task or batch["task"][0]
        blocks += _curves(
            catalog, {key: batch[key].astype(np.float64).reshape(length, -1) for key in keys}
        )
    title = f"episode {episode} · {plural(length, 'frame')} · {task}"
    anchor = f"episode-{episode}" if why else ""
    lines = (Block.paragraph(line, "bad") for line in errors)
    return Block.card(title, *lines, *blocks, note=why, anchor=anchor)


def _walls(catalog: Catalog) -> Iterator[Block]:
    """Render the first and last images of some episodes, a card per camera."""
    for camera in catalog.camera_keys:
        errors: list[str] = []
        images = []
        captions = []
        for row in _spread(catalog, WALL):
            with _collect(errors):
                ends = np.array([0, catalog.episodes.lengths[row] - 1])
                images += list(_small(_read(catalog, row, [camera], ends)[camera]))
                captions += [
                    f"episode {int(catalog.episodes.ids[row])}, {end}" for end in ("first", "last")
                ]
        yield Block.card(
            camera,
            *(Block.paragraph(line, "bad") for line in errors),
            Block.film(images, captions, camera),
        )


def _small(images: np.ndarray) -> np.ndarray:
    """Convert images [n, C, H, W] to RGB uint8 [n, h, w, 3], thinned to about `HEIGHT`."""
    step = max(1, images.shape[2] // HEIGHT)
    return as_rgb(images[:, :, ::step, ::step])


def _curves(catalog: Catalog, columns: dict[str, np.ndarray]) -> Iterator[Block | None]:
    """Draw each dimension, with action and state of a joint on one scale if they have equal
    widths.
    """
    together = (
        ACTION in columns and STATE in columns and columns[ACTION].shape == columns[STATE].shape
    )
    groups = [[ACTION, STATE]] if together else []
    groups += [[key] for key in columns if not (together and key in (ACTION, STATE))]
    for keys in groups:
        names = catalog.features[keys[0]].dimension_names
        width = columns[keys[0]].shape[1]
        charts = []
        constant = []
        for dimension in range(min(DIMENSIONS, width)):
            values = [columns[key][:, dimension] for key in keys]
            if all(len(column) and np.ptp(column) == 0 for column in values):
                figures = " and ".join(f"{column[0]:.4g}" for column in values)
                constant.append(f"{names[dimension]} {figures}")
                continue
            lines = [
                Curve.from_frames(key, columns[key][:, dimension], catalog.fps, color)
                for color, key in enumerate(keys)
            ]
            charts.append(
                Block.chart(
                    names[dimension],
                    "time, s",
                    names[dimension],
                    lines,
                    zero=False,
                    bare=True,
                    height=140,
                )
            )
        yield Block.paragraph(
            f"{' and '.join(keys)} · {plural(width, 'dimension')}, each on its own scale, in the "
            "robot's units"
        )
        if charts and len(keys) > 1:
            yield Block.key(lines)
        yield Block.grid(charts, "small")
        if constant:
            yield Block.paragraph(f"constant: {', '.join(constant)}")
        yield _left_out(width)


def _left_out(width: int) -> Block | None:
    return (
        Block.paragraph(f"and {width - DIMENSIONS} more dimensions") if width > DIMENSIONS else None
    )


def _features(contents: Mapping[str, Any], catalog: Catalog) -> Block:
    """Render the features, and the columns that are not declared."""
    rows = []
    for key, entry in contents["features"].items():
        kind = entry["dtype"]
        if entry["camera"]:
            kind += ", a camera"
        rows.append([key, kind, " × ".join(map(str, entry["shape"]))])
    rows += [[key, kind, "not declared"] for key, kind in contents["undeclared"].items()]
    if not rows:
        return Block.section("Features", None)
    features = Block.table(["key", "dtype", "shape"], rows)
    return Block.section("Features", Block.card("", features, *_dimensions(catalog)))


def _actions(catalog: Catalog) -> Block:
    """Render the distribution of actions in some episodes, spread over the dataset."""
    parts: list[np.ndarray] = []
    sampled = SAMPLED if ACTION in numeric_keys(catalog) else 0
    for row in _spread(catalog, sampled):
        with _collect([]):  # findings name unreadable columns
            length = int(catalog.episodes.lengths[row])
            parts.append(
                _read(catalog, row, [ACTION], np.arange(length))[ACTION]
                .astype(np.float64)
                .reshape(length, -1)
            )
    if not parts:
        return Block.section("Actions")
    names = catalog.features[ACTION].dimension_names
    values = np.concatenate(parts)
    width = values.shape[1]
    charts = [
        Block.histogram(names[d], values[:, d], names[d], "frames")
        for d in range(min(DIMENSIONS, width))
    ]
    note = f"Histograms over {len(parts)} of {plural(len(catalog.episodes), 'episode')}."
    return Block.section(
        "Actions", Block.card("", Block.grid(charts, "small"), _left_out(width)), note=note
    )


def _dimensions(catalog: Catalog) -> Iterator[Block]:
    """Render the names of the dimensions of each column of several numbers."""
    for key in numeric_keys(catalog):
        names = catalog.features[key].dimension_names
        if len(names) > 1:
            listed = ", ".join(names[:DIMENSIONS])
            more = ", …" if len(names) > DIMENSIONS else ""
            yield Block.paragraph(f"{key}: {listed}{more}")
