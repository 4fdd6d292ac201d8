"""Check of many datasets, summed up on one page: counts by rule, and the datasets with errors
first.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from understudy_base import DataAccessError, Progress, plural
from understudy_data import Workers
from understudy_tools.check.examine import Depth, check_dataset
from understudy_tools.check.findings import RULES, SEVERITIES, Finding

MOST_CHARACTERS = 120
"""Most characters of a finding on the page."""


@dataclass(frozen=True)
class Checked:
    """The findings of one dataset; `failed` is the reason where there is none to check."""

    root: str
    episodes: int = 0
    frames: int = 0
    findings: tuple[Finding, ...] = ()
    failed: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether it has no error."""
        return not self.failed and all(finding.severity != "error" for finding in self.findings)


@dataclass
class SeveralReport:
    """Result of a check of many datasets, in their sequence."""

    datasets: list[Checked] = field(default_factory=list)

    @property
    def wrong(self) -> list[Checked]:
        """Those with errors."""
        return [dataset for dataset in self.datasets if not dataset.is_sound]

    def by_rule(self) -> list[tuple[str, str, int, int]]:
        """Return (severity, rule, datasets, findings) of each broken rule: errors first, and of
        most datasets first.
        """
        datasets = Counter[tuple[str, str]]()
        findings = Counter[tuple[str, str]]()
        for dataset in self.datasets:
            kinds = [(finding.severity, finding.rule) for finding in dataset.findings]
            findings.update(kinds)
            datasets.update(set(kinds))
        rank: dict[str, int] = {severity: number for number, severity in enumerate(SEVERITIES)}
        rows = [(*kind, count, findings[kind]) for kind, count in datasets.items()]
        return sorted(rows, key=lambda row: (rank.get(row[0], len(rank)), -row[2], row[1]))

    def to_json(self) -> dict[str, Any]:
        """Return the report as values of JSON."""
        columns = ("severity", "rule", "datasets", "findings")
        with_errors = []
        for dataset in self.wrong:
            errors = [_line(finding) for finding in _errors(dataset)]
            with_errors.append({"root": dataset.root, "failed": dataset.failed, "errors": errors})
        return {
            "datasets": len(self.datasets),
            "sound": not self.wrong,
            "episodes": sum(dataset.episodes for dataset in self.datasets),
            "frames": sum(dataset.frames for dataset in self.datasets),
            "rules": [dict(zip(columns, row)) for row in self.by_rule()],
            "with_errors": with_errors,
        }


def check_several(
    sources: Sequence[Mapping[str, Any]],
    depth: Depth = "sample",
    *,
    show_progress: bool = False,
    workers: Workers | None = None,
) -> SeveralReport:
    """Check many datasets by all rules, one after the other.

    Args:
        sources: settings of each: `root`, and where they differ from the defaults `action`,
            `state`, `video_path`, `data_path`, `version` and `pairing`.
        depth: files to read.
        show_progress: whether to show the count, the rate and the remaining time on stderr.
        workers: processes that read the files; None reads them in this one.
    """
    report = SeveralReport()
    with Progress(len(sources), "check", "dataset", shown=show_progress) as bar:
        for source in sources:
            names = ("action", "state", "video_path", "data_path", "version", "pairing")
            options = {name: source[name] for name in names if source.get(name)}
            try:
                report_of_one = check_dataset(source["root"], depth, workers=workers, **options)
                report.datasets.append(
                    Checked(
                        source["root"],
                        report_of_one.episodes,
                        report_of_one.frames,
                        report_of_one.findings,
                    )
                )
            except DataAccessError as error:
                report.datasets.append(Checked(source["root"], failed=str(error)))
            bar.update(1)
    return report


def format_several(report: SeveralReport, address: str, limit: int = 40) -> str:
    """Format a report: counts by rule, then at most `limit` datasets with errors, then the sums."""
    sizes = ", ".join(
        [
            plural(len(report.datasets), "dataset"),
            plural(sum(dataset.episodes for dataset in report.datasets), "episode"),
            plural(sum(dataset.frames for dataset in report.datasets), "frame"),
        ]
    )
    lines = [f"{address}: {sizes}"]
    rows = report.by_rule()
    width = max((len(rule) for _, rule, *_ in rows), default=0)
    for severity, rule, datasets, findings in rows:
        counts = f"{plural(datasets, 'dataset')}, {plural(findings, 'finding')}"
        lines.append(f"{severity:<7} {rule:<{width}}  {counts}: {RULES[rule].sound}")
    if wrong := report.wrong:
        lines.append(
            "datasets with errors; `understudy check PATH` of one has all findings, with remedies"
        )
    for dataset in wrong[:limit]:
        errors = _errors(dataset)
        first = dataset.failed.replace("\n", " ") or _line(errors[0])
        more = f", and {plural(len(errors) - 1, 'more error')}" if len(errors) > 1 else ""
        lines.append(f"  {dataset.root}: {_shortened(first)}{more}")
    if len(wrong) > limit:
        lines.append(f"  and {len(wrong) - limit:,} more")
    return "\n".join(
        [
            *lines,
            f"{len(report.datasets) - len(wrong):,} of {len(report.datasets):,} without errors",
        ]
    )


def _errors(dataset: Checked) -> list[Finding]:
    return [finding for finding in dataset.findings if finding.severity == "error"]


def _line(finding: Finding) -> str:
    return ": ".join(filter(None, (finding.rule, str(finding.place), finding.message)))


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
