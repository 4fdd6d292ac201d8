"""Settings of `understudy import`, and the mapping file.

A stream is a topic of a bag, or a key of an HDF5 or Zarr file. A feature is one part or several;
the vectors of its parts follow each other.

    fps: 20
    task: pick up the cube
    features:
      observation.images.front: /camera/image_raw/compressed
      observation.state:
        - {stream: /joint_states, field: position, joints: [shoulder, elbow]}
        - {stream: /gripper, field: data}
      action: {stream: /commands, field: points.0.positions, names: [shoulder, elbow, gripper]}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from understudy_base import is_taken
from understudy_kit import Ge, Gt, Interval, Positional, complete, read_file, validate

TASK = "task"
"""Name of the part with the task text."""


@dataclass(frozen=True)
class Part:
    """One stream of a feature."""

    stream: str
    """Topic, or key below the episode's group."""
    field: tuple[str, ...] = ()
    """Dotted paths of numbers in a message, as in `points.0.positions`; their values follow each
    other.
    """
    joints: tuple[str, ...] = ()
    """Joints of a message with names, picked and ordered by name; the default is all, as in the
    first message.
    """
    names: tuple[str, ...] = ()
    """Names of the values, where the recording has none."""
    resample: Literal["", "past", "linear"] = ""
    """Value of a frame: the last sample, or between two. The default is linear for joints, past for
    all others.
    """
    max_age: Annotated[float, Gt(0)] | None = None
    """Seconds of a step from which it is a gap; .inf for none. The default is 2.5 usual steps."""
    delay: float = 0.0
    """Seconds to subtract from the stream's clock: a latency that is known."""
    color: Literal["", "rgb", "bgr"] = ""
    """Sequence of color channels where the recording does not say it; arrays are RGB by default."""


@dataclass(frozen=True)
class Marker:
    """A stream that bounds episodes: each change of its value begins another one."""

    stream: str
    field: tuple[str, ...] = ("data",)
    idle: tuple[Any, ...] = (False, "", "stop")
    """Values between episodes; these frames are left out."""


@dataclass(frozen=True)
class ImportMapping:
    """Streams of a recording as features of a dataset."""

    features: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    fps: Annotated[int, Interval(ge=1, le=1000)] | None = None
    """Frames per second of the dataset."""
    source_fps: Annotated[float, Gt(0)] | None = None
    """Rows per second of an HDF5 or Zarr file without a clock; the default is that of the file, or
    `fps`.
    """
    time: str = ""
    """Key with the seconds of each row in an HDF5 or Zarr file."""
    clock: Literal["log", "header"] = "log"
    """Clock of a bag: the time at which a message was recorded, or the stamp in its header."""
    task: str = ""
    """Task text of all frames."""
    task_from: Part | None = None
    """Stream with the task text."""
    episodes: Marker | None = None
    """Stream that bounds episodes; without it each recording is one."""
    robot_type: str = ""
    ros_distro: str = ""
    """Release of ROS 2 whose message types to use for a bag that does not hold them, as in
    `humble`.
    """

    def problems(self) -> list[str]:
        """List errors in the mapping, one line each."""
        empty = [
            f"features.{key}: give a stream" for key, parts in self.features.items() if not parts
        ]
        return empty if self.features else ["features: required, at least one"]

    @property
    def parts(self) -> dict[str, Part]:
        """Part name -> part: the feature's key, numbered where it has several; `task` for the
        text.
        """
        parts = dict[str, Part]()
        for key in self.features:
            parts.update(zip(self.names(key), self.features[key]))
        if self.task_from:
            parts[TASK] = self.task_from
        return parts

    def names(self, key: str) -> list[str]:
        """Return the names of a feature's parts."""
        count = len(self.features[key])
        return [key] if count == 1 else [f"{key}.{number}" for number in range(count)]

    @property
    def streams(self) -> list[str]:
        """Streams of frames."""
        return list(dict.fromkeys(part.stream for part in self.parts.values()))


def read_mapping(path: str) -> ImportMapping:
    """Read a mapping file. A part may be its stream alone, and a list with one item the item
    alone.
    """

    def part(value: Any) -> Any:
        value = {"stream": value} if isinstance(value, str) else value
        alone = isinstance(value, dict) and isinstance(value.get("field"), str)
        return {**value, "field": [value["field"]]} if alone else value

    def parts(value: Any) -> list[Any]:
        values = value if isinstance(value, list) else [value]
        return list(map(part, values))

    content = read_file(path)
    if isinstance(features := content.get("features"), dict):
        content["features"] = {key: parts(value) for key, value in features.items()}
    content |= {name: part(content[name]) for name in ("task_from", "episodes") if name in content}
    return complete(validate(ImportMapping, content, path), path)


@dataclass(frozen=True)
class ImportConfig:
    """Write ROS bags, HDF5 or Zarr files as a LeRobot v3.0 dataset.

    Several files are several episodes. Frames are on an even clock. Each has the last sample of
    each stream, and joints between two; columns hold its time and the age of each sample. The
    output is a new folder, which appears complete or not at all. docs/importing.md has the mapping
    file, and the layouts that need none.
    """

    paths: Positional[tuple[str, ...]] = ()
    """Files and folders to read (MCAP, db3, .bag, HDF5, Zarr), then the folder to write."""
    mapping: str = ""
    """Mapping file (YAML, TOML or JSON): streams -> features. robomimic, LIBERO, ALOHA and UMI
    layouts need none.
    """
    propose: bool = False
    """Write nothing: print a mapping file for one source; of a folder, for its first recording."""
    fps: Annotated[int, Interval(ge=1, le=1000)] | None = None
    """Frames per second; the default is that of the mapping, or of the file where it states one."""
    task: str = ""
    """Task text of all frames; the default is that of the mapping or of the file."""
    gaps: Literal["error", "cut", "hold"] = "error"
    """A stream that pauses: end the import, cut the episode in two, or hold its last sample."""
    skip_bad: bool = False
    """Leave out recordings with a fault, and list them, instead of ending at the first."""
    storage: Literal["video", "image"] = "video"
    """Images as video, or as PNG in the rows: lossless, of any size."""
    codec: Literal["libsvtav1", "libx264", "libx265"] = "libsvtav1"
    """Encoder of the video files."""
    gop: Annotated[int, Ge(1)] = 2
    """Frames from key frame to key frame."""
    crf: Annotated[int, Interval(ge=0, le=63)] | None = None
    """Quality on the encoder's own scale, less is better."""
    json: bool = False
    """Print the summary as one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        if len(self.paths) < 2 - self.propose:
            return [
                "paths: required, the recordings and the folder to write: understudy import SOURCE "
                "OUT"
            ]
        if self.propose:
            if len(self.paths) == 1:
                return []
            return ["paths: give one source with --propose, not " + ", ".join(self.paths)]
        out = Path(self.paths[-1])
        errors = []
        if is_taken(out):
            errors.append(f"paths: {out} exists; name a new folder, nothing is overwritten")
        inside = [
            path for path in self.paths[:-1] if out.resolve().is_relative_to(Path(path).resolve())
        ]
        return errors + [
            f"paths: {out} is inside the source {path}; name a folder elsewhere" for path in inside
        ]
