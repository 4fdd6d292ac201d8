"""Tables of results and of requirements."""

from collections.abc import Sequence

from understudy_conformance.requirement import REQUIREMENTS, SUBJECTS, Result

REPOSITORIES = {
    "Accelerate": "huggingface/accelerate",
    "LeRobot": "huggingface/lerobot",
    "datasets": "huggingface/datasets",
    "openpi": "Physical-Intelligence/openpi",
    "starVLA": "starVLA/starVLA",
}
"""Name in a thread -> repository on GitHub."""


def format_result(result: Result) -> str:
    """Return the lines of one result."""
    lines = [f"{result.status:>14}  {result.number:<13}  {REQUIREMENTS[result.number].sentence}"]
    if result.facts:
        lines.append(f"{'':>14}  {'':<13}  {result.facts}")
    return "\n".join(lines)


def format_counts(results: Sequence[Result]) -> str:
    """Return how many passed, failed and do not apply."""
    statuses = [result.status for result in results]
    counts = (
        f"{statuses.count(status)} {status}" for status in ("passed", "failed", "not applicable")
    )
    return f"{', '.join(counts)} in {sum(r.seconds for r in results):.1f} s"


def link_thread(thread: str) -> str:
    """Return a link of Markdown to a thread such as "LeRobot #4524"."""
    name, _, number = thread.partition(" #")
    return f"[{thread}](https://github.com/{REPOSITORIES[name]}/issues/{number})"


def format_requirements() -> str:
    """Return all requirements as tables of Markdown, one per subject."""
    lines = []
    for subject, word in SUBJECTS.items():
        lines += [
            f"### {subject}",
            "",
            "| number | requirement | reason | threads |",
            "|---|---|---|---|",
        ]
        for number, requirement in sorted(REQUIREMENTS.items()):
            if number.startswith(f"R-{word}-"):
                threads = ", ".join(map(link_thread, requirement.threads))
                lines.append(
                    f"| {number} | {requirement.sentence} | {requirement.reason} | {threads} |"
                )
        lines.append("")
    return "\n".join(lines)
