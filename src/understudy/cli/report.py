"""`understudy report RUN`: write a run's report.html again."""

from dataclasses import dataclass
from pathlib import Path

from understudy.config.declare import Positional


@dataclass(frozen=True)
class ReportConfig:
    """Write a run's report.html again."""

    run: Positional[str] = ""
    """Run directory; the run may be active, stopped or complete."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        return [] if self.run else ["run: required, the directory of a run: understudy report RUN"]


def report(config: ReportConfig) -> None:
    """Write the report and print its path."""
    from understudy.report.run.page import write_report

    print(f"report: {write_report(Path(config.run))}")
