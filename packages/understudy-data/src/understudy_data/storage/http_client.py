"""HTTP range requests, and the checks of their responses.

`requests` resolves once per host how to reach it (proxies, certificates, `.netrc`); urllib3's
connections carry the bytes, because a full `requests` call costs twice the CPU. There are no
cookies. HTTP clients do not verify that they got the right bytes. This module checks the range,
total size, etag, length and absence of compression.

Deadlines include connecting, the response header and the body. A socket's own timeout restarts with
each byte, so a server that sends a byte now and then never exceeds it. A name look-up cannot be
interrupted at all; look-ups, connections, TLS and proxies therefore run in their own thread.
"""

import contextlib
import functools
import io
import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from http.client import HTTPResponse
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from understudy_base import DatasetError, SourceError, pip_line, strip_credentials
from understudy_data.storage.cancel import Cancelled, is_cancelled
from understudy_data.storage.remote_options import RetryPolicy, TransientError, should_stop

T = TypeVar("T")
_POLL = 0.1  # seconds between two checks for cancellation


class DeadlineExceeded(Exception):
    """The call took too long; it may still be running in its own thread."""


class _Deadline(threading.local):
    """Deadline of this thread's request (`time.monotonic`), and its longest wait for one byte in
    seconds.
    """

    end = float("inf")
    stall: float | None = None


_deadline = _Deadline()


def set_deadline(end: float, stall: float) -> None:
    """End requests of this thread at `end` (`time.monotonic`), or after `stall` seconds without a
    byte.
    """
    _deadline.end = end
    _deadline.stall = stall


def call_with_timeout(seconds: float, act: Callable[[], T]) -> T:
    """Return `act()`, run in its own thread.

    Raises:
        DeadlineExceeded: `seconds` have passed, or this thread's work is cancelled
            (`cancel.cancel_when`). `act` continues in its thread and its result is dropped.
    """
    outcome: list[tuple[T | None, BaseException | None]] = []
    done = threading.Event()

    def run() -> None:
        try:
            outcome.append((act(), None))
        except BaseException as error:
            outcome.append((None, error))
        done.set()

    try:
        threading.Thread(target=run, name="understudy-connect", daemon=True).start()
    except RuntimeError:  # no more threads: run without a limit
        run()
    end = time.monotonic() + seconds
    while not done.wait(max(0.0, min(_POLL, end - time.monotonic()))):
        if time.monotonic() >= end or is_cancelled():
            raise DeadlineExceeded
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


class _Raw(io.RawIOBase):
    """Bytes from a connection, read within this thread's deadline."""

    def __init__(self, raw: Any, connection: Any) -> None:
        self._raw = raw
        self._socket = connection

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._raw.fileno())

    def readinto(self, buffer: Any) -> int | None:
        left = _deadline.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        if _deadline.stall is not None:
            self._socket.settimeout(min(left, _deadline.stall))
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._raw.close()


class _Response(HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        # nothing has been read from it yet
        self.fp: Any = io.BufferedReader(_Raw(self.fp.detach(), sock))


def with_deadlines(connection_class: Any, opened: Any) -> Any:
    """Derive a urllib3 connection class that obeys `set_deadline` and adds its connections to the
    set `opened`.
    """
    from urllib3.exceptions import ConnectTimeoutError

    class Connection(connection_class):
        response_class = _Response
        has_deadlines = True
        given_up = False

        def connect(self) -> None:
            left = min(_deadline.end - time.monotonic(), _deadline.stall or float("inf"))
            try:
                call_with_timeout(min(left, threading.TIMEOUT_MAX), self._connect)
            except DeadlineExceeded:
                self.given_up = True
                raise ConnectTimeoutError(self, "it took too long to connect") from None
            opened.add(self)

        def _connect(self) -> None:
            super().connect()
            if self.given_up:
                self.close()

    return Connection


END = -1
"""Offset of a request for the last bytes of a file, whose size need not be known."""
_CHUNK = 1 << 18
_SKIP = 1 << 20  # most bytes of a whole file that are skipped to reach the range
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_UNSATISFIED = re.compile(r"bytes \*/([0-9]{1,18})")
_MAX_ODD = 4  # odd responses in a row after which retrying ends
_NO_TAILS = {400, 416, 501}  # statuses of servers that do not know ranges from the end
_MAX_REDIRECTS = 30
_MAX_CONNECTIONS = 64  # idle connections per host
_TRANSIENT_STATUS = {408, 421, 423, 425, 429}


@dataclass(frozen=True)
class Address:
    """URL of a file, and the headers to send to its host."""

    url: str = field(repr=False)  # may carry a signature
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class RangeResponse:
    """Bytes from the requested offset on, possibly fewer than requested, and the server's facts
    about the file.

    Attributes:
        data: Never empty, unless the file is empty or `unchanged`.
        offset: Place of `data` in the file.
        total: Size of the file; -1 if unknown.
        tag: Etag of the file, else its modification time, else "".
        modified: Modification time in seconds since 1970 by the server's clock; 0 if unknown.
        date: Time of the response by the same clock; 0 if unknown.
        final: Address after redirects.
        unchanged: The file still has the known tag; the other fields but `date` are not set.
    """

    data: bytes = b""
    offset: int = 0
    total: int = -1
    tag: str = ""
    modified: float = 0.0
    date: float = 0.0
    final: Address | None = None
    unchanged: bool = False


class NoTailError(Exception):
    """The server does not send the end of a file alone."""


class HttpStatusError(Exception):
    """A response status that another attempt would meet again."""

    def __init__(self, status: int, url: str) -> None:
        super().__init__(f"{status} from {strip_credentials(url)}")
        self.status = status


@dataclass(frozen=True)
class Route:
    """Route to a host by this process's environment.

    Attributes:
        pool: urllib3's connections to the host, or to its proxy.
        absolute: Whether the proxy needs absolute URLs.
        headers: Headers of all requests to this host.
    """

    pool: Any
    absolute: bool
    headers: Mapping[str, str]


class HttpClient:
    """Range requests over reused connections. Safe in threads and after a fork.

    Args:
        verify: As in `requests`: False, or the path of a certificate bundle.
    """

    def __init__(self, verify: bool | str | None = None) -> None:
        self._verify = verify
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._session = None
        self._lock = threading.Lock()  # of the session and the routes
        self._routes: dict[tuple[str, str], Route] = {}
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()  # connections

    def get(
        self,
        address: Address,
        offset: int,
        size: int,
        retry: RetryPolicy,
        stop: threading.Event,
        known_tag: str = "",
    ) -> RangeResponse:
        """Request `size` > 0 bytes from `offset` once.

        Args:
            address: The file.
            offset: First byte; `END` for the last bytes of the file.
            size: Number of bytes.
            retry: Deadlines of the request.
            stop: Ends the request when it is set.
            known_tag: A tag. If the file still has it, the response is `unchanged` and without
                bytes.

        Raises:
            TransientError: Another attempt may succeed.
            HttpStatusError: The server refuses the request.
            NoTailError: It does not send the end of a file alone.
            Cancelled: `stop` is set.
        """
        span = f"-{size}" if offset == END else f"{offset}-{offset + size - 1}"
        headers = {"Range": f"bytes={span}", "Accept-Encoding": "identity"}
        if known_tag:
            is_etag = known_tag.startswith(('"', "W/"))
            condition = "If-None-Match" if is_etag else "If-Modified-Since"
            headers[condition] = known_tag
        if self._pid != os.getpid():  # in a forked child: the connections belong to the parent
            self._reset()
        final = None
        end = time.monotonic() + retry.deadline + size / retry.min_rate
        for _ in range(_MAX_REDIRECTS):
            target = final or address
            # for connection and header
            set_deadline(min(end, time.monotonic() + retry.stall), retry.stall)
            response = self._send(target, headers, retry)
            try:
                if location := response.get_redirect_location():
                    final = self._follow_redirect(target, location)
                    # a connection is reusable once its response is read
                    with contextlib.suppress(Exception):
                        response.read(_CHUNK, decode_content=False)
                elif known_tag and response.status == 304:
                    # of nothing; a connection is reusable once its response is read
                    response.drain_conn()
                    return RangeResponse(
                        unchanged=True, date=_parse_date(response.headers.get("Date"))
                    )
                else:
                    set_deadline(end, retry.stall)
                    return replace(
                        _check_response(response, target.url, offset, size, retry, end, stop),
                        final=final,
                    )
            finally:
                response.close()  # has no effect on a response that was read completely
                response.release_conn()
        raise SourceError("too many redirects", fix="check the address")

    def abort(self) -> None:
        """End all requests under way, from any thread, by shutting down their connections."""
        for connection in list(self._open):
            with contextlib.suppress(OSError, AttributeError):  # it may just have ended
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _send(self, address: Address, headers: Mapping[str, str], retry: RetryPolicy) -> Any:
        route = self._route(address.url)
        from urllib3 import Timeout, exceptions

        own_headers = {
            name.title(): value for name, value in address.headers.items()
        }  # these override the environment's
        split = urlsplit(address.url)
        target = split.path or "/"
        if split.query:
            target += f"?{split.query}"
        if route.absolute:
            target = f"{split.scheme}://{split.netloc.rpartition('@')[2]}{target}"
        try:
            return route.pool.urlopen(
                "GET",
                target,
                headers={**route.headers, **own_headers, **headers},
                retries=False,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
                decode_content=False,
                timeout=Timeout(min(10.0, retry.stall), retry.stall),
            )
        except exceptions.SSLError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise DatasetError(
                    "its certificate is not trusted", fix="set REQUESTS_CA_BUNDLE"
                ) from error
            raise TransientError(f"no safe connection ({_short(error)})") from error
        except (exceptions.HTTPError, OSError) as error:
            if isinstance(error, exceptions.TimeoutError) and not isinstance(
                error, exceptions.NewConnectionError
            ):
                raise TransientError(f"no answer in {retry.stall:g} s") from error
            raise TransientError(f"no connection ({_short(error)})") from error

    def _route(self, url: str) -> Route:
        """Return the route to a host, resolved once: that costs more than a request."""
        host = urlsplit(url)[:2]
        with self._lock:
            if host not in self._routes:
                self._session = self._session or _new_session()
                self._routes[host] = _find_route(self._session, url, self._verify, self._open)
            return self._routes[host]

    def _follow_redirect(self, address: Address, location: str) -> Address:
        """Return the target of a redirect, without headers if it is another host."""
        from requests.utils import requote_uri

        url = urljoin(address.url, requote_uri(location.encode("latin1").decode(errors="replace")))
        assert self._session is not None
        headers = {} if self._session.should_strip_auth(address.url, url) else address.headers
        return Address(url, headers)


def _new_session() -> Any:
    try:
        import requests
    except ImportError:
        raise DatasetError("reading over HTTP needs requests", fix=pip_line("remote")) from None
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=_MAX_CONNECTIONS))
    return session


def _find_route(
    session: Any, url: str, verify: bool | str | None, opened: weakref.WeakSet[Any]
) -> Route:
    """Resolve the route to a URL's host with the proxy, certificates and `.netrc` that `requests`
    would use.

    Its connections are added to `opened`, because urllib3 cannot interrupt a wait.
    """
    import requests
    from urllib3.exceptions import HTTPError

    try:
        request = session.prepare_request(requests.Request("GET", url))
        settings = session.merge_environment_settings(request.url, {}, None, verify, None)
        adapter = session.get_adapter(request.url)
        pool = adapter.get_connection_with_tls_context(
            request, settings["verify"], settings["proxies"], settings["cert"]
        )
        adapter.cert_verify(pool, request.url, settings["verify"], settings["cert"])
        absolute = not adapter.request_url(request, settings["proxies"]).startswith("/")
    except (requests.exceptions.RequestException, HTTPError) as error:
        raise DatasetError(
            f"not a web address: {_short(error)}", fix="check the URL"
        ) from None  # its message holds the URL
    except OSError as error:
        raise DatasetError(
            f"no certificates: {_short(error)}", fix="set REQUESTS_CA_BUNDLE"
        ) from error

    # addresses of other users have the same pool
    if not getattr(pool.ConnectionCls, "has_deadlines", False):
        pool.ConnectionCls = with_deadlines(pool.ConnectionCls, opened)
    return Route(pool, absolute, dict(request.headers))


def _check_response(
    response: Any,
    url: str,
    offset: int,
    size: int,
    retry: RetryPolicy,
    end: float,
    stop: threading.Event,
) -> RangeResponse:
    """Read the response once its header matches the request."""
    status = response.status
    headers = response.headers
    is_tail = offset == END
    etag = headers.get("ETag", "")
    modified = _parse_date(headers.get("Last-Modified"))
    tag_of_date = headers.get("Last-Modified", "") if modified else ""
    about = RangeResponse(
        tag=etag or tag_of_date,
        modified=modified,
        date=_parse_date(headers.get("Date")),
    )
    if status == 416:
        empty = _UNSATISFIED.fullmatch(headers.get("Content-Range", "").strip())
        if empty and int(empty[1]) <= max(0, offset):
            return replace(about, total=int(empty[1]))  # the caller compares the sizes
        if not is_tail:
            raise TransientError(
                f"the server has no bytes {offset} to {offset + size}", tries=_MAX_ODD
            )
    if is_tail and status in _NO_TAILS:
        raise NoTailError
    if status == 429 or status >= 500 or status in _TRANSIENT_STATUS:
        raise TransientError(f"the server answers {status}", after=retry_after(headers))
    if status not in (200, 206):
        raise HttpStatusError(status, url)
    if headers.get("Content-Encoding", "identity") not in ("identity", ""):
        raise TransientError(
            f"sent compressed ({headers['Content-Encoding']}) although plain was asked",
            tries=_MAX_ODD,
        )
    skip = 0
    total = -1
    if status == 206:
        part = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
        if part is None:
            raise TransientError("a part was sent without its range", tries=_MAX_ODD)
        begin = int(part[1])
        behind = int(part[2]) + 1
        if is_tail:
            if part[3] == "*" or behind != int(part[3]):
                raise NoTailError
            offset = max(begin, behind - size)
        if begin != offset or not begin < behind <= offset + size:
            problem = (
                f"bytes {begin} to {behind} were sent where {offset} to {offset + size} were asked"
            )
            raise TransientError(problem, tries=_MAX_ODD)
        size = behind - begin
        total = int(part[3]) if part[3] != "*" else -1
        if 0 <= total < behind:
            raise TransientError(
                f"bytes up to {behind} were sent of a file of {total}", tries=_MAX_ODD
            )
    else:  # the whole file: use it if the range is near its start
        length = headers.get("Content-Length", "")
        total = int(length) if _NUMBER.fullmatch(length) else -1
        if is_tail:
            offset = max(0, total - size)
            if total < 0 or offset > _SKIP:
                raise NoTailError
        if total < 0 or offset > _SKIP:
            raise TransientError(
                "the server sends the whole file instead of a part", tries=_MAX_ODD
            )
        skip = offset
        size = max(0, min(size, total - offset))
    data = _read_body(response, skip, size, retry, end, stop)
    if size and not data:
        raise TransientError("the connection ended before the first byte")
    return replace(about, data=data, offset=offset, total=total)


def _read_body(
    response: Any, skip: int, size: int, retry: RetryPolicy, end: float, stop: threading.Event
) -> bytes:
    """Return `size` bytes after skipping `skip`, fewer if the connection ends; TransientError if
    none arrives.
    """
    parts: list[bytes] = []
    received = -skip
    try:
        while received < size:
            if should_stop(stop):
                raise Cancelled
            if time.monotonic() > end:
                raise TransientError(f"slower than {retry.min_rate:g} bytes per second")
            # without waiting for more
            part = response.read1(min(_CHUNK, size - received), decode_content=False)
            if not part:
                break
            received += len(part)
            parts.append(part)
    except (Cancelled, TransientError):
        raise
    # urllib3, http.client and ssl raise many types for a broken connection
    except Exception as error:
        if received <= 0:
            raise TransientError(f"the connection broke ({_short(error)})") from error
    data = parts[0] if len(parts) == 1 and not skip else b"".join(parts)[skip:]
    return data


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a `Retry-After` header: a number, or a date by the server's clock."""
    text = headers.get("Retry-After", "").strip()
    if not text:
        return None
    if _NUMBER.fullmatch(text):
        return float(text)
    then = _parse_date(text)
    return max(0.0, then - (_parse_date(headers.get("Date")) or time.time())) if then else None


@functools.lru_cache(64)  # modification times repeat, and dates change once a second
def _parse_date(text: str | None) -> float:
    if not text:
        return 0.0
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _short(error: BaseException) -> str:
    """Summarise an error without the connection object that urllib3 puts before it (in two styles,
    since 2.4).
    """
    line = next(iter(str(error).strip().splitlines()), "")
    bare = re.sub(r"^<\S+ object at 0x\w+>: |^.*?\): ", "", line)
    return (
        bare[:160] if bare != line else f"{type(error).__name__}: {line[:160]}".removesuffix(": ")
    )
