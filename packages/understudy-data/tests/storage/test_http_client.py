"""The client of range requests: one connection class for each host, whoever asks first."""

import threading
from concurrent.futures import ThreadPoolExecutor

from understudy_data.storage.http_client import Address, HttpClient
from understudy_data.storage.remote_options import RetryPolicy
from understudy_data.testing.servers import RangeServer

FILES = {"/a": bytes(range(100))}
RETRY = RetryPolicy(deadline=5, stall=5)


def read(client: HttpClient, url: str) -> bytes:
    return client.get(Address(url), 0, 100, RETRY, threading.Event()).data


def test_addresses_with_and_without_a_user_share_a_host() -> None:
    """Their connections are the same ones, and have one deadline each."""
    with RangeServer(FILES) as server:
        client = HttpClient()
        host = server.url.removeprefix("http://")
        for user in ("", "one:pass@", "two:pass@"):
            assert read(client, f"http://{user}{host}/a") == FILES["/a"]
            client.abort()  # so that the next one connects


def test_the_first_requests_of_many_threads() -> None:
    threads = 16
    for _ in range(8):
        with RangeServer(FILES) as server, ThreadPoolExecutor(threads) as pool:
            client = HttpClient()
            begin = threading.Barrier(threads)

            def first(
                _: int, client: HttpClient = client, begin: threading.Barrier = begin
            ) -> bytes:
                begin.wait()
                return read(client, f"{server.url}/a")

            assert list(pool.map(first, range(threads))) == [FILES["/a"]] * threads
