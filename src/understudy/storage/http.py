"""One range of one file over HTTP, and what of the answer may be believed.

`requests` says once for each host how it is reached (proxies, certificates, `.netrc`), urllib3's connections carry the
bytes: a request through all of `requests` costs twice the CPU. There are no cookies. Everything that decides
whether they are the right bytes is here, because clients do not look: the range that was really sent, the total size,
the etag, the length, no compression.
"""

from __future__ import annotations

import contextlib
import functools
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
from urllib.parse import urljoin, urlsplit

from understudy.addresses import strip_credentials
from understudy.cancel import Cancelled
from understudy.errors import DatasetError, SourceError
from understudy.storage.retry import RetryPolicy, TransientError, should_stop
from understudy.storage.timeouts import set_deadline, with_deadlines

_CHUNK = 1 << 18
_SKIP = 1 << 20  # bytes of a whole file that are skipped to reach the range; a server that sends more is refused
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_UNSATISFIED = re.compile(r"bytes \*/([0-9]{1,18})")
_REFUSED_TRIES = 4  # in a row: then the server always does so
_REDIRECTS = 30  # one after the other
_CONNECTIONS = 64  # to one host, at most, that are kept for the next request
_PASSING = {408, 421, 423, 425, 429}


@dataclass(frozen=True)
class Address:
    """Where a file is asked for: `headers` go to the host of `url` only."""

    url: str = field(repr=False)  # it may be signed
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class RangeResponse:
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
    final: Address | None = None
    unchanged: bool = False


class HttpStatusError(Exception):
    """The server answered with a status that will not pass by itself."""

    def __init__(self, status: int, where: str) -> None:
        super().__init__(f"{status} from {strip_credentials(where)}")
        self.status = status


@dataclass(frozen=True)
class Route:
    """How a host is reached, as the environment of this process says.

    Attributes:
        pool: urllib3's connections to the host, or to the proxy before it.
        whole: whether that proxy has to be told the whole address.
        headers: what all requests to this host carry.
    """

    pool: Any
    whole: bool
    headers: Mapping[str, str]


class HttpClient:
    """Range requests over connections that are kept. Safe in threads and after a fork.

    Args:
        verify: of `requests`: False or a certificate bundle.
    """

    def __init__(self, verify: bool | str | None = None) -> None:
        self._verify = verify
        self._forget()

    def _forget(self) -> None:
        self._pid, self._session = os.getpid(), None
        self._routes: dict[tuple[str, str], Route] = {}
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()  # connections

    def get(
        self, address: Address, offset: int, size: int, retry: RetryPolicy, stop: threading.Event, known: str = ""
    ) -> RangeResponse:
        """Ask once for `size` > 0 bytes from `offset`.

        Args:
            known: a tag; if the file still has it, the answer is `unchanged`, without any bytes.

        Raises:
            Transient: may work later. Rejected: will not. Stopped: `stop` was set.
        """
        headers = {"Range": f"bytes={offset}-{offset + size - 1}", "Accept-Encoding": "identity"}
        if known:
            headers["If-None-Match" if known.startswith(('"', "W/")) else "If-Modified-Since"] = known
        if self._pid != os.getpid():  # forked: connections are the parent's
            self._forget()
        final, end = None, time.monotonic() + retry.deadline + size / retry.min_rate
        for _ in range(_REDIRECTS):
            at = final or address
            set_deadline(min(end, time.monotonic() + retry.stall), retry.stall)  # for the connection and the head
            response = self._send(at, headers, retry)
            try:
                if further := response.get_redirect_location():
                    final = self._redirected(at, further)
                    with contextlib.suppress(Exception):  # to its end, and the connection can be used again
                        response.read(_CHUNK, decode_content=False)
                elif known and response.status == 304:
                    return RangeResponse(unchanged=True, date=_time(response.headers.get("Date")))
                else:
                    set_deadline(end, retry.stall)
                    return replace(_checked(response, at.url, offset, size, retry, end, stop), final=final)
            finally:
                response.close()  # if it was not read to its end
                response.release_conn()
        raise SourceError("its server redirects in a circle", fix="check the address")

    def abort(self) -> None:
        """End what is under way, from any thread: whoever waits for an answer finds its connection broken."""
        for connection in list(self._open):
            with contextlib.suppress(OSError, AttributeError):  # it may just have ended by itself
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _send(self, address: Address, headers: Mapping[str, str], retry: RetryPolicy) -> Any:
        route = self._route(address.url)
        from urllib3 import Timeout, exceptions

        own = {name.title(): value for name, value in address.headers.items()}  # over what the environment says
        split = urlsplit(address.url)
        target = (split.path or "/") + (f"?{split.query}" if split.query else "")
        try:
            return route.pool.urlopen(
                "GET",
                f"{split.scheme}://{split.netloc.rpartition('@')[2]}{target}" if route.whole else target,
                headers={**route.headers, **own, **headers},
                retries=False,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
                decode_content=False,
                timeout=Timeout(min(10.0, retry.stall), retry.stall),
            )
        except exceptions.SSLError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise DatasetError("its certificate is not trusted", fix="set REQUESTS_CA_BUNDLE") from error
            raise TransientError(f"no safe connection ({_short(error)})") from error
        except (exceptions.HTTPError, OSError) as error:
            if isinstance(error, exceptions.TimeoutError) and not isinstance(error, exceptions.NewConnectionError):
                raise TransientError(f"no answer in {retry.stall:g} s") from error
            raise TransientError(f"no connection ({_short(error)})") from error

    def _route(self, url: str) -> Route:
        """The environment is asked once for each host: it does not change, and to ask costs more than a request."""
        host = urlsplit(url)[:2]
        if host not in self._routes:
            self._session = self._session or _new_session()
            self._routes[host] = _found(self._session, url, self._verify, self._open)
        return self._routes[host]

    def _redirected(self, address: Address, location: str) -> Address:
        """Where a redirect leads; no headers are sent on to another host."""
        from requests.utils import requote_uri

        url = urljoin(address.url, requote_uri(location.encode("latin1").decode(errors="replace")))
        assert self._session is not None
        return Address(url, {} if self._session.should_strip_auth(address.url, url) else address.headers)


def _new_session() -> Any:
    try:
        import requests
    except ImportError:
        raise DatasetError("reading over HTTP needs requests", fix="pip install 'understudy[remote]'") from None
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=_CONNECTIONS))
    return session


def _found(session: Any, url: str, verify: bool | str | None, opened: weakref.WeakSet[Any]) -> Route:
    """The route to the host of a URL, through the proxy, with the certificates, and with the `.netrc` that `requests`
    would take. Its connections are put down in `opened`: urllib3 has no way of its own to end a wait."""
    import requests
    from urllib3.exceptions import HTTPError

    try:
        asked = session.prepare_request(requests.Request("GET", url))
        said = session.merge_environment_settings(asked.url, {}, None, verify, None)
        adapter = session.get_adapter(asked.url)
        pool = adapter.get_connection_with_tls_context(asked, said["verify"], said["proxies"], said["cert"])
        adapter.cert_verify(pool, asked.url, said["verify"], said["cert"])
        whole = not adapter.request_url(asked, said["proxies"]).startswith("/")
    except (requests.exceptions.RequestException, HTTPError) as error:
        raise DatasetError(f"no address of the web: {_short(error)}", fix="check the URL") from None  # it names the URL
    except OSError as error:
        raise DatasetError(f"no certificates: {_short(error)}", fix="set REQUESTS_CA_BUNDLE") from error

    pool.ConnectionCls = with_deadlines(pool.ConnectionCls, opened)
    return Route(pool, whole, dict(asked.headers))


def _checked(
    response: Any, where: str, offset: int, size: int, retry: RetryPolicy, end: float, stop: threading.Event
) -> RangeResponse:
    """The answer, once its head says that it is what was asked for."""
    status, headers = response.status, response.headers
    etag = headers.get("ETag", "")
    modified = _time(headers.get("Last-Modified"))
    about = RangeResponse(
        tag=etag or (headers.get("Last-Modified", "") if modified else ""),
        modified=modified,
        date=_time(headers.get("Date")),
    )
    if status == 416:
        empty = _UNSATISFIED.fullmatch(headers.get("Content-Range", "").strip())
        if empty and int(empty[1]) <= offset:
            return replace(about, total=int(empty[1]))  # whoever knows the size can tell that it has changed
        raise TransientError(f"the server has no bytes {offset} to {offset + size}", tries=_REFUSED_TRIES)
    if status == 429 or status >= 500 or status in _PASSING:
        raise TransientError(f"the server answers {status}", after=_retry_after(headers))
    if status not in (200, 206):
        raise HttpStatusError(status, where)
    if headers.get("Content-Encoding", "identity") not in ("identity", ""):
        raise TransientError(
            f"sent compressed ({headers['Content-Encoding']}) although plain was asked", tries=_REFUSED_TRIES
        )
    skip, total = 0, -1
    if status == 206:
        said = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
        if said is None:
            raise TransientError("a part was sent without saying which", tries=_REFUSED_TRIES)
        begin, behind = int(said[1]), int(said[2]) + 1
        if begin != offset or not begin < behind <= offset + size:
            what = f"bytes {begin} to {behind} were sent where {offset} to {offset + size} were asked"
            raise TransientError(what, tries=_REFUSED_TRIES)
        size = behind - begin
        total = int(said[3]) if said[3] != "*" else -1
        if 0 <= total < behind:
            raise TransientError(f"bytes up to {behind} were sent of a file of {total}", tries=_REFUSED_TRIES)
    else:  # the whole file: take the right part of it, if that is near
        length = headers.get("Content-Length", "")
        total = int(length) if _NUMBER.fullmatch(length) else -1
        if total < 0 or offset > _SKIP:
            raise TransientError("the server sends the whole file instead of a part", tries=_REFUSED_TRIES)
        skip, size = offset, max(0, min(size, total - offset))
    data = _body(response, skip, size, retry, end, stop)
    if size and not data:
        raise TransientError("the connection ended before the first byte")
    return replace(about, data=data, total=total)


def _body(response: Any, skip: int, size: int, retry: RetryPolicy, end: float, stop: threading.Event) -> bytes:
    """`size` bytes behind `skip`; fewer where the connection ended. Raises Transient if not even one came."""
    parts: list[bytes] = []
    have = -skip
    try:
        while have < size:
            if should_stop(stop):
                raise Cancelled
            if time.monotonic() > end:
                raise TransientError(f"slower than {retry.min_rate:g} bytes per second")
            part = response.read1(min(_CHUNK, size - have), decode_content=False)  # what is there, without waiting
            if not part:
                break
            have += len(part)
            parts.append(part)
    except (Cancelled, TransientError):
        raise
    except Exception as error:  # whatever a broken connection makes urllib3, http.client or ssl raise
        if have <= 0:
            raise TransientError(f"the connection broke ({_short(error)})") from error
    data = parts[0] if len(parts) == 1 and not skip else b"".join(parts)[skip:]
    return data


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a `Retry-After` header: a number, or a date by the server's own clock."""
    text = headers.get("Retry-After", "").strip()
    if not text:
        return None
    if _NUMBER.fullmatch(text):
        return float(text)
    then = _time(text)
    return max(0.0, then - (_time(headers.get("Date")) or time.time())) if then else None


@functools.lru_cache(64)  # a file was changed once, and the clock's answers last a second
def _time(text: str | None) -> float:
    if not text:
        return 0.0
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _short(error: BaseException) -> str:
    """What happened, without urllib3's wrappings."""
    line = next(iter(str(error).strip().splitlines()), "")
    said = re.sub(
        r"^<\S+ object at 0x\w+>: |^.*?\): ", "", line
    )  # as releases before 2.4 call a connection, and later ones
    return said[:160] if said != line else f"{type(error).__name__}: {line[:160]}".removesuffix(": ")
