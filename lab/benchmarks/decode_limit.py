"""Decode limits: throughput of the cores when they only decode a dataset's videos from front to
back.

Each limit uses one decoder per core, each on separate frames and with one thread. All use the same
frames in one run:

- `library`: sequential reading with a standard library into RGB, uint8, in the caller's memory. It
  is the faster of torchcodec (16 frames at a time into a tensor; if it loads) and PyAV (container,
  packed RGB, one array per frame). This is the column "of limit".
- `codec`: a stricter limit that no library reaches. Bare codec contexts decode packets in memory,
  without container or reading. RGB conversion writes into a frame that is never copied; no frame
  has separate memory.

With these codecs no loader exceeds `codec`, except one that keeps decoded frames in memory.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeAlias

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from loader_trial import Round, videos
from understudy_base import available_cores
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.video.native.swscale import reformat
from understudy_data.video.packets import main_stream, open_packets

_FRAMES = 2048  # per decoder, repeated: several episodes, since the cost of frames differs
_DECODERS = {"av1": "libdav1d"}  # FFmpeg's own "av1" decoder needs hardware


@dataclass(frozen=True)
class Stretch:
    """Frames of one file from a key frame on; `packets` are in decode order."""

    path: str
    local: bool
    codec: str
    extradata: bytes
    height: int
    width: int
    packets: list[bytes]
    stream: int = 0
    """Number of the stream in its file that the loader reads; 0 for remote ones, which no library
    reads here.
    """


Way: TypeAlias = Callable[[Stretch], Iterator[int]]
"""Decodes a stretch in an endless loop; yields the number of frames of each step."""


@dataclass
class Limit:
    """A decode limit, measured in rounds: the way of decoding with the best median over all rounds.

    Without a way, or without video, there is no limit: `figures` returns None.
    """

    ways: Mapping[str, Way]
    cameras: int
    stretches: Sequence[Stretch]
    """One per thread."""
    rounds: dict[str, list[Round]] = field(default_factory=dict)

    def measure(self, seconds: float) -> None:
        """Measure one round, `seconds` for each way."""
        for name, way in self.ways.items() if self.stretches else ():
            self.rounds.setdefault(name, []).append(self._run(way, seconds))

    def _run(self, way: Way, seconds: float) -> Round:
        counts = [0] * len(self.stretches)
        gate = threading.Barrier(len(counts) + 1)
        errors = []

        def work(number: int) -> None:
            frames = way(self.stretches[number])
            try:
                next(frames)  # the decoder is open and warm
                gate.wait()
                # at least one, even if this thread is scheduled late
                counts[number] += next(frames)
                while not done:
                    counts[number] += next(frames)
            except BaseException as error:
                errors.append(error)
                gate.abort()

        done: list[bool] = []
        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(counts))]
        for thread in threads:
            thread.start()
        try:
            gate.wait()
            start = time.perf_counter()
            cpu = time.process_time()
            time.sleep(seconds)
        except threading.BrokenBarrierError:
            pass
        finally:
            done.append(True)
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]
        return Round(sum(counts), time.perf_counter() - start, time.process_time() - cpu)

    def figures(self) -> dict[str, Any] | None:
        """Return {"by", "threads", "samples_per_s", "cpu_ms_per_sample"}; a sample is one frame of
        each camera.
        """
        if not self.rounds:
            return None
        rates = {
            name: median(trial.per_s for trial in rounds) for name, rounds in self.rounds.items()
        }
        best = max(rates, key=rates.__getitem__)
        return {
            "by": best,
            "threads": len(self.stretches),
            "samples_per_s": rates[best] / self.cameras,
            "cpu_ms_per_sample": median(trial.cpu_ms for trial in self.rounds[best]) * self.cameras,
        }

    def share(self, per_s: float) -> float | None:
        """Divide samples per second by the limit."""
        limit = self.figures()
        return per_s / limit["samples_per_s"] if limit else None


def limits(data: EpisodeDataset) -> tuple[Limit, Limit]:
    """Prepare the limits (library, codec), described above. Remote videos have no `library`
    limit.
    """
    cameras = len(videos(data))
    parts = stretches(data, available_cores()) if cameras else []
    libraries = dict(LIBRARIES) if all(part.local for part in parts) else {}
    if not _torchcodec_loads():
        libraries.pop("torchcodec", None)
    return Limit(libraries, cameras, parts), Limit({"bare codec": bare}, cameras, parts)


def stretches(data: EpisodeDataset, count: int) -> list[Stretch]:
    """Choose a stretch per decoder, of different cameras and files, or of different positions if
    those are too few.
    """
    catalog = data.catalog
    rows = data.catalog.episodes.rows_of(np.unique(data.segments[:, 0]))
    files: list[tuple[str, int]] = []
    for camera in videos(data):
        _, first = np.unique(catalog.videos(camera).file[rows], return_index=True)
        files += [(camera, int(rows[start])) for start in first]
    picked = [files[i * len(files) // count] for i in range(count)]
    out = []
    for number, (camera, row) in enumerate(picked):
        again = picked[:number].count((camera, row))
        path = catalog.video_path(camera, row)
        expected = int(catalog.videos(camera).expected[catalog.videos(camera).file[row]])
        packets = open_packets(catalog.files.source(path), expected)
        index = packets.index
        begin = again * len(index.display) // count
        begin = int(index.keys[np.searchsorted(index.keys, begin, side="right") - 1])
        end = min(len(index.display), begin + _FRAMES)
        coded = [bytes(packets.packet(i, end - 1)) for i in range(begin, end)]
        packets.close()
        where = catalog.files.where(path)
        local = catalog.files.is_local
        stream = _stream(where, expected) if local else 0
        out.append(
            Stretch(
                where, local, index.codec, index.extradata, index.height, index.width, coded, stream
            )
        )
    return out


def _stream(path: str, frames: int) -> int:
    """Return the number of the stream that the loader reads for so many frames."""
    with av.open(path) as file:
        return int(main_stream(file, frames).index)


def bare(stretch: Stretch) -> Iterator[int]:
    """Decode packets in memory with a codec context; RGB in planes, which is cheaper than
    packed.
    """
    context = create_context(stretch)
    converter = VideoReformatter()
    while True:
        for data in itertools.chain(stretch.packets, [None]):
            for frame in context.decode(data if data is None else make_packet(data)):
                reformat(converter, frame, "gbrp")
                yield 1
        context.flush_buffers()


def create_context(stretch: Stretch) -> av.VideoCodecContext:
    """Create a decoder of one thread for the packets of a stretch."""
    context = av.CodecContext.create(_DECODERS.get(stretch.codec, stretch.codec), "r")
    assert isinstance(context, av.VideoCodecContext)
    context.extradata = stretch.extradata or None
    context.thread_count = 1
    return context


def make_packet(data: bytes) -> av.Packet:
    """Make a packet with a copy of `data`."""
    packet = av.Packet(len(data))
    packet.update(data)
    return packet


def pyav(stretch: Stretch) -> Iterator[int]:
    """Decode the whole file with PyAV's container; uint8 arrays (H, W, 3)."""
    converter = VideoReformatter()
    while True:
        with av.open(stretch.path) as file:
            stream = next(stream for stream in file.streams.video if stream.index == stretch.stream)
            stream.thread_count = 1
            for frame in file.decode(stream):
                reformat(converter, frame, "rgb24").to_ndarray()
                yield 1


def torchcodec(stretch: Stretch) -> Iterator[int]:
    """Decode the whole file with torchcodec, 16 frames at a time, its fastest way; uint8 tensors
    (16, 3, H, W).
    """
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(
        stretch.path, stream_index=stretch.stream, num_ffmpeg_threads=1, seek_mode="approximate"
    )
    while True:
        for begin in range(0, len(decoder), 16):
            yield len(decoder.get_frames_in_range(begin, min(begin + 16, len(decoder))).data)


def _torchcodec_loads() -> bool:
    try:
        import torchcodec.decoders  # noqa: F401
    except (ImportError, RuntimeError, OSError):
        return False
    return True


LIBRARIES: dict[str, Way] = {"torchcodec": torchcodec, "PyAV": pyav}
