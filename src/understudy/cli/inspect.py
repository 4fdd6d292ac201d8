"""`understudy inspect PATH`: contents, defects and encoding of a dataset, as text and as an HTML page."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from understudy.config.declare import Ge, Interval, Positional


@dataclass(frozen=True)
class InspectConfig:
    """Examine a dataset: contents, defects, encoding."""

    path: Positional[str] = ""
    """Folder (or URL) of a LeRobot dataset."""
    page: str | None = None
    """HTML page to write; the default is NAME-inspect.html in the current folder, and none with --json."""
    overwrite: bool = False
    """Replace an earlier page of understudy at that place."""
    json: bool = False
    """Print the facts as one JSON object."""
    shown: Annotated[int, Interval(ge=0, le=10**4)] = 4
    """Episodes on the page."""
    limit: Annotated[int, Ge(1)] = 500
    """Most episodes, and most video files per camera, to open, spread evenly over the dataset."""
    keep_ranges: str = ""
    """JSON file of keep-ranges: report which of its keys are episodes of this dataset, and which frames it keeps."""
    keep_rule: Literal["window", "start"] = "start"
    """As in a run's `data.keep_rule`: keep samples whose whole window lies in a range, or all that begin in one."""
    chunk_size: Annotated[int, Ge(1)] = 1
    """Frames of a window, as in a run's `data.chunk_size`."""

    video_path: str = ""
    """Path template of the videos, instead of the one in info.json."""
    data_path: str = ""
    """Path template of the data files, instead of the one in info.json."""
    version: Literal["", "v2.0", "v2.1", "v3.0", "v3.1"] = ""
    """Format of the dataset, instead of the one in info.json."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        found = [] if self.path else ["path: required, the folder or URL of a dataset: understudy inspect PATH"]
        if not self.keep_ranges and (self.chunk_size, self.keep_rule) != (1, "start"):
            found.append("keep_ranges: --chunk-size and --keep-rule need the file of ranges: --keep-ranges FILE")
        return found


def inspect(config: InspectConfig) -> None:
    """Print the facts and write the page."""
    from understudy.atomic import refuse_existing
    from understudy.data.format.catalog import Catalog
    from understudy.data.selection.select import Selection
    from understudy.optional_packages import require
    from understudy.report.dataset.examine import examine
    from understudy.report.dataset.page import page
    from understudy.report.dataset.text import format_facts
    from understudy.report.html import refuse_foreign, write_page

    if config.page or not config.json:
        require("report")
    if config.page:
        refuse_foreign(Path(config.page))
        refuse_existing(config.page, "page", config.overwrite)
    catalog = Catalog.open(
        config.path,
        video_path=config.video_path or None,
        data_path=config.data_path or None,
        version=config.version or None,
    )
    reach = 0, config.chunk_size - 1
    kept = (
        Selection(keep_ranges=config.keep_ranges, keep_rule=config.keep_rule).apply(catalog, reach).keep_report
        if config.keep_ranges
        else None
    )
    target = config.page if config.page or config.json else f"{catalog.name}-inspect.html"
    if target:
        refuse_foreign(Path(target))
        refuse_existing(target, "page", config.overwrite)
    facts = examine(catalog, config.limit)
    if kept is not None:
        facts["keep"] = asdict(kept) | {"told": kept.lines()}
    if target:
        write_page(Path(target), page(catalog, facts, config.shown, config.limit))
    if config.json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    print(format_facts(facts))
    print(f"page: {target}")
