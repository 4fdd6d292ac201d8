"""Frames on an even clock, from the times of all streams; reads no value.

Frame k of an episode is at `start + k / fps`, rounded to a nanosecond. Its sample of a stream is
the last one whose time is at most the frame's; of equal times the last. A linear part also uses the
next sample, if it belongs to the episode and the step between both is no gap. An episode begins
when each stream has a sample, and ends with the first stream that ends. A step longer than
`max_age` is a gap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from understudy_tools.imports.bag_file import DAY, FAR
from understudy_tools.imports.layout import Layout
from understudy_tools.imports.limits import MAX_FRAMES
from understudy_tools.imports.recording import NANO, RecordingError, Times, even_times
from understudy_tools.imports.settings import TASK

EVER = int(np.iinfo(np.int64).max) // 4
"""A time after all others."""
_USUAL = 2.5  # usual steps of a gap, as `check` counts them for sensors


@dataclass
class Episode:
    """Frames of one episode.

    Attributes:
        times: time of each frame in nanoseconds, int64 (F,).
        picks: part -> number of its sample at each frame, int64 (F,).
        nexts: part -> number of the next sample of a linear part; that of the sample itself where
            it is held.
    """

    times: np.ndarray
    picks: dict[str, np.ndarray]
    nexts: dict[str, np.ndarray]


@dataclass
class Timeline:
    """All episodes of a recording.

    Attributes:
        clocks: part -> time of each sample, int64 (N,).
        episodes: the episodes.
        findings: faults that do not end the import.
    """

    clocks: dict[str, np.ndarray]
    episodes: list[Episode] = field(default_factory=list)
    findings: list[RecordingError] = field(default_factory=list)


def make_timeline(
    layout: Layout, times: Mapping[str, Times], gaps: str, spans: Sequence[tuple[int, int]]
) -> Timeline:
    """Place frames on the clocks of a recording.

    Args:
        layout: its parts.
        times: stream -> its times.
        gaps: "error", "cut" an episode in two, or "hold" the last sample.
        spans: times [start, stop) of episodes.

    Raises:
        RecordingError: clocks fall or differ, a stream has a gap, or an episode has no frame.
    """
    mapping = layout.mapping
    timeline = Timeline({}, [], _check_clocks(mapping.clock, times))
    ages = {}
    is_one = all(len(of_stream.log) == 1 for of_stream in times.values())
    for name, part in mapping.parts.items():
        timeline.clocks[name] = times[part.stream].used(mapping.clock) - round(part.delay * NANO)
        steps = np.diff(timeline.clocks[name])
        if name == TASK or part.max_age or is_one:
            ages[name] = (part.max_age or np.inf) * NANO
        elif steps.any():
            ages[name] = _USUAL * float(np.median(steps[steps > 0]))
        else:
            fix = "give max_age in the mapping; .inf holds for ever"
            raise RecordingError("rate", "has one time, and no usual step", part.stream, fix=fix)
    for lower, upper in spans:
        _place_span(timeline, layout, ages, gaps, lower, upper)
    if not timeline.episodes:
        # over all of it
        raise next(finding for finding in timeline.findings if finding.kind in ("gap", "time"))
    return timeline


def _check_clocks(clock: str, times: Mapping[str, Times]) -> list[RecordingError]:
    """Refuse the clock in use if it falls or is two. Return the same faults of the other, and
    repeated times.
    """
    findings = []
    offsets = dict[str, float]()
    for stream, of_stream in times.items():
        used = of_stream.used(clock)
        for values in (of_stream.log, of_stream.header):
            steps = np.diff(values) if values is not None and len(values) > 1 else np.ones(1)
            row = int(np.argmin(steps))
            lowest = int(steps.min())
            if lowest > 0 or (lowest == 0 and values is not used):
                continue
            assert values is not None
            if lowest:
                kind = "reset"
                problem = f"its clock goes back by {-lowest / NANO:.3f} s"
                fix = "cut the recording there, or use the other `clock`"
            else:
                kind = "duplicates"
                problem = f"{(steps == 0).sum()} times repeat"
                fix = ""
            findings.append(RecordingError(kind, problem, stream, float(values[row]) / NANO, fix))
            if lowest and values is used:
                raise findings[-1]
        if of_stream.header is not None:
            offsets[stream] = float(np.median(of_stream.log - of_stream.header))
        elif clock == "header":
            offsets[stream] = 0.0
    if offsets and max(offsets.values()) - min(offsets.values()) > NANO:
        listed = ", ".join(f"{stream} {offset / NANO:.3f} s" for stream, offset in offsets.items())
        farthest = max(offsets, key=lambda stream: abs(offsets[stream]))
        problem = f"stamps are of two clocks: log time less stamp is {listed}"
        findings.append(RecordingError("clocks", problem, farthest, fix="clock: log"))
        if clock == "header":
            raise findings[-1]
    return findings


def _place_span(
    timeline: Timeline, layout: Layout, ages: Mapping[str, float], gaps: str, lower: int, upper: int
) -> None:
    """Add the frames between two times: one episode, or several with `gaps` "cut"."""
    clocks = timeline.clocks
    parts = layout.mapping.parts
    late = max(clocks, key=lambda name: int(clocks[name][0]))
    lasts = [int(clock[-1]) for name, clock in clocks.items() if np.isfinite(ages[name])]
    start = max(lower, int(clocks[late][0]))
    end = min([upper - 1, *(lasts or [int(clocks[late][-1])])])
    if end < start:
        problem = f"begins {(start - end) / NANO:.3f} s after another stream, or the episode, ends"
        raise RecordingError("empty", problem, parts[late].stream, start / NANO)
    every = np.sort(np.concatenate(list(clocks.values())))
    middle = int(every[len(every) // 2])
    far = FAR * DAY
    pieces = [(start, end)]
    gaps_of_parts: list[tuple[int, int, str]] = []
    for name, clock in clocks.items():
        rows = np.flatnonzero(np.diff(clock) > ages[name]).tolist()
        gaps_of_parts += [(int(clock[row]), int(clock[row + 1]), name) for row in rows]
    for gap_start, gap_end, name in sorted(gaps_of_parts):
        if gap_start >= end or gap_end <= start:
            continue
        fix = "--gaps cut or hold, or a larger max_age in the mapping"
        problem = f"has a gap of {(gap_end - gap_start) / NANO:.3f} s"
        kind = "gap"
        time = gap_start
        if gap_end - gap_start > far:
            time = max(gap_start, gap_end, key=lambda of: abs(of - middle))
            kind = "time"
            fix = (
                "mend the clock of its source, and leave these messages out; --gaps cut splits "
                "there"
            )
            problem = (
                f"is stamped {abs(time - middle) / DAY:,.0f} days from the middle of the recording"
            )
        timeline.findings.append(
            RecordingError(kind, problem, parts[name].stream, time / NANO, fix)
        )
        if gaps == "error" or (gaps == "hold" and kind == "time"):
            raise timeline.findings[-1]
        if gaps == "cut":
            begin, stop = pieces.pop()
            pieces += [(begin, gap_start), (max(begin, gap_end), stop)]
    timeline.episodes += [
        _place(clocks, ages, layout, *piece) for piece in pieces if piece[0] <= piece[1]
    ]
    near = [clock[np.abs(clock - middle) <= far] for clock in clocks.values()]
    firsts = [int(clock[0]) for clock in near if len(clock)]
    whole = (
        max(lower, min(firsts, default=start)),
        min(upper - 1, max(min(max(lasts, default=end), middle + far), end)),
    )
    if (lost := max(start - whole[0], whole[1] - end)) > NANO:
        problem = f"{lost / NANO:.3f} s at an end of the episode lack a stream, and are left out"
        timeline.findings.append(
            RecordingError("trimmed", problem, parts[late].stream, start / NANO)
        )


def _place(
    clocks: Mapping[str, np.ndarray],
    ages: Mapping[str, float],
    layout: Layout,
    start: int,
    end: int,
) -> Episode:
    """Return the frames from `start` to `end`."""
    # whose rounded times are in reach
    count = ((end - start + 1) * 2 * layout.fps - layout.fps - 1) // (2 * NANO) + 1
    if count > MAX_FRAMES:
        problem = f"an episode of {count:,} frames, the limit is {MAX_FRAMES:,}"
        raise RecordingError(
            "size", problem, time=start / NANO, fix="split the recording, or correct its clock"
        )
    times = start + even_times(count, layout.fps)
    picks = {
        name: np.searchsorted(clock, times, side="right") - 1 for name, clock in clocks.items()
    }
    nexts = dict(picks)
    for name in layout.linear:
        clock = clocks[name]
        pick = picks[name]
        next_pick = np.minimum(pick + 1, len(clock) - 1)
        is_near = (
            (clock[pick] < times)
            & (clock[next_pick] <= end)
            & (clock[next_pick] - clock[pick] <= ages[name])
        )
        nexts[name] = np.where(is_near, next_pick, pick)
    return Episode(times, picks, nexts)
