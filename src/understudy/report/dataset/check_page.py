"""The page of `understudy check`: findings with place and fix, and images of the worst episodes."""

from html import escape
from typing import Any

import numpy as np

from understudy.check.findings import RULES, SEVERITIES, Finding, Report
from understudy.data.dataset import EpisodeDataset
from understudy.data.format.catalog import Catalog
from understudy.report import html
from understudy.report.dataset.examine import finding as as_line

WORST = 6
"""Most episodes whose images are shown."""
_IMAGES = 6


def check_page(report: Report, catalog: Catalog | None) -> str:
    """Render a report as one HTML page.

    Args:
        report: result of `check_dataset`.
        catalog: the dataset; None where its metadata cannot be read.
    """
    counts = report.counts
    tiles = [(f"{counts[severity]:,}", f"{severity}s") for severity in SEVERITIES]
    tiles += [(f"{report.episodes:,}", "episodes"), (f"{report.frames:,}", "frames")]
    read = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in report.read.items())
    name = report.root.rstrip("/").rpartition("/")[2]
    faults = [
        f"{counts[severity]:,} {severity}{'s' if counts[severity] > 1 else ''}"
        for severity in ("error", "warning")
        if counts[severity]
    ]
    sections = [
        html.section(f"{severity.title()}s", *_table([one for one in report.findings if one.severity == severity]))
        for severity in SEVERITIES
    ]
    sections.append(html.section("Too little data", *_table(list(report.undecided))))
    worst = _worst(report)
    return html.page(
        f"{name} · understudy check",
        f'<h1>{escape(name)}: {", ".join(faults) or "sound"}</h1><p class="soft">LeRobot {escape(report.version)} · '
        f"{escape(report.root)} · read {escape(read)}</p>" + html.tiles(tiles),
        *sections,
        html.section("Worst episodes", *(_episode(catalog, *one) for one in worst)) if catalog is not None else "",
        html.section("Most unusual episodes", html.card(_ranking(report.ranking)) if report.ranking else ""),
    )


def _table(findings: list[Finding]) -> list[str]:
    rows = [
        [
            one.rule,
            str(one.place),
            one.message,
            RULES[one.rule],
            one.fix if one.severity in ("error", "warning") else "",
        ]
        for one in findings
    ]
    return [html.card(html.table(["rule", "place", "finding", "a sound dataset", "fix"], rows))] if rows else []


def _ranking(ranking: tuple[dict[str, Any], ...]) -> str:
    rows = [[entry["episode"], entry["score"], entry["why"]] for entry in ranking]
    return html.table(["episode", "robust z", "because"], rows)


def _worst(report: Report) -> list[tuple[int, str]]:
    """Episodes to show with a reason: those of errors and warnings first, then the most unusual."""
    found: dict[int, str] = {}
    for one in report.findings:
        if one.severity != "note":
            for episode in one.place.episodes[:2]:
                found.setdefault(episode, f"{one.rule}: {one.message}")
    for entry in report.ranking:
        found.setdefault(entry["episode"], entry["why"])
    return list(found.items())[:WORST]


def _episode(catalog: Catalog, episode: int, why: str) -> str:
    """Render images of an episode from first to last, per camera, or the errors in their place."""
    parts = [f'<h3>episode {episode}</h3><p class="soft">{escape(why)}</p>']
    for camera in catalog.camera_keys:
        wrong: list[str] = []
        with as_line(wrong):
            data = EpisodeDataset(catalog, episodes=[episode], keys=[camera])
            at = np.unique(np.linspace(0, len(data) - 1, _IMAGES).round().astype(int))
            images = data.batch(np.full(len(at), episode), at)[camera].numpy()
            captions = [f"{frame / catalog.fps:.1f} s" for frame in at]
            parts.append(f"<p><small>{escape(camera)}</small></p>")
            parts.append(html.film(list(_small(images)), captions, f"{camera}, episode {episode}"))
        parts += [f'<p class="bad">{escape(line)}</p>' for line in wrong]
    return html.card(*parts)


def _small(images: np.ndarray, height: int = 160) -> np.ndarray:
    """Convert images [n, C, H, W] to uint8 [n, h, w, 3], thinned to about `height`, grey and depth as RGB."""
    step = max(1, images.shape[2] // height)
    thin = images[:, :3, ::step, ::step].transpose(0, 2, 3, 1)
    thin = thin if thin.dtype == np.uint8 else html.as_gray(thin)
    return np.repeat(thin, 3, axis=3) if thin.shape[3] == 1 else thin
