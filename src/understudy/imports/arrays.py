"""Episodes of HDF5 and Zarr files: arrays with a row for each time. A block of rows is in memory at a time."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from understudy.imports.recording import NANO, Recording, RecordingError, Sample, Times, even_times, reading
from understudy.imports.settings import ImportMapping
from understudy.optional_packages import optional_imports

HDF5 = (".hdf5", ".h5")
_BLOCK = 16 << 20  # bytes of a block of rows
_CODEC = "the codec of UMI's images comes with the package imagecodecs"


class Rows(Recording):
    """An episode: rows of arrays.

    Args:
        where: the file and the episode's group.
        size: bytes of its rows.
        open_arrays: opens the file, and returns it with its arrays by key.
        mapping: its key of times and its rate.
        span: first row and end of the rows; None: all.
        rate: rows per second that the file states, or None.
        task: task text, or "".
    """

    def __init__(
        self,
        where: str,
        size: int,
        open_arrays: Callable[[], tuple[Any, Mapping[str, Any]]],
        mapping: ImportMapping,
        span: tuple[int, int] | None = None,
        rate: float | None = None,
        task: str = "",
    ) -> None:
        super().__init__(where, size, mapping.source_fps or rate, task, bool(mapping.time))
        self._open, self._span, self._time = open_arrays, span, mapping.time

    def open(self) -> None:
        """Open the file, and list its arrays."""
        with reading():
            self._file, self._arrays = self._open()
        self.kinds = {key: f"{array.dtype} {array.shape[1:]}" for key, array in self._arrays.items()}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _rows(self, key: str) -> tuple[int, int]:
        return self._span or (0, self._arrays[key].shape[0])

    def scan(self, streams: Collection[str]) -> dict[str, Times]:
        """Return the times of the rows: the array `time`, or row / rate."""
        keys = [*streams, *([self._time] if self._time else [])]
        if self._time and self._time not in self.kinds:
            raise RecordingError("missing", "is not there", self._time, fix="`time` in the mapping")
        counts = {key: stop - start for key in keys for start, stop in [self._rows(key)]}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{key} {count}" for key, count in counts.items())
            raise RecordingError(
                "shape", f"arrays differ in length: {listed}", min(counts, key=lambda key: counts[key])
            )
        times = even_times(min(counts.values()), self.rate or 1)
        if self._time:
            with reading(self._time):
                seconds = np.asarray(self._arrays[self._time][slice(*self._rows(self._time))], np.float64).reshape(-1)
            if not np.isfinite(seconds).all():
                raise RecordingError("value", "has a time that is not finite", self._time)
            times = np.rint(seconds * NANO).astype(np.int64)
        return dict.fromkeys(streams, Times(times))

    def samples(self, streams: Collection[str]) -> Iterator[Sample]:
        """Yield the rows of arrays, row by row."""
        arrays = {key: self._arrays[key] for key in streams}
        widest = max(array.dtype.itemsize * int(np.prod(array.shape[1:])) for array in arrays.values())
        step = int(np.clip(_BLOCK // max(1, widest), 1, 1024))
        first, stop = self._rows(next(iter(arrays)))
        for begin in range(first, stop, step):
            blocks = {}
            for key, array in arrays.items():
                with reading(key):
                    blocks[key] = array[begin : min(begin + step, stop)]
            for row in range(min(step, stop - begin)):
                for key, block in blocks.items():
                    yield key, begin - first + row, partial(_row, block, row)


def _row(block: Any, row: int) -> Any:
    value = block[row]
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:  # an encoded image in a text
        return np.frombuffer(value, np.uint8)


def hdf5_episodes(path: Path, mapping: ImportMapping) -> tuple[list[Rows], str]:
    """Return the episodes of an HDF5 file, and its layout: robomimic, libero, aloha or ""."""
    with optional_imports():
        import h5py

    def opened(group: str) -> tuple[Any, dict[str, Any]]:
        file, arrays = h5py.File(path, "r"), {}
        file[group].visititems(
            lambda name, node: arrays.update({name: node} if isinstance(node, h5py.Dataset) and node.ndim else {})
        )
        return file, arrays

    with reading(), h5py.File(path, "r") as file:
        data = file.get("data", {})
        groups = sorted((name for name in data if re.fullmatch(r"demo_\d+", name)), key=lambda name: int(name[5:]))
        facts = {name: json.loads(data.attrs.get(name, "{}")) for name in ("env_args", "problem_info") if groups}
        layout = "aloha" if "observations/qpos" in file else ""
        if groups:
            layout = "libero" if "obs/agentview_rgb" in data[groups[0]] else "robomimic"
        rate = facts.get("env_args", {}).get("env_kwargs", {}).get("control_freq")
        if not mapping.source_fps and rate is not None and not (isinstance(rate, int | float) and 0 < rate < np.inf):
            problem = f"control_freq of env_args is {rate!r}, expected a number of rows per second above 0"
            raise RecordingError("rate", problem, fix="correct it in the file, or state `source_fps` in a mapping")
        task = "".join(facts.get("problem_info", {}).get("language_instruction", ""))
    size = path.stat().st_size // max(1, len(groups))
    places = {f"{path}, {name}": f"data/{name}" for name in groups} or {str(path): "/"}
    return [
        Rows(where, size, partial(opened, group), mapping, None, rate, task) for where, group in places.items()
    ], layout


def zarr_episodes(path: Path, mapping: ImportMapping) -> tuple[list[Rows], str]:
    """Return the episodes of a replay buffer (`data/*`, `meta/episode_ends`), a folder or a zip file."""
    with optional_imports():
        import zarr
    with suppress(ImportError):
        from imagecodecs.numcodecs import register_codecs

        register_codecs(verbose=False)

    def opened() -> tuple[Any, dict[str, Any]]:
        kind = zarr.storage.ZipStore if path.is_file() else zarr.storage.LocalStore
        store = kind(path, read_only=True)
        return store, dict(zarr.open_group(store, mode="r")["data"].arrays())

    with reading(fix=_CODEC):
        store, arrays = opened()
        ends = np.asarray(zarr.open_group(store, mode="r")["meta/episode_ends"]).astype(int).tolist()
        store.close()
    spans = list(zip([0, *ends], ends))
    rows = min((array.shape[0] for array in arrays.values()), default=0)
    if any(not start <= stop <= rows for start, stop in spans):
        raise RecordingError("layout", f"meta/episode_ends does not rise to the {rows} rows of data", where=path)
    size = sum(array.nbytes for array in arrays.values()) // max(1, rows)
    return [
        Rows(f"{path}, episode {number}", size * (span[1] - span[0]), opened, mapping, span)
        for number, span in enumerate(spans)
    ], "umi"
