"""The loader over a server with 30 ms of latency and a limited rate: `remote_rows(...)`, part of `loader.py`.

One packed video file of LeRobot's default size for each GOP is served by nginx, or by the tests' own server where there
is none, behind a proxy that adds the latency and counts the bytes. An epoch is read from disk and from there in turn,
each in a process of its own, the latter with an empty cache.

Not here: how the datasets are made (`loader_sets.py`).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from loader_sets import FILE_BYTES, Encoding, Recording, joined

LATENCY = 0.03
RATE = 60  # MB/s of each connection
BATCH, CHUNK, MEMORY = 32, 16, 500_000_000
KINDS = (Encoding("libsvtav1", 2, 0), Encoding("libx264", 12, 0, 28), Encoding("libx264", 250, 0, 23, 3))
NGINX = """daemon off; pid {home}/pid; error_log {home}/error; worker_processes 1;
events {{ worker_connections 256; }}
http {{ access_log off; client_body_temp_path {home}/a; proxy_temp_path {home}/b; fastcgi_temp_path {home}/c;
uwsgi_temp_path {home}/d; scgi_temp_path {home}/e;
server {{ listen 127.0.0.1:{port}; root {root}; limit_rate {rate}m; }} }}
"""


def remote_rows(cache: Path, real: Path | None, quick: bool = False) -> list[dict[str, Any]]:
    """Rows of {server, gop, amplification, first_batch_fraction_of_file, over_local} and what they were made of.

    Args:
        cache: where the datasets are kept; real: the folder with the real recordings, if any; quick: tiny.
    """
    folder = cache / ("quick" if quick else "real" if real else "drawn")
    recorded = Recording(folder, real, episodes=8, frames=24 if quick else 266, height=64 if quick else 480)
    rows = []
    for kind in KINDS:
        parts = recorded.encoded(Encoding(kind.codec, kind.gop, 64, kind.crf, 0) if quick else kind)
        size = sum(part.stat().st_size for part in parts)
        tiles = 2 if quick else max(2, round(FILE_BYTES / size))
        root = joined(folder / f"remote-{kind.codec}-g{kind.gop}", parts, tiles, cameras=1)
        rows.append(measure(root, kind.gop))
    return rows


def measure(root: Path, gop: int) -> dict[str, Any]:
    """One row."""
    here = read(str(root), "")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        name, port = stack.enter_context(served(root, home))
        counter = home / "bytes"
        proxy = [sys.executable, str(Path(__file__).with_name("delay_proxy.py")), str(port), str(LATENCY), str(counter)]
        url = f"http://127.0.0.1:{stack.enter_context(started(proxy))}"
        there = read(url, str(home / "cache"), str(counter))
    if there["checksum"] != here["checksum"]:
        raise SystemExit(f"{root}: other pictures from the server than from disk")
    video = max(root.rglob("*.mp4"), key=lambda path: path.stat().st_size).stat().st_size
    others = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and path.suffix != ".mp4")
    return {
        "server": name,
        "gop": gop,
        "amplification": (there["bytes"] - others) / there["picture_bytes"],
        "first_batch_fraction_of_file": max(0, there["first_bytes"] - others) / video,
        "over_local": there["samples_per_s"] / here["samples_per_s"],
        "samples_per_s": there["samples_per_s"],
        "local_samples_per_s": here["samples_per_s"],
        "cpu_ms_per_sample": there["cpu_ms_per_sample"],
        "local_cpu_ms_per_sample": here["cpu_ms_per_sample"],
        "first_batch_s": there["first_s"],
        "file_mb": video / 1e6,
        "latency_ms": LATENCY * 1e3,
        "rate_mb_per_s": RATE,
    }


def read(root: str, cache: str, counter: str = "") -> dict[str, Any]:
    """What a process of its own finds that reads one epoch."""
    asked = json.dumps({"root": root, "cache": cache, "counter": counter})
    found: dict[str, Any] = json.loads(subprocess.check_output([sys.executable, __file__, asked]))
    return found


def epoch(root: str, cache: str, counter: str) -> dict[str, Any]:
    """Read one epoch; the first tenth is not timed."""
    from understudy import Catalog, EpisodeDataset, Loader, Remote
    from understudy.load.plan import fit_order

    def count() -> int:
        return int(Path(counter).read_text()) if counter and Path(counter).exists() else 0

    begin = time.perf_counter()
    catalog = Catalog.open(root, Remote(cache=cache))
    data = EpisodeDataset(catalog, delta_timestamps={"action": [i / catalog.fps for i in range(CHUNK)]})
    (camera,) = catalog.camera_keys
    order = fit_order([data], memory=MEMORY, batch=BATCH, seed=0, frames_in_flight=len(data) // 2)[0]
    batches, checksum, first, first_s = len(data) // BATCH, 0, 0, 0.0
    with Loader([data], order=order, memory=MEMORY) as loader:
        for number in range(batches):
            batch = next(loader)
            if number == 0:
                first, first_s = count(), time.perf_counter() - begin
            if number == batches // 10:
                start, cpu = time.perf_counter(), time.process_time()
            checksum = (checksum * 31 + int(batch[camera].view(-1)[:: 1 << 14].sum())) % (1 << 61)
        timed = (batches - batches // 10 - 1) * BATCH
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    time.sleep(0.2)
    reader = data.pictures.reader(camera, 0)
    index = reader._packets.index  # type: ignore[attr-defined]
    return {
        "samples_per_s": timed / seconds,
        "cpu_ms_per_sample": cpu_seconds / timed * 1e3,
        "first_s": first_s,
        "first_bytes": first,
        "bytes": count(),
        "picture_bytes": int(index.size.sum()),
        "checksum": checksum,
    }


@contextmanager
def started(command: list[str]) -> Iterator[str]:
    """A process that prints one line and lives until its standard input ends; the line."""
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
    """(name of the server, its port)."""
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
    user = "user root; " if os.geteuid() == 0 else ""  # files of a test may be its owner's alone
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
    if sys.argv[1].startswith("{"):
        print(json.dumps(epoch(**json.loads(sys.argv[1]))))
    else:
        real = os.environ.get("UNDERSTUDY_TEST_DATA")
        quick = "--quick" in sys.argv
        print(json.dumps(remote_rows(Path(sys.argv[1]), Path(real) if real else None, quick), indent=1))
