"""Files behind web addresses: https://, s3:// by signed addresses, and the Hugging Face hub at one commit.

All three read through the one client of `http.py`, so the same checks hold for all. Who may read is the business of the
drivers: s3fs signs, huggingface_hub knows the token.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlsplit, urlunsplit

from understudy.errors import DatasetError, SourceError
from understudy.storage.http import Address, HttpClient, HttpStatusError, RangeResponse
from understudy.storage.retry import RetryPolicy, TransientError
from understudy.storage.source import CHANGED, RESTART
from understudy.storage.stores import Stat, call_driver, list_folder, open_fs, short, size_of, status_error

HEAD = 1 << 16  # bytes that come along when a file is opened: small files whole, the index of many videos
_SIGNED = 3600  # seconds for which an address is signed
_KEPT = 600.0  # seconds for which an address that was signed or redirected to is used again


class WebBackend(Protocol):
    """What differs between the kinds of web addresses."""

    pin: str
    hides: bool  # whether a file that is not there looks forbidden to those who may not list

    def name(self, path: str) -> str: ...

    def address(self, path: str) -> Address:
        """Where to ask. Raises DatasetError, or whatever its driver raises."""

    def entries(self, folder: str) -> list[tuple[str, bool]] | None: ...

    def stat(self, path: str) -> Stat | None:
        """What the file is, where that is known without asking it and cannot change."""


class WebStore:
    """The files of a site; see `Store`.

    A version is the etag, or the time of change where there is none. A file that has changed since the first answer of
    its server (both times are the server's) has changed in mid-run, even if this process never met it before.

    Args:
        opened: seconds since 1970 of that first answer; 0 before it.
    """

    def __init__(self, site: WebBackend, client: HttpClient, opened: float = 0.0) -> None:
        self.site, self._client, self._opened = site, client, opened
        self._kept: dict[str, tuple[Address, float]] = {}

    @property
    def pin(self) -> str:
        return self.site.pin or (repr(self._opened) if self._opened else "")

    def name(self, path: str) -> str:
        return self.site.name(path)

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        return self.site.entries(folder)

    def stat(self, path: str, known: Stat | None, retry: RetryPolicy, stop: threading.Event) -> tuple[Stat, bytes]:
        there = call_driver(lambda: self.site.stat(path))
        if there is not None:
            return there, b""
        answer = self._ask(path, 0, HEAD, retry, stop, known.tag if known else "")
        modified = known.modified if answer.unchanged and known else answer.modified
        if self._opened and self._opened < modified <= (answer.date or modified):  # in its future: a writer's clock
            raise SourceError("it was written after this run began to read the dataset", fix=RESTART)
        self._opened = self._opened or answer.date
        if answer.unchanged and known:
            return known, b""
        if answer.total < 0:
            raise DatasetError("the server does not say how many bytes it has", fix="copy the dataset to disk")
        if not answer.tag:
            what = "the server says neither an etag nor a time of change, so a change could not be noticed"
            raise DatasetError(what, fix="copy the dataset to disk, or serve it with one of them")
        return Stat(answer.total, answer.tag, answer.modified), answer.data

    def get(self, path: str, stat: Stat, offset: int, size: int, retry: RetryPolicy, stop: threading.Event) -> bytes:
        answer = self._ask(path, offset, size, retry, stop)
        if answer.total not in (-1, stat.size) or (answer.tag and not self.site.pin and answer.tag != stat.tag):
            raise SourceError(CHANGED, fix=RESTART)
        if not answer.tag and not self.site.pin:
            raise TransientError("the server does not say any more which version it sends", tries=4)
        if not answer.data:
            raise TransientError(f"the server has no bytes from {offset} on, where the file has {stat.size}", tries=4)
        return answer.data

    def abort(self) -> None:
        self._client.abort()

    def _ask(
        self, path: str, offset: int, size: int, retry: RetryPolicy, stop: threading.Event, known: str = ""
    ) -> RangeResponse:
        kept, until = self._kept.get(path, (None, 0.0))
        if kept is not None and time.monotonic() < until:
            try:
                return self._client.get(kept, offset, size, retry, stop, known)
            except HttpStatusError:  # a signature or redirect that is no longer good
                self._kept.pop(path, None)
        address = call_driver(lambda: self.site.address(path))
        try:
            answer = self._client.get(address, offset, size, retry, stop, known)
        except HttpStatusError as error:
            raise status_error(error.status, self.site.hides) from error
        if answer.final:
            address = answer.final
        self._kept[path] = (address, time.monotonic() + _KEPT)
        return answer


class HttpBackend:
    """https:// and http://, with no listings."""

    pin, hides = "", False

    def __init__(self, root: str, headers: Mapping[str, str]) -> None:
        self._root, self._headers = urlsplit(root), dict(headers)

    def name(self, path: str) -> str:
        return urlunsplit((*self._root[:2], f"{self._root.path.rstrip('/')}/{quote(path)}", "", ""))

    def address(self, path: str) -> Address:
        path = f"{self._root.path.rstrip('/')}/{quote(path)}"
        return Address(urlunsplit(self._root._replace(path=path, fragment="")), self._headers)

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        return None

    def stat(self, path: str) -> Stat | None:
        return None


class S3Backend:
    """s3://: s3fs lists and signs."""

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
        return open_fs(self._root, self._options)  # fsspec keeps them, apart for each process

    def name(self, path: str) -> str:
        fs, base = self._open()
        return f"s3 {getattr(fs, 'endpoint_url', None) or ''} {base.rstrip('/')}/{path}"

    def address(self, path: str) -> Address:
        fs, base = self._open()
        return Address(fs.sign(f"{base.rstrip('/')}/{path}", expiration=_SIGNED, **getattr(fs, "req_kw", {})))

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        fs, base = self._open()
        return list_folder(fs, f"{base.rstrip('/')}/{folder}" if folder else base)

    def stat(self, path: str) -> Stat | None:
        return None


class HubBackend:
    """hf://datasets/...: a repository at one commit, which cannot change; huggingface_hub lists and resolves.

    Args:
        commit: the commit to read; "" for what the address's revision is now.
    """

    hides = False

    def __init__(self, root: str, options: Mapping[str, Any], commit: str = "") -> None:
        self._fs, base = open_fs(root, dict(options))
        self._lock = threading.Lock()  # the file system's listings are not made for several threads
        try:
            at = self._fs.resolve_path(base)
            self._type, self._repo, self._folder = at.repo_type, at.repo_id, at.path_in_repo.strip("/")
            if not commit:
                from huggingface_hub import HfApi

                api = HfApi(endpoint=self._fs.endpoint, token=self._fs.token)
                commit = api.repo_info(self._repo, revision=at.revision, repo_type=self._type).sha or ""
        except Exception as error:
            fix = "check the name, log in with `hf auth login`, or set HF_TOKEN"
            raise DatasetError(f"cannot be found on the hub: {short(error)}", where=root, fix=fix) from error
        self.pin = commit

    def _inside(self, path: str) -> str:
        return "/".join(part for part in (self._folder, path) if part)

    def _full(self, path: str) -> str:
        return f"{self._type}s/{self._repo}@{self.pin}/{self._inside(path)}".rstrip("/")

    def name(self, path: str) -> str:
        return f"hf {self._fs.endpoint} {self._full(path)}"

    def address(self, path: str) -> Address:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        fs, inside = self._fs, self._inside(path)
        url = hf_hub_url(self._repo, inside, repo_type=self._type, revision=self.pin, endpoint=fs.endpoint)
        return Address(url, build_hf_headers(token=fs.token, library_name="understudy"))

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        with self._lock:
            return list_folder(self._fs, self._full(folder))

    def stat(self, path: str) -> Stat | None:
        with self._lock:
            info = self._fs.info(self._full(path))
        if info["type"] == "directory":
            raise DatasetError("a folder lies where a file should be", fix="restore the file")
        return Stat(size_of(info), f"commit {self.pin}")


def _verify(client: Mapping[str, Any]) -> bool | str | None:
    """What botocore would check certificates with."""
    found: bool | str | None = client.get("verify", os.environ.get("AWS_CA_BUNDLE"))
    return found


def web_store(root: str, options: Mapping[str, Any], pin: str = "") -> WebStore | None:
    """The store of a URL whose bytes come over HTTP, None for any other."""
    protocol = root.partition("://")[0]
    if protocol in ("http", "https"):
        asked = dict(options)
        headers = {**asked.pop("client_kwargs", {}).get("headers", {}), **asked.pop("headers", {})}
        verify = asked.pop("verify", None)
        if asked:
            raise DatasetError(f"storage option {min(asked)!r} means nothing here", where=root, fix="headers, verify")
        return WebStore(HttpBackend(root, headers), HttpClient(verify), float(pin or 0))
    if protocol in ("s3", "s3a"):
        verify = _verify(options.get("client_kwargs", {}))
        return WebStore(S3Backend(root, options), HttpClient(verify), float(pin or 0))
    if protocol == "hf" and not root.startswith("hf://buckets/"):
        return WebStore(HubBackend(root, options, pin), HttpClient())
    return None
