"""A web server for one viewer on this machine: loopback only, GET only.

Other programs can connect to loopback, too: pages of other sites through the browser, and other
users of the machine. So each address begins with a random word, and a request must name this
machine as its host. A page of another site knows no such address, also where its name leads here
(DNS rebinding).
"""

import logging
import re
import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from understudy_base import UnderstudyError
from understudy_tools.report.view.viewer import Resource, UnknownResource, Viewer

logger = logging.getLogger("understudy.report.view.server")

HOST = "127.0.0.1"
_HOSTS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; media-src 'self'; connect-src 'self'; base-uri 'none'; form-action "
    "'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


class ViewServer(ThreadingHTTPServer):
    """A viewer at `url`, until `shutdown` or `server_close`.

    Args:
        viewer: The content.
        port: Port of loopback; 0 takes a free one.

    Raises:
        OSError: The port is taken.
    """

    daemon_threads = True  # a slow client must not delay the end

    def __init__(self, viewer: Viewer, port: int = 0) -> None:
        self.viewer = viewer
        self.word = secrets.token_urlsafe(12)
        super().__init__((HOST, port), _Handler)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_address[1]}/{self.word}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a request instead of printing its traceback."""
        logger.debug("a request failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    server_version = "understudy"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """Answer with a resource of the viewer."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not _HOSTS.fullmatch(hosts[0].strip()):
            return self._refuse(403, "open the page by the printed address")
        if self.headers.get("Content-Length") or self.headers.get("Transfer-Encoding"):
            # a body that is not read must not be taken for the next request
            self.close_connection = True
        target = urlsplit(self.path)
        first, slash, name = target.path.removeprefix("/").partition("/")
        if not slash or not secrets.compare_digest(first.encode(), self.server.word.encode()):
            return self._refuse(404, "not found")
        try:
            resource = self.server.viewer.read(unquote(name), dict(parse_qsl(target.query)))
        except UnknownResource:
            return self._refuse(404, "not found")
        except UnderstudyError as error:
            return self._refuse(422, str(error))
        except Exception as error:
            logger.warning("%s: %s: %s", name, type(error).__name__, error)
            return self._refuse(500, f"{type(error).__name__}: {error}")
        self._send(200, resource)
        return None

    def do_HEAD(self) -> None:
        """Refuse the request: there is only GET."""
        self._refuse(405, "only GET")

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_CONNECT = do_TRACE = do_HEAD

    def _refuse(self, status: int, reason: str) -> None:
        # a body that was not read must not be taken for the next request
        self.close_connection = True
        self._send(status, Resource(reason.encode("utf-8", "replace"), "text/plain; charset=utf-8"))

    def _send(self, status: int, resource: Resource) -> None:
        self.send_response(status)
        if status == 405:
            self.send_header("Allow", "GET")
        is_fixed = resource.kind.startswith("image/")  # the same for the life of this server
        caching = "private, max-age=3600" if is_fixed and status == 200 else "no-store"
        self.send_header("Cache-Control", caching)
        self.send_header("Content-Type", resource.kind)
        self.send_header("Content-Length", str(len(resource.content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(resource.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests for debugging only; nothing is printed."""
        logger.debug(format, *args)
