"""Pictures that lie in the rows (`image` dtype, encoded bytes in parquet, or arrays): read by row group, one by one.

A data file full of pictures is large, so only the row groups that hold a wanted row are read: one episode each where
the writer made one per episode.
"""

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from PIL import Image

from understudy.data.format.catalog import Catalog
from understudy.data.format.features import Feature
from understudy.data.read.columns import to_numpy
from understudy.errors import DatasetError
from understudy.storage.files import renamed

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000")
"""Pillow reads others too, some of them by running programs."""
_REPAIR = "repair the row, or leave the key out with keys=[...]"


class StoredPictures:
    """Pictures of `image` columns and of arrays. Safe to use from several threads; pickles without its cache.

    Args:
        keys: the columns, all features that are pictures and no video.
        cache_bytes: budget for pictures as they are stored, in memory; the row group in use is kept whatever its size.
    """

    def __init__(self, catalog: Catalog, keys: Sequence[str], cache_bytes: int) -> None:
        self.catalog, self.keys, self.cache_bytes = catalog, tuple(keys), cache_bytes
        self._forget()

    def _forget(self) -> None:
        self._ends: dict[int, np.ndarray] = {}  # file -> int64 (G,), rows up to the end of each row group
        self._groups: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()
        self._held = 0
        self._lock, self._pid = threading.Lock(), os.getpid()

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._forget()

    def take(self, key: str, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Pictures of one column.

        Args:
            rows: int64 (B,), table rows; places: int64 (B,) or (B, T), rows of their data files (`Rows.places`).

        Returns:
            uint8 (B, C, H, W) or (B, T, C, H, W).

        Raises:
            DatasetError: the file has no such column, a picture cannot be decoded, or sizes differ.
        """
        if self._pid != os.getpid():  # forked: a thread of the parent may have held the lock
            self._forget()
        file_of = self.catalog.episodes.data_file[rows]
        flat = places.reshape(len(rows), -1)
        out: np.ndarray | None = None
        for file in np.unique(file_of):
            at = np.flatnonzero(file_of == file)
            for place in np.unique(flat[at]).tolist():
                b, t = np.nonzero((flat == place) & (file_of == file)[:, None])
                row = int(rows[b[0]])
                picture = self._picture(key, int(file), row, place)
                if out is None:
                    out = np.empty((*flat.shape, *picture.shape), np.uint8)
                if picture.shape != out.shape[2:]:
                    what = f"{key!r}: pictures of {out.shape[2:]} and {picture.shape} in one batch"
                    raise DatasetError(what, where=self._where(row), fix="select episodes of one size")
                out[b, t] = picture
        assert out is not None
        return out if places.ndim == 2 else out[:, 0]

    def check(self, row: int) -> None:
        """Read, without decoding, all pictures of a table row's file; DatasetError when that cannot be."""
        if self.keys:
            file = int(self.catalog.episodes.data_file[row])
            for group in range(len(self._group_ends(file, row))):
                table = self._group(file, group, row)
                for key in self.keys:
                    if self.catalog.features[key].is_array:
                        self._arrays(key, table, row)

    def _picture(self, key: str, file: int, row: int, place: int) -> np.ndarray:
        ends = self._group_ends(file, row)
        group = int(np.searchsorted(ends, place, side="right"))
        first = int(ends[group - 1]) if group else 0
        feature, table = self.catalog.features[key], self._group(file, group, row).slice(place - first, 1)
        if feature.is_array:
            return self._arrays(key, table, row)[0]
        value = table.column(self.catalog.stored.get(key, key))[0].as_py()
        return decode_image(value, feature, self.catalog, self._where(row))

    def _arrays(self, key: str, table: pa.Table, row: int) -> np.ndarray:
        """Pictures that are stored as arrays, of all rows of `table`: uint8 (n, 3, H, W)."""
        feature = self.catalog.features[key]
        arrays = to_numpy(table.column(self.catalog.stored.get(key, key)), feature, self._where(row), key)
        return arrays if feature.shape[0] == 3 else arrays.transpose(0, 3, 1, 2)

    def _group_ends(self, file: int, row: int) -> np.ndarray:
        if file not in self._ends:
            with renamed(self._where(row)), self.catalog.files.parquet(self.catalog.data_path(row)) as parquet:
                counts = [parquet.metadata.row_group(g).num_rows for g in range(parquet.metadata.num_row_groups)]
                self._ends[file] = np.cumsum(np.asarray(counts, np.int64))
        return self._ends[file]

    def _group(self, file: int, group: int, row: int) -> pa.Table:
        with self._lock:
            table = self._groups.get((file, group))
            if table is not None:
                self._groups.move_to_end((file, group))
                return table
        stored = list(dict.fromkeys(self.catalog.stored.get(key, key) for key in self.keys))
        with renamed(self._where(row)):
            table = self.catalog.files.table(self.catalog.data_path(row), stored, group)
        for name in stored:
            if name not in table.column_names:
                raise DatasetError(f"there is no column {name!r}", where=self._where(row), fix=_REPAIR)
        with self._lock:
            if (file, group) not in self._groups:
                self._groups[file, group] = table
                self._held += table.nbytes
            while len(self._groups) > 1 and self._held > self.cache_bytes:
                self._held -= self._groups.popitem(last=False)[1].nbytes
        return table

    def _where(self, row: int) -> str:
        catalog = self.catalog
        return f"{catalog.files.where(catalog.data_path(row))} (episode {int(catalog.episodes.ids[row])})"


def decode_image(value: object, feature: Feature, catalog: Catalog, where: str) -> np.ndarray:
    """One picture of an `image` column as uint8 (C, H, W), C as declared.

    Args:
        value: {"bytes": encoded picture or None, "path": file under the root}, or the encoded bytes.

    Grey pictures fill all three channels where colour is declared; an alpha channel that hides nothing is dropped.

    Raises:
        DatasetError: no bytes, bytes that are no picture, far more pixels than declared, real
            transparency, or more than 8 bits per channel.
    """
    data = value.get("bytes") if isinstance(value, dict) else value
    if data is None and isinstance(value, dict) and isinstance(value.get("path"), str):
        path = value["path"]
        if ".." in path.split("/"):
            raise DatasetError(f"{feature.key!r} lies outside the dataset: {path!r}", where=where, fix=_REPAIR)
        data = catalog.files.read(path)
    if not isinstance(data, bytes):
        raise DatasetError(f"{feature.key!r} holds no picture bytes", where=where, fix=_REPAIR)
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as picture:
            _check_size(picture, feature, where)  # before there is memory for the picture
            picture.load()
            array = _channels(picture, feature, where)
    except DatasetError:
        raise
    except Exception as error:
        what = f"{feature.key!r} is no readable picture: {type(error).__name__}: {str(error)[:100]}"
        raise DatasetError(what, where=where, fix=_REPAIR) from error
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def _check_size(picture: Image.Image, feature: Feature, where: str) -> None:
    size, declared = (picture.height, picture.width), feature.size
    if size[0] * size[1] <= feature.most_pixels:
        return
    said = (
        f"info.json says {declared[1]}x{declared[0]}" if declared else f"at most {feature.most_pixels} pixels are read"
    )
    what = f"{feature.key!r} is a picture of {size[1]}x{size[0]}, {said}"
    raise DatasetError(what, where=where, fix="correct the shape in info.json, or repair the row")


def _channels(picture: Image.Image, feature: Feature, where: str) -> np.ndarray:
    """uint8 (H, W, C) of an opened picture."""
    want = feature.channels or 3
    if picture.mode not in ("RGB", "L", "P", "RGBA", "LA", "1"):
        what = f"{feature.key!r} is a picture of mode {picture.mode}, not 8-bit grey or RGB"
        raise DatasetError(what, where=where, fix=_REPAIR)
    if want == 4:
        return np.asarray(picture.convert("RGBA"))
    if picture.mode in ("RGBA", "LA") or "transparency" in picture.info:
        alpha = np.asarray(picture.convert("RGBA"))[..., 3]
        if (alpha < 255).any():
            what = f"{feature.key!r} is transparent in {int((alpha < 255).sum())} pixels"
            raise DatasetError(what, where=where, fix=_REPAIR)
    if want == 1:
        if picture.mode not in ("L", "1"):
            what = f"{feature.key!r} is a colour picture, one channel is declared"
            raise DatasetError(what, where=where, fix="correct the shape in info.json")
        return np.asarray(picture.convert("L"))[..., None]
    return np.asarray(picture.convert("RGB"))
