"""CPU time of every step from coded bytes to an RGB array.

    python benchmarks/decode_steps.py [--json] [--video FILE] [--frames 240] [--rounds 7]

One video, drawn or taken from FILE, is encoded as robot data usually is. Each step is measured by itself, in turn, in
CPU microseconds per frame (the median of the rounds). The table also has alternatives that are not used, PyAV's
container and, where it loads, torchcodec. `two_threads` is the wall rate of two threads over that of one, best of the
rounds; it needs two quiet cores. `loader.py` measures samples and batches.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from understudy.video.codec_pool import CodecKey, borrow, decoder_bytes
from understudy.video.color import Converter
from understudy.video.decoder import FrameDecoder
from understudy.video.encode import encode_video
from understudy.video.open import open_video
from understudy.video.packets import open_packets

# name -> (encoder, GOP, side of a square or 0 for 640x480, constant rate factor, options)
ENCODINGS: dict[str, tuple[str, int, int, int, dict[str, str]]] = {
    "AV1 GOP 2, 640x480": ("libsvtav1", 2, 0, 30, {}),
    "AV1 GOP 2, 224x224": ("libsvtav1", 2, 224, 30, {}),
    "H.264 GOP 2, 640x480": ("libx264", 2, 0, 30, {}),
    "H.264 GOP 30, 640x480": ("libx264", 30, 0, 23, {}),
    "H.264 GOP 250, 640x480": ("libx264", 250, 0, 23, {"bf": "3"}),
    "H.264 GOP 250, 224x224": ("libx264", 250, 224, 23, {"bf": "3"}),
}
RUN = 16  # frames per call


def scene(count: int) -> Iterator[np.ndarray]:
    """uint8 (480, 640, 3) images: a textured table with camera noise, on which a few boxes move slowly."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:480, :640]
    table = 130 + 25 * np.sin(x / 37)[..., None] + 20 * np.cos(y / 23)[..., None]
    table = table + rng.normal(0, 8, (480, 640, 3))
    boxes = [(rng.uniform(0, 400, 2), rng.uniform(-2, 2, 2), rng.integers(20, 235, 3)) for _ in range(8)]
    for i in range(count):
        image = table + rng.normal(0, 1.5, table.shape)
        for start, speed, color in boxes:
            top, left = np.clip(start + i * speed, 0, (420, 560)).astype(int)
            image[top : top + 60, left : left + 80] = color
        yield np.clip(image, 0, 255).astype(np.uint8)


def video_frames(video: str, count: int) -> Iterator[np.ndarray]:
    reader = open_video(video)
    for begin in range(0, min(count, reader.count), RUN):
        yield from reader.read(np.arange(begin, min(begin + RUN, count, reader.count)))


def squared(images: Iterator[np.ndarray], side: int) -> Iterator[np.ndarray]:
    for image in images:
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        yield frame.reformat(side, side, "rgb24", interpolation="AREA").to_ndarray()


class Steps:
    """The steps of decoding one file. Each method runs its step and returns the number of frames."""

    def __init__(self, path: str) -> None:
        self.path, self.packets = path, open_packets(path)
        index = self.packets.index
        self.count, self.height, self.width = index.count, index.height, index.width
        self.converters: dict[tuple[tuple[int, int] | None, bool], Converter] = {}
        self.key = CodecKey.from_index(index)
        self.frames = [
            frame for _, frame in FrameDecoder(self.packets, path).frames(np.arange(min(2 * RUN, self.count)))
        ]
        self.packed = [VideoReformatter().reformat(frame, format="rgb24", threads=1) for frame in self.frames]
        self.planes = [VideoReformatter().reformat(frame, format="gbrp", threads=1) for frame in self.frames]
        self.batch = np.zeros((2 * RUN, 3, self.height, self.width), np.uint8)  # reused, as a loader's batches are
        self.last = np.zeros((2 * RUN, self.height, self.width, 3), np.uint8)

    def converter(self, settings: tuple[tuple[int, int] | None, bool]) -> Converter:
        """A converter shared by all rounds, as in a thread of the loader."""
        if settings not in self.converters:
            self.converters[settings] = Converter(*settings)
        return self.converters[settings]

    def packet(self) -> int:
        for i in range(self.count):
            self.packets.packet(i, self.count - 1)
        return self.count

    def codec(self) -> int:
        """Feed packets to a bare codec context."""
        context, out = borrow(self.key, self.path).context, 0
        for i in range(self.count):
            out += len(context.decode(self.packets.packet(i, self.count - 1)))
        assert out + len(context.decode(None)) == self.count
        return self.count

    def decoder(self) -> int:
        cursor = FrameDecoder(self.packets, self.path)
        for begin in range(0, self.count, RUN):
            for _ in cursor.frames(np.arange(begin, min(begin + RUN, self.count))):
                pass
        cursor.park()
        return self.count

    def whole(self) -> int:
        """Decode and convert into a batch: the hot path."""
        cursor, converter = FrameDecoder(self.packets, self.path), self.converter((None, True))
        for begin in range(0, self.count, RUN):
            for i, (_, frame) in enumerate(cursor.frames(np.arange(begin, min(begin + RUN, self.count)))):
                converter.write(frame, self.batch[i])
        cursor.park()
        return self.count

    def to_rgb(self, form: str) -> int:
        reformatter = VideoReformatter()
        for frame in self.frames * 2:
            reformatter.reformat(frame, None, None, form, threads=1)
        return 2 * len(self.frames)

    def convert(self, size: tuple[int, int] | None = None, exact: bool = True) -> int:
        converter = self.converter((size, exact))
        out = self.batch if size is None else np.zeros((2 * RUN, 3, *size), np.uint8)
        for frame, image in zip(self.frames, out):
            converter.write(frame, image)
        return len(self.frames)

    def copy_packed(self) -> int:
        for frame, image in zip(self.packed, self.last):
            image[...] = lines(frame, 0, self.height)[:, : self.width * 3].reshape(image.shape)
        return len(self.packed)

    def turn_packed(self) -> int:
        for frame, image in zip(self.packed, self.batch):
            flat = lines(frame, 0, self.height)[:, : self.width * 3]
            image[...] = flat.reshape(self.height, self.width, 3).transpose(2, 0, 1)
        return len(self.packed)

    def copy_planes(self) -> int:
        for frame, image in zip(self.planes, self.batch):
            for plane, channel in enumerate((1, 2, 0)):
                image[channel] = lines(frame, plane, self.height)[:, : self.width]
        return len(self.planes)

    def container(self) -> int:
        with av.open(self.path) as file:
            stream, reformatter, seen = file.streams.video[0], VideoReformatter(), 0
            stream.thread_count = 1
            for frame in file.decode(stream):
                reformatter.reformat(frame, None, None, "rgb24", threads=1)
                seen += 1
        return seen

    def torchcodec(self) -> int:
        from torchcodec.decoders import VideoDecoder

        decoder = VideoDecoder(self.path, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="approximate")
        for begin in range(0, self.count, RUN):
            decoder.get_frames_in_range(begin, min(begin + RUN, self.count))
        return self.count


def lines(frame: av.VideoFrame, plane: int, height: int) -> np.ndarray:
    return np.frombuffer(memoryview(frame.planes[plane]), np.uint8).reshape(height, -1)


def two_threads(path: str, rounds: int, seconds: float = 0.3) -> float:
    """Frames per second of two threads, each with its own decoder, over those of one."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    steps = [Steps(path), Steps(path)]

    def work(mine: Steps) -> None:
        while time.perf_counter() < until:
            done.append(mine.whole())

    for _ in range(rounds):
        for threads, found in rates.items():
            done: list[int] = []
            workers = [threading.Thread(target=work, args=(mine,)) for mine in steps[:threads]]
            begin = time.perf_counter()
            until = begin + seconds
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            found.append(sum(done) / (time.perf_counter() - begin))
    return max(rates[2]) / max(rates[1])


def measure(path: str, rounds: int) -> dict[str, float | None]:
    """CPU microseconds per frame of every step."""
    steps = Steps(path)
    ways: dict[str, Callable[[], int]] = {
        "packet": steps.packet,
        "codec": steps.codec,
        "decoder": steps.decoder,
        "whole": steps.whole,
        "convert": steps.convert,
        "planar_colors": lambda: steps.to_rgb("gbrp"),
        "planar_copy": steps.copy_planes,
        "packed_colors": lambda: steps.to_rgb("rgb24"),
        "packed_copy": steps.copy_packed,
        "packed_turned": steps.turn_packed,
        "to_64_exact": lambda: steps.convert((64, 64)),
        "to_64_quick": lambda: steps.convert((64, 64), exact=False),
        "container": steps.container,
    }
    if steps.height > 224:
        ways |= {
            "to_224_exact": lambda: steps.convert((224, 224)),
            "to_224_quick": lambda: steps.convert((224, 224), exact=False),
        }
    with contextlib.suppress(ImportError, RuntimeError, OSError):
        steps.torchcodec()
        ways["torchcodec"] = steps.torchcodec
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = time.process_time()
            done = way()
            spent[name].append((time.process_time() - begin) / done * 1e6)
    found: dict[str, float | None] = dict.fromkeys(("torchcodec", "to_224_exact", "to_224_quick"))
    found |= {name: statistics.median(each) for name, each in spent.items()}
    return found | {"live_mb": decoder_bytes(steps.packets.index) / 1e6}


def render(rows: list[dict[str, Any]]) -> str:
    names = [name for name in rows[0] if name != "encoding"]
    width = max(len(row["encoding"]) for row in rows)
    head = " ".join([f"{'us per frame':<{width}}", *(f"{name:>14}" for name in names)])
    cells = [["-" if row[name] is None else f"{row[name]:.{1 + (row[name] < 10)}f}" for name in names] for row in rows]
    return "\n".join(
        [
            head,
            *(" ".join([f"{row['encoding']:<{width}}", *(f"{c:>14}" for c in each)]) for row, each in zip(rows, cells)),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--video", help="a video of 640x480 to encode; drawn where none is given")
    parser.add_argument("--frames", type=int, default=240, help="frames of each video")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    for name in ("frames", "rounds"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} is {getattr(arguments, name)}; give 1 or more")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (codec, gop, side, crf, options) in ENCODINGS.items():
            images = video_frames(arguments.video, arguments.frames) if arguments.video else scene(arguments.frames)
            path = Path(folder) / f"{len(rows)}.mp4"
            encode_video(path, squared(images, side) if side else images, 30, codec, gop, crf, options)
            found = measure(str(path), arguments.rounds)
            rows.append({"encoding": name, **found, "two_threads": two_threads(str(path), arguments.rounds)})
    conditions = {
        "video": arguments.video or "drawn",
        "frames": arguments.frames,
        "rounds": arguments.rounds,
        "pyav": av.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    print(json.dumps({"rows": rows, "conditions": conditions}) if arguments.json else render(rows))


if __name__ == "__main__":
    main()
