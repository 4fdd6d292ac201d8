"""Findings of a check: `Finding`, `Place` and `Report`, and the names of all rules.

An *error* is a proof that the dataset contradicts itself or cannot be read. A *warning* is a
measured irregularity that a person should look at. A *note* is a fact about the dataset.
*undecided* is a rule without power on the dataset.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from typing import Any, Literal

import numpy as np

from understudy_data import Catalog

Severity = Literal["error", "warning", "note", "undecided"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

STOPS, WRONG, WEAK, SAME = range(4)
"""Ranks of what a broken rule does to a training, worst first (`effects.EFFECTS`)."""


@dataclass(frozen=True)
class Rule:
    """A rule of the check.

    Attributes:
        sound: a sound dataset, in a clause.
        effect: rank of a broken rule.
    """

    sound: str
    effect: int = SAME


RULES = {
    "metadata.unreadable": Rule("the files of meta/ can be parsed", STOPS),
    "metadata.totals": Rule("totals in info.json equal those of the tables"),
    "metadata.splits": Rule("splits in info.json cover the listed episodes"),
    "metadata.names": Rule("a feature has one name per dimension, without repeats"),
    "metadata.features": Rule("info.json declares the five index columns"),
    "metadata.oddity": Rule("metadata needs no guess to be read"),
    "metadata.views": Rule("views can be read, and select episodes of this dataset"),
    "metadata.training": Rule("a training with default settings accepts the features", STOPS),
    "files.missing": Rule("each named data and video file exists and is no git LFS pointer", STOPS),
    "files.orphan": Rule("each data and video file is named by the tables"),
    "files.unreadable": Rule(
        "each data file can be parsed, with the declared columns, dtypes and shapes", STOPS
    ),
    "files.columns": Rule("all data files have the same columns, and info.json declares them"),
    "files.camera": Rule("each declared camera has files", STOPS),
    "rows.count": Rule("an episode has as many rows as its length", STOPS),
    "rows.split": Rule("the rows of an episode are contiguous in one file", STOPS),
    "rows.orphan": Rule("each row belongs to a listed episode"),
    "rows.episode": Rule("the column episode_index is the episode's id", STOPS),
    "rows.frame_index": Rule("frame_index counts 0, 1, 2, ...", WRONG),
    "rows.index": Rule("index counts all frames, and dataset_from_index is its first value"),
    "episodes.ids": Rule("episode ids count 0, 1, 2, ..."),
    "episodes.empty": Rule("an episode has frames", WEAK),
    "episodes.range": Rule(
        "dataset_from_index and dataset_to_index enclose length frames, without overlap", WRONG
    ),
    "episodes.duplicate": Rule("no two episodes have the same rows, or nearly the same", WEAK),
    "episodes.idle": Rule("an episode does not rest at its end far longer than the others", WEAK),
    "episodes.outlier": Rule(
        "length, path, jerk, idle share and location of an episode resemble the others", WEAK
    ),
    "tasks.unknown": Rule("each task_index is in the task list", STOPS),
    "tasks.unused": Rule("each task has an episode"),
    "tasks.repeated": Rule("task texts differ from each other and are not blank", WEAK),
    "tasks.listed": Rule("the tasks listed for an episode are those of its rows", WRONG),
    "tasks.none": Rule("each episode has a task", WEAK),
    "clock.order": Rule("timestamps rise within an episode", WRONG),
    "clock.fps": Rule("timestamps advance by 1/fps", WRONG),
    "clock.gap": Rule("no two timestamps are more than 1.5 frames apart", WRONG),
    "clock.jitter": Rule("timestamps are multiples of 1/fps", WEAK),
    "clock.start": Rule("timestamps start at 0 in each episode"),
    "values.finite": Rule("numbers are finite", STOPS),
    "values.outlier": Rule("no value is far outside the range of the others", WEAK),
    "values.constant": Rule("a dimension of action or state varies"),
    "values.dead": Rule("a dimension that moves in most episodes moves in each", WEAK),
    "values.gripper": Rule(
        "a gripper that opens and closes in most episodes does so in each", WEAK
    ),
    "values.jump": Rule(
        "no dimension jumps between two frames where it otherwise moves smoothly", WEAK
    ),
    "values.saturation": Rule(
        "a dimension does not stick at a bound that other episodes exceed", WEAK
    ),
    "values.unit": Rule("a dimension has one unit in all episodes", WRONG),
    "values.sign": Rule(
        "a dimension of action and state moves in the same direction in all episodes", WRONG
    ),
    "values.offset": Rule("no dimension of one episode is shifted by a constant", WRONG),
    "values.lag": Rule("the delay from action to state is the same in all episodes", WRONG),
    "values.exchanged": Rule(
        "dimensions, and the actions of an episode, are not those of others", WRONG
    ),
    "values.copy": Rule("the action is not a copy of the state", WRONG),
    "values.frozen": Rule("the state changes while the action moves", WRONG),
    "values.noise": Rule(
        "no dimension of an episode is noisier or coarser than in the others", WEAK
    ),
    "values.zeros": Rule("no rows of zeros are next to other values", WEAK),
    "values.quaternion": Rule("quaternions have norm 1 in all episodes", WRONG),
    "statistics.missing": Rule("statistics are recorded for action and state"),
    "statistics.shape": Rule("recorded statistics have the shape of their feature"),
    "statistics.values": Rule("recorded statistics equal those of the rows"),
    "statistics.far": Rule(
        "recorded statistics normalize values to about 1: at most 1 % of a dimension exceed 20"
    ),
    "statistics.order": Rule(
        "recorded statistics are finite, with min <= quantiles <= max and std >= 0"
    ),
    "statistics.episodes": Rule("statistics recorded per episode equal those of its rows"),
    "statistics.images": Rule("recorded image statistics are in [0, 1] and match sampled images"),
    "videos.unreadable": Rule("each video file can be opened", STOPS),
    "videos.count": Rule("a video holds as many frames as its episodes have rows", STOPS),
    "videos.start": Rule("from_timestamp is the episode's place in its video", WRONG),
    "videos.length": Rule("to_timestamp - from_timestamp is length / fps"),
    "videos.encoding": Rule(
        "codec, size and rate of the videos are those in info.json, and equal in all files"
    ),
    "videos.shown": Rule(
        "videos are not to be mirrored, cropped or stretched, which readers do not do"
    ),
    "videos.streams": Rule("a file holds one video stream"),
    "images.decode": Rule("the first and the last image of an episode can be decoded", STOPS),
    "images.black": Rule("images are not black", WEAK),
    "images.frozen": Rule("images change while the robot moves", WEAK),
    "images.repeated": Rule("no image repeats for many frames while the robot moves", WEAK),
    "images.exchanged": Rule("images of one camera are not those of another", WRONG),
    "images.duplicate": Rule("no two episodes show the same images", WEAK),
    "images.boundary": Rule(
        "the scene changes where one episode of a video ends and the next begins", WRONG
    ),
    "images.shifted": Rule(
        "motion in the images and in the rows have the same delay in all episodes", WRONG
    ),
    "images.mirrored": Rule("images of an episode are not mirrored or rotated", WRONG),
    "images.channels": Rule("red and blue of an episode are not exchanged", WRONG),
    "images.rate": Rule("no image is shown for several frames throughout an episode", WEAK),
    "images.torn": Rule("no image, nor half of it, is of another moment", WRONG),
    "images.sharpness": Rule(
        "images of an episode are no more blurred than those of the others", WEAK
    ),
    "images.color": Rule("colors of an episode are those of the others", WEAK),
    "images.moved": Rule(
        "the pose of a camera is one in all episodes, unless the robot moves it", WEAK
    ),
    "images.noise": Rule("images of an episode are no noisier than those of the others", WEAK),
    "images.outlier": Rule("images of an episode resemble those of the others", WEAK),
    "depth.empty": Rule("depth images hold more than one value", WEAK),
    "depth.range": Rule("depth images are within the recorded statistics", WRONG),
    "sensors.file": Rule("each file of a sensor exists and can be read", STOPS),
    "sensors.episode": Rule(
        "samples of a sensor belong to the episodes, and each episode has some", WRONG
    ),
    "sensors.order": Rule("timestamps of a sensor rise within an episode", WRONG),
    "sensors.gap": Rule("the clock of a sensor has no gap", WEAK),
    "sensors.extent": Rule(
        "samples of a sensor reach from the first to the last frame of their episode", WEAK
    ),
    "sensors.finite": Rule("timestamps and values of a sensor are finite", WEAK),
    "sensors.constant": Rule(
        "values of a sensor change, in each episode if they do in the others", WEAK
    ),
}
"""Name of each rule -> the rule."""


@dataclass(frozen=True)
class Place:
    """Location of a finding. Empty fields do not apply.

    Attributes:
        episodes: ids, ascending.
        column: key of a column.
        dimension: name of a dimension of the column.
        camera: key of a camera.
        file: path under the dataset's root.
        frame: frame of the first episode.
    """

    episodes: tuple[int, ...] = ()
    column: str = ""
    dimension: str = ""
    camera: str = ""
    file: str = ""
    frame: int | None = None

    @classmethod
    def from_rows(
        cls,
        catalog: Catalog,
        rows: Sequence[int] | np.ndarray,
        column: str = "",
        dimension: str = "",
        **where: Any,
    ) -> "Place":
        """Make a place of the episodes of table rows, in any order; `where` has the other
        fields.
        """
        ids = catalog.episodes.ids[np.sort(np.asarray(rows, np.int64))]
        return cls(tuple(ids.tolist()), column, dimension, **where)

    def __str__(self) -> str:
        dimension = f"[{self.dimension}]" if self.dimension else ""
        parts = [self.file, self.camera, self.column + dimension]
        if self.episodes:
            unit = "episodes" if len(self.episodes) > 1 else "episode"
            parts.append(f"{unit} {list_ids(self.episodes)}")
        if self.frame is not None:
            parts.append(f"frame {self.frame}")
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Finding:
    """A broken rule at one place.

    Attributes:
        rule: a key of `RULES`.
        severity: "error", "warning" or "note"; "undecided" is that of `undecided`.
        message: the measured fact as one line, without the place.
        place: its location.
        measured: measured value, as JSON holds it; None where there are several.
        expected: value by the rule.
        fix: command or step that mends it.
        score: how bad, for ranking within a rule: larger is worse.
    """

    rule: str
    severity: Severity
    message: str
    place: Place = field(default_factory=Place)
    measured: Any = None
    expected: Any = None
    fix: str = ""
    score: float = 0.0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule is {self.rule!r}; give a key of RULES")


Findings = Iterator[Finding]
"""Findings of a rule, one after the other."""


def is_few(odd: np.ndarray, share: float = 0.2) -> bool:
    """Whether some of the flags (n,) are set, and no more than a share of them, or one."""
    return bool(odd.any() and odd.sum() <= max(1, share * len(odd)))


def undecided(rule: str, needs: float, unit: str, count: float, place: Place = Place()) -> Finding:
    """Return the entry of `Report.undecided` for a rule that has too little data: "needs 5
    episodes, 4 here".

    Args:
        rule: a key of `RULES`.
        needs: least number.
        unit: the counted thing as a plural noun, "episodes with motion".
        count: number in this dataset.
        place: column or camera, where the rule decides on others.
    """
    return Finding(
        rule,
        "undecided",
        f"needs {needs:g} {unit}, {count:g} here",
        place,
        measured=count,
        expected=needs,
    )


@dataclass(frozen=True)
class Report:
    """Result of a check.

    Attributes:
        root: address of the dataset.
        version: its format, "" where it cannot be read.
        episodes: number of episodes.
        frames: number of frames.
        read: name -> number of things that were read: "data_files", "rows", "sensor_files",
            "videos", "images".
        findings: worst first.
        undecided: rules that this dataset has too little data for, one entry per rule.
        ranking: most unusual episodes first (see `rules/episodes.py`), as JSON holds them.
        seconds: duration of the check.
        idle_share: share of idle frames (`motion.py`); None where no action or
            state was read.
        contents: the dataset described (`contents.py`); {} where its metadata cannot be read.
        catalog: the open dataset; None where its metadata cannot be read.
    """

    root: str
    version: str
    episodes: int
    frames: int
    read: dict[str, int]
    findings: tuple[Finding, ...]
    undecided: tuple[Finding, ...] = ()
    ranking: tuple[dict[str, Any], ...] = ()
    seconds: float = 0.0
    idle_share: float | None = None
    contents: dict[str, Any] = field(default_factory=dict)
    catalog: Catalog | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Number of findings by severity."""
        numbers = Counter(finding.severity for finding in self.findings)
        return {severity: numbers[severity] for severity in SEVERITIES}

    @property
    def is_sound(self) -> bool:
        """Whether there is no error."""
        return not self.counts["error"]

    @property
    def bad_episodes(self) -> tuple[int, ...]:
        """Ids of the episodes of all errors, ascending."""
        bad = set[int]()
        for finding in self.findings:
            if finding.severity == "error":
                bad.update(finding.place.episodes)
        return tuple(sorted(bad))

    @property
    def exclude(self) -> dict[str, str]:
        """Argument that leaves out the episodes of those errors whose fix names it: for `train`
        and `edit`, {} where there are none, or no other episode.
        """
        ids = set[int]()
        for finding in self.findings:
            if finding.severity == "error" and _LEAVE_OUT.search(finding.fix):
                ids.update(finding.place.episodes)
        if not ids or len(ids) == self.episodes:
            return {}
        listed = list_ids(sorted(ids), len(ids)).replace(",", "")
        flag = "exclude-episodes"
        return {"train": f"--data.{flag} {listed}", "edit": f"--{flag} {listed}"}

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-serialisable values."""
        return {
            "root": self.root,
            "format": self.version,
            "episodes": self.episodes,
            "frames": self.frames,
            "sound": self.is_sound,
            "counts": self.counts,
            "bad_episodes": list(self.bad_episodes),
            "exclude": self.exclude,
            "read": self.read,
            "seconds": round(self.seconds, 3),
            "idle_share": self.idle_share,
            "contents": to_plain(self.contents),
            "findings": [to_plain(asdict(finding)) for finding in self.findings],
            "undecided": [to_plain(asdict(finding)) for finding in self.undecided],
            "ranking": [to_plain(entry) for entry in self.ranking],
        }


def to_plain(value: Any) -> Any:
    """Convert a value to one that JSON holds: numpy numbers to Python's, numbers that are not
    finite to text.
    """
    if isinstance(value, dict):
        return {key: to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with errors first, then in the order of `RULES`, and the highest score first
    in a rule.
    """
    order = {rule: number for number, rule in enumerate(RULES)}
    return tuple(
        sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), order[f.rule], -f.score))
    )


def merge_undecided(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return one entry per rule, in the order of `RULES`: that of the least data. Several places
    leave none.
    """
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    merged = []
    for rule in sorted(by_rule, key=list(RULES).index):
        least = min(by_rule[rule], key=lambda finding: finding.measured)
        if len(by_rule[rule]) > 1:
            least = replace(least, place=Place())
        merged.append(least)
    return tuple(merged)


def list_ids(ids: Sequence[int], limit: int = 8) -> str:
    """Format ascending ids as "3, 12-19, 40", at most `limit` ranges."""
    ranges: list[tuple[int, int]] = []
    for i in ids:
        if ranges and i == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], i)
        else:
            ranges.append((i, i))
    shown = ", ".join(_format_range(first, last) for first, last in ranges[:limit])
    return shown if len(ranges) <= limit else f"{shown}, ... ({len(ids)} in all)"


def _format_range(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


EDIT = "understudy edit SRC OUT"
REWRITE = f"{EDIT} (writes index columns, timestamps, totals and statistics anew)"
RECOMPUTE = (
    f"{EDIT} (computes statistics anew), or train with the default of data.stats, which "
    "ignores recorded ones"
)
LOOK = (
    "look at the episode; if it is wrong, leave it out with --data.exclude-episodes, or "
    "understudy edit"
)
_MOST = 200
_LEAVE_OUT = re.compile("exclude[-_]|on-bad-episode|leave (the|these|its|their) episodes? out")
"""What a fix says that may be to leave the episodes of the finding out."""


def drop(episodes: Iterable[int]) -> str:
    """Return the command that writes the dataset without these episodes."""
    ids = list(episodes)
    if len(ids) > _MOST:
        return f"{EDIT} --exclude-bad FILE, with the output of `understudy check SRC --json`"
    return f"{EDIT} --exclude-episodes {' '.join(map(str, ids))}"


def restore(path: str, step: str = "") -> str:
    """Return the step for a broken or missing file: `step`, "" to get it again, or without its
    episodes.
    """
    step = step or f"download or copy {path} again"
    skip = ", or leave its episodes out: --data.on-bad-episode skip"
    return step if _LEAVE_OUT.search(step) else step + skip


def correct(entry: str, file: str = "meta/info.json") -> str:
    """Return the step for a wrong value in a metadata file."""
    return f"correct {entry} in {file}"


def fill(fix: str, root: str, leaves_none: bool = False) -> str:
    """Put the addresses of the dataset and of a new folder into a fix.

    Args:
        fix: the fix of a finding.
        root: address of the dataset.
        leaves_none: whether the finding is about all episodes, so that none may be left out.
    """
    if leaves_none and any(
        flag in fix for flag in ("--exclude-", "--data.on-bad-episode", "--data.exclude-episodes")
    ):
        if ", or leave" in fix:
            fix = fix.split(", or leave")[0]
        else:
            fix = "all episodes have it: repair the files, or record anew"
    name = root.rstrip("/").rpartition("/")[2]
    return (
        fix.replace("SRC OUT", f"{root} {name}-mended")
        .replace("check SRC", f"check {root}")
        .replace("view SRC", f"view {root}")
    )
