"""`understudy import SOURCE [SOURCE ...] OUT`: bags, HDF5 and Zarr files as a LeRobot dataset."""

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from understudy.imports.recording import RecordingError
from understudy.imports.settings import ImportConfig, ImportMapping, read_mapping
from understudy.plural import plural
from understudy.progress import Progress

if TYPE_CHECKING:
    from understudy.imports.write import Imported


def import_(config: ImportConfig) -> None:
    """Write the dataset and print a summary, or print a mapping."""
    from understudy.config.schema import dump_yaml
    from understudy.imports.bags import Bag
    from understudy.imports.sources import default_mapping, open_sources, propose
    from understudy.imports.write import import_recordings

    mapping = read_mapping(config.mapping) if config.mapping else ImportMapping()
    skipped: list[RecordingError] = []
    sources = config.paths if config.propose else config.paths[:-1]
    recordings, layout = open_sources(sources, mapping, skipped if config.skip_bad else None)
    if config.propose:
        first = recordings[0]
        print(propose(first) if isinstance(first, Bag) else dump_yaml(default_mapping(first, layout)).rstrip())
        return
    mapping = mapping if config.mapping else default_mapping(recordings[0], layout)
    if config.task:
        mapping = replace(mapping, task=config.task, task_from=None)
    with Progress(sum(recording.size for recording in recordings), "import", "byte") as bar:
        command = ["understudy", *sys.argv[1:]]
        imported = import_recordings(recordings, mapping, config, command, skipped, bar.update)
    _print(config, imported)


def _print(config: ImportConfig, imported: "Imported") -> None:
    """Print counts, findings and streams that are left out."""
    counts = {"episodes": imported.episodes, "frames": imported.frames, "tasks": imported.tasks}
    faults = {"finding": imported.findings, "left out": imported.skipped}
    if config.json:
        described = {name: [fault.describe() for fault in of] for name, of in faults.items()}
        print(
            json.dumps({"root": config.paths[-1], **counts, **described, "unused": imported.unused}, ensure_ascii=False)
        )
        return
    print(f"{config.paths[-1]}: {', '.join(plural(number, unit[:-1]) for unit, number in counts.items())}")
    for name, of in faults.items():
        for fault in of:
            print(f"  {name}, {fault.kind}: {fault}")
    if imported.unused:
        print(f"  streams that no feature uses: {', '.join(imported.unused)}")
