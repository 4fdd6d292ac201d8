"""Bags written by `rosbags` and by `mcap-ros2-support`, with known values."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SECOND = 1_000_000_000
EPOCH = 1_700_000_000 * SECOND
JOINTS = ["shoulder", "elbow"]


class Bag:
    """A bag to write: `with Bag(path) as bag: bag.joints("/joints", time, {...})`. Times are
    seconds from `start`.
    """

    def __init__(
        self, path: Path, storage: str = "mcap", start: int = EPOCH, is_sorted: bool = True
    ) -> None:
        from rosbags.rosbag2 import Writer
        from rosbags.rosbag2.enums import StoragePlugin
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore

        self.store = get_typestore(Stores.ROS2_JAZZY)
        self.store.register(get_types_from_msg("float64[] values\nstring note", "lab/msg/Inner"))
        self.store.register(
            get_types_from_msg("lab/Inner[] points\nfloat32 grip\nbool on", "lab/msg/Command")
        )
        self.writer = Writer(path, version=9, storage_plugin=StoragePlugin[storage.upper()])
        self.start = start
        self.connections: dict[str, Any] = {}
        self.messages: list[tuple[str, int, Any]] = []
        self.is_sorted = is_sorted

    def __enter__(self) -> "Bag":
        self.writer.open()
        return self

    def __exit__(self, *error: object) -> None:
        messages = self.messages
        if self.is_sorted:
            messages = sorted(messages, key=lambda message: message[1])
        for topic, time, raw in messages:
            self.writer.write(self.connections[topic], time, raw)
        self.writer.close()

    def type(self, name: str) -> Any:
        return self.store.types[name]

    def add(self, topic: str, time: float, message: Any) -> None:
        kind = message.__msgtype__
        if topic not in self.connections:
            self.connections[topic] = self.writer.add_connection(topic, kind, typestore=self.store)
        raw = self.store.serialize_cdr(message, kind)
        self.messages.append((topic, self.start + round(time * SECOND), raw))

    def header(self, time: float | None, start: int | None = None) -> Any:
        stamp = 0
        if time is not None:
            origin = self.start if start is None else start
            stamp = origin + round(time * SECOND)
        clock = self.type("builtin_interfaces/msg/Time")(stamp // SECOND, stamp % SECOND)
        return self.type("std_msgs/msg/Header")(clock, "base")

    def joints(
        self,
        topic: str,
        time: float,
        positions: dict[str, float],
        stamp: float | None = None,
        start: int | None = None,
    ) -> None:
        values = np.array(list(positions.values()))
        stamped = time if stamp is None else stamp
        header = self.header(stamped, start)
        message = self.type("sensor_msgs/msg/JointState")(
            header, list(positions), values, values * 10, values[:0]
        )
        self.add(topic, time, message)

    def image(
        self, topic: str, time: float, pixels: np.ndarray, encoding: str = "rgb8", pad: int = 0
    ) -> None:
        lines = pixels.reshape(len(pixels), -1).view(np.uint8)
        data = np.pad(lines, ((0, 0), (0, pad))).reshape(-1)
        kind = self.type("sensor_msgs/msg/Image")
        height, width = pixels.shape[:2]
        self.add(
            topic,
            time,
            kind(self.header(time), height, width, encoding, 0, lines.shape[1] + pad, data),
        )

    def compressed(self, topic: str, time: float, pixels: np.ndarray, kind: str = "png") -> None:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind)
        message = self.type("sensor_msgs/msg/CompressedImage")
        self.add(
            topic,
            time,
            message(self.header(time), kind, np.frombuffer(buffer.getvalue(), np.uint8)),
        )

    def text(self, topic: str, time: float, text: str) -> None:
        self.add(topic, time, self.type("std_msgs/msg/String")(text))

    def number(self, topic: str, time: float, value: float) -> None:
        self.add(topic, time, self.type("std_msgs/msg/Float64")(value))

    def command(
        self, topic: str, time: float, points: Sequence[Sequence[float]], grip: float
    ) -> None:
        inner = self.type("lab/msg/Inner")
        rows = [inner(np.array(point, np.float64), "note") for point in points]
        self.add(topic, time, self.type("lab/msg/Command")(rows, grip, grip > 0.5))


def pixels(number: int, height: int = 32, width: int = 48) -> np.ndarray:
    """An image whose red is its number, green rises by row and blue by column."""
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 0] = number * 5 % 250
    image[..., 1] = np.arange(height)[:, None] * 3
    image[..., 2] = np.arange(width) * 4
    return image
