"""The decode limit: what the cores give when they do nothing but decode a dataset's videos from front to back.

One decoder per core, each on pictures of its own, each with one thread, to RGB that nobody copies. Of several
ways the best one counts: bare codecs fed from memory (no container, no reading), PyAV's container and, where it loads,
torchcodec. With these codecs no loader can be faster, except one that keeps decoded pictures in memory.

Not here: the loader (`bench_measure.py`).
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from understudy.data.packets import open_packets
from understudy.data.samples import EpisodeDataset
from understudy.tools.bench_measure import Round, cores, videos

_PICTURES = 2048  # per decoder, over and over: several episodes, for pictures differ in what they cost
_DECODERS = {"av1": "libdav1d"}  # FFmpeg's own "av1" decoder only drives hardware


@dataclass(frozen=True)
class Stretch:
    """Pictures of one file from a key frame on: `packets` in decode order."""

    path: str
    local: bool
    codec: str
    extradata: bytes
    packets: list[bytes]


@dataclass
class Limit:
    """Measure in rounds: every way in the first, from then on the best one.

    Without video there is no limit: `found` is None.
    """

    data: EpisodeDataset
    by: str = ""
    """The best way."""
    _rounds: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._cameras = len(videos(self.data))
        self._threads = cores()
        self._stretches = stretches(self.data, self._threads) if self._cameras else []

    def measure(self, seconds: float) -> None:
        """One round."""
        if not self._stretches:
            return
        if not self._rounds:
            local = all(stretch.local for stretch in self._stretches)
            there = {name: way for name, way in WAYS.items() if local or way is bare}
            if not _torchcodec_loads():
                there.pop("torchcodec", None)
            first = {name: self._run(way, seconds / len(there)) for name, way in there.items()}
            self.by = max(first, key=lambda name: first[name].per_s)
            self._rounds = [first[self.by]]
        else:
            self._rounds.append(self._run(WAYS[self.by], seconds))

    def _run(self, way: Callable[[Stretch], Iterator[None]], seconds: float) -> Round:
        counts = [0] * self._threads
        gate, errors = threading.Barrier(self._threads + 1), []

        def work(number: int) -> None:
            pictures = way(self._stretches[number % len(self._stretches)])
            try:
                next(pictures)  # the decoder is open and warm
                gate.wait()
                while not done:
                    next(pictures)
                    counts[number] += 1
            except BaseException as error:
                errors.append(error)
                gate.abort()

        done: list[bool] = []
        threads = [threading.Thread(target=work, args=(number,)) for number in range(self._threads)]
        for thread in threads:
            thread.start()
        try:
            gate.wait()
            start, cpu = time.perf_counter(), time.process_time()
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

    def found(self) -> dict[str, Any] | None:
        """{"by", "threads", "samples_per_s", "cpu_ms_per_sample"}, a sample being one picture of each camera."""
        if not self._rounds:
            return None
        return {
            "by": self.by,
            "threads": self._threads,
            "samples_per_s": median(one.per_s for one in self._rounds) / self._cameras,
            "cpu_ms_per_sample": median(one.cpu_ms for one in self._rounds) * self._cameras,
        }

    def share(self, per_s: float) -> float | None:
        """Samples per second in units of the limit."""
        found = self.found()
        return per_s / found["samples_per_s"] if found else None


def stretches(data: EpisodeDataset, count: int) -> list[Stretch]:
    """One for each decoder: of different cameras and files, or of different places where there are too few."""
    catalog, rows = data.catalog, data.catalog.episodes.rows_of(np.unique(data.segments[:, 0]))
    files: list[tuple[str, int]] = []
    for camera in videos(data):
        _, first = np.unique(catalog.videos(camera).file[rows], return_index=True)
        files += [(camera, int(rows[at])) for at in first]
    picked = [files[i * len(files) // count] for i in range(count)]
    out = []
    for number, (camera, row) in enumerate(picked):
        again = picked[:number].count((camera, row))
        path = catalog.video_path(camera, row)
        packets = open_packets(catalog.files.source(path))
        index = packets.index
        begin = again * len(index.display) // count
        begin = int(index.keys[np.searchsorted(index.keys, begin, side="right") - 1])
        end = min(len(index.display), begin + _PICTURES)
        coded = [bytes(packets.packet(i, end - 1)) for i in range(begin, end)]
        packets.close()
        out.append(Stretch(catalog.files.where(path), catalog.files.is_local, index.codec, index.extradata, coded))
    return out


def bare(stretch: Stretch) -> Iterator[None]:
    """Decode and convert one picture at each step, without end: a codec context and packets in memory."""
    context = av.CodecContext.create(_DECODERS.get(stretch.codec, stretch.codec), "r")
    assert isinstance(context, av.VideoCodecContext)
    context.extradata = stretch.extradata or None
    context.thread_count = 1
    converter = VideoReformatter()
    while True:
        for data in itertools.chain(stretch.packets, [None]):
            packet = None
            if data is not None:
                packet = av.Packet(len(data))
                packet.update(data)
            for frame in context.decode(packet):
                converter.reformat(
                    frame, format="gbrp", threads=1
                )  # planes: cheaper than packed, so the stricter limit
                yield
        context.flush_buffers()


def container(stretch: Stretch) -> Iterator[None]:
    """The same through PyAV's container, over the whole file."""
    converter = VideoReformatter()
    while True:
        with av.open(stretch.path) as file:
            file.streams.video[0].thread_count = 1
            for frame in file.decode(video=0):
                converter.reformat(frame, format="rgb24", threads=1)
                yield


def torchcodec(stretch: Stretch) -> Iterator[None]:
    """The same through torchcodec, 16 pictures at a time."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(stretch.path, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="approximate")
    while True:
        for begin in range(0, len(decoder), 16):
            for _ in decoder.get_frames_in_range(begin, min(begin + 16, len(decoder))).data:
                yield


def _torchcodec_loads() -> bool:
    try:
        import torchcodec.decoders  # noqa: F401
    except (ImportError, RuntimeError, OSError):
        return False
    return True


WAYS: dict[str, Callable[[Stretch], Iterator[None]]] = {
    "bare codec": bare,
    "container": container,
    "torchcodec": torchcodec,
}
