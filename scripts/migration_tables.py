"""Write the tables of docs/migration.md from the settings of other trainers:
`python scripts/migration_tables.py`.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/migration.md"
TABLES = ROOT / "packages/understudy/src/understudy/config/other_trainers.toml"


def write_tables(page: str) -> str:
    """Return the page with the rows of each table.

    Raises:
        LookupError: the page has no table of a trainer.
    """
    for trainer, settings in tomllib.loads(TABLES.read_text(encoding="utf-8")).items():
        head = f"\n| {trainer} | understudy |\n|---|---|\n"
        if head not in page:
            raise LookupError(
                f"docs/migration.md: no table of {trainer}: add its two lines of head"
            )
        start, _, end = page.partition(head)
        rows = [f"| `{name}` | {text} |\n" for name, text in settings.items()]
        page = start + head + "".join(rows) + re.sub(r"\A(\|.*\n)+", "", end)
    return page


if __name__ == "__main__":
    PAGE.write_text(write_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
