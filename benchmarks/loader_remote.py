"""The loader over a server with 30 ms of latency and a limited rate: `remote_rows(...)`, part of `loader.py`.

nginx, or the tests' own server where nginx is missing, serves one packed video file of LeRobot's default size per GOP.
A proxy in front of it adds the latency and counts the bytes. Each measurement is a process of its own:

- rate: the same first batches from disk and from the server with an empty cache, in turn, decoded and compared. The
  first third is not timed: lanes begin there, and no prefetch is possible before. Server and proxy share the cores;
- bytes: one whole epoch with an empty cache, through the loader without codec and color conversion (`without_codec`).
  All packets are read, but not decoded: 200 MB of them would take minutes.
"""

import heapq
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from loader_sets import FILE_BYTES, Encoding, Recording, joined

LATENCY = 0.03
RATE = 60  # MB/s of each connection
BATCH, CHUNK = 32, 16
ROUNDS, BATCHES, MEMORY = 3, 480, 500_000_000
QUICK = 1, 8, 4_000_000
KINDS = (Encoding("libsvtav1", 2, 0), Encoding("libx264", 12, 0, 28), Encoding("libx264", 250, 0, 23, 3))
NGINX = """daemon off; pid {home}/pid; error_log {home}/error; worker_processes 1;
events {{ worker_connections 256; }}
http {{ access_log off; client_body_temp_path {home}/a; proxy_temp_path {home}/b; fastcgi_temp_path {home}/c;
uwsgi_temp_path {home}/d; scgi_temp_path {home}/e;
server {{ listen 127.0.0.1:{port}; root {root}; limit_rate {rate}m; }} }}
"""


def remote_rows(
    cache: Path, real: Path | None, quick: bool = False, known: Sequence[int] = ()
) -> Iterator[dict[str, Any]]:
    """Rows of {server, gop, amplification, first_batch_fraction_of_file, over_local} and their inputs.

    Args:
        cache: folder of the datasets.
        real: folder with the real recordings, if any.
        quick: use tiny datasets.
        known: GOPs to leave out.
    """
    recorded = Recording(cache, real, quick)
    for kind in KINDS:
        if kind.gop in known:
            continue
        parts = recorded.encoded(Encoding(kind.codec, kind.gop, 64, kind.crf, 0) if quick else kind)
        size = sum(part.stat().st_size for part in parts)
        tiles = 2 if quick else max(2, int(FILE_BYTES / size))  # one file of the largest size
        root = joined(recorded.cache / f"packed-{kind.codec}-g{kind.gop}", parts, tiles, cameras=1)
        yield measure(root, kind.gop, *(QUICK if quick else (ROUNDS, BATCHES, MEMORY)))


def measure(root: Path, gop: int, rounds: int, batches: int, memory: int) -> dict[str, Any]:
    """Measure one row.

    `first_batch_needs_fraction` is the least that a reader must fetch for a first batch: the file's index, and the
    packets from key frames to the frames of the batch.
    """
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        name, port = stack.enter_context(served(root, home))
        counter = home / "bytes"
        proxy = [sys.executable, str(Path(__file__).with_name("delay_proxy.py")), str(port), str(LATENCY), str(counter)]
        url = f"http://127.0.0.1:{stack.enter_context(started(proxy))}"
        whole = read(url, home / "cache", counter, 0, memory)
        here, there = [], []
        for number in range(rounds):
            here.append(read(str(root), home, counter, batches, memory))
            there.append(read(url, home / f"cache-{number}", counter, batches, memory))
    if len({each["checksum"] for each in here + there}) > 1:
        raise SystemExit(f"{root}: the server gives other images than the disk")
    (video,) = (path.stat().st_size for path in root.rglob("*.mp4"))
    others = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and path.suffix != ".mp4")

    def middle(rows: list[dict[str, Any]], key: str) -> float:
        return statistics.median(row[key] for row in rows)

    return {
        "server": name,
        "gop": gop,
        "amplification": (whole["bytes"] - others) / whole["picture_bytes"],
        "first_batch_fraction_of_file": max(0, middle(there, "first_bytes") - others) / video,
        "first_batch_needs_fraction": (whole["first_needs"] + video - whole["picture_bytes"]) / video,
        "over_local": statistics.median(t["samples_per_s"] / h["samples_per_s"] for h, t in zip(here, there)),
        "samples_per_s": middle(there, "samples_per_s"),
        "local_samples_per_s": middle(here, "samples_per_s"),
        "cpu_ms_per_sample": middle(there, "cpu_ms_per_sample"),
        "local_cpu_ms_per_sample": middle(here, "cpu_ms_per_sample"),
        "first_batch_s": middle(there, "first_s"),
        "file_mb": video / 1e6,
        "pictures_per_file": whole["pictures"],
        "epoch_samples": whole["samples"],
        "epoch_decoded": False,
        "decoded_samples": here[0]["samples"],
        "rounds": rounds,
        "latency_ms": LATENCY * 1e3,
        "rate_mb_per_s": RATE,
    }


def read(root: str, cache: Path, counter: Path, batches: int, memory: int) -> dict[str, Any]:
    """Run `stretch` in a process of its own."""
    asked = json.dumps(
        {"root": root, "cache": str(cache), "counter": str(counter), "batches": batches, "memory": memory}
    )
    found: dict[str, Any] = json.loads(subprocess.check_output([sys.executable, __file__, asked]))
    return found


def stretch(root: str, cache: str, counter: str, batches: int, memory: int) -> dict[str, Any]:
    """Read `batches` batches, the first third untimed, or with 0 a whole epoch without the codec."""
    from understudy import Catalog, EpisodeDataset, Loader, RemoteOptions
    from understudy.load.choose_order import choose_order
    from understudy.video.index import Mp4Index
    from understudy.video.packets import open_packets

    def count() -> int:
        return int(Path(counter).read_text() or 0) if Path(counter).exists() else 0

    before, begin = count(), time.perf_counter()
    catalog = Catalog.open(root, RemoteOptions(cache=cache))
    data = EpisodeDataset(catalog, delta_timestamps={"action": [i / catalog.fps for i in range(CHUNK)]})
    (camera,) = catalog.camera_keys
    in_flight = len(data) // 2
    order = choose_order([data], memory=memory, batch_size=BATCH, seed=0, frames_in_flight=in_flight).order
    reader = data.video_frames.reader(camera, 0)
    with ExitStack() as stack:
        if not batches:
            stack.enter_context(without_codec(reader.height, reader.width))
        loader = stack.enter_context(Loader([data], order=order, memory=memory))
        last, checksum, first, first_s = batches or -(-len(data) // BATCH), 0, 0, 0.0
        for number in range(last):
            batch = next(loader)
            if number == 0:
                first, first_s = count() - before, time.perf_counter() - begin
            if number == last // 3:
                start, cpu = time.perf_counter(), time.process_time()
            checksum = (checksum * 31 + int(batch[camera].view(-1)[:: 1 << 14].sum())) % (1 << 61)
        timed = (last - last // 3 - 1) * BATCH
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    time.sleep(0.2)
    fetched = count() - before
    _, episode, frame = order.locate(range(BATCH))
    rows, frames = data.frames_to_decode(episode, frame)
    shown = data.catalog.videos(camera).first[rows] + frames[camera].reshape(-1)
    packets = open_packets(catalog.files.source(catalog.video_path(camera, 0)))
    index = packets.index
    assert isinstance(index, Mp4Index)
    return {
        "samples": last * BATCH,
        "samples_per_s": timed / seconds,
        "cpu_ms_per_sample": cpu_seconds / timed * 1e3,
        "first_s": first_s,
        "first_bytes": first,
        "bytes": fetched,
        "pictures": index.count,
        "first_needs": sum(int(packets.spans(one, one)[:, 1].sum()) for one in shown.tolist()),
        "picture_bytes": int(index.size.sum()),
        "checksum": checksum,
    }


@contextmanager
def without_codec(height: int, width: int) -> Iterator[None]:
    """Replace decoders: they return blank frames for their packets, in display order."""
    from understudy.video import codec_pool
    from understudy.video.color import Converter

    create, one, many = codec_pool.create_context, Converter.write, Converter.write_all
    codec_pool.create_context = lambda key, where: Blanks(key.reorder, height, width)  # type: ignore[assignment,return-value]
    Converter.write = Converter.write_all = lambda *_: None  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        codec_pool.create_context, Converter.write, Converter.write_all = create, one, many  # type: ignore[method-assign]


@dataclass
class Blank:
    """A frame with only those attributes that callers of a decoder read."""

    pts: int
    height: int
    width: int
    is_corrupt: bool = False
    format = SimpleNamespace(name="yuv420p")


class Blanks:
    """A codec that returns a blank frame once it has `reorder` later packets."""

    def __init__(self, reorder: int, height: int, width: int) -> None:
        self._reorder, self._size = reorder, (height, width)
        self._held: list[int] = []

    def decode(self, packet: Any) -> list[Blank]:
        keep = 0
        if packet is not None:
            heapq.heappush(self._held, packet.pts)
            keep = self._reorder
        return [Blank(heapq.heappop(self._held), *self._size) for _ in range(len(self._held) - keep)]

    def flush_buffers(self) -> None:
        self._held.clear()


@contextmanager
def started(command: list[str]) -> Iterator[str]:
    """Run a process that prints one line and ends with its standard input; yields the line."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.terminate()
        process.wait()


@contextmanager
def served(root: Path, home: Path) -> Iterator[tuple[str, int]]:
    """Serve a folder; yields the name of the server and its port."""
    nginx = shutil.which("nginx")
    if nginx is None:
        server = Path(__file__).parents[1] / "tests/support/servers.py"
        with started([sys.executable, str(server), str(root), "0", str(RATE << 20)]) as url:
            yield "python", int(url.rsplit(":", 1)[1])
        return
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.chmod(home, 0o755)
    config = home / "nginx.conf"
    user = "user root; " if os.geteuid() == 0 else ""  # test files may be readable by their owner only
    config.write_text(user + NGINX.format(home=home, port=port, root=root, rate=RATE))
    process = subprocess.Popen([nginx, "-c", str(config), "-e", str(home / "error")], stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield "nginx", port
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    from understudy import keep_freed_memory

    keep_freed_memory()  # as a training run does, here and in each child
    if sys.argv[1].startswith("{"):
        print(json.dumps(stretch(**json.loads(sys.argv[1]))))
    else:
        real = os.environ.get("UNDERSTUDY_TEST_DATA")
        quick = "--quick" in sys.argv
        print(json.dumps(list(remote_rows(Path(sys.argv[1]), Path(real) if real else None, quick)), indent=1))
