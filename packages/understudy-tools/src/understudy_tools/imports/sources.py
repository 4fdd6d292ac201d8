"""Files and folders -> recordings, with the default mapping of their layout."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from understudy_tools.imports.bags import SUFFIXES, Bag, by_number
from understudy_tools.imports.hdf5 import HDF5, hdf5_episodes
from understudy_tools.imports.inside import require_inside
from understudy_tools.imports.recording import Recording, RecordingError
from understudy_tools.imports.settings import ImportMapping, Part
from understudy_tools.imports.zarr_files import zarr_episodes

_LAYOUTS = {
    "robomimic": (
        "obs/robot0_eef_pos",
        "obs/robot0_eef_quat",
        "obs/robot0_gripper_qpos",
        "actions",
    ),
    "libero": ("obs/ee_pos", "obs/ee_ori", "obs/gripper_states", "actions"),
    "aloha": ("observations/qpos", "action"),
    "umi": (
        "robot0_eef_pos",
        "robot0_eef_rot_axis_angle",
        "robot0_gripper_width",
        "state",
        "action",
    ),
}
"""Layout -> keys of the state, and of the action."""
_IMAGE = re.compile(r"obs/(\w+?)_(?:image|rgb)|observations/images/(\w+)|(camera\d+)_rgb|(img)")


def open_sources(
    paths: Sequence[str], mapping: ImportMapping, skipped: list[RecordingError] | None = None
) -> tuple[list[Recording], str]:
    """Return the recordings of files and folders in sequence, and their layout.

    Args:
        paths: the files and folders.
        mapping: settings of their readers.
        skipped: takes the faults of unreadable files; None: they are raised.

    Raises:
        RecordingError: a path is none of the formats, or layouts differ.
    """
    recordings: list[Recording] = []
    layouts: dict[str, Path] = {}
    for root, path in _with_roots(paths):
        kind = _kind(path)
        episodes: Sequence[Recording] = []
        try:
            require_inside(path, root)
            if not kind and path.is_dir():
                fix = "give this folder alone; `ros2 bag reindex` writes a lost metadata.yaml"
                raise RecordingError("layout", "is no recording, and holds some", fix=fix)
            if kind == "bag":
                episodes = [Bag(path, mapping.ros_distro)]
            else:
                open_episodes = hdf5_episodes if kind == "hdf5" else zarr_episodes
                episodes, kind = open_episodes(path, mapping)
            layouts.setdefault(kind, path)
        except RecordingError as error:
            fault = error.replaced(where=path)
            if skipped is None:
                raise fault from error
            skipped.append(fault)
        recordings += episodes
    if len(layouts) > 1 or not recordings:
        listed = ", ".join(
            f"{path} is {kind or 'HDF5 of another layout'}" for kind, path in layouts.items()
        )
        fix = "import each into its own dataset"
        raise RecordingError(
            "layout", f"layouts differ or are empty: {listed}", where=", ".join(paths), fix=fix
        )
    return recordings, next(iter(layouts))


def _kind(path: Path) -> str:
    """Return the format of a file or folder; "" for none."""
    if path.suffix in HDF5:
        return "hdf5"
    if path.suffix in SUFFIXES or (path / "metadata.yaml").is_file():
        return "bag"
    names = (".zgroup", "zarr.json")
    return "zarr" * (
        path.name.endswith((".zarr", ".zarr.zip")) or any((path / name).is_file() for name in names)
    )


def _with_roots(paths: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """Yield each path with the recordings at it."""
    for text in paths:
        root = Path(text)
        for file in _files(root):
            yield root, file


def _files(path: Path) -> Iterator[Path]:
    """Yield the recordings at a path: itself, or those in the folder, by name, 2 before 10."""
    if path.exists() and _kind(path):
        yield path
        return
    entries = list(path.iterdir()) if path.is_dir() else [path]
    entries.sort(key=lambda entry: by_number(entry.name))
    inside = [
        entry
        for entry in entries
        if entry.exists()
        and (
            _kind(entry)
            or (os.access(entry, os.R_OK) and entry.is_dir() and any(map(_kind, entry.iterdir())))
        )
    ]
    fix = (
        f"give files of {', '.join((*SUFFIXES, *HDF5, '.zarr', '.zarr.zip'))}, or a folder of them"
    )
    if any(".tfrecord" in entry.name or entry.name == "dataset_info.json" for entry in entries):
        fix = (
            "RLDS (TFDS) needs TensorFlow, and no lighter reader is on the package index: write "
            "HDF5 where it is"
        )
    if (path / "meta/info.json").is_file():
        fix = f"a LeRobot dataset is edited: understudy edit {path} OUT"
    if not inside:
        raise RecordingError("layout", "is no recording of a known format", where=path, fix=fix)
    yield from inside


def default_mapping(recordings: Sequence[Recording], layout: str) -> ImportMapping:
    """Return the mapping of a known layout: images, proprioception and action that any of the
    recordings has.

    Raises:
        RecordingError: the layout has none.
    """
    if layout not in _LAYOUTS:
        fix = "--mapping FILE; --propose prints the beginning of one"
        raise RecordingError("layout", "needs a mapping", where=recordings[0].where, fix=fix)
    streams = dict[str, None]()
    for recording in recordings:
        # one that cannot be read is named when it is written
        with suppress(RecordingError), recording:
            streams |= dict.fromkeys(recording.kinds)
    images = dict[str, re.Match[str]]()
    for key in streams:
        if image := _IMAGE.fullmatch(key):
            images[key] = image
    *state, action = ([Part(key)] * (key in streams) for key in _LAYOUTS[layout])
    if not images and not any(state):
        listed = ", ".join(sorted(streams)[:20]) or "no array"
        wanted = ", ".join(_LAYOUTS[layout][:-1])
        problem = (
            f"has no observation of the layout {layout}: neither images nor {wanted}; it has "
            f"{listed}"
        )
        fix = "a mapping can name other streams as features"
        if layout == "robomimic":
            fix += "; robomimic's dataset_states_to_obs.py writes `obs` from `states`"
        raise RecordingError("layout", problem, where=recordings[0].where, fix=fix)
    features = {
        f"observation.images.{image[image.lastindex or 0]}": (Part(key),)
        for key, image in images.items()
    }
    vectors = {"observation.state": tuple(chain(*state)), "action": tuple(action)}
    return ImportMapping({**features, **{key: parts for key, parts in vectors.items() if parts}})


def propose(recording: Recording, layout: str) -> str:
    """Return a mapping file: features of a known layout, images of a bag by their type, other
    streams as comments.
    """
    with recording:
        rates = recording.rates()
        kinds = recording.kinds
    if not kinds:
        raise RecordingError("empty", "has no stream to propose", where=recording.where)
    features = default_mapping([recording], layout).features if layout in _LAYOUTS else {}
    lines = []
    for key, parts in features.items():
        listed = ", ".join(part.stream for part in parts)
        lines.append(f"  {key}: [{listed}]")
    used = {part.stream for part in chain(*features.values())}
    slowest = 0.0
    for topic, kind in sorted(
        kinds.items(), key=lambda item: (not item[1].endswith("Image"), item)
    ):
        if topic in used:
            continue
        field = ""
        if rates:
            name = "position" if kind.endswith("/JointState") else "data"
            field = f", field: {name}"
        entry = f"# NAME: {{stream: {topic}{field}}}"
        if kind.endswith(("/Image", "/CompressedImage")):
            words = [
                word
                for word in re.findall(r"\w+", topic)
                if word not in ("image_raw", "image", "compressed")
            ]
            entry = f"observation.images.{'_'.join(words)}: {topic}"
            if rates[topic]:
                slowest = min(slowest or 1000, rates[topic])
        rate = "too few messages for a rate"
        if rates.get(topic):
            rate = f"{rates[topic]:.1f} per second"
        comment = f"{kind}, {rate}" if rates else kind
        lines.append(f"  {entry}  # {comment}")
    if rates:
        lines.append("  # observation.state and action: no type names their topics")
    fps = max(1, round(slowest or 20)) if rates else recording.rate
    head = [f"fps: {fps:g}"] if fps else ["# fps: N"]
    if rates:
        head.append("clock: log # or header")
    head.append("# task: TEXT")
    return "\n".join([*head, "features:", *lines])
