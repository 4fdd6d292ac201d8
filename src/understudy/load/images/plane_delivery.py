"""RGB images from batches of 4:2:0 planes, on the device of the batch."""

from collections.abc import Sequence
from copy import copy
from typing import Any

from understudy.data.dataset import EpisodeDataset
from understudy.load.images.planes import check_conversion, planes_to_rgb
from understudy.video.color import ImageSize


class PlaneDelivery:
    """Converts the video images of batches from planes to RGB of a size."""

    def __init__(self, datasets: Sequence[EpisodeDataset], size: tuple[int, int] | None) -> None:
        """Choose the cameras.

        Args:
            datasets: of the batches.
            size: (height, width) of the images; None keeps the recorded size.

        Raises:
            ValueError: a policy resizes images in its own way, another decoder than pyav delivers them as RGB, or this
                processor converts colors in another way.
        """
        if isinstance(size, ImageSize):
            raise ValueError(
                "colors='yuv': this policy resizes images in its own way on the host; load with colors='rgb'"
            )
        for data in datasets:
            if data.video_frames.backend != "pyav":
                raise ValueError(f"colors='yuv': {data.name} is decoded by {data.video_frames.backend}; give pyav")
        check_conversion()
        cameras = dict.fromkeys(camera for data in datasets for camera in (*data.video_keys, *data.missing_cameras))
        self._cameras = [camera for camera in cameras if not datasets[0].pixels(camera).is_depth]
        self._size = None if size is None else (int(size[0]), int(size[1]))

    def convert(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with uint8 [B, (T,) 3, H, W] in place of its planes. Its type is kept."""
        converted = copy(batch)
        converted.update((key, planes_to_rgb(batch[key], self._size)) for key in self._cameras if key in batch)
        return converted
