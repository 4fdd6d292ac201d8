"""The server of `understudy view` against hostile requests, and its end by signals."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_tools.report.view.server import ViewServer
from understudy_tools.report.view.viewer import Source, Viewer


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("view") / "set"
    write_dataset(root, Spec(lengths=(3, 4)))
    return root


@pytest.fixture(scope="module")
def server(dataset: Path) -> Iterator[ViewServer]:
    catalog = Catalog.open(dataset)
    with ViewServer(Viewer([Source("set", catalog)], "set")) as opened:
        thread = threading.Thread(target=opened.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield opened
        opened.shutdown()
        thread.join()


def ask(
    server: ViewServer, path: str, method: str = "GET", word: bool = True, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers by lower-case name, and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    try:
        connection.request(
            method, (urlsplit(server.url).path if word else "/") + path, headers=headers
        )
        answer = connection.getresponse()
        return (
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            answer.read(),
        )
    finally:
        connection.close()


def test_server_answers_on_loopback_only(server: ViewServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    for path, kind in (
        ("", "text/html"),
        ("view.css", "text/css"),
        ("0/1/episode.json", "application/json"),
    ):
        status, headers, body = ask(server, path)
        assert (status, headers["content-type"].partition(";")[0]) == (200, kind)
        assert len(body) == int(headers["content-length"])
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost:80:80", "", "127.0.0.1@evil"]
)
def test_server_refuses_other_hosts(server: ViewServer, host: str) -> None:
    assert ask(server, "episodes.json", Host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:8000", "[::1]:1"])
def test_server_takes_this_machine_through_a_tunnel(server: ViewServer, host: str) -> None:
    assert ask(server, "episodes.json", Host=host)[0] == 200


@pytest.mark.parametrize(
    "path", ["", "episodes.json", "wrong/episodes.json", "/episodes.json", "é/"]
)
def test_server_needs_the_word_of_its_address(server: ViewServer, path: str) -> None:
    assert ask(server, path.replace("é", "%C3%A9"), word=False)[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "..%2f..%2f..%2fetc%2fpasswd",
        "%2e%2e/meta/info.json",
        "/etc/passwd",
        "0/1/../../meta/info.json",
        "view.html",
        "0/1/camera-0-0.png%00",
        "0/-1/episode.json",
        "0/1/camera-0-99.png",
        "a" * 5000,
    ],
)
def test_server_has_no_path_of_the_file_system(server: ViewServer, path: str) -> None:
    status, _, body = ask(server, path)
    assert status == 404
    assert b"root:" not in body
    assert b"codebase_version" not in body


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_server_takes_get_only(server: ViewServer, method: str) -> None:
    status, headers, body = ask(server, "episodes.json", method)
    assert (status, headers["allow"]) == (405, "GET")
    assert b"episodes" not in body


def test_server_takes_no_body_for_a_request(server: ViewServer) -> None:
    """A body that looks like a second request gets no answer."""
    path = urlsplit(server.url).path
    inner = f"GET {path}view.css HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=30) as client:
        head = (
            f"GET {path}episodes.json HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Length: {len(inner)}\r\n\r\n"
        )
        client.sendall(head.encode() + inner)
        received = b""
        try:
            while data := client.recv(1 << 16):
                received += data
        except ConnectionResetError:
            pass
    assert received.count(b"HTTP/1.1 200") == 1
    assert b"text/css" not in received


def test_server_names_the_error_of_a_broken_image(dataset: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path, Spec(version="v2.1", lengths=(3,)))
    viewer = Viewer([Source("set", Catalog.open(tmp_path))], "set")
    [video] = tmp_path.rglob("*.mp4")
    video.unlink()
    with ViewServer(viewer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        status, _, body = ask(server, "0/0/camera-0-0.png")
        server.shutdown()
        thread.join()
    assert status == 422
    assert b"episode_000000.mp4" in body


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_ends_quietly_by_signal(dataset: Path, number: signal.Signals) -> None:
    words = [sys.executable, "-m", "understudy_kit", "view", str(dataset), "--no-browser"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = re.search(r"http://\S+", line)
        assert url, line
        where = urlsplit(url[0])
        connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=60)
        connection.request("GET", where.path + "episodes.json")
        assert connection.getresponse().status == 200  # the connection stays open
        os.kill(process.pid, number)
        rest, errors = process.communicate(timeout=60)
        connection.close()
    assert (process.returncode, rest, errors) == (0, "", "")
