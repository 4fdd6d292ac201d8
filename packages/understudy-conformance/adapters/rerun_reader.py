"""rerun-sdk 0.41: `LeRobotReader`, whose chunks of one episode become samples. PyAV decodes its
packets.
"""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from rerun.experimental import LeRobotReader

ROWS = ("observation.state", "observation.gripper", "observation.clock", "action")
CAMERAS = ("observation.images.front", "observation.images.wrist")


def decode(packets: list[bytes]) -> list[Any]:
    """Images of a stream of H.264 in presentation order."""
    codec = av.CodecContext.create("h264", "r")
    images = []
    for number, data in enumerate(packets):
        packet = av.Packet(data)
        packet.dts, packet.time_base = number, Fraction(1, 30)
        images += codec.decode(packet)
    return [image.to_ndarray(format="rgb24") for image in [*images, *codec.decode(None)]]


def reader(root: Path) -> Iterator[dict[str, Any]]:
    """Samples of each episode in turn."""
    recording = LeRobotReader(root)
    for episode in recording.episodes():
        columns: dict[tuple[str, str], list[Any]] = {}
        for chunk in recording.stream(episode).to_chunks():
            batch = chunk.to_record_batch()
            for column in batch.schema.names:
                columns.setdefault((chunk.entity_path, column), []).extend(
                    batch.column(column).to_pylist()
                )
        rows = {key: columns[f"/{key}", "Scalars:scalars"] for key in ROWS}
        videos = {key: columns.get((f"/{key}", "VideoStream:sample")) for key in CAMERAS}
        images = {
            key: decode([bytes(packet[0]) for packet in video])
            for key, video in videos.items()
            if video
        }
        texts = columns["/task", "TextDocument:text"]
        for frame in range(len(rows["action"])):
            sample = {key: np.asarray(values[frame]) for key, values in (rows | images).items()}
            yield sample | {"task": texts[frame][0], "episode_index": episode, "frame_index": frame}
