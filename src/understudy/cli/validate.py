"""`understudy validate RUN`: validation tables of a checkpoint."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from understudy.cli.train import is_rank_0
from understudy.config.declare import Ge, Positional


@dataclass(frozen=True)
class PlaceConfig:
    """Place of the run's dataset."""

    root: str = ""
    """Folder or URL where the dataset is now; the default is that of the run. A mixture has them in its config.yaml."""


@dataclass(frozen=True)
class ValidateConfig:
    """Validation loss of a checkpoint per norm head, source and task, equal to the run's own at that step."""

    run: Positional[str] = ""
    """Run directory."""
    checkpoint: Annotated[int, Ge(0)] | Literal["latest", "best"] = "latest"
    """Step of the checkpoint, `latest`, or `best`: the best by the run's `keep_best`, by default the lowest loss."""
    data: PlaceConfig = field(default_factory=PlaceConfig)
    per_dim: bool = False
    """Also print the action's loss by dimension."""
    json: bool = False
    """Print one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        return [] if self.run else ["run: required, the directory of a run: understudy validate RUN"]


def validate(config: ValidateConfig) -> None:
    """Evaluate the checkpoint on the validation frames; rank 0 prints the tables."""
    from understudy.report.run.tables import format_validation
    from understudy.train.checkpoint.run_dir import RunDir
    from understudy.train.run import evaluate_checkpoint
    from understudy.train.track.metrics_file import finite

    root = Path(config.run)
    found = evaluate_checkpoint(root, config.checkpoint, per_dim=config.per_dim, data_root=config.data.root)
    result = finite(found)
    if is_rank_0():
        mode = RunDir(root).settings().val_mode()
        print(json.dumps(result, ensure_ascii=False) if config.json else format_validation(result, mode))
