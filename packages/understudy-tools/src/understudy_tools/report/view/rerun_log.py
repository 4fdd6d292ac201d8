"""Episodes as a recording of rerun (extra `rerun`): images, curves and texts over the frames and
the seconds.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from understudy_base import ConfigError, Record, optional_imports, replace_file
from understudy_data import Catalog
from understudy_tools.report.view.episodes import Columns, text_lanes
from understudy_tools.report.view.sheets import Sheets

if TYPE_CHECKING:
    import rerun

FRAMES = 32
"""Frames that are decoded together."""
_QUALITY = 90


def check_recording(path: Path) -> None:
    """Raise ConfigError where a recording cannot be a new file of rerun."""
    if path.suffix != ".rrd":
        raise ConfigError(f"{path}: the name of a recording ends in .rrd")
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path}: exists; name a new file, nothing is overwritten")
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent}: there is no such folder")


def write_recording(
    catalog: Catalog,
    rows: Sequence[int],
    path: Path,
    count: Callable[[int], None] = lambda frames: None,
) -> None:
    """Write episodes to a new recording, in one step.

    The entities of episode 3 are below `episode_3/`, one for each camera, column and lane. The
    timelines are `frame` and `time`, seconds by the rate of the dataset. Images have their recorded
    size, as JPEG of quality 90.

    Args:
        catalog: The dataset.
        rows: Table rows of the episodes.
        path: The file, whose name ends in .rrd.
        count: Function called with numbers of frames as they are done.

    Raises:
        ConfigError: The file exists, or its name does not end in .rrd.
        DatasetError: The dataset cannot be read. No file is left.
    """
    check_recording(path)
    with optional_imports():
        import rerun

    columns = Columns(catalog)
    sheets = Sheets(catalog)
    with replace_file(path) as draft:
        stream = rerun.RecordingStream("understudy", recording_id=catalog.name)
        stream.save(str(draft))
        try:
            for row in rows:
                _write_episode(stream, catalog, int(row), columns, sheets, count)
        finally:
            stream.flush()
            stream.disconnect()


def _write_episode(
    stream: "rerun.RecordingStream",
    catalog: Catalog,
    row: int,
    columns: Columns,
    sheets: Sheets,
    count: Callable[[int], None],
) -> None:
    import rerun

    length = int(catalog.episodes.lengths[row])
    base = f"episode_{int(catalog.episodes.ids[row])}"
    values, errors = columns.read(row)
    for text in errors.values():
        stream.log(f"{base}/errors", rerun.TextLog(text, level="ERROR"), static=True)
    frames = np.arange(length)
    index = [
        rerun.TimeColumn("frame", sequence=frames),
        rerun.TimeColumn("time", duration=frames / catalog.fps),
    ]
    for key in columns.numbers:
        if key in values and length:
            numbers = np.asarray(values[key], np.float64).reshape(length, -1)
            names = catalog.features[key].dimension_names if numbers.shape[1] > 1 else [key]
            stream.log(f"{base}/{key}", rerun.SeriesLines(names=names), static=True)
            stream.send_columns(
                f"{base}/{key}", indexes=index, columns=rerun.Scalars.columns(scalars=numbers)
            )
    _write_texts(stream, base, text_lanes(catalog, values), catalog.fps)
    for start in range(0, length, FRAMES):
        span = np.arange(start, min(start + FRAMES, length))
        for camera in catalog.camera_keys:
            for frame, pixels in zip(span.tolist(), sheets.frames(camera, row, span)):
                _set_time(stream, frame, catalog.fps)
                stream.log(f"{base}/{camera}", rerun.Image(pixels).compress(jpeg_quality=_QUALITY))
        count(len(span))
    stream.reset_time()


def _write_texts(
    stream: "rerun.RecordingStream", base: str, lanes: Sequence[Record], fps: float
) -> None:
    import rerun

    for lane in lanes:
        for start, _, text in lane["entries"]:
            _set_time(stream, start, fps)
            stream.log(f"{base}/{lane['name']}", rerun.TextLog(str(text)))


def _set_time(stream: "rerun.RecordingStream", frame: int, fps: float) -> None:
    stream.set_time("frame", sequence=frame)
    stream.set_time("time", duration=frame / fps)
