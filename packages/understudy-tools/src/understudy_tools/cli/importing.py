"""`understudy import SOURCE [SOURCE ...] OUT`: bags, HDF5 and Zarr files as a LeRobot dataset."""

import json
import sys
from dataclasses import replace
from typing import Any

from understudy_base import Progress, plural
from understudy_tools.imports.recording import RecordingError
from understudy_tools.imports.settings import ImportConfig, ImportMapping, read_mapping


def import_(config: ImportConfig) -> None:
    """Write the dataset and print a summary, or print a mapping."""
    from understudy_tools.imports.sources import default_mapping, open_sources, propose
    from understudy_tools.imports.write import import_recordings

    mapping = read_mapping(config.mapping) if config.mapping else ImportMapping()
    skipped: list[RecordingError] = []
    sources = config.paths if config.propose else config.paths[:-1]
    tolerated = skipped if config.skip_bad else None
    recordings, layout = open_sources(sources, mapping, tolerated)
    if config.propose:
        print(propose(recordings[0], layout))
        return
    mapping = mapping if config.mapping else default_mapping(recordings, layout)
    if config.task:
        mapping = replace(mapping, task=config.task, task_from=None)
    with Progress(sum(recording.size for recording in recordings), "import", "byte") as bar:
        command = ["understudy", *sys.argv[1:]]
        imported = import_recordings(recordings, mapping, config, command, skipped, bar.update)
    if config.json:
        print(json.dumps(imported, ensure_ascii=False, default=str))
        return
    counts = ", ".join(plural(number, unit[:-1]) for unit, number in imported["counts"].items())
    print(f"{config.paths[-1]}: {counts}")
    offsets_of_streams: dict[str, list[Any]] = {}
    for recording in imported["recordings"]:
        for stream, clock in recording.get("streams", {}).items():
            if "offset" in clock:
                offsets_of_streams.setdefault(stream, []).append(clock["offset"])
    for stream, offsets in offsets_of_streams.items():
        least = min(offset[0] for offset in offsets)
        largest = max(offset[2] for offset in offsets)
        print(f"  {stream}: recorded {least:.3f} to {largest:.3f} s after its stamp")
    for recording in imported["recordings"]:
        for fault in recording.get("findings", ()):
            print(f"  {fault['kind']}: {fault['message']}")
    for fault in imported["skipped"]:
        episodes = fault["episodes_kept"]
        after = f" after {plural(episodes, 'episode')}" if episodes else ""
        print(f"  left out{after}, {fault['kind']}: {fault['message']}")
    if unused := imported["unused_streams"]:
        print(f"  streams that no feature uses: {', '.join(unused)}")
