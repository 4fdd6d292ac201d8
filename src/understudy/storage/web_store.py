"""Files over HTTP: https://, s3:// by signed URLs, and the Hugging Face hub at one commit.

All three read through the client of `http_client.py`, so the same checks apply. Their drivers handle access: s3fs signs
URLs, huggingface_hub supplies the token.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlsplit, urlunsplit

from understudy.errors import DatasetError, SourceError, hub_remedy, is_offline, summarize
from understudy.storage.byte_source import CHANGED, RESTART
from understudy.storage.http_client import Address, HttpClient, HttpStatusError, RangeResponse
from understudy.storage.remote_store import Stat, call_driver, list_folder, open_fs, size_of, status_error
from understudy.storage.retry import RetryPolicy, TransientError

HEAD = 1 << 16
"""Bytes fetched when a file is opened: all of a small file, the index of many videos."""
_SIGNED = 3600  # seconds of validity of a signed URL
_REUSED = 600.0  # seconds for which a signed URL or redirect target is reused


class WebBackend(Protocol):
    """Differences between the kinds of web addresses.

    Attributes:
        pin: See `Store.pin`.
        hides: Whether a missing file looks forbidden without the right to list its folder.
    """

    pin: str
    hides: bool

    def name(self, path: str) -> str:
        """See `Store.name`."""

    def address(self, path: str) -> Address:
        """Return the URL and headers to request; raises DatasetError or its driver's errors."""

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        """See `Files.entries`."""

    def stat(self, path: str) -> Stat | None:
        """Return the version of a file if it is known without a request and cannot change."""


class WebStore:
    """Files of a web backend; see `Store`.

    The version of a file is its etag, or else its modification time. A file modified after the first response of its
    server changed during the run, even if this process opens it for the first time. Both times are by the server's
    clock.

    Args:
        backend: Kind of address.
        client: HTTP client.
        opened: Time of that first response in seconds since 1970; 0 before it.
    """

    def __init__(self, backend: WebBackend, client: HttpClient, opened: float = 0.0) -> None:
        self.backend, self._client, self._opened = backend, client, opened
        self._addresses: dict[str, tuple[Address, float]] = {}

    @property
    def pin(self) -> str:
        """See `Store.pin`."""
        return self.backend.pin or (repr(self._opened) if self._opened else "")

    def name(self, path: str) -> str:
        """See `Store.name`."""
        return self.backend.name(path)

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        """See `Files.entries`."""
        return self.backend.entries(folder)

    def stat(self, path: str, known: Stat | None, retry: RetryPolicy, stop: threading.Event) -> tuple[Stat, bytes]:
        """See `Store.stat`."""
        fixed = call_driver(lambda: self.backend.stat(path))
        if fixed is not None:
            return fixed, b""
        response = self._request(path, 0, HEAD, retry, stop, known.tag if known else "")
        modified = known.modified if response.unchanged and known else response.modified
        # A modification time after the response comes from the writer's clock and proves nothing.
        if self._opened and self._opened < modified <= (response.date or modified):
            raise SourceError("it was written after this run began to read the dataset", fix=RESTART)
        self._opened = self._opened or response.date
        if response.unchanged and known:
            return known, b""
        if response.total < 0:
            raise DatasetError("the server does not send its size", fix="copy the dataset to disk")
        if not response.tag:
            what = "the server sends neither an etag nor a time of change, so a change could not be noticed"
            raise DatasetError(what, fix="copy the dataset to disk, or serve it with one of them")
        return Stat(response.total, response.tag, response.modified), response.data

    def get(self, path: str, stat: Stat, offset: int, size: int, retry: RetryPolicy, stop: threading.Event) -> bytes:
        """See `Store.get`."""
        response = self._request(path, offset, size, retry, stop)
        if response.total not in (-1, stat.size) or (
            response.tag and not self.backend.pin and response.tag != stat.tag
        ):
            raise SourceError(CHANGED, fix=RESTART)
        if not response.tag and not self.backend.pin:
            raise TransientError("the server no longer sends the file's version", tries=4)
        if not response.data:
            raise TransientError(f"the server has no bytes from {offset} on, where the file has {stat.size}", tries=4)
        return response.data

    def abort(self) -> None:
        """See `Store.abort`."""
        self._client.abort()

    def _request(
        self, path: str, offset: int, size: int, retry: RetryPolicy, stop: threading.Event, known: str = ""
    ) -> RangeResponse:
        recent, until = self._addresses.get(path, (None, 0.0))
        if recent is not None and time.monotonic() < until:
            try:
                return self._client.get(recent, offset, size, retry, stop, known)
            except HttpStatusError:  # the signature or redirect has expired
                self._addresses.pop(path, None)
        address = call_driver(lambda: self.backend.address(path))
        try:
            response = self._client.get(address, offset, size, retry, stop, known)
        except HttpStatusError as error:
            raise status_error(error.status, self.backend.hides) from error
        if response.final:
            address = response.final
        self._addresses[path] = (address, time.monotonic() + _REUSED)
        return response


class HttpBackend:
    """https:// and http://; folders cannot be listed."""

    pin, hides = "", False

    def __init__(self, root: str, headers: Mapping[str, str]) -> None:
        self._root, self._headers = urlsplit(root), dict(headers)

    def name(self, path: str) -> str:
        """See `Store.name`."""
        return urlunsplit((*self._root[:2], f"{self._root.path.rstrip('/')}/{quote(path)}", "", ""))

    def address(self, path: str) -> Address:
        """See `WebBackend.address`."""
        path = f"{self._root.path.rstrip('/')}/{quote(path)}"
        return Address(urlunsplit(self._root._replace(path=path, fragment="")), self._headers)

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        """See `Files.entries`."""
        return None

    def stat(self, path: str) -> Stat | None:
        """See `WebBackend.stat`."""
        return None


class S3Backend:
    """s3://; s3fs lists folders and signs URLs."""

    pin, hides = "", True

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        self._root, self._options = root, dict(options)
        if not options.get("anon"):  # older signatures are refused for encrypted files and in newer regions
            signed = {"signature_version": "s3v4", **options.get("config_kwargs", {})}
            self._options["config_kwargs"] = signed
        client = options.get("client_kwargs", {})
        if not (options.get("endpoint_url") or client.get("endpoint_url") or client.get("region_name")):
            self._options.setdefault("cache_regions", True)  # such a signature names the bucket's region
        self._open()

    def _open(self) -> tuple[Any, str]:
        return open_fs(self._root, self._options)  # fsspec caches both per process

    def name(self, path: str) -> str:
        """See `Store.name`."""
        fs, base = self._open()
        return f"s3 {getattr(fs, 'endpoint_url', None) or ''} {base.rstrip('/')}/{path}"

    def address(self, path: str) -> Address:
        """See `WebBackend.address`."""
        fs, base = self._open()
        return Address(fs.sign(f"{base.rstrip('/')}/{path}", expiration=_SIGNED, **getattr(fs, "req_kw", {})))

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        """See `Files.entries`."""
        fs, base = self._open()
        return list_folder(fs, f"{base.rstrip('/')}/{folder}" if folder else base)

    def stat(self, path: str) -> Stat | None:
        """See `WebBackend.stat`."""
        return None


class HubBackend:
    """hf://datasets/...: a repository at one commit, which cannot change; huggingface_hub lists and resolves.

    Args:
        root: The hf:// address.
        options: Options of huggingface_hub's file system.
        commit: The commit to read; "" resolves the revision of the address.
    """

    hides = False

    def __init__(self, root: str, options: Mapping[str, Any], commit: str = "") -> None:
        self._fs, base = open_fs(root, dict(options))
        self._lock = threading.Lock()  # listing is not thread-safe
        try:
            at = self._fs.resolve_path(base)
            self._type, self._repo, self._folder = at.repo_type, at.repo_id, at.path_in_repo.strip("/")
            if not commit:
                from huggingface_hub import HfApi

                api = HfApi(endpoint=self._fs.endpoint, token=self._fs.token)
                commit = api.repo_info(self._repo, revision=at.revision, repo_type=self._type).sha or ""
        except Exception as error:
            what, fix = f"cannot be found on the hub: {summarize(error)}", hub_remedy(error)
            if is_offline(error):
                raise SourceError(what, where=root, fix=fix, transient=True) from error
            raise DatasetError(what, where=root, fix=fix) from error
        self.pin = commit

    def _inside(self, path: str) -> str:
        return "/".join(part for part in (self._folder, path) if part)

    def _full(self, path: str) -> str:
        return f"{self._type}s/{self._repo}@{self.pin}/{self._inside(path)}".rstrip("/")

    def name(self, path: str) -> str:
        """See `Store.name`."""
        return f"hf {self._fs.endpoint} {self._full(path)}"

    def address(self, path: str) -> Address:
        """See `WebBackend.address`."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        fs, inside = self._fs, self._inside(path)
        url = hf_hub_url(self._repo, inside, repo_type=self._type, revision=self.pin, endpoint=fs.endpoint)
        return Address(url, build_hf_headers(token=fs.token, library_name="understudy"))

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        """See `Files.entries`."""
        with self._lock:
            return list_folder(self._fs, self._full(folder))

    def stat(self, path: str) -> Stat | None:
        """See `WebBackend.stat`."""
        with self._lock:
            info = self._fs.info(self._full(path))
        if info["type"] == "directory":
            raise DatasetError("this is a folder, not a file", fix="restore the file")
        return Stat(size_of(info), f"commit {self.pin}")


def _verify(client: Mapping[str, Any]) -> bool | str | None:
    """Return botocore's setting for certificates."""
    verify: bool | str | None = client.get("verify", os.environ.get("AWS_CA_BUNDLE"))
    return verify


def web_store(root: str, options: Mapping[str, Any], pin: str = "") -> WebStore | None:
    """Return the store of an http, s3 or hf URL; None for other protocols."""
    protocol = root.partition("://")[0]
    if protocol in ("http", "https"):
        unused = dict(options)
        headers = {**unused.pop("client_kwargs", {}).get("headers", {}), **unused.pop("headers", {})}
        verify = unused.pop("verify", None)
        if unused:
            raise DatasetError(f"storage option {min(unused)!r} means nothing here", where=root, fix="headers, verify")
        return WebStore(HttpBackend(root, headers), HttpClient(verify), float(pin or 0))
    if protocol in ("s3", "s3a"):
        verify = _verify(options.get("client_kwargs", {}))
        return WebStore(S3Backend(root, options), HttpClient(verify), float(pin or 0))
    if protocol == "hf" and not root.startswith("hf://buckets/"):
        return WebStore(HubBackend(root, options, pin), HttpClient())
    return None
