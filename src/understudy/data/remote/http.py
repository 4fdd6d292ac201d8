"""One range of one file over HTTP, and what of the answer may be believed.

`requests` carries the bytes (proxies, certificates, `.netrc` and redirects are its business); everything that decides
whether they are the right bytes is here, because clients do not look: the range that was really sent, the total size,
the etag, the length, no compression. Not here: trying again (`retry.py`), which address a path has (`stores.py`).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from understudy.data.errors import DatasetError, SourceFailed
from understudy.data.remote.retry import Patience, Stopped, Transient, is_over

_CHUNK = 1 << 18
_SKIP = 1 << 20  # bytes of a whole file that are skipped to reach the range; a server that sends more is refused
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_UNSATISFIED = re.compile(r"bytes \*/(\d+)")
_REFUSED_TRIES = 4  # in a row: then the server always does so
_PASSING = {408, 421, 423, 425, 429}


@dataclass(frozen=True)
class Address:
    """Where a file is asked for: `headers` go to the host of `url` only."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """Bytes from the asked offset on, perhaps fewer than asked for, and what the server says of the file.

    Attributes:
        data: never empty unless the file is, or `unchanged`.
        total: size of the file.
        tag: its etag, else its time of change, else "".
        modified, date: seconds since 1970 of the last change and of the answer, by the server's clock; 0 when unsaid.
        final: the address that redirects led to.
        unchanged: the file is still what the known tag said; nothing else is filled in.
    """

    data: bytes = b""
    total: int = -1
    tag: str = ""
    modified: float = 0.0
    date: float = 0.0
    final: str = ""
    unchanged: bool = False


class Rejected(Exception):
    """The server answered with a status that will not pass by itself."""

    def __init__(self, status: int, where: str) -> None:
        super().__init__(f"{status} from {where}")
        self.status = status


class HttpClient:
    """Range requests over connections that are kept. Safe in threads and after a fork.

    Args:
        verify: of `requests`: False or a certificate bundle.
    """

    def __init__(self, verify: bool | str | None = None) -> None:
        self._verify = verify
        self._idle: list[Any] = []  # sessions; threads come and go, and to connect costs two latencies
        self._pid = os.getpid()
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()  # connections

    def _session(self) -> Any:
        """A session that nobody else uses; it is given back by `_idle.append`."""
        if self._pid != os.getpid():  # forked: connections are the parent's
            self._pid, self._idle, self._open = os.getpid(), [], weakref.WeakSet()
        try:
            return self._idle.pop()
        except IndexError:
            return _new_session(self._open)

    def get(
        self, address: Address, offset: int, size: int, patience: Patience, stop: threading.Event, known: str = ""
    ) -> Answer:
        """Ask once for `size` > 0 bytes from `offset`.

        Args:
            known: a tag; if the file still has it, the answer is `unchanged`, without any bytes.

        Raises:
            Transient: may work later. Rejected: will not. Stopped: `stop` was set.
        """
        headers = {**address.headers, "Range": f"bytes={offset}-{offset + size - 1}", "Accept-Encoding": "identity"}
        if known:
            headers["If-None-Match" if known.startswith(('"', "W/")) else "If-Modified-Since"] = known
        session, mine = self._session(), self._idle
        try:
            response = self._send(session, address.url, headers, patience)
            try:
                if known and response.status_code == 304:
                    return Answer(unchanged=True, date=_time(response.headers.get("Date")))
                return _checked(response, offset, size, patience, stop)
            finally:
                response.close()
        finally:
            mine.append(session)

    def abort(self) -> None:
        """End what is under way, from any thread: whoever waits for an answer finds its connection broken."""
        for connection in list(self._open):
            with contextlib.suppress(OSError, AttributeError):  # it may just have ended by itself
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _send(self, session: Any, url: str, headers: dict[str, str], patience: Patience) -> Any:
        import requests

        own = "Authorization" in headers
        try:
            return session.get(
                url,
                headers=headers,
                stream=True,
                timeout=(min(10.0, patience.stall), patience.stall),
                verify=self._verify,
                auth=(lambda request: request) if own else None,  # else .netrc would replace the header
            )
        except requests.exceptions.SSLError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise DatasetError("its certificate is not trusted", fix="set REQUESTS_CA_BUNDLE") from error
            raise Transient(f"no safe connection ({_short(error)})") from error
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
            raise DatasetError(f"no address of the web: {_short(error)}", fix="check the URL") from error
        except requests.exceptions.TooManyRedirects as error:
            raise SourceFailed("its server redirects in a circle", fix="check the address") from error
        except requests.exceptions.Timeout as error:
            raise Transient(f"no answer in {patience.stall:g} s") from error
        except (requests.exceptions.RequestException, OSError) as error:
            raise Transient(f"no connection ({_short(error)})") from error


def _new_session(opened: weakref.WeakSet[Any]) -> Any:
    """A session whose connections are put down in `opened`, and which looks at the environment once for each host:
    proxies and certificates do not change, and to look costs as much as a request."""
    try:
        import requests
    except ImportError:
        raise DatasetError("reading over HTTP needs requests", fix="pip install 'understudy[remote]'") from None

    class Session(requests.Session):
        def merge_environment_settings(self, url: Any, *settings: Any) -> Any:
            host = urlsplit(url)[:2]
            if host not in known:
                known[host] = super().merge_environment_settings(url, *settings)
            return dict(known[host])

    known: dict[Any, Any] = {}
    session, pools = Session(), _pools(opened)
    for scheme in ("http://", "https://"):
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=4)
        adapter.poolmanager.pool_classes_by_scheme = pools
        session.mount(scheme, adapter)
    return session


def _pools(opened: weakref.WeakSet[Any]) -> dict[str, Any]:
    """urllib3's pools, whose connections are put down in `opened`: it has no way of its own to end a wait."""
    import urllib3

    class Connection(urllib3.connection.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            opened.add(self)

    class SafeConnection(urllib3.connection.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            opened.add(self)

    class Pool(urllib3.HTTPConnectionPool):
        ConnectionCls = Connection

    class SafePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = SafeConnection

    return {"http": Pool, "https": SafePool}


def _checked(response: Any, offset: int, size: int, patience: Patience, stop: threading.Event) -> Answer:
    """The answer, once its head says that it is what was asked for."""
    status, headers = response.status_code, response.headers
    etag = headers.get("ETag", "")
    modified = _time(headers.get("Last-Modified"))
    about = Answer(
        tag=etag or (headers.get("Last-Modified", "") if modified else ""),
        modified=modified,
        date=_time(headers.get("Date")),
        final=response.url if response.history else "",
    )
    if status == 416:
        empty = _UNSATISFIED.fullmatch(headers.get("Content-Range", "").strip())
        if empty and int(empty[1]) <= offset:
            return replace(about, total=int(empty[1]))  # whoever knows the size can tell that it has changed
        raise Transient(f"the server has no bytes {offset} to {offset + size}", tries=_REFUSED_TRIES)
    if status == 429 or status >= 500 or status in _PASSING:
        raise Transient(f"the server answers {status}", after=_after(headers))
    if status not in (200, 206):
        raise Rejected(status, response.url)
    if headers.get("Content-Encoding", "identity") not in ("identity", ""):
        raise Transient(
            f"sent compressed ({headers['Content-Encoding']}) although plain was asked", tries=_REFUSED_TRIES
        )
    skip, total = 0, -1
    if status == 206:
        said = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
        if said is None:
            raise Transient("a part was sent without saying which", tries=_REFUSED_TRIES)
        begin, end = int(said[1]), int(said[2]) + 1
        if begin != offset or not begin < end <= offset + size:
            what = f"bytes {begin} to {end} were sent where {offset} to {offset + size} were asked"
            raise Transient(what, tries=_REFUSED_TRIES)
        size = end - begin
        total = int(said[3]) if said[3] != "*" else -1
    else:  # the whole file: take the right part of it, if that is near
        length = headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else -1
        if total < 0 or offset > _SKIP:
            raise Transient("the server sends the whole file instead of a part", tries=_REFUSED_TRIES)
        skip, size = offset, max(0, min(size, total - offset))
    data = _body(response, skip, size, patience, stop)
    if size and not data:
        raise Transient("the connection ended before the first byte")
    return replace(about, data=data, total=total)


def _body(response: Any, skip: int, size: int, patience: Patience, stop: threading.Event) -> bytes:
    """`size` bytes behind `skip`; fewer where the connection ended. Raises Transient if not even one came."""
    parts: list[bytes] = []
    have, end = -skip, time.monotonic() + patience.deadline + size / patience.slowest
    try:
        while have < size:
            if is_over(stop):
                raise Stopped
            if time.monotonic() > end:
                raise Transient(f"slower than {patience.slowest:g} bytes per second")
            part = response.raw.read1(min(_CHUNK, size - have), decode_content=False)  # what is there, without waiting
            if not part:
                break
            have += len(part)
            parts.append(part)
    except (Stopped, Transient):
        raise
    except Exception as error:  # whatever a broken connection makes urllib3, http.client or ssl raise
        if have <= 0:
            raise Transient(f"the connection broke ({_short(error)})") from error
    data = parts[0] if len(parts) == 1 and not skip else b"".join(parts)[skip:]
    return data


def _after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a `Retry-After` header: a number, or a date by the server's own clock."""
    text = headers.get("Retry-After", "").strip()
    if not text:
        return None
    if text.isdigit():
        return float(text)
    then = _time(text)
    return max(0.0, then - (_time(headers.get("Date")) or time.time())) if then else None


def _time(text: str | None) -> float:
    if not text:
        return 0.0
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return 0.0


def _short(error: BaseException) -> str:
    cause = getattr(error.args[0], "reason", None) if error.args else None
    if isinstance(cause, Exception):  # of urllib3's retries: what happened, without the wrappings
        return str(cause).partition("): ")[2][:160] or type(cause).__name__
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160]}" if text else type(error).__name__
