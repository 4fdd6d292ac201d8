"""Write recordings as a LeRobot v3.0 dataset.

Frames have two columns beside the mapping's: `source.time_ns`, the frame's time on the recording's
clock, and `source.age_ns`, the age of each part's sample. Numeric parts with a clock of their own
are kept as sensors `raw.<part>`: all samples from the first frame's to the last one's. From both,
other frames can be made.

meta/import.json has the mapping, the rule, the clocks and findings of each recording, and the
origin of each episode.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy_base import __version__, create_folder, strip_credentials
from understudy_data import Catalog, DatasetFiles, EpisodeWriter
from understudy_tools.imports.frames import Held, read_frames
from understudy_tools.imports.layout import AGE, TIME, Layout, read_layout
from understudy_tools.imports.recording import NANO, Recording, RecordingError, Times
from understudy_tools.imports.settings import TASK, ImportConfig, ImportMapping, Marker
from understudy_tools.imports.timeline import EVER, Episode, Timeline, make_timeline
from understudy_tools.imports.values import follow

PATH = "meta/import.json"
_RULE = (
    "frame k is at start + k / fps; each part has its last sample not after the frame, age = frame "
    "- sample; linear parts go towards the next sample of raw.<part>, unless that step is a gap or "
    "it is after the episode"
)


def import_recordings(
    recordings: Sequence[Recording],
    mapping: ImportMapping,
    config: ImportConfig,
    command: Sequence[str] = (),
    skipped: Sequence[RecordingError] = (),
    count: Callable[[int], None] = lambda size: None,
) -> dict[str, Any]:
    """Write recordings into the new folder `config.paths[-1]`, which appears complete or not at
    all.

    Args:
        recordings: the recordings, in the sequence of the episodes.
        mapping: streams -> features.
        config: how to write.
        command: words of the command line.
        skipped: faults of files that are left out.
        count: called with bytes of the recordings as they are done.

    Returns:
        The content of meta/import.json.

    Raises:
        RecordingError: a recording has a fault.
        FileExistsError: the folder exists.
    """
    faults = [(fault, 0) for fault in skipped]
    accounts = list[dict[str, Any]]()
    with create_folder(Path(config.paths[-1])) as root, ExitStack() as stack:
        importer: _Importer | None = None
        for recording in recordings:
            account: dict[str, Any] = {
                "source": recording.where,
                "bytes": recording.size,
                "episodes": [],
            }
            accounts.append(account)
            try:
                with recording:
                    if importer is None:
                        importer = _Importer(
                            root, read_layout(recording, mapping, config), recording, config, stack
                        )
                    importer.write(recording, account, count)
            except RecordingError as fault:
                if not config.skip_bad:
                    raise
                if importer is not None:
                    importer.writer.discard_episode()
                faults.append((fault, len(account["episodes"])))
        if importer is None or not importer.writer.episodes:
            raise faults[0][0]
        content = {
            "format": 1,
            "command": [strip_credentials(word) for word in command],
            "versions": {"understudy": __version__},
            "mapping": asdict(importer.layout.mapping),
            "rule": _RULE,
            **{name: sorted(getattr(importer.layout, name)) for name in ("linear", "scaled")},
            "gaps": config.gaps,
            "counts": {name: getattr(importer.writer, name) for name in ("episodes", "frames")},
            "unused_streams": sorted(importer.unused),
            "recordings": accounts,
            "skipped": [
                fault.describe() | {"episodes_kept": episodes} for fault, episodes in faults
            ],
        }
        DatasetFiles(root).write_json(PATH, json.loads(json.dumps(content, default=str)))
        stack.close()
    return content


class _Importer:
    """Writes recordings of one layout into a folder.

    Args:
        root: the folder.
        layout: features of the dataset.
        first: the first recording.
        config: how to write.
        stack: closes the files.
    """

    def __init__(
        self, root: Path, layout: Layout, first: Recording, config: ImportConfig, stack: ExitStack
    ) -> None:
        self.layout = layout
        self._config = config
        mapping = layout.mapping
        settings = {name: getattr(config, name) for name in ("codec", "gop", "crf")}
        robot = mapping.robot_type or None
        try:
            writer = EpisodeWriter(
                root, fps=layout.fps, features=layout.features, robot_type=robot, **settings
            )
        except ValueError as error:
            raise RecordingError(
                "shape", str(error), fix="--storage image takes any size"
            ) from error
        self.writer = stack.enter_context(writer)
        self._used = {*mapping.streams, mapping.time}
        if mapping.episodes:
            self._used.add(mapping.episodes.stream)
        self.unused = set[str]()
        self._rate = first.rate or layout.fps
        is_even = not first.has_clock and self._rate == layout.fps
        names = []
        if not is_even:
            names = [name for name in mapping.parts if name not in layout.images | {TASK}]
        self._sensors = dict[str, pq.ParquetWriter]()
        entries = {}
        for name in names:
            sample = layout.samples[name]
            path = f"sensors/raw.{name}.parquet"
            interpolation = "linear" if name in layout.linear else "hold"
            entries[f"raw.{name}"] = {
                "path": path,
                "dtype": str(sample.dtype),
                "shape": list(sample.shape),
                "names": layout.names[name],
                "interpolation": interpolation,
            }
            kind = pa.list_(pa.from_numpy_dtype(sample.dtype), len(sample))
            schema = pa.schema(
                {"episode_index": pa.int64(), "timestamp": pa.float64(), "value": kind}
            )
            (root / path).parent.mkdir(exist_ok=True)
            self._sensors[name] = stack.enter_context(pq.ParquetWriter(root / path, schema))
        if entries:
            DatasetFiles(root).write_json(Catalog.SENSORS, entries)

    def write(
        self, recording: Recording, account: dict[str, Any], count: Callable[[int], None]
    ) -> None:
        """Write the episodes of an opened recording."""
        layout = self.layout
        mapping = self.layout.mapping
        self.unused |= recording.kinds.keys() - self._used
        timeline = self._timeline(recording, account)
        held: Held = {name: {} for name in mapping.parts}
        noted = len(timeline.findings)
        total = sum(len(episode.times) for episode in timeline.episodes)
        last_text = ""
        for number, frame, parts in read_frames(recording, layout, timeline, held):
            episode = timeline.episodes[number]
            ages = [
                episode.times[frame] - clock[episode.picks[name][frame]]
                for name, clock in timeline.clocks.items()
            ]
            row = {}
            for key in mapping.features:
                values = [parts[name] for name in mapping.names(key)]
                row[key] = values[0] if len(values) == 1 else np.concatenate(values)
            text = parts.get(TASK) or mapping.task or recording.stated_task()
            if not text:
                raise RecordingError(
                    "task", "states no task", fix="--task TEXT, or task or task_from in the mapping"
                )
            if mapping.episodes and frame and text != last_text:
                problem = (
                    f"changes to {text!r:.60} in frame {frame} of episode {self.writer.episodes}"
                )
                late = RecordingError(
                    "task",
                    problem,
                    layout.mapping.parts[TASK].stream,
                    int(episode.times[frame]) / NANO,
                )
                account["findings"].append(late.replaced(where=recording.where).describe())
            last_text = text
            try:
                self.writer.add_frame(
                    {**row, TIME: episode.times[frame], AGE: np.array(ages)}, text
                )
            except ValueError as error:
                raise RecordingError(
                    "value", str(error), time=int(episode.times[frame]) / NANO
                ) from error
            if frame == len(episode.times) - 1:
                saved = self.writer.save_episode()
                self._write_sensors(saved, episode, timeline, held)
                account["episodes"].append(
                    {"episode": saved, "start_ns": int(episode.times[0]), "frames": frame + 1}
                )
            count(recording.size // total)
        account["findings"] += [
            of.replaced(where=recording.where).describe() for of in timeline.findings[noted:]
        ]
        count(recording.size % total)

    def _timeline(self, recording: Recording, account: dict[str, Any]) -> Timeline:
        """Read the clocks of a recording, place its frames, and note both."""
        layout = self.layout
        mapping = self.layout.mapping
        images = {mapping.parts[name].stream for name in layout.images}
        for stream, kind in layout.kinds.items():
            recording.require(stream)
            other = recording.kinds[stream]
            # which are decoded: their bytes may differ in number
            if other != kind and stream not in images:
                raise RecordingError("shape", f"is {other}, {kind} in the first recording", stream)
        recording.rate = recording.rate or layout.fps
        if not recording.has_clock and recording.rate != self._rate:
            problem = (
                f"has {recording.rate:g} rows per second, {self._rate:g} in the first recording"
            )
            raise RecordingError(
                "rate", problem, fix="import it into a dataset of its own, or state `source_fps`"
            )
        times = recording.scan(mapping.streams)
        for stream, clock in times.items():
            if not len(clock.log):
                raise RecordingError("missing", "has no sample", stream)
        account["streams"] = {stream: _describe(clock) for stream, clock in times.items()}
        spans = [(-EVER, EVER)]
        findings = list[RecordingError]()
        if mapping.episodes:
            spans = _spans(recording, mapping.episodes, mapping.clock, findings)
        timeline = make_timeline(layout, times, self._config.gaps, spans)
        timeline.findings += [*findings, *recording.findings]
        account["findings"] = [
            of.replaced(where=recording.where).describe() for of in timeline.findings
        ]
        return timeline

    def _write_sensors(self, saved: int, episode: Episode, timeline: Timeline, held: Held) -> None:
        """Write the samples of an episode, of equal times the last, and forget them."""
        for name, file in self._sensors.items():
            first = int(episode.picks[name][0])
            last = int(episode.nexts[name][-1])
            times = timeline.clocks[name][first : last + 1] - int(episode.times[0])
            rows = np.flatnonzero(np.append(np.diff(times) > 0, True))
            values = pa.array(np.concatenate([held[name][first + row] for row in rows.tolist()]))
            column = pa.FixedSizeListArray.from_arrays(values, type=file.schema.field("value").type)
            file.write_table(
                pa.table(
                    [np.full(len(rows), saved), times[rows] / NANO, column], schema=file.schema
                )
            )
        for name in held.keys() - self.layout.images:
            last = int(episode.nexts[name][-1])
            held[name] = {number: value for number, value in held[name].items() if number >= last}


def _describe(clock: Times) -> dict[str, Any]:
    """Return the facts of a clock: seconds between its samples, and least, median and largest log
    time less stamp.
    """
    steps = np.diff(clock.log) / NANO if len(clock.log) > 1 else np.zeros(1)
    facts: dict[str, Any] = {
        "samples": len(clock.log),
        "first_ns": int(clock.log[0]),
        "last_ns": int(clock.log[-1]),
    }
    facts |= {"usual_step": float(np.median(steps)), "longest_step": float(steps.max())}
    if clock.header is not None:
        facts["offset"] = np.quantile((clock.log - clock.header) / NANO, [0, 0.5, 1]).tolist()
    return facts


def _spans(
    recording: Recording, marker: Marker, clock: str, findings: list[RecordingError]
) -> list[tuple[int, int]]:
    """Return the times [start, stop) of the episodes that a stream marks; add a finding where 0
    marks none.
    """
    recording.firsts([marker.stream])
    times = recording.scan([marker.stream])[marker.stream].used(clock).tolist()
    values = [
        np.asarray(follow(load(), marker.field[0])).item()
        for _, _, load in recording.samples([marker.stream])
    ]
    rows = [row for row, value in enumerate(values) if not row or value != values[row - 1]]
    ends = [*(times[row] for row in rows[1:]), EVER]
    zeros = [
        row
        for row in rows
        if values[row] == 0 and values[row] is not False and values[row] in marker.idle
    ]
    if zeros:
        problem = f"{len(zeros)} stretches of the value 0 are left out"
        fix = "where 0 is an episode, set `idle` to other values"
        findings.append(
            RecordingError("trimmed", problem, marker.stream, times[zeros[0]] / NANO, fix)
        )
    if spans := [
        (times[row], end) for row, end in zip(rows, ends) if values[row] not in marker.idle
    ]:
        return spans
    listed = ", ".join(sorted({str(value)[:40] for value in values})[:10])
    raise RecordingError(
        "empty",
        f"marks no episode: its values are {listed}",
        marker.stream,
        fix="`idle` lists others",
    )
