"""Files of a LeRobot v3.0 dataset, written one by one: rows, episode table and meta files."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from understudy_base import Record
from understudy_data.datasets.format.episode_table import FileTable
from understudy_data.datasets.format.features import Feature
from understudy_data.datasets.format.recorded_stats import Stats, aggregate
from understudy_data.datasets.stats.running import NAMES
from understudy_data.datasets.write.dataset_files import (
    DATA_PATH,
    EPISODES_PATH,
    FILES_PER_CHUNK,
    PLAIN_VIDEO,
    VIDEO_PATH,
    data_schema,
    episode_columns,
    episode_schema,
    file_columns,
    file_path,
    info_json,
    replace_json,
    replace_parquet,
    statistic_columns,
    statistic_value,
    tasks_table,
    to_column,
    video_info,
)
from understudy_data.datasets.write.statistics import EpisodeStatistics


class DatasetFiles:
    """Files of a dataset that is written; each is replaced atomically.

    Args:
        root: folder of the dataset.
        features: all features, with the five default columns; {} where only paths, tasks and JSON
            files are needed.
        nested: Arrow types of the `language` columns.
    """

    def __init__(
        self,
        root: Path,
        features: Mapping[str, Feature] | None = None,
        nested: Mapping[str, pa.DataType] | None = None,
    ) -> None:
        self._root = root
        self._features = features or {}
        self._nested = nested or {}

    # -- paths -------------------------------------------------------------------------------------

    def data(self, number: int) -> Path:
        """Path of a data file."""
        return self._root / file_path(DATA_PATH, number)

    def video(self, camera: str, number: int) -> Path:
        """Path of a video file."""
        return self._root / file_path(VIDEO_PATH, number, camera)

    def episodes(self, number: int) -> Path:
        """Path of a file of the episode table."""
        return self._root / file_path(EPISODES_PATH, number)

    @staticmethod
    def numbers(table: FileTable) -> np.ndarray:
        """Numbers of the files of one kind, int64 (files,)."""
        return np.asarray(table.chunk * FILES_PER_CHUNK + table.number)

    @staticmethod
    def renumbered(path: Path, by: int) -> Path:
        """Return the path of the file of the same kind whose number is larger `by` this."""
        number = int(path.parent.name.removeprefix("chunk-")) * FILES_PER_CHUNK
        number += int(path.stem.removeprefix("file-")) + by
        chunk, file = divmod(number, FILES_PER_CHUNK)
        return path.parents[1] / f"chunk-{chunk:03d}/file-{file:03d}{path.suffix}"

    # -- rows and episodes -------------------------------------------------------------------------

    def write_data(self, number: int, episodes: Iterable[Mapping[str, Any]]) -> None:
        """Write a data file with one row group per episode.

        Args:
            number: of the file.
            episodes: columns of each episode by key: arrays of numbers (length, *shape), texts,
                encoded images, or the values of a `language` column.
        """
        schema = data_schema(self._features, self._nested)

        def table_of(columns: Any) -> pa.Table:
            arrays = [self._column(columns[key], key) for key in schema.names]
            return pa.Table.from_arrays(arrays, schema=schema)

        replace_parquet(self.data(number), map(table_of, episodes), schema)

    def _column(self, values: Any, key: str) -> pa.Array:
        if key in self._nested:
            return pa.array(values, self._nested[key])
        feature = self._features[key]
        if isinstance(values, np.ndarray):
            values = np.reshape(values, (-1, *feature.shape))
        return to_column(values, feature)

    @staticmethod
    def episode_row(
        episode: int,
        tasks: Sequence[str],
        length: int,
        first: int,
        file: int,
        statistics: EpisodeStatistics,
    ) -> dict[str, Any]:
        """Return the row of meta/episodes of an episode, without columns of videos.

        Args:
            episode: its number.
            tasks: its task texts.
            length: number of frames.
            first: index of its first row.
            file: number of its data file, and of its file of the episode table.
            statistics: of its rows.
        """
        places = file_columns("data", file) | file_columns("meta/episodes", file)
        return episode_columns(episode, tasks, length, first) | statistics.columns | places

    def video_row(
        self,
        camera: str,
        file: int,
        first: int,
        length: int,
        fps: float,
        figures: Mapping[str, np.ndarray],
    ) -> dict[str, Any]:
        """Return the columns of meta/episodes about the video of an episode.

        Args:
            camera: key of the camera.
            file: number of the video file.
            first: first frame there.
            length: number of frames.
            fps: frames per second.
            figures: statistics of the images (`ImageStatistics.result`).
        """
        prefix = f"videos/{camera}"
        times = {
            f"{prefix}/from_timestamp": first / fps,
            f"{prefix}/to_timestamp": (first + length) / fps,
        }
        return (
            file_columns(prefix, file) | times | statistic_columns(self._features[camera], figures)
        )

    def episode_table(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Return rows of meta/episodes without columns of videos as a table."""
        features = {key: f for key, f in self._features.items() if not f.is_video}
        return pa.Table.from_pylist(rows, episode_schema(features).remove_metadata())

    def write_episodes(
        self,
        number: int,
        table: pa.Table,
        videos: Mapping[str, Sequence[Mapping[str, Any]]],
        metadata: Mapping[str, pa.Array],
    ) -> None:
        """Write a file of the episode table.

        Args:
            number: of the file.
            table: of `episode_table`.
            videos: camera -> columns of each episode (`video_row`).
            metadata: further columns by name, one value for each episode.
        """
        schema = episode_schema(self._features).remove_metadata()
        columns = {name: table.column(name) for name in table.column_names}
        for rows in videos.values():
            for name in rows[0]:
                columns[name] = pa.array([row[name] for row in rows], schema.field(name).type)
        whole = pa.table({name: columns[name] for name in schema.names}, schema)
        for name, column in metadata.items():
            whole = whole.append_column(name, column)
        replace_parquet(self.episodes(number), [whole], whole.schema)

    # -- meta files --------------------------------------------------------------------------------

    def write_json(self, path: str, content: Record) -> None:
        """Write a JSON file at a path under the root."""
        replace_json(self._root / path, content)

    def write_tasks(self, tasks: Sequence[str]) -> None:
        """Write meta/tasks.parquet."""
        table = tasks_table(tasks)
        replace_parquet(self._root / "meta/tasks.parquet", [table], table.schema)

    def write_info(
        self,
        entries: Record,
        *,
        fps: int,
        robot_type: str | None,
        episodes: int,
        frames: int,
        tasks: int,
        data_file_mb: float,
        video_file_mb: float,
        further: Record | None = None,
    ) -> None:
        """Write meta/info.json.

        Args:
            entries: features.
            fps: frames per second.
            robot_type: name of the robot.
            episodes: number of episodes.
            frames: number of frames.
            tasks: number of tasks.
            data_file_mb: size at which a data file is closed.
            video_file_mb: size at which a video file is closed.
            further: fields that the format does not have.
        """
        info = info_json(
            entries,
            fps=fps,
            robot_type=robot_type,
            episodes=episodes,
            frames=frames,
            tasks=tasks,
            data_file_mb=data_file_mb,
            video_file_mb=video_file_mb,
        )
        self.write_json("meta/info.json", info | dict(further or {}))

    @staticmethod
    def video_facts(stream: tuple[int, int, str, str | None, int], fps: float) -> dict[str, Any]:
        """Return what info.json says of the videos of a camera, by the stream of one of its files
        (`VideoClip.join`).
        """
        height, width, codec, pix_fmt, _ = stream
        return video_info(height, width, codec, pix_fmt, fps, 3) | PLAIN_VIDEO

    @staticmethod
    def join_statistics(
        features: Mapping[str, Feature], old: Stats, new: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the content of meta/stats.json of two parts of a dataset.

        Args:
            features: all features.
            old: statistics of the first part.
            new: content of meta/stats.json of the second part.
        """
        content = {}
        for key, entry in new.items():
            figures = {name: np.asarray(value) for name, value in entry.items()}
            joined = aggregate([old[key], figures])
            content[key] = {
                name: statistic_value(features[key], name, joined[name])
                for name in NAMES
                if name in joined
            }
        return content
