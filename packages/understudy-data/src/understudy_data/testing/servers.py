"""A small web server with byte ranges, counters and faults.

Runs in threads of the test process. As a program it serves a folder from another process and prints
its address:

    python packages/understudy-data/src/understudy_data/testing/servers.py FOLDER
        [LATENCY [BYTES_PER_SECOND]]
"""

from __future__ import annotations

import email.utils
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from understudy_data.storage.dataset_root import Files
from understudy_data.storage.remote_options import RetryPolicy

FAULTS = (
    "500",
    "429",
    "416",
    "whole",  # 200 with the whole file
    "truncate",  # fewer bytes than declared, then the connection ends
    "stall",  # some bytes, then silence
    "silence",  # no bytes
    "short",  # a correct part, shorter than requested
    "elsewhere",  # a correct part of another place
    "unsaid",  # a part without Content-Range
    "hangup",  # the connection ends without an answer
)


@dataclass
class Asked:
    """One request. `first` is negative for the last bytes of the file."""

    path: str
    first: int | None
    last: int | None
    status: int = 0
    sent: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    query: str = ""


class RangeServer:
    """Files by path ("/a/b.mp4"), from memory or a folder.

    Args:
        files: path -> content; or a folder.
        fault: called with the number of the request and the request; returns one of `FAULTS`, or
            "".
        stall: seconds of silence of the silent faults.
    """

    def __init__(
        self,
        files: dict[str, bytes] | Path,
        fault: Callable[[int, Asked], str] = lambda n, asked: "",
        latency: float = 0.0,
        rate: float = 0.0,
        stall: float = 1.0,
        port: int = 0,
    ) -> None:
        self.files = files
        self.fault = fault
        self.latency = latency
        self.rate = rate
        self.stall = stall
        self.log: list[Asked] = []
        self.written: dict[str, float] = {}  # path -> time of last change, of files in memory
        # sent with every answer, replacing the usual ones; "" removes one
        self.headers: dict[str, str] = {}
        self.answer: Callable[[Asked], tuple[int, dict[str, str], bytes] | None] = lambda asked: (
            None
        )
        self._lock = threading.Lock()
        self.port = port
        self.start()

    def start(self) -> None:
        server = self

        class Handler(_Handler):
            owner = server

        self.http = _Server(("127.0.0.1", self.port), Handler)
        self.port = self.http.server_address[1]
        self._thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop: connections end, the port is free."""
        self.http.shutdown()
        self.http.hang_up()
        self.http.server_close()
        self._thread.join()

    def __enter__(self) -> RangeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def sent(self) -> int:
        """Bytes of bodies of all answers with a file."""
        return sum(asked.sent for asked in self.log if asked.status in (200, 206))

    def note(self, asked: Asked) -> int:
        with self._lock:
            self.log.append(asked)
            return len(self.log) - 1

    def content(self, path: str) -> tuple[bytes, float] | None:
        if isinstance(self.files, dict):
            data = self.files.get(path)
            return None if data is None else (data, self.written.get(path, 1_600_000_000.0))
        file = self.files / path.lstrip("/")
        return (file.read_bytes(), file.stat().st_mtime) if file.is_file() else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, *args: Any) -> None:
        self.open: set[socket.socket] = set()
        self.accepted = 0  # connections so far
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        self.accepted += 1
        super().process_request(request, client_address)

    def hang_up(self) -> None:
        for request in list(self.open):
            try:
                request.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    owner: RangeServer

    def log_message(self, *_: Any) -> None:
        return None

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        owner = self.owner
        said = self.headers.get("Range", "")
        first = last = None
        if said.startswith("bytes="):
            low, _, high = said.removeprefix("bytes=").partition("-")
            first = int(low or f"-{high}")
            last = int(high) if low and high else None
        split = urlsplit(self.path)
        path = unquote(split.path)
        asked = Asked(
            path,
            first,
            last,
            headers={k.lower(): v for k, v in self.headers.items()},
            query=split.query,
        )
        fault = owner.fault(owner.note(asked), asked)
        if owner.latency:
            time.sleep(owner.latency)
        special = owner.answer(asked)
        if special is not None:
            self._send(asked, *special)
            return
        found = owner.content(path)
        if fault == "hangup":
            self.close_connection = True
            return
        if fault == "silence":
            time.sleep(owner.stall)
            self.close_connection = True
            return
        if fault in ("500", "429", "416") or found is None:
            status = int(fault) if fault else 404
            headers = {"Retry-After": "0"} if status == 429 else {}
            self._send(asked, status, headers, b"no")
            return
        data, written = found
        about = {
            "ETag": '"' + hashlib.md5(data).hexdigest() + '"',
            "Last-Modified": email.utils.formatdate(written, usegmt=True),
            "Accept-Ranges": "bytes",
        }
        about = {k: v for k, v in (about | owner.headers).items() if v}
        if about.get("ETag") and self.headers.get("If-None-Match") == about["ETag"]:
            self._send(asked, 304, about, b"")
            return
        if first is None or fault == "whole":
            self._send(asked, 200, about, data)
            return
        if first < 0 and data:
            first = max(0, len(data) + first)
        if not 0 <= first < len(data):
            self._send(asked, 416, about | {"Content-Range": f"bytes */{len(data)}"}, b"")
            return
        end = len(data) if last is None else min(len(data), last + 1)
        if fault == "short":
            end = first + max(1, (end - first) // 2)
        if fault == "elsewhere":
            first = max(0, first - 7)
            end = max(1, end - 7)
        where = (
            {} if fault == "unsaid" else {"Content-Range": f"bytes {first}-{end - 1}/{len(data)}"}
        )
        self._send(asked, 206, about | where, data[first:end], fault)

    def _send(
        self, asked: Asked, status: int, headers: dict[str, str], body: bytes, fault: str = ""
    ) -> None:
        asked.status = status
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault in ("truncate", "stall"):
            body = body[: max(1, len(body) * 2 // 3)]
            self.close_connection = True
        asked.sent = len(body)
        rate = self.owner.rate
        for at in range(0, len(body), 1 << 16):
            part = body[at : at + (1 << 16)]
            self.wfile.write(part)
            if rate:
                self.wfile.flush()
                time.sleep(len(part) / rate)
        self.wfile.flush()
        if fault == "stall":
            time.sleep(self.owner.stall)


def change_retry_policy(files: Files, retry: RetryPolicy) -> None:
    """Set patience from now on: on a busy machine, requests that must work need more time than
    those that must fail.
    """
    files.remote_files.options = replace(files.remote_files.options, retry=retry)


def folder(root: Path, under: str = "") -> dict[str, bytes]:
    """The files of a folder, for `RangeServer`."""
    paths: Iterable[Path] = (p for p in root.rglob("*") if p.is_file())
    return {f"{under}/{path.relative_to(root)}": path.read_bytes() for path in paths}
