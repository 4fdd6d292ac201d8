"""Stores of the remote files under one root, by relative path: `WebStore`, and `FsspecStore` for
any other file system.

A store tries once and raises TransientError if another attempt may succeed. It does not retry,
caches nothing and knows no other process.

https://, s3:// (by signed URLs) and the Hugging Face hub (at one commit) read through the client of
`http_client.py`, so the same checks apply. Their drivers handle access: s3fs signs URLs,
huggingface_hub supplies the token.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from understudy_base import (
    CREDENTIALS_HINT,
    DataAccessError,
    DatasetError,
    MissingFileError,
    Record,
    SourceError,
    hub_remedy,
    is_offline,
    pip_line,
    strip_credentials,
    summarize,
)
from understudy_data.storage.byte_source import CHANGED, RESTART
from understudy_data.storage.dataset_version import Stat
from understudy_data.storage.http_client import (
    END,
    Address,
    HttpClient,
    HttpStatusError,
    NoTailError,
    RangeResponse,
    call_with_timeout,
)
from understudy_data.storage.remote_options import RetryPolicy, TransientError

_LIST_TIMEOUT = 900.0  # seconds; a thousand entries take about 0.1
_TAGS = (
    "etag",
    "sha256",
    "md5hash",
    "contentmd5",
    "md5",
    "crc32c",
    "checksum",
    "xethash",
    "generation",
    "versionid",
)
_EXTRA = {"s3": "s3", "s3a": "s3", "hf": "hub"}  # protocol -> extra that installs its driver
_TIMES = ("lastmodified", "mtime", "modified", "updated", "created", "creationtime")


@dataclass(frozen=True)
class First:
    """Bytes that are fetched with the version of a file: the first `size` bytes of the file, or the
    last ones.
    """

    size: int
    is_tail: bool = False


class FsspecStore:
    """Any fsspec file system, read by `cat_file`; see `WebStore`.

    Its responses carry no version. The version is therefore requested after each read: if it has
    not changed, the bytes belong to it.
    """

    pin = ""

    def __init__(self, root: str, options: dict[str, Any]) -> None:
        self._root = root
        self._options = options
        open_fs(root, options)

    def _full(self, path: str) -> tuple[Any, str]:
        fs, base = open_fs(self._root, self._options)  # fsspec caches both per process
        full_path = f"{base.rstrip('/')}/{path}" if path else base
        return fs, full_path

    def name(self, path: str) -> str:
        """See `WebStore.name`."""
        return f"{strip_credentials(self._root).rstrip('/')}/{path}"

    def meet(
        self,
        path: str,
        known_stat: Stat | None,
        first: First,
        retry: RetryPolicy,
        stop: threading.Event,
    ) -> tuple[Stat, int, bytes]:
        """See `WebStore.meet`. It sends no bytes."""
        return self.ask(path, known_stat, retry, stop), 0, b""

    def ask(
        self, path: str, known_stat: Stat | None, retry: RetryPolicy, stop: threading.Event
    ) -> Stat:
        """See `WebStore.ask`."""
        fs, full = self._full(path)
        fs.invalidate_cache(fs._parent(full))
        info = call_driver(lambda: fs.info(full))
        if info.get("type") == "directory":
            raise DatasetError("this is a folder, not a file", fix="restore the file")
        return Stat(size_of(info), version_of(info), _modified(info))

    def get(
        self,
        path: str,
        stat: Stat,
        offset: int,
        size: int,
        retry: RetryPolicy,
        stop: threading.Event,
    ) -> bytes:
        """See `WebStore.get`."""
        fs, full = self._full(path)
        data = call_driver(lambda: _cat(fs, full, offset, offset + size, retry))
        if self.ask(path, None, retry, stop) != stat:
            raise SourceError(CHANGED, fix=RESTART)
        if not data or len(data) > size:
            raise TransientError(f"{len(data)} bytes were sent instead of {size}", tries=4)
        return bytes(data)

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        """See `Files.entries`."""
        return list_folder(*self._full(folder))

    def abort(self) -> None:
        """Do nothing: fsspec cannot interrupt a transfer."""


def open_fs(root: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return the fsspec file system of a URL and the path in it; DatasetError if its driver is
    missing.
    """
    from fsspec.core import url_to_fs

    try:
        fs, base = url_to_fs(root, **options)
    except ImportError as error:
        protocol = root.partition("://")[0]
        fix = pip_line(_EXTRA[protocol]) if protocol in _EXTRA else "install that package"
        raise DatasetError(
            f"no driver for {protocol}:// is installed: {summarize(error)}", where=root, fix=fix
        ) from error
    except Exception as error:
        problem = f"this address cannot be opened: {summarize(error)}"
        raise DatasetError(
            problem, where=root, fix="check the URL and that its fsspec driver is installed"
        ) from error
    return fs, base


def list_folder(fs: Any, full: str) -> list[tuple[str, bool]] | None:
    """Return (name, is a folder) of each entry, sorted; [] for a missing folder; None if listing
    fails.
    """
    try:
        entries = _ls(fs, full)
    except FileNotFoundError:
        return []
    except Exception:
        return None
    return sorted(
        (PurePosixPath(str(e["name"]).rstrip("/")).name, e.get("type") == "directory")
        for e in entries
    )


def _ls(fs: Any, full: str) -> Any:
    if not fs.async_impl:
        return call_with_timeout(_LIST_TIMEOUT, lambda: fs.ls(full, detail=True))
    from fsspec.asyn import sync  # unlike their `ls`, this has a timeout

    return sync(fs.loop, fs._ls, full, detail=True, timeout=_LIST_TIMEOUT)


def call_driver(act: Callable[[], Any]) -> Any:
    """Return `act()`, a call of a file system's driver, with its errors translated.

    Raises:
        DatasetError: Another attempt would fail, too.
        TransientError: All other errors.
    """
    try:
        return act()
    except (DataAccessError, TransientError):
        raise
    except FileNotFoundError as error:
        raise status_error(404) from error
    except IsADirectoryError as error:
        raise DatasetError("this is a folder, not a file", fix="restore the file") from error
    except PermissionError as error:
        raise SourceError(
            f"no permission: {summarize(error)}", fix="give credentials that may"
        ) from error
    except (ImportError, ValueError, TypeError, NotImplementedError) as error:
        raise DatasetError(
            f"access fails: {summarize(error)}", fix="check the address and its options"
        ) from error
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403, 404, 410):
            raise status_error(status) from error
        raise TransientError(f"access fails ({summarize(error)})") from error


def status_error(status: int, hides: bool = False) -> DataAccessError:
    """Return the error for an HTTP status that another attempt would meet again.

    Args:
        status: The status.
        hides: Whether the server answers 403 for a missing file (see `web.WebBackend`).
    """
    if status in (404, 410):
        return MissingFileError(
            "this file is not there", fix="check the address, or restore the file"
        )
    if status == 403 and hides:
        fix = "check the address, restore the file, or give credentials that may read it"
        return MissingFileError("this file is not there, or access is denied (403)", fix=fix)
    if status in (401, 403):
        fix = f"check the address, or give credentials that may: {CREDENTIALS_HINT}"
        return SourceError(f"no permission to read it ({status})", fix=fix)
    return SourceError(f"the server answers {status}", fix="check the address")


def _cat(fs: Any, full: str, start: int, end: int, retry: RetryPolicy) -> Any:
    if not fs.async_impl:
        return fs.cat_file(full, start=start, end=end)
    from fsspec.asyn import sync  # unlike their `cat_file`, this has a timeout

    limit = retry.deadline + (end - start) / retry.min_rate
    return sync(fs.loop, fs._cat_file, full, start=start, end=end, timeout=limit)


def size_of(info: dict[str, Any]) -> int:
    """Return the size in bytes from fsspec's facts about a file; DatasetError if it is missing."""
    size = info.get("size")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise DatasetError(
            "its file system does not say how many bytes it has", fix="copy the dataset to disk"
        )
    return size


def version_of(info: dict[str, Any]) -> str:
    """Return the most specific version that a file system gives: a checksum, else a modification
    time.
    """
    plain = {key.lower().replace("_", "").replace("-", ""): value for key, value in info.items()}
    for name in (*_TAGS, *_TIMES):
        if plain.get(name) not in (None, "", 0):
            return f"{name} {plain[name]} size {size_of(info)}"
    problem = (
        "its file system gives neither a checksum nor a time of change, so a change could "
        "not be noticed"
    )
    raise DatasetError(problem, fix="copy the dataset to disk")


def _modified(info: dict[str, Any]) -> float:
    """Return the modification time that a file system gives, in seconds since 1970; 0 if it gives
    none.
    """
    plain = {key.lower().replace("_", "").replace("-", ""): value for key, value in info.items()}
    for value in (plain.get(name) for name in _TIMES):
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return float(value)
    return 0.0


HEAD = 1 << 16
"""Bytes fetched when a file is opened: all of a small file, the index of many videos, the footer of
many tables.
"""
_SIGNED = 3600  # seconds of validity of a signed URL
_REUSED = 600.0  # seconds for which a signed URL or redirect target is reused


class WebBackend:
    """Differences between the kinds of web addresses.

    Attributes:
        pin: See `WebStore.pin`.
        hides: Whether a missing file looks forbidden without the right to list its folder.
        pinned_address: Address of the pinned commit; "" without one.
    """

    pin = ""
    hides = False
    pinned_address = ""

    def name(self, path: str) -> str:
        """See `WebStore.name`."""
        raise NotImplementedError

    def address(self, path: str) -> Address:
        """Return the URL and headers to request; raises DatasetError or its driver's errors."""
        raise NotImplementedError

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        """See `Files.entries`; by default folders cannot be listed."""
        return None

    def stat(self, path: str) -> Stat | None:
        """Return the version of a file if it is known without a request and cannot change."""
        return None


class WebStore:
    """Files of a web backend. Safe in threads.

    The version of a file is its etag, or else its modification time. A file modified after the
    first response of its server changed during the run, even if this process opens it for the first
    time. Both times are by the server's clock.

    Args:
        backend: Kind of address.
        client: HTTP client.
        opened: Time of that first response in seconds since 1970; 0 before it.
    """

    def __init__(self, backend: WebBackend, client: HttpClient, opened: float = 0.0) -> None:
        self.backend = backend
        self._client = client
        self._opened = opened
        self._addresses: dict[str, tuple[Address, float]] = {}
        self._sends_tails = True

    @property
    def opened(self) -> float:
        """Time of the first response in seconds since 1970, by the server's clock; 0 before it."""
        return self._opened

    @property
    def pin(self) -> str:
        """State that a pickle carries so that all copies read the same version; "" for none."""
        time_of_opening = repr(self._opened) if self._opened else ""
        return self.backend.pin or time_of_opening

    def name(self, path: str) -> str:
        """Return a globally unique name of a file, free of credentials."""
        return self.backend.name(path)

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        """See `Files.entries`."""
        return self.backend.entries(folder)

    def meet(
        self,
        path: str,
        known_stat: Stat | None,
        first: First,
        retry: RetryPolicy,
        stop: threading.Event,
    ) -> tuple[Stat, int, bytes]:
        """Return the current version of a file, and bytes of it, behind their offset, if the
        response carried them.

        Args:
            path: The file.
            known_stat: An earlier version; if it is still current, no bytes are sent.
            first: The wanted bytes. A server that does not send the end of a file alone sends the
                start.
            retry: Deadlines of the request.
            stop: Ends the request when it is set.

        Raises:
            DatasetError: The file is missing or forbidden, or its version is unknown.
            TransientError: Another attempt may succeed.
        """
        fixed = call_driver(lambda: self.backend.stat(path))
        if fixed is not None:
            return fixed, 0, b""
        known_tag = known_stat.tag if known_stat else ""
        offset = END if first.is_tail and self._sends_tails else 0
        try:
            response = self._request(path, offset, first.size, retry, stop, known_tag)
        except NoTailError:
            self._sends_tails = False
            response = self._request(path, 0, first.size, retry, stop, known_tag)
        modified = known_stat.modified if response.unchanged and known_stat else response.modified
        # A modification time after the response comes from the writer's clock and proves nothing.
        if self._opened and self._opened < modified <= (response.date or modified):
            raise SourceError(
                "it was written after this run began to read the dataset", fix=RESTART
            )
        self._opened = self._opened or response.date
        return self._stat_of(response, known_stat), response.offset, response.data

    def ask(
        self, path: str, known_stat: Stat | None, retry: RetryPolicy, stop: threading.Event
    ) -> Stat:
        """Return the version of a file now, whenever it was written; raises as `meet` does."""
        known_tag = known_stat.tag if known_stat else ""
        response = self._request(path, 0, 1, retry, stop, known_tag)
        return self._stat_of(response, known_stat)

    def _stat_of(self, response: RangeResponse, known_stat: Stat | None) -> Stat:
        if response.unchanged and known_stat:
            return known_stat
        if response.total < 0:
            raise DatasetError("the server does not send its size", fix="copy the dataset to disk")
        if not response.tag:
            problem = (
                "the server sends neither an etag nor a time of change, so a change could "
                "not be noticed"
            )
            raise DatasetError(
                problem, fix="copy the dataset to disk, or serve it with one of them"
            )
        return Stat(response.total, response.tag, response.modified)

    def get(
        self,
        path: str,
        stat: Stat,
        offset: int,
        size: int,
        retry: RetryPolicy,
        stop: threading.Event,
    ) -> bytes:
        """Return 1 to `size` bytes from `offset` of the version `stat`.

        Raises:
            DatasetError: The file has another version now, or as `meet` raises.
            TransientError: Another attempt may succeed.
        """
        response = self._request(path, offset, size, retry, stop)
        if response.total not in (-1, stat.size) or (
            response.tag and not self.backend.pin and response.tag != stat.tag
        ):
            raise SourceError(CHANGED, fix=RESTART)
        if not response.tag and not self.backend.pin:
            raise TransientError("the server no longer sends the file's version", tries=4)
        if not response.data:
            raise TransientError(
                f"the server has no bytes from {offset} on, where the file has {stat.size}", tries=4
            )
        return response.data

    def abort(self) -> None:
        """End transfers under way."""
        self._client.abort()

    def _request(
        self,
        path: str,
        offset: int,
        size: int,
        retry: RetryPolicy,
        stop: threading.Event,
        known_tag: str = "",
    ) -> RangeResponse:
        recent, until = self._addresses.get(path, (None, 0.0))
        if recent is not None and time.monotonic() < until:
            try:
                return self._client.get(recent, offset, size, retry, stop, known_tag)
            except HttpStatusError:  # the signature or redirect has expired
                self._addresses.pop(path, None)
        address = call_driver(lambda: self.backend.address(path))
        try:
            response = self._client.get(address, offset, size, retry, stop, known_tag)
        except HttpStatusError as error:
            raise status_error(error.status, self.backend.hides) from error
        if response.final:
            address = response.final
        self._addresses[path] = (address, time.monotonic() + _REUSED)
        return response


class HttpBackend(WebBackend):
    """https:// and http://; folders cannot be listed."""

    def __init__(self, root: str, headers: Mapping[str, str]) -> None:
        self._root = urlsplit(root)
        self._headers = dict(headers)

    def name(self, path: str) -> str:
        """See `WebStore.name`."""
        return urlunsplit((*self._root[:2], f"{self._root.path.rstrip('/')}/{quote(path)}", "", ""))

    def address(self, path: str) -> Address:
        """See `WebBackend.address`."""
        path = f"{self._root.path.rstrip('/')}/{quote(path)}"
        return Address(urlunsplit(self._root._replace(path=path, fragment="")), self._headers)


class S3Backend(WebBackend):
    """s3://; s3fs lists folders and signs URLs."""

    hides = True

    def __init__(self, root: str, options: Record) -> None:
        self._root = root
        self._options = dict(options)
        # older signatures are refused for encrypted files and in newer regions
        if not options.get("anon"):
            signed = {"signature_version": "s3v4", **options.get("config_kwargs", {})}
            self._options["config_kwargs"] = signed
        client = options.get("client_kwargs", {})
        # not Amazon: no region to look up
        other = {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} & os.environ.keys()
        if not (
            other
            or options.get("endpoint_url")
            or client.get("endpoint_url")
            or client.get("region_name")
        ):
            # such a signature names the bucket's region
            self._options.setdefault("cache_regions", True)
        self._open()

    def _open(self) -> tuple[Any, str]:
        return open_fs(self._root, self._options)  # fsspec caches both per process

    def name(self, path: str) -> str:
        """See `WebStore.name`."""
        fs, base = self._open()
        return f"s3 {getattr(fs, 'endpoint_url', None) or ''} {base.rstrip('/')}/{path}"

    def address(self, path: str) -> Address:
        """See `WebBackend.address`."""
        fs, base = self._open()
        return Address(
            fs.sign(f"{base.rstrip('/')}/{path}", expiration=_SIGNED, **getattr(fs, "req_kw", {}))
        )

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        """See `Files.entries`."""
        fs, base = self._open()
        full_path = f"{base.rstrip('/')}/{folder}" if folder else base
        return list_folder(fs, full_path)


class HubBackend(WebBackend):
    """hf://datasets/...: a repository at one commit, which cannot change; huggingface_hub lists and
    resolves.

    Args:
        root: The hf:// address.
        options: Options of huggingface_hub's file system.
        commit: The commit to read; "" resolves the revision of the address.
    """

    def __init__(self, root: str, options: Record, commit: str) -> None:
        self._fs, base = open_fs(root, dict(options))
        self._lock = threading.Lock()  # listing is not thread-safe
        try:
            resolved = self._fs.resolve_path(base)
            self._type = resolved.repo_type
            self._repo = resolved.repo_id
            self._folder = resolved.path_in_repo.strip("/")
            if not commit:
                from huggingface_hub import HfApi

                api = HfApi(endpoint=self._fs.endpoint, token=self._fs.token)
                commit = (
                    api.repo_info(self._repo, revision=resolved.revision, repo_type=self._type).sha
                    or ""
                )
        except Exception as error:
            problem = f"cannot be found on the hub: {summarize(error)}"
            fix = hub_remedy(error)
            if is_offline(error):
                raise SourceError(problem, where=root, fix=fix, transient=True) from error
            raise DatasetError(problem, where=root, fix=fix) from error
        self.pin = commit
        folder = f"/{self._folder}" if self._folder else ""
        self.pinned_address = f"hf://{self._type}s/{self._repo}@{commit}{folder}"

    def _inside(self, path: str) -> str:
        return "/".join(part for part in (self._folder, path) if part)

    def _full(self, path: str) -> str:
        return f"{self._type}s/{self._repo}@{self.pin}/{self._inside(path)}".rstrip("/")

    def name(self, path: str) -> str:
        """See `WebStore.name`."""
        return f"hf {self._fs.endpoint} {self._full(path)}"

    def address(self, path: str) -> Address:
        """See `WebBackend.address`."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        fs = self._fs
        inside = self._inside(path)
        url = hf_hub_url(
            self._repo, inside, repo_type=self._type, revision=self.pin, endpoint=fs.endpoint
        )
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


def web_store(root: str, options: Record, pin: str = "") -> WebStore | None:
    """Return the store of an http, s3 or hf URL; None for other protocols."""
    protocol = root.partition("://")[0]
    if protocol in ("http", "https"):
        unused = dict(options)
        headers = {
            **unused.pop("client_kwargs", {}).get("headers", {}),
            **unused.pop("headers", {}),
        }
        verify = unused.pop("verify", None)
        if unused:
            raise DatasetError(
                f"storage option {min(unused)!r} means nothing here",
                where=root,
                fix="headers, verify",
            )
        return WebStore(HttpBackend(root, headers), HttpClient(verify), float(pin or 0))
    if protocol in ("s3", "s3a"):
        # as botocore
        verify = options.get("client_kwargs", {}).get("verify", os.environ.get("AWS_CA_BUNDLE"))
        return WebStore(S3Backend(root, options), HttpClient(verify), float(pin or 0))
    if protocol == "hf" and not root.startswith("hf://buckets/"):
        return WebStore(HubBackend(root, options, pin), HttpClient())
    return None
