"""Statistics of a dataset that is written, episode by episode."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from understudy_data.datasets.format.features import Feature
from understudy_data.datasets.stats.running import (
    ImageStatistics,
    Moments,
    RunningStatistics,
    sample_stride,
)
from understudy_data.datasets.write.dataset_files import (
    number_statistics,
    statistic_columns,
    stats_json,
)
from understudy_data.plain_values import storable


@storable
@dataclass(frozen=True)
class EpisodeStatistics:
    """Statistics of one episode.

    Attributes:
        columns: its columns of meta/episodes.
        numbers: numeric feature -> moments, and the rows that count for quantiles in the dataset.
        images: statistics of its image columns, with `first` as in the dataset.
    """

    columns: dict[str, Any]
    numbers: dict[str, tuple[Moments, np.ndarray]]
    images: dict[str, ImageStatistics]


class DatasetStatistics:
    """Statistics of a dataset, to which its episodes are added in order.

    Args:
        features: all features.
        frames: number of frames in the end.
    """

    def __init__(self, features: Mapping[str, Feature], frames: int) -> None:
        self._features = features
        self._stride = sample_stride(frames)
        self._parts: dict[str, RunningStatistics | ImageStatistics] = {}
        for key, feature in features.items():
            if feature.is_encoded and not feature.is_text:
                self._parts[key] = ImageStatistics(feature.channels or 3)
            elif not feature.is_text:
                self._parts[key] = number_statistics(feature)

    def measure(
        self,
        columns: Mapping[str, Any],
        first: int,
        images: Mapping[str, ImageStatistics],
    ) -> EpisodeStatistics:
        """Compute the statistics of an episode, without adding them.

        Args:
            columns: its columns by key; arrays of numbers are measured, (length, *shape) each.
            first: index of its first row.
            images: statistics of its image columns, with `first` as in the dataset.
        """
        episode = EpisodeStatistics({}, {}, dict(images))
        for key, feature in self._features.items():
            values = columns.get(key)
            if isinstance(values, np.ndarray) and not feature.is_text:
                rows = values.reshape(-1, *feature.shape)
                statistics = number_statistics(feature)
                statistics.add(rows)
                sample = statistics.sample(rows[-first % self._stride :: self._stride])
                episode.numbers[key] = statistics.moments, sample
                episode.columns.update(statistic_columns(feature, statistics.result()))
            elif key in images:
                episode.columns.update(statistic_columns(feature, images[key].result()))
        return episode

    def add(self, episode: EpisodeStatistics, length: int) -> None:
        """Add the rows of the next episode, which has `length` frames."""
        for key, part in self._parts.items():
            if self._features[key].is_video:
                continue
            if isinstance(part, RunningStatistics):
                moments, sample = episode.numbers[key]
                part.merge(moments, length, sample)
            else:
                part.merge(episode.images[key])

    def add_videos(self, camera: str, images: ImageStatistics) -> None:
        """Add the statistics of the images of a camera that is stored as video."""
        part = self._parts[camera]
        assert isinstance(part, ImageStatistics)
        part.merge(images)

    def json(self) -> dict[str, Any]:
        """Return the content of meta/stats.json."""
        return stats_json(self._features, self._parts)
