"""`understudy audit`: how often each frame was trained on, and a proof that no validation frame
was.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from understudy_base import create_folder, refuse_existing
from understudy_kit import Ge, Positional

if TYPE_CHECKING:
    from understudy.train.audit import FrameCounts

SEEN = 1
"""Exit code where a validation frame was trained on."""


@dataclass(frozen=True)
class AuditConfig:
    """Count how often each frame was trained on: exit code 1 if a validation frame was, else 0."""

    path: Positional[str] = ""
    """Run directory, also of an active run, or an order file."""
    checkpoint: Annotated[int, Ge(0)] | Literal["latest", "best"] = "latest"
    """Step of the checkpoint to account for, `latest` or `best`; of an order file, the number of
    its steps.
    """
    without: tuple[str, ...] = ()
    """Withdrawn episodes, each ID, FIRST-LAST or SOURCE:ID: since which step they were trained on.
    """
    validation: tuple[str, ...] = ()
    """Validation episodes of an order file, as `--without`; a run has its own."""
    json: bool = False
    """Print one JSON object."""
    out: str = ""
    """New folder to write: audit.json, audit.html, episodes.parquet and frames.parquet."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        problems = (
            [] if self.path else ["path: required, a run or an order file: understudy audit RUN"]
        )
        if self.validation and Path(self.path).is_dir():
            problems.append("validation: a run has its own; leave it out")
        if self.checkpoint == "best" and Path(self.path).is_file():
            problems.append("checkpoint: an order file has no best one; give a number of steps")
        return problems


def audit(config: AuditConfig) -> int:
    """Count, print, and write the folder."""
    from understudy.report.audit_page import audit_page, audit_text
    from understudy.train.audit import audit_file, audit_run

    if config.out:
        refuse_existing(config.out, "out", None)
    path = Path(config.path)
    if path.is_file():
        result, counts = audit_file(path, config.checkpoint, config.validation, config.without)
    else:
        result, counts = audit_run(path, config.checkpoint, config.without)
    if config.out:
        with create_folder(Path(config.out)) as folder:
            (folder / "audit.json").write_text(
                json.dumps(result, ensure_ascii=False) + "\n", encoding="utf-8"
            )
            (folder / "audit.html").write_text(audit_page(result), encoding="utf-8")
            _write_counts(folder, counts)
    text = json.dumps(result, ensure_ascii=False) if config.json else audit_text(result)
    print(text)
    return SEEN if result["validation"]["samples"] else 0


def _write_counts(folder: Path, counts: "FrameCounts") -> None:
    """Write a row per episode, and a row per frame."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(counts.table()), folder / "episodes.parquet")
    blocks = map(pa.table, counts.frames())
    first = next(blocks)
    with pq.ParquetWriter(folder / "frames.parquet", first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for block in blocks:
            writer.write_table(block)
