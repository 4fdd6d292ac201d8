"""Effects of broken rules on a training, by which findings are ranked, and remedies of findings
that name none.
"""

from dataclasses import replace

from understudy_tools.check.findings import (
    LOOK,
    RULES,
    SAME,
    SEVERITIES,
    STOPS,
    WEAK,
    WRONG,
    Finding,
    list_ids,
)

EFFECTS = {
    STOPS: "a training refuses these episodes, or stops there",
    WRONG: "a training runs, and learns wrong pairs or values",
    WEAK: "a training runs, and learns less than it could, or something odd, from these frames",
    SAME: "a training is the same; other readers or people may be misled",
}
"""Rank -> effect."""
_OWN = {
    "values.constant": "a training learns this one value for them, and the other dimensions as "
    "without them",
    "rows.orphan": "a training never uses these rows",
    "files.orphan": "a training never uses these files",
    "clock.start": "a training is the same: frames are paired by number, not by time",
    "clock.jitter": "a training is the same: frames are paired by number, not by time",
    "statistics.values": "only a training with data.stats recorded uses them; others compute their "
    "own",
    "statistics.far": "a training with data.stats recorded names them, or refuses to start; others "
    "compute their own",
    "files.camera": "a training that wants this camera refuses to start; the others run without it",
}
_FIXES = {
    "metadata.features": "nothing to do for a training; `understudy edit SRC OUT` declares all of "
    "them",
    "metadata.names": "nothing to do for a training; names in meta/info.json make messages and "
    "pages readable",
    "files.columns": "nothing to do for a training; `understudy edit SRC OUT` writes one schema of "
    "declared columns",
    "values.constant": "nothing to do where these joints are fixed; else record them in motion",
    "clock.start": "nothing to do for a training; for LeRobot: `understudy edit SRC OUT` (writes "
    "timestamps anew)",
    "videos.encoding": "nothing to do if images look right; `understudy edit SRC OUT --codec "
    "libx264` makes them alike",
    "tasks.unused": "nothing to do for a training; `understudy edit SRC OUT` leaves unused tasks "
    "out",
}


def list_rules() -> dict[str, str]:
    """Return the rules: name -> a sound dataset, and the effect of a broken rule."""
    return {
        name: f"{rule.sound}; else {_OWN.get(name, EFFECTS[rule.effect])}"
        for name, rule in RULES.items()
    }


def rank_of(finding: Finding) -> int:
    """Return the rank of the effect of a finding; no error is harmless, and a note stops
    nothing.
    """
    rank = RULES[finding.rule].effect
    if finding.severity == "error":
        return min(rank, WRONG)
    return max(rank, WRONG) if finding.severity == "warning" else max(rank, WEAK)


def effect_of(finding: Finding) -> str:
    """Return what a finding does to a training, as a sentence without a full stop."""
    own = _OWN.get(finding.rule, "") if finding.severity != "error" else ""
    return own or EFFECTS[rank_of(finding)]


def rank_findings(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return findings by severity, then by their effect on a training, then in the sequence they
    had.
    """
    return tuple(
        sorted(findings, key=lambda finding: (SEVERITIES.index(finding.severity), rank_of(finding)))
    )


def complete_fix(finding: Finding, root: str) -> Finding:
    """Return a finding whose fix names the command to look at its episodes, and which has one if it
    had none.
    """
    fix = finding.fix or _FIXES.get(finding.rule, "")
    if not fix:
        fix = LOOK if finding.place.episodes else "nothing to do for a training: this is a fact"
    fix = fix.replace("SRC OUT", f"{root} {root.rstrip('/').rpartition('/')[2]}-mended")
    if LOOK in fix and finding.place.episodes:
        ids = " ".join(map(str, finding.place.episodes[:_NAMED]))
        several = "s" if len(finding.place.episodes) > 1 else ""
        look = (
            f"look at episode{several} {list_ids(finding.place.episodes)}: "
            f"`{view_command(root, finding)}`"
        )
        if finding.rule == "images.shifted":
            look += "; images and curves have to turn at the same moment"
        fix = fix.replace(
            LOOK, f"{look}; if wrong, leave out: --data.exclude-episodes {ids}, or understudy edit"
        )
    return replace(finding, fix=fix)


_NAMED = 20
_SHOWN = 8


def view_command(root: str, finding: Finding) -> str:
    """Return the command that shows the first episodes of a finding; "" for a finding about no
    episode.
    """
    ids = " ".join(map(str, finding.place.episodes[:_SHOWN]))
    return f"understudy view {root} --episodes {ids}" if ids else ""
