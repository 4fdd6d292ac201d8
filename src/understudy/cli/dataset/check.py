"""`understudy check PATH`: find faults of a dataset, with the place and the remedy of each."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from understudy.config.declare import Ge, Positional

if TYPE_CHECKING:
    from understudy.check.findings import Report

FOUND = 1
"""Exit code for a dataset with errors."""


@dataclass(frozen=True)
class CheckConfig:
    """Find faults of a dataset: exit code 0 without errors, 1 with errors, 2 where there is no dataset to check."""

    path: Positional[str] = ""
    """Folder (or URL) of a LeRobot dataset."""
    pictures: Literal["none", "sample", "all"] = "sample"
    """Videos and images to read: none of them, a sample spread over the episodes, or all."""
    action: str = ""
    """Key of the action, or several joined by +; the default is `action`, else `actions`."""
    state: str = ""
    """Key of the state, as `--action`; the default is `observation.state`, else `state` or another usual name."""
    skip_bad: str = ""
    """JSON file to write: ids of the bad episodes, those of errors, with their rules. `understudy edit --exclude-bad`
    reads it; a training finds those that it cannot read itself, with `data.on_bad_episode` skip."""
    page: str = ""
    """HTML page to write, with images of the worst episodes; the default is none."""
    overwrite: bool = False
    """Replace earlier files of this command at these places."""
    json: bool = False
    """Print the findings as one JSON object."""
    limit: Annotated[int, Ge(1)] = 40
    """Most findings of each severity to print."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        return [] if self.path else ["path: required, the folder or URL of a dataset: understudy check PATH"]


def check(config: CheckConfig) -> int:
    """Print the findings; return 1 if one of them is an error."""
    from understudy.atomic import refuse_existing
    from understudy.check.run import check_dataset
    from understudy.check.text import format_report

    if config.skip_bad:
        _refuse_other_files(Path(config.skip_bad))
        refuse_existing(config.skip_bad, "skip_bad", config.overwrite)
    if config.page:
        from understudy.optional_packages import require
        from understudy.report.html import refuse_foreign

        require("report")
        refuse_foreign(Path(config.page))
        refuse_existing(config.page, "page", config.overwrite)
    report = check_dataset(
        config.path, config.pictures, action=config.action, state=config.state, show_progress=not config.json
    )
    if config.skip_bad:
        write_bad_episodes(report, Path(config.skip_bad))
    if config.page:
        _write_page(config, report)
    print(json.dumps(report.to_json(), ensure_ascii=False) if config.json else format_report(report, config.limit))
    return 0 if report.is_sound else FOUND


def _refuse_other_files(path: Path) -> None:
    """Raise ConfigError if `path` exists and was not written by `write_bad_episodes`."""
    from understudy.errors import ConfigError

    if path.exists() and not (path.is_file() and b'"bad_episodes"' in path.read_bytes()):
        raise ConfigError(f"skip_bad: {path} exists and holds no ids of bad episodes; name another file")


def write_bad_episodes(report: "Report", path: Path) -> None:
    """Write the ids of the bad episodes as `bad_episodes`, and the rules that each breaks as `rules`."""
    from understudy.atomic import write_text

    rules: dict[int, list[str]] = {episode: [] for episode in report.bad_episodes}
    for finding in report.findings:
        if finding.severity == "error":
            for episode in finding.place.episodes:
                if finding.rule not in rules[episode]:
                    rules[episode].append(finding.rule)
    content = {"root": report.root, "bad_episodes": list(report.bad_episodes), "rules": rules}
    write_text(path, json.dumps(content, indent=1) + "\n")


def _write_page(config: CheckConfig, report: "Report") -> None:
    from understudy.data.format.catalog import Catalog
    from understudy.report.dataset.check_page import check_page
    from understudy.report.html import write_page

    write_page(Path(config.page), check_page(report, Catalog.open(config.path) if report.version else None))
