"""HTTP by the environment: proxies, `.netrc` and certificates; headers on redirects."""

import base64
import os
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from understudy_base.testing.refusals import refused
from understudy_data.storage.dataset_root import Files
from understudy_data.storage.remote_options import RemoteOptions, RetryPolicy
from understudy_data.testing.servers import RangeServer

DATA = np.random.default_rng(4).integers(0, 256, 200_000, np.uint8).tobytes()
QUICK = RetryPolicy(deadline=120.0, stall=60.0, initial_backoff=0.001, max_backoff=0.004)
PATH = "/set/a b.mp4"


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Clear the settings of the environment."""
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
        "curl_ca_bundle",
        "requests_ca_bundle",
    ):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with RangeServer({PATH: DATA}) as server:
        yield server


def files_of(url: str, cache: Path, retry: RetryPolicy = QUICK, **options: object) -> Files:
    return Files(url + "/set", RemoteOptions(options, str(cache / "cache"), retry=retry))


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_proxy_gets_absolute_urls(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://who:what@127.0.0.1:{server.port}")
    source = files_of("http://far.invalid", tmp_path).source("a b.mp4")
    assert source.read(100_000, 50_000) == DATA[100_000:150_000]
    assert all(asked.headers["host"] == "far.invalid" for asked in server.log)
    assert all(asked.headers["proxy-authorization"] == basic("who", "what") for asked in server.log)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert (
        files_of(server.url, tmp_path).source("a b.mp4").read(190_000, 10) == DATA[190_000:190_010]
    )


def test_close_ends_a_transfer_through_a_proxy(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    files = files_of("http://far.invalid", tmp_path, RetryPolicy(deadline=60.0, stall=30.0))
    source = files.source("a b.mp4")
    server.fault = lambda n, asked: "stall"
    server.stall = 30.0
    source.prefetch(np.array([[100_000, 10_000]]))
    while not any(asked.sent == 6_666 for asked in server.log):
        time.sleep(0.002)
    files.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "understudy-fetch"]


def test_netrc_is_used_unless_options_have_credentials(server: RangeServer, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login who password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    files_of(server.url, tmp_path).source("a b.mp4").read(100_000, 10)
    assert {asked.headers["authorization"] for asked in server.log} == {basic("who", "secret")}
    server.log.clear()
    for name in ("Authorization", "authorization"):
        files_of(server.url, tmp_path, headers={name: "Bearer own"}).source("a b.mp4").read(
            110_000, 10
        )
    assert {asked.headers["authorization"] for asked in server.log} == {"Bearer own"}


def test_user_and_password_in_the_url_are_sent(server: RangeServer, tmp_path: Path) -> None:
    source = files_of(f"http://who:what@127.0.0.1:{server.port}", tmp_path).source("a b.mp4")
    assert source.read(100_000, 10) == DATA[100_000:100_010]
    assert {asked.headers["authorization"] for asked in server.log} == {basic("who", "what")}


def test_redirect_to_a_file_url_is_refused(server: RangeServer, tmp_path: Path) -> None:
    server.answer = lambda asked: (302, {"Location": "file:///etc/hosts"}, b"")
    with refused("InvalidSchema", where="a b.mp4"):
        files_of(server.url, tmp_path).source("a b.mp4")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_certificates_of_options_and_environment(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = str(tmp_path / "key")
    certificate = str(tmp_path / "certificate")
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    new = ["-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    subprocess.run(["openssl", "req", *new, *name], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    url = f"https://{urlsplit(server.url).netloc}"
    with refused("certificate", where="a b.mp4", fix="REQUESTS_CA_BUNDLE"):
        files_of(url, tmp_path).source("a b.mp4")
    assert files_of(url, tmp_path, verify=certificate).source("a b.mp4").read(9, 9) == DATA[9:18]
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificate)
    assert files_of(url, tmp_path).source("a b.mp4").read(100_000, 9) == DATA[100_000:100_009]
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", os.devnull + "/none")
    with refused("OSError", where="a b.mp4", fix="REQUESTS_CA_BUNDLE"):
        files_of(url, tmp_path).source("a b.mp4")
