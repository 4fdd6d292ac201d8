"""`understudy view PATH`: look through the episodes of a dataset in a browser."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Annotated

from understudy.config.declare import Interval, Positional

if TYPE_CHECKING:
    from understudy.report.view.viewer import Viewer


@dataclass(frozen=True)
class ViewConfig:
    """Show episodes in a browser: images of all cameras beside curves, tasks, keep-ranges and findings."""

    path: Positional[str] = ""
    """Folder (or URL) of a LeRobot dataset."""
    port: Annotated[int, Interval(ge=0, le=65535)] = 0
    """Port of the page on 127.0.0.1; 0 takes a free one."""
    browser: bool = True
    """Open the page in a browser."""
    keep_ranges: str = ""
    """JSON file of keep-ranges to mark."""
    findings: str = ""
    """JSON of `understudy check PATH --json` to show; without it, the page has a button for a check."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        return [] if self.path else ["path: required, the folder or URL of a dataset: understudy view PATH"]


def view(config: ViewConfig) -> None:
    """Serve the page until Ctrl-C or SIGTERM."""
    from understudy.data.format.catalog import Catalog
    from understudy.report.view.viewer import Source, Viewer

    catalog = Catalog.open(config.path)
    source = Source(catalog.name, catalog, keep_ranges=config.keep_ranges or None, findings=config.findings)
    _serve(Viewer([source], catalog.name), config)


def _serve(viewer: "Viewer", config: ViewConfig) -> None:
    from understudy.report.view.server import ViewServer

    with stopped_by_signals(), ViewServer(viewer, config.port) as server:
        print(f"{len(viewer.list):,} episodes at {server.url} until Ctrl-C", flush=True)
        if config.browser:
            _open_browser(server.url)
        server.serve_forever()


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """End the block at Ctrl-C or SIGTERM, without an error."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _open_browser(url: str) -> None:
    """Open the page where there is a screen; elsewhere, the browser would be one of text in this terminal."""
    import webbrowser

    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
