"""Slow servers, and servers that report wrong sizes: reading ends in bounded time and memory."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy_base import SourceError
from understudy_base.testing.refusals import refused
from understudy_data.storage.dataset_root import Files
from understudy_data.storage.http_client import DeadlineExceeded, call_with_timeout
from understudy_data.storage.remote_options import RemoteOptions, RetryPolicy
from understudy_data.storage.remote_source import Fetcher
from understudy_data.testing.servers import Asked, RangeServer

DATA = np.random.default_rng(5).integers(0, 256, 200_000, np.uint8).tobytes()
HURRIED = RetryPolicy(
    deadline=0.5, stall=0.2, initial_backoff=0.001, max_backoff=0.004, min_rate=1e7
)
HEAD = (
    b'HTTP/1.1 206 OK\r\nETag: "a"\r\nContent-Range: bytes 0-1/2\r\nContent-Length: 2\r\nX-Filler: '
)


@contextlib.contextmanager
def serve_slowly(response: bytes, pause: float = 0.05) -> Iterator[int]:
    """Yield the port of a server that sends `response` to any request, one byte at a time."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.recv(1 << 16)
            for byte in response:
                connection.sendall(bytes([byte]))
                if over.wait(pause):
                    return

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)


def files_of(port: int, cache: Path, retry: RetryPolicy = HURRIED, scheme: str = "http") -> Files:
    return Files(f"{scheme}://127.0.0.1:{port}/set", RemoteOptions(cache=str(cache), retry=retry))


def test_deadline_includes_the_response_header(tmp_path: Path) -> None:
    """The header would arrive completely, each byte soon after the last, but not within the
    deadline.
    """
    with (
        serve_slowly(HEAD + b"x" * 60 + b"\r\n\r\nok") as port,
        refused("0.2 s", where="/set/a", kind=SourceError),
    ):
        files_of(port, tmp_path).read("a")


def test_header_in_pieces_is_accepted(tmp_path: Path) -> None:
    retry = RetryPolicy(deadline=30.0, stall=30.0)
    with serve_slowly(HEAD + b"x\r\n\r\nok", 0.0) as port:
        assert files_of(port, tmp_path, retry).read("a") == b"ok"


def test_deadline_includes_the_tls_handshake(tmp_path: Path) -> None:
    record = b"\x16\x03\x03\x40\x00" + bytes(200)  # the beginning of a record of 16 KiB
    with serve_slowly(record) as port, pytest.raises(SourceError):
        files_of(port, tmp_path, scheme="https").read("a")


def test_deadline_includes_redirects(tmp_path: Path) -> None:
    """Each redirect is quick enough; a chain of them has no more time than one response."""
    hops = 29
    with RangeServer({f"/set/{'x' * hops}": b"ok"}, latency=0.1) as server:

        def answer(asked: Asked) -> tuple[int, dict[str, str], bytes] | None:
            name = asked.path.rpartition("/")[2]
            return None if len(name) > hops - 1 else (302, {"Location": f"/set/{name}x"}, b"")

        server.answer = answer
        with pytest.raises(SourceError):
            files_of(server.port, tmp_path).read("x")
        assert len(server.log) < 2 * hops


def test_deadline_includes_the_name_lookup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    real = socket.getaddrinfo
    found: list[object] = []

    def lookup(host: str, *args: object, **more: object) -> object:
        if host != "slow.invalid":
            return real(host, *args, **more)  # type: ignore[arg-type]
        answered.wait(10.0)
        found.append(real("127.0.0.1", *args, **more))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with RangeServer({"/set/a": b"ok"}) as server:
        files = Files(
            f"http://slow.invalid:{server.port}/set",
            RemoteOptions(cache=str(tmp_path), retry=HURRIED),
        )
        with pytest.raises(SourceError):
            files.read("a")
        assert not found
        answered.set()


def test_call_with_timeout_returns_results_and_raises_errors() -> None:
    assert call_with_timeout(60.0, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        call_with_timeout(60.0, lambda: 1 // 0)
    never = threading.Event()
    with pytest.raises(DeadlineExceeded):
        call_with_timeout(0.01, lambda: never.wait(20.0))
    never.set()


# Sizes


def report_size(server: RangeServer, total: int) -> None:
    """Let all responses report `total` bytes per file; the sent bytes are correct."""

    def answer(asked: Asked) -> tuple[int, dict[str, str], bytes] | None:
        found = server.content(asked.path)
        if found is None or asked.first is None:
            return None
        if asked.first < 0:
            end = found[0][asked.first :]
            return (
                206,
                {"ETag": '"a"', "Content-Range": f"bytes {total - len(end)}-{total - 1}/{total}"},
                end,
            )
        assert asked.last is not None
        data = found[0][asked.first : asked.last + 1]
        if not data:
            return 416, {"ETag": '"a"', "Content-Range": f"bytes */{total}"}, b""
        place = f"bytes {asked.first}-{asked.first + len(data) - 1}/{total}"
        return 206, {"ETag": '"a"', "Content-Range": place}, data

    server.answer = answer


@pytest.mark.parametrize(
    "path", ["meta/info.json", "meta/tasks.parquet", "meta/tasks.jsonl", "videos/a.mp4"]
)
def test_implausible_size_raises_source_error(path: str, tmp_path: Path) -> None:
    with RangeServer({f"/set/{path}": DATA}) as server:
        report_size(server, 10**15)
        retry = RetryPolicy(deadline=5.0, stall=5.0, initial_backoff=0.001, max_backoff=0.004)
        with pytest.raises(SourceError) as caught:
            files_of(server.port, tmp_path, retry).source(path)
        assert str(caught.value.where).endswith(f"/set/{path}")
        assert str(10**15) in caught.value.what
        assert len(server.log) == 1


def test_wrong_size_ends_prefetching(tmp_path: Path) -> None:
    """A file reported as 200 GB raises an error, and requests soon end although the files are not
    closed.
    """
    table = tmp_path / "tasks.parquet"
    pq.write_table(pa.table({"a": np.arange(50_000)}), table)
    with RangeServer({"/set/meta/tasks.parquet": table.read_bytes()}) as server:
        report_size(server, 200 * 10**9)
        retry = RetryPolicy(deadline=5.0, stall=5.0, initial_backoff=0.001, max_backoff=0.004)
        with pytest.raises(SourceError):
            files_of(server.port, tmp_path / "cache", retry).table("meta/tasks.parquet")
        while any(thread.name == "understudy-fetch" for thread in threading.enumerate()):
            assert len(server.log) < 200
            time.sleep(0.01)


def test_fetcher_creates_jobs_for_free_threads_only() -> None:
    made = []
    done = threading.Semaphore(0)
    gate = threading.Event()

    def job(stop: threading.Event) -> None:
        gate.wait(20.0)
        done.release()

    def jobs() -> Iterator[object]:
        for number in range(1000):
            made.append(number)
            yield job

    fetcher = Fetcher(3)
    fetcher.submit(jobs())  # type: ignore[arg-type]
    assert len(made) <= 4
    gate.set()
    for _ in range(1000):
        assert done.acquire(timeout=20.0)
    fetcher.close(lambda: None)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Range": "bytes 0-65535/1000"},  # more than the file has
        {"Content-Range": f"bytes 0-65535/{'9' * 6000}"},
        {"Content-Range": "bytes 0-65535/²"},
    ],
)
def test_invalid_content_range_is_refused(headers: dict[str, str], tmp_path: Path) -> None:
    with RangeServer({}) as server:
        server.answer = lambda asked: (206, {"ETag": '"a"', **headers}, DATA[:65536])
        retry = RetryPolicy(deadline=5.0, stall=5.0, initial_backoff=0.001, max_backoff=0.004)
        with pytest.raises(SourceError):
            files_of(server.port, tmp_path, retry).source("a.mp4")
        assert len(server.log) == 4, "a server that always does so is not asked for long"
