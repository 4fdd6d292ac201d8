"""Check a commit message: `python scripts/check_commit_message.py FILE`, or `--range main..HEAD`
for all of a branch.

The subject is an imperative of at most 72 characters without a full stop. After a blank line, the
body says why.
"""

import re
import subprocess
import sys
from pathlib import Path

LONGEST = 72
EXEMPT = re.compile(r"(?:fixup|squash|amend)! |Merge |Revert ")
INFLECTED = re.compile(r"(?:ed|ing|s)$", re.IGNORECASE)
ENDING_LIKE_THAT = {
    "access",
    "address",
    "alias",
    "assess",
    "bias",
    "bring",
    "bypass",
    "compress",
    "cross",
    "discuss",
}
ENDING_LIKE_THAT |= {
    "dismiss",
    "embed",
    "exceed",
    "express",
    "feed",
    "focus",
    "guess",
    "miss",
    "need",
    "pass",
    "press",
}
ENDING_LIKE_THAT |= {"proceed", "process", "seed", "shed", "shred", "spring", "string", "suppress"}


def problems(message: str) -> list[str]:
    """Everything that is wrong with a commit message; empty where it is right."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if EXEMPT.match(subject):
        return []
    found = []
    if not subject.strip():
        return ["no subject"]
    if len(subject) > LONGEST:
        found.append(f"the subject has {len(subject)} characters; at most {LONGEST}")
    if subject.endswith("."):
        found.append("the subject ends with a full stop")
    first = re.split(r"\W", subject, maxsplit=1)[0]
    if not first[:1].isupper():
        found.append(f"the subject starts with {first!r}; begin with a capital letter")
    elif INFLECTED.search(first) and first.lower() not in ENDING_LIKE_THAT:
        found.append(f"{first!r} is no imperative: 'Add', not 'Added', 'Adds' or 'Adding'")
    if len(lines) > 1 and lines[1].strip():
        found.append("the second line is not empty")
    if not any(line.strip() for line in lines[2:]):
        found.append("no body: say why, after a blank line")
    return found


def main(arguments: list[str]) -> int:
    """Print the problems; returns 1 if there are any."""
    if arguments[:1] == ["--range"] and len(arguments) == 2:
        log = subprocess.run(
            ["git", "log", "--format=%B%x00", arguments[1]],
            check=True,
            capture_output=True,
            text=True,
        )
        messages = [text.strip() for text in log.stdout.split("\0") if text.strip()]
    elif len(arguments) == 1:
        messages = [Path(arguments[0]).read_text()]
    else:
        print(__doc__, file=sys.stderr)
        return 2
    failed = 0
    for message in messages:
        for problem in problems(message):
            print(
                f"{message.splitlines()[0] if message.splitlines() else ''!r}: {problem}",
                file=sys.stderr,
            )
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
