"""A report as text for a terminal."""

from understudy.check.findings import SEVERITIES, Report
from understudy.data.selection.motion import IDLE
from understudy.plural import plural


def format_report(report: Report, limit: int = 40) -> str:
    """Format a report: its findings with place and fix, at most `limit` of each severity, and one line of counts."""
    lines = [
        report.root,
        f"  LeRobot {report.version or 'format unknown'}, {plural(report.episodes, 'episode')}, "
        + f"{plural(report.frames, 'frame')}; read "
        + (", ".join(_count(name, count) for name, count in report.read.items()) or "metadata"),
    ]
    if report.idle_share is not None:
        lines.append(f"  idle in {report.idle_share:.1%} of the frames: {IDLE}")
    for severity in SEVERITIES:
        own = [finding for finding in report.findings if finding.severity == severity]
        for finding in own[:limit]:
            place = str(finding.place)
            lines.append(f"{severity} {finding.rule}" + (f": {place}" if place else ""))
            lines.append(f"  {finding.message}")
            if finding.fix and severity != "note":
                lines.append(f"  fix: {finding.fix}")
        if len(own) > limit:
            lines.append(f"and {len(own) - limit} more of severity {severity}")
    if report.undecided:
        by_reason: dict[str, list[str]] = {}
        for rule in report.undecided:
            by_reason.setdefault(": ".join(filter(None, (str(rule.place), rule.message))), []).append(rule.rule)
        lines.append("too little data for")
        lines += [f"  {', '.join(rules)}: {reason}" for reason, rules in by_reason.items()]
    if report.ranking:
        lines.append("most unusual episodes")
        lines += [f"  {entry['episode']}: {entry['why']}" for entry in report.ranking[:5]]
    counts = report.counts
    result = "sound: " if not (counts["error"] or counts["warning"]) else ""
    if counts["error"]:
        result = plural(len(report.bad_episodes), "bad episode") + ": "
    numbers = ", ".join(plural(counts[name], name) for name in SEVERITIES)
    lines.append(f"{result}{numbers}, {report.seconds:.1f} s")
    return "\n".join(lines)


def _count(name: str, count: int) -> str:
    return plural(count, name.replace("_", " ").removesuffix("s"))
