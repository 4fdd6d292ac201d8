"""Commands of runs: `train`, `resume`, `validate`, `export` and `report`."""

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from understudy.config.hints import TRAINER_NAMES
from understudy.config.train import TrainConfig
from understudy.train.checkpoint.export import ExportConfig
from understudy.train.checkpoint.export import export as export_folder
from understudy_base import ConfigError, refuse_existing, summarize
from understudy_kit import Command, Ge, OtherNames, Positional, describe


def train(config: TrainConfig) -> int:
    """Start a run; write its report when it ends or stops. Returns the exit code."""
    return run_and_report("train", config)


def stored_settings(run: str) -> TrainConfig:
    """Return the settings of a run, which `resume` starts from; raises as `resumed_settings`."""
    from understudy.train.checkpoint.run_dir import resumed_settings

    return resumed_settings(run)


@describe(Command(stored=stored_settings))
def resume(config: TrainConfig) -> int:
    """Continue a run; write its report when it ends or stops. Returns the exit code."""
    return run_and_report("resume", config)


def run_and_report(command: str, config: TrainConfig) -> int:
    """Train or resume, then write the report on rank 0. Returns the exit code, also where the
    report fails.

    Args:
        command: "train" or "resume".
        config: The settings of the run.
    """
    from understudy_kit import Stop, Stopped

    report = config.log.report and is_rank_0()
    try:
        with Stop.on_signals(at_once=True):  # importing torch takes seconds
            from understudy.train import run

        code = run.train(config) if command == "train" else run.resume(config)
    except Stopped as signal:
        print(f"stopped by {signal} before training began", file=sys.stderr)
        return 75
    policy = Path(config.output_dir, "policy")
    if code == 0 and is_rank_0() and policy.is_dir():
        print(f"policy: {policy}")
    if report and Path(config.output_dir, "config.yaml").exists():
        _try_report(config.output_dir)
    return code


def _try_report(run: str) -> None:
    """Write the report of a run and print its path; warn where that fails, since the training
    itself has ended.
    """
    from understudy_base import redact

    try:
        from understudy.report.run.page import write_report

        line = f"report: {write_report(Path(run), predict=False)}"
    except Exception as error:  # also of a package that adds to the page
        warning = f"warning: no report ({summarize(error)}); `understudy report {run}` writes it"
        print(redact(warning), file=sys.stderr)
        return
    print(line)


def is_rank_0() -> bool:
    """Whether this process is the one that prints and writes for its run."""
    return os.environ.get("RANK", "0") == "0"


@dataclass(frozen=True)
class PlaceConfig:
    """Place of the run's dataset."""

    root: str = ""
    """Folder or URL where the dataset is now; the default is that of the run. A mixture has them in
    its config.yaml.
    """


@dataclass(frozen=True)
class ValidateConfig:
    """Validation loss of a checkpoint per norm head, source and task, equal to the run's own at
    that step.
    """

    OTHER_NAMES: ClassVar[OtherNames] = TRAINER_NAMES
    run: Positional[str] = ""
    """Run directory."""
    checkpoint: Annotated[int, Ge(0)] | Literal["latest", "best"] = "latest"
    """Step of the checkpoint, `latest`, or `best`: the best by the run's `keep_best`, by default
    the lowest loss.
    """
    data: PlaceConfig = field(default_factory=PlaceConfig)
    per_dim: bool = False
    """Also print the action's loss by dimension."""
    json: bool = False
    """Print one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        return (
            [] if self.run else ["run: required, the directory of a run: understudy validate RUN"]
        )


def validate(config: ValidateConfig) -> None:
    """Evaluate the checkpoint on the validation frames; rank 0 prints the tables."""
    from understudy.report.run.tables import format_validation
    from understudy.train.checkpoint.run_dir import RunDir
    from understudy.train.run import evaluate_checkpoint
    from understudy_base import finite

    root = Path(config.run)
    metrics = evaluate_checkpoint(
        root, config.checkpoint, per_dim=config.per_dim, data_root=config.data.root
    )
    result = finite(metrics)
    if is_rank_0():
        mode = RunDir(root).settings().modes.val_mode()
        if config.json:
            print(json.dumps(result, ensure_ascii=False))
        else:
            print(format_validation(result, mode))


def export(config: ExportConfig) -> None:
    """Write the folder and print its path; raises as `export_folder` does."""
    export_folder(config)


OUTPUT = "comparison.html"
"""Page of several runs, in the current folder, unless `--output` names another one."""
MOST = 8
"""Most runs on a page."""


@dataclass(frozen=True)
class ReportConfig:
    """Write a run's report.html again, or compare several runs with the first one."""

    runs: Positional[tuple[str, ...]] = ()
    """Run directories; runs may be active, stopped or complete. One run gets its report.html again.
    Of several runs nothing is changed: the page is that of the first one, with the curves of the
    others over its own, and a sentence and a table of groups are printed.
    """
    output: str = ""
    """HTML page to write. The default is RUN/report.html for one run, and comparison.html in the
    current folder for several.
    """
    overwrite: bool = False
    """Replace an earlier page at that place. RUN/report.html is always written again."""
    worst_episodes: Annotated[int, Ge(0)] = 3
    """Validation episodes to show, those with the largest losses: frames of each camera, and the
    recorded and the predicted actions. The predicted ones need a checkpoint, which is loaded as
    `validate` does. 0 shows none.
    """
    json: bool = False
    """Of several runs: print their comparison as one JSON object; write a page only with
    `--output`.
    """

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        errors = (
            []
            if self.runs
            else ["runs: required, directories of runs: understudy report RUN [RUN ...]"]
        )
        if len(set(map(os.path.realpath, self.runs))) < len(self.runs):
            errors.append("runs: one is named twice; name each run once")
        if len(self.runs) > MOST:
            errors.append(
                f"runs: {len(self.runs)} of them; compare at most {MOST}, as many as there are "
                "colors"
            )
        if self.json and len(self.runs) == 1:
            errors.append("json: is for several runs; metrics.jsonl of the run has its figures")
        if self.output and not Path(self.output).absolute().parent.is_dir():
            errors.append(f"output: {Path(self.output).parent} is not a folder; create it first")
        return errors


def report(config: ReportConfig) -> None:
    """Write the page and print its path; of several runs, print their comparison."""
    from understudy.report.run.overlay import compare, format_comparison
    from understudy.report.run.page import read_run, write_report
    from understudy_kit import refuse_foreign

    roots = [Path(run) for run in config.runs]
    first, *others = [read_run(root, chr(ord("A") + index)) for index, root in enumerate(roots)]
    if config.json:
        print(json.dumps(compare([first, *others]), ensure_ascii=False))
        if not config.output:
            return
    own_page = first.root / "report.html"
    default = OUTPUT if others else own_page
    output = Path(config.output or default)
    is_own = not others and output.resolve() == own_page.resolve()
    if others:
        for root in roots:
            if output.resolve().is_relative_to(root.resolve()):
                raise ConfigError(
                    f"output: {output} would lie in the run {root}; name a file by --output"
                )
    if not is_own:
        refuse_foreign(output)
        refuse_existing(output, "output", config.overwrite)
    page = None if is_own else output
    path = write_report(first.root, page, worst_episodes=config.worst_episodes, others=others)
    if config.json:
        return
    if others:
        print(f"{format_comparison(compare([first, *others]))}\n")
    print(f"report: {path}")
