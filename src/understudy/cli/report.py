"""`understudy report RUN [RUN ...]`: a run's report.html again, or a page of several runs side by side."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from understudy.config.declare import Ge, Positional

OUTPUT = "comparison.html"
"""Page of several runs, in the current folder, unless `--output` names another one."""


@dataclass(frozen=True)
class ReportConfig:
    """Write a run's report.html again, or compare several runs on one page."""

    runs: Positional[tuple[str, ...]] = ()
    """Run directories; runs may be active, stopped or complete. One run gets its report.html again. Of several runs
    nothing is changed."""
    output: str = ""
    """HTML page to write. The default is RUN/report.html for one run, and comparison.html in the current folder for
    several."""
    overwrite: bool = False
    """Replace an earlier page at that place. RUN/report.html is always written again."""
    worst_episodes: Annotated[int, Ge(0)] = 3
    """Validation episodes to show, those with the largest losses: frames of each camera, and the recorded and the
    predicted actions. The predicted ones need a checkpoint, which is loaded as `validate` does. 0 shows none."""
    json: bool = False
    """Print the figures of the runs and of their comparison as one JSON object; write a page only with `--output`."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        found = [] if self.runs else ["runs: required, directories of runs: understudy report RUN [RUN ...]"]
        if self.output and not Path(self.output).absolute().parent.is_dir():
            found.append(f"output: {Path(self.output).parent} is not a folder; create it first")
        return found


def report(config: ReportConfig) -> None:
    """Write the page and print its path, or print the data."""
    from understudy.atomic import refuse_existing
    from understudy.report.compare.page import compare_runs, refuse_other_files, write_comparison
    from understudy.report.page import refuse_foreign
    from understudy.report.run.page import write_report

    roots = [Path(run) for run in config.runs]
    if config.json:
        print(json.dumps(compare_runs(roots, config.worst_episodes), ensure_ascii=False))
        if not config.output:
            return
    if len(roots) == 1:
        output = Path(config.output) if config.output else None
        if output and output.resolve() != (roots[0] / "report.html").resolve():
            refuse_foreign(output)
            refuse_existing(output, "output", config.overwrite)
        path = write_report(roots[0], output, worst_episodes=config.worst_episodes)
    else:
        path = Path(config.output or OUTPUT)
        refuse_other_files(path, [] if config.output else roots)
        refuse_existing(path, "output", config.overwrite)
        write_comparison(roots, path, config.worst_episodes)
    if not config.json:
        print(f"report: {path}")
