"""`understudy check PATH`: contents of a dataset, and its faults with the place and the remedy of
each; `--against OTHER`: what differs in another version of it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from understudy_base import ConfigError, is_several, refuse_existing, write_text
from understudy_kit import Ge, Interval, Positional, WorkersConfig, list_sources

if TYPE_CHECKING:
    from understudy_data import Catalog
    from understudy_tools.check.findings import Report

LAYOUT = ("video_path", "data_path", "version", "pairing")
"""Settings of `Catalog.open`."""
OF_FINDINGS = ("action", "state", "skip_bad", "page", "keep_ranges")
"""Settings without a meaning for a comparison."""
FOUND = 1
"""Exit code for a dataset with errors, or with differences."""


@dataclass(frozen=True)
class CheckConfig(WorkersConfig):
    """Examine a dataset, or compare it with another: exit code 0 without errors or differences, 1
    with some, 2 where there is no dataset to check.
    """

    FURTHER_ARGUMENT: ClassVar[str] = (
        "one PATH is checked; several are a glob in quotes ('data/*/') or a list file in CSV"
    )
    path: Positional[str] = ""
    """Folder (or URL) of a LeRobot dataset; or, for one summary of many, a glob in quotes
    (`'data/*/'`) or a list file in CSV, as in `data.sources` of a training.
    """
    against: str = ""
    """Another version of the dataset (folder, URL or hub id, of any format): print what differs in
    it, by episode, in place of the findings. The settings of the layout are those of PATH.
    """
    rules: bool = False
    """List the rules with what a broken one does to a training, and check nothing."""
    depth: Literal["metadata", "rows", "sample", "all"] = "sample"
    """Files to read: those of meta/; also all rows; also videos and images, a sample spread over
    the episodes, or all of them.
    """
    action: str = ""
    """Key of the action, or several joined by +; the default is `action`, else `actions`."""
    state: str = ""
    """Key of the state, as `--action`; the default is `observation.state`, else `state` or another
    usual name.
    """
    skip_bad: str = ""
    """JSON file to write: ids of the bad episodes, those of errors, with their rules.
    `understudy edit --exclude-bad` reads it; a training finds those that it cannot read itself,
    with `data.on_bad_episode` skip.
    """
    page: str = ""
    """HTML page to write: contents and findings, with images and curves of episodes; the default is
    none.
    """
    shown: Annotated[int, Interval(ge=0, le=10**4)] = 4
    """Episodes on the page, spread over the dataset; 0 leaves out all images."""
    overwrite: bool = False
    """Replace earlier files of this command at these places."""
    json: bool = False
    """Print contents and findings as one JSON object."""
    limit: Annotated[int, Ge(1)] = 40
    """Most findings of each severity, or differences of each kind, to print."""
    keep_ranges: str = ""
    """JSON file of keep-ranges: report which of its keys are episodes of this dataset, and which
    frames it keeps.
    """
    keep_rule: Literal["window", "start"] = "start"
    """As in a run's `data.keep_rule`: keep samples whose whole window lies in a range, or all that
    begin in one.
    """
    chunk_size: Annotated[int, Ge(1)] = 1
    """Frames of a window, as in a run's `data.chunk_size`."""

    video_path: str = ""
    """Path template of the videos, instead of the one in info.json."""
    data_path: str = ""
    """Path template of the data files, instead of the one in info.json."""
    version: Literal["", "v2.0", "v2.1", "v3.0", "v3.1"] = ""
    """Format of the dataset, instead of the one in info.json."""
    pairing: Literal["", "files", "columns"] = ""
    """Side that decides where names or places of data files and their columns name different
    episodes.
    """

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        problems = []
        if not (self.path or self.rules):
            problems.append("path: required, the folder or URL of a dataset: understudy check PATH")
        if not self.keep_ranges and (self.chunk_size, self.keep_rule) != (1, "start"):
            problems.append(
                "keep_ranges: --chunk-size and --keep-rule need the file of ranges: --keep-ranges "
                "FILE"
            )
        if is_several(self.path):
            for name in ("skip_bad", "page", "keep_ranges", "work"):
                if getattr(self, name, ""):
                    problems.append(
                        f"{name}: {getattr(self, name)}: is of one dataset, not of {self.path}"
                    )
        if self.against:
            given = [name for name in OF_FINDINGS if getattr(self, name)]
            problems += [f"{name}: is of findings: leave out --against" for name in given]
            if is_several(self.path) or is_several(self.against):
                problems.append("against: compares one PATH with one other dataset")
        return problems + self.worker_problems()


def check(config: CheckConfig) -> int:
    """Print contents and findings; return 1 if one of them is an error."""
    from understudy_data import Catalog, Selection, Workers
    from understudy_tools.check.contents import format_report
    from understudy_tools.check.effects import list_rules
    from understudy_tools.check.examine import check_dataset

    if config.rules:
        rules = list_rules()
        lines = [f"{name}  {text}" for name, text in rules.items()]
        print(json.dumps(rules) if config.json else "\n".join(lines))
        return 0
    if is_several(config.path):
        return _check_several(config)
    layout: dict[str, Any] = {name: getattr(config, name) or None for name in LAYOUT}
    if config.against:
        return _compare(config, Catalog.open(config.path, **layout))
    if config.skip_bad:
        _refuse_other_files(Path(config.skip_bad))
        refuse_existing(config.skip_bad, "skip_bad", config.overwrite)
    if config.page:
        from understudy_kit import refuse_foreign

        refuse_foreign(Path(config.page))
        refuse_existing(config.page, "page", config.overwrite)
    root: str | Catalog = config.path
    keep_report = None
    if config.keep_ranges:
        root = Catalog.open(config.path, **layout)
        reach = (0, config.chunk_size - 1)
        selection = Selection(keep_ranges=config.keep_ranges, keep_rule=config.keep_rule)
        keep_report = selection.apply(root, reach).keep_report
    options = layout | {
        "action": config.action,
        "state": config.state,
        "show_progress": not config.json,
    }
    with Workers(config.processes(), config.ray, config.work) as workers:
        report = check_dataset(root, config.depth, workers=workers, **options)
    if keep_report is not None:
        report.contents["keep_ranges"] = asdict(keep_report) | {"lines": keep_report.lines()}
    if config.skip_bad:
        write_bad_episodes(report, Path(config.skip_bad), is_new=not config.overwrite)
    if config.page:
        from understudy_kit import write_page
        from understudy_tools.report.check_page import check_page

        write_page(Path(config.page), check_page(report, config.shown), is_new=not config.overwrite)
    if config.json:
        print(json.dumps(report.to_json(), ensure_ascii=False))
    else:
        print(format_report(report, config.limit))
    return 0 if report.is_sound else FOUND


def _check_several(config: CheckConfig) -> int:
    """Print the summary of the datasets of a glob or a list file; return 1 if one of them has an
    error.
    """
    from understudy_data import Workers
    from understudy_tools.cli.check_several import check_several, format_several

    shared = {
        name: getattr(config, name)
        for name in ("action", "state", *LAYOUT)
        if getattr(config, name)
    }
    sources = [shared | source for source in list_sources(config.path)]
    with Workers(config.processes(), config.ray, config.work) as workers:
        report = check_several(
            sources, config.depth, show_progress=not config.json, workers=workers
        )
    text = json.dumps(report.to_json(), ensure_ascii=False) if config.json else ""
    print(text or format_several(report, config.path, config.limit))
    return FOUND if report.wrong else 0


def _compare(config: CheckConfig, catalog: "Catalog") -> int:
    """Print what differs in another version of a dataset; return 1 if something does."""
    from understudy_data import Catalog, Workers
    from understudy_tools.check.against import compare

    other = Catalog.open(config.against)
    with Workers(config.processes(), config.ray, config.work) as workers:
        result = compare(catalog, other, config.depth, workers, not config.json)
    text = json.dumps(result.to_json(), ensure_ascii=False) if config.json else ""
    print(text or result.to_text(config.limit))
    return FOUND if result.differences else 0


def _refuse_other_files(path: Path) -> None:
    """Raise ConfigError if `path` exists and was not written by `write_bad_episodes`."""
    if path.exists() and not (path.is_file() and b'"bad_episodes"' in path.read_bytes()):
        raise ConfigError(
            f"skip_bad: {path} exists and holds no ids of bad episodes; name another file"
        )


def write_bad_episodes(report: "Report", path: Path, is_new: bool = False) -> None:
    """Write the ids of the bad episodes as `bad_episodes`, and the rules that each breaks as
    `rules`.
    """
    rules: dict[int, list[str]] = {episode: [] for episode in report.bad_episodes}
    for finding in report.findings:
        if finding.severity == "error":
            for episode in finding.place.episodes:
                if finding.rule not in rules[episode]:
                    rules[episode].append(finding.rule)
    content = {"root": report.root, "bad_episodes": list(report.bad_episodes), "rules": rules}
    write_text(path, json.dumps(content, indent=1) + "\n", is_new=is_new)
