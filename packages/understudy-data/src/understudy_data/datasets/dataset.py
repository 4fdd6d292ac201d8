"""`EpisodeDataset`: samples of a LeRobot dataset as dictionaries of tensors, one by one or in
batches.

A sample is a batch of one. Keys, dtypes and `<key>_is_pad` are LeRobot's. A key in
`delta_timestamps` has a leading dimension T (also when T is 1); other keys do not. `EpisodeArrays`
has the same samples without torch.
"""

from typing import Any

import torch

from understudy_data.datasets.episode_arrays import EpisodeArrays


class EpisodeDataset(EpisodeArrays, torch.utils.data.Dataset[dict[str, Any]]):
    """A map-style dataset of frames: `len(data)`, `data[i]`, `sample(episode, frame)`,
    `batch(episodes, frames)`.

    A sample holds `index`, `episode_index`, `frame_index`, `task_index` (int64 scalars),
    `timestamp`, `task` (str) and the features. Tensors have the dtype that info.json declares
    (float64 stays float64, whatever the file stores) and the declared shape ((1,) is a scalar).
    Strings are str. Images are uint8 (C, H, W), depth images uint16 as stored or float32 (1, H, W),
    meters or `depth_unit`. Each missing camera adds `<camera>_is_missing` (bool scalar).

    Args:
        root: path, fsspec URL, hub id OWNER/NAME where no such folder exists ("lerobot/pusht"), or
            an open `Catalog`. `PATH#NAME` or `PATH#NAME@VERSION` is a view of it
            (docs/datasets.md), and the selection is one of the view.
        delta_timestamps: key -> seconds around the frame, multiples of 1/fps within `tolerance_s`.
            A window that leaves its episode repeats the first or last frame, and `<key>_is_pad`
            (bool, T) is True there. Windows still see dropped frames and frames outside
            `keep_ranges` (but see `Selection.keep_rule`). Times of a sensor (meta/sensors.json) may
            be any; it has the value of its last sample up to that time, and always `<key>_is_pad`
            (`datasets/read/sensors.py`).
        select: the episodes and frames that are samples.
        keys: features and sensors to deliver. By default all declared ones, except cameras without
            any video file (with a warning); naming such a camera is an error. Columns that
            info.json does not declare must be named. The index keys and `task` are always
            delivered.
        tolerance_s: largest distance of a value of `delta_timestamps` from a multiple of 1/fps, in
            seconds.
        names: standard key -> this dataset's own key, for features with other names
            (`format/standard_keys.py`). `keys`, `delta_timestamps`, samples and `catalog` use the
            standard keys.
        missing_cameras: camera -> (height, width), for cameras that other datasets of a mixture
            have and this one lacks. Their images are black, their windows all padding, and
            `<camera>_is_missing` is True.
        image_transforms: callable applied to the images of each sample and camera, a uint8 tensor
            (C, H, W) or (T, C, H, W), and not to depth. `Loader` and `EpisodeStream` do not apply
            it.
        depth_unit: "m" or "mm": depth images, and their recorded statistics, are float32 in this
            unit. "mm" is LeRobot's default. By default quantized video is in meters, and other
            depth is as stored.
        response: a text column to deliver as `response`, "task", or "" for no text (see
            `datasets/read/texts.py`).
        prompt_metadata: names of episode metadata, or of features with one number or text per
            frame, to deliver as `prompt_metadata`, a text with a line for each (docs/mixtures.md).
            An empty list delivers the empty text.
        returns: definition of the `return` to deliver, the target of a value function, or its
            fields (see `datasets/read/returns.py`).
        name: name in an order and in messages; by default the folder's name.
        video_backend: "pyav" or "torchcodec" (see `open_video`).
        frame_cache_bytes: memory for decoded video frames.
        **selection: fields of `Selection`, as in `where="success"`; they replace the ones of
            `select`.

    Raises:
        DatasetError: the dataset cannot be read as requested.
    """

    _as_value = staticmethod(torch.from_numpy)
    _stack = staticmethod(torch.stack)
