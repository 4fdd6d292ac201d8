"""Images stored in the rows of parquet files (`image` dtype, encoded bytes, or arrays), read by row
group.

Data files with images are large, so only the needed row groups are read. A group is one episode
where the writer made one group per episode.
"""

import io
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from understudy_base import DatasetError, LRUCache
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.features import Feature
from understudy_data.datasets.read.columns import to_numpy
from understudy_data.datasets.read.rows import ProcessLocal
from understudy_data.storage.dataset_root import with_location
from understudy_data.video.orientation import upright

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000")
"""Formats that Pillow may read. It knows others, some of which run programs."""
_REPAIR = "repair the row, or leave the key out with keys=[...]"


class ImageColumns(ProcessLocal):
    """Images of `image` columns and of array columns. Thread-safe; pickles without its cache.

    Args:
        catalog: the dataset.
        keys: the columns, all cameras that are not video.
        cache_bytes: memory for images as stored; the row group in use always stays.
    """

    def __init__(self, catalog: Catalog, keys: Sequence[str], cache_bytes: int) -> None:
        self.catalog = catalog
        self.keys = tuple(keys)
        self.cache_bytes = cache_bytes
        self._forget()

    def _forget(self) -> None:
        # file -> int64 (G,), rows up to the end of each row group
        self._ends: dict[int, np.ndarray] = {}
        self._groups: LRUCache[tuple[int, int], pa.Table] = LRUCache(
            self.cache_bytes, lambda table: table.nbytes, keep=1
        )
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def keep(self, cache_bytes: int) -> None:
        """Set the memory for images as stored."""
        self.cache_bytes = cache_bytes
        with self._lock:
            self._groups.resize(cache_bytes)

    def take(self, key: str, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return images of one column.

        Args:
            key: the column.
            rows: int64 (B,), table rows.
            places: int64 (B,) or (B, T), rows in the data files (`Rows.file_rows`).

        Returns:
            uint8 (B, C, H, W) or (B, T, C, H, W); depth is uint16 or float32, with C = 1.

        Raises:
            DatasetError: the file has no such column, an image cannot be decoded, or sizes differ.
        """
        self._check_process()
        file_of = self.catalog.episodes.data_file[rows]
        flat = places.reshape(len(rows), -1)
        out: np.ndarray | None = None
        for file in np.unique(file_of):
            members = np.flatnonzero(file_of == file)
            for place in np.unique(flat[members]).tolist():
                b, t = np.nonzero((flat == place) & (file_of == file)[:, None])
                row = int(rows[b[0]])
                image = self._image(key, row, place)
                if out is None:
                    out = np.empty((*flat.shape, *image.shape), image.dtype)
                if image.shape != out.shape[2:]:
                    problem = f"{key!r}: images of {out.shape[2:]} and {image.shape} in one batch"
                    raise DatasetError(
                        problem,
                        where=self.catalog.data_place(row),
                        fix="select episodes of one size",
                    )
                out[b, t] = image
        assert out is not None
        return out if places.ndim == 2 else out[:, 0]

    def stored(self, key: str, row: int, places: np.ndarray) -> list[Any]:
        """Return values of a column as stored, at ascending rows `places` of the data file of a
        table row.
        """
        name = self.catalog.stored_names.get(key, key)
        return [table.column(name)[place].as_py() for table, place in self._located(row, places)]

    def encoded(self, key: str, row: int, places: np.ndarray) -> list[bytes]:
        """Return the encoded images of a column at ascending rows `places` of the data file of a
        table row.

        Raises:
            DatasetError: a row holds no image bytes, or names a file outside the dataset.
        """
        where = self.catalog.data_place(row)
        values = self.stored(key, row, places)
        return [image_bytes(value, key, self.catalog, where) for value in values]

    def decode(self, key: str, row: int, data: bytes) -> np.ndarray:
        """Decode an encoded image of a column of a table row's episode, uint8 (C, H, W)
        (`decode_image`).
        """
        feature = self.catalog.features[key]
        return decode_image(data, feature, self.catalog, self.catalog.data_place(row))

    def _located(self, row: int, places: np.ndarray) -> Iterator[tuple[pa.Table, int]]:
        """Yield the row group of each place, and its row there."""
        file = int(self.catalog.episodes.data_file[row])
        ends = self._group_ends(file, row)
        for place in places.tolist():
            group = int(np.searchsorted(ends, place, side="right"))
            begin = int(ends[group - 1]) if group else 0
            yield self._group(file, group, row), place - begin

    def _image(self, key: str, row: int, place: int) -> np.ndarray:
        feature = self.catalog.features[key]
        where = self.catalog.data_place(row)
        if not feature.is_array:
            return decode_image(
                self.stored(key, row, np.array([place]))[0], feature, self.catalog, where
            )
        ((table, row_in_group),) = self._located(row, np.array([place]))
        column = table.slice(row_in_group, 1).column(self.catalog.stored_names.get(key, key))
        image = to_numpy(column, feature, where, key)[0]
        return image if feature.shape[0] == 3 else image.transpose(2, 0, 1)

    def _group_ends(self, file: int, row: int) -> np.ndarray:
        if file not in self._ends:
            with (
                with_location(self.catalog.data_place(row)),
                self.catalog.files.parquet(self.catalog.data_path(row)) as parquet,
            ):
                counts = [
                    parquet.metadata.row_group(g).num_rows
                    for g in range(parquet.metadata.num_row_groups)
                ]
                self._ends[file] = np.cumsum(np.asarray(counts, np.int64))
        return self._ends[file]

    def _group(self, file: int, group: int, row: int) -> pa.Table:
        with self._lock:
            table = self._groups.get((file, group))
        if table is not None:
            return table
        stored = list(dict.fromkeys(self.catalog.stored_names.get(key, key) for key in self.keys))
        with with_location(self.catalog.data_place(row)):
            table = self.catalog.files.table(self.catalog.data_path(row), stored, group)
        for name in stored:
            if name not in table.column_names:
                raise DatasetError(
                    f"there is no column {name!r}", where=self.catalog.data_place(row), fix=_REPAIR
                )
        with self._lock:
            self._groups.put((file, group), table)
        return table


def image_bytes(value: object, key: str, catalog: Catalog, where: str) -> bytes:
    """Return the encoded image of a stored value: its bytes, or those of the file that it names.

    Raises:
        DatasetError: there are no bytes, or the file lies outside the dataset.
    """
    data = value.get("bytes") if isinstance(value, dict) else value
    if data is None and isinstance(value, dict) and isinstance(value.get("path"), str):
        path = value["path"]
        if ".." in path.split("/"):
            raise DatasetError(
                f"{key!r} lies outside the dataset: {path!r}", where=where, fix=_REPAIR
            )
        data = catalog.files.read(path)
    if not isinstance(data, bytes):
        raise DatasetError(f"{key!r} holds no image bytes", where=where, fix=_REPAIR)
    return data


def decode_image(value: object, feature: Feature, catalog: Catalog, where: str) -> np.ndarray:
    """Decode an image of an `image` column to uint8 (C, H, W), C as declared; depth to uint16 or
    float32 (1, H, W).

    An image is turned and mirrored as its EXIF data asks (`video/orientation.py`). A grey image
    fills all three channels where color is declared. A fully opaque alpha channel is dropped.

    Args:
        value: {"bytes": encoded image or None, "path": file under the root}, or the encoded bytes.
        feature: the declaration of the column.
        catalog: the dataset.
        where: name of the row, for errors.

    Raises:
        DatasetError: no bytes, bytes that are not an image, far more pixels than declared,
            transparency, more than 8 bits per channel, or depth of another type than info.json
            declares.
    """
    data = image_bytes(value, feature.key, catalog, where)
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_size(image, feature, where)  # before memory is allocated
            image.load()
            convert = _to_depth if feature.is_depth else _to_channels
            array = convert(upright(image), feature, where)
    except DatasetError:
        raise
    except Image.DecompressionBombError as error:
        pixels = next(
            (word.strip("(") for word in str(error).split() if word.strip("(").isdigit()),
            "too many",
        )
        raise _too_large(f"{pixels} pixels", feature, where) from error
    except Exception as error:
        problem = (
            f"{feature.key!r} is not a readable image: {type(error).__name__}: {str(error)[:100]}"
        )
        raise DatasetError(problem, where=where, fix=_REPAIR) from error
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def _check_size(image: Image.Image, feature: Feature, where: str) -> None:
    size = image.height, image.width
    if size[0] * size[1] <= feature.max_pixels:
        return
    raise _too_large(f"{size[1]}x{size[0]}", feature, where)


def _too_large(size: str, feature: Feature, where: str) -> DatasetError:
    declared = feature.size
    words = f"info.json declares {declared[1]}x{declared[0]}, and " if declared else ""
    problem = (
        f"{feature.key!r} is an image of {size}, {words}{feature.max_pixels:,} pixels are the limit"
    )
    return DatasetError(
        problem, where=where, fix="correct the shape in info.json, or repair the row"
    )


_DEPTH_MODES = {"uint16": ("I;16", "I;16L", "I;16B", "I;16N", "I"), "float32": ("F",)}


def _to_depth(image: Image.Image, feature: Feature, where: str) -> np.ndarray:
    """Values of an opened depth image: uint16 or float32 (H, W, 1), as stored or in the requested
    unit.
    """
    pixels = feature.pixels
    dtype = "float32" if pixels.stored_unit == "m" else "uint16"
    array = np.asarray(image)
    if image.mode not in _DEPTH_MODES[dtype] or not np.array_equal(
        array.astype(dtype), array, equal_nan=dtype == "float32"
    ):
        unit = feature.info.get("depth_unit")
        problem = (
            f"{feature.key!r} is an image of mode {image.mode}; depth in depth_unit {unit} "
            f"is read as {dtype}"
        )
        fix = "set depth_unit in info.json: mm for 16-bit integers, m for 32-bit floats"
        if image.mode in _OTHER_MODES:
            fix = "remove is_depth_map from info.json, and " + _OTHER_MODES[image.mode][1]
        elif image.mode in ("RGB", "RGBA", "P"):
            fix = (
                "remove is_depth_map from info.json to read them as color, or leave the camera "
                "out of keys"
            )
        raise DatasetError(problem, where=where, fix=fix)
    return pixels.convert(array.astype(dtype))[..., None]


_CONVERT = (
    "convert it to 8-bit RGB with its color profile and write the row again, or leave the "
    "key out with keys=[...]"
)
_OTHER_MODES = {
    "CMYK": ("of printing colors (CMYK)", _CONVERT),
    "YCbCr": ("of luma and chroma (YCbCr)", _CONVERT),
    "LAB": ("of the color space L*a*b*", _CONVERT),
    "HSV": ("of hue, saturation and value (HSV)", _CONVERT),
    "PA": (
        "of a palette with transparency (PA)",
        "write the row again without transparency, as 8-bit RGB",
    ),
    "La": (
        "of gray multiplied by its transparency (La)",
        "write the row again without transparency, as 8-bit RGB",
    ),
    "RGBa": (
        "of colors multiplied by their transparency (RGBa)",
        "write the row again as 8-bit RGB",
    ),
    "RGBX": ("of RGB with a fourth channel of padding (RGBX)", "write the row again as 8-bit RGB"),
}
"""Modes of Pillow that are neither read nor depth -> words and remedy."""


def _odd_mode(image: Image.Image, feature: Feature, where: str) -> DatasetError:
    """Return the error of an image in a mode that is not read as color."""
    if image.mode in _OTHER_MODES:
        kind, fix = _OTHER_MODES[image.mode]
        return DatasetError(
            f"{feature.key!r} is an image {kind}, not 8-bit gray or RGB", where=where, fix=fix
        )
    kind = "32-bit floats" if image.mode == "F" else "whole numbers of more than 8 bits"
    problem = f"{feature.key!r} is an image of {kind} (mode {image.mode}), not 8-bit gray or RGB"
    fix = 'declare "info": {"is_depth_map": true} in info.json if this is depth, or ' + _REPAIR
    return DatasetError(problem, where=where, fix=fix)


def _to_channels(image: Image.Image, feature: Feature, where: str) -> np.ndarray:
    """Convert an opened image to uint8 (H, W, C)."""
    want = feature.channels or 3
    if image.mode not in ("RGB", "L", "P", "RGBA", "LA", "1"):
        raise _odd_mode(image, feature, where)
    if want == 4:
        return np.asarray(image.convert("RGBA"))
    if image.mode in ("RGBA", "LA") or "transparency" in image.info:
        alpha = np.asarray(image.convert("RGBA"))[..., 3]
        if (alpha < 255).any():
            problem = f"{feature.key!r} is transparent in {int((alpha < 255).sum())} pixels"
            raise DatasetError(problem, where=where, fix=_REPAIR)
    if want == 1:
        if image.mode not in ("L", "1"):
            problem = f"{feature.key!r} is a color image, one channel is declared"
            raise DatasetError(problem, where=where, fix="correct the shape in info.json")
        return np.asarray(image.convert("L"))[..., None]
    return np.asarray(image.convert("RGB"))
